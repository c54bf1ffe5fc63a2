"""The learner: the policy, the update, the checkpoints and the loop."""
