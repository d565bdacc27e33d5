"""Imported, it makes every row known to verl, which VERL_USE_EXTERNAL_MODULES tells to do so."""

from rlbook.interop.verl import register

register()
