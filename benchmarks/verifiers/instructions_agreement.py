"""How often `instructions` agrees with the published checkers of IFEval and IFBench.

    python benchmarks/verifiers/instructions_agreement.py --prompts F --responses F --verdicts F             their published verdicts
    python benchmarks/verifiers/instructions_agreement.py --prompts F --responses F --checkers PYTHON        their checkers, asked here

The files are those of IFBench's repository: `data/IFBench_test.jsonl`, `data/sample_output.jsonl` and
`eval/eval_results_strict.jsonl` (or `_loose`). PYTHON can import that repository's package `ifbench`, and nltk finds its data: each
response is then asked about under the instructions of other prompts too, and under the 25 kinds of IFEval. Disagreements are counted by
kind and direction, with the reason that the table of kinds gives; one without a reason is printed with its text, and the exit code is 1.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rlvr import Task, make_verifier, user
from rlvr.verifiers.instruction_checks.registry import IFEVAL, INSTRUCTIONS

PEER = Path(__file__).parents[1] / "_peers" / "instructions_peer.py"
WORDS = {"forbidden_words": ["the", "a", "is", "and", "data"], "keywords": ["one", "time", "will", "new", "for"]}


def rows_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines() if line.strip()]


def published(arguments: argparse.Namespace) -> Iterator[tuple[str, dict[str, Any], str, bool]]:
    """Id, arguments, response and published verdict, of the files."""
    responses = {row["prompt"]: row["response"] for row in rows_of(arguments.responses)}
    theirs = {row["prompt"]: row["follow_instruction_list"] for row in rows_of(arguments.verdicts)}
    for row in rows_of(arguments.prompts):
        if row["prompt"] in responses and row["prompt"] in theirs:
            for kind, given, followed in zip(row["instruction_id_list"], row["kwargs"], theirs[row["prompt"]], strict=True):
                yield kind, given, responses[row["prompt"]], followed


def pairs(arguments: argparse.Namespace) -> list[tuple[str, dict[str, Any], str]]:
    """Each instruction of IFBench with its own response and some others, each kind of IFEval with many, and the examples of each kind."""
    responses = {row["prompt"]: row["response"] for row in rows_of(arguments.responses)}
    texts, dice, found = sorted(set(responses.values())), random.Random(arguments.seed), []
    for row in rows_of(arguments.prompts):
        for name, given in zip(row["instruction_id_list"], row["kwargs"], strict=True):
            own = [responses[row["prompt"]]] if row["prompt"] in responses else []
            found += [(name, given, text) for text in [*own, *dice.sample(texts, arguments.others)]]
    for kind in INSTRUCTIONS.values():
        found += [(kind.id, dict(kind.example_arguments), text) for text in (kind.correct, kind.incorrect)]
    for kind in IFEVAL.values():
        for text in dice.sample(texts, min(len(texts), 8 * arguments.others)):
            found.append((kind.id, {name: varied(name, value, text, dice) for name, value in kind.example_arguments.items()}, text))
    return found


def varied(name: str, value: Any, text: str, dice: random.Random) -> Any:
    """Another argument of the same kind, such that some texts follow the instruction and some do not."""
    if name in WORDS:
        return dice.sample(WORDS[name], 2)
    if name == "letter":
        return dice.choice("aeiqxz")
    if name in ("keyword", "first_word"):
        return dice.choice(text.split() or ["the"]).strip(".,:;*!?()\"'#-") or "the"
    if name == "end_phrase":
        return dice.choice([text[-12:].strip() or "x", value])
    if name in ("relation", "let_relation", "capital_relation"):
        return dice.choice(["at least", "less than"])
    if name == "num_words":
        return dice.choice([50, 150, 300, 500])
    if name in ("num_sentences", "let_frequency", "num_bullets"):
        return dice.randrange(1, 20)
    return value if not isinstance(value, int) else dice.randrange(1, 5)


def asked(arguments: argparse.Namespace) -> Iterator[tuple[str, dict[str, Any], str, bool]]:
    """Id, arguments, response and verdict of the published checkers; what they cannot judge is left out, and counted on the screen."""
    made = pairs(arguments)
    lines = "".join(json.dumps({"id": name, "kwargs": given, "response": text}) + "\n" for name, given, text in made)
    told = subprocess.run([arguments.checkers, str(PEER)], input=lines, stdout=subprocess.PIPE, text=True, check=True).stdout
    failed: Counter[str] = Counter()
    for (name, given, text), line in zip(made, told.splitlines(), strict=True):
        verdict = json.loads(line)
        if isinstance(verdict, bool):
            yield name, given, text, verdict
        else:
            failed[f"{name}: {verdict[:90]}"] += 1
    for words, count in failed.most_common():
        print(f"  {count:4} not judged by the published checker: {words}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=Path, required=True, help="IFBench_test.jsonl")
    parser.add_argument("--responses", type=Path, required=True, help="sample_output.jsonl")
    parser.add_argument("--verdicts", type=Path, help="eval_results_strict.jsonl or eval_results_loose.jsonl")
    parser.add_argument("--checkers", help="a Python in which the published checkers can be imported")
    parser.add_argument("--others", type=int, default=8, help="how many responses to other prompts each instruction is asked about")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="write the disagreements as JSON lines")
    parser.add_argument("--loose", action="store_true", help="the verdicts are the loose ones")
    arguments = parser.parse_args()
    if bool(arguments.verdicts) == bool(arguments.checkers):
        parser.error("give --verdicts or --checkers")
    verifier = make_verifier("instructions", loose=arguments.loose)
    counts: Counter[str] = Counter()
    different: Counter[tuple[str, bool]] = Counter()
    examples: dict[tuple[str, bool], tuple[dict[str, Any], str]] = {}
    texts, rows = set(), list[str]()
    for kind, given, text, followed in published(arguments) if arguments.verdicts else asked(arguments):
        verdict = verifier.verify(Task(user("?"), {"instruction_id_list": [kind], "kwargs": [given]}, id="t"), text)
        mine = verdict.score == 1.0
        texts.add(text)
        counts["no score"] += verdict.score is None
        counts["asked"] += 1
        counts["agree"] += mine == followed
        counts["followed, rlvr"] += mine
        counts["followed, published"] += followed
        if mine != followed:
            different[kind, mine] += 1
            told = {name: value for name, value in given.items() if value is not None}
            rows.append(json.dumps({"id": kind, "kwargs": told, "response": text, "rlvr": mine, "published": followed}) + "\n")
            if len(text) < len(examples.get((kind, mine), ({}, text + "."))[1]):
                examples[kind, mine] = told, text
    if arguments.out:
        arguments.out.write_text("".join(rows), "utf-8")
    for name, count in {**counts, "different texts": len(texts)}.items():
        print(f"{name:24} {count}")
    unexplained = 0
    for (kind, mine), count in different.most_common():
        reason = INSTRUCTIONS[kind].difference_note
        unexplained += 0 if reason else count
        sides = ("followed", "not followed") if mine else ("not followed", "followed")
        print(f"  {count:4} {kind}: rlvr {sides[0]}, published {sides[1]}: {reason or 'NO REASON IS KNOWN'}")
        if not reason:
            print(f"       {examples[kind, mine]}")
    print(f"disagreements without a reason: {unexplained} (bar 0)")
    return int(unexplained > 0)


if __name__ == "__main__":
    sys.exit(main())
