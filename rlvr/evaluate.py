"""How good is a policy on an environment? Accuracy over held-out tasks, with everything that was not scored counted beside it.

>>> evaluate("arithmetic", "scripted:gold", tasks=100).accuracy        # doctest: +SKIP
1.0
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rlvr.contracts import Environment, Sampler, Sampling
from rlvr.episode import End, Episode
from rlvr.errors import ConfigError, NotFound, suggest
from rlvr.mdp import TokenMDP
from rlvr.registry import build, entries, from_config, load
from rlvr.rollout import Draw, Rollout, seed_of
from rlvr.runlog import write_episodes
from rlvr.tokenizers import tokenizer_from


@dataclass(frozen=True, slots=True)
class EvalReport:
    """What an evaluation found. `accuracy` is the mean score over the samples that have one; None when none has.

    >>> EvalReport("arithmetic", "scripted:gold", "test", tasks=1, samples=1, scored=1, unscored=0, truncated=0, accuracy=1.0).scored
    1
    """

    env: str
    policy: str
    split: str
    tasks: int
    samples: int
    scored: int
    unscored: int
    """Samples without a verdict: a broken task or a dead sandbox. Never counted as wrong."""
    truncated: int
    """Samples that ran into the length cap, judged as they stood."""
    accuracy: float | None
    seconds: float = 0.0
    tokens: int = 0
    reasons: dict[str, int] = field(default_factory=dict)
    """Why samples are unscored, with how many each."""

    def record(self) -> dict[str, Any]:
        """The report as plain JSON."""
        return asdict(self)


def evaluate(
    env: str | dict[str, Any] | Environment,
    policy: str,
    *,
    tasks: int = 100,
    n: int = 1,
    split: str = "test",
    temperature: float = 0.0,
    seed: int = 0,
    max_new_tokens: int | None = None,
    out: Path | None = None,
) -> EvalReport:
    """Sample a policy on held-out tasks and judge it."""
    if tasks < 1 or n < 1:
        raise ConfigError(f"tasks is {tasks} and n is {n}; both must be at least 1")
    if out is not None and out.exists():
        raise ConfigError(f"{out} exists, and results are never overwritten; choose another --out")
    began = time.perf_counter()
    sampler = sampler_of(policy)
    with sampler, from_config("env", env) as environment:
        tokenizer = tokenizer_from(sampler.tokenizer or "bytes")
        mdp = TokenMDP(environment, tokenizer, max_new_tokens=max_new_tokens)
        sampler.bind(environment, tokenizer)
        environment.ready()
        with Rollout(mdp, sampler) as rollout:
            episodes = measure(
                rollout, split=split, tasks=tasks, n=n, sampling=Sampling(temperature, stop_ids=tokenizer.stop_ids), seed=seed
            )
    name = env if isinstance(env, str) else str(env["name"]) if isinstance(env, dict) else type(env).__name__
    report = summarise(episodes, env=name, policy=policy, split=split, seconds=time.perf_counter() - began)
    if out is not None:
        write_episodes(out, episodes, report.record())
    return report


def sampler_of(policy: str) -> Sampler:
    """The sampler that `--policy` names."""
    name, colon, rest = policy.partition(":")
    names = [entry.name for entry in entries("sampler")]
    if not colon or not rest or name not in names:  # the samplers are not asked: importing them all takes longer than a typo is worth
        raise NotFound(f"the policy {policy!r} is not SAMPLER:WHAT, such as hf:DIR or scripted:gold; {suggest(name, names)}")
    factory: Any = load("sampler", name)
    if not getattr(factory, "policy_form", ""):
        raise ConfigError(f"the sampler {name!r} cannot be named as a policy; choose another with `rlvr list samplers`")
    sampler: Sampler = build("sampler", name, **factory.policy_settings(rest))
    return sampler


def measure(rollout: Rollout, *, split: str, tasks: int, n: int, sampling: Sampling, seed: int) -> list[Episode]:
    """Sample `n` episodes of each of the first `tasks` tasks of a split."""
    environment = rollout.mdp.environment
    if split not in environment.splits:
        raise ConfigError(f"split is {split!r}; {suggest(split, environment.splits)}")
    return rollout.collect(draws(environment, split, tasks, n, seed), sampling)


def draws(environment: Environment, split: str, tasks: int, n: int, seed: int) -> list[Draw]:
    """Which episodes an evaluation asks for."""
    size = environment.size(split)
    if size == 0:
        raise ConfigError(f"{type(environment).__name__} has no task in its split {split!r}; check its path and its filters")
    return [
        Draw(environment.task(split, index), f"{split}:{index}", seed_of(seed, "eval", split, index, k), {"split": split, "index": index})
        for index in range(tasks if size is None else min(tasks, size))
        for k in range(n)
    ]


def summarise(episodes: Sequence[Episode], *, env: str, policy: str, split: str, seconds: float = 0.0) -> EvalReport:
    """Count and average; what has no score is counted apart."""
    scored = [episode for episode in episodes if episode.scored]
    reasons: dict[str, int] = {}
    for episode in episodes:
        if not episode.scored:
            reasons[episode.error] = reasons.get(episode.error, 0) + 1
    return EvalReport(
        env=env,
        policy=policy,
        split=split,
        tasks=len({episode.task_id for episode in episodes}),
        samples=len(episodes),
        scored=len(scored),
        unscored=len(episodes) - len(scored),
        truncated=sum(episode.end is End.TRUNCATED for episode in episodes),
        accuracy=sum(episode.reward for episode in scored) / len(scored) if scored else None,
        seconds=round(seconds, 3),
        tokens=sum(episode.length for episode in episodes),
        reasons=reasons,
    )
