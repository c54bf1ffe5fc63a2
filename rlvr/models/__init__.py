"""Model code shared by samplers and the learner: weights, attention, batches, reward models."""
