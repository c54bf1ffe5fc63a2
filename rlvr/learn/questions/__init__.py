"""What is asked next: the order of tasks, the curriculum, dynamic sampling, answers from earlier runs."""
