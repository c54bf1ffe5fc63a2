"""Environments behind a WebSocket, as served by OpenEnv: one connection for each conversation, without silent reconnects.

A failed connection is closed and stays closed: a reply after a reconnect would belong to another session.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from threading import Lock
from typing import Any
from urllib.error import URLError
from urllib.parse import urlsplit
from urllib.request import ProxyHandler, build_opener

from rlvr.envs.external._foreign_host import ForeignError, ForeignHost, ForeignInstanceProxy, ForeignProcessLost, ForeignRaised
from rlvr.errors import ConfigError, MissingExtra

MAX_MESSAGE_BYTES = 8 << 20
"""Longest message that is read, in bytes."""
START_TIMEOUT_S = 60.0
EXIT_TIMEOUT_S = 1.0
GUARD_PROGRAM = """
import os, signal, subprocess, sys, threading
server = subprocess.Popen(sys.argv[1:], stdin=subprocess.DEVNULL)
threading.Thread(target=lambda: (os.read(0, 1), os.killpg(0, signal.SIGKILL)), daemon=True).start()
os._exit(server.wait())
"""
"""Program that starts a server, and kills its process group when the pipe from this process closes, however this process ends."""
HIDDEN_FIELDS = ("done", "reward", "metadata")
"""Fields of an observation that the policy never reads: metadata may contain the answer."""
INVALID_ACTION_CODES = ("VALIDATION_ERROR", "INVALID_ACTION")


class WebSocketInstance(ForeignInstanceProxy):
    """Client of one session of an environment server (OpenEnv) over WebSocket. Any failure except a refused action ends the session."""

    def __init__(self, url: str, fields: Sequence[str], reset: Mapping[str, Any], *, call_timeout_s: float) -> None:
        from websockets.exceptions import WebSocketException
        from websockets.sync.client import connect

        self._connection_errors = (WebSocketException, OSError, EOFError)
        self._shown_fields, self._reset_data, self._call_timeout_s = tuple(fields), dict(reset), call_timeout_s
        self._lock, self._closed, self._exit_stack = Lock(), False, ExitStack()
        try:
            opening = connect(
                url, open_timeout=call_timeout_s, close_timeout=1.0, max_size=MAX_MESSAGE_BYTES, ping_interval=None, proxy=None
            )
            self._socket = self._exit_stack.enter_context(opening)
        except (*self._connection_errors, TimeoutError) as error:
            raise ForeignProcessLost(f"no connection to {url}: {_format_error(error)}") from error

    def call(self, method: str, *, timeout_s: float | None = None, **given: Any) -> Any:
        """Call `begin` or `act` with a timeout. A failure closes the connection."""
        if self._closed:
            raise ForeignProcessLost(f"{method}: the connection is closed")
        seconds = self._call_timeout_s if timeout_s is None else timeout_s
        try:
            if method == "reset":
                reply = self._exchange({"type": "reset", "data": {**self._reset_data, "seed": given["seed"]}}, seconds)
                if reply.get("done") is True:
                    raise ForeignError("reset: the episode is over before the first action")
                return self._format_observation(reply)
            reply = self._exchange({"type": "step", "data": given["move"]}, seconds)
        except ActionRefused as error:
            if method == "step":
                return {"text": f"That action was refused: {error.message}", "rewards": [], "over": False}
            self.close()
            raise
        except ForeignError:
            self.close()
            raise
        return self._parse_step(reply)

    def close(self) -> None:
        """End the session."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        with suppress(*self._connection_errors):
            self._socket.send(json.dumps({"type": "close"}))
        with suppress(*self._connection_errors):
            self._exit_stack.close()

    def _exchange(self, request: Any, seconds: float) -> dict[str, Any]:
        try:
            self._check_no_pending_message(request["type"])
            self._socket.send(json.dumps(request))
            reply = json.loads(self._socket.recv(timeout=seconds))
        except TimeoutError:
            raise ForeignProcessLost(f"{request['type']} returned nothing within {seconds:g} s") from None
        except self._connection_errors as error:
            raise ForeignProcessLost(f"{request['type']}: the connection ended ({_format_error(error)})") from error
        except (ValueError, RecursionError) as error:
            raise ForeignProcessLost(f"{request['type']}: the server wrote no JSON ({_format_error(error)})") from error
        data = reply.get("data") if isinstance(reply, dict) else None
        if not isinstance(data, dict) or reply.get("type") not in ("observation", "error"):
            raise ForeignProcessLost(f"{request['type']}: the server answered {reply!r:.200}")
        if reply["type"] == "error":
            code, why = str(data.get("code", "UNKNOWN")), str(data.get("message", ""))[:500]
            raise (ActionRefused if code in INVALID_ACTION_CODES else ForeignRaised)(code, why)
        return data

    def _check_no_pending_message(self, kind: str) -> None:
        """Raise ForeignProcessLost if there is an unexpected message, which would be mistaken for the reply to the next action."""
        with suppress(TimeoutError):
            found = self._socket.recv(timeout=0)
            raise ForeignProcessLost(f"{kind}: the server wrote {found!r:.80} before it was asked")

    def _parse_step(self, data: dict[str, Any]) -> dict[str, Any]:
        over, reward = data.get("done"), data.get("reward")
        if not isinstance(over, bool):
            raise ForeignError(f"the server said that done is {over!r:.80}; it must be true or false")
        rewards = [] if reward is None and not over else [float(reward) if isinstance(reward, bool) else reward]
        return {"text": self._format_observation(data), "rewards": rewards, "over": over}

    def _format_observation(self, data: dict[str, Any]) -> str:
        seen = data.get("observation")
        if not isinstance(seen, dict):
            raise ForeignError(f"the server gave the observation {seen!r:.200}; it must be an object")
        shown = {name: seen[name] for name in self._shown_fields or seen if name in seen and name not in HIDDEN_FIELDS}
        if len(shown) == 1:
            (only,) = shown.values()
            return only if isinstance(only, str) else json.dumps(only, ensure_ascii=False)
        lines = (f"{name}: {value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)}" for name, value in shown.items())
        return "\n".join(lines)


class ActionRefused(ForeignRaised):
    """Raised if the server refuses the form of an action; nothing happened."""


class EnvServer(ForeignHost):
    """Handle of an environment server (OpenEnv): one that already runs, or one that this process starts and ends."""

    def __init__(self, url: str, command: Sequence[str], *, fields: Sequence[str], reset: Mapping[str, Any], call_timeout_s: float) -> None:
        super().__init__("openenv", extra="openenv", call_timeout_s=call_timeout_s)
        self.url, self.command, self.fields, self.reset = url.rstrip("/"), tuple(command), tuple(fields), dict(reset)
        self._connections: list[WebSocketInstance] = []

    def ensure_started(self) -> Any:
        """Start the server if it is ours and not running, and read its schemas."""
        if importlib.util.find_spec("websockets") is None:  # reported before a server is started
            raise MissingExtra("websockets", "openenv")
        with self._lock:
            self._reset_after_fork()
            self._wait_if_unhealthy()
            if self.command and (self._process is None or self._process.poll() is not None):
                self._stop()
                self.package_info = None
                self._launch_server()
            if self.package_info is None:
                self.package_info = self._fetch_json("/schema")
        return self.package_info

    def new_instance(self, *, timeout_s: float | None = None, **settings: Any) -> ForeignInstanceProxy:
        """Open a new session."""
        self.ensure_started()
        address = urlsplit(self.url)
        secure = "wss" if address.scheme in ("https", "wss") else "ws"
        made = WebSocketInstance(
            f"{secure}://{address.netloc}{address.path}/ws", self.fields, self.reset, call_timeout_s=timeout_s or self.call_timeout_s
        )
        with self._lock:
            self._connections = [one for one in self._connections if not one._closed] + [made]
        return made

    def kill_instance(self, pid: int) -> None:
        """Do nothing: sessions are ended by their connection."""

    def close(self) -> None:
        """End every session, and the server if it is ours."""
        with self._lock:
            sessions, self._connections = self._connections, []
            self._stop()
        for one in sessions:
            one.close()

    def _wait_if_unhealthy(self) -> None:
        """If the server is not healthy, wait a moment for its process to exit, so that it is restarted."""
        if self._process is not None:
            try:
                self._fetch_json("/health")
            except ForeignError:
                with suppress(subprocess.TimeoutExpired):
                    self._process.wait(EXIT_TIMEOUT_S)

    def _launch_server(self) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        command = [part.replace("{port}", str(port)) for part in self.command]
        if shutil.which(command[0]) is None:
            raise ConfigError(f"the server {command[0]!r} cannot be started: there is no such program; check the setting server")
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-c", GUARD_PROGRAM, *command],
                stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            raise ConfigError(f"the server {command[0]!r} cannot be started: {error.strerror}; check the setting server") from error
        self.url = f"http://127.0.0.1:{port}"
        end = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < end:
            if (status := self._process.poll()) is not None:
                self._stop()
                raise ConfigError(f"the server {' '.join(command)!r:.200} ended at once with status {status}")
            with suppress(ForeignError):
                self._fetch_json("/health")
                return
            time.sleep(0.1)
        self._stop()
        raise ConfigError(f"the server {' '.join(command)!r:.200} did not reply on port {port} within {START_TIMEOUT_S:g} s")

    def _fetch_json(self, path: str) -> Any:
        address = urlsplit(self.url)
        plain = {"ws": "http", "wss": "https"}.get(address.scheme, address.scheme)
        try:
            with build_opener(ProxyHandler({})).open(
                f"{plain}://{address.netloc}{address.path}{path}", timeout=self.call_timeout_s
            ) as reply:
                return json.loads(reply.read(MAX_MESSAGE_BYTES))
        except (URLError, OSError, ValueError) as error:
            raise ForeignProcessLost(f"{self.url}{path} gives no reply: {_format_error(error)}") from error

    def _stop(self) -> None:
        if self._reset_after_fork():
            return
        if self._process is not None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            if self._process.stdin is not None:
                self._process.stdin.close()
        self._process = None


def _format_error(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"[:200].rstrip(": ")
