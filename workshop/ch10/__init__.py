"""Chapter 10: what belongs to it alone."""
