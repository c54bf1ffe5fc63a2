"""What samplers and the learner share of a model: weights, attention, batches, reward models."""
