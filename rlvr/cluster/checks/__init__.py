"""Check that machines compute the same, and that a cluster can run a configuration."""
