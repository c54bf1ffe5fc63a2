"""Names to plugins: the registry, and what other packages bring."""
