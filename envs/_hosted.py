"""The far side of `_host`: a process that imports other people's code once, and gives every world a fork of its own.

    python -P -m rlvr.envs._hosted DESCRIPTOR MODULE:CLASS [LOADS]
    python -P _hosted.py DESCRIPTOR FILE.py:CLASS [LOADS]          with an interpreter that does not have rlvr

CLASS has a static `prepare(**LOADS)`, which imports the foreign package, loads what all worlds share, and returns what the near side should
know of the package (its version). Every world is `CLASS(**settings)`, and its public methods are what may be asked. Requests and answers
are lines of JSON.
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
"""An order of the near side: `o` opens a world (its socket comes along), `k` kills the process of that id."""
OPEN, KILL = b"o", b"k"
MEMORY = 4 << 30
"""How much address space a world may have."""
LONGEST = 2_000
"""How much of an error message is passed on."""


def main(descriptor: int, target: str, loads: str = "{}") -> None:
    """Import the package, say so, and open worlds until the near side is gone."""
    control = socket.socket(fileno=descriptor)
    quiet = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):  # foreign code may print what it likes: the sockets are the only way out
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
    """The module of a file, for an interpreter that does not have rlvr. This file is the only one of ours that it can import."""
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
    """The version of an installed package; of one that is only on the path, what it says itself.

    >>> version_of("numpy", None) == version_of("numpy", sys)
    True
    """
    try:
        return version(distribution)
    except PackageNotFoundError:
        return str(getattr(module, "__version__", "unknown"))


class Loaded:
    """The base of worlds that share what is loaded once, in the process from which each is forked; each raises what failed there.

    >>> Loaded.kept is None
    True
    """

    load: ClassVar[Callable[..., Any]]
    """Loads it with the package; a static method of the world."""
    kept: Any = None
    failed: BaseException | None = None

    @classmethod
    def keep(cls, **given: Any) -> None:
        """Load it. Each world loads its own if that starts threads, which a fork lacks, or leaves files open: forks share the position."""
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
        """What was loaded."""
        if cls.failed is not None:
            raise cls.failed
        return cls.load(**given) if cls.kept is None else cls.kept


def _held() -> set[tuple[str, str]]:
    """The open files and connections (Linux), without devices and without files that are mapped into memory, which have no position."""
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
                if len(order) < ORDER.size:  # the near side is gone
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
    """One world, until its socket is closed. Never returns."""
    try:
        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # a world dies with its host (Linux)
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
    """Seed the global generators: code that draws without a seed draws the same in every world."""
    random.seed(0)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(0)


def _raised(error: BaseException) -> dict[str, Any]:
    missing = {"missing": (error.name or "").split(".")[0]} if isinstance(error, ModuleNotFoundError) else {}
    return {"raised": type(error).__name__, "why": str(error)[:LONGEST], **missing}


def _line(value: Any) -> bytes:
    """JSON as Python writes it: NaN and infinity stay what they are, so that the near side can refuse them."""
    return json.dumps(value).encode() + b"\n"


if __name__ == "__main__":
    main(int(sys.argv[1]), *sys.argv[2:4])
