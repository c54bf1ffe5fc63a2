"""Client for separate vLLM servers, given by URL: token ids in and out, weights loaded through vLLM's API.

    VLLM_SERVER_DEV_MODE=1 vllm serve DIR --logprobs-mode processed_logprobs --enable-scale-out

Each set of weights has a unique name, and each completion reports the name of the weights that sampled it. So a
server that was restarted, or got weights from another client, is detected at its first completion. While requests are
pending, the health of the servers is checked; every wait has a timeout. With several servers, one that does not respond, fails or has
other weights is marked as lost; the others get its requests, until it is healthy again and has loaded new weights. The run ends when the
last server is lost.

If all servers can load adapters at run time (VLLM_ALLOW_RUNTIME_LORA_UPDATING=1 and --enable-lora --max-lora-rank R), the frozen
weights of a model with an adapter are sent once and then the adapter alone; otherwise merged weights are sent.

vLLM's CPU build has no `vllm` command (use `python -m vllm.entrypoints.openai.api_server --model DIR`), and packs an output head
that is tied to the embeddings only once: it can serve such a model, but not load new weights; the probe reports that.
"""

from __future__ import annotations

import shutil
import time
import uuid
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, suppress
from functools import partial
from itertools import cycle
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, TypeAlias, TypeVar

from rlvr.contracts import Completion, Feed, Request, Sampling, Weights
from rlvr.errors import ConfigError, SamplerError
from rlvr.runs.owner import own_folder, sweep
from rlvr.samplers._dialect import room_for, settings
from rlvr.samplers._http import Http, NoReply, Reply
from rlvr.samplers._local.balance import Load, chosen, group_of
from rlvr.samplers._servers.patience import Patience
from rlvr.samplers._servers.replies import (
    ADAPTERS,
    AGAIN,
    Unfit,
    choice_of,
    completion_of,
    fails,
    fault_of,
    is_cleared,
    met,
    scores_of,
)  # fmt: skip
from rlvr.samplers._servers.roll import Gone, Roll, address
from rlvr.samplers._servers.transfer import Transfer

T = TypeVar("T")
Calls: TypeAlias = list[tuple[int, Callable[[], T]]]
"""Functions to call in threads, each with the number of its result."""
Ended: TypeAlias = SimpleQueue[Future[T] | None]
"""Ended calls, and None if there may be new requests."""
GENERATE = "/inference/v1/generate"
OLD_ADAPTER = "/v1/unload_lora_adapter"
PREFIX = "rlvr-weights-"
LOOK_S = 0.05
"""Interval at which control returns to the caller while nothing arrives."""


class Servers:
    """Client of one or more vLLM servers with the same weights."""

    def __init__(
        self,
        urls: Sequence[str],
        patience: Patience,
        *,
        concurrency: int,
        folder: str | None,
        dtype: str | None = None,
        adapters: bool = False,
        transfer: str = "files",
    ) -> None:
        """Connect to the servers. `adapters`: send them separately, if all servers support it. `transfer`: files, or a backend of vLLM."""
        self.patience, self.concurrency, self.dtype = patience, concurrency, dtype
        self.servers = [Http(url) for url in urls]
        self.roll = Roll(self.servers)
        self.where = "the vLLM server at " + " and ".join(server.url for server in self.servers)
        try:
            sweep(PREFIX, folder)
            self._home = own_folder(PREFIX, folder)
            self._home.chmod(0o700 if folder is None else 0o755)  # a server that reads a shared folder may run as another user
        except OSError as error:
            raise ConfigError(f"weights_folder {folder} cannot be written to: {error.strerror}; give an existing folder") from error
        self._run, self._weights = uuid.uuid4().hex[:12], ""
        self._adapters: bool | None = None if adapters else False
        """Whether adapters are sent separately; None: not known yet."""
        self._adapter = ""
        """Name of the adapter of all requests; empty if there is no separate adapter."""
        self._transfer: Transfer | None = None
        try:
            self.max_model_len = min(self._met(server) for server in self.servers)
            if transfer != "files":
                self.roll.fixed = True  # they form a group with the trainer
                self._transfer = Transfer(transfer, self.servers, self._done, self.patience.deadline_s)
        except BaseException:
            self.close()
            raise

    def take(self, weights: Weights, version: int) -> None:
        """Load new weights into every server. With several processes, only the main one sends commands, and all get the result."""
        if self._transfer is not None:
            self._transfer.send(weights, self.dtype)
            self._weights, _ = weights.once(lambda: self._told_to_load(None, version))
            return
        weights.once(lambda: self.roll.back(self.patience.heartbeat_s, self._met_again))
        name, before = f"{self._run}-{version}", self._weights
        home = Path(weights.once(lambda: str(self._home)))
        part = weights.adapter() if self._adapters is not False else None
        if part is not None and self._adapters is None:
            self._adapters = weights.once(self._take_adapters)
        if part is None or not self._adapters:
            weights.save(home / name, self.dtype)
            (self._weights, up), self._adapter = weights.once(lambda: self._told_to_load(home / name, version)), ""
        else:
            base = home / f"{name}-base" if not self._adapter or weights.once(self._anew) else None
            if base is not None:
                part.base.save(base, self.dtype)
            part.save(home / name)
            self._weights, up = weights.once(lambda: self._told_to_load(base, version, adapter=home / name))
            self._adapter = self._weights
            if base is not None:
                shutil.rmtree(self._home / base.name, ignore_errors=True)
        self.roll.only(up)
        if before and before != self._weights:
            shutil.rmtree(self._home / before, ignore_errors=True)

    def rest(self) -> None:
        """Do nothing: a server has its own memory."""

    def serve(self, feed: Feed, sampling: Sampling) -> Iterator[tuple[int, Completion] | None]:
        """Yield completions as they finish, and keep up to `concurrency` requests per server in progress.

        A group or a conversation goes to one server, which has its prompt or earlier turns cached. Other requests go to the least busy
        server.
        """
        loads, asked, again = {server: Load(self.concurrency) for server in self.servers}, dict[int, Request](), list[int]()

        def calls(room: int) -> Calls[Completion | Gone] | None:
            more = feed.take(max(0, room - len(again)))
            asked.update(more or ())
            if more is None and not again:
                return None
            numbers = [*again, *(number for number, _ in more or ())]
            again.clear()
            return [(number, self._call(number, asked[number], sampling, loads)) for number in numbers]

        ended: Ended[Completion | Gone] = SimpleQueue()
        feed.notify = lambda: ended.put(None)
        try:
            with closing(self._awaited(calls, ended, lambda left: f"with {left} answers in progress")) as answers:
                for given in answers:
                    if given is None:
                        yield None
                        continue
                    number, found = given
                    for load in loads.values():
                        load.remove(number)
                    if isinstance(found, Gone):
                        self.roll.lose(found.server, f"{found.why}, with {len(asked)} answers in progress")
                        again.append(number)
                        yield None
                    else:
                        del asked[number]
                        yield number, found
        finally:
            feed.notify = None

    def _call(self, number: int, request: Request, sampling: Sampling, loads: Mapping[Http, Load]) -> Callable[[], Completion | Gone]:
        room_for(request, self.where, self.max_model_len)
        group, up = group_of(request), self.roll.up
        server = up[chosen([loads[server] for server in up], request, group) or 0]
        loads[server].add(number, request, group)
        return partial(self.roll.or_gone, server, partial(self._answer, server, request, sampling))

    def _awaited(
        self, calls: Callable[[int], Calls[T] | None], ended: Ended[T], told: Callable[[int], str]
    ) -> Generator[tuple[int, T] | None]:
        """Run calls in threads; yield each call's number and result as it finishes, and None from time to time.

        `calls(n)` returns at most n further calls, and None after the last one. If nothing finishes for a while, the servers' health is
        checked; `told` describes the pending calls.
        """
        pool = ThreadPoolExecutor(self.concurrency * len(self.servers), thread_name_prefix="vllm")
        waiting: dict[Future[T], int] = {}
        heard = time.monotonic()
        try:
            while (more := calls(max(0, self.concurrency * len(self.roll.up) - len(waiting)))) is not None or waiting:
                heard = heard if waiting else time.monotonic()
                for number, call in more or ():
                    future = pool.submit(call)
                    waiting[future] = number
                    future.add_done_callback(ended.put)
                done: Future[T] | None = None
                with suppress(Empty):
                    done = ended.get(timeout=min(LOOK_S, self.patience.heartbeat_s)) if waiting else None
                if done is None:
                    if waiting and time.monotonic() - heard > self.patience.heartbeat_s:
                        self._pulse(told(len(waiting)))
                        heard = time.monotonic()
                    yield None
                    continue
                try:
                    given = done.result()
                except NoReply as error:
                    raise SamplerError(f"{error}, {told(len(waiting))}. {AGAIN}") from None
                yield waiting.pop(done), given
                heard = time.monotonic()
        finally:
            if waiting:
                pool.shutdown(wait=False, cancel_futures=True)
                while not all(future.done() for future in waiting):  # repeat: a thread may open a connection after the first abort
                    self.close_connections()
                    time.sleep(0.05)
            pool.shutdown(wait=True)

    def scorers(self) -> dict[str, Callable[[Sequence[int]], list[float]]]:
        """Return one scoring function for each active server, so that every weight update is checked."""
        return {f"the vLLM server at {address(server)}": partial(self._score, server) for server in self.roll.up}

    def close_connections(self) -> None:
        """Abort all requests in progress."""
        for server in self.servers:
            server.abort()

    def close(self) -> None:
        """Close the connections and remove the weights that were sent. The servers keep running: this client did not start them."""
        if self._transfer is not None:
            self._transfer.close()
        for server in self.servers:
            server.close()
        shutil.rmtree(self._home, ignore_errors=True)

    def _told_to_load(self, folder: Path | None, version: int, adapter: Path | None = None) -> tuple[str, list[str]]:
        """Let each server load the written weights and clear its cache; return the name of the weights, and the addresses that have them.

        `folder` None: only the adapter is new. A server that does not respond is lost, if others are left.
        """
        if folder is not None:
            self._done(self.roll.up, "/collective_rpc", {"method": "reload_weights", "kwargs": {"weights_path": str(folder)}})
        if self._adapter:
            self._done(self.roll.up, OLD_ADAPTER, {"lora_name": self._adapter}, strict=False)
        if adapter is not None:
            # under a new name: vLLM would re-read an adapter that was replaced in place at every step
            self._done(self.roll.up, ADAPTERS, {"lora_name": adapter.name, "lora_path": str(adapter)})
        for server, reply in self._done(self.roll.up, "/reset_prefix_cache").items():
            if not is_cleared(reply):
                raise SamplerError(f"{server.url} did not reset its prefix cache for version {version}: another client uses it. {AGAIN}")
        name = f"{self._run}-{version}"
        self._done(self.roll.up, "/update_weight_version", {"new_version": name})
        return name, [address(server) for server in self.roll.up]

    def _take_adapters(self) -> bool:
        """Return whether all servers can load adapters at run time; a server that cannot has no such path."""
        return all(reply.status != 404 for reply in self._done(self.roll.up, ADAPTERS, {}, strict=False).values())

    def _anew(self) -> bool:
        """Return whether a server lost its weights because it was restarted: then it needs the frozen ones too."""
        told = self._done(self.roll.up, "/weight_info", method="GET", strict=False)
        return any(reply.status != 200 or f'"{self._weights}"'.encode() not in reply.body for reply in told.values())

    def _named(self, body: dict[str, Any]) -> dict[str, Any]:
        """Add the name of the adapter to a request, if there is one."""
        return body | ({"model": self._adapter} if self._adapter else {})

    def _answer(self, server: Http, request: Request, sampling: Sampling) -> Completion:
        body = self._named({"token_ids": list(request.prompt), "sampling_params": settings(request, sampling)})
        return completion_of(server, self._choice(server, body), self._weights, sampling, request.max_tokens)

    def _score(self, server: Http, tokens: Sequence[int]) -> list[float]:
        params = {"max_tokens": 1, "temperature": 0.0, "prompt_logprobs": 0, "detokenize": False}
        replies = self._done([server], GENERATE, self._named({"token_ids": list(tokens), "sampling_params": params}))
        if server not in replies:
            raise Unfit(f"{server.url} was lost while it scored the probe")
        try:
            return scores_of(server, replies[server], tokens)
        except Unfit as error:
            self.roll.lose(server, str(error))
            raise

    def _choice(self, server: Http, body: dict[str, Any]) -> dict[str, Any]:
        reply = server.ask("POST", GENERATE, body, until=time.monotonic() + self.patience.deadline_s)
        if reply.status == 404 and "model" in body:
            raise Unfit(f"{server.told(reply)}; it was restarted, or another client removed the adapter. {AGAIN}")
        if fails(reply) and not self.roll.alone(server):
            raise Unfit(server.told(reply))
        return choice_of(server, reply)

    def _done(
        self, servers: Sequence[Http], path: str, *body: Any, method: str = "POST", strict: bool = True, hasty: bool = False
    ) -> dict[Http, Reply]:
        """Send a command to several servers at once, with one body or one for each, and collect the replies.

        `strict`: failures raise one error. A server that does not respond is lost, and has no reply. `hasty`: stop waiting at the first
        failure, because the other servers wait for the failed one.
        """
        until, bodies = time.monotonic() + self.patience.deadline_s, cycle(body or [None])
        asks = [partial(server.ask, method, path, next(bodies), until=until) for server in servers]
        left: Calls[Reply | Gone] = [(i, partial(self.roll.or_gone, server, asks[i])) for i, server in enumerate(servers)]

        def commands(room: int) -> Calls[Reply | Gone] | None:
            sent, left[:room] = left[:room], []
            return sent if sent or left else None

        replies, faults, failed = dict[Http, Reply](), dict[int, str](), False
        with closing(self._awaited(commands, SimpleQueue(), lambda _: f"during {path}")) as ended:
            for i, reply in filter(None, ended):
                if isinstance(reply, Gone):
                    self.roll.lose(reply.server, f"{reply.why}, during {path}")
                    continue
                faults[i] = fault_of(servers[i], path, reply) if strict else ""
                if not faults[i]:
                    replies[servers[i]] = reply
                elif self._weights and fails(reply) and not self.roll.alone(servers[i]):  # it has loaded weights before
                    self.roll.lose(servers[i], faults[i])
                else:
                    failed = True
                    if hasty:
                        break
        if failed:
            raise SamplerError("; ".join(faults[i] for i in sorted(faults) if faults[i]))
        return {server: replies[server] for server in servers if server in replies}

    def _pulse(self, awaited: str) -> None:
        """Check the health of the servers. An unhealthy one is marked as lost; SamplerError if it is the last."""
        self.roll.abort_lost()
        for server in self.roll.up:
            try:
                reply = server.ask("GET", "/health", until=time.monotonic() + self.patience.heartbeat_s)
                fault = "" if reply.status == 200 else f"{server.told(reply)}: its engine is dead, {awaited}"
            except NoReply as error:
                fault = f"{error}: its health check failed, {awaited}"
            if fault:
                self.roll.lose(server, fault)

    def _met(self, server: Http) -> int:
        return met(server, self.patience.start_s, self._choice)

    def _met_again(self, server: Http) -> None:
        """Check a returning server like at the start."""
        if (length := self._met(server)) < self.max_model_len:
            raise SamplerError(f"{server.url} takes {length} tokens now, and {self.max_model_len} are needed")
