"""Servers of other processes and machines, by URL."""
