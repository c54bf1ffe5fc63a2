"""Client for separate vLLM servers, given by URL: token ids in and out, weights loaded through vLLM's API.

    VLLM_SERVER_DEV_MODE=1 vllm serve DIR --logprobs-mode processed_logprobs --enable-scale-out

Each set of weights is sent with a unique name, and each completion reports the name of the weights that sampled it. So a
server that was restarted, or got weights from another client, is detected at its first completion. While requests are
pending, the health of the servers is checked; every wait has a deadline.

If all servers can load adapters at run time (VLLM_ALLOW_RUNTIME_LORA_UPDATING=1 and --enable-lora --max-lora-rank R), the frozen
weights of a model with an adapter are sent once and then the adapter alone; otherwise merged weights are sent.

vLLM's CPU build has no `vllm` command (use `python -m vllm.entrypoints.openai.api_server --model DIR`), and packs an output head
that is tied to the embeddings only once: it can serve such a model, but not load new weights; the probe reports that.
"""

from __future__ import annotations

import shutil
import time
import uuid
from collections.abc import Callable, Generator, Iterator, Sequence
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
from rlvr.samplers._dialect import finished, room_for, settings
from rlvr.samplers._http import Http, NoReply, Reply
from rlvr.samplers._local.balance import Load, chosen, group_of
from rlvr.samplers._servers.patience import Patience
from rlvr.samplers._servers.transfer import BY_NCCL, Transfer
from rlvr.samplers._vllm_version import check_version

T = TypeVar("T")
Calls: TypeAlias = list[tuple[int, Callable[[], T]]]
"""What to do in a thread, each with the number that its result is returned with."""
Ended: TypeAlias = SimpleQueue[Future[T] | None]
"""Calls that have ended, and None where there may be more to send."""
COMMAND = "VLLM_SERVER_DEV_MODE=1 vllm serve DIR --logprobs-mode processed_logprobs --enable-scale-out"
GENERATE = "/inference/v1/generate"
ORDERS = ("/collective_rpc", "/reset_prefix_cache", "/update_weight_version")
ADAPTERS, OLD_ADAPTER = "/v1/load_lora_adapter", "/v1/unload_lora_adapter"
PREFIX = "rlvr-weights-"
LOOK_S = 0.05
"""How often the caller gets a chance to look after other things while nothing arrives."""
AGAIN = "Fix it, then continue with `rlvr train ... --resume`; no training progress is lost"


class Servers:
    """One or more vLLM servers with the same weights.

    >>> Servers(["http://localhost:8000"], Patience(), concurrency=64, folder=None)        # doctest: +SKIP
    """

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
        """`adapters`: send them apart from the weights, if all servers take them. `transfer`: files, or a backend of vLLM's."""
        self.patience, self.concurrency, self.dtype = patience, concurrency, dtype
        self.servers = [Http(url) for url in urls]
        self.where = "the vLLM server at " + " and ".join(server.url for server in self.servers)
        try:
            sweep(PREFIX, folder)
            self._home = own_folder(PREFIX, folder)
            self._home.chmod(0o700 if folder is None else 0o755)  # a server that reads a shared folder may run as another user
        except OSError as error:
            raise ConfigError(f"weights_folder {folder} cannot be written to: {error.strerror}; give an existing folder") from error
        self._run, self._weights = uuid.uuid4().hex[:12], ""
        self._adapters: bool | None = None if adapters else False
        """Whether adapters are sent apart; None: the servers have not been asked yet."""
        self._adapter = ""
        """The name of the adapter that completions are sampled with; empty: there is none apart from the weights."""
        self._transfer: Transfer | None = None
        try:
            self.max_model_len = min(self._met(server) for server in self.servers)
            if transfer != "files":
                self._transfer = Transfer(transfer, self.servers, self._done, self.patience.deadline_s)
        except BaseException:
            self.close()
            raise

    def take(self, weights: Weights, version: int) -> None:
        """Load new weights into every server. With several processes the main one talks to the servers, and all get the result."""
        if self._transfer is not None:
            self._transfer.send(weights, self.dtype)
            self._weights = weights.once(lambda: self._told_to_load(None, version))
            return
        name, before = f"{self._run}-{version}", self._weights
        home = Path(weights.once(lambda: str(self._home)))
        part = weights.adapter() if self._adapters is not False else None
        if part is not None and self._adapters is None:
            self._adapters = weights.once(self._take_adapters)
        if part is None or not self._adapters:
            weights.save(home / name, self.dtype)
            self._weights, self._adapter = weights.once(lambda: self._told_to_load(home / name, version)), ""
        else:
            base = home / f"{name}-base" if not self._adapter or weights.once(self._anew) else None
            if base is not None:
                part.base.save(base, self.dtype)
            part.save(home / name)
            self._weights = self._adapter = weights.once(lambda: self._told_to_load(base, version, adapter=home / name))
            if base is not None:
                shutil.rmtree(self._home / base.name, ignore_errors=True)
        if before and before != self._weights:
            shutil.rmtree(self._home / before, ignore_errors=True)

    def rest(self) -> None:
        """Nothing to do: a server has its own memory."""

    def serve(self, feed: Feed, sampling: Sampling) -> Iterator[tuple[int, Completion] | None]:
        """Yield completions as they finish, and send a waiting request for each: `concurrency` for each server are in progress.

        A group goes to one server, which computes its prompt once, and so does each conversation: its cache has the earlier turns. Other
        requests go where least is in progress.
        """
        loads = [Load(self.concurrency) for _ in self.servers]

        def calls(room: int) -> Calls[Completion] | None:
            more = feed.take(room)
            return None if more is None else [(number, self._call(number, request, sampling, loads)) for number, request in more]

        ended: Ended[Completion] = SimpleQueue()
        feed.notify = lambda: ended.put(None)
        try:
            with closing(self._awaited(calls, ended, lambda left: f"with {left} answers in progress")) as answers:
                for given in answers:
                    if given is not None:
                        for load in loads:
                            load.remove(given[0])
                    yield given
        finally:
            feed.notify = None

    def _call(self, number: int, request: Request, sampling: Sampling, loads: Sequence[Load]) -> Callable[[], Completion]:
        room_for(request, self.where, self.max_model_len)
        group = group_of(request)
        place = chosen(loads, request, group) or 0
        loads[place].add(number, request, group)
        return partial(self._answer, self.servers[place], request, sampling)

    def _awaited(
        self, calls: Callable[[int], Calls[T] | None], ended: Ended[T], told: Callable[[int], str]
    ) -> Generator[tuple[int, T] | None]:
        """Yield each call's number and result as it finishes, and None now and then.

        `calls` gives at most so many more of them, and None after the last one. If nothing finishes for a while, the servers are checked;
        `told` describes what is in progress.
        """
        most = self.concurrency * len(self.servers)
        pool = ThreadPoolExecutor(most, thread_name_prefix="vllm")
        waiting: dict[Future[T], int] = {}
        heard = time.monotonic()
        try:
            while (more := calls(most - len(waiting))) is not None or waiting:
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
        """One scorer for each server, so that every server's reload is checked."""
        return {f"the vLLM server at {server.url}": partial(self._score, server) for server in self.servers}

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

    def _told_to_load(self, folder: Path | None, version: int, adapter: Path | None = None) -> str:
        """Let each server load what was written and clear its cache; return the name of the weights. None: only the adapter is new."""
        if folder is not None:
            self._done(self.servers, "/collective_rpc", {"method": "reload_weights", "kwargs": {"weights_path": str(folder)}})
        if self._adapter:
            self._done(self.servers, OLD_ADAPTER, {"lora_name": self._adapter}, strict=False)
        if adapter is not None:
            # under a new name: vLLM would read one that was replaced in place from its files again at every step
            self._done(self.servers, ADAPTERS, {"lora_name": adapter.name, "lora_path": str(adapter)})
        for server, reply in zip(self.servers, self._done(self.servers, "/reset_prefix_cache"), strict=True):
            if not reply.json().get("success"):
                raise SamplerError(f"{server.url} did not reset its prefix cache for version {version}: another client uses it. {AGAIN}")
        name = f"{self._run}-{version}"
        self._done(self.servers, "/update_weight_version", {"new_version": name})
        return name

    def _take_adapters(self) -> bool:
        """Whether all servers can load adapters at run time; a server that cannot has no such path."""
        return all(reply.status != 404 for reply in self._done(self.servers, ADAPTERS, {}, strict=False))

    def _anew(self) -> bool:
        """Whether a server has other weights than those it was sent last, because it was restarted: then it needs the frozen ones too."""
        told = self._done(self.servers, "/weight_info", method="GET", strict=False)
        return any(reply.status != 200 or f'"{self._weights}"'.encode() not in reply.body for reply in told)

    def _named(self, body: dict[str, Any]) -> dict[str, Any]:
        """A request with the name of the adapter, if there is one."""
        return body | ({"model": self._adapter} if self._adapter else {})

    def _answer(self, server: Http, request: Request, sampling: Sampling) -> Completion:
        body = self._named({"token_ids": list(request.prompt), "sampling_params": settings(request, sampling)})
        choice = self._choice(server, body)
        spans = {span["version"] for span in choice.get("weight_versions") or []}
        if spans != {self._weights} and self._weights:
            raise SamplerError(
                f"{server.url} sampled with the weights {', '.join(sorted(spans)) or '(no name)'}, but {self._weights} were sent. "
                f"It was restarted, or another client loads weights into it. {AGAIN}"
            )
        logprobs = [float(entry["logprob"]) for entry in choice["logprobs"]["content"]]
        return finished([int(token) for token in choice["token_ids"]], logprobs, str(choice["finish_reason"]), sampling)

    def _score(self, server: Http, tokens: Sequence[int]) -> list[float]:
        params = {"max_tokens": 1, "temperature": 0.0, "prompt_logprobs": 0, "detokenize": False}
        [reply] = self._done([server], GENERATE, self._named({"token_ids": list(tokens), "sampling_params": params}))
        found = reply.json()["prompt_logprobs"]
        return [float(scores[str(token)]["logprob"]) for token, scores in zip(tokens[1:], found[1:], strict=True)]

    def _choice(self, server: Http, body: dict[str, Any]) -> dict[str, Any]:
        reply = server.ask("POST", GENERATE, body, until=time.monotonic() + self.patience.deadline_s)
        if reply.status == 404 and "model" in body:
            raise SamplerError(f"{server.told(reply)}; it was restarted, or another client removed the adapter. {AGAIN}")
        try:
            choice = reply.json()["choices"][0]
            if not isinstance(choice["token_ids"], list) or not isinstance(choice["logprobs"]["content"], list):
                raise TypeError("not lists")
            return dict(choice)
        except (ValueError, LookupError, TypeError) as error:
            raise SamplerError(
                f"{server.told(reply)}; that is not a completion with token ids and log-probabilities; start it as `{COMMAND}`"
            ) from error

    def _done(
        self, servers: Sequence[Http], path: str, *body: Any, method: str = "POST", strict: bool = True, hasty: bool = False
    ) -> list[Reply]:
        """Send a command to several servers at once, with one body or one for each, and wait. Failures are one error, if `strict`.

        `hasty`: the first failure ends the wait, because the others wait for the server that failed.
        """
        until, bodies = time.monotonic() + self.patience.deadline_s, cycle(body or [None])
        left: Calls[Reply] = [(i, partial(server.ask, method, path, next(bodies), until=until)) for i, server in enumerate(servers)]

        def commands(room: int) -> Calls[Reply] | None:
            sent, left[:room] = left[:room], []
            return sent if sent or left else None

        replies: dict[int, Reply] = {}
        faults: list[str] = []
        with closing(self._awaited(commands, SimpleQueue(), lambda _: f"during {path}")) as ended:
            for i, reply in filter(None, ended):
                replies[i] = reply
                if strict and (fault := self._fault(servers[i], path, reply)):
                    faults.append(fault)
                    if hasty:
                        break
        if faults:
            raise SamplerError("; ".join(faults))
        return [replies[i] for i in range(len(servers))]

    def _fault(self, server: Http, path: str, reply: Reply) -> str:
        """What is wrong with the reply to a command; empty if nothing is."""
        if reply.status == 404 and path in ORDERS:
            return f"{server.url} has no {path}, so it cannot load weights; start it as `{COMMAND}`"
        hints = {
            "/collective_rpc": " Check that it serves the model that is trained.",
            "/init_weight_transfer_engine": f" Start it with {BY_NCCL}.",
            "/start_weight_update": " If a run was killed while it sent weights, restart the server.",
            ADAPTERS: " Start it with --enable-lora --max-lora-rank RANK, or send merged weights (enable_lora: false).",
        }
        return "" if reply.status == 200 else f"{server.told(reply)}, for {path}.{hints.get(path, '')} {AGAIN}"

    def _pulse(self, awaited: str) -> None:
        """Check the health of the servers; raise SamplerError if one does not respond or is not healthy."""
        for server in self.servers:
            try:
                reply = server.ask("GET", "/health", until=time.monotonic() + self.patience.heartbeat_s)
            except NoReply as error:
                raise SamplerError(f"{error}: its health check failed, {awaited}. {AGAIN}") from None
            if reply.status != 200:
                raise SamplerError(f"{server.told(reply)}: its engine is dead, {awaited}. {AGAIN}")

    def _met(self, server: Http) -> int:
        """Wait for the server to start and check its version and its log-probabilities; return its longest sequence."""
        until = time.monotonic() + self.patience.start_s
        while True:
            try:
                if server.ask("GET", "/health", until=until).status == 200:
                    break
                told = "it runs but is not healthy"
            except NoReply as error:
                told = str(error)
            if time.monotonic() + 0.5 > until:
                raise SamplerError(f"no vLLM server at {server.url} within {self.patience.start_s:g} s ({told}); start it as `{COMMAND}`")
            time.sleep(0.5)
        try:
            check_version(str(server.ask("GET", "/version", until=until).json()["version"]), server.url, "server")
            length = int(server.ask("GET", "/v1/models", until=until).json()["data"][0]["max_model_len"])
            sure = self._choice(
                server, {"token_ids": [0, 0], "sampling_params": {"max_tokens": 1, "top_k": 1, "logprobs": 0, "ignore_eos": True}}
            )
        except (ValueError, LookupError, TypeError) as error:
            raise ConfigError(f"{server.url} is not a vLLM server: {type(error).__name__}: {error}; start one as `{COMMAND}`") from error
        if abs(sure["logprobs"]["content"][0]["logprob"]) > 1e-6:  # with top_k 1, the only possible token
            raise ConfigError(f"{server.url} reports raw log-probabilities, not the sampling distribution's; start it as `{COMMAND}`")
        return length
