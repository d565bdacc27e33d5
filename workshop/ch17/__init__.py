"""Chapter 17: what belongs to it alone."""
