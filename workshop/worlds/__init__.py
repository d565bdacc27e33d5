"""Worlds small enough to enumerate, of one chapter or two."""
