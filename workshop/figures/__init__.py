"""Figures and widgets of single chapters."""
