"""The languages that programs are written in, and how they are compiled and started. Runs inside the container: standard library only."""

from __future__ import annotations

import hashlib
import os
import stat
from collections import OrderedDict
from typing import NamedTuple

MAX_BINARY_MB = 32
"""Size limit of one binary, and of the whole cache; the container has twice that memory in addition to the program's."""
COMPILER_LIMITS = {"memory_mb": 768, "file_mb": MAX_BINARY_MB, "processes": 64, "output_bytes": 1 << 20}
SPARE_ADDRESS_MB = 512
MIN_COMPILE_CPU_S, MAX_COMPILE_CPU_S = 10.0, 20.0
BINARY_NAME = "answer"
COMPILE_JAVA = r"""
set -e
kinds='(class|record|enum|interface)'
name=$(sed -n -E "s/^ *public +((final|abstract) +)*$kinds +([A-Za-z0-9_]+).*/\4/p" answer.java | head -n 1)
quick='-J-XX:+UseSerialGC -J-XX:TieredStopAtLevel=1 -J-Xmx512m'
mkdir classes
file="${name:-answer}.java"
[ "$file" = answer.java ] || mv answer.java "$file"
/usr/bin/javac $quick -encoding UTF-8 -nowarn -d classes "$file"
cd classes
main=$(grep -l -r -a -F '([Ljava/lang/String;)V' . | sed 's|^\./||; s|\.class$||' | while read -r one; do
  /usr/bin/javap $quick -cp . "$one" | grep -q 'public static.* void main(java.lang.String' && echo "$one" && break
done | tr / .)
/usr/bin/jar $quick --create --file ../answer --main-class "${main:?no class has public static void main(String[] args)}" .
"""
"""The file is named after its public class, as javac wants; the class with `main` is started."""
COMPILE_TYPESCRIPT = r"""
const ts = require('/usr/share/nodejs/typescript'), fs = require('fs')
const options = {target: ts.ScriptTarget.ES2020, module: ts.ModuleKind.CommonJS, esModuleInterop: true}
const made = ts.transpileModule(fs.readFileSync('answer.ts', 'utf8'), {compilerOptions: options, reportDiagnostics: true})
for (const found of made.diagnostics) console.error(ts.flattenDiagnosticMessageText(found.messageText, '\n'))
if (made.diagnostics.length) process.exit(1)
const waits = /\bawait\b/.test(made.outputText)
fs.writeFileSync('answer', waits ? `(async () => {${made.outputText}\n})()` : made.outputText)
"""
"""As other runners of TypeScript do, types are removed and not checked: that needs the types of Node, which are no part of either. A module
may wait outside of a function, which a file for `require` may not.
"""


class Toolchain(NamedTuple):
    """How a program of one language is compiled and started, in its own folder."""

    source: str
    """The name of the file with the program."""
    runner: tuple[str, ...]
    """The command that starts it. `{memory_mb}` is the program's memory limit."""
    compiler: tuple[str, ...] = ()
    """The command that compiles it to the file `answer`; none for a language that is interpreted."""
    needs: tuple[str, ...] = ()
    """Files that must be there beside the programs of both commands."""
    spare_address_mb: int = SPARE_ADDRESS_MB
    """Address space beyond the program's memory, which its runtime reserves and does not use."""
    spare_processes: int = 0
    """Threads of the runtime, which count as processes, beside those that the program may have."""

    def is_installed(self) -> bool:
        """Return whether everything is here that the commands start."""
        programs = [command[0] for command in (self.compiler, self.runner) if command and command[0].startswith("/")]
        return all(os.path.exists(path) for path in (*programs, *self.needs))


JAVA_OPTIONS = (
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-XX:CICompilerCount=1",
    "-XX:ReservedCodeCacheSize=48m",
    "-XX:CompressedClassSpaceSize=64m",
    "-Xss64m",
)
TOOLCHAINS = {
    # a thread has a stack of 64 MB and a heap of its own
    "cpp": Toolchain(
        "answer.cpp",
        ("./answer",),
        ("/usr/bin/g++", "-O2", "-std=gnu++20", "-pipe", "-o", "answer", "answer.cpp"),
        spare_address_mb=2560,
    ),
    # V8 reserves more than a gigabyte
    "javascript": Toolchain("answer.js", ("/usr/bin/node", "--stack-size=8000", "answer.js"), spare_address_mb=2048),
    "typescript": Toolchain(
        "answer.ts",
        ("/usr/bin/node", "--stack-size=8000", "answer"),
        ("/usr/bin/node", "-e", COMPILE_TYPESCRIPT),
        needs=("/usr/share/nodejs/typescript/package.json",),
        spare_address_mb=2048,
    ),
    "rust": Toolchain(
        "answer.rs",
        ("./answer",),
        ("/usr/bin/rustc", "-O", "--edition", "2021", "-C", "codegen-units=1", "-o", "answer", "answer.rs"),
        needs=("/usr/bin/cc",),
        spare_address_mb=2560,
    ),
    "go": Toolchain(
        "answer.go",
        ("./answer",),
        ("/usr/bin/go", "build", "-p", "1", "-o", "answer", "answer.go"),
        spare_address_mb=1024,
        spare_processes=16,
    ),
    "java": Toolchain(
        "answer.java",
        ("/usr/bin/java", "-Xmx{memory_mb}m", *JAVA_OPTIONS, "-jar", "answer"),
        ("/bin/sh", "-c", COMPILE_JAVA),
        needs=("/usr/bin/javac", "/usr/bin/jar"),
        spare_address_mb=4096,
        spare_processes=24,
    ),
    "csharp": Toolchain(
        "answer.cs",
        ("/usr/bin/mono", "answer"),
        ("/usr/bin/mcs", "-optimize+", "-unsafe", "-r:System.Numerics", "-out:answer", "answer.cs"),
        spare_address_mb=1024,
        spare_processes=16,
    ),
    "r": Toolchain("answer.R", ("/usr/bin/Rscript", "--vanilla", "answer.R"), spare_processes=4),
    "bash": Toolchain("answer.sh", ("/bin/bash", "answer.sh")),
}
"""The languages besides Python, by their names in `Program.language`."""


def compute_compiler_limits(limits: dict[str, float]) -> dict[str, float]:
    """Return the limits of the compiler: time that grows with the program's, and fixed limits on memory, file size, processes and output.

    The processor time is twice that of the program, from 10 s to 20 s; the wall time is twice the processor time.

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
