"""The math verifier is right both ways: the labelled corpus, laws, policies, golds, hostile answers."""

from __future__ import annotations

import asyncio
import concurrent.futures
import json
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlvr.task import Fault, Task, Verdict, make_user_prompt
from rlvr.verifiers.symbolic import Symbolic

CORPUS = Path(__file__).parents[1] / "corpora" / "math"
DATA = Path(__file__).resolve().parents[3] / "shared" / "data"


@pytest.fixture(scope="module")
def verifier() -> Iterator[Symbolic]:
    with Symbolic() as plugin:
        yield plugin


def ask(verifier: Symbolic, reference: Any, answer: str, **meta: Any) -> Verdict:
    return verifier.verify(Task(make_user_prompt("?"), id="t", reference=reference, meta=meta), answer)


def rows(family: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (CORPUS / f"{family}.jsonl").read_text("utf-8").splitlines()]


FAMILIES = sorted(path.stem for path in CORPUS.glob("*.jsonl"))


def test_the_corpus_is_large_enough() -> None:
    sizes = {family: [row["right"] for row in rows(family)] for family in FAMILIES}
    assert len(sizes) >= 15 and sum(map(len, sizes.values())) >= 1_200
    for family, labels in sizes.items():
        assert sum(labels) >= 40 and len(labels) - sum(labels) >= 40, family


@pytest.mark.parametrize("family", FAMILIES)
def test_every_labelled_pair_is_judged_as_labelled(verifier: Symbolic, family: str) -> None:
    wrong = []
    for row in rows(family):
        verdict = ask(verifier, row["reference"], row["answer"], **row.get("meta", {}))
        if verdict.score != float(row["right"] and row.get("worked_out", True)):
            wrong.append(f"{row['reference']} <- {row['answer']}: {verdict.score} ({verdict.reason})")
    assert wrong == []


def test_rows_that_are_not_worked_out_have_the_right_value() -> None:
    marked = [row for family in FAMILIES for row in rows(family) if not row.get("worked_out", True)]
    with Symbolic(conventions={"worked_out": "lenient"}) as lenient:
        verdicts = [ask(lenient, row["reference"], row["answer"], **row.get("meta", {})) for row in marked]
    assert len(marked) > 80 and all(verdict.score == 1.0 for verdict in verdicts)


POLICIES = [
    ("50\\%", "50", {"percent": "strict"}, 0.0),
    ("50\\%", "0.5", {"percent": "strict"}, 1.0),
    ("5 cm", "5", {"units": "required"}, 0.0),
    ("5 cm", "5", {}, 1.0),
    ("1, 2", "2, 1", {"order": "strict"}, 0.0),
    ("(1, 2)", "1, 2", {"brackets": "strict"}, 0.0),
    ("1/2", "2/4", {"form": "reduced"}, 0.0),
    ("1/2", "1/2", {"form": "reduced"}, 1.0),
    ("42", "6*7", {"form": "numeral"}, 0.0),
    ("42", "42", {"form": "numeral"}, 1.0),
    ("(x+1)^2", "x^2+2x+1", {"form": "factored"}, 0.0),
    ("(x+1)^2", "(1+x)^2", {"form": "factored"}, 1.0),
    ("x^2+2x+1", "(1+x)^2", {"form": "expanded"}, 0.0),
    ("52_8", "52", {"base": "optional"}, 1.0),
    ("x", "x", {"allow_symbol": True}, 1.0),
    ("3.14", "\\pi", {"tolerance": 1e-6}, 0.0),
    ("2", r"\boxed{1} \boxed{2}", {"multiple_answers": "last"}, 1.0),
]


@pytest.mark.parametrize(("reference", "answer", "conventions", "score"), POLICIES)
def test_the_policy_of_a_task_decides_and_is_echoed(
    verifier: Symbolic, reference: str, answer: str, conventions: dict[str, Any], score: float
) -> None:
    verdict = ask(verifier, reference, answer, conventions=conventions)
    assert verdict.score == score, verdict.reason
    assert verdict.detail.get("conventions", {}) == conventions


@pytest.mark.parametrize("conventions", [{"percnt": "strict"}, {"percent": "sometimes"}, "strict", {"tolerance": 2}])
def test_a_policy_that_does_not_exist_is_the_tasks_fault(verifier: Symbolic, conventions: Any) -> None:
    assert ask(verifier, "1", "1", conventions=conventions).fault is Fault.TASK


@pytest.mark.parametrize(
    "gold", ["", "x", r"1-\frac{1}{\foo}", r"\frac00", r"\infty-\infty", "1 2", "(1,", r"\int", "٣", None, float("nan"), True]
)
def test_a_gold_that_cannot_be_judged_pays_nobody(verifier: Symbolic, gold: Any) -> None:
    for answer in ("1", str(gold), ""):
        verdict = ask(verifier, gold, answer)
        assert verdict.score is None and verdict.fault is Fault.TASK


@pytest.mark.parametrize(
    ("answer", "score"),
    [
        (r"\boxed{<answer>5</answer>}", 1.0),
        (r"\boxed{\text{<answer>5</answer>}}", 1.0),
        (r"\boxed{<answer>\frac{20}{4} = 5</answer>}", 1.0),
        (r"\boxed{<answer>6</answer>}", 0.0),
        (r"\boxed{<answer>5</answer><answer>6</answer>}", 0.0),
        (r"\boxed{6<answer>5</answer>}", 0.0),
        (r"\boxed{<answer>6</answer>} \boxed{5}", 0.0),
        (r"\boxed{<answer>5</answer>} or 6", 0.0),
        (r"\boxed{<answer>5}", 0.0),
    ],
)
def test_answer_tags_around_the_content_of_a_box_are_wrapping(verifier: Symbolic, answer: str, score: float) -> None:
    assert ask(verifier, "5", answer).score == score


def test_reasons_are_in_words(verifier: Symbolic) -> None:
    assert "closed at 1" in ask(verifier, "[1, 2)", "(1, 2)").reason
    assert "conflict" in ask(verifier, "5 cm", "5 kg").reason
    assert "chain" in ask(verifier, "42", "x=41=42").reason


@settings(max_examples=100, deadline=None)
@given(st.fractions(max_denominator=999), st.integers(1, 9))
def test_rationals_equal_themselves_however_written_and_nothing_else(value: Any, factor: int) -> None:
    gold = f"\\frac{{{value.numerator}}}{{{value.denominator}}}"
    scaled = f"{value.numerator * factor}/{value.denominator * factor}"
    assert ask(PLAIN, gold, scaled).score == 1.0
    assert ask(PLAIN, scaled, gold).score == 1.0
    assert ask(PLAIN, gold, f"{value.numerator * factor + 1}/{value.denominator * factor}").score == 0.0


PLAIN = Symbolic()


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from([row for family in ("fractions", "intervals", "sets", "hacks") for row in rows(family)]),
    st.text("abc xyz.,", max_size=40),
)
def test_what_is_said_around_the_box_does_not_matter(row: dict[str, Any], around: str) -> None:
    if "\\boxed" in row["answer"] or "<" in row["answer"] or "answer" in row["answer"] or not row["answer"].strip():
        return
    boxed = f"\\boxed{{{row['answer']}}}"
    alone = ask(PLAIN, row["reference"], boxed)
    assert ask(PLAIN, row["reference"], f"So, {around}: {boxed}").score == alone.score
    assert ask(PLAIN, row["reference"], f"<think>{around} \\boxed{{17}}</think> {boxed} {around}").score == alone.score


SYMMETRIC = ["integers", "fractions", "radicals", "complex", "polynomials", "matrices"]


@pytest.mark.parametrize("family", SYMMETRIC)
def test_equality_of_plain_values_is_symmetric(verifier: Symbolic, family: str) -> None:
    for row in rows(family)[::3]:
        if any(sign in row["answer"] for sign in ("=", ".", "boxed", "answer", "$", "text", ",", "(", "0.", "pm")):
            continue
        back = ask(verifier, row["answer"], row["reference"])
        assert back.score is None or back.score == float(row["right"]), row


def test_random_and_mutated_strings_break_nothing(verifier: Symbolic) -> None:
    for text in strings(random.Random(7), 4_000):
        gold = ("12", r"\frac{1}{2}", "(1,2]", r"x^2+1", r"\text{east}")[len(text) % 5]
        verdict = ask(verifier, gold, text)
        assert verdict.score in (0.0, 1.0), (text, verdict)


def strings(rng: random.Random, count: int) -> Iterator[str]:
    seeds = [row["answer"] for family in FAMILIES for row in rows(family)[::7]]
    pieces = [
        *"0123456789+-*/^_=<>(){}[]|,.!'%$&x\\ ",
        r"\frac",
        r"\sqrt",
        r"\boxed{",
        "}",
        r"\text{",
        r"\pm",
        r"\begin{cases}",
        r"\\",
        "or",
        "^{",
        "_{",
    ]
    for _ in range(count):
        if rng.random() < 0.5:
            yield "".join(rng.choice(pieces) for _ in range(rng.randint(1, 25)))
            continue
        text = rng.choice(seeds)
        for _ in range(rng.randint(1, 3)):
            at = rng.randint(0, len(text))
            text = text[:at] + rng.choice(pieces) + text[at + rng.randint(0, 2) :]
        yield text


BOMBS = [
    "9^{9^{9^{9}}}", "10^{10^{10}}", "(10^9)!", r"\binom{10^9}{5\cdot10^8}", "(" * 3000 + "1" + ")" * 3000,
    r"\frac{1}{" * 200 + "1" + "}" * 200,
    "2^{" * 1000, r"\sum_{k=1}^{10000000} k", "$" * 20_000, r"\boxed{" * 20_000, "answer is " * 20_000, "9" * 200_000, "(x+1)^{999999}",
    "(a+b+c+d+e+f)^{60}", r"\sin(" * 30 + "x" + ")" * 30, "((((x^{64})^{64})^{64})^{64})^{64}", "x" * 5_000, "1," * 3_000,
    "-" * 5_000 + "1",
    r"\sqrt{" * 35 + "2" + "}" * 35, "1" + "+1/3" * 1_500, "__import__('os').system('touch canary')", "1e999999", "2^{2^{2^{2^{2^{2}}}}}",
    "|" * 35 + "x" + "|" * 35, r"\sqrt{1+" * 30 + "x" + "}" * 30, r"\frac{1}{" + r"\sum_{k=1}^{299}" * 8 + "1}",
    *(r"\boxed{" + head + " " * 5_800 + tail + "}" for head, tail in
      (("1", "remainder 3x"), (r"\text{", "; or} 3"), ("^", "x"), ("1^", r"\circ 3"))),
    r"\tan(10^{10^{6}})", r"\prod_{n=1}^{\infty} n", "(1+x)^{64}(1+y)^{64}(1+z)^{64}", r"e^{e^{e^{e^{e}}}}", r"170!^{170!}",
]  # fmt: skip


def test_hostile_answers_cost_little_and_pay_nothing(verifier: Symbolic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for bomb in BOMBS:
        for gold in ("1", "x^2+1", r"\sin x", "1, 2"):
            start = time.process_time()
            verdict = ask(verifier, gold, bomb)
            assert verdict.score == 0.0, (bomb[:40], verdict)
            assert time.process_time() - start < 2, bomb[:40]
    assert not list(tmp_path.iterdir())


def test_threads_and_asyncio_get_the_same_verdicts(verifier: Symbolic) -> None:
    pairs = [(row["reference"], row["answer"]) for family in ("functions", "radicals", "hacks") for row in rows(family)[::4]]
    alone = [ask(verifier, *pair).score for pair in pairs]
    with Symbolic() as fresh, concurrent.futures.ThreadPoolExecutor(8) as threads:
        assert list(threads.map(lambda pair: ask(fresh, *pair).score, pairs)) == alone

    async def together() -> list[float | None]:
        with Symbolic() as fresh:
            return [verdict.score for verdict in await asyncio.gather(*(asyncio.to_thread(ask, fresh, *pair) for pair in pairs[::2]))]

    assert asyncio.run(together()) == alone[::2]


@pytest.mark.parametrize("name", ["math500.jsonl", "gsm8k_test.jsonl"])
def test_published_golds_accept_themselves(verifier: Symbolic, name: str) -> None:
    if not (DATA / name).is_file():
        pytest.skip(f"NOT RUN: {name} is not in {DATA}")
    golds = [json.loads(line)["answer"].rpartition("####")[2].strip() for line in (DATA / name).read_text("utf-8").splitlines()]
    broken = [gold for gold in golds if ask(verifier, gold, f"So it is $\\boxed{{ {gold} }}$.").score != 1.0]
    assert broken == []
