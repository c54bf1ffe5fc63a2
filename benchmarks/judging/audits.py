"""`rlvr audit` on `symbolic`, `numeric` and on the scorers of other projects; one table of all.

    python benchmarks/judging/audits.py --venv FOLDER             everything; audits and table.md are written to --out
    python benchmarks/judging/audits.py --only symbolic,verl_math

FOLDER is a virtual environment in which the other projects are installed; it is made if it is not there. Their scorers are called as plain
functions (`benchmarks/_peers/audit_targets.py`). The pairs: the held-out answers of `benchmarks/verifiers/held_out/math.jsonl` for the
scorers of mathematics, forms of whole numbers for those of GSM8K, and the tasks of ten data sets for reasoning-gym; from the golds of each,
`rlvr audit` makes near misses, hedges, denials and injections. Bars: ours pays no wrong answer; at least fifteen kinds of holes are found.
Exit code 1 if a verifier of rlvr pays a wrong answer, or an audit fails.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks._peers.audit_targets import DATASETS, MATHS, NUMBERS  # noqa: E402

TARGETS = ROOT / "benchmarks" / "_peers" / "audit_targets.py"
HELD_OUT = ROOT / "benchmarks" / "verifiers" / "held_out" / "math.jsonl"
OURS = ("symbolic", "numeric")
WITH = ("math-verify==0.9.0", "latex2sympy2_extended==1.11.0", "reasoning-gym==0.1.25", "pylatexenc")
ALONE = ("trl==1.16.0", "verl==0.9.1", "lm-eval==0.4.13", "verifiers==0.4.0")
"""Installed with what they need, and alone: their scorers use little of it."""
ZOO = ("substring", "last_number", "compute_score", "tolerant", "strict", "universal")
"""Functions with planted holes, of the tests."""


def venv(folder: Path) -> str:
    """The Python of the virtual environment, made if it is not there."""
    python = folder / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        subprocess.run([python, "-m", "pip", "install", "-q", *WITH], check=True)
        subprocess.run([python, "-m", "pip", "install", "-q", "--no-deps", *ALONE], check=True)
        site = next(path for path in sys.path if path.endswith("site-packages"))
        next(folder.glob("lib/*/site-packages")).joinpath("zz_rlvr.pth").write_text(site + "\n", "utf-8")
    return str(python)


def numbers() -> Iterator[dict[str, Any]]:
    """Answers to questions whose answer is a whole number, right and wrong."""
    for place, gold in enumerate((42, 18, 305, 7, 1234, 96, 560, 83, 1200, 64, 250, 31)):
        question = f"What is {gold - place} + {place}?"
        for right, text, family in (
            (1, "We add them: {0}.\n#### {0}", "a sentence and the line"),
            (1, "#### {0}", "the line alone"),
            (0, "#### {1}", "another number"),
            (0, "It is surely not {1}.\n#### {1}", "another number, denied before"),
            (0, "#### {0} or {1}", "the line has two numbers, the first right"),
            (0, "#### {1} or {0}", "the line has two numbers, the last right"),
            (0, "#### {1}\nor rather\n#### {2}", "two lines, both wrong"),
            (0, "#### {1}\nIf the question were another one, it would be {0}", "another number, and the right one in prose after it"),
        ):
            answer = text.format(gold, gold + 1, gold + 2)
            yield {"question": question, "reference": str(gold), "answer": answer, "label": right, "family": family}


def gym(python: str, name: str) -> list[dict[str, Any]]:
    """The tasks of a data set with their own answers, as right pairs."""
    code = (
        "import json, sys, reasoning_gym; sys.path.insert(0, sys.argv[2]); from benchmarks._peers.audit_targets import SEED, TASKS\n"
        "for e in reasoning_gym.create_dataset(sys.argv[1], size=TASKS, seed=SEED):\n"
        "    print(json.dumps({'question': e['question'], 'reference': e['answer'], 'answer': e['answer'], 'label': 1, 'family': 'gold'}))"
    )
    told = subprocess.run([python, "-c", code, name, str(ROOT)], check=True, capture_output=True, text=True).stdout
    return [json.loads(line) for line in told.splitlines()]


def audited(python: str, target: str, pairs: list[dict[str, Any]], asked: argparse.Namespace) -> dict[str, Any]:
    """One audit, in the environment of the scorer."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "pairs.jsonl"
        file.write_text("".join(json.dumps(pair) + "\n" for pair in pairs), "utf-8")
        options = ["--golds", str(asked.golds), "--search", str(asked.search), "--timeout", "20", "--json"]
        command = [python, "-m", "rlvr", "audit", target, *(["--pairs", str(file)] if pairs else []), *options]
        environment = os.environ | {"PYTHONPATH": str(ROOT)}
        began = time.monotonic()
        done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=folder, check=False)
    if done.returncode or not done.stdout.strip():
        return {"verifier": target, "broken": (done.stderr or done.stdout)[-400:]}
    return {**json.loads(done.stdout), "seconds": round(time.monotonic() - began, 1)}


def holes(report: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The families of wrong answers of which some were paid, by name."""
    found = {family["name"]: family for family in report.get("families", ()) if not family["right"] and family["num_failed"]}
    for key in report.get("search", ())[:1]:
        found["one text pays for many questions"] = {
            "failed": len(key["rewarded_references"]),
            "asked": key["tasks"],
            "examples": [{"answer": key["text"]}],
        }
    return found


def row(name: str, report: dict[str, Any]) -> str:
    """A line of the table."""
    if "broken" in report:
        return f"| {name} | could not be asked: {report['broken'].strip().splitlines()[-1][:80]} | | | | |"
    wrong = [family for family in report["families"] if not family["right"]]
    right = [family for family in report["families"] if family["right"]]
    counts = [
        (sum(f["num_failed"] for f in many), sum(f["num_verified"] - f["num_unscored"] - f["num_crashed"] for f in many))
        for many in (wrong, right)
    ]
    kinds = holes(report)
    shown = ", ".join(sorted(kinds, key=lambda kind: -kinds[kind]["failed"])[:4])
    crashed = report["num_crashed"] + report["num_unscored"]
    paid, refused = (f"{failed} / {scored}" for failed, scored in counts)
    return f"| {name} | {paid} | {refused} | {crashed} | {len(kinds)} | {shown} |"


def main() -> int:
    """Audit all, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--venv", type=Path, default=Path(tempfile.gettempdir()) / "rlvr-audits-venv")
    parser.add_argument("--only", default="", help="names, with commas")
    parser.add_argument("--golds", type=int, default=6)
    parser.add_argument("--search", type=int, default=30)
    parser.add_argument("--out", type=Path, default=Path("audits"))
    parser.add_argument("--table", action="store_true", help="audit nothing: make the table again from the audits in --out")
    asked = parser.parse_args()
    python = "" if asked.table else venv(asked.venv)
    asked.out.mkdir(parents=True, exist_ok=True)
    maths = [json.loads(line) for line in HELD_OUT.read_text("utf-8").splitlines()]
    whole = list(numbers())
    work: dict[str, tuple[str, list[dict[str, Any]]]] = {"symbolic": ("symbolic", maths), "numeric": ("numeric", whole)}
    work |= {name: (f"{TARGETS}:{name}", maths) for name in MATHS}
    work |= {name: (f"{TARGETS}:{name}", whole) for name in NUMBERS}
    work |= {f"gym_{name}": (f"{TARGETS}:gym_{name}", []) for name in DATASETS}
    zoo = ROOT / "tests" / "conformance" / "bad_rewards.py"
    bare = [{"question": f"What is {n} + 0?", "reference": str(n), "answer": str(n), "label": 1} for n in (42, -17, 1234, 305)]
    work |= {f"planted: {name}": (f"{zoo}:{name}", bare) for name in ZOO}
    wanted = [name for name in work if not asked.only or name in asked.only.split(",")]
    reports = {}
    for name in wanted:
        file = asked.out / f"{name.removeprefix('planted: ')}.json"
        if not asked.table:
            target, pairs = work[name]
            pairs = pairs or gym(python, name.removeprefix("gym_"))
            report = audited(sys.executable if name in OURS else python, target, pairs, asked)
            file.write_text(json.dumps(report, indent=1), "utf-8")
        if file.exists():
            reports[name] = json.loads(file.read_text("utf-8"))
            print(row(name, reports[name]), flush=True)
    kinds = kinds_of(reports)
    (asked.out / "table.md").write_text(table(reports, kinds), "utf-8")
    wrong = sum(hole["failed"] for name in OURS for hole in holes(reports.get(name, {})).values())
    broken = [name for name, report in reports.items() if "broken" in report]
    published = sum(any(not name.startswith("planted") for name in found) for found in kinds.values())
    print(f"wrong answers that ours paid: {wrong} (bar 0); kinds of holes: {len(kinds)}, in published scorers {published} (bar 15)")
    if broken:
        print(f"could not be asked: {broken}")
    print(
        json.dumps(
            {
                "scorers": len(reports),
                "wrong_paid_by_ours": wrong,
                "kinds_of_holes": len(kinds),
                "in_published": published,
                "broken": broken,
            }
        )
    )
    return int(wrong > 0 or bool(broken) or (not asked.only and published < 15))


def kinds_of(reports: dict[str, dict[str, Any]]) -> dict[str, dict[str, dict[str, Any]]]:
    """The kinds of holes of other projects' scorers, each with the scorers that have it."""
    kinds: dict[str, dict[str, dict[str, Any]]] = {}
    for name, report in reports.items():
        for kind, hole in holes(report).items() if name not in OURS else ():
            kinds.setdefault(kind, {})[name] = hole
    return kinds


def table(reports: dict[str, dict[str, Any]], kinds: dict[str, dict[str, dict[str, Any]]]) -> str:
    """The page: a line for each scorer, and a line with an example for each kind of hole."""
    lines = [
        "| scorer | wrong answers paid | right answers refused | crashed or no score | kinds of holes | the most frequent |",
        "|---|---|---|---|---|---|",
        *(row(name, report) for name, report in reports.items()),
        "",
        f"{len(kinds)} kinds of holes, each with the shortest answer that was paid:",
        "",
        "| kind | found in | reference | answer that was paid |",
        "|---|---|---|---|",
    ]
    for kind, found in sorted(kinds.items(), key=lambda item: (-len(item[1]), item[0])):
        example = min((hole["examples"][0] for hole in found.values()), key=lambda one: len(one["answer"]))
        others = f" and {len(found) - 3} more" if len(found) > 3 else ""
        shown = [cell(example.get("reference", "any")), cell(example["answer"])]
        lines.append(f"| {kind} | {', '.join(list(found)[:3])}{others} | {shown[0]} | {shown[1]} |")
    return "\n".join([*lines, ""])


def cell(text: object) -> str:
    r"""A text as code in a cell of a table.

    >>> print(cell("a|b"))
    `a\|b`
    """
    shown = "".join(one if one.isprintable() else f"\\u{ord(one):04x}" for one in " ".join(str(text).split()))
    shown = shown.replace("`", "'").replace("|", r"\|")
    return f"`{shown if len(shown) <= 90 else shown[:87] + '...'}`"


if __name__ == "__main__":
    raise SystemExit(main())
