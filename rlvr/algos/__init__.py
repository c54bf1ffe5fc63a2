"""The algorithms: credit, ratio, KL, aggregation and value functions, and the presets that combine them."""
