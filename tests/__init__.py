"""Tests, one file for each module; `tests.worlds` holds the small environments that they share."""
