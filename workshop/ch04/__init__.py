"""Chapter 04: what belongs to it alone."""
