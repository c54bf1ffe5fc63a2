"""The worker process of a `ForeignHost`: imports foreign code once, and forks a process for every instance.

    python -P -m rlvr.envs._hosted DESCRIPTOR MODULE:CLASS [LOADS]
    python -P _hosted.py DESCRIPTOR FILE.py:CLASS [LOADS]          with an interpreter that does not have rlvr

CLASS has a static `prepare(**LOADS)`, which imports the foreign package, loads what all instances share, and returns information about the
package (its version). Every instance is `CLASS(**settings)`, and its public methods can be called. Requests and replies are lines of JSON.
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

ORDER = struct.Struct("!cI")
"""An order of the host: `o` opens an instance (its socket is sent along), `k` kills the process of that id."""
OPEN, KILL = b"o", b"k"
MEMORY = 4 << 30
"""Address space limit of one instance."""
LONGEST = 2_000
"""Longest error message that is passed on."""


def main(descriptor: int, target: str, loads: str = "{}") -> None:
    """Import the package, report that, and create instances until the host is gone."""
    control = socket.socket(fileno=descriptor)
    quiet = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):  # foreign code may print anything: only the sockets carry messages
        os.dup2(quiet, stream)
    world: Any = None
    try:
        module, _, name = target.rpartition(":")
        world = getattr(_from_file(module) if module.endswith(".py") else importlib.import_module(module), name)
        hello: dict[str, Any] = {"ok": world.prepare(**json.loads(loads))}
    except (Exception, SystemExit) as error:
        hello = _raised(error)
    control.sendall(_line(hello))
    if "ok" in hello:
        _serve(control, world)


def _from_file(path: str) -> Any:
    """Import a module from a file, for an interpreter without rlvr. Of our modules, it can import only this file."""
    for name in ("rlvr", "rlvr.envs"):
        sys.modules[name] = types.ModuleType(name)
    sys.modules["rlvr.envs._hosted"] = sys.modules["__main__"]
    spec = importlib.util.spec_from_file_location("rlvr_world", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["rlvr_world"] = module
    spec.loader.exec_module(module)
    return module


def version_of(distribution: str, module: Any) -> str:
    """Return the version of an installed package, or its `__version__` if it is only on the path.

    >>> version_of("numpy", None) == version_of("numpy", sys)
    True
    """
    try:
        return version(distribution)
    except PackageNotFoundError:
        return str(getattr(module, "__version__", "unknown"))


class Loaded:
    """Base class of instances that share an object, loaded once before they are forked; each re-raises a load error.

    >>> Loaded.kept is None
    True
    """

    load: ClassVar[Callable[..., Any]]
    """Static method that loads the shared object with the package."""
    kept: Any = None
    failed: BaseException | None = None

    @classmethod
    def keep(cls, **given: Any) -> None:
        """Load the shared object. It is not shared if loading starts threads, which a fork loses, or leaves files open."""
        seeded()
        before = _held()
        try:
            made = cls.load(**given)
        except (Exception, SystemExit) as error:
            cls.failed = error
            return
        if threading.active_count() == 1 and not _held() - before:
            cls.kept = made

    @classmethod
    def had(cls, **given: Any) -> Any:
        """Return the shared object, or load one for this instance; raise the error if loading failed."""
        if cls.failed is not None:
            raise cls.failed
        return cls.load(**given) if cls.kept is None else cls.kept


def _held() -> set[tuple[str, str]]:
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


def _serve(control: socket.socket, world: Any) -> None:
    alive: set[int] = set()
    while True:
        with suppress(InterruptedError):
            if select.select([control], [], [], 1.0)[0]:
                order, descriptors, _, _ = socket.recv_fds(control, ORDER.size, 1)
                if len(order) < ORDER.size:  # the host is gone
                    break
                what, number = ORDER.unpack(order)
                if what == KILL and number in alive:
                    os.kill(number, signal.SIGKILL)
                for descriptor in descriptors:
                    child = os.fork()
                    if child == 0:
                        control.close()
                        _live(socket.socket(fileno=descriptor), world)
                    alive.add(child)
                    os.close(descriptor)
        alive -= _ended(alive)
    for child in alive:
        os.kill(child, signal.SIGKILL)


def _ended(alive: set[int]) -> set[int]:
    found = set()
    for child in alive:
        with suppress(ChildProcessError):
            if os.waitpid(child, os.WNOHANG)[0] == child:
                found.add(child)
    return found


def _live(near: socket.socket, world: Any) -> None:
    """Serve one instance until its socket is closed. Never returns."""
    try:
        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # an instance dies with its host (Linux)
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        seeded()
        near.sendall(_line({"ok": os.getpid()}))
        made: Any = None
        for line in near.makefile("rb"):
            try:
                asked = json.loads(line)
                if asked["ask"] == "":
                    made, answer = world(**asked["with"]), None
                else:
                    answer = getattr(made, asked["ask"])(**asked["with"])
                reply = _line({"ok": answer})
            except (Exception, SystemExit) as error:
                reply = _line(_raised(error))
            near.sendall(reply)
    finally:
        os._exit(0)


def seeded() -> None:
    """Seed the global random generators, so that unseeded code draws the same in every instance."""
    random.seed(0)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(0)


def _raised(error: BaseException) -> dict[str, Any]:
    missing = {"missing": (error.name or "").split(".")[0]} if isinstance(error, ModuleNotFoundError) else {}
    return {"raised": type(error).__name__, "why": str(error)[:LONGEST], **missing}


def _line(value: Any) -> bytes:
    """Encode one line of JSON. NaN and infinity are kept, so that the host can reject them."""
    return json.dumps(value).encode() + b"\n"


if __name__ == "__main__":
    main(int(sys.argv[1]), *sys.argv[2:4])
