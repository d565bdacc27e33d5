"""Chapter 13: what belongs to it alone."""
