"""Compare two evaluations, paired by task and sample.

Runs with different prompts, verifiers or sampling settings raise an error that names the difference, unless the comparison is forced. So do
runs in which more than 2 % of the samples have no pair.
"""

from __future__ import annotations

import io
import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from rich.console import Console
from rich.text import Text

from rlvr.errors import ConfigError, RlvrError
from rlvr.evaluation.paired import PairedTest, apply_holm_correction, run_paired_test
from rlvr.evaluation.plan import EvalPlan
from rlvr.evaluation.samples import REPORT_FILE, EvalSample, Key, load_plan, load_samples
from rlvr.evaluation.statistics import format_mean, mean
from rlvr.evaluation.suite import SuiteItem
from rlvr.evaluation.summary import MAX_UNSCORED_FRACTION
from rlvr.plugin_files import shorten_plugin_files
from rlvr.registry.plugins import get_parameters, load_factory
from rlvr.runs.run_log import explain_damaged_run
from rlvr.runs.tables import EscapingConsole, align_numbers, make_table
from rlvr.task import to_plain_json

MAX_NAMED_TASKS = 3
"""The maximum of won and lost tasks that are named."""
SAMPLING_SETTINGS = ("split", "top_p", "top_k", "max_new_tokens", "max_turn_tokens", "max_length", "episode_timeout_s")
"""Settings that both runs must share besides the environment's own, because they do not show in a prompt."""
MODEL_SETTINGS = frozenset({"temperature", "top_p", "top_k", "max_new_tokens", "max_turn_tokens", "max_length"})
"""Those that may differ between a model and a function or script, which draws no tokens, and whose answers are counted in characters."""


@dataclass(frozen=True, slots=True)
class EnvComparison:
    """The comparison on one environment. `first` and `second` are means over tasks, of the samples in pairs.

    >>> EnvComparison("gsm8k", 0.5, 0.4, run_paired_test([0.1] * 9), 0.01, 9, 0, ["gsm8k/test/0"], []).first
    0.5
    """

    name: str
    first: float
    second: float
    paired_test: PairedTest
    adjusted_p: float
    """The p-value after Holm's correction over the environments of the suite."""
    num_pairs: int
    """Number of samples with a score in both runs."""
    num_unpaired: int
    """Number of samples that both runs requested and that lack a score in at least one run; left out."""
    win_tasks: list[str]
    """Tasks on which the first is better, the clearest first."""
    loss_tasks: list[str]
    is_fraction: bool = True
    """Whether all scores lie between 0 and 1."""

    def format_means(self) -> tuple[str, str]:
        """Format the two means, of shares in per cent."""
        return format_mean(self.first, is_fraction=self.is_fraction), format_mean(self.second, is_fraction=self.is_fraction)

    def format_signed_difference(self, value: float) -> str:
        """Format a difference with its sign, of shares in points.

        >>> EnvComparison("gsm8k", 0.5, 0.4, run_paired_test([0.1] * 9), 0.01, 9, 0, [], []).format_signed_difference(0.1)
        '+10.0'
        """
        text = f"{100 * value:+.1f}" if self.is_fraction else f"{value:+.4g}"
        return text.replace("-", "+") if float(text) == 0 else text

    def to_dict(self) -> dict[str, Any]:
        """Convert the comparison to plain JSON."""
        return {
            "first": self.first,
            "second": self.second,
            **self.paired_test.to_dict(),
            "p_holm": self.adjusted_p,
            "pairs": self.num_pairs,
            "unpaired": self.num_unpaired,
            "win_tasks": self.win_tasks,
            "loss_tasks": self.loss_tasks,
        }


@dataclass(frozen=True, slots=True)
class RunComparison:
    """The comparison of two runs. Printed, it is the table of `rlvr compare`.

    >>> RunComparison("runs/a", "runs/b", {}).to_dict()["envs"]
    {}
    """

    first: str
    """The folder of the evaluation, or its policy if it was not stored."""
    second: str
    envs: dict[str, EnvComparison]
    differences: list[str] = field(default_factory=list)
    """Why the runs do not match; empty unless the comparison was forced."""
    unshared_envs: list[str] = field(default_factory=list)
    """Environments that only one of the runs has."""
    warnings: list[str] = field(default_factory=list)
    """Samples and environments that are left out, with reasons."""

    def table(self, *, width: int | None = None) -> None:
        """Print the table of the comparison, as `rlvr compare` does."""
        print_comparison(EscapingConsole(width=width), self)

    def __str__(self) -> str:
        console = Console(file=io.StringIO(), width=100)
        with console.capture() as captured:
            print_comparison(console, self)
        return captured.get().rstrip()

    def to_dict(self) -> dict[str, Any]:
        """Convert the comparison to plain JSON."""
        envs = {name: env.to_dict() for name, env in self.envs.items()}
        told = {"differences": self.differences, "alone": self.unshared_envs, "notes": self.warnings}
        return {"first": self.first, "second": self.second, "envs": envs, **told}


class ComparableEvaluation(Protocol):
    """An evaluation that can be compared: a report, or a stored evaluation."""

    def to_compared_run(self) -> ComparedRun:
        """Return its samples with their plan."""
        ...


@dataclass(frozen=True, slots=True)
class ComparedRun:
    """One side of a comparison."""

    label: str
    plan: EvalPlan
    samples: Mapping[Key, EvalSample]
    num_tasks: Mapping[str, int]
    """The number of tasks of each environment, where it is known."""
    is_complete: bool
    """Whether everything of the plan was sampled."""

    @classmethod
    def open(cls, evaluation: str | Path | ComparableEvaluation) -> ComparedRun:
        """Take the samples of an evaluation, or read those of a folder."""
        if not isinstance(evaluation, str | Path):
            return evaluation.to_compared_run()
        folder, num_tasks = Path(evaluation), dict[str, int]()
        with explain_damaged_run(folder):
            plan, samples = load_plan(folder), load_samples(folder)
        is_complete = (folder / REPORT_FILE).is_file()  # only a complete evaluation has a report
        with suppress(OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):  # damaged: the plan has the number
            report = json.loads((folder / REPORT_FILE).read_text("utf-8")) if is_complete else {}
            num_tasks = {name: int(env["tasks"]) for name, env in report["envs"].items()}
        return cls(str(folder), plan, samples, num_tasks, is_complete)

    def get_item(self, name: str) -> SuiteItem:
        """Return the item of the plan for an environment."""
        return _find_item(self.plan, name)


def compare_evaluations(
    first: str | Path | ComparableEvaluation, second: str | Path | ComparableEvaluation, *, force: bool = False, seed: int = 0
) -> RunComparison:
    """Compare two evaluations: reports, or folders that `rlvr.evaluate(..., out=)` or `rlvr eval --out` wrote."""
    folders = [Path(evaluation) for evaluation in (first, second) if isinstance(evaluation, str | Path)]
    with explain_damaged_run(*folders) if folders else nullcontext():
        return _compare_runs((ComparedRun.open(first), ComparedRun.open(second)), force=force, seed=seed)


def _compare_runs(runs: tuple[ComparedRun, ComparedRun], *, force: bool, seed: int) -> RunComparison:
    labels = [run.label for run in runs]
    names = [[item.name for item in run.plan.envs] for run in runs]
    shared = [name for name in names[0] if name in names[1]]
    if not shared:
        raise ConfigError(f"{labels[0]} has {', '.join(names[0])} and {labels[1]} has {', '.join(names[1])}: nothing to compare")
    plans = runs[0].plan, runs[1].plan
    differences = _find_plan_differences(plans, shared) + _find_prompt_differences(runs, shared)
    if differences and not force:
        raise ConfigError(
            f"{labels[0]} and {labels[1]} cannot be compared: {'; '.join(differences)}. `rlvr compare --force`, in Python force=True, compares them anyway"
        )
    found: dict[str, EnvComparison] = {}
    unended = [f"what {run.label} has not sampled yet (run the same command again to resume it)" for run in runs if not run.is_complete]
    notes, gaps = [*unended], []
    for name in shared:
        items = [run.get_item(name) for run in runs]
        tasks = _count_tasks(runs, name)
        asked = min(tasks) * min(plan.get_samples_per_task(item) for plan, item in zip(plans, items, strict=True))
        if tasks[0] != tasks[1]:
            notes.append(f"{name}: {max(tasks) - min(tasks)} tasks that only {labels[tasks[0] < tasks[1]]} asks")
        env = _compare_env(name, runs, asked, seed)
        if env is None:
            notes.append(f"{name}: no sample has a score in both runs ({_describe_unscored_samples(name, runs)})")
            continue
        found[name] = env
        if env.num_unpaired:
            notes.append(f"{name}: {env.num_unpaired} of the {asked} samples asked of both runs have no score in one of them, or in both")
        if env.num_unpaired > MAX_UNSCORED_FRACTION * asked:
            gaps.append(notes[-1])
    if not found:
        raise ConfigError(f"nothing can be compared: {'; '.join(notes)}")
    if gaps and not force:
        again = "" if unended else "`rlvr eval ... --retry` asks again; "
        raise ConfigError(
            f"{'; '.join([*unended, *gaps])}: too many to leave out. {again}`rlvr compare --force`, in Python force=True, compares the others"
        )
    adjusted = apply_holm_correction([env.paired_test.p for env in found.values()])
    envs = {name: replace(env, adjusted_p=p) for (name, env), p in zip(found.items(), adjusted, strict=True)}
    return RunComparison(labels[0], labels[1], envs, differences, sorted({*names[0]} ^ {*names[1]}), notes)


def _find_plan_differences(plans: tuple[EvalPlan, EvalPlan], shared_envs: Sequence[str]) -> list[str]:
    """List the differences between two plans that affect sampling or verification."""
    a, b = plans
    are_models = {not plan.policy.startswith(("function:", "scripted:")) for plan in plans}
    idle = MODEL_SETTINGS if len(are_models) > 1 else frozenset[str]()
    found = [
        f"{key} is {old} and {new}"
        for key in ("top_p", "top_k")
        if (old := getattr(a, key)) != (new := getattr(b, key)) and key not in idle
    ]
    changed = [name for name in a.list_changed_objects(b) if name in shared_envs]
    found += [f"{name}: the code or the settings of the environment or its verifier are others" for name in changed]
    for name in shared_envs:
        old, new = _find_item(a, name), _find_item(b, name)
        settings = {key: (getattr(old, key), getattr(new, key)) for key in SAMPLING_SETTINGS}
        settings["n"] = (a.get_samples_per_task(old), b.get_samples_per_task(new))
        settings["temperature"] = (a.get_temperature(old), b.get_temperature(new))
        settings["verifier"] = (a.verifiers.get(name), b.verifiers.get(name))
        settings["verifier's settings"] = tuple(shorten_plugin_files(item.env.get("verifier")) for item in (old, new))
        if shorten_plugin_files(old.env["name"]) == shorten_plugin_files(new.env["name"]):
            made = _collect_env_settings(old), _collect_env_settings(new)
            settings |= {f"the environment's {key}": (made[0].get(key), made[1].get(key)) for key in sorted(made[0] | made[1])}
        found += [f"{name}: {key} is {one} and {other}" for key, (one, other) in settings.items() if one != other and key not in idle]
    return found


def _collect_env_settings(item: SuiteItem) -> dict[str, Any]:
    """Collect the settings of an environment, without the path of its data, since the data shows in the prompts.

    The defaults are included, but for an environment from a file: a comparison runs no code that a run names.
    """
    usual: dict[str, Any] = {}
    if ":" not in item.env["name"]:
        with suppress(RlvrError):  # the environment may no longer be available
            fields = get_parameters(load_factory("env", item.env["name"]))
            usual = {name: field.default for name, field in fields.items() if field.default is not field.empty}
    settings: dict[str, Any] = to_plain_json(usual | shorten_plugin_files(item.env))
    return {name: value for name, value in settings.items() if name not in ("name", "path", "verifier")}


def _find_prompt_differences(runs: tuple[ComparedRun, ComparedRun], shared_envs: Sequence[str]) -> list[str]:
    """List the environments whose tasks differ between the runs, with the first different prompt of each."""
    found = []
    for name in shared_envs:
        here, there = ({key[1]: sample for key, sample in run.samples.items() if key[0] == name} for run in runs)
        both = here.keys() & there.keys()
        other = sorted(index for index in both if here[index].question_digest != there[index].question_digest)
        if other:
            texts = [_format_question(samples[other[0]]) for samples in (here, there)]
            at = next((i for i, (a, b) in enumerate(zip(*texts, strict=False)) if a != b), min(map(len, texts)))
            parts = " and ".join(repr(text[max(at - 20, 0) : at + 60]) for text in texts)
            found.append(f"{name}: {len(other)} of {len(both)} prompts or references differ, the first at {parts}")
    return found


def _format_question(sample: EvalSample) -> str:
    return "\n".join(message["content"] for message in sample.prompt_messages) + f"\n[{sample.reference}]"


def _find_item(plan: EvalPlan, name: str) -> SuiteItem:
    return next(item for item in plan.envs if item.name == name)


def _count_tasks(runs: tuple[ComparedRun, ComparedRun], name: str) -> list[int]:
    """Count the tasks of each run: from its report, or without one from its plan, limited by the size of the split."""
    told, items = [run.num_tasks.get(name) for run in runs], [run.get_item(name) for run in runs]
    ends = [found for found, item in zip(told, items, strict=True) if found is not None and found < item.tasks]
    return [min([item.tasks, *ends]) if found is None else found for found, item in zip(told, items, strict=True)]


def _describe_unscored_samples(name: str, runs: tuple[ComparedRun, ComparedRun]) -> str:
    """Describe how many samples of an environment have no score in each run, and the most common reason."""
    told = []
    for run in runs:
        mine = [sample for key, sample in run.samples.items() if key[0] == name]
        reasons = Counter(sample.reason for sample in mine if sample.score is None)
        why = f", mostly {reasons.most_common(1)[0][0][:80]!r}" if reasons else ""
        told.append(f"{run.label}: {reasons.total()} of {len(mine)} without{why}")
    return "; ".join(told)


def _compare_env(name: str, runs: tuple[ComparedRun, ComparedRun], num_requested: int, seed: int) -> EnvComparison | None:
    """Compare two runs on one environment; None if no sample has a score in both runs."""
    scores = [{key: s.score for key, s in run.samples.items() if key[0] == name and s.score is not None} for run in runs]
    both = sorted(scores[0].keys() & scores[1].keys())
    if not both:
        return None
    pairs: dict[int, list[tuple[float, float]]] = {}
    asks: dict[int, EvalSample] = {}
    for key in both:
        pairs.setdefault(key[1], []).append((scores[0][key], scores[1][key]))
        asks[key[1]] = runs[0].samples[key]
    means = {index: (mean([a for a, _ in found]), mean([b for _, b in found])) for index, found in pairs.items()}
    gaps = _compute_question_gaps(means, asks)
    greedy = all(
        run.plan.get_samples_per_task(run.get_item(name)) == 1 and run.plan.get_temperature(run.get_item(name)) == 0 for run in runs
    )
    return EnvComparison(
        name=name,
        first=mean([a for a, _ in means.values()]),
        second=mean([b for _, b in means.values()]),
        paired_test=run_paired_test(list(gaps.values()), is_greedy=greedy, seed=seed),
        adjusted_p=1.0,
        num_pairs=len(both),
        num_unpaired=max(num_requested - len(both), 0),
        win_tasks=_sort_tasks_by_gap(gaps, asks, 1),
        loss_tasks=_sort_tasks_by_gap(gaps, asks, -1),
        is_fraction=all(0 <= value <= 1 for found in pairs.values() for pair in found for value in pair),
    )


def _compute_question_gaps(means: Mapping[int, tuple[float, float]], sample_by_task: Mapping[int, EvalSample]) -> dict[str, float]:
    """Compute the score difference (first minus second run) per question, weighted by the number of its tasks."""
    gaps: dict[str, list[float]] = {}
    for index, (a, b) in means.items():
        gaps.setdefault(sample_by_task[index].question_digest, []).append(round(a - b, 12))  # a rounding error is not a win
    return {question: math.fsum(found) * len(gaps) / len(means) for question, found in gaps.items()}


def _sort_tasks_by_gap(gaps: Mapping[str, float], sample_by_task: Mapping[int, EvalSample], sign: int) -> list[str]:
    names: dict[str, str] = {}
    for sample in sample_by_task.values():
        names.setdefault(sample.question_digest, sample.task_id)
    return [names[question] for question, gap in sorted(gaps.items(), key=lambda pair: -sign * pair[1]) if sign * gap > 0]


def print_comparison(console: Console, found: RunComparison) -> None:
    """Print a line for each environment, then the tasks that were won and lost."""
    console.print(Text.assemble(("A  ", "bold"), found.first))
    console.print(Text.assemble(("B  ", "bold"), found.second))
    console.print()
    p = "p, Holm" if len(found.envs) > 1 else "p"
    head = ("environment", "A", "B", "A - B", "95 %", p, "won", "lost", "MDE")
    console.print(align_numbers(make_table(head, [_format_row(env) for env in found.envs.values()])))
    console.print()
    for env in found.envs.values():
        console.print(
            Text(
                f"{env.name}: A is better on {_format_tasks(env.win_tasks)}; worse on {_format_tasks(env.loss_tasks)}; equal on {env.paired_test.ties}"
            )
        )
    for line in [f"differs: {line}" for line in found.differences] + [f"left out: {line}" for line in found.warnings]:
        console.print(Text(line, style="yellow"))
    if found.unshared_envs:
        console.print(Text(f"in one run only: {', '.join(found.unshared_envs)}", style="yellow"))
    console.print(Text(_describe_methods(found), style="dim"))


def _describe_methods(found: RunComparison) -> str:
    """Describe how the metrics were computed."""
    tests = " and ".join(sorted({env.paired_test.test for env in found.envs.values()})).replace("mcnemar", "McNemar's exact test")
    return (
        f"Paired by task; tasks with the same question count as one pair. Intervals by resampling tasks, p by {tests}. "
        "MDE, the minimum detectable effect: the true difference that this many tasks show in 4 of 5 comparisons."
    )


def _format_tasks(tasks: Sequence[str]) -> str:
    if not tasks:
        return "none"
    return f"{len(tasks)} ({', '.join(tasks[:MAX_NAMED_TASKS])}{', ...' if len(tasks) > MAX_NAMED_TASKS else ''})"


def _format_row(env: EnvComparison) -> list[str | Text]:
    paired = env.paired_test
    clear = env.adjusted_p < 0.05
    style = ("bold green" if paired.difference > 0 else "bold red") if clear else ""
    return [
        env.name,
        *env.format_means(),
        Text(env.format_signed_difference(paired.difference), style=style),
        f"{env.format_signed_difference(paired.low)}, {env.format_signed_difference(paired.high)}",
        _format_p(env.adjusted_p),
        str(paired.wins),
        str(paired.losses),
        env.format_signed_difference(paired.detectable).removeprefix("+"),
    ]


def _format_p(value: float) -> str:
    return "<0.001" if value < 0.001 else f"{value:.3f}"
