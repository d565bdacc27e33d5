"""Chapter 01: what belongs to it alone."""
