"""From groups of episodes to new weights: packing, the policy, the loss, the optimizer."""
