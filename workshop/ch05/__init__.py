"""Chapter 05: what belongs to it alone."""
