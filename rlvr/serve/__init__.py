"""`rlvr serve`: verifiers and environments over HTTP. One process speaks HTTP, and worker processes verify."""
