"""Ask every data set of reasoning_gym a few questions, and try right and wrong answers. One line for each set, then JSON.

    python benchmarks/envs/puzzles.py [--questions 4] [--only gcd,lcm] [--sandbox docker] [--kit] [--table puzzles.tsv]

For each set: whether the right answer is paid; which wrong answers are paid; what raised no verdict; what was executed. Among the wrong
answers are parts of the question, and programs that write a file: no file may be there at the end. "theirs" counts the wrong answers that
the package itself gives at least half of the score to. `--kit` also runs `rlvr check env` on each set, with fewer tasks.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import re
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import rlvr
from rlvr.conformance import envkit
from rlvr.conformance.checks import iter_checks
from rlvr.envs.external._foreign_host import ForeignError
from rlvr.envs.external._reasoning_catalog import (
    ANSWER_PATTERNS,
    COMPARED_BY_ALGEBRA,
    COMPARED_EXACTLY,
    DATASET_NAMES,
    UNSUPPORTED,
    WITHOUT_GOLD,
    describe_scoring,
)
from rlvr.task import Task

READ = 8
"""How many tasks of a split the kit reads here: some sets take a second for each."""
PARTS = 10
"""How many parts of a question are tried as answers."""


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--questions", type=int, default=4)
    parser.add_argument("--only", default="")
    parser.add_argument("--sandbox", default="docker")
    parser.add_argument("--kit", action="store_true")
    parser.add_argument("--table", type=Path)
    given = parser.parse_args()
    names = given.only.split(",") if given.only else sorted(DATASET_NAMES)
    theirs = set(importlib.import_module("reasoning_gym.factory").DATASETS)
    rows = []
    with tempfile.TemporaryDirectory() as folder, rlvr.make_sandbox(given.sandbox) as sandbox:
        for name in names:
            began, mark = time.perf_counter(), Path(folder) / name
            with rlvr.make_env("reasoning_gym", dataset=name, sandbox=_Kept(sandbox)) as env:
                row = looked(env, given.questions, mark)
            row["kit"] = kit(name, given.sandbox) if given.kit else ""
            row |= {"name": name, "executed": mark.exists(), "seconds": round(time.perf_counter() - began, 1)}
            rows.append(row)
            print(line(row), flush=True)
    if given.table:
        given.table.write_text("".join("\t".join(cells) + "\n" for cells in [COLUMNS, *map(cells_of, rows), *refused()]))
    total = {
        "sets": len(rows),
        "unaccounted_for": sorted(theirs ^ {*DATASET_NAMES, *UNSUPPORTED}),
        "right_answers": sum(row["right"] for row in rows),
        "right_refused": sum(len(row["refused"]) for row in rows),
        "wrong_answers": sum(row["wrong"] for row in rows),
        "wrong_paid": sum(len(row["paid"]) for row in rows),
        "no_score": sum(len(row["unscored"]) for row in rows),
        "theirs_half_or_more": sum(row["theirs"] for row in rows),
        "executed": sum(row["executed"] for row in rows),
        "without_gold": [row["name"] for row in rows if not row["right"]],
        "kit_failed": {row["name"]: row["kit"] for row in rows if "failed" in row["kit"]},
    }
    print(json.dumps(total))


class _Kept(rlvr.Sandbox):
    """The sandbox of all data sets: closing an environment leaves it open."""

    def __init__(self, sandbox: rlvr.Sandbox) -> None:
        self.sandbox = sandbox

    def run_program(self, program: Any) -> Any:
        """Run it there."""
        return self.sandbox.run(program)


COLUMNS = ("set", "offered", "scored by", "right paid", "wrong paid", "wrong that the package pays half or more", "no score", "kit")


def cells_of(row: dict[str, Any]) -> tuple[str, ...]:
    """The line of a set in the table."""
    offered = (
        "without gold"
        if row["name"] in WITHOUT_GOLD
        else "own check"
        if row["name"] in {*COMPARED_EXACTLY, *COMPARED_BY_ALGEBRA, *ANSWER_PATTERNS}
        else "yes"
    )
    paid, theirs = f"{len(row['paid'])}/{row['wrong']}", str(row["theirs"]) if row["name"] not in COMPARED_BY_ALGEBRA else "not asked"
    right = f"{row['right'] - len(row['refused'])}/{row['right']}" if row["right"] else "-"
    return row["name"], offered, describe_scoring(row["name"]), right, paid, theirs, str(len(row["unscored"])), row["kit"] or "-"


def refused() -> list[tuple[str, ...]]:
    """The lines of what is not offered."""
    return [(name, "refused", why, *["-"] * (len(COLUMNS) - 3)) for name, why in UNSUPPORTED.items()]


def kit(name: str, sandbox: str) -> str:
    """How many checks of `rlvr check env` a set passes, and what fails."""
    envkit.NUM_READ_TASKS = READ
    checks = list(iter_checks("env", "reasoning_gym", {"dataset": name, "sandbox": sandbox}))
    bad = [f"{check.name}: {check.detail:.120}" for check in checks if not check.ok]
    skipped = [check for check in checks if check.skipped]
    told = f"{len(checks) - len(bad) - len(skipped)} passed" + (f", {len(skipped)} skipped" if skipped else "")
    return told + (f", {len(bad)} failed: {'; '.join(bad)}" if bad else "")


def looked(env: Any, questions: int, mark: Path) -> dict[str, Any]:
    """What became of each answer to a few questions of one set."""
    row: dict[str, Any] = {"right": 0, "wrong": 0, "theirs": 0, "refused": [], "paid": [], "unscored": []}
    tasks = [env.task(split, index) for index in range((questions + 1) // 2 + 1) for split in env.splits]
    for place, task in enumerate(tasks[:questions]):
        for kind, answer, right in answers(task, tasks[place + 1 :] + tasks[:place], mark):
            declared = f"<answer>{answer}</answer>"
            verdict = env.verifier.verify(task, declared)
            if kind == "other" and answer in env.scored.ask("get_metadata", number=task.reference["number"], names=["valid_answers"]).get(
                "valid_answers", ()
            ):
                right = True  # another board's queens that stand on this board too
            row["right" if right else "wrong"] += 1
            if verdict.score is None:
                row["unscored"].append(f"{kind}: {verdict.reason:.100}")
            elif right != (verdict.score == 1.0):
                row["refused" if right else "paid"].append(f"{kind}: {answer[:60]!r}")
            if not right and env.dataset not in COMPARED_BY_ALGEBRA:
                with contextlib.suppress(ForeignError):
                    score = env.scored.ask("score", number=task.reference["number"], answer=answer)["score"]
                    row["theirs"] += not isinstance(score, float) or score >= 0.5
    return row


def answers(task: Task, others: list[Task], mark: Path) -> Iterator[tuple[str, str, bool]]:
    """A name, an answer, and whether it is right."""
    gold, question = task.reference["gold"], task.question
    yield "code", f"__import__('pathlib').Path({str(mark)!r}).touch()", False
    yield "code in a list", f"[__import__('pathlib').Path({str(mark)!r}).touch()]", False
    yield "code called", f"(lambda: open({str(mark)!r}, 'w'))()", False
    yield from ((kind, text, False) for kind, text in (("empty", ""), ("space", " "), ("junk", "xyzzy"), ("question", question)))
    yield from (("part", text, False) for text in parts(question) if gold is None or not alike(text, gold))
    if gold is None:
        return
    other = next((task.reference["gold"] for task in others if not alike(task.reference["gold"], gold)), None)
    yield "gold", gold, True
    yield "gold with spaces", f" {gold}\n", True
    wrong = {
        "twice": f"{gold} {gold}",
        "twice on lines": f"{gold}\n{gold}",
        "twice tight": f"{gold}{gold}",
        "sentence": f"The answer is {gold}",
        "denied": f"It is not {gold}.",
        "in a list": repr([gold]),
        "zero": "0",
        "one": "1",
        "true": "True",
        "none": "None",
        "nan": "nan",
        "inf": "inf",
    }
    if "sokoban" in task.id:
        del wrong["twice tight"]  # more moves after the last needed one may leave the puzzle solved: another right answer
    if other is not None:
        wrong |= {"other": other, "hedge": f"{gold} or {other}", "hedge back": f"{other} or {gold}", "comma": f"{gold}, {other}"}
        wrong |= {"comma back": f"{other}, {gold}", "lines": f"{gold}\n{other}"}
    yield from ((kind, text, False) for kind, text in wrong.items() if not alike(text, gold))


def parts(question: str) -> list[str]:
    """Parts of a question that could be taken for an answer: lines, what comes after a colon or an equals sign, what is quoted.

    >>> parts("Simplify: (x+1)*x")
    ['Simplify: (x+1)*x', '(x+1)*x']
    """
    found = dict[str, None]()
    for text in question.splitlines():
        quoted = re.findall(r"[\"'`]([^\"'`]+)[\"'`]", text)
        for part in (text, *re.split(r"[:=]\s", text)[1:], text.rstrip(" =?.").rpartition("= ")[2], *quoted):
            if 0 < len(part.strip()) <= 300:
                found[part.strip()] = None
    short = [*found]
    return [*short[: PARTS // 2], *[text for text in short[-PARTS // 2 :] if text not in short[: PARTS // 2]]]


def alike(one: str, other: str) -> bool:
    """Whether two texts are the same number or the same text."""
    try:
        return float(one) == float(other)
    except ValueError:
        return one.strip().casefold() == other.strip().casefold()


def line(row: dict[str, Any]) -> str:
    """One set on one line, and what went wrong on lines of its own."""
    counts = f"right {row['right'] - len(row['refused'])}/{row['right']}  wrong paid {len(row['paid'])}/{row['wrong']}"
    head = f"{row['name']:26} {counts}  theirs {row['theirs']}  executed {'YES' if row['executed'] else 'no'}  {row['seconds']} s"
    more = [f"    {kind} {text}" for kind in ("refused", "paid", "unscored") for text in row[kind]]
    return "\n".join([head, *more])


if __name__ == "__main__":
    main()
