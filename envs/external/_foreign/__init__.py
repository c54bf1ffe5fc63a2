"""The worlds of other projects: how each is reached, and what runs in its own process."""
