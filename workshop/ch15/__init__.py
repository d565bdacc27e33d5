"""Chapter 15: what belongs to it alone."""
