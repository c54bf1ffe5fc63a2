"""The policy update: packing, the policy, the loss and the optimizer."""
