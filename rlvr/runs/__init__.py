"""Run folders: logs, locks, progress display, report and curves."""

from functools import partial

from rlvr.hints import find_public_name

__getattr__ = partial(find_public_name, "runs")
