"""What stands behind `unit_tests`: reading the tests, carrying values, comparing them."""
