"""The parts of `unit_tests`: read the tests, transfer values to and from the sandbox, compare them."""
