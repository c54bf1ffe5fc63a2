"""A collector: a sampler and a rollout in one process, which samples and judges whole units. It knows nothing of the cluster around it.

torch is imported where weights are: a collector whose sampler takes none starts in a second, and needs 300 MB less.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from time import perf_counter
from typing import Any

from rlvr.config.config import RunConfig, check
from rlvr.contracts import Completion, Environment, Feed, Sampler, Sampling, Tokenizer
from rlvr.errors import ConfigError, RlvrError, SamplerError
from rlvr.evaluation.rounds import mdp_for, rollout_for
from rlvr.evaluation.suite import Item
from rlvr.mdp.rules import TokenMDP
from rlvr.mdp.tokenizers import tokenizer_from
from rlvr.plugins.registry import Spec, from_config
from rlvr.rollout.columns import to_columns
from rlvr.rollout.parts import rollout_of
from rlvr.rollout.rollout import Rollout
from rlvr.scale.judges import Desk, JudgedElsewhere
from rlvr.scale.units import Unit
from rlvr.scale.weights.parcels import Parcel


@dataclass(frozen=True, slots=True)
class Facts:
    """What the driver found out and a collector must do alike, so that it samples the same bits.

    >>> Facts(precision="float32", lockstep=True, threads=1).threads
    1
    """

    precision: str
    lockstep: bool | None
    threads: int
    weights: bool = True
    """Whether the sampler takes weights at all."""

    def collector(self, config: Mapping[str, Any]) -> Collector:
        """A collector of the run that has this configuration."""
        return Collector(check(config, "the run"), self)


@dataclass(frozen=True, slots=True)
class Exam:
    """What a collector of an evaluation samples.

    >>> Exam(Spec("sampler", "scripted", {"answer": "gold"}), (Item(env={"name": "arithmetic"}),)).threads
    0
    """

    sampler: Spec
    """The policy."""
    items: tuple[Item, ...]
    """The environments that it is asked in."""
    threads: int = 0
    """How many torch computes with; 0: the policy needs no torch."""

    def collector(self, _: Mapping[str, Any]) -> Collector:
        """A collector of this evaluation."""
        return Examiner(self)


class Cancelled(RlvrError):
    """The driver needs a unit no more."""


class Collector:
    """Samples units with weights that it is given.

    >>> Collector(config, facts).collect(1, unit, Sampling(), version=0)                    # doctest: +SKIP
    """

    def __init__(self, config: RunConfig, facts: Facts) -> None:
        self._begin(facts.threads if facts.weights else 0)
        self.facts = facts
        asked = config.rollout
        tokenizer = tokenizer_from(config.tokenizer_name)
        environment: Environment = self._open.enter_context(from_config("env", config.env))
        elsewhere = config.cluster is not None and config.cluster.judges > 0
        limit_s = config.cluster.start_s if config.cluster is not None else 0.0
        self.desk = Desk(limit_s, beat_s=asked.verify_deadline_s / 4, beat=self._beat)
        if elsewhere:
            environment.verifier = JudgedElsewhere(environment.verifier, self.desk)
        environment.ready()
        mdp = TokenMDP(environment, tokenizer, **asked.limits)
        self.sampler: Sampler = self._open.enter_context(from_config("sampler", asked.sampler))
        self.sampler.bind(environment, tokenizer)
        self.sampler.prepare(precision=facts.precision, max_length=mdp.max_length)
        self.model = _model(config, tokenizer, facts.precision, vectors=self.sampler.runs_model) if facts.weights else None
        rollout = rollout_of(mdp, _Stoppable(self.sampler, self._unneeded), lockstep=facts.lockstep, **asked.collecting)
        self.rollout = self._open.enter_context(rollout)

    def _begin(self, threads: int) -> None:
        self._open = ExitStack()
        self.threads, self.version, self.model = threads, -1, None
        self._order: Hashable = None
        self._stopped: Hashable = None
        """What it samples, and what it was told to stop with last. Each is written by one thread; a late word harms nothing."""
        self._set_threads()

    def load(self, version: int, parcels: Iterable[Parcel]) -> None:
        """Take these weights; RlvrError if they are not those that were sent."""
        self._set_threads()
        if self.model is not None:
            from rlvr.scale.weights.packing import take_in

            take_in(self.model, parcels)
            self.sampler.load(self.model, version)
        self.version = version

    def collect(self, version: int, unit: Unit, sampling: Sampling, label: int, order: Hashable = None) -> tuple[bytes, float]:
        """The unit's episodes as columns, sampled by this version of the weights, and the seconds of their verification.

        `order` names this call for `cancel`.
        """
        if version != self.version:
            raise SamplerError(f"asked for answers of version {version} of the weights, but this collector has version {self.version}")
        self._set_threads()
        self._order = order
        rollout = self._rollout(unit)
        found = rollout.collect(unit, sampling, version=label)
        return to_columns([found]).to_bytes(), rollout.timing.verifying

    def _rollout(self, unit: Unit) -> Rollout:
        """What samples this unit."""
        return self.rollout

    def _beat(self) -> None:
        """A verdict is waited for that a judge host has, or that waits for one: the deadline is the host's."""
        self.rollout.judges.moved = perf_counter()

    def _set_threads(self) -> None:
        """As many as the driver has, since the last bits depend on it; a setting of each thread."""
        if self.threads:
            import torch

            torch.set_num_threads(self.threads)

    def cancel(self, order: Hashable) -> None:
        """Stop with this call, from another thread. If another one is under way by now, that goes on."""
        self._stopped = order

    def _unneeded(self) -> bool:
        return self._order is not None and self._order == self._stopped

    def close(self) -> None:
        """Stop the threads, and what the environment has opened."""
        self._open.close()


class Examiner(Collector):
    """A collector of an evaluation. Its sampler has a policy of its own, and one environment after the other.

    >>> Examiner(exam).collect(0, unit, Sampling(), 0)                                      # doctest: +SKIP
    """

    def __init__(self, exam: Exam) -> None:
        self._begin(exam.threads)
        self.desk = Desk(0.0)
        self.items = {item.name: item for item in exam.items}
        self.environments = dict[str, Environment]()
        for item in exam.items:
            self.environments[item.name] = self._open.enter_context(from_config("env", item.env))
            self.environments[item.name].ready()
        self.sampler = self._open.enter_context(exam.sampler.build())
        self.sampler.ready()
        self._name, self._one = "", self._open.enter_context(ExitStack())
        """Which environment the rollout belongs to, and what ends with it."""

    def _rollout(self, unit: Unit) -> Rollout:
        name = str(unit[0].meta["env"])
        if name != self._name:
            self._one.close()
            mdp = mdp_for(self.items[name], self.environments[name], self.sampler)
            self.rollout = self._one.enter_context(rollout_for(self.items[name], mdp, _Stoppable(self.sampler, self._unneeded)))
            self._name = name
        return self.rollout


def check_place(sampler: Sampler, name: str) -> None:
    """ConfigError for a sampler that cannot be in a collector yet."""
    if type(sampler).receive is not Sampler.receive and not sampler.holds_trainer_up:
        raise ConfigError(
            f"cluster is set, but the sampler {name!r} has processes of its own; collectors need one that runs in their process, "
            "such as hf, or vllm with placement: colocated"
        )


class _Stoppable(Sampler):
    """A sampler that can be stopped between two tokens of a unit."""

    def __init__(self, inner: Sampler, unneeded: Callable[[], bool]) -> None:
        self.inner, self.unneeded = inner, unneeded
        for name in ("company", "gives_text", "tokenizer"):
            setattr(self, name, getattr(inner, name))

    def bind(self, environment: Environment, tokenizer: Tokenizer) -> None:
        self.inner.bind(environment, tokenizer)

    def stream(self, requests: Any, sampling: Sampling) -> Iterator[tuple[int, Completion]]:
        yield from self._watched(self.inner.stream(requests, sampling))

    def serve(self, feed: Feed, sampling: Sampling) -> Iterator[tuple[int, Completion] | None]:
        yield from self._watched(self.inner.serve(feed, sampling))

    def _watched(self, given: Iterator[Any]) -> Iterator[Any]:
        for one in given:
            if self.unneeded():
                raise Cancelled("the unit is not needed any more")
            yield one


def _model(config: RunConfig, tokenizer: Tokenizer, precision: str, *, vectors: bool) -> Any:
    """The model that weights are put into, in the precision in which they come."""
    from rlvr.model.device import device_from
    from rlvr.model.weights import model_from
    from rlvr.scale.weights.packing import lower

    return lower(model_from(config.model, tokenizer, config.seed), precision, vectors=vectors).to(device_from())
