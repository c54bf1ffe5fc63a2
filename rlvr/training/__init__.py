"""Training: the training loop, the policy update, checkpoints and task sampling."""
