"""Decide whether an answer equals the gold, by the kind of the gold."""
