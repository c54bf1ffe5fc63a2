"""Tests, one file for each module; `tests.fixtures.has_sessions` holds the small environments that they share."""
