"""What a tree is worth: exact numbers, normal forms, numeric points, algebra in worker processes."""
