"""`rlvr eval`: run or rescore an evaluation, and print its tables."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from rlvr.cli import screen
from rlvr.cli.settings import make_cluster_overrides, parse_settings
from rlvr.config.cluster import ClusterConfig
from rlvr.config.overrides import apply_overrides
from rlvr.config.section import validate_section
from rlvr.contracts import Sampler
from rlvr.episode import Episode
from rlvr.errors import ConfigError
from rlvr.evaluation.episode_sources import EnvRequests, EpisodeSource
from rlvr.evaluation.evaluate import EvalReport, evaluate
from rlvr.evaluation.rescore import rescore
from rlvr.evaluation.runner import TokenPrice
from rlvr.evaluation.samples import ROWS_FILE
from rlvr.evaluation.statistics import Estimate, list_k_values
from rlvr.evaluation.suite import SuiteItem
from rlvr.evaluation.summary import MAX_TRUNCATED_FRACTION, EnvSummary
from rlvr.registry.plugins import PluginSpec
from rlvr.rollout.rollout_request import RolloutRequest

METRIC_LABELS = {"pass_at": "pass@k", "pass_all": "pass^k", "maj_at": "maj@k", "best_at": "best@k"}
MAX_PRINTED_REASONS = 3
"""The maximum of printed reasons for missing scores."""
TRUNCATION_MESSAGES = {
    "tokens": "ran into the length cap",
    "turns": "used up their turns",
    "turn": "ended with a turn that was cut (--max-turn-tokens)",
    "window": "filled the context window (--max-length)",
    "time": "ran out of time (--episode-s)",
}


def rescore_run(
    run: Path,
    *,
    pairs: Sequence[str],
    sampling_options: Mapping[str, object],
    out: Path | None,
    select: str,
    allow_unscored: bool,
    json: bool,
) -> int:
    """Verify the samples of a run again; returns 1 if a headline is withheld. None of the `sampling` options may be given."""
    given = [
        f"--{name.replace('_', '-')}" if len(name) > 1 else f"-{name}" for name, value in sampling_options.items() if value is not None
    ]
    if given:
        raise ConfigError(f"--rescore verifies the samples of {run} and samples nothing, so {', '.join(given)} has no effect; leave it out")
    report = rescore(run, out=out, settings=parse_settings(pairs), select=select, console=screen.make_stderr_console())
    return _print_result(report, allow_unscored=allow_unscored, json=json)


def eval_suite(
    suite: str,
    policy: str,
    *,
    pairs: Sequence[str],
    eval_settings: Mapping[str, Any],
    out: Path | None,
    price: str,
    allow_unscored: bool,
    json: bool,
    cluster: str = "",
) -> int:
    """Measure a policy on a suite; returns 1 if a headline is withheld."""
    console, asked = screen.make_stderr_console(), _parse_price(price)
    elsewhere = ClusterSampling.from_cli(cluster, out, console) if cluster else None
    report = evaluate(
        suite, policy, settings=parse_settings(pairs), out=out, console=console, price=asked, remote_sampling=elsewhere, **eval_settings
    )
    return _print_result(report, allow_unscored=allow_unscored, json=json, price=asked)


class ClusterSampling:
    """Samples an evaluation with the collectors of a cluster. Ray is imported only when there is something to sample."""

    def __init__(self, settings: ClusterConfig, out: Path | None, console: Console) -> None:
        self.settings, self.out, self.console = settings, out, console

    @classmethod
    def from_cli(cls, text: str, out: Path | None, console: Console) -> ClusterSampling | None:
        """Parse `--cluster`. None if it asks for 0 collectors, so that this process samples; ConfigError for unsupported settings."""
        settings = validate_section(ClusterConfig, apply_overrides({}, make_cluster_overrides(text)).get("cluster", {}), "--cluster")
        for name in ("judges", "resumes"):
            if value := getattr(settings, name):
                raise ConfigError(
                    f"cluster.{name} is {value}, but collectors of an evaluation verify their own samples and do not resume by themselves; "
                    f"remove it (the same command with --out continues an interrupted evaluation)"
                )
        if "task_timeout_s" not in settings.model_fields_set:  # a call samples a whole round, which has no time limit in one process either
            settings = settings.model_copy(update={"task_timeout_s": math.inf})
        return cls(settings, out, console) if settings.rollout_workers else None

    @contextmanager
    def __call__(self, spec: PluginSpec, sampler: Sampler, items: Sequence[SuiteItem]) -> Iterator[EpisodeSource]:
        """Start the collectors of a policy and keep them for all environments."""
        from rlvr.cluster.driver import Driver
        from rlvr.cluster.event_log import EventLog
        from rlvr.cluster.ray_transport import RayTransport
        from rlvr.cluster.rollout_worker import EvalWorkerSettings, check_sampler_supported

        check_sampler_supported(sampler, spec.name)
        torch = sys.modules.get("torch")
        exam = EvalWorkerSettings(spec, tuple(items), torch.get_num_threads() if torch else 0)
        with ExitStack() as stack:
            actors = RayTransport(self.settings, {}, exam)
            stack.callback(actors.close)
            count = self.settings.rollout_workers
            self._log(f"starting {count} collector{'s' if count > 1 else ''} (cluster.address {self.settings.address!r})")
            driver = stack.enter_context(Driver(actors, self.settings, log=self._log, record=EventLog(self.out, ROWS_FILE)))
            driver.wait_for_worker()
            yield ClusterEpisodeSource(driver, sampler)

    def _log(self, line: str) -> None:
        self.console.print(Text(f"note: {line}"), soft_wrap=True)


class ClusterEpisodeSource:
    """Streams the episodes that collectors sample. All batches are submitted at once, so that no environment waits for another."""

    def __init__(self, driver: Any, sampler: Sampler) -> None:
        self.driver, self.sampler = driver, sampler

    def stream_episodes(self, requests: Iterable[EnvRequests]) -> Iterator[list[tuple[RolloutRequest, Episode]]]:
        """Yield each batch of requests with their episodes as soon as the whole batch is sampled and verified."""
        begun = {self.driver.begin(call, one.sampling, whole=True): call for one in requests for call in self.split_batches(one)}
        while begun:
            batch = self.driver.wait(*begun)
            yield list(zip(begun.pop(batch), batch.result(), strict=True))

    def split_batches(self, requests: EnvRequests) -> Iterator[Sequence[RolloutRequest]]:
        """Split the rounds into batches. A round stays whole if the sampler's answers depend on the other requests of a batch."""
        from rlvr.cluster.rollout_tasks import SINGLES_PER_TASK

        for draws in requests.batches:
            each = len(draws)
            if not self.sampler.eval_batch_size:
                each = math.ceil(len(draws) / self.driver.settings.collectors)
                each = min(each, 2 * getattr(self.sampler, "concurrency", 0) or SINGLES_PER_TASK)
            yield from (draws[start : start + each] for start in range(0, len(draws), each))


def _print_result(report: EvalReport, *, allow_unscored: bool, json: bool, price: TokenPrice | None = None) -> int:
    if json:
        for name in report.withheld_envs if not allow_unscored else ():  # JSON has the counts; stderr says why a metric is null
            screen.make_stderr_console().print(Text("\n".join(list_warnings(report.envs[name], allow_unscored))), soft_wrap=True)
        screen.print_json(report.to_dict(allow_unscored=allow_unscored, price=price))
    else:
        print_report(screen.make_stdout_console(), report, allow_unscored=allow_unscored, price=price)
    return 1 if report.withheld_envs and not allow_unscored else 0


def print_report(console: Console, report: EvalReport, *, allow_unscored: bool = False, price: TokenPrice | None = None) -> None:
    """Print the headline of each environment with its counts, the metrics at k, and the warnings."""
    plan, envs = report.plan, list(report.envs.values())
    console.print(Text.assemble((f"{plan.policy} on {report.suite}", "bold"), f"   {plan.sampling_summary}, seed {plan.seed}"))
    console.print()
    console.print(build_headline_table(envs, allow_unscored, report.compute_mean(allow_unscored=allow_unscored)))
    if several := [env for env in envs if env.n > 1 and env.avg and (allow_unscored or not env.is_headline_withheld)]:
        console.print()
        console.print(build_metrics_table(several, console.width))
    lines = [line for env in envs for line in list_warnings(env, allow_unscored)]
    if lines:
        console.print()
    for line in lines:
        console.print(Text(line, style="yellow"))
    console.print()
    console.print(Text(format_closing_line(report, price)))


def build_headline_table(envs: Sequence[EnvSummary], allow_unscored: bool, mean: Estimate | None = None) -> Table:
    """Build the table with one line for each environment, and one for their mean."""
    rows: list[list[str | Text]] = []
    talk = [name for name in ("turns", "calls", "errors") if any(env.has_conversations and getattr(env, name) is not None for env in envs)]
    for env in envs:
        refused = env.is_headline_withheld and not allow_unscored
        avg = Text("refused", style="yellow") if refused else Text(format_percent(env.avg), style="bold")
        counts = [str(count) for count in (env.tasks, env.scored)]
        apart = [Text(str(count), style="yellow" if count else "dim") for count in (env.unscored, env.truncated, env.failed)]
        rows.append(
            [
                env.name,
                avg,
                "" if refused else format_interval(env.avg),
                *counts,
                *apart,
                *(_format_mean(getattr(env, name)) for name in talk),
            ]
        )
    if mean is not None:
        rows.append(["mean", Text(format_percent(mean), style="bold"), format_interval(mean), *[""] * (len(rows[0]) - 3)])
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
        *talk,
    )
    return screen.align_numbers(screen.make_table(head, rows))


def build_metrics_table(envs: Sequence[EnvSummary], width: int) -> Table:
    """Build the table of metrics at k, with as many of the largest values of k as fit the width of the screen."""
    ks = sorted({k for env in envs for k in list_k_values(env.n) if k > 1})
    name = max([len(env.name) for env in envs] + [11])
    ks = ks[-max((width - name - 8) // 19, 1) :]
    rows: list[list[str | Text]] = []
    for env in envs:
        for place, (key, label) in enumerate((key, label) for key, label in METRIC_LABELS.items() if key in env.at):
            cells = [_format_cell(env.at[key].get(k)) for k in ks]
            rows.append([env.name if place == 0 else "", label, *cells])
    return screen.align_numbers(screen.make_table(("environment", "metric", *(f"k = {k}" for k in ks)), rows), first_column=2)


def list_warnings(env: EnvSummary, allow_unscored: bool) -> list[str]:
    """List the warnings about an environment's metrics, one line each."""
    lines = []
    if env.is_headline_withheld and not allow_unscored:
        lines.append(
            f"{env.name}: no headline, {format_share(env.unscored, env.samples)} have no score; "
            f"--retry samples them again, --allow-unscored shows the score of the rest"
        )
    shown = list(env.reasons.items())[:MAX_PRINTED_REASONS]
    lines += [f"{env.name}: {count} unscored: {_to_one_line(reason):.120}" for reason, count in shown]
    if rest := env.unscored - sum(count for _, count in shown):
        lines.append(f"{env.name}: {rest} unscored for {len(env.reasons) - len(shown)} other reasons")
    if env.missing:
        lines.append(f"{env.name}: {env.missing} samples are missing; run the same `rlvr eval` again to sample them")
    for what, count in env.cut.items():
        if count > MAX_TRUNCATED_FRACTION * env.samples:
            told = f"about {env.cap} tokens (--max-new-tokens)"
            advice = (
                f"; {told} would leave 1 in 100 truncated"
                if env.is_cap_sufficient
                else f"; try {told}; so many were truncated that more may be needed"
            )
            more = advice if what == "tokens" else ""
            lines.append(f"{env.name}: {format_share(count, env.samples)} {TRUNCATION_MESSAGES[what]}; {format_completed(env)}{more}")
    if env.empty:
        lines.append(f"{env.name}: in {format_share(env.empty, env.samples)} the answer is empty; it is verified like any other answer")
    if env.repeated:
        lines.append(f"{env.name}: {env.repeated} of {env.tasks} tasks repeat a question; the interval counts {env.tasks - env.repeated}")
    short = [k for k, found in env.at["pass_at"].items() if found and env.avg and found.tasks < env.avg.tasks]
    if short:
        lines.append(f"{env.name}: the metrics at k = {', '.join(map(str, short))} leave out tasks with fewer scored samples")
    if env.scored and not any(env.at.get("best_at", {1: True}).values()):
        lines.append(f"{env.name}: no best@k by confidence: there are no log-probabilities (from an endpoint, or with greedy sampling)")
    return lines


def _to_one_line(text: str) -> str:
    """Replace line breaks and control characters, which a terminal would interpret, by spaces."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())


def format_completed(env: EnvSummary) -> str:
    """Format the mean score of the answers that were not truncated."""
    if env.completed is not None:
        return f"{env.completed:.1%} is the mean of those that were not truncated"
    return "none was complete" if env.truncated == env.samples else "no answer that was not truncated has a score"


def format_closing_line(report: EvalReport, price: TokenPrice | None) -> str:
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
    if report.torn_bytes:
        line += f"\nan unfinished last line ({report.torn_bytes} bytes), left by a killed process, was removed and sampled again"
    return line + (f"\nwritten to {report.run_folder}" if report.run_folder else "")


def format_cost(amount: float) -> str:
    """Format a cost with at least two significant digits.

    >>> format_cost(12.345), format_cost(0.00123), format_cost(0.0)
    ('12.35', '0.0012', '0.00')
    """
    return f"{amount:.2f}" if amount >= 0.1 or not amount else f"{amount:.{1 - math.floor(math.log10(amount))}f}"


def format_share(count: int, total: int) -> str:
    """Format a count with its percentage of all samples."""
    return f"{count} of {total} samples ({count / max(total, 1):.1%})"


def format_percent(found: Estimate | None) -> str:
    """Format the value of an estimate as a percentage."""
    return "none" if found is None else f"{found.value:.1%}"


def format_interval(found: Estimate | None) -> str:
    """Format the 95 % interval of an estimate, in per cent."""
    return "" if found is None else f"{100 * found.low:.1f}–{100 * found.high:.1f}"


def _format_mean(value: float | None) -> str:
    """Format a mean per sample; empty for None, such as the calls of an environment without tools."""
    return "" if value is None else f"{value:.3g}"


def _format_cell(found: Estimate | None) -> Text:
    return Text("") if found is None else Text.assemble((format_percent(found), "bold"), (f" {format_interval(found)}", "dim"))


def _parse_price(text: str) -> TokenPrice | None:
    """Parse `READ,WRITTEN`, the prices of a million input and output tokens."""
    if not text:
        return None
    try:
        read, written = (float(part) for part in text.split(","))
        if not (0 <= read < math.inf and 0 <= written < math.inf):
            raise ValueError("a price is negative or infinite")
    except ValueError as error:
        raise ConfigError(f"--price {text!r} is not READ,WRITTEN, the prices of a million tokens; for example --price 0.25,1.25") from error
    return TokenPrice(read, written)
