"""Verify an expression that must reach a target with given numbers. The expression is parsed here, never evaluated by Python."""

from __future__ import annotations

import re
from collections import Counter
from fractions import Fraction

from rlvr.contracts import Verifier, VerifierExample
from rlvr.errors import require_text_answers
from rlvr.extraction import Extraction, extract_answer, strip_thinking
from rlvr.task import Fault, Task, Verdict

NOTATION_RULES = (
    # pattern, replacement, reason, one example that makes 14
    (r"\\(?:times|cdot|ast)(?![a-zA-Z])|[×·⋅∙∗]", "*", "signs of multiplication", r"2+3\times4"),
    (r"\\div(?![a-zA-Z])|[÷∕]", "/", "signs of division", "28÷2"),
    (r"[−–]", "-", "a minus sign, or a dash used as one", "20−6"),
    (r"\\[dt]frac(?![a-zA-Z])", r"\\frac", "fractions of other sizes", r"\dfrac{20+8}{2}"),
    (r"\\(?:left|right|big|Big|bigl|bigr)(?=\s*[()])", " ", "brackets of other sizes", r"2+\left(3*4\right)"),
    (r"\\(?:quad|qquad)(?![a-zA-Z])|\\[,;:!> ]|~", " ", "spaces of LaTeX", r"2\,+\;3*4"),
    (r"\\[()\[\]]|\$", " ", "math delimiters of LaTeX", r"\[2+3*4=14\]"),
    (r"`", " ", "code in Markdown", "`2+3*4`"),
    (r"&(?:times|middot|ast);|＊", "*", "multiplication in HTML and in full width", "2+3 &times; 4"),
    (r"&divide;|／", "/", "division in HTML and in full width", "28 &divide; 2"),
    (r"&minus;|－", "-", "subtraction in HTML and in full width", "20－6"),
    (r"＋", "+", "addition in full width", "2＋3*4"),
    (r"（", "(", "an opening bracket in full width", "（2+5)*2"),
    (r"）", ")", "a closing bracket in full width", "(2+5）*2"),
    (r"＝", "=", "an equals sign in full width", "2+3*4＝14"),
    (r"(?<=[0-9)\]}])\s*[xX]\s*(?=[0-9(\[{\\])", "*", "the letter x between numbers and brackets", "2 + 3 x 4"),
    (r"(?<=[0-9)\]])\s*(?=[(\[])|(?<=[)\]])\s*(?=[0-9])", "*", "a bracket beside a number or a bracket", "2(3+4)"),
)
"""Alternative notations of an expression. No replacement joins two digits or creates a new number."""
EMPHASIS = re.compile(r"(\*{1,3}|_{1,3})(?=[^*_\s])(.*[^*_\s])\1", re.DOTALL)
ADJECTIVE = r"(?:(?:final|correct|required|resulting|possible|valid)\s+)?"
ANSWER_PHRASE = re.compile(
    rf"(?:(?:so|thus|therefore|hence),?\s+)?\b(?:the|my|one|an?)\s+{ADJECTIVE}(?:expression|equation|solution)\s+is\b(?!\s*not\b):?",
    re.IGNORECASE,
)
TOKEN = re.compile(r"\s*((?:0|[1-9][0-9]{0,8})(?![0-9])|\\frac(?![a-zA-Z])|[-+*/(){}\[\]])")
BRACKETS = {"(": ")", "[": "]"}
MAX_EXPRESSION_CHARS, MAX_SIDES = 400, 8


class Countdown(Verifier):
    """The declared answer is an expression of + - * / and brackets that uses the numbers and equals the target.

    It may be part of an equation or a chain of equations (`14 = 2+3*4`, `2+3*4 = 2+12 = 14`): then the first side that is not just the
    target must use the numbers, and every side must equal the target. Numbers must be written as they are given: 02 is not 2.

    >>> import rlvr
    >>> verify = rlvr.make_verifier("countdown").verify
    >>> task = rlvr.Task(rlvr.make_user_prompt("Make 14 from 2, 3, 4."), id="t", reference={"numbers": [2, 3, 4], "target": 14})
    >>> verify(task, "2+3*4").score, verify(task, "14").score, verify(task, "2*(3+4)").score
    (1.0, 0.0, 1.0)
    """

    version = "3"  # 3: a negative number in the reference is a fault of the task
    examples = (
        VerifierExample(
            {"numbers": [2, 3, 4], "target": 14},
            correct=("2+3*4", "(3 + 4) * 2", "3*4+2 = 14", "4×3+2", r"\boxed{2+3*4}", "14 = 2+3*4", "2+3*4=2+12=14", "**2+3*4**"),
            incorrect=(
                "14",
                "2+3*4 or 2*3+4",
                "2+3*4*1",
                "2+12",
                "2+3*4=15",
                "(2+3*4",
                "2**3+4",
                "__import__('os')",
                "2*7",
                "+2+3*4",
                "2+12=2+3*4",
                "02+3*4",
            ),
        ),
        VerifierExample({"numbers": [2, 3, 50], "target": 6}, correct=(), incorrect=("2*3",)),
        VerifierExample({"numbers": [1, 3, 4, 6], "target": 24}, correct=("6/(1-3/4)",), incorrect=("6*4", "6/(1-1)", "4*6*1")),
    )

    def __init__(self, *, use_all: bool = True, extractor: str = "auto") -> None:
        """Set the rules.

        Args:
            use_all: whether every number must be used; in any case each may be used only once.
            extractor: where the answer is declared: auto, boxed, tag, hash, final_line or whole.
        """
        extract_answer("", extractor)  # raises now for an unknown extractor, not at the first answer
        self.use_all, self.extractor = use_all, extractor

    @require_text_answers
    def verify(self, task: Task, answer: str) -> Verdict:
        """Parse the expression, count its numbers, compare its value with the target."""
        read = _parse_reference(task.reference)
        if read is None:
            return Verdict(None, f"the reference {task.reference!r:.80} is not {{numbers: [...], target: ...}}", fault=Fault.TASK)
        numbers, target = read
        if self.use_all and min(numbers) < 0:
            why = f"the reference has the number {min(numbers)}, which no expression can use: a number has no sign"
            return Verdict(None, why, fault=Fault.TASK)
        found = extract_answer(answer, self.extractor)
        if found.text is None and self.extractor == "auto":
            found = _extract_by_phrase(answer, found)
        if found.text is None:
            return Verdict(0.0, f"no answer: {found.reason}")
        if len(found.text) > MAX_EXPRESSION_CHARS:
            return Verdict(0.0, f"{found.text!r:.80} is longer than {MAX_EXPRESSION_CHARS} characters")
        sides = [side.strip() for side in normalize_expression(found.text).split("=")]
        own = 1 if len(sides) > 1 and sides[0] == str(target) else 0
        if len(sides) > MAX_SIDES:
            return Verdict(0.0, f"{found.text!r:.80} has {len(sides)} sides; at most {MAX_SIDES} are allowed")
        try:
            value, used = evaluate_expression(sides[own])
            values = [Fraction(target) if side == str(target) else evaluate_expression(side)[0] for side in sides]
        except ValueError as error:
            return Verdict(0.0, f"{found.text!r:.80} is not an expression: {error}")
        if any(other != target for other in values):
            return Verdict(0.0, f"{found.text!r:.80} makes {next(other for other in values if other != target)}, the target is {target}")
        surplus, missing = Counter(used) - Counter(numbers), Counter(numbers) - Counter(used)
        if surplus:
            return Verdict(0.0, f"{next(iter(surplus))} is used more often than it is given")
        if missing and self.use_all:
            return Verdict(0.0, f"{next(iter(missing))} is not used")
        return Verdict(1.0, f"{sides[own]:.80} makes {value}, the target is {target}")


def normalize_expression(text: str) -> str:
    r"""Strip Markdown, LaTeX and words around an expression, and rewrite its signs in plain notation.

    >>> normalize_expression(r"**$(3+4)\times 2$**"), normalize_expression("The expression is 8+1-6.")
    ('(3+4)* 2', '8+1-6')
    """
    text = _strip_emphasis(text)
    if mark := ANSWER_PHRASE.match(text):
        text = _strip_emphasis(text[mark.end() :])
    for pattern, becomes, _, _ in NOTATION_RULES:
        text = re.sub(pattern, becomes, text)
    return _strip_emphasis(text)


def _strip_emphasis(text: str) -> str:
    """Strip emphasis around a text and a full stop at its end."""
    text = text.strip().removesuffix(".")
    while mark := EMPHASIS.fullmatch(text):
        text = mark[2].strip().removesuffix(".")
    return text.strip()


def _extract_by_phrase(answer: str, found: Extraction) -> Extraction:
    """Extract the expression that the last line declares by a phrase, if nothing else in the answer declares one."""
    shown = (strip_thinking(answer) or "").strip()
    if found.candidates or any(mark in shown.lower() for mark in ("\\box", "\\fbox", "<answer", "####", "answer")):
        return found
    last = shown.rpartition("\n")[2]
    declares = ANSWER_PHRASE.match(last.lstrip("*_ ")) and len(ANSWER_PHRASE.findall(shown)) == 1
    return Extraction(last, "in the last line") if declares else found


def evaluate_expression(text: str) -> tuple[Fraction, list[int]]:
    """Evaluate an expression and return its value and the numbers in it; ValueError if it is not a valid expression.

    >>> evaluate_expression("2*(3+4)")
    (Fraction(14, 1), [2, 3, 4])
    """
    if len(text) > MAX_EXPRESSION_CHARS:
        raise ValueError(f"it is longer than {MAX_EXPRESSION_CHARS} characters")
    tokens: list[str] = []
    end, text = 0, text.strip()
    while end < len(text):
        mark = TOKEN.match(text, end)
        if mark is None:
            raise ValueError(f"{text[end : end + 10]!r} is not allowed in it")
        tokens.append(mark[1])
        end = mark.end()
    reader = _ExpressionParser(tokens)
    value = reader.parse_sum()
    if reader.current_token:
        raise ValueError(f"unexpected {reader.current_token!r} at its end")
    return value, reader.numbers_used


class _ExpressionParser:
    """Recursive-descent parser for sums of products of numbers and brackets."""

    def __init__(self, tokens: list[str]) -> None:
        self.tokens, self.position, self.depth = tokens, 0, 0
        self.numbers_used: list[int] = []

    @property
    def current_token(self) -> str:
        return self.tokens[self.position] if self.position < len(self.tokens) else ""

    def next_token(self) -> str:
        self.position += 1
        return self.tokens[self.position - 1]

    def parse_sum(self) -> Fraction:
        value = self.parse_product()
        while self.current_token in ("+", "-"):
            value = value + self.parse_product() if self.next_token() == "+" else value - self.parse_product()
        return value

    def parse_product(self) -> Fraction:
        value = self.parse_atom()
        while self.current_token in ("*", "/"):
            value = value * self.parse_atom() if self.next_token() == "*" else self.divide(value, self.parse_atom())
        return value

    def parse_atom(self) -> Fraction:
        if self.current_token.isdigit():
            self.numbers_used.append(int(self.next_token()))
            return Fraction(self.numbers_used[-1])
        if self.current_token == r"\frac":
            self.next_token()
            return self.divide(self.parse_group("{", "}"), self.parse_group("{", "}"))
        return (
            self.parse_group(self.current_token, BRACKETS[self.current_token])
            if self.current_token in BRACKETS
            else self.parse_group("(", ")")
        )

    def parse_group(self, opens: str, closes: str) -> Fraction:
        if self.current_token != opens:
            raise ValueError(
                f"a number or a bracket is missing {'before ' + repr(self.current_token) if self.current_token else 'at its end'}"
            )
        self.next_token()
        self.depth += 1
        if self.depth > 50:
            raise ValueError("its brackets are nested too deeply")
        value = self.parse_sum()
        if self.current_token != closes:
            raise ValueError("a bracket is not closed")
        self.next_token()
        self.depth -= 1
        return value

    @staticmethod
    def divide(value: Fraction, divisor: Fraction) -> Fraction:
        if not divisor:
            raise ValueError("it divides by zero")
        return value / divisor


def _parse_reference(reference: object) -> tuple[list[int], int] | None:
    if not isinstance(reference, dict):
        return None
    numbers, target = reference.get("numbers"), reference.get("target")
    if not isinstance(numbers, list | tuple) or not numbers or type(target) is not int or any(type(n) is not int for n in numbers):
        return None
    return list(numbers), target


make = Countdown
