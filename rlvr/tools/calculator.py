"""A calculator, exact wherever possible: whole numbers, fractions and decimals of any length."""

from __future__ import annotations

from rlvr.contracts.tool import Tool, ToolExample, tool
from rlvr.tools._arithmetic import evaluate, format_as_decimal_or_fraction


class Calculator(Tool):
    """Tool that computes arithmetic expressions exactly, with its own parser; text of the policy is never evaluated as code.

    >>> Calculator().calculator("2^100 - 1")
    '1267650600228229401496703205375'
    """

    examples = (
        ToolExample("calculator", {"expression": "123456789 * 987654321"}, "121932631112635269"),
        ToolExample("calculator", {"expression": "0.1 + 0.2"}, "0.3"),
        ToolExample("calculator", {"expression": "1/3 + 1/6"}, "0.5"),
        ToolExample("calculator", {"expression": "2 +"}, "ends where a number", ok=False),
    )

    @tool
    def calculator(self, expression: str) -> str:
        """Compute an arithmetic expression exactly.

        It supports + - * / // % ^ ( ) and sqrt, abs, min, max, floor, ceil, round, gcd, lcm, factorial, comb, exp, ln, log10, pi, e.

        Args:
            expression: for example (3 + 4) * 12 / 5.
        """
        return format_as_decimal_or_fraction(evaluate(expression))


make = Calculator
