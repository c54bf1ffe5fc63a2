"""The base classes of the algorithms, their settings, and the spec from which an algorithm is built."""
