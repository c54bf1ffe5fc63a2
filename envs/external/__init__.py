"""Environments of other projects, each behind its own package or process."""
