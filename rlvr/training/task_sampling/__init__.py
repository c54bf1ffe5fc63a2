"""Task sampling: the order of tasks, the curriculum, dynamic sampling, offline data and reward monitoring."""
