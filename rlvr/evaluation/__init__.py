"""Evaluate policies: suites, samples, statistics, comparisons, rescoring, export."""
