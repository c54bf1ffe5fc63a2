"""All benchmarks, and one of them.

    python -m benchmarks                                      one line for each
    python -m benchmarks [--out FILE] NAME [ARGS]             run one; NAME --help explains it

The last line that is printed is the result, in the form of `benchmarks/_result.py`; `--out FILE` appends it to a file. The exit code is that of the
script: 1 where it missed a limit. A script can also be run by itself (`python benchmarks/NAME.py`), without this line.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "benchmarks"
sys.path.insert(0, str(ROOT))

from benchmarks._result import build_result, decide, read_figures  # noqa: E402


def list_benchmarks() -> dict[str, str]:
    """The docstring of every script that can be run, by name."""
    found = {}
    for path in sorted(FOLDER.rglob("*.py")):
        name = path.relative_to(FOLDER).with_suffix("").as_posix()
        text = path.read_text("utf-8")
        if not any(part.startswith("_") for part in name.split("/")) and "__main__" in text:
            found[name] = ast.get_docstring(ast.parse(text)) or ""
    return found


def find(wanted: str, names: list[str]) -> str:
    """The full name of a benchmark: `providers` is `sandbox/providers` if there is no other."""
    given = wanted.removeprefix("benchmarks/").removesuffix(".py")
    same = [name for name in names if given in (name, name.rpartition("/")[2], name.replace("/", "."))]
    if len(same) == 1:
        return same[0]
    reason = f"several benchmarks are called {wanted!r}: {', '.join(same)}" if same else f"no benchmark is called {wanted!r}"
    raise SystemExit(f"{reason}; `python -m benchmarks` lists all")


def run(name: str, arguments: list[str]) -> tuple[int, list[str]]:
    """Run a script, pass on what it prints, and return its exit code and its lines."""
    paths = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    command = [sys.executable, "-u", str(FOLDER / f"{name}.py"), *arguments]
    lines = []
    with subprocess.Popen(command, env=os.environ | {"PYTHONPATH": paths}, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        signal.signal(signal.SIGTERM, lambda *_: process.terminate())  # the script ends, and the result says so
        while True:
            try:
                for line in process.stdout:
                    print(line, end="", flush=True)
                    lines.append(line.strip())
                return process.wait(), lines
            except KeyboardInterrupt:  # the script has heard it too
                continue


def main() -> int:
    """List the benchmarks, or run one."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="a file to which the result is appended, as one line")
    parser.add_argument("name", nargs="?")
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    given = parser.parse_args()
    known = list_benchmarks()
    if given.name is None:
        width = max(map(len, known))
        print("\n".join(f"{name:{width}}  {about.partition(chr(10))[0]}" for name, about in known.items()))
        return 0
    name = find(given.name, list(known))
    code, lines = run(name, given.arguments)
    if code == 2 or {"-h", "--help"} & set(given.arguments):  # 2: wrong arguments
        return code
    figures = read_figures(lines)
    result = json.dumps(build_result(name, figures, decide(figures, code, "xit code" in known[name])), ensure_ascii=False)
    print(result, flush=True)
    if given.out is not None:
        with given.out.open("a", encoding="utf-8") as file:
            file.write(result + "\n")
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main())
