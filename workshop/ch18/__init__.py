"""Chapter 18: what belongs to it alone."""
