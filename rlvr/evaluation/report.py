"""The report of an evaluation: its metrics by environment, and the tables that are printed of it."""

from __future__ import annotations

import io
import json
import math
from collections.abc import ItemsView, Iterator, KeysView, Sequence, ValuesView
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from rlvr.errors import ConfigError
from rlvr.evaluation.compare import ComparedRun, RunComparison, compare_evaluations
from rlvr.evaluation.plan import EvalPlan
from rlvr.evaluation.runner import TokenPrice, load_time_and_token_totals
from rlvr.evaluation.samples import REPORT_FILE, EvalSample, load_plan, load_samples, samples_to_frame
from rlvr.evaluation.statistics import Estimate, average_estimates, format_mean, list_k_values
from rlvr.evaluation.suite import SuiteItem
from rlvr.evaluation.summary import MAX_TRUNCATED_FRACTION, EnvSummary, summarize_env
from rlvr.hints import Hinted
from rlvr.plugin_files import shorten_plugin_files
from rlvr.runs.run_log import explain_damaged_run
from rlvr.runs.tables import EscapingConsole, align_numbers, make_table

if TYPE_CHECKING:
    import pandas

METRIC_LABELS = {"pass_at": "pass@k", "pass_all": "pass^k", "maj_at": "maj@k", "best_at": "best@k"}
MAX_REASON_CHARACTERS = 600
"""How much of a reason is printed: the cause may stand at its end."""
MAX_PRINTED_REASONS = 3
"""The maximum of printed reasons for missing scores."""
TRUNCATION_MESSAGES = {
    "tokens": "ran into the length cap",
    "turns": "used up their turns",
    "turn": "ended with a turn that was cut (--max-turn-tokens)",
    "window": "filled the context window (--max-length)",
    "time": "ran out of time (--episode-s)",
}


@dataclass(frozen=True, slots=True, repr=False)
class EvalReport(Hinted):
    """The results of an evaluation: metrics by environment, and every sample. Printed, it is the table of `rlvr eval`.

    >>> EvalReport("quick", None, EvalPlan(suite="quick", policy="scripted:gold", envs=[]), {}).withheld_envs
    []
    """

    _synonyms = {
        **{"score": "accuracy", "mean_reward": "accuracy", "reward": "scores", "rewards": "scores"},
        **{"episodes": "samples", "rollouts": "samples", "records": "samples"},
    }
    _hints = {
        "results": "write .accuracy or .to_dict() for the figures, .samples or .to_pandas() for the answers",
        **dict.fromkeys(("dataframe", "df", "frame"), "write .to_pandas()"),
        **dict.fromkeys(
            ("failed", "failures", "incorrect", "wrong"), "write [sample for sample in report.samples if not sample.is_correct]"
        ),
        "plot": "a shell draws a page of it: `rlvr view FOLDER`, with out= of rlvr.evaluate; .table() prints its figures",
        "summary": "write .table(), or .to_dict()",
        **dict.fromkeys(("to_jsonl", "to_csv", "write_jsonl"), "write .to_pandas(), a data frame with to_json and to_csv"),
        "to_json": "write json.dumps(report.to_dict())",
        "status": "write .is_complete; a sample without a score says why in .reason",
        **dict.fromkeys(("std", "std_reward"), "write .envs[NAME].mean_score, which has value, low and high of the 95 % interval"),
        "ci": "write .envs[NAME].mean_score, which has value, low and high of the 95 % interval",
        "errors": "write [sample.reason for sample in report.samples if sample.score is None]",
        "unscored": "write [sample for sample in report.samples if sample.score is None]",
        "retry": "give out= to rlvr.evaluate, and call it again with retry=True",
        "save": "give out= to rlvr.evaluate; rlvr.load_evaluation reads that folder",
        "report": "this is the report: write .table(), .metrics or .to_dict()",
    }
    suite: str
    run_folder: Path | None
    plan: EvalPlan
    envs: dict[str, EnvSummary]
    duration_s: float = 0.0
    """Seconds of sampling and verification, in all runs together."""
    timed_tokens: int = 0
    """Tokens that the policy generated in that time."""
    num_new_samples: int = 0
    """Number of samples that this call added; the others were already stored."""
    incomplete_line_bytes: int = 0
    """Bytes of an unfinished last line that a killed process left."""
    samples: Sequence[EvalSample] = ()
    """Every sample, in the order of the tasks: prompt, answer, score and reason."""
    shown_ks: tuple[int, ...] = ()
    """The k of pass@k that were asked for; shown beside the powers of two."""
    is_complete: bool = True
    """Whether everything of the plan was sampled; false for the folder of an evaluation that was stopped."""

    @property
    def withheld_envs(self) -> list[str]:
        """Environments without a headline score, because too many samples have no score."""
        return [name for name, env in self.envs.items() if env.is_headline_withheld]

    @property
    def accuracy(self) -> float | None:
        """The mean score, averaged over the environments; None if it is withheld, because too many samples have no score."""
        return found.value if (found := self._estimate) else None

    @property
    def stderr(self) -> float | None:
        """The standard error of `accuracy`; None if that is withheld. `envs[NAME].mean_score` has the 95 % interval."""
        return found.stderr if (found := self._estimate) else None

    @property
    def _estimate(self) -> Estimate | None:
        if len(self.envs) == 1:
            (env,) = self.envs.values()
            return env.mean_score if not env.is_headline_withheld else None
        return self.compute_mean_over_envs()

    @property
    def scores(self) -> list[float | None]:
        """The score of every sample, in the order of `samples`; None: it has none."""
        return [sample.score for sample in self.samples]

    @property
    def metrics(self) -> dict[str, float | None]:
        """The accuracy and pass@k as a flat mapping, such as for a tracker; of several environments each under its name too.

        >>> EvalReport("quick", None, EvalPlan(suite="quick", policy="scripted:gold", envs=[]), {}).metrics
        {'accuracy': None}
        """
        found: dict[str, float | None] = {"accuracy": self.accuracy}
        for name, env in self.envs.items():
            place = "" if len(self.envs) == 1 else f"{name}/"
            if place:
                found[f"{place}accuracy"] = env.mean_score.value if env.mean_score and not env.is_headline_withheld else None
            estimates = env.metrics_at_k.get("pass_at", {})
            shown = [k for k in sorted({*list_k_values(env.n), *self.shown_ks}) if k > 1 and k in estimates]
            found |= {f"{place}pass@{k}": estimate.value if (estimate := estimates[k]) else None for k in shown}
        return found

    def pass_at_k(self, k: int | None = None) -> dict[str, float | None]:
        """Return pass@k of each environment: the chance that one of k answers is right, without bias; None where it is not known. Without k: of
        all answers to a task.

        Raises:
            ConfigError: fewer than k answers were sampled for each task.
        """
        k = min((env.n for env in self.envs.values()), default=1) if k is None else k
        if wrong := [env for env in self.envs.values() if not 1 <= k <= env.n]:
            raise ConfigError(f"pass@{k} of {wrong[0].name} needs n={k} answers for each task, and {wrong[0].n} were sampled; raise n")
        if lacking := [env for env in self.envs.values() if k > 1 and k not in env.metrics_at_k["pass_at"]]:
            known = ", ".join(map(str, lacking[0].metrics_at_k["pass_at"]))
            raise ConfigError(f"pass@{k} of {lacking[0].name} was not computed; the report has k = {known}")
        found = {name: env.mean_score if k == 1 else env.metrics_at_k["pass_at"].get(k) for name, env in self.envs.items()}
        return {name: estimate.value if estimate else None for name, estimate in found.items()}

    def table(self, *, width: int | None = None) -> None:
        """Print the table of results, as `rlvr eval` does."""
        print_report(EscapingConsole(width=width), self)

    def __getitem__(self, name: str | int) -> Any:
        """Return the summary of an environment, one of `metrics`, or the sample of a number."""
        if isinstance(name, int):
            return self.samples[name]
        if (found := self.envs.get(name)) is not None:
            return found
        if name == "results":  # as in lm-evaluation-harness: the figures of each environment
            return self.envs
        if name in self.metrics:
            return self.metrics[name]
        known = name if hasattr(type(self), str(name)) or name in self.__dataclass_fields__ else ""
        known = known or self._synonyms.get(str(name), "")
        hint = f"write report.{known}" if known else self._hints.get(str(name), "write .accuracy, .samples, or .to_dict()")
        raise LookupError(f"a report has no [{name!r}], only {', '.join(map(repr, [*self.envs, *self.metrics]))}; {hint}")

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names of the environments, as over a mapping from them to their summaries."""
        return iter(self.envs)

    def __len__(self) -> int:
        return len(self.envs)

    def keys(self) -> KeysView[str]:
        """Return the names of the environments."""
        return self.envs.keys()

    def values(self) -> ValuesView[EnvSummary]:
        """Return the summaries of the environments."""
        return self.envs.values()

    def items(self) -> ItemsView[str, EnvSummary]:
        """Return the environments: names with summaries."""
        return self.envs.items()

    def __str__(self) -> str:
        console = Console(file=io.StringIO(), width=100)
        with console.capture() as captured:
            print_report(console, self)
        return captured.get().rstrip()

    def __repr__(self) -> str:
        accuracy = "withheld" if self.accuracy is None else f"{self.accuracy:.4g}"
        unfinished = "" if self.is_complete else ", not finished"
        policy = shorten_plugin_files(self.plan.policy)
        return f"EvalReport({self.suite!r}, {policy!r}, accuracy={accuracy}, {len(self.samples)} samples{unfinished})"

    def to_pandas(self) -> pandas.DataFrame:
        """Return the samples as a data frame, one row for each; the metrics of the environments are in `to_dict`."""
        return samples_to_frame(self.samples)

    def compare(self, other: Any, *, force: bool = False) -> RunComparison:
        """Compare with another evaluation, paired by task: a report, a stored evaluation, or its folder."""
        return compare_evaluations(self, other, force=force)

    def to_compared_run(self) -> ComparedRun:
        """Return the samples for a comparison."""
        label = str(self.run_folder or shorten_plugin_files(self.plan.policy))
        num_tasks = {name: env.tasks for name, env in self.envs.items()} if self.is_complete else {}
        return ComparedRun(label, self.plan, {sample.key: sample for sample in self.samples}, num_tasks, self.is_complete)

    def compute_mean_over_envs(self, *, allow_unscored: bool = False) -> Estimate | None:
        """Compute the mean score over the environments, each with the same weight.

        None for a single environment, or if one has no headline score (with `allow_unscored`: no mean score).
        """
        shown = [env.mean_score for env in self.envs.values() if env.mean_score and (allow_unscored or not env.is_headline_withheld)]
        return average_estimates(shown) if len(shown) == len(self.envs) > 1 else None

    def compute_cost(self, price: TokenPrice) -> float:
        """Compute the cost of all samples, the already stored ones included."""
        return sum(price.compute_cost(env.prompt_tokens, env.tokens) for env in self.envs.values())

    def to_dict(self, *, allow_unscored: bool = False, price: TokenPrice | None = None) -> dict[str, Any]:
        """Convert the metrics to plain data; the cost only if a price was given."""
        envs = {name: env.to_dict(allow_unscored=allow_unscored) for name, env in self.envs.items()}
        cost = {"cost": self.compute_cost(price)} if price else {}
        mean = self.compute_mean_over_envs(allow_unscored=allow_unscored)
        told = {"mean": {"mean_score": mean.value, "ci95": [mean.low, mean.high]}} if mean else {}
        return {"suite": self.suite, "run": str(self.run_folder) if self.run_folder else None, "envs": envs, **told, **cost}


def load_report(folder: Path) -> EvalReport:
    """Load the report of an evaluation from its folder. One that was stopped has no `report.json`: its figures are those of the samples
    that it wrote, without those of majorities.
    """
    plan = load_plan(folder)
    with explain_damaged_run(folder):
        samples = [sample for _, sample in sorted(load_samples(folder).items())]
        is_complete = (folder / REPORT_FILE).is_file()
        if is_complete:
            stored = json.loads((folder / REPORT_FILE).read_text("utf-8"))
            envs = {str(name): EnvSummary.from_report_dict(row) for name, row in stored["envs"].items()}
        else:
            envs = {item.name: _summarize_stored_samples(plan, item, samples) for item in plan.envs}
        seconds, tokens = load_time_and_token_totals(folder)
    added = len(samples)  # by the calls that wrote the folder: none of them is told apart
    return EvalReport(plan.suite, folder, plan, envs, seconds, tokens, added, samples=samples, is_complete=is_complete)


def _summarize_stored_samples(plan: EvalPlan, item: SuiteItem, samples: Sequence[EvalSample]) -> EnvSummary:
    groups = dict[int, list[EvalSample]]()
    for sample in samples:
        if sample.key[0] == item.name:
            groups.setdefault(sample.key[1], []).append(sample)
    return summarize_env(item.name, groups, n=plan.get_samples_per_task(item), tasks=len(groups))


def print_report(console: Console, report: EvalReport, *, allow_unscored: bool = False, price: TokenPrice | None = None) -> None:
    """Print the headline of each environment with its counts, the metrics at k, and the warnings."""
    plan, envs = report.plan, list(report.envs.values())
    console.print(
        Text.assemble((f"{shorten_plugin_files(plan.policy)} on {report.suite}", "bold"), f"   {plan.sampling_summary}, seed {plan.seed}")
    )
    console.print()
    console.print(build_headline_table(envs, allow_unscored, report.compute_mean_over_envs(allow_unscored=allow_unscored)))
    if several := [env for env in envs if env.n > 1 and env.mean_score and (allow_unscored or not env.is_headline_withheld)]:
        console.print()
        console.print(_build_metrics_table(several, console.width, report.shown_ks))
    lines = [line for env in envs for line in list_warnings(env, allow_unscored)]
    if lines:
        console.print()
    for line in lines:
        console.print(Text(line, style="yellow"))
    console.print()
    console.print(Text(_format_closing_line(report, price)))


def build_headline_table(envs: Sequence[EnvSummary], allow_unscored: bool, mean: Estimate | None = None) -> Table:
    """Build the table with one line for each environment, and one for their mean."""
    rows: list[list[str | Text]] = []
    conversation_columns = [
        name for name in ("turns", "calls", "errors") if any(env.has_conversations and getattr(env, name) is not None for env in envs)
    ]
    for env in envs:
        refused = env.is_headline_withheld and not allow_unscored
        avg = Text("refused", style="yellow") if refused else Text(_format_estimate(env.mean_score), style="bold")
        counts = [str(count) for count in (env.tasks, env.scored)]
        apart = [Text(str(count), style="yellow" if count else "dim") for count in (env.unscored, env.truncated, env.failed)]
        rows.append(
            [
                env.name,
                avg,
                "" if refused else format_interval(env.mean_score),
                *counts,
                *apart,
                *(_format_mean(getattr(env, name)) for name in conversation_columns),
            ]
        )
    if mean is not None:
        rows.append(["mean", Text(_format_estimate(mean), style="bold"), format_interval(mean), *[""] * (len(rows[0]) - 3)])
    n = {env.n for env in envs}
    head = (
        "environment",
        f"avg@{n.pop()}" if len(n) == 1 else "avg@n",
        "95 %",
        "tasks",
        "scored",
        "unscored",
        "truncated",
        "failed",
        *conversation_columns,
    )
    return align_numbers(make_table(head, rows))


def _build_metrics_table(envs: Sequence[EnvSummary], width: int, asked_ks: Sequence[int] = ()) -> Table:
    """Build the table of metrics at k, with the values of k that were asked for, and as many of the largest others as fit the screen."""
    asked = {k for k in asked_ks if k > 1}
    name = max([len(env.name) for env in envs] + [11])
    others = sorted({k for env in envs for k in list_k_values(env.n) if k > 1} - asked, reverse=True)
    ks = sorted([*asked, *others[: max((width - name - 8) // 19 - len(asked), 0 if asked else 1)]])
    rows: list[list[str | Text]] = []
    for env in envs:
        for place, (key, label) in enumerate((key, label) for key, label in METRIC_LABELS.items() if key in env.metrics_at_k):
            cells = [_format_cell(env.metrics_at_k[key].get(k)) for k in ks]
            rows.append([env.name if place == 0 else "", label, *cells])
    return align_numbers(make_table(("environment", "metric", *(f"k = {k}" for k in ks)), rows), first_column=2)


def list_warnings(env: EnvSummary, allow_unscored: bool) -> list[str]:
    """List the warnings about an environment's metrics, one line each."""
    lines = []
    if env.is_headline_withheld and not allow_unscored:
        others = ", --allow-unscored shows the score of the rest" if env.scored else ""
        whose = (
            f": to {env.unanswered} of these the policy gave no answer, so not the verifier fails, but its sampler, or the start of the session"
            if env.unanswered > env.unscored / 2
            else ""
        )
        lines.append(
            f"{env.name}: no headline, {_format_count_and_percentage(env.unscored, env.samples)} have no score{whose}; "
            f"--retry samples them again{others}"
        )
    shown = list(env.reasons.items())[:MAX_PRINTED_REASONS]
    lines += [f"{env.name}: {count} unscored: {_to_one_line(reason):.{MAX_REASON_CHARACTERS}}" for reason, count in shown]
    if rest := env.unscored - sum(count for _, count in shown):
        lines.append(f"{env.name}: {rest} unscored for {len(env.reasons) - len(shown)} other reasons")
    if env.missing:
        lines.append(f"{env.name}: {env.missing} samples are missing; run the same `rlvr eval` again to sample them")
    for what, count in env.truncated_by.items():
        if count > MAX_TRUNCATED_FRACTION * env.samples:
            told = f"about {env.suggested_max_new_tokens} tokens (--max-new-tokens)"
            advice = (
                f"; {told} would leave 1 in 100 truncated"
                if env.is_suggested_cap_sufficient
                else f"; try {told}; so many were truncated that more may be needed"
            )
            more = advice if what == "tokens" else ""
            lines.append(
                f"{env.name}: {_format_count_and_percentage(count, env.samples)} {TRUNCATION_MESSAGES[what]}; {_format_untruncated_score(env)}{more}"
            )
    if env.empty:
        lines.append(
            f"{env.name}: in {_format_count_and_percentage(env.empty, env.samples)} the answer is empty; it is verified like any other answer"
        )
    if env.repeated:
        lines.append(f"{env.name}: {env.repeated} of {env.tasks} tasks repeat a question; the interval counts {env.tasks - env.repeated}")
    short = [k for k, found in env.metrics_at_k["pass_at"].items() if found and env.mean_score and found.tasks < env.mean_score.tasks]
    if short:
        lines.append(f"{env.name}: the metrics at k = {', '.join(map(str, short))} leave out tasks with fewer scored samples")
    if env.scored and not any(env.metrics_at_k.get("best_at", {1: True}).values()):
        lines.append(f"{env.name}: no best@k by confidence: there are no log-probabilities (from an endpoint, or with greedy sampling)")
    return lines


def _to_one_line(text: str) -> str:
    """Replace line breaks and control characters, which a terminal would interpret, by spaces."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())


def _format_untruncated_score(env: EnvSummary) -> str:
    """Format the mean score of the answers that were not truncated."""
    if env.untruncated_score is not None:
        is_fraction = env.mean_score is None or env.mean_score.is_fraction
        return f"{format_mean(env.untruncated_score, is_fraction=is_fraction)} is the mean of those that were not truncated"
    return "none was complete" if env.truncated == env.samples else "no answer that was not truncated has a score"


def _format_closing_line(report: EvalReport, price: TokenPrice | None) -> str:
    """Format the closing line: samples, tokens, time, cost, and the path of the run."""
    envs = report.envs.values()
    samples, written = (sum(getattr(env, name) for env in envs) for name in ("samples", "tokens"))
    line = f"{samples:,} samples"
    if report.run_folder and report.num_new_samples < samples:
        line += f" ({report.num_new_samples:,} of them new)"
    line += f", {written:,} tokens" + (f" in {report.duration_s:.1f} s" if report.timed_tokens else "")
    if report.timed_tokens and report.duration_s:
        line += f", {report.timed_tokens / report.duration_s:,.0f} tokens/s"
    if price:
        line += f", cost {format_cost(report.compute_cost(price))} at {price.input_price:g},{price.output_price:g} for a million tokens"
    if report.incomplete_line_bytes:
        line += f"\nan unfinished last line ({report.incomplete_line_bytes} bytes), left by a killed process, was removed and sampled again"
    return line + (f"\nwritten to {report.run_folder}" if report.run_folder else "")


def format_cost(amount: float) -> str:
    """Format a cost with at least two significant digits.

    >>> format_cost(12.345), format_cost(0.00123), format_cost(0.0)
    ('12.35', '0.0012', '0.00')
    """
    return f"{amount:.2f}" if amount >= 0.1 or not amount else f"{amount:.{1 - math.floor(math.log10(amount))}f}"


def _format_count_and_percentage(count: int, total: int) -> str:
    """Format a count with its percentage of all samples."""
    return f"{count} of {total} samples ({count / max(total, 1):.1%})"


def _format_estimate(estimate: Estimate | None) -> str:
    """Format the value of an estimate, of shares in per cent."""
    return "none" if estimate is None else str(estimate)


def format_interval(estimate: Estimate | None) -> str:
    """Format the 95 % interval of an estimate; "" without one."""
    return "" if estimate is None else estimate.format_interval("–" if estimate.is_fraction else " to ")


def _format_mean(value: float | None) -> str:
    """Format a mean per sample; empty for None, such as the calls of an environment without tools."""
    return "" if value is None else f"{value:.3g}"


def _format_cell(found: Estimate | None) -> Text:
    return Text("") if found is None else Text.assemble((_format_estimate(found), "bold"), (f" {format_interval(found)}", "dim"))
