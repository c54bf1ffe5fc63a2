"""Compile and start programs in other languages. Runs inside the container: standard library only."""

from __future__ import annotations

import hashlib
import os
import stat
from collections import OrderedDict

COMPILERS = {"cpp": ["/usr/bin/g++", "-O2", "-std=c++17", "-pipe", "-o", "answer", "answer.cpp"]}
RUNNERS = {"cpp": ["./answer"], "javascript": ["/usr/bin/node", "--stack-size=8000", "answer.js"]}
SPARE_ADDRESS_MB = {"/usr/bin/node": 2048}
"""Address space beyond the program's memory, by program; 512 for others. V8 reserves more than a gigabyte, which it does not use."""
SOURCE_FILES = {"cpp": "answer.cpp", "javascript": "answer.js"}
BINARY_NAME = "answer"
MAX_BINARY_MB = 32
"""Size limit of one binary, and of the whole cache; the container has twice that memory in addition to the program's."""
COMPILER_LIMITS = {"memory_mb": 768, "file_mb": MAX_BINARY_MB, "processes": 16, "output_bytes": 1 << 20}
MIN_COMPILE_CPU_S, MAX_COMPILE_CPU_S = 10.0, 20.0


def compute_compiler_limits(limits: dict[str, float]) -> dict[str, float]:
    """Return the limits of the compiler: twice the program's processor time, from 10 s to 20 s, and twice that as wall time.

    >>> compute_compiler_limits({"cpu_s": 1, "wall_s": 2})["wall_s"]
    20.0
    """
    seconds = min(max(2 * limits["cpu_s"], MIN_COMPILE_CPU_S), MAX_COMPILE_CPU_S)
    return {**limits, **COMPILER_LIMITS, "cpu_s": seconds, "wall_s": 2 * seconds}


class BinaryCache:
    """LRU cache of binaries by source: a program with twenty test cases is compiled once in each container.

    >>> kept = BinaryCache()
    >>> kept.put("cpp", b"int main() {}", b"ELF")
    >>> kept.get("cpp", b"int main() {}"), kept.get("cpp", b"other")
    (b'ELF', None)
    """

    def __init__(self, max_entries: int = 8, max_bytes: int = MAX_BINARY_MB << 20) -> None:
        self._binaries: OrderedDict[bytes, bytes] = OrderedDict()
        self._max_entries, self._max_bytes = max_entries, max_bytes

    def get(self, language: str, source: bytes) -> bytes | None:
        """Return the binary of this source if it is cached, else None."""
        return self._binaries.get(_make_cache_key(language, source))

    def put(self, language: str, source: bytes, binary: bytes) -> None:
        """Store a binary, and drop the oldest ones."""
        self._binaries[_make_cache_key(language, source)] = binary
        while len(self._binaries) > self._max_entries or sum(map(len, self._binaries.values())) > self._max_bytes:
            self._binaries.popitem(last=False)


def _make_cache_key(language: str, source: bytes) -> bytes:
    return hashlib.sha256(language.encode() + b"\0" + source).digest()


def read_binary(folder: str, max_bytes: int = MAX_BINARY_MB << 20) -> bytes | None:
    """Read the compiler's output; None if it is not a regular file of at most `max_bytes` bytes."""
    try:
        number = os.open(os.path.join(folder, BINARY_NAME), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    with open(number, "rb") as file:
        about = os.fstat(number)
        return file.read(max_bytes) if stat.S_ISREG(about.st_mode) and about.st_size <= max_bytes else None
