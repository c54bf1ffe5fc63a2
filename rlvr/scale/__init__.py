"""Sampling in many places at once: who samples what next, and the transports that carry it there."""
