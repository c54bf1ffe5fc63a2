"""Compare an answer with the gold, by the kind of the gold."""
