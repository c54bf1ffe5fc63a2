"""Environments and scorers of foreign packages, in a process of their own.

A `ForeignHost` is a process that has imported a foreign package once. Every `ForeignInstanceProxy` in it is a fork: instances are isolated from
each other, may use the global random generators, and are killed after a timeout. Messages are JSON, never pickled.
"""

from __future__ import annotations

import importlib.util
import json
import os
import socket
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from threading import Lock
from time import monotonic
from typing import Any
from weakref import WeakSet

from rlvr.envs.external import _foreign_worker as _hosted
from rlvr.envs.external._foreign_worker import KILL_ORDER, OPEN_ORDER, ORDER_STRUCT
from rlvr.errors import ConfigError, MissingExtra, PluginLoadError, RlvrError
from rlvr.registry.plugins import PACKAGE_FOLDER

IMPORT_TIMEOUT_S = 120.0
"""Timeout for importing a package."""
FORK_TIMEOUT_S = 10.0
MAX_REPLY_BYTES = 32 << 20
"""Longest reply that is read, in bytes."""


class ForeignError(RlvrError):
    """Raised if foreign code failed: it raised, timed out, its process died, or it returned invalid data."""


class ForeignRaised(ForeignError):
    """Raised if foreign code raised an exception."""

    def __init__(self, name: str, why: str) -> None:
        self.name, self.message = name, why
        super().__init__(f"{name}: {why}" if why else name)

    def __reduce__(self) -> tuple[type, tuple[str, str]]:
        return (ForeignRaised, (self.name, self.message))


class ForeignProcessLost(ForeignError):
    """Raised if foreign code timed out or its process died. The instance cannot be used any more."""


class ForeignInstanceProxy:
    """Proxy of one instance of a foreign class, which lives in a forked process. Used by one thread at a time; any thread may call
    `close`.
    """

    def __init__(self, host: ForeignHost, connection: socket.socket, *, call_timeout_s: float) -> None:
        self._host, self._stream, self._call_timeout_s, self._pid = host, connection, call_timeout_s, 0
        self._buffer = bytearray()
        self._lock, self._closed = Lock(), False

    def call(self, method: str, *, timeout_s: float | None = None, **given: Any) -> Any:
        """Call a method of the instance. Raises ForeignRaised if the method raises, ForeignProcessLost after a timeout."""
        if self._closed:
            raise ForeignProcessLost(f"{method or 'open'}: the process of this instance has ended")
        seconds = self._call_timeout_s if timeout_s is None else timeout_s
        try:
            request = json.dumps({"ask": method, "with": given}).encode() + b"\n"
        except (RecursionError, ValueError, TypeError) as error:  # the request was not sent
            raise ForeignRaised(type(error).__name__, f"{method or 'open'}: the arguments cannot be written as JSON") from None
        try:
            reply = self._exchange(request, seconds)
        except TimeoutError:
            self.close()
            raise ForeignProcessLost(f"{method or 'open'} returned nothing within {seconds:g} s") from None
        except (OSError, ValueError, EOFError) as error:
            self.close()
            raise ForeignProcessLost(f"{method or 'open'}: the process of this instance died ({error or type(error).__name__})") from None
        if reply.get("missing") and not method:
            raise self._host.make_missing_error(reply["missing"])
        if "raised" in reply:
            raise ForeignRaised(reply["raised"], reply["why"])
        return reply["ok"]

    def close(self) -> None:
        """Kill the process of the instance."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self._host.kill_instance(self._pid)
        self._stream.close()

    def _receive_pid(self) -> None:
        self._pid = int(self._exchange(b"", FORK_TIMEOUT_S)["ok"])

    def _exchange(self, request: bytes, seconds: float) -> dict[str, Any]:
        deadline = monotonic() + seconds
        self._stream.settimeout(seconds)
        if request:
            self._stream.sendall(request)
        end = self._buffer.find(b"\n")
        while end < 0:
            left = deadline - monotonic()
            if left <= 0:
                raise TimeoutError
            self._stream.settimeout(left)
            if not (more := self._stream.recv(1 << 16)):
                raise EOFError("it closed its socket")
            place = more.find(b"\n")
            end = len(self._buffer) + place if place >= 0 else -1
            self._buffer += more
            if len(self._buffer) > MAX_REPLY_BYTES:
                raise ValueError(f"it wrote more than {MAX_REPLY_BYTES:,} bytes")
        found = json.loads(self._buffer[:end])
        del self._buffer[: end + 1]
        if not isinstance(found, dict) or not found.keys() & {"ok", "raised"}:
            raise ValueError("it wrote no reply")
        return found

    def __enter__(self) -> ForeignInstanceProxy:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class ForeignHost:
    """Handle of the worker process that imports a foreign package and forks its instances; started with the first instance, restarted
    if it died.
    """

    def __init__(
        self, target: str, *, extra: str, call_timeout_s: float = 20.0, python: str = "", prepare_args: Mapping[str, Any] | None = None
    ) -> None:
        """Configure the process; it starts with the first instance.

        Args:
            target: the module and the class of an instance; `_foreign_worker` describes what the class needs.
            extra: the extra of rlvr that installs the package.
            call_timeout_s: timeout of one call.
            python: the interpreter of another environment, which has the package and need not have rlvr. The module is then run from its
                file, so it may import the standard library, the package, and this package's `_foreign_worker`.
            prepare_args: arguments of the target's `import_and_describe_package`, which loads shared data once, before the instances are forked.
        """
        self.target, self.extra, self.call_timeout_s, self.python, self.prepare_args = (
            target,
            extra,
            call_timeout_s,
            python,
            dict(prepare_args or {}),
        )
        self.package_info: Any = None
        """The result of the target's `import_and_describe_package`, such as the version of the package."""
        self._owner = os.getpid()
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._lock = Lock()
        self._instances = WeakSet[ForeignInstanceProxy]()

    def make_missing_error(self, package: str) -> ConfigError:
        """Make the error for a package that the interpreter of the process does not have."""
        if not self.python:
            return MissingExtra(package, self.extra)
        return ConfigError(
            f"{package} is not installed for python={self.python}; install it there, or give the interpreter of an environment that has it"
        )

    def ensure_started(self) -> Any:
        """Start the process if it is not running; return what the package reported about itself."""
        with self._lock:
            self._ensure_running()
            return self.package_info

    def new_instance(self, *, timeout_s: float | None = None, **settings: Any) -> ForeignInstanceProxy:
        """Create an instance. Raises ForeignRaised if its constructor raises, MissingExtra if the package is not installed."""
        with self._lock:
            control = self._ensure_running()
            near, far = socket.socketpair()
            try:
                socket.send_fds(control, [ORDER_STRUCT.pack(OPEN_ORDER, 0)], [far.fileno()])
            except OSError:
                self._stop()
                near.close()
                raise ForeignProcessLost(f"the process of {self.target} died") from None
            finally:
                far.close()
        world = ForeignInstanceProxy(self, near, call_timeout_s=self.call_timeout_s)
        try:
            world._receive_pid()
        except (OSError, EOFError, ValueError) as error:
            near.close()
            raise ForeignProcessLost(f"{self.target} created no instance: {error or type(error).__name__}") from None
        self._instances.add(world)
        try:
            world.call("", timeout_s=timeout_s, **settings)
        except BaseException:
            world.close()
            raise
        return world

    def kill_instance(self, pid: int) -> None:
        """Kill an instance of this host."""
        with self._lock, suppress(OSError):
            if self._control is not None and pid:
                self._control.sendall(ORDER_STRUCT.pack(KILL_ORDER, pid))

    def close(self) -> None:
        """End the process and every instance in it. May be called more than once."""
        with self._lock:
            self._stop()
            worlds = list(self._instances)
        for world in worlds:
            world.close()

    def _ensure_running(self) -> socket.socket:
        self._reset_after_fork()
        if self._process is not None and self._process.poll() is not None:
            self._stop()
        if self._control is None:
            self._start()
        assert self._control is not None
        return self._control

    def _start(self) -> None:
        near, far = socket.socketpair()
        command, paths = self._build_command()
        one = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
        with far:
            try:
                self._process = subprocess.Popen(
                    [*command[:-1], str(far.fileno()), command[-1], json.dumps(self.prepare_args)],
                    pass_fds=[far.fileno()],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    start_new_session=True,  # Ctrl-C is for this process: a run goes on to the end of its step
                    env={**os.environ, **one, "PYTHONPATH": paths, "PYTHONHASHSEED": "0"},  # some packages depend on the order of sets
                )
            except OSError as error:
                near.close()
                raise ConfigError(f"python is {self.python!r}, which cannot be started: {error.strerror}") from error
        self._control = near
        try:
            hello = ForeignInstanceProxy(self, near, call_timeout_s=IMPORT_TIMEOUT_S)._exchange(b"", IMPORT_TIMEOUT_S)
        except (OSError, EOFError, ValueError) as error:
            self._stop()
            raise ForeignProcessLost(
                f"{self.target} did not start within {IMPORT_TIMEOUT_S:g} s: {error or type(error).__name__}"
            ) from None
        if "raised" in hello:
            self._stop()
            if hello.get("missing"):
                raise self.make_missing_error(hello["missing"])
            raise PluginLoadError(
                f"{self.target} cannot be imported: {hello['raised']}: {hello['why']}; try another version of the package"
            )
        near.settimeout(None)
        self.package_info = hello["ok"]

    def _build_command(self) -> tuple[list[str], str]:
        """Return the command of the process, and its PYTHONPATH."""
        if not self.python:
            return [sys.executable, "-P", "-m", "rlvr.envs.external._foreign_worker", self.target], os.pathsep.join(
                path for path in sys.path if path
            )
        module, _, name = self.target.partition(":")
        spec = importlib.util.find_spec(module)
        if spec is None or spec.origin is None:
            raise PluginLoadError(f"the module {module!r} has no file")
        own = PACKAGE_FOLDER.parent  # it holds folders named verifiers and envs, which would hide packages of these names
        paths = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path and Path(path).resolve() != own]
        return [self.python, "-P", _hosted.__file__, f"{spec.origin}:{name}"], os.pathsep.join(paths)

    def _reset_after_fork(self) -> bool:
        """In a forked child of the process that started the host, drop the parent's process handles; return whether that happened."""
        if self._owner == os.getpid():
            return False
        if self._control is not None:
            self._control.close()
        if self._process is not None:
            self._process.returncode = 0  # the child must not wait for it
        self._process = self._control = None
        self._owner = os.getpid()
        return True

    def _stop(self) -> None:
        if self._reset_after_fork():
            return
        if self._control is not None:
            self._control.close()  # the host notices this and kills its instances
        if self._process is not None:
            try:
                self._process.wait(5.0)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._process = self._control = None

    def __del__(self) -> None:
        with suppress(Exception):
            self._stop()
