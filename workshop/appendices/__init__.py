"""What the appendices draw and read."""
