"""Chapter 02: what belongs to it alone."""
