"""Tasks from a Python project: its files and functions, bugs in them, builds in the sandbox, answers and verdicts."""
