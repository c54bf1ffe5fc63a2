"""Pool of servers with health tracking. A lost server is checked at growing intervals, and returns with the next weights."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

from rlvr.errors import RlvrError, SamplerError
from rlvr.samplers._http import HttpClient, NoReply
from rlvr.samplers._servers.replies import RESUME_HINT, BadServerReply

T = TypeVar("T")
FIRST_CHECK_INTERVAL_S, MAX_CHECK_INTERVAL_S = 1.0, 300.0
"""Interval of health checks of a lost server: at first, and at most. It doubles while the server is not healthy."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LostServerResult:
    """Returned instead of a result if the server was lost meanwhile, and others are left.

    >>> LostServerResult(HttpClient("http://localhost:8000"), "nothing listens").reason
    'nothing listens'
    """

    server: HttpClient
    reason: str


class ServerPool:
    """The servers of a run: the active ones, and the lost ones.

    >>> one, two = HttpClient("http://one:8000"), HttpClient("http://two:8000")
    >>> pool = ServerPool([one, two], log=lambda line: None)
    >>> pool.mark_lost(two, "nothing listens at http://two:8000"); pool.active == [one]
    True
    """

    def __init__(self, servers: Sequence[HttpClient], *, log: Callable[[str], None] | None = None) -> None:
        self.servers, self.active, self.is_fixed = list(servers), list(servers), False
        """`is_fixed`: no server may be lost, because they depend on each other."""
        self.log = log or logger.warning
        self._lost_servers = dict[HttpClient, tuple[float, float]]()
        """By lost server: the time of its next health check, and the current interval."""

    def cannot_be_lost(self, server: HttpClient) -> bool:
        """Return whether this server cannot be lost, because it is the last one or the pool is fixed."""
        return self.is_fixed or self.active == [server]

    def call_or_lost(self, server: HttpClient, call: Callable[[], T]) -> T | LostServerResult:
        """Call a server and return the result; a `LostServerResult` if the call failed and other servers are left."""
        if server not in self.active:
            return LostServerResult(server, f"{server.url} is lost")
        try:
            return call()
        except (NoReply, BadServerReply) as error:
            if self.cannot_be_lost(server):
                raise
            return LostServerResult(server, str(error))

    def mark_lost(self, server: HttpClient, reason: str) -> None:
        """Mark a server as lost, and abort its requests. Raises SamplerError if it is the last one."""
        if server not in self.active:
            return
        if self.cannot_be_lost(server):
            raise SamplerError(f"{reason}. {RESUME_HINT}")
        self.active = [other for other in self.active if other is not server]
        self._lost_servers[server] = (time.monotonic() + FIRST_CHECK_INTERVAL_S, FIRST_CHECK_INTERVAL_S)
        server.abort()
        self.log(f"{server.url} is lost, the others get its requests until it loads new weights: {reason}")

    def abort_requests_to_lost_servers(self) -> None:
        """Abort requests that a thread sent to a server after it was lost."""
        for server in self._lost_servers:
            server.abort()

    def restore_healthy(self, timeout_s: float, wait_and_get_max_length: Callable[[HttpClient], object]) -> None:
        """Restore lost servers that are healthy and that `wait_and_get_max_length` accepts; called before new weights are sent. All are checked at
        once.
        """
        due = [server for server, (at, _) in self._lost_servers.items() if time.monotonic() >= at]
        if not due:
            return

        def healthy(server: HttpClient) -> str:
            try:
                reply = server.request("GET", "/health", deadline=time.monotonic() + timeout_s)
                if reply.status != 200:
                    return server.format_error(reply)
                wait_and_get_max_length(server)
            except RlvrError as error:
                return str(error)
            return ""

        with ThreadPoolExecutor(len(due), thread_name_prefix="vllm") as pool:
            for server, fault in zip(due, pool.map(healthy, due), strict=True):
                if fault:
                    pause = min(2 * self._lost_servers[server][1], MAX_CHECK_INTERVAL_S)
                    self._lost_servers[server] = (time.monotonic() + pause, pause)
                else:
                    del self._lost_servers[server]
                    self.active = [other for other in self.servers if other not in self._lost_servers]
                    self.log(f"{server.url} is healthy again and gets the next weights")

    def set_active(self, addresses: Sequence[str]) -> None:
        """Set the active servers by address, as found by the main process: only these have the newest weights."""
        self.active = [server for server in self.servers if get_base_url(server) in addresses]
        for server in self.servers:
            if server in self.active:
                self._lost_servers.pop(server, None)
            else:
                self._lost_servers.setdefault(server, (time.monotonic() + FIRST_CHECK_INTERVAL_S, FIRST_CHECK_INTERVAL_S))


def get_base_url(server: HttpClient) -> str:
    """Return the address that identifies a server in all processes. Several may share a host, under different paths.

    >>> get_base_url(HttpClient("http://host:8000/a/"))
    'http://host:8000/a'
    """
    return server.url + server.path
