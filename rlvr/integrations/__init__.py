"""Adapters that run rlvr environments and verifiers in other trainers: one small module for each framework.

No adapter imports its framework. Each follows the published signatures of the version in `TESTED_VERSION`, and warns if another version is
installed. `rlvr export-env` writes the file that a trainer loads.

`rows` makes dataset rows and finds the task of a row. `texts` runs conversations for frameworks that sample texts, `tokens` for those that
sample token ids.
"""
