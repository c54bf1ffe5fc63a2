r"""Write the labelled corpus of the math verifier: tests/corpora/math/FAMILY.jsonl, one pair per line, from families.txt.

The labels are by construction: every right answer is the gold in another form, every wrong one differs in value, in kind, or
attempts a trick. Run it again after an edit; the files are committed, so that a changed label shows in the diff.
"""

from __future__ import annotations

import json
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[2] / "tests" / "corpora" / "math"


def families() -> dict[str, tuple[list[list[str]], list[str]]]:
    """The parameters and the rows of every family."""
    found: dict[str, tuple[list[list[str]], list[str]]] = {}
    parameters: list[list[str]] = []
    rows: list[str] = []
    for line in (FOLDER / "families.txt").read_text("utf-8").splitlines():
        if line.startswith("["):
            parameters, rows = [], []
            found[line.strip("[]")] = (parameters, rows)
        elif line.startswith("= "):
            parameters.append([value.strip() for value in line[2:].split("|")])
        elif line.strip() and not line.startswith("#"):
            rows.append(line)
    return found


def pairs(family: str, parameters: list[list[str]], rows: list[str]) -> list[dict[str, object]]:
    """The pairs of one family, without repeats; a pair that is labelled both ways is an error."""
    found: dict[tuple[str, str], dict[str, object]] = {}
    for row in rows:
        for values in parameters or [[]]:
            filled = row
            for name, value in zip("abcdefgh", values, strict=False):
                filled = filled.replace(f"<{name}>", value)
            gold, right, wrong = (part.strip() for part in filled.split(";;"))
            for label, side in ((True, right), (False, wrong)):
                for answer in (piece.strip() for piece in side.split("||") if piece.strip()):
                    answer = answer.replace("EMPTY", "").replace("NEWLINE", "\n")
                    known = found.setdefault((gold, answer), {"family": family, "reference": gold, "answer": answer, "right": label})
                    if known["right"] is not label:
                        raise SystemExit(f"{family}: {gold} <- {answer} is labelled both ways")
    return list(found.values())


def main() -> None:
    """Write every family's file and print its size."""
    total = 0
    read = families()
    for family, (parameters, lines_of) in read.items():
        rows = pairs(family, parameters, lines_of)
        right = sum(bool(row["right"]) for row in rows)
        total += len(rows)
        print(f"{family:14} right {right:4} wrong {len(rows) - right:4}")
        lines = [json.dumps({"id": f"{family}/{k}", **row}, ensure_ascii=False) for k, row in enumerate(rows)]
        (FOLDER / f"{family}.jsonl").write_text("\n".join(lines) + "\n", "utf-8")
    print(f"{total} pairs in {len(read)} families")


if __name__ == "__main__":
    main()
