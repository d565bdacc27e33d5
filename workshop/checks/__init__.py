"""Checks of the exercises, a module per chapter: they name the likely mistake, not the answer."""
