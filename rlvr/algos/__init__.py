"""The algorithms: credit, ratio, KL, aggregation and values, and the presets that name one of each."""
