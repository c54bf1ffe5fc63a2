"""Policies measured: suites, samples, statistics, comparisons, judging again, export."""
