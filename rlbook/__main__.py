"""`python -m rlbook`."""

from rlbook.cli import main

if __name__ == "__main__":
    main()
