"""The functions that algorithms are composed of: advantages, ratios and clips, KL, aggregation."""
