"""How often `symbolic` and `unit_tests` are wrong on labelled answers that were written before their code was read.

    python benchmarks/verifiers/held_out.py --set math python benchmarks/verifiers/held_out.py --set programs

A line of `held_out/math.jsonl` is {"id", "family", "reference", "answer", "label", "question"?}; a line of `held_out/programs.jsonl` has
the families honest, wrong and cheat. Each mistake is printed. The exit code is 1 if a wrong answer is paid, if more than 1.5 % of the
right answers are refused, or if an answer gets no score. A right value with "worked_out": false is a wrong answer of `symbolic`: its convention
worked_out was made after these answers were labelled, and the mark was added then.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from pathlib import Path

import rlvr

HERE = Path(__file__).parent / "held_out"
VERIFIERS = {"math": "symbolic", "programs": "unit_tests"}
REFUSED_AT_MOST = 0.015


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--set", choices=sorted(VERIFIERS), default="math", help="which answers")
    parser.add_argument("--out", type=Path, help="write the verdicts as JSON lines")
    arguments = parser.parse_args()
    rows = [json.loads(line) for line in (HERE / f"{arguments.set}.jsonl").read_text("utf-8").splitlines()]
    tasks = [rlvr.Task(rlvr.make_user_prompt(row.get("question", "?")), row["reference"], id=row["id"]) for row in rows]
    with rlvr.make_verifier(VERIFIERS[arguments.set]) as verifier:
        verdicts = verifier.verify_many(tasks, [row["answer"] for row in rows])
    counts: Counter[str] = Counter()
    for row, verdict in zip(rows, verdicts, strict=True):
        row["label"] = int(bool(row["label"]) and row.get("worked_out", True))
        counts["right" if row["label"] else "wrong"] += 1
        if verdict.score is None:
            mistake = "no score"
        elif (verdict.score >= 0.5) == bool(row["label"]):
            continue
        else:
            mistake = "refused" if row["label"] else "paid"
        counts[mistake] += 1
        print(f"{mistake:8} {row['id']} {row['family']}: {row['answer'][:100]!r}, gold {row['reference']!r:.60}: {verdict.reason[:100]}")
    if arguments.out:
        lines = [
            json.dumps({"id": row["id"], "label": row["label"], "score": verdict.score, "reason": verdict.reason})
            for row, verdict in zip(rows, verdicts, strict=True)
        ]
        arguments.out.write_text("\n".join(lines) + "\n", "utf-8")
    refused = counts["refused"] / counts["right"]
    print(f"{counts['wrong']} wrong answers, {counts['paid']} paid (bar 0)")
    print(f"{counts['right']} right answers, {counts['refused']} refused: {refused:.1%} (bar {REFUSED_AT_MOST:.1%})")
    print(f"{counts['no score']} without a score (bar 0)")
    print(json.dumps({"set": arguments.set} | {key: counts[key] for key in ("wrong", "paid", "right", "refused", "no score")}))
    return int(counts["paid"] > 0 or refused > REFUSED_AT_MOST or counts["no score"] > 0)


if __name__ == "__main__":
    raise SystemExit(main())
