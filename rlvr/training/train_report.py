"""The report of a run, and the lines that tell it."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlvr.hints import Hinted
from rlvr.runs.run import Run
from rlvr.runs.run_log import read_metrics

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True, slots=True)
class TrainReport(Hinted):
    """The result of a run: the last line that `rlvr train --json` prints.

    >>> TrainReport("runs/a", steps=1, seconds=2.0, accuracy_before=0.2, accuracy_after=0.9, held_out_tasks=500).status
    'finished'
    """

    _synonyms = {
        "history": "metrics",
        "log_history": "log_rows",
        "output_dir": "run",
        **dict.fromkeys(("save", "save_pretrained"), "save_model"),
    }
    _hints = {
        **dict.fromkeys(
            ("model", "policy", "push_to_hub", "checkpoint", "tokenizer"),
            "the trained model is saved already, and the folder of a run is a model: rlvr.load_model(report.run)",
        ),
        "accuracy": "write .accuracy_after, or .accuracy_before",
        "reward": "write .rewards, the mean reward of each step",
        "loss": "write .metrics.loss; .metrics is a data frame with a row for each step",
    }
    run: str
    steps: int
    seconds: float
    accuracy_before: float | None
    """On the held-out tasks, after the SFT warmup and before the first training step."""
    accuracy_after: float | None
    held_out_tasks: int
    held_out_contaminated: int = 0
    """The number of held-out tasks that were trained on; must be 0."""
    held_out_unscored: int = 0
    """The number of held-out answers without a score after training; with more than 2 % of them there is no `accuracy_after`."""
    has_partial_scores: bool = False
    """Whether some held-out scores lie between 0 and 1: then `accuracy_before` and `accuracy_after` are mean scores."""
    interval_after: list[float] | None = None
    """The 95 % interval of the accuracy after training."""
    scores_by_env: dict[str, float | None] = field(default_factory=dict)
    """With a mixture: the accuracy after training on each of its environments."""
    status: str = "finished"
    """`finished`, or `stopped: ` and the reason that a callback gave."""
    rewards: list[float] = field(default_factory=list)
    """The mean reward of each step."""
    held_out_answers: int = 0
    """The number of held-out answers after training: larger than `held_out_tasks` if `eval.tasks` draws a task more than once."""

    @property
    def metrics(self) -> pandas.DataFrame:
        """The metrics of the run, one row for each step."""
        return Run(self.run).metrics

    @property
    def log_rows(self) -> list[dict[str, Any]]:
        """The metrics of the run as a list, one mapping for each step."""
        return list(read_metrics(Path(self.run)))

    def save_model(self, folder: str | Path) -> None:
        """Write the trained model and its tokenizer to a folder that transformers, vLLM and `rlvr.load_model` can load; with LoRA the merged
        model, and the adapter alone in the folder `adapter`, as peft loads it.
        """
        import rlvr

        rlvr.load_model(self.run).save_pretrained(folder)
        if (adapter := Path(self.run) / "checkpoints" / "last" / "adapter").is_dir():
            shutil.copytree(adapter, Path(folder) / "adapter", dirs_exist_ok=True)

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain JSON."""
        idle = {"rewards", *(["scores_by_env"] if not self.scores_by_env else [])}
        return {key: value for key, value in asdict(self).items() if key not in idle}


def format_closing_lines(report: TrainReport, folder: Path) -> str:
    """Format the last lines of a run: the held-out accuracy, with its interval, and the outputs."""
    name = "mean held-out score" if report.has_partial_scores else "held-out accuracy"
    before, after = (format_score(value, is_partial=report.has_partial_scores) for value in (report.accuracy_before, report.accuracy_after))
    if report.accuracy_after is None and report.held_out_unscored:
        after = f"withheld ({report.held_out_unscored} answers have no score; the reasons are in episodes.jsonl or the log)"
    between = ""
    if report.interval_after:
        low, high = (format_score(value, is_partial=report.has_partial_scores) for value in report.interval_after)
        between = f" (95 %: {low} to {high})"
    counted = f"{report.held_out_tasks} task{'s' * (report.held_out_tasks != 1)}, {report.held_out_contaminated} of them trained on"
    if report.held_out_answers > report.held_out_tasks:
        counted = f"{report.held_out_answers} answers to {report.held_out_tasks} different tasks, {report.held_out_contaminated} of these trained on"
    lines = [f"{name} {before} -> {after}{between} on {counted}"]
    if not report.held_out_tasks:
        lines = ["held-out accuracy not measured (eval.tasks=0)"]
    lines[0] += f"; {report.seconds:.0f} s"
    lines += [f"  {env}: {format_score(value, is_partial=report.has_partial_scores)}" for env, value in report.scores_by_env.items()]
    lines += [f"{report.status} after {report.steps} step{'s' * (report.steps != 1)}"] if report.status != "finished" else []
    return "\n".join([*lines, f"run folder {folder}: metrics.jsonl, episodes.jsonl, reward.png, checkpoints/last"])


def format_score(value: float | None, *, is_partial: bool = False) -> str:
    """Format a mean score: as a percentage where each score is 0 or 1.

    >>> format_score(0.25), format_score(0.25, is_partial=True), format_score(None)
    ('25.0%', '0.250', 'not judged')
    """
    return "not judged" if value is None else f"{value:.3f}" if is_partial else f"{value:.1%}"


def format_turn_summary(row: Mapping[str, Any]) -> str:
    """Format the turns and calls of a step in one line; empty for single-turn environments.

    >>> format_turn_summary({"turns/mean_per_episode": 2.5, "tools/calls_per_episode": 1.5, "tools/errors_per_episode": 0.25})
    'last step: 2.5 turns, 1.5 calls and 0.25 errors per answer'
    """
    if "turns/mean_per_episode" not in row:
        return ""
    calls = (
        f", {row['tools/calls_per_episode']:.3g} calls and {row['tools/errors_per_episode']:.3g} errors"
        if "tools/calls_per_episode" in row
        else ""
    )
    return f"last step: {row['turns/mean_per_episode']:.3g} turns{calls} per answer"
