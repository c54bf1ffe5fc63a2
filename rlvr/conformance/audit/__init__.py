"""`rlvr audit`: measure the false positives and false negatives of a verifier of rlvr, or of any reward function."""
