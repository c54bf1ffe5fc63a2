"""How often verifiers are wrong on labelled rows that their authors did not write.

    python benchmarks/verifiers/truth_rows.py FOLDER [--only symbolic] [--out verdicts.jsonl]

FOLDER holds `truth_rows/*.jsonl` or those files themselves, and perhaps `pairs.jsonl`. A row is {"id", "family", "reference", "answer",
"label", "prompt"?, "meta"?, "settings"?, "amb"?}. Rows with two defensible readings ("amb", or the label "contested") are counted apart,
and so are the rows of `POLICY_ROWS`, whose labels follow another convention than the verifier's documented one. Each mistake is printed.
The exit code is 1 if a wrong answer is paid, or if more than 1 % of the right answers are refused or get no score.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import rlvr

REFUSED_AT_MOST = 0.01
VERIFIERS = {"code": "unit_tests", "instructions_hard": "instructions", "pairs": "symbolic"}
VERIFIERS |= {f"math_{name}": "symbolic" for name in ("adversarial", "realistic", "whitebox")}
RENAMED_SETTINGS = {"channel": "extractor", "least_words": "min_words", "most_words": "max_words"}
POLICY_ROWS = {
    "codelike-049": "worked_out=strict: 2^{-2} is not 1/4",
    "gsm8k-038": "worked_out=strict: 15/1 is not 15",
    "olympiad-033": "worked_out=strict: 1 - 1/2025 is not 2024/2025",
    "olympiad-089": "worked_out=strict: 10^9 + 7 is not 1000000007",
    **dict.fromkeys(
        ("numeric008", "numeric010", "numeric012", "numeric041", "numeric042", "numeric079", "numeric087", "o001"),
        "numeric reads one numeral: no unit, LaTeX, spaces, powers or words",
    ),
}
"""Row id -> the documented convention that its label does not follow."""


def read_rows(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """Read the rows of a folder, by the name of their file."""
    rows = folder / "truth_rows" if (folder / "truth_rows").is_dir() else folder
    files = [*sorted(rows.glob("*.jsonl")), *([folder / "pairs.jsonl"] if rows != folder and (folder / "pairs.jsonl").is_file() else [])]
    return {file.stem: [json.loads(line) for line in file.read_text("utf-8").splitlines() if line.strip()] for file in files}


def verify_rows(verifier: str, rows: list[dict[str, Any]], sandbox: str) -> list[rlvr.Verdict]:
    """Verify rows that share one verifier, with one instance for each distinct settings."""
    places: dict[str, list[int]] = defaultdict(list)
    for place, row in enumerate(rows):
        places[json.dumps(row.get("settings") or {}, sort_keys=True)].append(place)
    verdicts: dict[int, rlvr.Verdict] = {}
    for text, mine in places.items():
        given: dict[str, Any] = json.loads(text)
        settings = {RENAMED_SETTINGS.get(name, name): value for name, value in given.items()}
        if verifier == "unit_tests":
            settings["sandbox"] = {"name": sandbox, "trusted": True} if sandbox == "process" else sandbox
        tasks = [
            rlvr.Task(rlvr.user(rows[k].get("prompt") or "?"), rows[k]["reference"], id=rows[k]["id"], meta=rows[k].get("meta") or {})
            for k in mine
        ]
        with rlvr.make_verifier(verifier, **settings) as one:
            verdicts |= dict(zip(mine, one.verify_many(tasks, [rows[k]["answer"] for k in mine]), strict=True))
    return [verdicts[place] for place in range(len(rows))]


def classify(row: dict[str, Any], verdict: rlvr.Verdict) -> str:
    """Say what a verdict is: right, paid (a wrong answer), refused (a right one), or no score."""
    if verdict.score is None:
        return "no score"
    return "right" if (verdict.score >= 0.5) == bool(row["label"]) else "refused" if row["label"] else "paid"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="the folder with the rows")
    parser.add_argument("--only", default="", help="one verifier")
    parser.add_argument(
        "--sandbox", default="docker", help="of unit_tests: docker, or process, which does not isolate the programs of the rows"
    )
    parser.add_argument("--apart", action="store_true", help="also print the mistakes on rows that are counted apart")
    parser.add_argument("--out", type=Path, help="write the verdicts as JSON lines")
    arguments = parser.parse_args()
    total: Counter[str] = Counter()
    lines: list[dict[str, Any]] = []
    shown: list[str] = []
    columns = ("rows", "wrong answers", "paid", "right answers", "refused", "no score", "apart", "mistakes apart", "per second")
    print(f"{'file':18}", *(f"{column:>14}" for column in columns))
    for name, rows in read_rows(arguments.folder).items():
        by_verifier: dict[str, list[dict[str, Any]]] = defaultdict(list)
        for row in rows:
            by_verifier[row.get("v") or VERIFIERS.get(name, name)].append(row)
        counts: Counter[str] = Counter()
        start = time.perf_counter()
        for verifier, mine in by_verifier.items():
            if arguments.only not in ("", verifier):
                continue
            for row, verdict in zip(mine, verify_rows(verifier, mine, arguments.sandbox), strict=True):
                apart = row.get("amb") or row["label"] == "contested" or row["id"] in POLICY_ROWS
                kind = "right" if row["label"] == "contested" else classify(row, verdict)
                counts["rows"] += 1
                counts["apart" if apart else "right answers" if row["label"] else "wrong answers"] += 1
                counts["mistakes apart" if apart and kind != "right" else kind] += 1
                lines.append({"id": row["id"], "file": name, "label": row["label"], "score": verdict.score, "reason": verdict.reason})
                if kind != "right" and (arguments.apart or not apart):
                    answer = str(row.get("core") or row["answer"])
                    mark = " (apart)" if apart else ""
                    shown.append(
                        f"{kind}{mark} {row['id']} {row['family']}: {answer[:110]!r}, gold {row['reference']!r:.60}: {verdict.reason[:110]}"
                    )
        counts["per second"] = round(counts["rows"] / (time.perf_counter() - start))
        print(f"{name:18}", *(f"{counts[column]:14}" for column in columns))
        total += counts
    print("\n".join(shown))
    if arguments.out:
        arguments.out.write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")
    refused = (total["refused"] + total["no score"]) / max(1, total["right answers"])
    print(f"{total['wrong answers']} wrong answers, {total['paid']} paid (bar 0)")
    print(f"{total['right answers']} right answers, {total['refused']} refused, {total['no score']} rows without a score")
    print(f"refused or without a score: {refused:.2%} of the right answers (bar {REFUSED_AT_MOST:.0%})")
    return int(total["paid"] > 0 or refused > REFUSED_AT_MOST)


if __name__ == "__main__":
    raise SystemExit(main())
