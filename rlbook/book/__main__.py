"""`python -m rlbook.book [notebook …]` executes notebooks in place; without names, all of them."""

import sys

from rlbook.book import build

sys.exit(not build(sys.argv[1:]))
