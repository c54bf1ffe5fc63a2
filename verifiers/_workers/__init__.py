"""Worker processes with limits of processor time and memory, for work on an answer that may not end: algebra, patterns, a verifier."""
