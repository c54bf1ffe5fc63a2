"""Enables `python -m rlvr`."""

from rlvr.commands.cli import main

if __name__ == "__main__":
    main()
