"""Evaluate a policy: sample answers to held-out tasks, verify and store each one, and compute the metrics from the stored samples.

>>> evaluate("arithmetic", "scripted:gold", tasks=100).envs["arithmetic"].avg.value        # doctest: +SKIP
1.0

A killed evaluation resumes where it stopped: the same call samples the missing answers, and ends with the same metrics.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from rlvr.config import hub
from rlvr.config.section import checked
from rlvr.contracts import Environment, Verifier
from rlvr.episode import Episode
from rlvr.errors import ConfigError, NotFound, suggest
from rlvr.evaluation.attempt import Attempt, Price, spent
from rlvr.evaluation.plan import Plan
from rlvr.evaluation.rounds import Elsewhere
from rlvr.evaluation.samples import REPORT, SampleFile, digest, write_whole, writing
from rlvr.evaluation.statistics import Estimate, mean_of
from rlvr.evaluation.suite import Item, Suite, suite_from
from rlvr.evaluation.summary import EnvSummary, selector_known, summarised
from rlvr.evaluation.votes import classes
from rlvr.mdp.limits import size_of
from rlvr.plugins.registry import Spec, check_arguments, entries, from_config, load, parameters
from rlvr.rollout.rollout import Draw, seed_of

PIECES, PIECE = 64, 65536
"""Number and size in bytes of the pieces of each weights file that are hashed."""


@dataclass(frozen=True, slots=True)
class Report:
    """The results of an evaluation, by environment.

    >>> Report("quick", None, Plan(suite="quick", policy="scripted:gold", envs=[]), {}).refused
    []
    """

    suite: str
    run: Path | None
    plan: Plan
    envs: dict[str, EnvSummary]
    seconds: float = 0.0
    """Seconds of sampling and verification, in all runs together."""
    timed_tokens: int = 0
    """Tokens that the policy generated in that time."""
    sampled: int = 0
    """Number of samples that this call added; the others were already stored."""
    torn: int = 0
    """Bytes of an unfinished last line that a killed process left."""

    @property
    def refused(self) -> list[str]:
        """Environments without a headline score, because too many samples have no score."""
        return [name for name, env in self.envs.items() if env.refused]

    def mean(self, *, allow_unscored: bool = False) -> Estimate | None:
        """Compute the unweighted mean over the environments; None for a single one, or if one has no headline score."""
        shown = [env.avg for env in self.envs.values() if env.avg and (allow_unscored or not env.refused)]
        return mean_of(shown) if len(shown) == len(self.envs) > 1 else None

    def cost(self, price: Price) -> float:
        """Compute the cost of all samples, the already stored ones included."""
        return sum(price.of(env.prompt_tokens, env.tokens) for env in self.envs.values())

    def record(self, *, allow_unscored: bool = False, price: Price | None = None) -> dict[str, Any]:
        """Convert the metrics to plain data; the cost only if a price was given."""
        envs = {name: env.record(allow_unscored=allow_unscored) for name, env in self.envs.items()}
        cost = {"cost": self.cost(price)} if price else {}
        mean = self.mean(allow_unscored=allow_unscored)
        told = {"mean": {"avg": mean.value, "ci95": [mean.low, mean.high]}} if mean else {}
        return {"suite": self.suite, "run": str(self.run) if self.run else None, "envs": envs, **told, **cost}


def evaluate(
    suite: str | Path | Mapping[str, Any] | Environment,
    policy: str,
    *,
    n: int | None = None,
    temperature: float | None = None,
    seed: int = 0,
    settings: Mapping[str, Any] | None = None,
    concurrency: int | None = None,
    sampler: Mapping[str, Any] | None = None,
    select: str = "",
    retry: bool = False,
    price: Price | None = None,
    out: str | Path | None = None,
    console: Console | None = None,
    elsewhere: Elsewhere | None = None,
    **asked: float | str | None,
) -> Report:
    """Evaluate a policy on a suite (by name, by file) or on one environment (by name, as a mapping, as an object).

    Args:
        suite: the name of a suite or an environment, a YAML file, a mapping, or an environment.
        policy: the policy, such as `hf:DIR`.
        n: answers for each task; if neither this nor the suite sets it: 1.
        temperature: 0 is greedy; if neither this nor the suite sets it: 0 for one answer per task, 1 for several.
        seed: the seed of all randomness.
        settings: of the environments; `path`, or `gsm8k.path` in a suite of several.
        concurrency: how many requests run in parallel; None is the sampler's default.
        sampler: settings of the policy's sampler, such as key_variable or retries.
        select: how best@k chooses, one of `rlvr.evaluation.summary.SELECTORS`.
        retry: sample again where there is no score.
        price: token prices, to show the cost while it runs.
        out: the folder to write; an unfinished evaluation of the same call is resumed, and one of fewer tasks or answers is extended.
        console: where to show the progress.
        elsewhere: samples in other processes, such as the rollout workers of `rlvr eval --cluster`; None: this process samples.
        asked: for every environment of the suite: tasks, split, top_p, top_k, system, max_new_tokens, max_turn_tokens, max_length,
            episode_s, deadline_s (see the fields of a suite item).
    """
    _above_zero(n=n, concurrency=concurrency, **{name: asked[name] for name in asked if name != "top_k"})
    selector_known(select)
    if elsewhere is not None and isinstance(suite, Environment):
        raise ConfigError(f"this {type(suite).__name__} is an object, and other processes build an environment by its name; give a mapping")
    out, sampler = Path(out) if out else None, sampler or {}
    found, ready = _suite(str(suite) if isinstance(suite, Path) else suite, settings, {**asked, "n": n, "temperature": temperature})
    items = [item.settled() for item in found.items]
    specs = {item.name: policy_spec(policy, concurrency, {**item.sampler, **sampler}) for item in items}
    with ExitStack() as stack:
        environments = {item.name: stack.enter_context(ready or from_config("env", item.env)) for item in items}
        _about_data(environments, console)
        labels = {name: verifier_label(getattr(environment, "verifier", None)) for name, environment in environments.items()}
        plan = planned(found.name, policy, items, labels, seed, sampler)
        plan = (file := stack.enter_context(SampleFile.open(out, plan))).plan
        wanted = {item.name: wanted_of(item, environments[item.name], plan) for item in plan.envs}
        attempt = Attempt(plan, file, concurrency=concurrency, retry=retry, price=price, console=console, elsewhere=elsewhere)
        attempt.run(specs, environments, wanted)
        spent_here = (attempt.seconds, attempt.written)
        return report_on(plan, file, environments, out, select=select, sampled=attempt.samples, spent_here=spent_here)


def planned(suite: str, policy: str, items: list[Item], labels: dict[str, str], seed: int, sampler: Mapping[str, Any]) -> Plan:
    """Make the plan of an evaluation; `labels` are the verifiers of its environments."""
    folder = folder_of(policy)
    return Plan(
        suite=suite,
        policy=policy,
        policy_folder=folder,
        policy_weights=weights_of(folder),
        n=items[0].n or 1,
        temperature=items[0].temperature or 0.0,
        seed=seed,
        sampler=telling(policy, sampler),
        envs=[item.model_copy(update={"sampler": telling(policy, item.sampler)}) for item in items],
        verifiers=labels,
    )


def _about_data(environments: Mapping[str, Environment], console: Console | None) -> None:
    """Print warnings about data, such as columns that were guessed."""
    for note in (note for environment in environments.values() for note in environment.notes):
        if console is not None:
            console.print(note, highlight=False, markup=False, soft_wrap=True)


def _above_zero(**values: object) -> None:
    for name, value in values.items():
        if isinstance(value, int) and value < 1:
            raise ConfigError(f"{name} is {value}; it must be at least 1")


def report_on(
    plan: Plan,
    file: SampleFile,
    environments: Mapping[str, Environment],
    out: Path | None,
    *,
    select: str = "",
    sampled: int = 0,
    spent_here: tuple[float, int] = (0.0, 0),
) -> Report:
    """Make the report on the stored samples; with a folder, write `report.json` too."""
    seconds, tokens = spent(out) if out else spent_here
    report = Report(plan.suite, out, plan, summaries(plan, file, environments, select), seconds, tokens, sampled, file.torn)
    write_report(report)
    return report


def summaries(plan: Plan, file: SampleFile, environments: Mapping[str, Environment], select: str = "") -> dict[str, EnvSummary]:
    """Compute the metrics of every environment from the available samples."""
    found = {}
    for item in plan.envs:
        environment, n = environments[item.name], plan.n_of(item)
        groups: dict[int, list[Any]] = {}
        for key in sorted(key for key in file.samples if key[0] == item.name):
            groups.setdefault(key[1], []).append(file.samples[key])
        tasks_of = [environment.task(item.split, index) for index in groups]
        with ThreadPoolExecutor(8, thread_name_prefix="vote") as pool:
            cast = pool.map(partial(classes, environment.verifier), tasks_of, groups.values())
            votes = dict(zip(groups, cast, strict=True))
        tasks = count_of(environment, item.split, item.tasks)
        found[item.name] = summarised(item.name, groups, n=n, tasks=tasks, votes=votes, select=select)
    return found


def write_report(report: Report) -> None:
    """Write `report.json`: the metrics, without anything that differs when the evaluation is repeated."""
    if report.run is not None:
        envs = {name: env.figures() for name, env in report.envs.items()}
        data = {"suite": report.suite, "policy": report.plan.policy, "envs": envs}
        with writing(report.run):
            write_whole(report.run / REPORT, json.dumps(data, indent=2) + "\n")


def policy_spec(policy: str, concurrency: int | None = None, sampler: Mapping[str, Any] | None = None) -> Spec:
    """Parse `--policy` into a sampler and its settings, overridden by `sampler`. The sampler is not built yet."""
    name, colon, rest = policy.partition(":")
    names = [entry.name for entry in entries("sampler")]
    if not colon or not rest or name not in names:  # checked without importing the samplers, which is slow
        if policy and Path(policy).is_dir():
            raise NotFound(f"the policy {policy!r} is a folder; for the model in it write hf:{policy}, or vllm:{policy}")
        raise NotFound(f"the policy {policy!r} is not SAMPLER:WHAT, such as hf:DIR or scripted:gold; {suggest(name, names)}")
    factory: Any = load("sampler", name)
    if not getattr(factory, "policy_form", ""):
        raise ConfigError(f"the sampler {name!r} cannot be named as a policy; choose another with `rlvr list samplers`")
    limits = {"concurrency": concurrency} if concurrency and "concurrency" in parameters(factory) else {}
    check_arguments("sampler", name, parameters(factory), sampler or {})
    return Spec("sampler", name, {**limits, **factory.policy_settings(rest), **(sampler or {})})


def telling(policy: str, sampler: Mapping[str, Any]) -> dict[str, Any]:
    """Select the sampler settings that affect the samples, which belong to the plan; API keys are not among them."""
    factory: Any = load("sampler", policy.partition(":")[0])
    return {name: value for name, value in sampler.items() if name not in factory.incidental}


def folder_of(policy: str) -> str:
    """Find the resolved folder of a policy's model, or of the Hub's copy; "" if there is none."""
    name, _, rest = policy.partition(":")
    factory: Any = load("sampler", name)
    if not factory.policy_form.endswith(":DIR"):
        return ""
    return str(hub.folder_of(rest).resolve()) if hub.ID.fullmatch(rest) or Path(rest).is_dir() else ""


def weights_of(folder: str) -> str:
    """Hash the weights in a folder, reading only pieces of each file, so that large files are fast; "" if there are no weights."""
    if not folder:
        return ""
    pieces = []
    with suppress(OSError):  # a file that cannot be read is reported when the model is loaded
        for path in sorted(path for path in Path(folder).iterdir() if path.suffix in (".safetensors", ".bin")):
            size = path.stat().st_size
            with path.open("rb") as file:
                for at in range(0, size, max(size // PIECES, PIECE)):
                    file.seek(at)
                    pieces.append((path.name, size, hashlib.blake2b(file.read(PIECE)).hexdigest()))
    return digest(pieces) if pieces else ""


def verifier_label(verifier: Verifier | None) -> str:
    """Format a verifier with its version, and its inner verifiers: runs with the same label are verified the same way.

    >>> verifier_label(build("verifier", "numeric"))              # doctest: +SKIP
    'Numeric 1'
    """
    if not isinstance(verifier, Verifier):
        raise ConfigError(f"the environment's verifier is {verifier!r:.80}; it must be an rlvr.Verifier")
    inner = [value for held in vars(verifier).values() for value in (held.values() if isinstance(held, dict) else [held])]
    labels = [verifier_label(value) for value in inner if isinstance(value, Verifier)]
    return f"{type(verifier).__name__} {verifier.version}" + (f" ({', '.join(labels)})" if labels else "")


def draws(environment: Environment, split: str, tasks: int, n: int, seed: int) -> list[Draw]:
    """Make the rollout requests of an evaluation on one environment."""
    return [
        Draw(environment.task(split, index), f"{split}:{index}", seed_of(seed, "eval", split, index, k), {"split": split, "index": index})
        for index in range(count_of(environment, split, tasks))
        for k in range(n)
    ]


def count_of(environment: Environment, split: str, tasks: int) -> int:
    """Count how many of the requested tasks a split has; an empty split is an error."""
    if split not in environment.splits:
        raise ConfigError(f"split is {split!r}; {suggest(split, environment.splits)}")
    size = size_of(environment, split)
    if size == 0:
        raise ConfigError(f"{type(environment).__name__} has no task in its split {split!r}; check its path and its filters")
    return tasks if size is None else min(tasks, size)


def wanted_of(item: Item, environment: Environment, plan: Plan) -> list[Draw]:
    """Make the rollout requests of one suite item, each with everything its stored row needs."""
    n = plan.n_of(item)
    asked = draws(environment, item.split, item.tasks, n, plan.seed)
    found = [
        (divmod(place, n), replace(draw, meta={"env": item.name, **draw.meta, "sample": place % n, "prompt": list(draw.task.prompt)}))
        for place, draw in enumerate(replace(one, task=item.asks(one.task)) for one in asked)
    ]
    return [draw for _, draw in sorted(found, key=lambda pair: plan.stage(item.name, *pair[0]))]


def average(episodes: Sequence[Episode]) -> float | None:
    """Compute the mean reward of the episodes that have a score; None if none has."""
    scores = [episode.reward for episode in episodes if episode.scored]
    return sum(scores) / len(scores) if scores else None


def _suite(
    suite: str | Mapping[str, Any] | Environment, settings: Mapping[str, Any] | None, asked: Mapping[str, float | str | None]
) -> tuple[Suite, Environment | None]:
    """Resolve the suite; the second value is the environment if an object was given."""
    if isinstance(suite, str):
        return suite_from(suite, settings, **asked), None
    if isinstance(suite, Environment) and settings:
        raise ConfigError(f"settings {dict(settings)} have no effect: this {type(suite).__name__} is already built; build it with them")
    env = {"name": type(suite).__name__} if isinstance(suite, Environment) else {**suite, **(settings or {})}
    item = checked(Item, {"env": env, **{key: value for key, value in asked.items() if value is not None}}, "this evaluation")
    return Suite(item.name, (item,)), suite if isinstance(suite, Environment) else None
