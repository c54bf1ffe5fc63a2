"""Internals of the verifier `symbolic`: parse answers to trees, compute values, compare answer and gold."""
