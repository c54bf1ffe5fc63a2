"""Enables `python -m rlvr`."""

from rlvr.cli.commands import main

if __name__ == "__main__":
    main()
