"""Chapter 11: what belongs to it alone."""
