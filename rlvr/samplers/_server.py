"""vLLM servers of their own, found by URL: ids in and out, weights sent through the engine's own interface.

    VLLM_SERVER_DEV_MODE=1 vllm serve DIR --logprobs-mode processed_logprobs --enable-scale-out

Every batch of weights is sent under a name of its own, and each completion says under which name its tokens were sampled. So a
server that was restarted, or that somebody else feeds, is found at its first answer. While answers are awaited, or an order's end, the
servers' pulse is taken; no wait is without a deadline.

The engine's CPU build has no `vllm` command (write `python -m vllm.entrypoints.openai.api_server --model DIR`), and packs an output head
that is tied to the embeddings once and for all: such a model it can serve, but not take new weights for; the probe says so.
"""

from __future__ import annotations

import shutil
import time
import uuid
import zlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

import torch

from rlvr.contracts import Completion, Request, Sampling
from rlvr.errors import ConfigError, SamplerError
from rlvr.runs.owner import own_folder, sweep
from rlvr.samplers._dialect import finished, settings
from rlvr.samplers._http import Http, NoReply, Reply
from rlvr.samplers._vllm_version import check_version

T = TypeVar("T")
COMMAND = "VLLM_SERVER_DEV_MODE=1 vllm serve DIR --logprobs-mode processed_logprobs --enable-scale-out"
ORDERS = ("/collective_rpc", "/reset_prefix_cache", "/update_weight_version")
PREFIX = "rlvr-weights-"
AGAIN = "Mend it, then go on with `rlvr train ... --resume`: nothing that was learned is lost"


@dataclass(frozen=True, slots=True)
class Patience:
    """How long each kind of wait may last, in seconds.

    >>> Patience(heartbeat_s=5.0).deadline_s
    600.0
    """

    deadline_s: float = 600.0
    """For one answer, and for new weights to be taken."""
    heartbeat_s: float = 10.0
    """Without an answer for so long, the server is asked for a sign of life, and has as long again to give it."""
    start_s: float = 120.0
    """For a server to come up."""


class Servers:
    """One or more vLLM servers that all hold the same weights.

    >>> Servers(["http://localhost:8000"], Patience(), concurrency=64, folder=None)        # doctest: +SKIP
    """

    def __init__(self, urls: Sequence[str], patience: Patience, *, concurrency: int, folder: str | None) -> None:
        self.patience, self.concurrency = patience, concurrency
        self.servers = [Http(url) for url in urls]
        self.where = "the vLLM server at " + " and ".join(server.url for server in self.servers)
        try:
            sweep(PREFIX, folder)
            self._home = own_folder(PREFIX, folder)
            self._home.chmod(0o700 if folder is None else 0o755)  # a server that is told of a folder may be another user's
        except OSError as error:
            raise ConfigError(f"weights_folder {folder} cannot be written to: {error.strerror}; name a folder that is there") from error
        self._run, self._weights = uuid.uuid4().hex[:12], ""
        try:
            self.max_model_len = min(self._met(server) for server in self.servers)
        except BaseException:
            self.close()
            raise

    def take(self, model: Any, version: int) -> None:
        """New weights into every server. In a run of several processes the first one sends, and all learn how it went."""
        told: list[str | None] = [None, None]
        if _rank() == 0:
            try:
                told[0] = self._sent(model, version)
            except SamplerError as error:
                told[1] = str(error)
        if torch.distributed.is_initialized() and torch.distributed.get_world_size() > 1:
            torch.distributed.broadcast_object_list(told)
        if told[1] is not None:
            raise SamplerError(told[1])
        self._weights = told[0] or ""

    def rest(self) -> None:
        """A server has memory of its own; there is nothing to give back."""

    def stream(self, requests: Sequence[Request], sampling: Sampling) -> Iterator[tuple[int, Completion]]:
        """Completions as they end. A group goes to one server, which computes its prompt once."""
        calls = []
        for request in requests:
            place = zlib.crc32(repr(list(request.prompt)).encode()) % len(self.servers)
            calls.append(partial(self._answer, self.servers[place], request, sampling))
        yield from self._awaited(calls, lambda left: f"with {left} of {len(requests)} answers to come")

    def _awaited(self, calls: Sequence[Callable[[], T]], told: Callable[[int], str]) -> Iterator[tuple[int, T]]:
        """What each call gives, as they end. While nothing comes the servers' pulse is taken; `told` says what so many of them were for."""
        pool = ThreadPoolExecutor(min(len(calls), self.concurrency * len(self.servers)) or 1, thread_name_prefix="vllm")
        waiting: dict[Future[T], int] = {}
        ended: SimpleQueue[Future[T]] = SimpleQueue()
        try:
            for index, call in enumerate(calls):
                future = pool.submit(call)
                waiting[future] = index
                future.add_done_callback(ended.put)
            while waiting:
                try:
                    future = ended.get(timeout=self.patience.heartbeat_s)
                except Empty:
                    self._pulse(told(len(waiting)))
                    continue
                try:
                    given = future.result()
                except NoReply as error:
                    raise SamplerError(f"{error}, {told(len(waiting))}. {AGAIN}") from None
                yield waiting.pop(future), given
        finally:
            if waiting:
                pool.shutdown(wait=False, cancel_futures=True)
                while not all(future.done() for future in waiting):  # a thread that was about to ask asks after the first time
                    self.close_connections()
                    time.sleep(0.05)
            pool.shutdown(wait=True)

    def scorers(self) -> dict[str, Callable[[Sequence[int]], list[float]]]:
        """Each server: one that skipped a reload is not hidden by the others."""
        return {f"the vLLM server at {server.url}": partial(self._score, server) for server in self.servers}

    def close_connections(self) -> None:
        """Break what is under way."""
        for server in self.servers:
            server.abort()

    def close(self) -> None:
        """Close the connections and remove the weights that were handed over. The servers go on; they are not ours."""
        for server in self.servers:
            server.close()
        shutil.rmtree(self._home, ignore_errors=True)

    def _sent(self, model: Any, version: int) -> str:
        """Write the weights where the servers can read them, and have each load them in place and forget its cache; their name."""
        name, before = f"{self._run}-{version}", self._weights
        folder = self._home / name
        model.save_pretrained(folder)
        for server in self.servers:
            self._done(server, "/collective_rpc", {"method": "reload_weights", "kwargs": {"weights_path": str(folder)}})
            if not self._done(server, "/reset_prefix_cache").json().get("success"):
                raise SamplerError(f"{server.url} did not reset its prefix cache for version {version}: somebody else is using it. {AGAIN}")
            self._done(server, "/update_weight_version", {"new_version": name})
        if before and before != name:
            shutil.rmtree(self._home / before, ignore_errors=True)
        return name

    def _answer(self, server: Http, request: Request, sampling: Sampling) -> Completion:
        body = {"token_ids": list(request.prompt), "sampling_params": settings(request, sampling)}
        choice = self._choice(server, body)
        spans = {span["version"] for span in choice.get("weight_versions") or []}
        if spans != {self._weights} and self._weights:
            raise SamplerError(
                f"{server.url} answered with other weights than it was sent: they are called {', '.join(sorted(spans)) or 'nothing'}, "
                f"and {self._weights} was sent. It was restarted, or somebody else loads weights into it. {AGAIN}"
            )
        logprobs = [float(entry["logprob"]) for entry in choice["logprobs"]["content"]]
        return finished([int(token) for token in choice["token_ids"]], logprobs, str(choice["finish_reason"]), sampling)

    def _score(self, server: Http, tokens: Sequence[int]) -> list[float]:
        params = {"max_tokens": 1, "temperature": 0.0, "prompt_logprobs": 0, "detokenize": False}
        reply = self._done(server, "/inference/v1/generate", {"token_ids": list(tokens), "sampling_params": params})
        found = reply.json()["prompt_logprobs"]
        return [float(scores[str(token)]["logprob"]) for token, scores in zip(tokens[1:], found[1:], strict=True)]

    def _choice(self, server: Http, body: dict[str, Any]) -> dict[str, Any]:
        reply = server.ask("POST", "/inference/v1/generate", body, until=time.monotonic() + self.patience.deadline_s)
        try:
            choice = reply.json()["choices"][0]
            if not isinstance(choice["token_ids"], list) or not isinstance(choice["logprobs"]["content"], list):
                raise TypeError("no lists")
            return dict(choice)
        except (ValueError, LookupError, TypeError) as error:
            raise SamplerError(
                f"{server.told(reply)}; that is no completion with token ids and log-probabilities; was it started as `{COMMAND}`?"
            ) from error

    def _done(self, server: Http, path: str, body: Any = None) -> Reply:
        """One order to a server, carried out."""
        order = partial(server.ask, "POST", path, body, until=time.monotonic() + self.patience.deadline_s)
        [(_, reply)] = self._awaited([order], lambda _: f"when {path} was to be done")
        if reply.status == 404 and path in ORDERS:
            raise SamplerError(f"{server.url} has no {path}, so it takes no weights; start it as `{COMMAND}`")
        if reply.status != 200:
            hint = " Is it serving the model that is trained?" if path == "/collective_rpc" else ""
            raise SamplerError(f"{server.told(reply)}, when it was told to do {path}.{hint} {AGAIN}")
        return reply

    def _pulse(self, awaited: str) -> None:
        """Are the servers still there? Asked when no answer came for a while."""
        for server in self.servers:
            try:
                reply = server.ask("GET", "/health", until=time.monotonic() + self.patience.heartbeat_s)
            except NoReply as error:
                raise SamplerError(f"{error}: no sign of life, {awaited}. {AGAIN}") from None
            if reply.status != 200:
                raise SamplerError(f"{server.told(reply)}: its engine is dead, {awaited}. {AGAIN}")

    def _met(self, server: Http) -> int:
        """Wait for the server to come up, and see that it can do what is needed; its longest sequence."""
        until = time.monotonic() + self.patience.start_s
        while True:
            try:
                if server.ask("GET", "/health", until=until).status == 200:
                    break
                told = "it is up and not well"
            except NoReply as error:
                told = str(error)
            if time.monotonic() + 0.5 > until:
                raise SamplerError(f"no vLLM server at {server.url} within {self.patience.start_s:g} s ({told}); start it as `{COMMAND}`")
            time.sleep(0.5)
        try:
            check_version(str(server.ask("GET", "/version", until=until).json()["version"]), server.url)
            length = int(server.ask("GET", "/v1/models", until=until).json()["data"][0]["max_model_len"])
            sure = self._choice(
                server, {"token_ids": [0, 0], "sampling_params": {"max_tokens": 1, "top_k": 1, "logprobs": 0, "ignore_eos": True}}
            )
        except (ValueError, LookupError, TypeError) as error:
            raise ConfigError(f"{server.url} is no vLLM server: {type(error).__name__}: {error}; start one as `{COMMAND}`") from error
        if abs(sure["logprobs"]["content"][0]["logprob"]) > 1e-6:  # of the only token that was allowed
            raise ConfigError(f"{server.url} reports raw log-probabilities, not those that it samples from; start it as `{COMMAND}`")
        return length


def _rank() -> int:
    return torch.distributed.get_rank() if torch.distributed.is_initialized() else 0
