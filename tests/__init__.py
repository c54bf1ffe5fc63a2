"""Tests, one file for each module; `tests.fixtures.worlds` holds the small environments that they share."""
