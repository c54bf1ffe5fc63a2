"""Write metrics in Prometheus' text format, for the textfile collector of node_exporter. No port is opened."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

METRICS_FILE = "metrics.prom"


def _format_metrics(row: Mapping[str, Any], run: str) -> str:
    """Format the numbers of a row as gauges, with the run's name as a label; other values are omitted.

    >>> print(_format_metrics({"step": 3, "cluster/sampling_fraction": 0.5, "kl": None}, "a"), end="")
    # TYPE rlvr_step gauge
    rlvr_step{run="a"} 3
    # TYPE rlvr_cluster_sampling_fraction gauge
    rlvr_cluster_sampling_fraction{run="a"} 0.5
    """
    label = "".join({"\\": "\\\\", '"': '\\"', "\n": "\\n"}.get(letter, letter) for letter in run)
    lines = []
    for name, value in row.items():
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
            metric = "rlvr_" + re.sub(r"[^a-zA-Z0-9_]", "_", name)
            lines += [f"# TYPE {metric} gauge", f'{metric}{{run="{label}"}} {value!r}']
    return "".join(line + "\n" for line in lines)


class PrometheusFile:
    """The metrics file of a run, with the latest value of every metric; replaced atomically.

    >>> PrometheusFile(Path("runs/a")).update({"step": 1, "reward": 0.5})  # doctest: +SKIP
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self._newest = folder, dict[str, Any]()

    def update(self, row: Mapping[str, Any]) -> None:
        """Write the metrics of a step; missing metrics keep their last value."""
        self._newest |= row
        partial = self.folder / f".{METRICS_FILE}.part"
        partial.write_text(_format_metrics(self._newest, self.folder.resolve().name), "utf-8")
        partial.replace(self.folder / METRICS_FILE)
