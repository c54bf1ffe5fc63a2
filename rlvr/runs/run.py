"""A run folder, opened to look at: its configuration, metrics and episodes as data frames, and its curves."""

from __future__ import annotations

import json
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlvr.config.hub import RUN_WITHOUT_MODEL
from rlvr.errors import ConfigError, MissingExtra, NotFound
from rlvr.hints import Hinted
from rlvr.runs.run_log import explain_damaged_run, load_run_config, read_jsonl

if TYPE_CHECKING:
    import pandas

    from rlvr.config.config import RunConfig


class Run(Hinted):
    """A finished or running training run, read from its folder.

    >>> run = Run("runs/quickstart")  # doctest: +SKIP
    >>> run.metrics[["step", "reward"]].tail(3)  # doctest: +SKIP
    """

    _synonyms = {"history": "metrics", "rollouts": "episodes", "samples": "episodes"}
    _hints = {
        "to_pandas": "write .metrics, or .episodes",
        "to_dataframe": "write .metrics, or .episodes",
        **dict.fromkeys(("reward", "rewards"), "write .metrics['reward']"),
        "step": "write .metrics['step'].max()",
        "model": "write rlvr.load_model(run.checkpoint)",
        "checkpoints": "write .checkpoint, the newest one",
    }

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        if not (self.folder / "config.yaml").is_file():
            is_evaluation = (self.folder / "eval.yaml").is_file()
            remedy = "it is an evaluation; write rlvr.load_evaluation(folder)" if is_evaluation else "give a folder that `rlvr train` wrote"
            raise NotFound(f"{self.folder} is not a run folder: it has no config.yaml; {remedy}")

    @cached_property
    def config(self) -> RunConfig:
        """The configuration of the run."""
        return load_run_config(self.folder)

    @cached_property
    def report(self) -> dict[str, Any]:
        """The final report; empty while the run is not finished."""
        path = self.folder / "report.json"
        with explain_damaged_run(self.folder):
            return dict(json.loads(path.read_text("utf-8"))) if path.is_file() else {}

    @property
    def metrics(self) -> pandas.DataFrame:
        """One row for each step, with every metric."""
        return self._frame("metrics.jsonl")

    @property
    def log_history(self) -> list[dict[str, Any]]:
        """The metrics as a list with a dict for each step, as in the state of a trainer of transformers."""
        return [dict(row) for row in self.metrics.to_dict("records")]

    @property
    def episodes(self) -> pandas.DataFrame:
        """One row for each episode, with tokens, text, reward and verdict; needs `log.episodes`."""
        return self._frame("episodes.jsonl")

    @property
    def checkpoint(self) -> Path:
        """The newest checkpoint, a folder that transformers can load."""
        path = self.folder / "checkpoints" / "last"
        if not path.is_dir():
            raise NotFound(f"{self.folder} is {RUN_WITHOUT_MODEL}")
        return path

    def plot(self, *metrics: str) -> Any:
        """Plot metrics over the steps with matplotlib, by default the reward; returns the figure."""
        try:
            from matplotlib.figure import Figure
        except ModuleNotFoundError as error:
            raise MissingExtra("matplotlib", "train") from error
        frame = self.metrics
        names, axes = metrics or ("reward",), None
        if missing := [name for name in names if name not in frame.columns]:
            raise ConfigError(f"the run has no metric {missing[0]!r}; it has {', '.join(map(str, frame.columns))}")
        figure = Figure(figsize=(8, 1 + 2.2 * len(names)), layout="constrained")
        for place, name in enumerate(names, 1):
            axes = figure.add_subplot(len(names), 1, place)
            axes.plot(frame["step"], frame[name])
            axes.set_ylabel(name)
        if axes is not None:
            axes.set_xlabel("step")
        return figure

    def _frame(self, name: str) -> pandas.DataFrame:
        try:
            import pandas
        except ModuleNotFoundError as error:
            raise MissingExtra("pandas", "train") from error
        path = self.folder / name
        rows = read_jsonl(path) if path.is_file() else ()
        return pandas.DataFrame([{name: _replace_surrogates(value) for name, value in row.items()} for row in rows])

    def __repr__(self) -> str:
        return f"Run({str(self.folder)!r})"


def _replace_surrogates(value: Any) -> Any:
    """Replace lone surrogates of a text by question marks: pandas holds texts as UTF-8, and one answer may not cost all others."""
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) else value
