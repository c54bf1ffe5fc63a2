"""The worker process of a `ForeignHost`: imports foreign code once, and forks a process for every instance.

    python -P -m rlvr.envs.external._foreign_worker DESCRIPTOR MODULE:CLASS [LOADS]
    python -P _hosted.py DESCRIPTOR FILE.py:CLASS [LOADS]          with an interpreter that does not have rlvr

CLASS has a static `import_and_describe_package(**LOADS)`, which imports the foreign package, loads what all instances share, and returns information about
the package (its version). Every instance is `CLASS(**settings)`, and its public methods can be called. Requests and replies are lines of
JSON.
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
import json
import os
import random
import resource
import select
import signal
import socket
import struct
import sys
import threading
import types
from collections.abc import Callable
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from typing import Any, ClassVar

ORDER_STRUCT = struct.Struct("!cI")
"""An order of the host: `o` opens an instance (its socket is sent along), `k` kills the process of that id."""
OPEN_ORDER, KILL_ORDER = b"o", b"k"
MAX_ADDRESS_SPACE_BYTES = 4 << 30
"""Address space limit of one instance."""
MAX_ERROR_CHARS = 2_000
"""Longest error message that is passed on."""


def main(control_fd: int, target: str, prepare_args: str = "{}") -> None:
    """Import the package, report that, and create instances until the host is gone."""
    control = socket.socket(fileno=control_fd)
    quiet = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):  # foreign code may print anything: only the sockets carry messages
        os.dup2(quiet, stream)
    world: Any = None
    try:
        module, _, name = target.rpartition(":")
        world = getattr(_import_file(module) if module.endswith(".py") else importlib.import_module(module), name)
        hello: dict[str, Any] = {"ok": world.import_and_describe_package(**json.loads(prepare_args))}
    except (Exception, SystemExit) as error:
        hello = _format_exception(error)
    control.sendall(_encode_line(hello))
    if "ok" in hello:
        _serve_orders(control, world)


def _import_file(path: str) -> Any:
    """Import a module from a file, for an interpreter without rlvr. Of our modules, it can import only this file."""
    for name in ("rlvr", "rlvr.envs", "rlvr.envs.external"):
        sys.modules[name] = types.ModuleType(name)
    sys.modules["rlvr.envs.external._foreign_worker"] = sys.modules["__main__"]
    spec = importlib.util.spec_from_file_location("rlvr_world", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["rlvr_world"] = module
    spec.loader.exec_module(module)
    return module


def find_version(distribution: str, module: Any) -> str:
    """Return the version of an installed package, or its `__version__` if it is only on the path.

    >>> find_version("numpy", None) == find_version("numpy", sys)
    True
    """
    try:
        return version(distribution)
    except PackageNotFoundError:
        return str(getattr(module, "__version__", "unknown"))


class SharedObjectInstance:
    """Base class of instances that share an object, loaded once before they are forked; each re-raises a load error.

    >>> SharedObjectInstance.shared is None
    True
    """

    load: ClassVar[Callable[..., Any]]
    """Static method that loads the shared object with the package."""
    shared: Any = None
    load_error: BaseException | None = None

    @classmethod
    def load_shared(cls, **load_args: Any) -> None:
        """Load the object that all instances share, and keep the object only if forks can share it.

        They cannot if loading starts threads, which a fork loses, or leaves files open.
        """
        _seed_generators()
        before = _list_open_files()
        try:
            made = cls.load(**load_args)
        except (Exception, SystemExit) as error:
            cls.load_error = error
            return
        if threading.active_count() == 1 and not _list_open_files() - before:
            cls.shared = made

    @classmethod
    def get_shared(cls, **load_args: Any) -> Any:
        """Return the shared object, or load one for this instance; raise the error if loading failed."""
        if cls.load_error is not None:
            raise cls.load_error
        return cls.load(**load_args) if cls.shared is None else cls.shared


def _list_open_files() -> set[tuple[str, str]]:
    """Return the open files and connections (Linux), except devices and memory-mapped files, which have no file position."""
    found = set()
    with suppress(OSError):
        with open("/proc/self/maps", encoding="utf-8", errors="replace") as file:
            mapped = file.read()
        for number in os.listdir("/proc/self/fd"):
            with suppress(OSError):
                found.add((number, os.readlink(f"/proc/self/fd/{number}")))
        found = {(number, target) for number, target in found if not target.startswith("/dev/") and target not in mapped}
    return found


def _serve_orders(control: socket.socket, instance_class: Any) -> None:
    alive: set[int] = set()
    while True:
        with suppress(InterruptedError):
            if select.select([control], [], [], 1.0)[0]:
                order, descriptors, _, _ = socket.recv_fds(control, ORDER_STRUCT.size, 1)
                if len(order) < ORDER_STRUCT.size:  # the host is gone
                    break
                what, number = ORDER_STRUCT.unpack(order)
                if what == KILL_ORDER and number in alive:
                    os.kill(number, signal.SIGKILL)
                for descriptor in descriptors:
                    child = os.fork()
                    if child == 0:
                        control.close()
                        _run_instance(socket.socket(fileno=descriptor), instance_class)
                    alive.add(child)
                    os.close(descriptor)
        alive -= _reap_children(alive)
    for child in alive:
        os.kill(child, signal.SIGKILL)


def _reap_children(alive: set[int]) -> set[int]:
    found = set()
    for child in alive:
        with suppress(ChildProcessError):
            if os.waitpid(child, os.WNOHANG)[0] == child:
                found.add(child)
    return found


def _run_instance(connection: socket.socket, instance_class: Any) -> None:
    """Serve one instance until its socket is closed. Never returns."""
    try:
        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # an instance dies with its host (Linux)
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_AS, (MAX_ADDRESS_SPACE_BYTES, MAX_ADDRESS_SPACE_BYTES))
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        _seed_generators()
        connection.sendall(_encode_line({"ok": os.getpid()}))
        made: Any = None
        for line in connection.makefile("rb"):
            try:
                asked = json.loads(line)
                if asked["ask"] == "":
                    made, answer = instance_class(**asked["with"]), None
                else:
                    answer = getattr(made, asked["ask"])(**asked["with"])
                reply = _encode_line({"ok": answer})
            except (Exception, SystemExit) as error:
                reply = _encode_line(_format_exception(error))
            connection.sendall(reply)
    finally:
        os._exit(0)


def _seed_generators() -> None:
    """Seed the global random generators, so that unseeded code draws the same in every instance."""
    random.seed(0)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(0)


def _format_exception(error: BaseException) -> dict[str, Any]:
    missing = {"missing": (error.name or "").split(".")[0]} if isinstance(error, ModuleNotFoundError) else {}
    return {"raised": type(error).__name__, "why": str(error)[:MAX_ERROR_CHARS], **missing}


def _encode_line(value: Any) -> bytes:
    """Encode one line of JSON. NaN and infinity are kept, so that the host can reject them."""
    return json.dumps(value).encode() + b"\n"


if __name__ == "__main__":
    main(int(sys.argv[1]), *sys.argv[2:4])
