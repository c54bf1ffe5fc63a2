"""What runs inside the container or behind the process boundary: Python's standard library only."""
