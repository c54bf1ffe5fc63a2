"""Count what one must read to follow one GRPO step from `train()` to the gradient of a prompt.

    python benchmarks/learn/reading_path.py                    this tree
    python benchmarks/learn/reading_path.py --root DIR         another one, for a comparison
    python benchmarks/learn/reading_path.py --files            file by file; --functions: function by function
    python benchmarks/learn/reading_path.py --rooms            folder by folder, and in how few files of --longest lines it would fit

One step of GRPO (HF sampler, copy_reverse, a tiny model, no warm start) runs under a tracer from the call of `train()` to the
first `optimizer.step()`. It counts all functions of the tree that ran, in any file and thread: `to read` is every line of
them (signature, docstring and comments too, each line once), `executed` the lines that ran. Modules and class bodies are not counted.
`step` is what ran inside `one_step`, `setup` what ran only before it. The end of the step (optimizer, logs, checkpoint) is not
included;
the checkpoint before it, which a thread writes, is complete when the step begins.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import io
import json
import sys
import tempfile
import threading
from collections import defaultdict
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

RUN: dict[str, Any] = {
    "env": {"name": "copy_reverse", "length": 2, "letters": "ab"},
    "tokenizer": "chars:ab>",
    "model": {
        "config": {
            "model_type": "llama", "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2,
            "num_key_value_heads": 2, "max_position_embeddings": 64,
        }
    },
    "rollout": {"prompts_per_step": 8, "num_generations": 128},
    "algorithm": "grpo",
    "train": {"steps": 1, "learning_rate": 1e-3},
    "eval": {"tasks": 8},
}  # fmt: skip


class Arrived(BaseException):
    """Raised when the first optimizer step is reached."""


class Tracer:
    """Records every line of the tree that runs, separately for what runs inside `one_step`."""

    def __init__(self, root: Path) -> None:
        self.root, self.inside = f"{root}/", False
        self.lines: dict[bool, set[tuple[str, int]]] = {True: set(), False: set()}
        self.codes: dict[bool, set[CodeType]] = {True: set(), False: set()}
        self.files: dict[str, str] = {}

    def __call__(self, frame: FrameType, event: str, arg: Any) -> Any:
        """Whether to follow a frame."""
        code = frame.f_code
        path = self.files.get(code.co_filename)
        if path is None:
            path = self.files[code.co_filename] = str(Path(code.co_filename).resolve())
        if not path.startswith(self.root) or "/.venv/" in path or path == __file__ or "<" in path or code.co_name == "<module>":
            return None
        if code.co_name == "one_step":
            self.inside = True
        self.codes[self.inside].add(code)
        return lambda frame, event, arg: self.line(path, frame, event)

    def line(self, path: str, frame: FrameType, event: str) -> Any:
        """Record one line."""
        self.lines[self.inside].add((path, frame.f_lineno))
        return lambda frame, event, arg: self.line(path, frame, event)


def functions(path: str) -> list[tuple[int, int, str]]:
    """The first line (decorators included), the last line and the name of every function of a file, outermost first."""
    found = []
    for node in ast.walk(ast.parse(Path(path).read_text("utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
            found.append((first, node.end_lineno or node.lineno, node.name))
    return found


def traced(root: Path) -> Tracer:
    """Run one step under the tracer."""
    torch: Any = importlib.import_module("torch")
    rich: Any = importlib.import_module("rich.console")
    loop: Any = importlib.import_module("rlvr.training.train")
    try:
        check = importlib.import_module("rlvr.config.config").check
    except ModuleNotFoundError:  # a tree in which it is one file
        check = importlib.import_module("rlvr.config").check
    tracer = Tracer(root)

    def arrived(*args: Any, **kwargs: Any) -> None:
        sys.settrace(None)
        threading.settrace(None)  # type: ignore[arg-type]
        raise Arrived

    step = loop.one_step

    def when_saved(crew: Any, *rest: Any) -> Any:
        if hasattr(crew, "writer"):
            crew.writer.wait()
        return step(crew, *rest)

    loop.one_step = when_saved
    torch.optim.AdamW.step = arrived
    config, screen = check(RUN, "reading_path"), rich.Console(file=io.StringIO())
    with tempfile.TemporaryDirectory() as home:
        threading.settrace(tracer)
        sys.settrace(tracer)
        try:
            loop.train(config, out=Path(home) / "run", console=screen)
        except Arrived:
            return tracer
        finally:
            sys.settrace(None)
    raise SystemExit("there was no optimizer step: all answers of a group scored the same; choose another seed")


def measured(tracer: Tracer) -> dict[str, dict[str, dict[str, int]]]:
    """For setup and step: the lines to read and the lines executed, by file and function."""
    bodies: dict[str, list[tuple[int, int, str]]] = {}
    seen: set[tuple[str, int]] = set()
    out: dict[str, dict[str, dict[str, int]]] = {}
    for part, inside in (("step", True), ("setup", False)):
        rows: dict[str, dict[str, int]] = defaultdict(lambda: {"read": 0, "executed": 0})
        for path, line in sorted(tracer.lines[inside]):
            body = bodies.setdefault(path, functions(path))
            around = [f for f in body if f[0] <= line <= f[1]]
            if not around:  # the body of a class that is being created
                continue
            name = f"{path.removeprefix(tracer.root)}:{max(around)[2]}"
            first, last = min(around)[0], min(around)[1]  # the outermost function: it contains the nested ones
            fresh = [(path, k) for k in range(first, last + 1) if (path, k) not in seen]
            seen.update(fresh)
            if (path, -line) not in seen:
                seen.add((path, -line))
                rows[name]["executed"] += 1
            rows[name]["read"] += len(fresh)
        out[part] = dict(rows)
    return out


def by_room(rows: dict[str, dict[str, int]], root: Path, longest: int) -> None:
    """Print the path of a step by folder. Files of one folder could be merged, so long as none gets too long; folders could not."""
    rooms: dict[str, dict[str, int]] = defaultdict(lambda: {"read": 0, "executed": 0})
    files: dict[str, set[str]] = defaultdict(set)
    for name, row in rows.items():
        path = name.partition(":")[0]
        room = path.rpartition("/")[0]
        files[room].add(path)
        for key in row:
            rooms[room][key] += row[key]
    print(f"{'room':32}{'files':>8}{'to read':>9}{'executed':>10}{'lines of the files':>20}{'fewest files':>14}")
    fewest = 0
    for room, row in sorted(rooms.items(), key=lambda item: -item[1]["executed"]):
        lines = sum(len((root / path).read_text("utf-8").splitlines()) for path in files[room])
        few = -(-lines // longest)
        fewest += few
        print(f"{room:32}{len(files[room]):8}{row['read']:9}{row['executed']:10}{lines:20}{few:14}")
    print(f"{'all':32}{sum(map(len, files.values())):8}{'':39}{fewest:14}")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, default=Path(__file__).parents[2])
    parser.add_argument("--files", action="store_true")
    parser.add_argument("--functions", action="store_true")
    parser.add_argument("--rooms", action="store_true")
    parser.add_argument("--longest", type=int, default=350, help="the most lines of a file, for --rooms")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    root = asked.root.resolve()
    sys.path.insert(0, str(root))
    found = measured(traced(root))
    totals: dict[str, dict[str, int]] = {}
    both = {f"{part} {name}": row for part, some in found.items() for name, row in some.items()}
    for part, rows in {**found, "both": both}.items():
        files = {name.rpartition(" ")[2].partition(":")[0] for name in rows}
        totals[part] = {"files": len(files), "functions": len(rows)}
        totals[part] |= {key: sum(row[key] for row in rows.values()) for key in ("read", "executed")}
    if asked.json:
        print(json.dumps({"root": str(root), **totals}))
        return
    print(f"{'':48}{'files':>8}{'functions':>11}{'to read':>9}{'executed':>10}")
    for part, row in totals.items():
        print(f"{part:48}{row['files']:8}{row['functions']:11}{row['read']:9}{row['executed']:10}")
    if asked.rooms:
        print()
        by_room(found["step"], root, asked.longest)
    for part, rows in found.items() if asked.files or asked.functions else ():
        print(f"\n{part}")
        grouped: dict[str, dict[str, int]] = defaultdict(lambda: {"read": 0, "executed": 0})
        for name, row in rows.items():
            for key, value in row.items():
                grouped[name if asked.functions else name.partition(":")[0]][key] += value
        for name, row in sorted(grouped.items(), key=lambda item: -item[1]["read"]):
            print(f"{name:67}{row['read']:9}{row['executed']:10}")


if __name__ == "__main__":
    main()
