"""Ten minutes on a GPU: what the training path reaches there, part by part. One JSON line for each figure.

    python benchmarks/gpu_day.py                                  all parts, 9 minutes at most
    python benchmarks/gpu_day.py --parts facts head --out FILE    some of them; the lines go to FILE too
    python benchmarks/gpu_day.py --tiny                           the same code on a CPU, in a minute: a test of this script

    facts        the device, the packages, and the speed of matrix products and copies
    head         the output head in tiles, against plain logits and TRL's kernel
    attention    packed rows with masks, and with a kernel for segments
    gradients    the gradient of an update, packed with kernels in bf16, against padded rows in float32
    update       updates at the shape of Qwen3-0.6B: tokens per second, share of peak, memory
    profile      the operations that take most of the time of an update
    trl          the same rows with TRL's loss, if trl is installed, and with rlvr
    large        updates at the shape of Qwen3-4B: checkpointing, compiled layers
    sampler      tokens per second of the sampler `hf`
    repeated     the same run twice: how many lines are equal
    determinism  the same with deterministic kernels
    handover     sample, learn, hand over, and again in one process; files for a server

It needs the repository and Python 3.11 with torch; nothing is downloaded. `facts`, `head` and `attention` need no more. The others need
transformers, accelerate and pydantic, the last two also gymnasium: a part whose packages are missing says so in its line and is skipped.
What is missing can be brought along as wheels: `--wheels FOLDER` unpacks them for this run.

Each part runs in a process of its own with a time limit of its own, and each line is written when it is measured, so a part that
fails or hangs loses only itself. The last line sums up; exit code 1 if a part failed.
"""

from __future__ import annotations

import argparse
import importlib
import json
import multiprocessing
import os
import signal
import sys
import tempfile
import time
import zipfile
from pathlib import Path
from typing import Any, TextIO

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from rlvr.runs.folder_owner import temporary_folder  # noqa: E402

PARTS: dict[str, tuple[str, float]] = {
    "facts": ("benchmarks._gpu.kernels", 40.0),
    "update": ("benchmarks._gpu.learning", 140.0),
    "gradients": ("benchmarks._gpu.learning", 60.0),
    "head": ("benchmarks._gpu.kernels", 60.0),
    "attention": ("benchmarks._gpu.kernels", 40.0),
    "profile": ("benchmarks._gpu.learning", 70.0),
    "sampler": ("benchmarks._gpu.learning", 80.0),
    "large": ("benchmarks._gpu.learning", 110.0),
    "trl": ("benchmarks._gpu.learning", 100.0),
    "handover": ("benchmarks._gpu.learning", 60.0),
    "repeated": ("benchmarks._gpu.learning", 40.0),
    "determinism": ("benchmarks._gpu.learning", 40.0),
}
"""Where each part is, and how many seconds it may take; in the order in which they run."""
WHOLE_S = 530.0
SKIPPED = 77
"""The exit code of a part whose packages are missing."""


def child(module: str, part: str, tiny: bool, said: Path) -> None:
    """One part, in its own process and session; its lines go to a file, and so does what else it writes."""
    os.setsid()
    for stream, path in ((1, said), (2, said.with_suffix(".err"))):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), stream)
    bench: Any = importlib.import_module("benchmarks._gpu.bench")
    if tiny:
        os.environ["ACCELERATE_USE_CPU"] = "true"
        importlib.import_module("torch").set_num_threads(1)
    try:
        getattr(importlib.import_module(module), part)(bench.Bench(part, tiny))
    except (bench.Missing, ModuleNotFoundError) as missing:
        print(json.dumps({"part": part, "skipped": str(missing)}), flush=True)
        os._exit(SKIPPED)
    sys.stdout.flush()


class Lines:
    """The lines of a file that another process writes, passed on as they come.

    >>> Lines(Path("part.out"), None).found
    0
    """

    def __init__(self, path: Path, copy: TextIO | None) -> None:
        self.path, self.copy, self.read, self.found = path, copy, 0, 0

    def pass_on(self) -> None:
        """Write what is new to standard output, and to the copy."""
        if not self.path.exists():
            return
        data = self.path.read_bytes()[self.read :]
        data = data[: data.rfind(b"\n") + 1]
        self.read += len(data)
        for line in data.decode("utf-8", "replace").splitlines():
            if line.startswith("{"):  # libraries write to standard output too
                told(line, self.copy)
                self.found += 1


def told(line: str, copy: TextIO | None) -> None:
    """One line of results."""
    for place in (sys.stdout, copy):
        if place is not None:
            print(line, file=place, flush=True)


def run(part: str, module: str, limit_s: float, tiny: bool, copy: TextIO | None, home: Path) -> dict[str, Any]:
    """Run one part to its end or its limit; how it ended."""
    began = time.monotonic()
    # a part on a CPU shares the imports of this process; on a GPU each has its own, because CUDA does not survive a fork
    context: Any = multiprocessing.get_context("fork" if tiny else "spawn")
    lines = Lines(home / f"{part}.out", copy)
    process = context.Process(target=child, args=(module, part, tiny, lines.path))
    process.start()
    try:
        while process.is_alive() and time.monotonic() - began < limit_s:
            process.join(0.2)
            lines.pass_on()
    finally:  # this process may be told to end
        if late := process.is_alive():
            try:
                os.killpg(process.pid, signal.SIGKILL)  # its session is its own; what it started ends with it
            except ProcessLookupError:
                process.kill()
        process.join(10)
    lines.pass_on()
    ended: dict[str, Any] = {"part": part, "seconds": round(time.monotonic() - began, 1), "lines": lines.found}
    if late or process.exitcode not in (0, SKIPPED):
        why = f"it took more than {limit_s:.0f} s" if late else f"exit code {process.exitcode}"
        error = lines.path.with_suffix(".err")
        ended |= {"failed": why}
        told(json.dumps(ended | {"said": error.read_text("utf-8", "replace")[-1500:] if error.exists() else ""}), copy)
    return ended | ({"skipped": True} if process.exitcode == SKIPPED else {})


def unpacked(wheels: Path, home: Path) -> None:
    """Put the wheels of a folder, or of the pieces in it, on the path of this process and of its parts."""
    importlib.import_module("benchmarks._gpu.wheels").join(wheels, joined := home.with_name("joined"))
    for wheel in sorted([*wheels.glob("*.whl"), *joined.glob("*.whl")]):
        with zipfile.ZipFile(wheel) as file:
            file.extractall(home)
    sys.path.append(str(home))  # after what is installed: they fill gaps and replace nothing
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")]), str(home)])


def main(about: str = __doc__ or "", parts: dict[str, tuple[str, float]] = PARTS) -> int:
    """Run the parts; the last line says how each ended."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="+", choices=parts, default=list(parts), metavar="PART")
    parser.add_argument("--tiny", action="store_true", help="tiny sizes on the CPU")
    parser.add_argument("--out", type=Path, help="a file for the lines")
    parser.add_argument("--wheels", type=Path, help="a folder with wheels of missing packages, or with pieces of them")
    parser.add_argument("--limit", type=float, default=WHOLE_S, help="seconds for all parts together")
    args = parser.parse_args()
    if not args.tiny and not importlib.import_module("torch").cuda.is_available():
        parser.error("torch finds no CUDA device on this machine; --tiny runs the parts on a CPU")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("PYTHONPATH", str(ROOT))
    began, ended = time.monotonic(), []
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with temporary_folder("rlvr-gpu-day-") as folder:
        os.environ["TMPDIR"] = tempfile.tempdir = str(folder)  # what parts that are killed leave is removed with it
        if args.wheels is not None:
            unpacked(args.wheels, folder / "wheels")
        if args.tiny:  # imported once, for all parts
            importlib.import_module("benchmarks._gpu.bench")
            for module in sorted({parts[part][0] for part in args.parts}):
                getattr(importlib.import_module(module), "preload", int)()
        copy = args.out.open("a", encoding="utf-8") if args.out else None
        for part in args.parts:
            left = args.limit - (time.monotonic() - began)
            if left < 5:
                ended.append({"part": part, "failed": "no time was left for it"})
                continue
            ended.append(run(part, parts[part][0], min(parts[part][1], left), args.tiny, copy, folder))
        told(json.dumps({"part": "summary", "seconds": round(time.monotonic() - began, 1), "parts": ended}), copy)
        if copy is not None:
            copy.close()
    return int(any("failed" in part for part in ended))


if __name__ == "__main__":
    sys.exit(main())
