"""Chapter 03: what belongs to it alone."""
