r"""How often `symbolic` pays answers that were not worked out, and whether it still pays the published solutions.

    python benchmarks/verifiers/worked_out.py DATA [--right worked_out_right.jsonl]

DATA holds `math500.jsonl` and `gsm8k_test.jsonl`. Three questions:
1. Every formula of a question of MATH-500, as it is and in the disguises of `DISGUISES`, in a box: on how many questions is one paid?
   A formula that is the gold's own expression is left out, and so is an equation's name for the value.
2. The whole calculation of a solution of GSM8K with every result replaced by the calculation that gave it (`48+48/2` for 72): how many?
3. The published solutions of both: how many are paid?
The rows of `worked_out_right.jsonl` are right answers in other forms than the gold's: how many are refused?
The exit code is 1 if a bar is missed.
"""

from __future__ import annotations

import argparse
import json
import re
from collections import Counter
from pathlib import Path

import rlvr

HERE = Path(__file__).parent
DISGUISES = {
    "as it is": "{}",
    "+0": "{}+0",
    "*1": r"({})\cdot 1",
    "0+": "0+{}",
    "1*": r"1\cdot({})",
    "parentheses": "(({}))",
    "-(-x)": "-(-({}))",
    "/1": "({})/1",
    r"\frac{x}{1}": r"\frac{{{}}}{{1}}",
    "x^1": "({})^1",
    r"\sqrt{x^2}": r"\sqrt{{({})^2}}",
    "split sum": r"\frac{{{0}}}{{2}}+\frac{{{0}}}{{2}}",
    "+1-1": "{}+1-1",
    "unevaluated power": r"(\sqrt{{{}}})^2",
    r"\text": r"\text{{{}}}",
}
FORMULA = re.compile(r"\$\$(.+?)\$\$|\$([^$]+)\$", re.DOTALL)
ANNOTATION = re.compile(r"<<([^=<>]+)=([^<>]+)>>")
MAX_CALCULATION_CHARS = 2000
MAX_PAID_QUESTIONS = 1
MAX_REFUSED = 0.01


def read_lines(path: Path) -> list[dict[str, str]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines() if line.strip()]


def find_formulas(problem: str) -> list[str]:
    """The formulas of a question, without single numbers and letters, which may be the answer to a choice."""
    found = [(display or inline).strip().rstrip("?.,;:! ") for display, inline in FORMULA.findall(problem)]
    found += [found_one.rpartition("=")[0] for found_one in found if found_one.endswith("=")]
    return [one for one in dict.fromkeys(found) if one and len(one) <= 300]


def is_arithmetic(formula: str) -> bool:
    """Whether a formula has something to work out; a bare numeral, a letter, a point or a word has not."""
    return re.search(r"[-+*/^=!]|\\(?!text|mathrm|circ|%|\$|,|!|pi\b|ldots|dots)[a-z]", formula.strip("-+")) is not None


def nest_calculation(solution: str) -> str | None:
    """Replace every result in the last calculation of a solution by the calculation that gave it; None without calculations."""
    steps = [(left.strip(), right.strip()) for left, right in ANNOTATION.findall(solution)]
    if not steps:
        return None
    nested: dict[str, str] = {}
    for left, right in steps:
        nested[right] = re.sub(r"\d+(?:\.\d+)?", lambda number: f"({nested[number[0]]})" if number[0] in nested else number[0], left)[
            :MAX_CALCULATION_CHARS
        ]
    return nested[steps[-1][1]]


def measure_formulas(verifier: rlvr.Verifier, rows: list[dict[str, str]], only: str) -> int:
    """Count the questions of which a disguised formula is paid."""
    paid_by_disguise: Counter[str] = Counter()
    paid: set[int] = set()
    for place, row in enumerate(rows):
        task = rlvr.Task(rlvr.make_user_prompt(row["problem"]), row["answer"], id=str(place))
        formulas = find_formulas(row["problem"])
        for name, disguise in DISGUISES.items():
            hits = [
                one for one in formulas if (is_arithmetic(one) or only == "all") and "".join(one.split()) != "".join(row["answer"].split())
            ]
            hits = [one for one in hits if verifier.verify(task, f"\\boxed{{{disguise.format(one)}}}").score == 1.0]
            if hits:
                paid_by_disguise[name] += 1
                paid.add(place)
                print(f"  paid: question {place}, {name}: {disguise.format(hits[0])!r} for {row['answer']!r}")
    print("questions paid by disguise:", {name: paid_by_disguise[name] for name in DISGUISES})
    return len(paid)


def measure_calculations(verifier: rlvr.Verifier, rows: list[dict[str, str]]) -> tuple[int, int]:
    """Count the problems of GSM8K whose undone calculation is paid, and the problems with a calculation."""
    paid = counted = 0
    for place, row in enumerate(rows):
        calculation = nest_calculation(row["answer"])
        if calculation is None:
            continue
        counted += 1
        gold = row["answer"].rpartition("####")[2].strip().replace(",", "")
        task = rlvr.Task(rlvr.make_user_prompt(row["question"]), gold, id=str(place))
        last = ANNOTATION.findall(row["answer"])[-1][0]
        for answer in (calculation, last):
            if re.search(r"\d\s*[-+*/]", answer) and verifier.verify(task, f"\\boxed{{{answer}}}").score == 1.0:
                paid += 1
                print(f"  paid: problem {place}: {answer[:100]!r} for {gold}")
                break
    return paid, counted


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="the folder with math500.jsonl and gsm8k_test.jsonl")
    parser.add_argument("--right", type=Path, default=HERE / "worked_out_right.jsonl", help="right answers in other forms")
    parser.add_argument(
        "--formulas", choices=("arithmetic", "all"), default="arithmetic", help="also formulas that have nothing to work out"
    )
    arguments = parser.parse_args()
    math500, gsm8k = read_lines(arguments.data / "math500.jsonl"), read_lines(arguments.data / "gsm8k_test.jsonl")
    with rlvr.make_verifier("symbolic") as verifier:
        solved = [rlvr.Task(rlvr.make_user_prompt(row["problem"]), row["answer"], id=str(k)) for k, row in enumerate(math500)]
        verdicts = verifier.verify_many(solved, [row["solution"] for row in math500])
        refused_math = [f"{k}: {verdict.reason[:120]}" for k, verdict in enumerate(verdicts) if verdict.score != 1.0]
        golds = [row["answer"].rpartition("####")[2].strip().replace(",", "") for row in gsm8k]
        solved = [
            rlvr.Task(rlvr.make_user_prompt(row["question"]), gold, id=str(k))
            for k, (row, gold) in enumerate(zip(gsm8k, golds, strict=True))
        ]
        verdicts = verifier.verify_many(solved, [re.sub(r"<<[^>]*>>", "", row["answer"]) for row in gsm8k])
        refused_gsm8k = [f"{k}: {verdict.reason[:120]}" for k, verdict in enumerate(verdicts) if verdict.score != 1.0]
        paid_questions = measure_formulas(verifier, math500, arguments.formulas)
        paid_calculations, calculations = measure_calculations(verifier, gsm8k)
        right = read_lines(arguments.right) if arguments.right.is_file() else []
        tasks = [rlvr.Task(rlvr.make_user_prompt(row.get("prompt") or "?"), row["reference"], id=str(k)) for k, row in enumerate(right)]
        verdicts = verifier.verify_many(tasks, [row["answer"] for row in right])
        refused = [(row, verdict) for row, verdict in zip(right, verdicts, strict=True) if verdict.score != 1.0]
    for row, verdict in refused:
        print(f"  refused: {row['answer']!r} for {row['reference']!r}: {verdict.reason[:140]}")
    print("solutions refused:", refused_math, refused_gsm8k)
    print(f"MATH-500: a formula of the question is paid on {paid_questions} of {len(math500)} questions (bar {MAX_PAID_QUESTIONS})")
    print(f"GSM8K: an undone calculation is paid on {paid_calculations} of {calculations} problems (bar 0)")
    print(
        f"published solutions paid: MATH-500 {len(math500) - len(refused_math)} of {len(math500)}, GSM8K {len(gsm8k) - len(refused_gsm8k)} of {len(gsm8k)}"
    )
    share = len(refused) / max(1, len(right))
    print(f"right answers in other forms: {len(refused)} of {len(right)} refused, {share:.1%} (bar {MAX_REFUSED:.0%})")
    solutions = {"math500_refused": len(refused_math), "gsm8k_refused": len(refused_gsm8k)}
    unworked = {"formulas_paid": paid_questions, "calculations_paid": paid_calculations, "calculations": calculations}
    print(json.dumps({**solutions, **unworked, "other_forms": len(right), "other_forms_refused": len(refused)}))
    return int(paid_questions > MAX_PAID_QUESTIONS or paid_calculations > 0 or share > MAX_REFUSED)


if __name__ == "__main__":
    raise SystemExit(main())
