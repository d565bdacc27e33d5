"""Chapter 09: what belongs to it alone."""
