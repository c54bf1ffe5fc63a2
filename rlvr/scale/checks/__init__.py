"""Whether machines compute the same, and whether a cluster can run what is asked."""
