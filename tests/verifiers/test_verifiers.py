# ruff: noqa: E501 -- tables of answers read better in lines
"""The verifiers that need no machinery: what exactly counts as a number, a text, a format, a sum of parts, an expression."""

from __future__ import annotations

import ast
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import rlvr
from rlvr import Fault, Task, Verdict, make_user_prompt, make_verifier
from rlvr.errors import AnswerTypeError, ConfigError, RlvrError, require_text_answers
from rlvr.registry.plugins import build_from_config, list_entries
from rlvr.verifiers._markup import MARKUP_RULES, strip_markdown_and_latex
from rlvr.verifiers.numeric import LEFT_SIDE_PATTERNS, WORD_RULES, parse_number, parse_statement


def ask(verifier: Any, reference: Any, answer: str) -> Verdict:
    verdict = verifier.verify(Task(make_user_prompt("q"), reference, id="t"), answer)
    assert isinstance(verdict, Verdict)
    return verdict


# ---- every verifier


class Lenient(rlvr.Verifier):
    """A verifier of a user's, that never looks at the type."""

    @require_text_answers
    def verify(self, task: Task, answer: str) -> Verdict:
        return Verdict(1.0, "fine")


class MoreLenient(Lenient):
    @require_text_answers
    def verify(self, task: Task, answer: str) -> Verdict:
        return super().verify(task, answer)


CHAT = [{"role": "assistant", "content": "4"}]


@pytest.mark.parametrize("answer", [CHAT, tuple(CHAT), None, 4, b"4", ["4"], {"content": "4"}])
@pytest.mark.parametrize("name", [*(entry.name for entry in list_entries("verifier")), "Lenient", "MoreLenient"])
def test_what_is_no_text_raises_and_never_scores(name: str, answer: Any) -> None:
    own = {"Lenient": Lenient, "MoreLenient": MoreLenient}
    settings: dict[str, dict[str, Any]] = {
        "composite": {"components": {"a": {"verifier": "numeric"}}},
        "unit_tests": {"sandbox": {"name": "process", "trusted": True}},
    }
    verifier = own[name]() if name in own else make_verifier(name, **settings.get(name, {}))
    with verifier, pytest.raises(AnswerTypeError, match=r"verifies a text, and was given a \w+: ") as raised:
        verifier.verify(Task(make_user_prompt("q"), "4", id="t"), answer)
    assert isinstance(raised.value, TypeError) and isinstance(raised.value, RlvrError)
    assert ("messages[-1]['content']" in str(raised.value)) == (answer in (CHAT, tuple(CHAT)))


# ---- numeric

NUMERALS = {
    "7": Fraction(7), "-7": Fraction(-7), "+7": Fraction(7), "−7": Fraction(-7), "007": Fraction(7), "7.": Fraction(7),
    "0.5": Fraction(1, 2), ".5": Fraction(1, 2), "1,234": Fraction(1234), "1,234,567.25": Fraction(123456725, 100),
    "3/4": Fraction(3, 4), "-3/4": Fraction(-3, 4), "1e3": Fraction(1000), "2.5E-2": Fraction(1, 40), "$1,200": Fraction(1200),
    "-$5": Fraction(-5), "50%": Fraction(50), "$7$": Fraction(7), " 7 ": Fraction(7),
}  # fmt: skip
NO_NUMERALS = [
    "", " ", ".", "-", "+", "nan", "NaN", "inf", "-inf", "Infinity", "1_000", "0x10", "0b1", "1,23", "12,34,567", "1,2345", "1 000", "1.2.3",
    "--7", "7-", "7+", "3/0", "3//4", "3/4/5", "1e", "e5", "1e5.5", "1e9999", "\u0667", "\uff17", "7 apples", "seven", "7,", "7 8", "7;", "(7)", "None", "True",
    "9" * 300,
]  # fmt: skip


@pytest.mark.parametrize(("text", "value"), NUMERALS.items())
def test_a_numeral_means_exactly_one_number(text: str, value: Fraction) -> None:
    assert parse_number(text) == value


@pytest.mark.parametrize("text", NO_NUMERALS)
def test_anything_else_means_none(text: str) -> None:
    assert parse_number(text) is None


@given(st.fractions(max_denominator=10**6), st.sampled_from(["fraction", "decimal"]))
def test_every_number_is_read_as_itself(value: Fraction, form: str) -> None:
    if form == "decimal":
        value = Fraction(round(value * 1000), 1000)
        sign, whole, part = "-" if value < 0 else "", abs(value) // 1, int(abs(value) % 1 * 1000)
        assert parse_number(f"{sign}{whole}.{part:03d}") == parse_number(f"{sign}{whole:,}.{part:03d}") == value
    else:
        assert parse_number(f"{value.numerator}/{value.denominator}") == value


@given(st.text())
def test_no_text_is_read_more_kindly_than_by_float(text: str) -> None:
    value = parse_number(text)
    if value is not None and not set(text) & set("/,$€£%\\−"):
        assert float(text.strip().rstrip(".") or "x") == pytest.approx(float(value))


def test_references_may_be_json_numbers_and_nothing_vague() -> None:
    numeric = make_verifier("numeric")
    assert ask(numeric, 0.1, "0.1").score == ask(numeric, 12, "12.0").score == ask(numeric, 1e21, "1e21").score == 1.0
    for reference in (None, True, "", "four", "1 or 2", float("nan"), float("inf"), [4], {"a": 1}):
        verdict = ask(numeric, reference, "4")
        assert (verdict.score, verdict.fault) == (None, Fault.TASK)


@pytest.mark.parametrize("example", [row[-1] for row in (*MARKUP_RULES, *WORD_RULES, *LEFT_SIDE_PATTERNS)])
def test_each_form_of_the_tables_is_read(example: str) -> None:
    numeric = make_verifier("numeric")
    assert ask(numeric, "280", example).score == 1.0
    assert ask(numeric, "281", example).score == ask(numeric, "35", example).score == 0.0
    assert ask(numeric, "281", example.replace("280", "281")).score == 1.0


def test_each_row_of_the_tables_is_needed() -> None:
    for table in (MARKUP_RULES, WORD_RULES, LEFT_SIDE_PATTERNS):
        for row in table:
            with pytest.MonkeyPatch.context() as patch:
                module = (
                    "rlvr.verifiers._markup.MARKUP_RULES"
                    if table is MARKUP_RULES
                    else f"rlvr.verifiers.numeric.{'WORD_RULES' if table is WORD_RULES else 'LEFT_SIDE_PATTERNS'}"
                )
                patch.setattr(module, tuple(other for other in table if other is not row))
                assert (
                    (strip_markdown_and_latex(row[-1]) != "280")
                    if table is MARKUP_RULES and "$" not in row[-1]
                    else (parse_statement(row[-1]) is None)
                ), row


MARKED = ["**280**", "***280***", "**`280`**", "`**280**`", "**280.**", "**280**.", "$280$", "$$280$$", r"\[280\]", "Answer: **280**", "**Answer:** 280",
          "The final answer is **280**.", "The product is **280**.", "**The product is 280.**", r"\boxed{**280**}", "<answer>**280**</answer>",
          "#### **280**", "35*8 = 280", "35*8=280.", "= 280", "=280", r"$35 \times 8 = 280$", r"\(35\cdot8=280\)", "**35 × 8 = 280**", "35 x 8 = 280",
          "7*5*8 = 7*40 = 280", "280 = 280", "Therefore, the result is 280", "So x = 280", "The sum of 270, 7, and 3 is 280.", "The last digit of the sum is 280",
          "That makes 280", "THE PRODUCT IS 280"]  # fmt: skip
HEDGED = ["**280** or **281**", "**281** **280**", "**281****280**", "281 = 280", "280 = 281 = 280", "35*8 = 281 = 280", "280, 281", "281, 280", "281, 280 = 280",
          "The product is 281. The product is 280.", "The product is not 280", "The product isn't 280", "The product is never 280.", "It is not = 280",
          "Not 35*8 = 280", "The product is maybe 280", "The product is about 280", "The product is 280?", "Is it 280?", "It is 280 or 281",
          "It is either 280", "It is 281, no: 280", "It is 281: 280", "x = 280, y = 281", "x = 281; x = 280", "x != 280", "x ≠ 280", "x < 280", "35*8 >= 280",
          "35*8 == 280", "35*8 = = 280", "35*8 = 280 =", "280 =", "= = 280", "35*8 ≈ 280",           "The product is 28 0", "The product is 280 (or 281)", "The opposite of the product is 280", "28_0", "2**8**0", "**28** **0**", "**28**0", "2**80",
          "The product is **28**0", "`280", "**280", "eval = 280", "__import__('os') = 280", "280 apples", "The product is 280 apples",           r"\boxed{35*8 = 280}", "#### 35*8 = 280", "<answer>The product is 280</answer>", "The product is 281\nThe product is 280", "281 makes 280"]  # fmt: skip


@pytest.mark.parametrize("answer", MARKED)
def test_marks_equations_and_plain_sentences_are_read(answer: str) -> None:
    assert ask(make_verifier("numeric"), "280", answer).score == 1.0
    assert ask(make_verifier("numeric"), "281", answer).score == 0.0


@pytest.mark.parametrize("answer", HEDGED)
def test_what_says_more_than_one_number_is_not_read(answer: str) -> None:
    assert [ask(make_verifier("numeric"), reference, answer).score for reference in ("280", "281", "28", "35", "2")] == [0.0] * 5


@given(
    st.lists(
        st.sampled_from(
            ["280", "281", "=", "*", "**", "`", "$", " ", ":", "is", "not", "or", "the product", "it", ",", "+", "(", ")", "."]
        ),
        max_size=12,
    )
)
def test_no_answer_is_right_for_two_references(words: list[str]) -> None:
    numeric, answer = make_verifier("numeric"), " ".join(words)
    assert sum(ask(numeric, reference, answer).score or 0.0 for reference in ("280", "281", "561", "1")) <= 1.0


@pytest.mark.parametrize(
    "text",
    [
        "*" * 50_000,
        "**a " * 20_000,
        "`" * 50_000,
        r"\(" * 20_000,
        "_a" * 20_000,
        "(" * 150 + "1",
        "1+" * 90,
        "1, " * 60 + "=1",
        "the " * 40,
    ],
)
def test_no_text_holds_the_reader_up(text: str) -> None:
    numeric = make_verifier("numeric")
    assert ask(numeric, "280", text).score == ask(numeric, "280", f"<answer>{text}</answer>").score == 0.0


def test_tolerances_are_exact_at_their_edge() -> None:
    near = make_verifier("numeric", tolerance=0.1)
    assert [ask(near, "4", text).score for text in ("4.1", "3.9", "4.1000001", "3.8999")] == [1.0, 1.0, 0.0, 0.0]
    share = make_verifier("numeric", relative=0.01)
    assert [ask(share, "-200", text).score for text in ("-202", "-198", "-202.1", "200")] == [1.0, 1.0, 0.0, 0.0]
    percent = make_verifier("numeric", percent=True)
    assert [ask(percent, "0.5", text).score for text in ("50%", "0.5", "50", r"50\%")] == [1.0, 1.0, 0.0, 1.0]


# ---- exact


def test_exact_compares_whole_texts() -> None:
    exact = make_verifier("exact")
    assert [ask(exact, "ab c", text).score for text in ("ab c", " ab c\n", "abc", "ab  c", "AB C", "ab c.")] == [
        1.0,
        1.0,
        0.0,
        0.0,
        0.0,
        0.0,
    ]
    assert ask(exact, "caf\u00e9", "cafe\u0301").score == 1.0  # one letter, two spellings of it in Unicode
    loose = make_verifier("exact", ignore_case=True, extractor="boxed")
    assert [ask(loose, ["Yes", "y"], text).score for text in (r"\boxed{YES}", "yes")] == [1.0, 0.0]
    plain = make_verifier("exact", markdown=True)
    assert [ask(plain, "abc", text).score for text in ("**abc**", "`abc`", "abc", "ab**c**", "**abc", "**abc** **abc**")] == [
        1.0,
        1.0,
        1.0,
        0.0,
        0.0,
        0.0,
    ]
    assert ask(exact, "abc", "**abc**").score == 0.0 and ask(exact, "**abc**", "**abc**").score == 1.0
    for reference in (None, 4, "", " ", [], ["", "a"], [1]):
        assert ask(exact, reference, "4").fault is Fault.TASK


# ---- structure


def test_the_format_multiplies_and_never_adds() -> None:
    good, wrong = "<think>x</think><answer>4</answer>", "<think>x</think><answer>5</answer>"
    strict = make_verifier("structure")
    soft = make_verifier("structure", malformed_factor=0.5)
    assert [ask(strict, "4", text).score for text in (good, wrong, "4", "5")] == [1.0, 0.0, 0.0, 0.0]
    assert [ask(soft, "4", text).score for text in (good, wrong, "4", "5")] == [1.0, 0.0, 0.5, 0.0]
    assert ask(strict, "4", "4").components.keys() == ask(strict, "4", good).components.keys() == {"format", "content"}
    assert ask(soft, "4", "4").components == {"format": 0.5, "content": 1.0}


def test_what_the_inner_verifier_cannot_judge_stays_unjudged() -> None:
    verdict = ask(make_verifier("structure"), "four", "<think></think><answer>4</answer>")
    assert (verdict.score, verdict.fault) == (None, Fault.TASK)


@pytest.mark.parametrize("text", [
    "<answer>4</answer><think></think>", "<think><answer>4</answer></think>", "<think></think><answer>4</answer>5", "1<think></think><answer>4</answer>",
    "<think></think> so <answer>4</answer>", "<think></think><answer>4", "<think></think><answer>4</answer><answer>4</answer>", "",
    "<think></think><think></think><answer>4</answer>", "</think><answer>4</answer>", "<THINK></THINK><ANSWER>4</ANSWER>",
])  # fmt: skip
def test_a_malformed_answer_is_worth_nothing(text: str) -> None:
    assert ask(make_verifier("structure"), "4", text).score == 0.0


# ---- composite


class Unable(rlvr.Verifier):
    """Never gives a score."""

    def verify(self, task: Task, answer: str) -> Verdict:
        return Verdict(None, "the engine sleeps", fault=Fault.INFRA)


def test_weights_are_shares() -> None:
    parts = {"value": {"verifier": "numeric", "weight": 3}, "text": {"verifier": "exact"}}
    both = make_verifier("composite", components=parts)
    verdicts = [ask(both, "4", text) for text in ("4", "4.0", "5")]
    assert [verdict.score for verdict in verdicts] == [1.0, 0.75, 0.0]
    assert verdicts[1].components == {"value": 1.0, "text": 0.0}


def test_an_unscored_part_leaves_the_whole_unscored() -> None:
    both = make_verifier("composite", components={"value": {"verifier": "numeric"}, "judge": {"verifier": Unable(), "weight": 0}})
    verdict = ask(both, "4", "4")
    assert (verdict.score, verdict.fault, verdict.reason) == (None, Fault.INFRA, "judge: the engine sleeps")


def test_a_part_that_cannot_be_built_closes_the_others() -> None:
    closed = []

    class Watched(Unable):
        def close(self) -> None:
            closed.append(self)

    with pytest.raises(ConfigError):
        make_verifier("composite", components={"a": {"verifier": Watched()}, "b": {"verifier": "nothing"}})
    assert len(closed) == 1


def correct(answer: str, reference: Any) -> bool:
    return answer == reference


def short(answer: str) -> float:
    return float(len(answer) < 3)


@pytest.mark.parametrize(
    ("mix", "names"),
    [
        ({correct: 0.8, short: 0.2}, ["correct", "short"]),
        ({"numeric": 0.8, short: 0.2}, ["numeric", "short"]),
        ({short: 0.2, "numeric": 0.8}, ["short", "numeric"]),
        ({Unable: 0, rlvr.make_verifier("numeric"): 1, rlvr.make_verifier(correct): 1}, ["Unable", "Numeric", "correct"]),
        ({(lambda answer: 1): 1, (lambda answer: 0): 1, (lambda answer: 1): 2}, ["lambda", "lambda_2", "lambda_3"]),
        ({partial(correct, reference="4"): 1, correct: 1}, ["correct", "correct_2"]),
    ],
)  # fmt: skip
def test_a_mix_may_weigh_functions_classes_and_verifiers(mix: dict[Any, float], names: list[str]) -> None:
    both: Any = make_verifier(mix)
    assert list(both.components) == names and list(both.weights.values()) == list(mix.values())
    verdict = ask(both, "4", "4")
    assert "0x" not in verdict.reason and (verdict.score is None or list(verdict.components) == names)


def test_a_mix_in_an_environment_of_data_may_weigh_functions() -> None:
    env = rlvr.make_env([{"question": "2+2=", "answer": "4"}], verifier={correct: 3, short: 1}, holdout=0)
    verdict = env.verifier.verify(env.task("train", 0), "four")
    assert verdict.score == 0.0 and verdict.components == {"correct": 0.0, "short": 0.0}


@pytest.mark.parametrize(
    ("mix", "words"),
    [
        ({correct: "much"}, "part 'correct' is 'much'; it must be"),
        ({correct: -1}, "the weight of 'correct' is -1"),
        ({5: 1.0, "numeric": 1.0}, "the verifier is 5; give a name"),
        ([correct, "numeric"], r"make_verifier\(\{correct: 0.5, 'numeric': 0.5\}\)"),
    ],
)
def test_a_wrong_mix_names_its_parts_as_they_were_typed(mix: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        build_from_config("verifier", mix)


@pytest.mark.parametrize(
    ("name", "settings"), [("function", {"function": correct}), ("unit_tests", {"sandbox": {"name": "process", "trusted": True}})]
)
def test_an_unknown_extractor_is_told_before_the_first_answer(name: str, settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="there is no extractor 'boxd'; did you mean 'boxed'"):
        make_verifier(name, **settings, extractor="boxd")


SENT_TO_THE_SANDBOX = {"code/driver.py", "code/checker.py", "code/dry_run.py"}
"""Programs of ours whose text runs inside the sandbox, beside the answer: running code is what they are for."""
RUNS_ITS_OWN_CONSTANTS = {"bugfix.py"}
"""Calls the functions of `envs/_bugfix_families.py`, text of ours, to know what they return with a bug and without."""
WRITES_CODE = {"_algebra.py": {"marshal"}}
"""Packs the compiled SymPy for the sandbox, where importing it is most of the time. It reads nothing that is marshalled."""


def test_the_rooms_never_evaluate_text() -> None:
    root = Path(__file__).resolve().parents[2]
    for room in ("envs", "verifiers"):
        for path in (root / room).rglob("*.py"):
            if str(path.relative_to(root / room)) in SENT_TO_THE_SANDBOX | RUNS_ITS_OWN_CONSTANTS:
                continue
            tree = ast.parse(path.read_text("utf-8"))
            imported = [a.name for n in ast.walk(tree) if isinstance(n, ast.Import) for a in n.names]
            imported += [n.module or "" for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)]
            called = [ast.unparse(n.func) for n in ast.walk(tree) if isinstance(n, ast.Call)]
            shells = [n for n in ast.walk(tree) if isinstance(n, ast.keyword) and n.arg == "shell"]
            forbidden = {"pickle", "marshal", "shelve", *(f"rlvr.verifiers.{name[:-3].replace('/', '.')}" for name in SENT_TO_THE_SANDBOX)}
            forbidden -= WRITES_CODE.get(str(path.relative_to(root / room)), set())
            assert forbidden.isdisjoint(imported) and not shells, path
            assert {"eval", "exec", "os.system", "marshal.load", "marshal.loads"}.isdisjoint(called), path
