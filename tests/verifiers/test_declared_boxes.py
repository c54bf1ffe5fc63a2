"""A box that is a part of a formula, or that the words around it deny, is no answer; forms of declarations that models write are read."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rlvr.extraction import extract_answer
from rlvr.task import Task, make_user_prompt
from rlvr.verifiers.symbolic import Symbolic


@pytest.fixture(scope="module")
def verifier() -> Iterator[Symbolic]:
    with Symbolic() as plugin:
        yield plugin


@pytest.mark.parametrize(
    "text",
    [
        "The root is -\\boxed{17}.", "2\\boxed{17}", "$\\boxed{17}+2$", "$2+\\boxed{17}$", "$\\boxed{17}/3$", "$\\boxed{17}, 19$", "(\\boxed{17}, 3)",
        "\\boxed{17},000", "\\boxed{17}.5", "\\boxed{17}{19}", "\\frac{1}{\\boxed{17}}", "$\\boxed{17} \\pm 2$",
    ],
)  # fmt: skip
def test_a_part_of_a_formula_is_no_answer(verifier: Symbolic, text: str) -> None:
    assert verifier.verify(Task(make_user_prompt("?"), "17", id="t"), text).score == 0.0


@pytest.mark.parametrize(
    "text",
    [
        "Half of \\boxed{17}.", "The square of \\boxed{17}", "The negative of \\boxed{17}.", "one more than \\boxed{17}", "More than \\boxed{17}.",
        "Everything except \\boxed{17}.", "Answer: almost \\boxed{17}.", "I refuse to say \\boxed{17}.", "\\boxed{17} was refuted above, therefore 19.",
        "\\boxed{17} was my first try, the final one is 19.", "\\boxed{17} is a first approximation.", "\\boxed{17} (if n is even), 19 otherwise",
        "For example \\boxed{17} would be the format. I don't know the answer.", "\\boxed{17} pairs, i.e. 34", "答案不可能是 \\boxed{17}",
        "La respuesta no podría ser \\boxed{17}.",
    ],
)  # fmt: skip
def test_a_box_that_its_sentence_denies_is_no_answer(verifier: Symbolic, text: str) -> None:
    assert verifier.verify(Task(make_user_prompt("?"), "17", id="t"), text).score == 0.0


@pytest.mark.parametrize(
    "text",
    [
        "The answer is \\boxed{17}.", "$x = \\boxed{17}$", "- \\boxed{17}", "Thus $3 + \\boxed{17} = 20$.", "\\boxed{17} - a prime number",
        "\\boxed{17}, i.e. 17.",
        "We get \\boxed{17} apples, more than before.", "It is the square root of 289: \\boxed{17}", "All but one of them fit, so \\boxed{17}.",
        "\\boxed{17}, where $x = 3$.", "(\\boxed{17})", "so $n=\\boxed{17}$, as $17 \\cdot 2 = 34$.", "\\boxed{17}\n- check: $17+2=19$", "Step 2. \\boxed{17}",
        "We may check our answer below. \\boxed{17}", "Therefore it is \\boxed{17}. We may check our answer: $17\\cdot 2 = 34$, so it is correct.",
    ],
)  # fmt: skip
def test_a_box_in_a_plain_sentence_is_the_answer(verifier: Symbolic, text: str) -> None:
    assert verifier.verify(Task(make_user_prompt("?"), "17", id="t"), text).score == 1.0, verifier.verify(
        Task(make_user_prompt("?"), "17", id="t"), text
    ).reason


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("<|begin_of_box|>70<|end_of_box|>", "70"),
        ("The answer is 71. Wait, I made an error. Recomputing, the correct answer is **70**.", "70"),
        ("She sells 9 eggs.\nSo she makes 9 × $2 = **$18** every day.", "$18"),
        ("N ≡ 113 (mod 1000), so the remainder is **113**.", "**113**"),
        ("So, 70 is the final answer.", "70"),
        ("## Answer\n\n**is 42**", "42"),
        ("## Result\n\nThe value **is 42**.", "42"),
        ("So A is wrong, B is wrong.\n\n**C**", "C"),
    ],
)
def test_declarations_that_models_write_are_found(text: str, value: str) -> None:
    found = extract_answer(text)
    assert found.text is not None and found.text.strip("*") == value.strip("*"), found


@pytest.mark.parametrize(
    "text",
    ["So A is wrong, C is wrong.\n\n**C**", "So, 70 is the final answer?", 
        "## Result\n\nIt may be that the value **is 42**.", "So 9 or maybe 3 × 2 = **6** pens."],
)  # fmt: skip
def test_a_doubtful_declaration_is_not_found(text: str) -> None:
    assert extract_answer(text).text in (None, text.strip())


@pytest.mark.parametrize(
    ("gold", "answer", "score"),
    [
        (r"\sqrt{10}", r"\sqrt{10} \approx 3.16 \text{ units}", 1.0),
        (r"\sqrt{10}", r"\sqrt{10}\text{ (approximately 3.16)}", 1.0),
        (r"\sqrt{10}", r"\sqrt{10}\text{ (approximately 4.2)}", 0.0),
        ("y=Ce^{2x}", "y=Ae^{2x}", 1.0),
        ("y=Ce^{2x}", "y=c_1e^{2x}", 1.0),
        ("y=Ce^{2x}", "y=xe^{2x}", 0.0),
        ("y=Ce^{2x}", "y=Ae^{3x}", 0.0),
        ("y=C_1e^x+C_2e^{-x}", "y=Ae^{-x}+Be^x", 1.0),
        ("y=C_1e^x+C_2e^{-x}", "y=Ae^{-x}+Ae^x", 0.0),
        ("y=C_1e^x+C_2e^{-x}", "y=Ae^{-x}+Be^{2x}", 0.0),
        (r"\frac{1}{s^2+1}", r"\frac{1}{s^{2}+1},\ s>0", 1.0),
        ("2^{n}-1", r"2^{n} - 1 \text{ for } n\ge1", 1.0),
        ("2^{n}-1", r"2^{n} - 1, n", 0.0),
        (r"2\pi k, k\in\mathbb{Z}", r"2\pi k, k>0", 0.0),
        ("m_e c^2", "m_ec^2+0\\cdot m", 0.0),
        ("E=m_e c^2", "E=c^2 m_e", 1.0),
        ("c^2 m_e", "m_ec^2", 1.0),
        (r"1.6 \times 10^{-19} \text{ C}", r"1.6 \times 10^{-19} \text{ coulombs}", 1.0),
        (r"1.6 \times 10^{-19} \text{ C}", r"1.6 \times 10^{-19} \text{ volts}", 0.0),
        ("3628800", r"3\ 628\ 800", 1.0),
        (r"\text{odd}", r"\displaystyle \textrm{odd}", 1.0),
        ("(a) 5, (b) 12", r"\text{(a) } 5, \text{ (b) } 12", 1.0),
        ("(a) 5, (b) 12", "(a) 5 and (b) 12", 1.0),
        ("(a) 5, (b) 12", "(a) 5, (b) 13", 0.0),
        ("(a) 5, (b) 12", "(a) 12, (b) 5", 0.0),
        ("(a) 5, (b) 12", "(a) 5", 0.0),
        (r"\left(3, \frac{\pi}{2}\right)", r"(r,\theta)=(3,\pi/2)", 1.0),
    ],
)
def test_notations_that_models_write_are_read(verifier: Symbolic, gold: str, answer: str, score: float) -> None:
    verdict = verifier.verify(Task(make_user_prompt("?"), gold, id="t"), f"\\boxed{{{answer}}}")
    assert verdict.score == score, verdict.reason
