"""Task folders of Harbor and of terminal-bench: how they are read, built and judged."""
