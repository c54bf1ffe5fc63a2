"""Suites of environments to evaluate on, addressed by name: `rlvr eval quick --policy ...`."""
