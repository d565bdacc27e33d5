"""Chapter 08: what belongs to it alone."""
