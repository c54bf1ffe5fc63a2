"""Adapters of other projects, against folders, servers and stand-ins with the faults of the real ones."""
