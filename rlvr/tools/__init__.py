"""Tools that a policy may call; one file for each plugin."""
