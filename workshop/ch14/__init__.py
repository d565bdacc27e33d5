"""Chapter 14: what belongs to it alone."""
