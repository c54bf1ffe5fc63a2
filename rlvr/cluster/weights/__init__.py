"""Weights on their way from the trainer to rollout workers."""
