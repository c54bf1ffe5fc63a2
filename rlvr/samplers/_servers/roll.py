"""Pool of servers with health tracking. A lost server is checked at growing intervals, and returns with the next weights."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

from rlvr.errors import RlvrError, SamplerError
from rlvr.samplers._http import Http, NoReply
from rlvr.samplers._servers.replies import AGAIN, Unfit

T = TypeVar("T")
FIRST_S, LONGEST_S = 1.0, 300.0
"""Interval of health checks of a lost server: at first, and at most. It doubles while the server is not healthy."""


@dataclass(frozen=True, slots=True)
class Gone:
    """Returned instead of a result if the server was lost meanwhile, and others are left.

    >>> Gone(Http("http://localhost:8000"), "nothing listens").why
    'nothing listens'
    """

    server: Http
    why: str


class Roll:
    """The servers of a run: the active ones, and the lost ones.

    >>> one, two = Http("http://one:8000"), Http("http://two:8000")
    >>> roll = Roll([one, two], tell=lambda line: None)
    >>> roll.lose(two, "nothing listens at http://two:8000"); roll.up == [one]
    True
    """

    def __init__(self, servers: Sequence[Http], *, tell: Callable[[str], None] | None = None) -> None:
        self.servers, self.up, self.fixed = list(servers), list(servers), False
        """`fixed`: no server may be lost, because they depend on each other."""
        self.tell = tell or (lambda line: print(f"note: {line}", file=sys.stderr, flush=True))
        self._lost = dict[Http, tuple[float, float]]()
        """By lost server: the time of its next health check, and the current interval."""

    def alone(self, server: Http) -> bool:
        """Return whether this server cannot be lost, because it is the last one or the pool is fixed."""
        return self.fixed or self.up == [server]

    def or_gone(self, server: Http, call: Callable[[], T]) -> T | Gone:
        """Call a server and return the result; a `LostServer` if the call failed and other servers are left."""
        if server not in self.up:
            return Gone(server, f"{server.url} is lost")
        try:
            return call()
        except (NoReply, Unfit) as error:
            if self.alone(server):
                raise
            return Gone(server, str(error))

    def lose(self, server: Http, why: str) -> None:
        """Mark a server as lost, and abort its requests. Raises SamplerError if it is the last one."""
        if server not in self.up:
            return
        if self.alone(server):
            raise SamplerError(f"{why}. {AGAIN}")
        self.up = [other for other in self.up if other is not server]
        self._lost[server] = (time.monotonic() + FIRST_S, FIRST_S)
        server.abort()
        self.tell(f"{server.url} is lost, the others get its requests until it loads new weights: {why}")

    def abort_lost(self) -> None:
        """Abort requests that a thread sent to a server after it was lost."""
        for server in self._lost:
            server.abort()

    def back(self, timeout_s: float, meet: Callable[[Http], object]) -> None:
        """Restore lost servers that are healthy and that `meet` accepts; called before new weights are sent. All are checked at once."""
        due = [server for server, (at, _) in self._lost.items() if time.monotonic() >= at]
        if not due:
            return

        def healthy(server: Http) -> str:
            try:
                reply = server.ask("GET", "/health", until=time.monotonic() + timeout_s)
                if reply.status != 200:
                    return server.told(reply)
                meet(server)
            except RlvrError as error:
                return str(error)
            return ""

        with ThreadPoolExecutor(len(due), thread_name_prefix="vllm") as pool:
            for server, fault in zip(due, pool.map(healthy, due), strict=True):
                if fault:
                    pause = min(2 * self._lost[server][1], LONGEST_S)
                    self._lost[server] = (time.monotonic() + pause, pause)
                else:
                    del self._lost[server]
                    self.up = [other for other in self.servers if other not in self._lost]
                    self.tell(f"{server.url} is healthy again and gets the next weights")

    def only(self, addresses: Sequence[str]) -> None:
        """Set the active servers by address, as found by the main process: only these have the newest weights."""
        self.up = [server for server in self.servers if address(server) in addresses]
        for server in self.servers:
            if server in self.up:
                self._lost.pop(server, None)
            else:
                self._lost.setdefault(server, (time.monotonic() + FIRST_S, FIRST_S))


def address(server: Http) -> str:
    """Return the address that identifies a server in all processes. Several may share a host, under different paths.

    >>> address(Http("http://host:8000/a/"))
    'http://host:8000/a'
    """
    return server.url + server.path
