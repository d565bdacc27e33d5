"""Chapter 12: what belongs to it alone."""
