"""Chapter 07: what belongs to it alone."""
