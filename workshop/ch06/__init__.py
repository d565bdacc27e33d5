"""Chapter 06: what belongs to it alone."""
