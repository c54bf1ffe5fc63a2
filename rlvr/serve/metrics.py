"""The metrics of the service, in Prometheus' format."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping

HISTOGRAM_BOUNDS_S = (0.0001, 0.001, 0.01, 0.1, 1.0, 10.0, 100.0)
METRIC_HELP: Mapping[str, str] = {
    "requests": "HTTP requests, by route and status.",
    "verdicts": "Verdicts, by fault; none is a verdict without a problem.",
    "rows_again": "Rows that were verified again because a worker process died.",
    "worker_restarts": "Worker processes that ended and were replaced.",
    "refused": "Requests that were rejected, by reason.",
}


class ServiceMetrics:
    """Counters, a histogram of verdict times, and gauges that are read at each export.

    >>> metrics = ServiceMetrics(); metrics.count("refused", reason="token"); print(metrics.to_prometheus({}).splitlines()[2])
    rlvr_refused_total{reason="token"} 1
    """

    def __init__(self) -> None:
        self.counts: Counter[tuple[str, tuple[tuple[str, str], ...]]] = Counter()
        self.histogram, self.total_s = Counter[float](), 0.0

    def count(self, name: str, amount: int = 1, **labels: str) -> None:
        """Add to a counter."""
        self.counts[name, tuple(sorted(labels.items()))] += amount

    def observe(self, seconds_per_row: float, num_rows: int) -> None:
        """Add the verdict time of some rows to the histogram."""
        self.histogram[next((bound for bound in HISTOGRAM_BOUNDS_S if seconds_per_row <= bound), float("inf"))] += num_rows
        self.total_s += seconds_per_row * num_rows

    def to_prometheus(self, gauges: Mapping[str, Callable[[], float]]) -> str:
        """Format all metrics in Prometheus' text format."""
        lines: list[str] = []
        for name in sorted({name for name, _ in self.counts}):
            lines += [f"# HELP rlvr_{name}_total {METRIC_HELP.get(name, name)}", f"# TYPE rlvr_{name}_total counter"]
            for (counted, labels), value in sorted(self.counts.items()):
                if counted == name:
                    inside = ",".join(f'{key}="{text}"' for key, text in labels)
                    lines.append(f"rlvr_{name}_total{'{' + inside + '}' if inside else ''} {value}")
        lines += ["# HELP rlvr_verdict_seconds Time for one verdict in a worker process.", "# TYPE rlvr_verdict_seconds histogram"]
        below = 0
        for bound in (*HISTOGRAM_BOUNDS_S, float("inf")):
            below += self.histogram[bound]
            lines.append(f'rlvr_verdict_seconds_bucket{{le="{"+Inf" if bound == float("inf") else f"{bound:g}"}"}} {below}')
        lines += [f"rlvr_verdict_seconds_sum {self.total_s:.6f}", f"rlvr_verdict_seconds_count {below}"]
        for name, read in gauges.items():
            lines += [f"# TYPE rlvr_{name} gauge", f"rlvr_{name} {read():g}"]
        return "\n".join([*lines, ""])
