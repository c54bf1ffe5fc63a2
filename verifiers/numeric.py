"""Compare two numbers, exactly or within a tolerance.

The grammar of a numeral is written here, because Python's `float()` is far too kind: it takes `nan`, `inf`, `1_000`,
Arabic-Indic digits. What counts is one numeral and nothing else: a sign, digits in groups or not, a decimal part, an
exponent, or a fraction; around it at most a currency sign, a percent sign or a closing full stop.
"""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Any

from rlvr.answers import find
from rlvr.contracts import Example, Verifier
from rlvr.errors import ConfigError
from rlvr.task import Fault, Task, Verdict

WHOLE = r"(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)"
NUMERAL = re.compile(
    rf"(?P<sign>[+\-−]?)[$€£]?(?:(?P<top>{WHOLE})\s?/\s?(?P<bottom>{WHOLE})|"
    rf"(?P<whole>{WHOLE})?(?:\.(?P<part>[0-9]+))?\.?(?:[eE](?P<power>[+-]?[0-9]{{1,3}}))?)\s?(?P<percent>\\?%?)\.?",
)
LONGEST = 200
"""A numeral longer than this is no answer: it would only cost time."""


class Numeric(Verifier):
    r"""The declared answer is one number, equal to the reference.

    >>> import rlvr
    >>> verify = rlvr.make("verifier", "numeric").verify
    >>> task = rlvr.Task("t", rlvr.user("2+2="), reference="1250")
    >>> [verify(task, text).score for text in ("1250", "1,250.0", r"so \boxed{1250}", "not 1250", "1250 or 1251")]
    [1.0, 1.0, 1.0, 0.0, 0.0]
    """

    examples = (
        Example(
            "95", right=("95", "95.0", "+95", "#### 95", "950e-1", r"\boxed{95}"), wrong=("59", "-95", "9 5", "0x5f", "95 or 96", "95,0")
        ),
        Example("-0.5", right=("-1/2", "-.5", "-0.50", "−0.5"), wrong=("0.5", "-1/2/1", "nan")),
        Example("1000", right=("1,000", "1000", "$1,000"), wrong=("1_000", "10,00", "1e4", "inf")),
    )

    def __init__(self, *, tolerance: float = 0.0, relative: float = 0.0, channel: str = "auto", percent: bool = False) -> None:
        """Choose how near is near enough, and where the answer is looked for.

        Args:
            tolerance: the largest difference that still counts as equal.
            relative: the same as a share of the reference; the larger of the two holds.
            channel: where the answer is declared: auto, boxed, tag, hash, final_line or whole.
            percent: whether `50%` means 0.5; if not, the sign is ignored.
        """
        for name, value in (("tolerance", tolerance), ("relative", relative)):
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
                raise ConfigError(f"{name} is {value!r}; it must be a number from 0 up, such as 0.01")
        find("", channel)  # an unknown channel is refused now, not at the first answer
        self.tolerance, self.relative, self.channel, self.percent = Fraction(str(tolerance)), Fraction(str(relative)), channel, percent

    def verify(self, task: Task, answer: str) -> Verdict:
        """Compare the declared number with the reference."""
        expected = parse(task.reference, percent=self.percent)
        if expected is None:
            return Verdict(None, f"the reference {task.reference!r:.80} is no number", fault=Fault.TASK)
        found = find(answer, self.channel)
        if found.text is None:
            return Verdict(0.0, f"no answer: {found.reason}")
        value = parse(found.text, percent=self.percent)
        if value is None:
            return Verdict(0.0, f"{found.text!r:.80} is not one number")
        near = max(self.tolerance, self.relative * abs(expected))
        right = abs(value - expected) <= near
        how = "equals" if value == expected else f"is within {float(near):g} of" if right else "is not"
        return Verdict(float(right), f"{found.text:.80} {how} {task.reference!s:.80}")


def parse(value: Any, *, percent: bool = False) -> Fraction | None:
    """The number that a numeral means, exactly; None for anything that is not one numeral.

    >>> parse("1,250.50"), parse("1_250"), parse("nan")
    (Fraction(2501, 2), None, None)
    """
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return Fraction(value)
    if isinstance(value, float):
        value = repr(value)  # 0.1 means a tenth, not the nearest binary fraction
    text = value.strip().strip("$").strip() if isinstance(value, str) else ""
    found = NUMERAL.fullmatch(text) if 0 < len(text) <= LONGEST else None
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
    return number / 100 if percent and found["percent"] else number


make = Numeric
