"""Client for separate vLLM servers, given by URL: token ids in and out, weights loaded through vLLM's API.

    VLLM_SERVER_DEV_MODE=1 vllm serve DIR --logprobs-mode processed_logprobs --enable-scale-out

Each set of weights has a unique name, and each completion reports the name of the weights that sampled it. So a
server that was restarted, or got weights from another client, is detected at its first completion. While requests are
pending, the health of the servers is checked; every wait has a timeout. The one of completions counts from a server's last token, so that
long completions of a healthy server take as long as they take. With several servers, one that does not respond, fails or has
other weights is marked as lost; the others get its requests, until it is healthy again and has loaded new weights. The run ends when the
last server is lost.

If all servers can load adapters at run time (VLLM_ALLOW_RUNTIME_LORA_UPDATING=1 and --enable-lora --max-lora-rank R), the frozen
weights of a model with an adapter are sent once and then the adapter alone; otherwise merged weights are sent.

vLLM's CPU build has no `vllm` command (use `python -m vllm.entrypoints.openai.api_server --model DIR`), and packs an output head
that is tied to the embeddings only once: it can serve such a model, but not load new weights; the probe reports that.
"""

from __future__ import annotations

import re
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

from rlvr.contracts import Completion, Request, RequestQueue, SamplingParams, Weights
from rlvr.errors import ConfigError, SamplerError
from rlvr.runs.folder_owner import create_owned_folder, remove_orphaned_folders
from rlvr.samplers._http import HttpClient, HttpResponse, NoReply
from rlvr.samplers._local.load_balancer import EngineLoad, choose_engine, make_group_key
from rlvr.samplers._servers.replies import (
    LOAD_ADAPTER_PATH,
    RESUME_HINT,
    BadServerReply,
    confirms_cache_reset,
    find_failure,
    is_unavailable,
    parse_choice,
    parse_completion,
    parse_prompt_logprobs,
    wait_and_get_max_length,
)  # fmt: skip
from rlvr.samplers._servers.server_pool import LostServerResult, ServerPool, get_base_url
from rlvr.samplers._servers.timeouts import Timeouts
from rlvr.samplers._servers.weight_transfer import WeightTransfer
from rlvr.samplers._vllm_format import check_request_length, make_vllm_sampling_params

T = TypeVar("T")
PendingCalls: TypeAlias = list[tuple[int, Callable[[], T]]]
"""Functions to call in threads, each with the number of its result."""
EndedCalls: TypeAlias = SimpleQueue[Future[T] | None]
"""Ended calls, and None if there may be new requests."""
GENERATE_PATH = "/inference/v1/generate"
UNLOAD_ADAPTER_PATH = "/v1/unload_lora_adapter"
FOLDER_PREFIX = "rlvr-weights-"
POLL_INTERVAL_S = 0.05
"""Interval at which control returns to the caller while nothing arrives."""
WATCHED_TIMEOUT_S = 1e7
"""Timeout of the request of a completion: none, because `ProgressWatch` ends it."""
TOKEN_COUNTER = re.compile(rb"^vllm:(?:prompt|generation)_tokens_total\S* +([0-9.eE+]+)", re.MULTILINE)
"""Samples of the two counters in the text of `/metrics` that grow with every step of the engine."""


class ProgressWatch:
    """When a server last made progress: a completion, or a higher count of tokens in its metrics.

    The metrics are requested only after `heartbeat_timeout_s` without a completion, and then as often. A server without metrics makes
    progress by its completions alone.
    """

    def __init__(self, server: HttpClient, timeouts: Timeouts) -> None:
        self.server, self.timeouts = server, timeouts
        self.num_tokens = -1.0
        self.note_progress()

    def note_progress(self) -> None:
        """Record that the server has made progress now, so that its timeout starts again."""
        self.progress_at = self.checked_at = time.monotonic()

    def is_overdue(self, has_requests: bool) -> bool:
        """Whether the server has requests and made no progress for `completion_timeout_s`."""
        if not has_requests:
            self.note_progress()
        if time.monotonic() - self.checked_at <= min(self.timeouts.heartbeat_timeout_s, self.timeouts.completion_timeout_s):
            return False
        before, self.num_tokens = self.num_tokens, self._count_tokens()
        if -1 < before < self.num_tokens:
            self.note_progress()
        self.checked_at = time.monotonic()
        return self.checked_at - self.progress_at > self.timeouts.completion_timeout_s

    def _count_tokens(self) -> float:
        """Return the number of tokens that the server has processed so far; the last known one if it does not say."""
        with suppress(NoReply, ValueError):
            reply = self.server.request("GET", "/metrics", deadline=time.monotonic() + self.timeouts.heartbeat_timeout_s)
            if reply.status == 200 and (counts := TOKEN_COUNTER.findall(reply.body)):
                return sum(map(float, counts))
        return self.num_tokens


class ServerEngine:
    """Client of one or more vLLM servers with the same weights."""

    def __init__(
        self,
        urls: Sequence[str],
        timeouts: Timeouts,
        *,
        concurrency: int,
        folder: str | None,
        dtype: str | None = None,
        adapters: bool = False,
        transfer: str = "files",
    ) -> None:
        """Connect to the servers. `adapters`: send them separately, if all servers support it. `transfer`: files, or a backend of vLLM."""
        self.timeouts, self.concurrency, self.dtype = timeouts, concurrency, dtype
        self.servers = [HttpClient(url) for url in urls]
        self.pool = ServerPool(self.servers)
        self.name = "the vLLM server at " + " and ".join(server.url for server in self.servers)
        try:
            remove_orphaned_folders(FOLDER_PREFIX, folder)
            self._folder = create_owned_folder(FOLDER_PREFIX, folder)
            self._folder.chmod(0o700 if folder is None else 0o755)  # a server that reads a shared folder may run as another user
        except OSError as error:
            raise ConfigError(f"weights_folder {folder} cannot be written to: {error.strerror}; give an existing folder") from error
        self._run_id, self._weights_name = uuid.uuid4().hex[:12], ""
        self._sends_adapters: bool | None = None if adapters else False
        """Whether adapters are sent separately; None: not known yet."""
        self._adapter_name = ""
        """Name of the adapter of all requests; empty if there is no separate adapter."""
        self._transfer: WeightTransfer | None = None
        try:
            self.max_model_len = min(self._wait_until_ready(server) for server in self.servers)
            if transfer != "files":
                self.pool.is_fixed = True  # they form a group with the trainer
                self._transfer = WeightTransfer(transfer, self.servers, self._send_command, self.timeouts.completion_timeout_s)
        except BaseException:
            self.close()
            raise

    def update_weights(self, weights: Weights, version: int) -> None:
        """Load new weights into every server. With several processes, only the main one sends commands, and all get the result."""
        if self._transfer is not None:
            self._transfer.send(weights, self.dtype)
            self._weights_name, _ = weights.run_on_main(lambda: self._load_weights(None, version))
            return
        weights.run_on_main(lambda: self.pool.restore_healthy(self.timeouts.heartbeat_timeout_s, self._check_returned_server))
        name, before = f"{self._run_id}-{version}", self._weights_name
        home = Path(weights.run_on_main(lambda: str(self._folder)))
        part = weights.get_adapter() if self._sends_adapters is not False else None
        if part is not None and self._sends_adapters is None:
            self._sends_adapters = weights.run_on_main(self._can_load_adapters)
        if part is None or not self._sends_adapters:
            weights.save(home / name, self.dtype)
            (self._weights_name, up), self._adapter_name = weights.run_on_main(lambda: self._load_weights(home / name, version)), ""
        else:
            base = home / f"{name}-base" if not self._adapter_name or weights.run_on_main(self._needs_base_weights) else None
            if base is not None:
                part.base.save(base, self.dtype)
            part.save(home / name)
            self._weights_name, up = weights.run_on_main(lambda: self._load_weights(base, version, adapter=home / name))
            self._adapter_name = self._weights_name
            if base is not None:
                shutil.rmtree(self._folder / base.name, ignore_errors=True)
        self.pool.set_active(up)
        if before and before != self._weights_name:
            shutil.rmtree(self._folder / before, ignore_errors=True)

    def sleep(self) -> None:
        """Do nothing: a server has its own memory."""

    def stream_from_queue(self, queue: RequestQueue, sampling: SamplingParams) -> Iterator[tuple[int, Completion] | None]:
        """Yield completions as they finish, and keep up to `concurrency` requests per server in progress.

        A group or a conversation goes to one server, which has its prompt or earlier turns cached. Other requests go to the least busy
        server.
        """
        watches = {server: ProgressWatch(server, self.timeouts) for server in self.servers}
        loads, asked, again = {server: EngineLoad(self.concurrency) for server in self.servers}, dict[int, Request](), list[int]()

        def calls(room: int) -> PendingCalls[Completion | LostServerResult] | None:
            more = queue.pop(max(0, room - len(again)))
            asked.update(more or ())
            if more is None and not again:
                return None
            numbers = [*again, *(number for number, _ in more or ())]
            again.clear()
            return [(number, self._make_call(number, asked[number], sampling, loads)) for number in numbers]

        ended: EndedCalls[Completion | LostServerResult] = SimpleQueue()
        queue.on_requests_ready = lambda: ended.put(None)
        try:
            with closing(self._run_calls(calls, ended, lambda left: f"with {left} answers in progress")) as answers:
                for given in answers:
                    for server in self.pool.active:
                        if watches[server].is_overdue(bool(loads[server].running)):
                            pending = f"with {len(loads[server].running)} answers in progress"
                            self.pool.mark_lost(
                                server,
                                f"{server.url} generated no token within {self.timeouts.completion_timeout_s:g} s "
                                f"(completion_timeout_s), {pending}",
                            )
                    if given is None:
                        yield None
                        continue
                    number, found = given
                    for server, load in loads.items():
                        if load.remove(number):
                            watches[server].note_progress()
                    if isinstance(found, LostServerResult):
                        self.pool.mark_lost(found.server, f"{found.reason}, with {len(asked)} answers in progress")
                        again.append(number)
                        yield None
                    else:
                        del asked[number]
                        yield number, found
        finally:
            queue.on_requests_ready = None

    def _make_call(
        self, number: int, request: Request, sampling: SamplingParams, loads: Mapping[HttpClient, EngineLoad]
    ) -> Callable[[], Completion | LostServerResult]:
        check_request_length(request, self.name, self.max_model_len)
        group, up = make_group_key(request), self.pool.active
        server = up[choose_engine([loads[server] for server in up], request, group) or 0]
        loads[server].add(number, request, group)
        return partial(self.pool.call_or_lost, server, partial(self._complete, server, request, sampling))

    def _run_calls(
        self, calls: Callable[[int], PendingCalls[T] | None], ended: EndedCalls[T], describe: Callable[[int], str]
    ) -> Generator[tuple[int, T] | None]:
        """Run calls in threads; yield each call's number and result as it finishes, and None from time to time.

        `calls(n)` returns at most n further calls, and None after the last one. If nothing finishes for a while, the servers' health is
        checked; `describe` describes the pending calls.
        """
        pool = ThreadPoolExecutor(self.concurrency * len(self.servers), thread_name_prefix="vllm")
        waiting: dict[Future[T], int] = {}
        heard = time.monotonic()
        try:
            while (more := calls(max(0, self.concurrency * len(self.pool.active) - len(waiting)))) is not None or waiting:
                heard = heard if waiting else time.monotonic()
                for number, call in more or ():
                    future = pool.submit(call)
                    waiting[future] = number
                    future.add_done_callback(ended.put)
                done: Future[T] | None = None
                with suppress(Empty):
                    done = ended.get(timeout=min(POLL_INTERVAL_S, self.timeouts.heartbeat_timeout_s)) if waiting else None
                if done is None:
                    if waiting and time.monotonic() - heard > self.timeouts.heartbeat_timeout_s:
                        self._check_health(describe(len(waiting)))
                        heard = time.monotonic()
                    yield None
                    continue
                try:
                    given = done.result()
                except NoReply as error:
                    raise SamplerError(f"{error}, {describe(len(waiting))}. {RESUME_HINT}") from None
                yield waiting.pop(done), given
                heard = time.monotonic()
        finally:
            if waiting:
                pool.shutdown(wait=False, cancel_futures=True)
                while not all(future.done() for future in waiting):  # repeat: a thread may open a connection after the first abort
                    self.abort_requests()
                    time.sleep(0.05)
            pool.shutdown(wait=True)

    def get_logprob_scorers(self) -> dict[str, Callable[[Sequence[int]], list[float]]]:
        """Return one scoring function for each active server, so that every weight update is checked."""
        return {f"the vLLM server at {get_base_url(server)}": partial(self._score_tokens, server) for server in self.pool.active}

    def abort_requests(self) -> None:
        """Abort all requests in progress."""
        for server in self.servers:
            server.abort()

    def close(self) -> None:
        """Close the connections and remove the weights that were sent. The servers keep running: this client did not start them."""
        if self._transfer is not None:
            self._transfer.close()
        for server in self.servers:
            server.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _load_weights(self, folder: Path | None, version: int, adapter: Path | None = None) -> tuple[str, list[str]]:
        """Let each server load the written weights and clear its cache; return the name of the weights, and the addresses that have them.

        `folder` None: only the adapter is new. A server that does not respond is lost, if others are left.
        """
        if folder is not None:
            self._send_command(self.pool.active, "/collective_rpc", {"method": "reload_weights", "kwargs": {"weights_path": str(folder)}})
        if self._adapter_name:
            self._send_command(self.pool.active, UNLOAD_ADAPTER_PATH, {"lora_name": self._adapter_name}, strict=False)
        if adapter is not None:
            # under a new name: vLLM would re-read an adapter that was replaced in place at every step
            self._send_command(self.pool.active, LOAD_ADAPTER_PATH, {"lora_name": adapter.name, "lora_path": str(adapter)})
        for server, reply in self._send_command(self.pool.active, "/reset_prefix_cache").items():
            if not confirms_cache_reset(reply):
                raise SamplerError(
                    f"{server.url} did not reset its prefix cache for version {version}: another client uses it. {RESUME_HINT}"
                )
        name = f"{self._run_id}-{version}"
        self._send_command(self.pool.active, "/update_weight_version", {"new_version": name})
        return name, [get_base_url(server) for server in self.pool.active]

    def _can_load_adapters(self) -> bool:
        """Return whether all servers can load adapters at run time; a server that cannot has no such path."""
        return all(reply.status != 404 for reply in self._send_command(self.pool.active, LOAD_ADAPTER_PATH, {}, strict=False).values())

    def _needs_base_weights(self) -> bool:
        """Return whether a server lost its weights because it was restarted: then it needs the frozen ones too."""
        told = self._send_command(self.pool.active, "/weight_info", method="GET", strict=False)
        return any(reply.status != 200 or f'"{self._weights_name}"'.encode() not in reply.body for reply in told.values())

    def _add_adapter_name(self, body: dict[str, Any]) -> dict[str, Any]:
        """Add the name of the adapter to a request, if there is one."""
        return body | ({"model": self._adapter_name} if self._adapter_name else {})

    def _complete(self, server: HttpClient, request: Request, sampling: SamplingParams) -> Completion:
        body = self._add_adapter_name({"token_ids": list(request.prompt), "sampling_params": make_vllm_sampling_params(request, sampling)})
        return parse_completion(
            server, self._request_choice(server, body, WATCHED_TIMEOUT_S), self._weights_name, sampling, request.max_tokens
        )

    def _score_tokens(self, server: HttpClient, tokens: Sequence[int]) -> list[float]:
        params = {"max_tokens": 1, "temperature": 0.0, "prompt_logprobs": 0, "detokenize": False}
        replies = self._send_command(
            [server], GENERATE_PATH, self._add_adapter_name({"token_ids": list(tokens), "sampling_params": params})
        )
        if server not in replies:
            raise BadServerReply(f"{server.url} was lost while it scored the probe")
        try:
            return parse_prompt_logprobs(server, replies[server], tokens)
        except BadServerReply as error:
            self.pool.mark_lost(server, str(error))
            raise

    def _request_choice(self, server: HttpClient, body: dict[str, Any], timeout_s: float | None = None) -> dict[str, Any]:
        reply = server.request("POST", GENERATE_PATH, body, deadline=time.monotonic() + (timeout_s or self.timeouts.completion_timeout_s))
        if reply.status == 404 and "model" in body:
            raise BadServerReply(f"{server.format_error(reply)}; it was restarted, or another client removed the adapter. {RESUME_HINT}")
        if is_unavailable(reply) and not self.pool.cannot_be_lost(server):
            raise BadServerReply(server.format_error(reply))
        return parse_choice(server, reply)

    def _send_command(
        self, servers: Sequence[HttpClient], path: str, *body: Any, method: str = "POST", strict: bool = True, fail_fast: bool = False
    ) -> dict[HttpClient, HttpResponse]:
        """Send a command to several servers at once, with one body or one for each, and collect the replies.

        `strict`: failures raise one error. A server that does not respond is lost, and has no reply. `fail_fast`: stop waiting at the first
        failure, because the other servers wait for the failed one.
        """
        until, bodies = time.monotonic() + self.timeouts.completion_timeout_s, cycle(body or [None])
        asks = [partial(server.request, method, path, next(bodies), deadline=until) for server in servers]
        left: PendingCalls[HttpResponse | LostServerResult] = [
            (i, partial(self.pool.call_or_lost, server, asks[i])) for i, server in enumerate(servers)
        ]

        def commands(room: int) -> PendingCalls[HttpResponse | LostServerResult] | None:
            sent, left[:room] = left[:room], []
            return sent if sent or left else None

        replies, faults, failed = dict[HttpClient, HttpResponse](), dict[int, str](), False
        with closing(self._run_calls(commands, SimpleQueue(), lambda _: f"during {path}")) as ended:
            for i, reply in filter(None, ended):
                if isinstance(reply, LostServerResult):
                    self.pool.mark_lost(reply.server, f"{reply.reason}, during {path}")
                    continue
                faults[i] = find_failure(servers[i], path, reply) if strict else ""
                if not faults[i]:
                    replies[servers[i]] = reply
                elif (
                    self._weights_name and is_unavailable(reply) and not self.pool.cannot_be_lost(servers[i])
                ):  # it has loaded weights before
                    self.pool.mark_lost(servers[i], faults[i])
                else:
                    failed = True
                    if fail_fast:
                        break
        if failed:
            raise SamplerError("; ".join(faults[i] for i in sorted(faults) if faults[i]))
        return {server: replies[server] for server in servers if server in replies}

    def _check_health(self, pending_description: str) -> None:
        """Check the health of the servers. An unhealthy one is marked as lost; SamplerError if it is the last."""
        self.pool.abort_requests_to_lost_servers()
        for server in self.pool.active:
            try:
                reply = server.request("GET", "/health", deadline=time.monotonic() + self.timeouts.heartbeat_timeout_s)
                fault = "" if reply.status == 200 else f"{server.format_error(reply)}: its engine is dead, {pending_description}"
            except NoReply as error:
                fault = f"{error}: its health check failed, {pending_description}"
            if fault:
                self.pool.mark_lost(server, fault)

    def _wait_until_ready(self, server: HttpClient) -> int:
        return wait_and_get_max_length(server, self.timeouts.start_timeout_s, self._request_choice)

    def _check_returned_server(self, server: HttpClient) -> None:
        """Check a returning server like at the start."""
        if (length := self._wait_until_ready(server)) < self.max_model_len:
            raise SamplerError(f"{server.url} takes {length} tokens now, and {self.max_model_len} are needed")
