"""The rollout worker: a sampler and a rollout in one process, which samples and verifies whole rollout tasks. It does not know the cluster.

torch is only imported for weights: a worker whose sampler loads no weights starts in one second and needs 300 MB less.
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
    """Settings of the driver that a rollout worker must share to sample the same bits.

    >>> Facts(precision="float32", lockstep=True, threads=1).threads
    1
    """

    precision: str
    lockstep: bool | None
    threads: int
    weights: bool = True
    """Whether the sampler loads weights."""

    def collector(self, config: Mapping[str, Any]) -> Collector:
        """Build a worker for the run with this configuration."""
        return Collector(check(config, "the run"), self)


@dataclass(frozen=True, slots=True)
class Exam:
    """What a rollout worker of an evaluation samples.

    >>> Exam(Spec("sampler", "scripted", {"answer": "gold"}), (Item(env={"name": "arithmetic"}),)).threads
    0
    """

    sampler: Spec
    """The policy."""
    items: tuple[Item, ...]
    """The environments to evaluate it in."""
    threads: int = 0
    """Number of threads of torch; 0: the policy does not need torch."""

    def collector(self, _: Mapping[str, Any]) -> Collector:
        """Build a worker for this evaluation."""
        return Examiner(self)


class Cancelled(RlvrError):
    """The driver has cancelled the task."""


class Collector:
    """Run rollout tasks with the weights that the driver sends."""

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
        """The call that runs, and the call that was cancelled last. Each has one writing thread; a late cancellation has no effect."""
        self._set_threads()

    def load(self, version: int, parcels: Iterable[Parcel]) -> None:
        """Load these weights; RlvrError if a checksum does not match."""
        self._set_threads()
        if self.model is not None:
            from rlvr.scale.weights.packing import take_in

            take_in(self.model, parcels)
            self.sampler.load(self.model, version)
        self.version = version

    def collect(self, version: int, unit: Unit, sampling: Sampling, label: int, order: Hashable = None) -> tuple[bytes, float]:
        """Return the episodes of the task as columns, sampled by this version of the weights, and the seconds of verification.

        `order` identifies this call for `cancel`.
        """
        if version != self.version:
            raise SamplerError(f"asked for version {version} of the weights, but this rollout worker has version {self.version}")
        self._set_threads()
        self._order = order
        rollout = self._rollout(unit)
        found = rollout.collect(unit, sampling, version=label)
        return to_columns([found]).to_bytes(), rollout.timing.verifying

    def _rollout(self, unit: Unit) -> Rollout:
        """Return the rollout for this task."""
        return self.rollout

    def _beat(self) -> None:
        """Restart the local timeouts while a verdict is pending at a verifier worker, which has the timeout."""
        self.rollout.judges.moved = perf_counter()

    def _set_threads(self) -> None:
        """Use as many threads as the driver, since the last bits depend on the number. The setting holds for the current thread."""
        if self.threads:
            import torch

            torch.set_num_threads(self.threads)

    def cancel(self, order: Hashable) -> None:
        """Cancel this call, from another thread. Another call that runs by now goes on."""
        self._stopped = order

    def _unneeded(self) -> bool:
        return self._order is not None and self._order == self._stopped

    def close(self) -> None:
        """Stop the threads and close the environment."""
        self._open.close()


class Examiner(Collector):
    """Rollout worker of an evaluation. Its sampler has its own policy and is used in one environment after the other."""

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
        """The environment of the current rollout, and the resources to close with that rollout."""

    def _rollout(self, unit: Unit) -> Rollout:
        name = str(unit[0].meta["env"])
        if name != self._name:
            self._one.close()
            mdp = mdp_for(self.items[name], self.environments[name], self.sampler)
            self.rollout = self._one.enter_context(rollout_for(self.items[name], mdp, _Stoppable(self.sampler, self._unneeded)))
            self._name = name
        return self.rollout


def check_place(sampler: Sampler, name: str) -> None:
    """Raise ConfigError for a sampler that rollout workers do not support."""
    if type(sampler).receive is not Sampler.receive and not sampler.holds_trainer_up:
        raise ConfigError(
            f"cluster is set, but the sampler {name!r} has its own processes; rollout workers need one that runs in their process, "
            "such as hf, or vllm with placement: colocated"
        )


class _Stoppable(Sampler):
    """A sampler that can be cancelled between two tokens."""

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
                raise Cancelled("the rollout task was cancelled")
            yield one


def _model(config: RunConfig, tokenizer: Tokenizer, precision: str, *, vectors: bool) -> Any:
    """Build the model that receives the weights, in the precision in which they are sent."""
    from rlvr.model.device import device_from
    from rlvr.model.weights import model_from
    from rlvr.scale.weights.packing import lower

    return lower(model_from(config.model, tokenizer, config.seed), precision, vectors=vectors).to(device_from())
