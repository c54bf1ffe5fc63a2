"""Run folders: the record of a run, its owner, progress, report and curves."""
