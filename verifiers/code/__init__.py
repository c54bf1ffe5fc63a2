"""Internals of `unit_tests`: parse the tests, transfer values to and from the sandbox, compare them."""
