r"""Compare two numbers, exactly or within a tolerance.

Numerals have their own grammar here, because Python's `float()` accepts too much: `nan`, `inf`, `1_000`, Arabic-Indic digits. The
answer must be one numeral and nothing else: a sign, digits with or without grouping, a decimal part, an exponent, or a fraction;
around it at most a currency sign, a percent sign, a full stop, and Markdown or LaTeX markup. This is strict on purpose: a unit
(`1250 km`), digits in groups of spaces, `1.25 × 10^3`, `\frac{7}{2}`, `3 1/2` and number words are refused, and so is a division that comes
out even (`48/2`). The verifier `symbolic` reads all but the last.

If no box, tag or #### line declares the answer, it may also be the end of one equation or of one plain sentence: `35*8 = 280`,
`The product is 280.` The words before it must match short tables of patterns, so words of denial, doubt or choice are rejected; only the
last side is the answer, so a second number is not rewarded.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

from rlvr.contracts import Verifier, VerifierExample
from rlvr.errors import ConfigError, require_text_answers
from rlvr.extraction import extract_answer
from rlvr.task import Fault, Task, Verdict
from rlvr.verifiers._markup import strip_markdown_and_latex
from rlvr.verifiers._scientific import is_scientific_notation

INTEGER = r"(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)"
NUMERAL = re.compile(
    rf"(?P<sign>[+\-−]?)[$€£]?(?:(?P<top>{INTEGER})\s?/\s?(?P<bottom>{INTEGER})|"
    rf"(?P<whole>{INTEGER})?(?:\.(?P<part>[0-9]+))?\.?(?:[eE](?P<power>[+-]?[0-9]{{1,3}}))?)\s?(?P<percent>\\?%?)\.?",
)
MAX_NUMERAL_CHARS = 200
"""Maximum characters of a numeral; parsing a longer one would only cost time."""
POWER_OF_TEN = re.compile(r"([0-9][0-9,]*(?:\.[0-9]+)?|\.[0-9]+)[eE]([+-]?[0-9]{1,3})(?=\D*\Z)")
UNDONE_DIVISION = re.compile(r"\A[^=]*\d\s?/\s?\d[^=]*\Z")
"""A division that comes out even: 48/2 still has to be worked out, 1/3 is a number."""
STRICTNESS = "numeric reads one numeral without a unit (digits, a sign, a point, 1e3, 1/3); symbolic reads units, LaTeX and words"
SENTENCE_REASONS = ("the whole text", "in the answer line")
"""Extraction reasons for which the answer may be a sentence or an equation; in a box, a tag or a #### line it must be a numeral."""
WORD_RULES: tuple[tuple[str, str, str, str], ...] = (
    (r"\A(?:so|thus|hence|therefore)\b,?\s*", "", "a word that concludes", "So 35*8 = 280"),
    (r"\b(it|that|this)['’]s\b", r"\1 is", "short for `is`", "It's 280"),
    (r"\s+(?:is\s+equal\s+to|is|equals|makes|gives)\s+|:(?=\s)", " = ", "words for =", "The product: 280"),
    (r"\\(?:times|cdot)(?![a-zA-Z])|[×·]|\s(?:times|multiplied\s+by|x)\s", " * ", "words and signs for *", "35 times 8 is 280"),
    (r"\\div(?![a-zA-Z])|[÷]|\s(?:divided\s+by|over)\s", " / ", "words and signs for /", "2800 divided by 5 divided by 2 = 280"),
    (r"\splus\s", " + ", "a word for +", "200 plus 80 equals 280"),
    (r"\sminus\s|−", " - ", "a word and a sign for -", "300 minus 20 is 280"),
)
"""Words and signs in a sentence: pattern, replacement, reason, an example (each has the value 280)."""
LIST_ITEM = rf"[-+]?[$€£]?{INTEGER}(?:\.[0-9]+)?%?"
NUMBER_LIST = rf"{LIST_ITEM}(?:(?:\s*,\s*|,?\s+and\s+){LIST_ITEM})*"
TERM = rf"[(\s]*{LIST_ITEM}[)\s]*"
LEFT_SIDE_PATTERNS: tuple[tuple[str, str, str], ...] = (
    (r"", "nothing", "= 280"),
    (r"it|that|this", "a pronoun", "It is 280."),
    (r"[a-zA-Z]", "a variable", "x = 280"),
    (
        r"(?:(?:the|my|our)\s+)?(?:(?:final|correct|exact|total|last)\s+)*"
        r"(?:answer|result|product|sum|difference|total|quotient|value|number|solution|digit)"
        rf"(?:\s+of\s+(?:the\s+|these\s+|all\s+)?(?:digits|numbers|sum|product|{NUMBER_LIST}))*",
        "a name of the result",
        "The product of 35 and 8 is 280.",
    ),
    (rf"{TERM}(?:[-+*/^]{TERM})+", "a calculation, which is not checked: only the last side counts", "(35+0) * 8 = 280"),
)
"""Allowed text before the `=`: pattern, description, an example (each has the value 280)."""


class Numeric(Verifier):
    r"""The declared answer is one number that equals the reference.

    >>> import rlvr
    >>> verify = rlvr.make_verifier("numeric").verify
    >>> task = rlvr.Task(rlvr.make_user_prompt("2+2="), id="t", reference="1250")
    >>> [verify(task, text).score for text in ("1250", "1,250.0", r"so \boxed{1250}", "not 1250", "1250 or 1251")]
    [1.0, 1.0, 1.0, 0.0, 0.0]
    """

    version = "6"  # 6: `1{,}250` is 1,250
    instruction = "Put the final number alone on the last line, after ####."
    examples = (
        VerifierExample(
            "95",
            correct=("95", "95.0", "+95", "#### 95", "9.5e1", r"\boxed{95}"),
            incorrect=("59", "-95", "9 5", "0x5f", "95 or 96", "95,0"),
        ),
        VerifierExample(
            "280",
            correct=("**280**", "The product is **280**.", "35*8 = 280", "= 280", r"$35 \times 8 = 280$", "`280`", "x = 280", "It's 280."),
            incorrect=(
                "**280** or **281**",
                "The product is not 280.",
                "280 = 281",
                "281 = 280",
                "35*8 = 280 or 281",
                "Is it 280?",
                "2**8**0",
                "The product is maybe 280",
                "x = 280, y = 281",
                "35*8 = 280 = 281",
                "281, 280",
                "28*0",
                "The product is 280, I think",
            ),
        ),
        VerifierExample("-0.5", correct=("-1/2", "-.5", "-0.50", "−0.5"), incorrect=("0.5", "-1/2/1", "nan")),
        VerifierExample("1000", correct=("1,000", "1000", "$1,000", r"\boxed{1{,}000}"), incorrect=("1_000", "10,00", "1e4", "inf")),
    )

    def __init__(self, *, tolerance: float = 0.0, relative: float = 0.0, extractor: str = "auto", percent: bool = False) -> None:
        """Set the tolerance and where the answer is declared.

        Args:
            tolerance: the largest difference that still counts as equal.
            relative: the largest difference as a fraction of the reference; the larger of the two tolerances applies.
            extractor: where the answer is declared: auto, boxed, tag, hash, final_line or whole.
            percent: whether `50%` means 0.5; if not, the sign is ignored.
        """
        for name, value in (("tolerance", tolerance), ("relative", relative)):
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
                raise ConfigError(f"{name} is {value!r}; it must be a number of at least 0, such as 0.01")
        extract_answer("", extractor)  # raises now for an unknown extractor, not at the first answer
        self.tolerance, self.relative, self.extractor, self.percent = Fraction(str(tolerance)), Fraction(str(relative)), extractor, percent

    @require_text_answers
    def verify(self, task: Task, answer: str) -> Verdict:
        """Compare the declared number with the reference."""
        expected = parse_number(task.reference, percent_as_fraction=self.percent)
        if expected is None:
            return Verdict(None, f"the reference {task.reference!r:.80} is not a number", fault=Fault.TASK)
        found = extract_answer(answer, self.extractor)
        if found.text is None:
            return Verdict(0.0, f"no answer: {found.reason}")
        value = parse_number(strip_markdown_and_latex(found.text), percent_as_fraction=self.percent)
        if value is None and found.reason in SENTENCE_REASONS:
            value = parse_statement(found.text, percent_as_fraction=self.percent)
        if value is None:
            return Verdict(0.0, f"{found.text!r:.80} is not one number; {STRICTNESS}")
        if value.denominator == 1 and value and (UNDONE_DIVISION.search(found.text) or _has_undone_power(found.text)):
            return Verdict(
                0.0,
                f"{found.text!r:.80} has the right value, but the calculation is left to do"
                if value == expected
                else f"{found.text:.80} is not {task.reference!s:.80}",
            )
        near = max(self.tolerance, self.relative * abs(expected))
        right = abs(value - expected) <= near
        how = "equals" if value == expected else f"is within {float(near):g} of" if right else "is not"
        return Verdict(float(right), f"{found.text:.80} {how} {task.reference!s:.80}")

    @property
    def explained_functions(self) -> Sequence[tuple[str, Callable[..., Any]]]:
        """Return the functions whose results are steps of an explanation."""
        return (("parsed", parse_number), ("sentence", parse_statement))


def parse_number(value: Any, *, percent_as_fraction: bool = False) -> Fraction | None:
    """Parse one numeral to its exact value; None for any other text.

    >>> parse_number("1,250.50"), parse_number("1_250"), parse_number("nan")
    (Fraction(2501, 2), None, None)
    """
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return Fraction(value)
    if isinstance(value, float):
        value = repr(value)  # 0.1 means a tenth, not the nearest binary fraction
    text = value.replace("{,}", ",").strip().strip("$").strip() if isinstance(value, str) else ""  # {,}: no space after it in LaTeX
    found = NUMERAL.fullmatch(text) if 0 < len(text) <= MAX_NUMERAL_CHARS else None
    if found is None or not (found["top"] or found["whole"] or found["part"]):
        return None
    if found["top"]:
        bottom = int(found["bottom"].replace(",", ""))
        if bottom == 0:
            return None
        number = Fraction(int(found["top"].replace(",", "")), bottom)
    else:
        part = found["part"] or ""
        number = Fraction(int((found["whole"] or "0").replace(",", "") + part), 10 ** len(part)) * Fraction(10) ** int(found["power"] or 0)
    number = -number if found["sign"] in ("-", "−") else number
    return number / 100 if percent_as_fraction and found["percent"] else number


def _has_undone_power(text: str) -> bool:
    """Whether the numeral at the end of a text has a power of ten that comes out even: 250e-1 is a division, 28e1 is a numeral."""
    found = POWER_OF_TEN.search(strip_markdown_and_latex(text))
    return found is not None and int(found[2]) < 0 and not is_scientific_notation(Fraction(found[1].replace(",", "")), int(found[2]))


def parse_statement(text: str, *, percent_as_fraction: bool = False) -> Fraction | None:
    """Parse the number at the end of one equation or one plain sentence; None for any other text.

    >>> parse_statement("The product is **280**."), parse_statement("35*8 = 280"), parse_statement("It is not 280"), parse_statement("281 = 280")
    (Fraction(280, 1), Fraction(280, 1), None, None)
    """
    text = strip_markdown_and_latex(text)
    if len(text) > MAX_NUMERAL_CHARS:
        return None
    for pattern, becomes, _why, _example in WORD_RULES:
        text = re.sub(pattern, becomes, text, flags=re.IGNORECASE)
    *before, last = (side.strip() for side in text.split("="))
    value = parse_number(last, percent_as_fraction=percent_as_fraction)
    if value is None or not before or not all(before[1:]):
        return None
    for side in before:
        other = parse_number(side, percent_as_fraction=percent_as_fraction)
        if other != value if other is not None else not _only_names_quantity(side):
            return None
    return value


def _only_names_quantity(side: str) -> bool:
    """Whether a side of an equation only names what is computed, without a value of its own."""
    return any(re.fullmatch(pattern, side, re.IGNORECASE) for pattern, _what, _example in LEFT_SIDE_PATTERNS)


make = Numeric
