"""Check that published golds accept their own rewrites and refuse wrong neighbours. One line for each kind, then JSON.

python benchmarks/symbolic/golds.py --data FOLDER      (math500.jsonl and gsm8k_test.jsonl)
"""

from __future__ import annotations

import argparse
import json
import random
import re
from collections import Counter
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

from rlvr.task import Task, make_user_prompt
from rlvr.verifiers.math.parsing.parser import parse_answer
from rlvr.verifiers.math.parsing.tree import LimitExceeded, ParseError
from rlvr.verifiers.math.values.rational import NotFinite, to_rational
from rlvr.verifiers.symbolic import Symbolic


def value(gold: str) -> Fraction | None:
    """The gold as a rational, if it is one."""
    try:
        return to_rational(parse_answer(gold))
    except (ParseError, LimitExceeded, NotFinite):
        return None


def other_form(gold: str) -> str:
    """A decimal as a fraction, a fraction as a decimal if that is exact, an integer as a fraction over one."""
    number = value(gold)
    if number is None:
        return gold
    if number.denominator == 1:
        return f"\\frac{{{2 * number.numerator}}}{{2}}"
    low = number.denominator
    while low % 2 == 0:
        low //= 2
    while low % 5 == 0:
        low //= 5
    return str(float(number)) if low == 1 and number.denominator < 10**6 else f"{3 * number.numerator}/{3 * number.denominator}"


def sized(gold: str) -> str:
    r"""Brackets with \left and \right."""
    if "\\left" in gold or "text" in gold or re.search(r"[\[(][^\])]*$|^[^\[(]*[\])]", gold):
        return gold
    return re.sub(r"(?<!\\)([\[(])", r"\\left\1", re.sub(r"(?<!\\)([\])])", r"\\right\1", gold))


REWRITES: dict[str, Callable[[str], str]] = {
    "boxed in prose": lambda g: f"After some work we find that the answer is $\\boxed{{{g}}}$, as wanted.",
    "spaced": lambda g: f"$ {re.sub(r'(?<=[+=,])(?!!)', ' ', g)} $" if "text" not in g and not re.search(r"\d,\d{3}", g) else f" {g} ",
    "dfrac": lambda g: re.sub(r"\\frac", r"\\dfrac", g),
    "tag after thought": lambda g: f"<think>perhaps \\boxed{{7}}?</think><answer>{g}</answer>",
    "left and right": sized,
    "final line": lambda g: f"The final answer is ${g}$. I hope it is correct.",
    "other form": other_form,
    "with a period": lambda g: f"\\boxed{{{g}.}}",
}


def neighbours(gold: str, golds: list[str], rng: random.Random) -> dict[str, str]:
    """Answers near the gold that are wrong."""
    found = {"another task's gold": rng.choice(golds)}
    digits = [k for k, c in enumerate(gold) if c.isdigit()]
    if digits:
        at = rng.choice(digits)
        found["a digit changed"] = gold[:at] + str((int(gold[at]) + rng.randint(1, 9)) % 10) + gold[at + 1 :]
        found["a digit added"] = gold[: digits[-1] + 1] + "7" + gold[digits[-1] + 1 :]
    if value(gold) != 0 and not re.search(r"text|pm|\\in|begin|^[(\[]|=|,|\{", gold):
        found["the sign"] = gold[1:] if gold.startswith("-") else f"-({gold})"
    match = re.fullmatch(r"\(([^,()]+),([^,()]+)\)", gold)
    if match and match[1].strip() != match[2].strip():
        found["the order"] = f"({match[2]},{match[1]})"
    swap = {"(": "[", "[": "(", ")": "]", "]": ")"}
    if re.fullmatch(r"[(\[].*[)\]]", gold) and "infty" not in gold:
        found["open or closed"] = gold[:-1] + swap[gold[-1]]
    return {kind: answer for kind, answer in found.items() if not same(answer, gold)}


def same(a: str, b: str) -> bool:
    """Whether two golds are obviously equal, so that they are not neighbours."""
    x, y = value(a.strip("$")), value(b.strip("$"))
    return "".join(a.split()) == "".join(b.split()) or (x is not None and x == y)


def main() -> None:
    """Print how many rewrites are accepted and how many neighbours refused."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--data", type=Path, required=True)
    given = options.parse_args()
    rng = random.Random(11)
    accepted: Counter[str] = Counter()
    refused: Counter[str] = Counter()
    asked: Counter[str] = Counter()
    ungradeable, total = [], 0
    with Symbolic() as verifier:
        for file in ("math500.jsonl", "gsm8k_test.jsonl"):
            golds = [
                json.loads(line)["answer"].rpartition("####")[2].strip() for line in (given.data / file).read_text("utf-8").splitlines()
            ]
            total += len(golds)
            for gold in golds:
                task = Task(make_user_prompt("?"), id="t", reference=gold)
                lint = verifier.lint(gold)
                if lint.score is None:
                    ungradeable.append(lint.reason)
                    print("ungradeable:", lint.reason)
                    continue
                for kind, rewrite in REWRITES.items():
                    verdict = verifier.verify(task, rewrite(gold))
                    asked[kind] += 1
                    accepted[kind] += verdict.passed
                    if not verdict.passed:
                        print(f"refused: {gold} <- {rewrite(gold)}: {verdict.reason}")
                for kind, answer in neighbours(gold, golds, rng).items():
                    verdict = verifier.verify(task, f"\\boxed{{{answer}}}")
                    asked[kind] += 1
                    refused[kind] += verdict.score == 0.0
                    if verdict.score != 0.0:
                        print(f"accepted: {gold} <- {answer}: {verdict.reason}")
    for kind in asked:
        good = accepted[kind] if kind in REWRITES else refused[kind]
        print(f"{kind:22} {good:5} of {asked[kind]:5} {'accepted' if kind in REWRITES else 'refused'}")
    line = {"golds": total, "ungradeable": len(ungradeable), "rewrites": sum(asked[k] for k in REWRITES)}
    line |= {"rewrites_accepted": sum(accepted.values()), "neighbours": sum(asked.values()) - line["rewrites"]}
    print(json.dumps(line | {"neighbours_refused": sum(refused.values())}))


if __name__ == "__main__":
    main()
