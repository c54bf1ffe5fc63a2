"""Run folders: logs, locks, progress display, report and curves."""
