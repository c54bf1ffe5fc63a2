"""Whether an answer is the gold, kind by kind."""
