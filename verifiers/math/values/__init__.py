"""Compute the value of a tree: exact numbers, normal forms, numeric points, algebra in worker processes."""
