"""Several environments in one run, each with a weight and its own metrics."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from rlvr.contracts import CapacityLimiter, Environment, Session, Transcript, Verifier, VerifierTraits
from rlvr.errors import ConfigError, format_suggestion, require_text_answers
from rlvr.registry.plugins import build_from_config
from rlvr.task import Fault, StepReward, Task, Verdict

MAX_CYCLE_TASKS = 100
"""Longest cycle of tasks; weights are rounded to this resolution."""


class Mixture(Environment):
    """The tasks of several environments, in proportion to their weights.

    The tasks come in a fixed cycle: with weights 3 and 1, three of four are from the first. In training, finite environments are
    repeated; held-out tasks come once each. Metrics have `reward/NAME`, and the report has the accuracy on each.

    >>> import rlvr
    >>> env = rlvr.make_env("mixture", envs={"sums": {"env": "arithmetic", "weight": 3}, "digits": "digit_sum"})
    >>> [env.task("train", index).id.split("/")[1] for index in range(4)]
    ['sums', 'sums', 'digits', 'sums']
    """

    def __init__(self, *, envs: Mapping[str, Any]) -> None:
        """Set the environments.

        Args:
            envs: for each name an environment (a name, or a mapping with name and settings), or {env: ..., weight: NUMBER}; the weight
                is 1 if none is given.
        """
        if not isinstance(envs, Mapping) or not envs:
            raise ConfigError(f"envs is {envs!r:.120}; it must name environments: {{sums: {{env: arithmetic, weight: 2}}, words: gsm8k}}")
        parts = {str(name): _parse_env_entry(str(name), part) for name, part in envs.items()}
        if not sum(weight for _, weight in parts.values()):
            raise ConfigError("all weights are 0; at least one must be above 0")
        self.environments: dict[str, Environment] = {}
        try:
            for name, (wanted, weight) in parts.items():
                if weight:
                    self.environments[name] = build_from_config("env", wanted)
            self.cycle = build_cycle({name: parts[name][1] for name in self.environments})
            self._set_common_limits()
        except Exception:
            for environment in self.environments.values():
                environment.close()
            raise
        self.verifier = MixtureVerifier({name: environment.verifier for name, environment in self.environments.items()})
        self._orders = {split: self._build_finite_order(split) for split in self.splits if split != "train"}

    def task(self, split: str, index: int) -> Task:
        """Return the task at `index`: the cycle selects the environment, whose tasks come in their own order."""
        if split not in self.splits:
            raise ConfigError(f"mixture has no split {split!r}; {format_suggestion(split, self.splits)}")
        order = self._orders.get(split)
        if order is not None and not 0 <= index < len(order):
            raise ConfigError(f"mixture has no {split} task {index}; it has 0 to {len(order) - 1}")
        name, place = self._locate_task(index) if order is None else order[index]
        environment = self.environments[name]
        size = environment.num_tasks(split)
        turn, place = (0, place) if size is None else divmod(place, size)
        task = environment.task(split, place)
        again = f"/again-{turn}" if turn else ""
        return Task(task.prompt, task.reference, id=f"mixture/{name}/{task.id}{again}", meta={**task.meta, "member": name})

    def num_tasks(self, split: str) -> int | None:
        """Return the number of tasks until every environment has posed all of its tasks; None if one of them is endless."""
        if split in self._orders:
            order = self._orders[split]
            return None if order is None else len(order)
        sizes = {name: environment.num_tasks(split) for name, environment in self.environments.items()}
        counts = {name: self.cycle.count(name) for name in self.environments}
        if any(size is None for size in sizes.values()):
            return None
        return len(self.cycle) * max(math.ceil((size or 0) / counts[name]) for name, size in sizes.items())

    def gold(self, task: Task) -> str | None:
        """Return the gold answer of the task's environment."""
        return self._environment_of(task).gold(task)

    def oracle_turns(self, task: Task) -> Sequence[Any] | None:
        """Return the oracle turns of the task's environment."""
        return self._environment_of(task).oracle_turns(task)

    def new_session(self, task: Task, *, seed: int) -> Session:
        """Open a session of the task's environment."""
        return self._environment_of(task).new_session(task, seed=seed)

    def get_session_limiters(self, task: Task) -> Sequence[CapacityLimiter]:
        """Return the limiters of the task's environment."""
        return self._environment_of(task).get_session_limiters(task)

    def reply(self, task: Task, completions: Sequence[str]) -> str | None:
        """Return the reply of the task's environment."""
        return self._environment_of(task).reply(task, completions)

    def select_answer(self, task: Task, completions: Sequence[str]) -> str:
        """Return the text that the task's environment verifies."""
        return self._environment_of(task).select_answer(task, completions)

    def step_rewards(self, task: Task, completions: Sequence[str], verdict: Verdict) -> Sequence[StepReward]:
        """Return the step rewards of the task's environment."""
        return self._environment_of(task).step_rewards(task, completions, verdict)

    def prepare(self) -> None:
        """Check that every environment works here."""
        for environment in self.environments.values():
            environment.prepare()

    def close(self) -> None:
        """Close every environment."""
        for environment in self.environments.values():
            environment.close()

    def _set_common_limits(self) -> None:
        """Set the limits to the largest of all environments, and the splits to the common ones."""
        every = list(self.environments.values())
        shared = [split for split in every[0].splits if all(split in environment.splits for environment in every)]
        if not shared:
            told = "; ".join(f"{name}: {', '.join(environment.splits)}" for name, environment in self.environments.items())
            raise ConfigError(f"the environments have no split in common ({told}); a mixture has the splits that all of them have")
        dialects = {environment.dialect for environment in every if environment.tools}
        if len(dialects) > 1:
            raise ConfigError(f"the environments write calls in different dialects ({', '.join(sorted(dialects))}); set `dialect` alike")
        self.splits, self.sub_environments, self.dialect = tuple(shared), tuple(self.environments), next(iter(dialects), "")
        self.max_turns = max(environment.max_turns for environment in every)
        self.max_prompt_tokens = max(environment.max_prompt_tokens for environment in every)
        self.max_new_tokens = max(environment.max_new_tokens for environment in every)
        shares = ", ".join(f"{name} {self.cycle.count(name) / len(self.cycle):.0%}" for name in self.environments)
        self.warnings = [
            f"mixture: {shares}",
            *(f"{name}: {note}" for name, environment in self.environments.items() for note in environment.warnings),
        ]

    def _build_finite_order(self, split: str) -> list[tuple[str, int]] | None:
        """Return (environment, task index) for each task of a finite split, each once, in the mixture's order; None if the split is
        endless.
        """
        sizes = {name: environment.num_tasks(split) for name, environment in self.environments.items()}
        if any(size is None for size in sizes.values()):
            return None
        left = {name: size or 0 for name, size in sizes.items()}
        order: list[tuple[str, int]] = []
        index = 0
        while len(order) < sum(left.values()):
            name, place = self._locate_task(index)
            if place < left[name]:
                order.append((name, place))
            index += 1
        return order

    def _locate_task(self, index: int) -> tuple[str, int]:
        """Return the environment at a position, and the number of its tasks before that position."""
        rounds, place = divmod(index, len(self.cycle))
        name = self.cycle[place]
        return name, rounds * self.cycle.count(name) + self.cycle[:place].count(name)

    def _environment_of(self, task: Task) -> Environment:
        return self.environments[str(task.meta["member"])]


class MixtureVerifier(Verifier):
    """The verifiers of a mixture: each verifies the tasks of its own environment."""

    def __init__(self, verifiers: Mapping[str, Verifier]) -> None:
        """Set the verifiers by environment name; their environments close them."""
        self.verifiers = dict(verifiers)
        self.needs_reference = any(verifier.needs_reference for verifier in verifiers.values())
        self.has_bounded_score = all(verifier.has_bounded_score for verifier in verifiers.values())
        self.traits = VerifierTraits(is_async=any(verifier.traits.is_async for verifier in verifiers.values()), takes_transcript=True)
        self.has_audit_component = any(getattr(verifier, "has_audit_component", False) for verifier in verifiers.values())

    @require_text_answers
    def verify(self, task: Task, answer: str) -> Verdict:
        """Verify an answer with the verifier of the task's environment."""
        return self.verify_transcript(task, Transcript(answer))

    def verify_transcript(self, task: Task, transcript: Transcript) -> Verdict:
        """Verify a transcript with the verifier of the task's environment."""
        verifier = self._get_verifier(task)
        return verifier if isinstance(verifier, Verdict) else verifier.verify_transcript(task, transcript)

    async def averify(self, task: Task, answer: str) -> Verdict:
        """Await the verdict on an answer."""
        return await self.averify_transcript(task, Transcript(answer))

    async def averify_transcript(self, task: Task, transcript: Transcript) -> Verdict:
        """Await the verdict of the verifier of the task's environment."""
        verifier = self._get_verifier(task)
        return verifier if isinstance(verifier, Verdict) else await verifier.averify_transcript(task, transcript)

    def _get_verifier(self, task: Task) -> Verifier | Verdict:
        """Return the verifier of a task, or a verdict that says why there is none."""
        wrong = Verdict(None, f"the task {task.id} is of no environment of this mixture", fault=Fault.TASK)
        return self.verifiers.get(str(task.meta.get("member")), wrong)


def build_cycle(weights: Mapping[str, float]) -> list[str]:
    """Build a cycle of names in proportion to their weights, evenly spread.

    >>> build_cycle({"a": 2, "b": 1})
    ['a', 'b', 'a']
    """
    total = math.fsum(weights.values())
    shares = {name: weight / total for name, weight in weights.items()}
    counts = {name: max(round(share * MAX_CYCLE_TASKS), 1) for name, share in shares.items()}
    for length in range(len(weights), MAX_CYCLE_TASKS):
        exact = {name: round(share * length) for name, share in shares.items()}
        if all(abs(exact[name] - share * length) < 1e-6 for name, share in shares.items()):
            counts = exact
            break
    spots = sorted(((place + 0.5) / count, rank, name) for rank, (name, count) in enumerate(counts.items()) for place in range(count))
    return [name for _, _, name in spots]


def _parse_env_entry(name: str, entry: Any) -> tuple[Any, float]:
    """Split one entry of `envs` into an environment and its weight."""
    if not isinstance(entry, Mapping) or "env" not in entry or "name" in entry:
        return entry, 1.0
    if not name or "/" in name or entry.keys() - {"env", "weight"}:
        raise ConfigError(f"{name!r} is {dict(entry)!r:.120}; it must be a name without / with {{env: ..., weight: NUMBER}}")
    weight = entry.get("weight", 1.0)
    if isinstance(weight, bool) or not isinstance(weight, int | float) or not 0 <= weight < math.inf:
        raise ConfigError(f"the weight of {name!r} is {weight!r}; it must be a number of at least 0")
    return entry["env"], float(weight)


make = Mixture
