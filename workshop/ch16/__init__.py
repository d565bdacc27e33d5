"""Chapter 16: what belongs to it alone."""
