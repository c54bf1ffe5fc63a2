"""An evaluation that was written to a folder, opened to look at: its samples, its metrics, and comparisons with others."""

from __future__ import annotations

import json
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlvr.evaluation.compare import ComparedRun, RunComparison, compare_evaluations
from rlvr.evaluation.samples import REPORT_FILE, EvalSample, load_plan, load_samples, samples_to_frame
from rlvr.hints import Hinted
from rlvr.runs.run_log import explain_damaged_run

if TYPE_CHECKING:
    import pandas


class StoredEvaluation(Hinted):
    """A finished or unfinished evaluation, read from the folder that `rlvr.evaluate(..., out=)` or `rlvr eval --out` wrote.

    >>> before = StoredEvaluation("runs/before")  # doctest: +SKIP
    >>> before.to_pandas()[["task_id", "score", "reason"]]  # doctest: +SKIP
    """

    _hints = {
        "episodes": "write .samples, or .to_pandas()",
        "results": "write .report for the figures, .samples or .to_pandas() for the answers",
        "metrics": "write .report",
        "accuracy": "write .report['envs'][NAME]",
        "table": "write .to_pandas(), or .report",
    }

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.plan = load_plan(self.folder)
        """What was measured: suite, policy, sampling, verifiers."""

    @cached_property
    def samples(self) -> list[EvalSample]:
        """The samples, in the order of their tasks."""
        with explain_damaged_run(self.folder):
            return [sample for _, sample in sorted(load_samples(self.folder).items())]

    @cached_property
    def report(self) -> dict[str, Any]:
        """The metrics; empty while the evaluation is not finished."""
        path = self.folder / REPORT_FILE
        with explain_damaged_run(self.folder):
            return dict(json.loads(path.read_text("utf-8"))) if path.is_file() else {}

    def to_pandas(self) -> pandas.DataFrame:
        """Return the samples as a data frame, one row for each."""
        return samples_to_frame(self.samples)

    def compare(self, other: Any, *, force: bool = False) -> RunComparison:
        """Compare with another evaluation, paired by task: a report, a stored evaluation, or its folder."""
        return compare_evaluations(self, other, force=force)

    def to_compared_run(self) -> ComparedRun:
        """Return the samples for a comparison."""
        return ComparedRun.open(self.folder)

    def __repr__(self) -> str:
        measured = ""
        with suppress(Exception):  # a debugger shows an evaluation whose report is damaged, too
            scores = {name: (found.get("mean_score") or {}).get("value") for name, found in self.report.get("envs", {}).items()}
            measured = "".join(f", {name}: {score:.3g}" for name, score in scores.items() if score is not None)
        return f"StoredEvaluation({str(self.folder)!r}{measured})"
