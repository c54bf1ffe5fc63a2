"""Enables `python -m rlvr`."""

from rlvr.cli import main

if __name__ == "__main__":
    main()
