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

from rlvr.commands import screen
from rlvr.commands.settings import cluster_overrides, settings_from
from rlvr.config.cluster import ClusterConfig
from rlvr.config.overrides import overridden
from rlvr.config.section import checked
from rlvr.contracts import Sampler
from rlvr.episode import Episode
from rlvr.errors import ConfigError
from rlvr.evaluation.attempt import Price
from rlvr.evaluation.evaluate import Report, evaluate
from rlvr.evaluation.rescore import rescore
from rlvr.evaluation.rounds import Answers, Asked
from rlvr.evaluation.samples import ROWS
from rlvr.evaluation.statistics import Estimate, budgets
from rlvr.evaluation.suite import Item
from rlvr.evaluation.summary import TRUNCATED_LIMIT, EnvSummary
from rlvr.plugins.registry import Spec
from rlvr.rollout.draws import Draw

FIGURES = {"pass_at": "pass@k", "pass_all": "pass^k", "maj_at": "maj@k", "best_at": "best@k"}
REASONS = 3
"""The maximum of printed reasons for missing scores."""
CUT = {
    "tokens": "ran into the length cap",
    "turns": "used up their turns",
    "turn": "ended with a turn that was cut (--max-turn-tokens)",
    "window": "filled the context window (--max-length)",
    "time": "ran out of time (--episode-s)",
}


def rescore_run(
    run: Path, *, pairs: Sequence[str], sampling: Mapping[str, object], out: Path | None, select: str, allow_unscored: bool, json: bool
) -> int:
    """Verify the samples of a run again; returns 1 if a headline is withheld. None of the `sampling` options may be given."""
    given = [f"--{name.replace('_', '-')}" if len(name) > 1 else f"-{name}" for name, value in sampling.items() if value is not None]
    if given:
        raise ConfigError(f"--rescore verifies the samples of {run} and samples nothing, so {', '.join(given)} has no effect; leave it out")
    report = rescore(run, out=out, settings=settings_from(pairs), select=select, console=screen.err())
    return _told(report, allow_unscored=allow_unscored, json=json)


def eval_suite(
    suite: str,
    policy: str,
    *,
    pairs: Sequence[str],
    how: Mapping[str, Any],
    out: Path | None,
    price: str,
    allow_unscored: bool,
    json: bool,
    cluster: str = "",
) -> int:
    """Measure a policy on a suite; returns 1 if a headline is withheld."""
    console, asked = screen.err(), _price(price)
    elsewhere = OnCluster.of(cluster, out, console) if cluster else None
    report = evaluate(suite, policy, settings=settings_from(pairs), out=out, console=console, price=asked, elsewhere=elsewhere, **how)
    return _told(report, allow_unscored=allow_unscored, json=json, price=asked)


class OnCluster:
    """Samples an evaluation with the collectors of a cluster. Ray is imported only when there is something to sample."""

    def __init__(self, settings: ClusterConfig, out: Path | None, console: Console) -> None:
        self.settings, self.out, self.console = settings, out, console

    @classmethod
    def of(cls, text: str, out: Path | None, console: Console) -> OnCluster | None:
        """Parse `--cluster`. None if it asks for 0 collectors, so that this process samples; ConfigError for unsupported settings."""
        settings = checked(ClusterConfig, overridden({}, cluster_overrides(text)).get("cluster", {}), "--cluster")
        for name in ("judges", "resumes"):
            if value := getattr(settings, name):
                raise ConfigError(
                    f"cluster.{name} is {value}, but collectors of an evaluation verify their own samples and do not resume by themselves; "
                    f"remove it (the same command with --out continues an interrupted evaluation)"
                )
        if "group_s" not in settings.model_fields_set:  # a call samples a whole round, which has no time limit in one process either
            settings = settings.model_copy(update={"group_s": math.inf})
        return cls(settings, out, console) if settings.collectors else None

    @contextmanager
    def __call__(self, spec: Spec, sampler: Sampler, items: Sequence[Item]) -> Iterator[Answers]:
        """Start the collectors of a policy and keep them for all environments."""
        from rlvr.scale.actors import Actors
        from rlvr.scale.collector import Exam, check_place
        from rlvr.scale.driver import Driver
        from rlvr.scale.record import Record

        check_place(sampler, spec.name)
        torch = sys.modules.get("torch")
        exam = Exam(spec, tuple(items), torch.get_num_threads() if torch else 0)
        with ExitStack() as stack:
            actors = Actors(self.settings, {}, exam)
            stack.callback(actors.close)
            count = self.settings.collectors
            self._tell(f"starting {count} collector{'s' if count > 1 else ''} (cluster.address {self.settings.address!r})")
            driver = stack.enter_context(Driver(actors, self.settings, tell=self._tell, record=Record(self.out, ROWS)))
            driver.come_up()
            yield Collected(driver, sampler)

    def _tell(self, line: str) -> None:
        self.console.print(Text(f"note: {line}"), soft_wrap=True)


class Collected:
    """Streams the episodes that collectors sample. All batches are submitted at once, so that no environment waits for another."""

    def __init__(self, driver: Any, sampler: Sampler) -> None:
        self.driver, self.sampler = driver, sampler

    def stream(self, asked: Iterable[Asked]) -> Iterator[list[tuple[Draw, Episode]]]:
        """Yield each batch of requests with their episodes as soon as the whole batch is sampled and verified."""
        begun = {self.driver.begin(call, one.sampling, whole=True): call for one in asked for call in self.calls(one)}
        while begun:
            batch = self.driver.wait(*begun)
            yield list(zip(begun.pop(batch), batch.result(), strict=True))

    def calls(self, asked: Asked) -> Iterator[Sequence[Draw]]:
        """Split the rounds into batches. A round stays whole if the sampler's answers depend on the other requests of a batch."""
        from rlvr.scale.units import SINGLE

        for draws in asked.rounds:
            each = len(draws)
            if not self.sampler.company:
                each = math.ceil(len(draws) / self.driver.settings.collectors)
                each = min(each, 2 * getattr(self.sampler, "concurrency", 0) or SINGLE)
            yield from (draws[start : start + each] for start in range(0, len(draws), each))


def _told(report: Report, *, allow_unscored: bool, json: bool, price: Price | None = None) -> int:
    if json:
        for name in report.refused if not allow_unscored else ():  # JSON has the counts; stderr says why a metric is null
            screen.err().print(Text("\n".join(cautions(report.envs[name], allow_unscored))), soft_wrap=True)
        screen.say_json(report.record(allow_unscored=allow_unscored, price=price))
    else:
        show(screen.out(), report, allow_unscored=allow_unscored, price=price)
    return 1 if report.refused and not allow_unscored else 0


def show(console: Console, report: Report, *, allow_unscored: bool = False, price: Price | None = None) -> None:
    """Print the headline of each environment with its counts, the metrics at k, and the warnings."""
    plan, envs = report.plan, list(report.envs.values())
    console.print(Text.assemble((f"{plan.policy} on {report.suite}", "bold"), f"   {plan.ways}, seed {plan.seed}"))
    console.print()
    console.print(headlines(envs, allow_unscored, report.mean(allow_unscored=allow_unscored)))
    if several := [env for env in envs if env.n > 1 and env.avg and (allow_unscored or not env.refused)]:
        console.print()
        console.print(figures(several, console.width))
    lines = [line for env in envs for line in cautions(env, allow_unscored)]
    if lines:
        console.print()
    for line in lines:
        console.print(Text(line, style="yellow"))
    console.print()
    console.print(Text(closing(report, price)))


def headlines(envs: Sequence[EnvSummary], allow_unscored: bool, mean: Estimate | None = None) -> Table:
    """Build the table with one line for each environment, and one for their mean."""
    rows: list[list[str | Text]] = []
    talk = [name for name in ("turns", "calls", "errors") if any(env.talks and getattr(env, name) is not None for env in envs)]
    for env in envs:
        refused = env.refused and not allow_unscored
        avg = Text("refused", style="yellow") if refused else Text(percent(env.avg), style="bold")
        counts = [str(count) for count in (env.tasks, env.scored)]
        apart = [Text(str(count), style="yellow" if count else "dim") for count in (env.unscored, env.truncated, env.failed)]
        rows.append([env.name, avg, "" if refused else interval(env.avg), *counts, *apart, *(_mean(getattr(env, name)) for name in talk)])
    if mean is not None:
        rows.append(["mean", Text(percent(mean), style="bold"), interval(mean), *[""] * (len(rows[0]) - 3)])
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
    return screen.figures(screen.table(head, rows))


def figures(envs: Sequence[EnvSummary], width: int) -> Table:
    """Build the table of metrics at k, with as many of the largest values of k as fit the width of the screen."""
    ks = sorted({k for env in envs for k in budgets(env.n) if k > 1})
    name = max([len(env.name) for env in envs] + [11])
    ks = ks[-max((width - name - 8) // 19, 1) :]
    rows: list[list[str | Text]] = []
    for env in envs:
        for place, (key, label) in enumerate((key, label) for key, label in FIGURES.items() if key in env.at):
            cells = [_cell(env.at[key].get(k)) for k in ks]
            rows.append([env.name if place == 0 else "", label, *cells])
    return screen.figures(screen.table(("environment", "metric", *(f"k = {k}" for k in ks)), rows), first=2)


def cautions(env: EnvSummary, allow_unscored: bool) -> list[str]:
    """List the warnings about an environment's metrics, one line each."""
    lines = []
    if env.refused and not allow_unscored:
        lines.append(
            f"{env.name}: no headline, {share(env.unscored, env.samples)} have no score; "
            f"--retry samples them again, --allow-unscored shows the score of the rest"
        )
    shown = list(env.reasons.items())[:REASONS]
    lines += [f"{env.name}: {count} unscored: {_one_line(reason):.120}" for reason, count in shown]
    if rest := env.unscored - sum(count for _, count in shown):
        lines.append(f"{env.name}: {rest} unscored for {len(env.reasons) - len(shown)} other reasons")
    if env.missing:
        lines.append(f"{env.name}: {env.missing} samples are missing; run the same `rlvr eval` again to sample them")
    for what, count in env.cut.items():
        if count > TRUNCATED_LIMIT * env.samples:
            told = f"about {env.cap} tokens (--max-new-tokens)"
            advice = (
                f"; {told} would leave 1 in 100 truncated"
                if env.cap_suffices
                else f"; try {told}; so many were truncated that more may be needed"
            )
            more = advice if what == "tokens" else ""
            lines.append(f"{env.name}: {share(count, env.samples)} {CUT[what]}; {completed(env)}{more}")
    if env.empty:
        lines.append(f"{env.name}: in {share(env.empty, env.samples)} the answer is empty; it is verified like any other answer")
    if env.repeated:
        lines.append(f"{env.name}: {env.repeated} of {env.tasks} tasks repeat a question; the interval counts {env.tasks - env.repeated}")
    short = [k for k, found in env.at["pass_at"].items() if found and env.avg and found.tasks < env.avg.tasks]
    if short:
        lines.append(f"{env.name}: the metrics at k = {', '.join(map(str, short))} leave out tasks with fewer scored samples")
    if env.scored and not any(env.at.get("best_at", {1: True}).values()):
        lines.append(f"{env.name}: no best@k by confidence: there are no log-probabilities (from an endpoint, or with greedy sampling)")
    return lines


def _one_line(text: str) -> str:
    """Replace line breaks and control characters, which a terminal would interpret, by spaces."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())


def completed(env: EnvSummary) -> str:
    """Format the mean score of the answers that were not truncated."""
    if env.completed is not None:
        return f"{env.completed:.1%} is the mean of those that were not truncated"
    return "none was complete" if env.truncated == env.samples else "no answer that was not truncated has a score"


def closing(report: Report, price: Price | None) -> str:
    """Format the closing line: samples, tokens, time, cost, and the path of the run."""
    envs = report.envs.values()
    samples, written = (sum(getattr(env, name) for env in envs) for name in ("samples", "tokens"))
    line = f"{samples:,} samples"
    if report.run and report.sampled < samples:
        line += f" ({report.sampled:,} of them new)"
    line += f", {written:,} tokens" + (f" in {report.seconds:.1f} s" if report.timed_tokens else "")
    if report.timed_tokens and report.seconds:
        line += f", {report.timed_tokens / report.seconds:,.0f} tokens/s"
    if price:
        line += f", cost {money(report.cost(price))} at {price.read:g},{price.written:g} for a million tokens"
    if report.torn:
        line += f"\nan unfinished last line ({report.torn} bytes), left by a killed process, was removed and sampled again"
    return line + (f"\nwritten to {report.run}" if report.run else "")


def money(amount: float) -> str:
    """Format a cost with at least two significant digits.

    >>> money(12.345), money(0.00123), money(0.0)
    ('12.35', '0.0012', '0.00')
    """
    return f"{amount:.2f}" if amount >= 0.1 or not amount else f"{amount:.{1 - math.floor(math.log10(amount))}f}"


def share(count: int, total: int) -> str:
    """Format a count with its percentage of all samples."""
    return f"{count} of {total} samples ({count / max(total, 1):.1%})"


def percent(found: Estimate | None) -> str:
    """Format the value of an estimate as a percentage."""
    return "none" if found is None else f"{found.value:.1%}"


def interval(found: Estimate | None) -> str:
    """Format the 95 % interval of an estimate, in per cent."""
    return "" if found is None else f"{100 * found.low:.1f}–{100 * found.high:.1f}"


def _mean(value: float | None) -> str:
    """Format a mean per sample; empty for None, such as the calls of an environment without tools."""
    return "" if value is None else f"{value:.3g}"


def _cell(found: Estimate | None) -> Text:
    return Text("") if found is None else Text.assemble((percent(found), "bold"), (f" {interval(found)}", "dim"))


def _price(text: str) -> Price | None:
    """Parse `READ,WRITTEN`, the prices of a million input and output tokens."""
    if not text:
        return None
    try:
        read, written = (float(part) for part in text.split(","))
        if not (0 <= read < math.inf and 0 <= written < math.inf):
            raise ValueError("a price is negative or infinite")
    except ValueError as error:
        raise ConfigError(f"--price {text!r} is not READ,WRITTEN, the prices of a million tokens; for example --price 0.25,1.25") from error
    return Price(read, written)
