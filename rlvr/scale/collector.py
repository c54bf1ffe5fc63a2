"""A collector: a sampler and a rollout in one process, which samples and judges whole units. It knows nothing of the cluster around it.

torch is imported where weights are: a collector whose sampler takes none starts in a second, and needs 300 MB less.
"""

from __future__ import annotations

import threading
import zlib
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from rlvr.config.config import RunConfig
from rlvr.contracts import Completion, Environment, Feed, Sampler, Sampling, Tokenizer
from rlvr.errors import RlvrError, SamplerError
from rlvr.mdp.rules import TokenMDP
from rlvr.mdp.tokenizers import tokenizer_from
from rlvr.plugins.registry import from_config
from rlvr.rollout.columns import to_columns
from rlvr.rollout.rollout import Rollout
from rlvr.scale.judges import Desk, JudgedElsewhere
from rlvr.scale.units import Unit


@dataclass(frozen=True, slots=True)
class Facts:
    """What the driver found out and a collector must do alike, so that it samples the same bits.

    >>> Facts(precision="float32", lockstep=True, threads=1).threads
    1
    """

    precision: str
    lockstep: bool
    threads: int
    weights: bool = True
    """Whether the sampler takes weights at all."""


class Cancelled(RlvrError):
    """The driver needs a unit no more."""


class Collector:
    """Samples units with weights that it is given.

    >>> Collector(config, facts).collect(1, unit, Sampling(), version=0)                    # doctest: +SKIP
    """

    def __init__(self, config: RunConfig, facts: Facts) -> None:
        self._open, self._stop = ExitStack(), threading.Event()
        self.facts, self.version = facts, -1
        self._set_threads()
        asked = config.rollout
        tokenizer = tokenizer_from(config.tokenizer_name)
        environment: Environment = self._open.enter_context(from_config("env", config.env))
        self.desk = Desk(config.cluster.start_s) if config.cluster is not None else Desk(0.0)
        if config.cluster is not None and config.cluster.judges:
            environment.verifier = JudgedElsewhere(environment.verifier, self.desk)
        environment.ready()
        mdp = TokenMDP(environment, tokenizer, **asked.limits)
        self.sampler: Sampler = self._open.enter_context(from_config("sampler", asked.sampler))
        self.sampler.bind(environment, tokenizer)
        self.sampler.prepare(precision=facts.precision, max_length=mdp.max_length)
        self.model = _model(config, tokenizer) if facts.weights else None
        limits: dict[str, Any] = {"deadline_s": asked.verify_deadline_s, "episode_s": asked.episode_s, "overlong": asked.overlong}
        rollout = Rollout(mdp, _Stoppable(self.sampler, self._stop), workers=asked.verify_workers, lockstep=facts.lockstep, **limits)
        self.rollout = self._open.enter_context(rollout)

    def load(self, version: int, data: bytes, checksum: int) -> None:
        """Take these weights; RlvrError if they are not those that were sent."""
        if zlib.crc32(data) != checksum:
            raise RlvrError(f"version {version} of the weights has another checksum here than where it was made")
        self._set_threads()
        if self.model is not None:
            put_into(self.model, data)
            self.sampler.load(self.model, version)
        self.version = version

    def collect(self, version: int, unit: Unit, sampling: Sampling, label: int) -> tuple[bytes, float]:
        """The unit's episodes as columns, sampled by this version of the weights, and the seconds of their verification."""
        if version != self.version:
            raise SamplerError(f"asked for answers of version {version} of the weights, but this collector has version {self.version}")
        self._set_threads()
        self._stop.clear()
        found = self.rollout.collect(unit, sampling, version=label)
        return to_columns([found]).to_bytes(), self.rollout.timing.verifying

    def _set_threads(self) -> None:
        """As many as the driver has, since the last bits depend on it; a setting of each thread."""
        if self.facts.weights:
            import torch

            torch.set_num_threads(self.facts.threads)

    def cancel(self) -> None:
        """Stop with the present unit, from another thread."""
        self._stop.set()

    def close(self) -> None:
        """Stop the threads, and what the environment has opened."""
        self._open.close()


class _Stoppable(Sampler):
    """A sampler that can be stopped between two tokens of a unit."""

    def __init__(self, inner: Sampler, stop: threading.Event) -> None:
        self.inner, self.stop = inner, stop
        for name in ("company", "gives_text", "tokenizer"):
            setattr(self, name, getattr(inner, name))

    def stream(self, requests: Any, sampling: Sampling) -> Iterator[tuple[int, Completion]]:
        yield from self._watched(self.inner.stream(requests, sampling))

    def serve(self, feed: Feed, sampling: Sampling) -> Iterator[tuple[int, Completion] | None]:
        yield from self._watched(self.inner.serve(feed, sampling))

    def _watched(self, given: Iterator[Any]) -> Iterator[Any]:
        for one in given:
            if self.stop.is_set():
                raise Cancelled("the unit is not needed any more")
            yield one


def _model(config: RunConfig, tokenizer: Tokenizer) -> Any:
    """The model that weights are put into."""
    from rlvr.model.device import device_from
    from rlvr.model.weights import model_from

    return model_from(config.model, tokenizer, config.seed).to(device_from())


def weights_of(model: Any) -> bytes:
    """The weights of a plain model in the format of safetensors; tied ones come once."""
    from safetensors.torch import save as packed

    seen, named = set[int](), dict[str, Any]()
    for name, tensor in model.state_dict(keep_vars=True).items():
        if id(tensor) not in seen:
            seen.add(id(tensor))
            named[name] = tensor.detach().cpu().contiguous()
    return bytes(packed(named))


def put_into(model: Any, data: bytes) -> None:
    """Replace all weights of a model; RlvrError if some of them are not in the data."""
    import torch
    from safetensors.torch import load as unpacked

    given: Mapping[str, torch.Tensor] = unpacked(data)
    places = model.state_dict()
    same = {(tensor.data_ptr(), tensor.shape) for name, tensor in places.items() if name in given}
    missing = [name for name, tensor in places.items() if name not in given and (tensor.data_ptr(), tensor.shape) not in same]
    if wrong := [*missing, *(given.keys() - places.keys())]:
        raise RlvrError(f"the weights that were sent are those of another model: {len(wrong)} names differ, such as {wrong[0]}")
    with torch.no_grad():
        for name, tensor in given.items():
            places[name].copy_(tensor)
