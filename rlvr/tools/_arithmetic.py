"""Parser and numbers of the calculator. Every number has a size limit, checked before the computation."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Context, Decimal
from fractions import Fraction

from rlvr.errors import ToolError

MAX_EXPRESSION_CHARS = 2_000
"""Maximum number of characters of an expression."""
MAX_DEPTH = 60
"""Maximum nesting depth: open parentheses, signs and powers."""
MAX_BITS = 12_000
"""Maximum bits of numerator and denominator: about 3,600 digits."""
SIGNIFICANT_DIGITS = 34
"""Precision of an inexact number, in digits."""
_ROUNDING_CONTEXT = Context(prec=SIGNIFICANT_DIGITS)
TOKEN_PATTERN = re.compile(r"\s*(?:(\d+(?:\.\d+)?(?:[eE][+-]?\d{1,4})?|\.\d+)|([A-Za-z_]\w*)|(\*\*|//|[-+*/%^(),]))", re.ASCII)
SIGN_REPLACEMENTS = {"×": "*", "·": "*", "÷": "/", "−": "-", "–": "-", "²": "^2", "³": "^3", "√": "sqrt", "π": "pi"}


@dataclass(frozen=True, slots=True)
class CalculatorNumber:
    """A number, and whether it is exact.

    >>> CalculatorNumber(Fraction(1, 3)).is_exact
    True
    """

    number: Fraction
    is_exact: bool = True


def evaluate(expression: str) -> CalculatorNumber:
    """Evaluate an expression. ToolError if it is invalid.

    >>> format_as_decimal_or_fraction(evaluate("2 * (3 + 4)"))
    '14'
    """
    if len(expression) > MAX_EXPRESSION_CHARS:
        raise ToolError(f"the expression has {len(expression)} characters; at most {MAX_EXPRESSION_CHARS} are allowed")
    for sign, plain in SIGN_REPLACEMENTS.items():
        expression = expression.replace(sign, plain)
    parser = _Parser(_tokenize(expression.strip().removesuffix("=")))
    value = parser.parse_sum(0)
    parser.expect_end()
    return value


def format_as_decimal_or_fraction(value: CalculatorNumber) -> str:
    """Format a number: exact if its decimals end, otherwise as a fraction.

    >>> format_as_decimal_or_fraction(CalculatorNumber(Fraction(22, 7))), format_as_decimal_or_fraction(CalculatorNumber(Fraction(-5, 4)))
    ('22/7 (about 3.142857142857142857142857142857143)', '-1.25')
    """
    number = value.number
    if value.is_exact and number.denominator == 1:
        return str(number.numerator)
    if value.is_exact and (places := _count_decimals(number.denominator)) <= 200:
        digits = str(abs(number.numerator) * 10**places // number.denominator).rjust(places + 1, "0")
        return f"{'-' if number < 0 else ''}{digits[:-places]}.{digits[-places:]}"
    about = _format_rounded(number)
    if not value.is_exact:
        return f"about {about}"
    exact = f"{number.numerator}/{number.denominator}"
    return f"{exact} (about {about})" if len(exact) <= 200 else f"about {about}"


def _format_rounded(number: Fraction) -> str:
    found = _ROUNDING_CONTEXT.divide(Decimal(number.numerator), Decimal(number.denominator))
    text = format(found, "f") if found == 0 or -20 < found.adjusted() < 40 else format(found, "e")
    return text.rstrip("0").rstrip(".") if "." in text and "e" not in text else text


def _count_decimals(denominator: int) -> int:
    """Count the decimals of a fraction; more than 200 if they do not end."""
    twos = fives = 0
    while denominator % 2 == 0 and twos <= 200:
        denominator, twos = denominator // 2, twos + 1
    while denominator % 5 == 0 and fives <= 200:
        denominator, fives = denominator // 5, fives + 1
    return max(twos, fives) if denominator == 1 else 201


def _tokenize(text: str) -> list[str]:
    found, at = [], 0
    text = text.rstrip()
    while at < len(text):
        match = TOKEN_PATTERN.match(text, at)
        if not match:
            raise ToolError(f"{text[at:].strip()[:20]!r} cannot be read; use numbers, + - * / // % ^ ( ) and {', '.join(FUNCTIONS)}")
        found.append(match.group().strip())
        at = match.end()
    return found


class _Parser:
    """Recursive-descent parser, one method per precedence: sum, product, sign, power, atom."""

    def __init__(self, tokens: Sequence[str]) -> None:
        self.tokens, self.at = tokens, 0

    def peek(self) -> str:
        return self.tokens[self.at] if self.at < len(self.tokens) else ""

    def accept(self, *wanted: str) -> str:
        token = self.peek()
        if token and token in wanted:
            self.at += 1
            return token
        return ""

    def expect_end(self) -> None:
        if self.at < len(self.tokens):
            if self.peek() == ",":
                raise ToolError("a comma only separates the arguments of a function; write 1000 for 1,000")
            raise ToolError(f"{self.peek()!r} is not expected after {' '.join(self.tokens[max(0, self.at - 3) : self.at])!r}")

    def parse_sum(self, depth: int) -> CalculatorNumber:
        if depth > MAX_DEPTH:
            raise ToolError(f"the expression is nested more than {MAX_DEPTH} levels deep")
        left = self.parse_product(depth)
        while sign := self.accept("+", "-"):
            right = self.parse_product(depth)
            left = _apply_binary(SUM_OPERATIONS[sign], left, right)
        return left

    def parse_product(self, depth: int) -> CalculatorNumber:
        left = self.parse_signed(depth)
        while sign := self.accept("*", "/", "//", "%"):
            right = self.parse_signed(depth)
            if sign != "*" and right.number == 0:
                raise ToolError("division by zero")
            left = _apply_binary(PRODUCT_OPERATIONS[sign], left, right)
        return left

    def parse_signed(self, depth: int) -> CalculatorNumber:
        if depth > MAX_DEPTH:
            raise ToolError(f"the expression has more than {MAX_DEPTH} consecutive signs")
        if self.accept("-"):
            inner = self.parse_signed(depth + 1)
            return CalculatorNumber(-inner.number, inner.is_exact)
        if self.accept("+"):
            return self.parse_signed(depth + 1)
        return self.parse_power(depth)

    def parse_power(self, depth: int) -> CalculatorNumber:
        base = self.parse_atom(depth)
        if self.accept("^", "**"):
            return _compute_power(base, self.parse_signed(depth + 1))
        return base

    def parse_atom(self, depth: int) -> CalculatorNumber:
        token = self.peek()
        self.at += 1
        if not token:
            raise ToolError("the expression ends where a number is expected")
        if token == "(":
            inner = self.parse_sum(depth + 1)
            self._expect_closing()
            return inner
        if token[0].isdigit() or token[0] == ".":
            return CalculatorNumber(_parse_number(token))
        if token in CONSTANTS and self.peek() != "(":
            return CalculatorNumber(CONSTANTS[token], is_exact=False)
        if token in FUNCTIONS:
            return self._parse_function(token, depth)
        raise ToolError(f"{token!r} is not expected here; a number, a parenthesis or one of {', '.join((*FUNCTIONS, *CONSTANTS))} is")

    def _parse_function(self, name: str, depth: int) -> CalculatorNumber:
        if not self.accept("("):
            raise ToolError(f"{name} must be followed by a parenthesis: {name}(...)")
        given = [self.parse_sum(depth + 1)]
        while self.accept(","):
            given.append(self.parse_sum(depth + 1))
        self._expect_closing()
        fewest, most, function = FUNCTIONS[name]
        if not fewest <= len(given) <= most:
            wanted = str(fewest) if fewest == most else f"{fewest} or more" if most > 2 else f"{fewest} or {most}"
            raise ToolError(f"{name} takes {wanted} numbers, got {len(given)}")
        value = function(given)
        return _check_size(CalculatorNumber(value.number, value.is_exact and all(one.is_exact for one in given)))

    def _expect_closing(self) -> None:
        if not self.accept(")"):
            raise ToolError("a parenthesis is not closed" if not self.peek() else f"{self.peek()!r} is where ')' is expected")


def _parse_number(token: str) -> Fraction:
    mantissa, _, exponent = token.lower().partition("e")
    if len(mantissa) > 1_500 or abs(int(exponent or 0)) > 1_500:
        raise ToolError(f"{token[:20]}... has too many digits; at most 1500 are allowed")
    return Fraction(mantissa) * Fraction(10) ** int(exponent or 0)


def _check_size(value: CalculatorNumber) -> CalculatorNumber:
    if max(value.number.numerator.bit_length(), value.number.denominator.bit_length()) > MAX_BITS:
        raise ToolError("the result is too large: more than about 3600 digits")
    return value


def _apply_binary(work: Callable[[Fraction, Fraction], Fraction], left: CalculatorNumber, right: CalculatorNumber) -> CalculatorNumber:
    return _check_size(CalculatorNumber(work(left.number, right.number), left.is_exact and right.is_exact))


def _compute_power(base: CalculatorNumber, exponent: CalculatorNumber) -> CalculatorNumber:
    exact = base.is_exact and exponent.is_exact
    if base.number == 0 and exponent.number < 0:
        raise ToolError("division by zero: 0 to a negative power")
    if exponent.number.denominator == 1:
        bits = max(base.number.numerator.bit_length(), base.number.denominator.bit_length())
        trivial = abs(base.number) in (0, 1)
        if not trivial and (bits - 1) * abs(exponent.number) > MAX_BITS:
            raise ToolError("the result is too large: more than about 3600 digits")
        power = int(exponent.number) % 2 + 2 if trivial and exponent.number != 0 else int(exponent.number)
        return _check_size(CalculatorNumber(base.number**power, exact))
    if base.number < 0:
        raise ToolError("a root of a negative number is not a real number")
    if exact and exponent.number == Fraction(1, 2):
        return _compute_sqrt([base])
    if abs(exponent.number) > 10**6:
        raise ToolError("the exponent is too large")
    return _compute_decimal(lambda c, a, b: c.power(a, b), base, exponent)


def _compute_decimal(work: Callable[..., Decimal], *given: CalculatorNumber) -> CalculatorNumber:
    context = Context(prec=SIGNIFICANT_DIGITS + 6, Emax=4_000, Emin=-4_000)
    try:
        found = work(context, *(context.divide(Decimal(v.number.numerator), Decimal(v.number.denominator)) for v in given))
    except ArithmeticError as error:
        raise ToolError("the result is too large, too small, or not a real number") from error
    if not found.is_finite():
        raise ToolError("the result is infinite or not a number")
    return _check_size(CalculatorNumber(Fraction(found), is_exact=False))


def _compute_sqrt(given: Sequence[CalculatorNumber]) -> CalculatorNumber:
    number = given[0].number
    if number < 0:
        raise ToolError("a root of a negative number is not a real number")
    top, bottom = math.isqrt(number.numerator), math.isqrt(number.denominator)
    if top * top == number.numerator and bottom * bottom == number.denominator:
        return CalculatorNumber(Fraction(top, bottom))
    return _compute_decimal(lambda c, a: c.sqrt(a), given[0])


def _require_integers(given: Sequence[CalculatorNumber], name: str, max_value: int = 0) -> list[int]:
    for one in given:
        if one.number.denominator != 1 or one.number < 0:
            raise ToolError(f"{name} takes whole numbers from 0, got {format_as_decimal_or_fraction(one)[:40]}")
        if max_value and one.number > max_value:
            raise ToolError(f"{name} takes numbers up to {max_value}, got {format_as_decimal_or_fraction(one)[:40]}")
    return [int(one.number) for one in given]


def _round_half_away(arguments: Sequence[CalculatorNumber]) -> CalculatorNumber:
    """Round half away from zero, as taught at school."""
    places = 0
    if len(arguments) == 2:
        if arguments[1].number.denominator != 1 or not -100 <= arguments[1].number <= 100:
            raise ToolError("round takes a number and how many decimals, from -100 to 100")
        places = int(arguments[1].number)
    scaled = abs(arguments[0].number) * Fraction(10) ** places
    rounded = Fraction(math.floor(scaled + Fraction(1, 2))) / Fraction(10) ** places
    return CalculatorNumber(-rounded if arguments[0].number < 0 else rounded)


def _make_picker(choose: Callable[..., CalculatorNumber]) -> Callable[[Sequence[CalculatorNumber]], CalculatorNumber]:
    return lambda given: choose(given, key=lambda one: one.number)


SUM_OPERATIONS: Mapping[str, Callable[[Fraction, Fraction], Fraction]] = {"+": lambda a, b: a + b, "-": lambda a, b: a - b}
PRODUCT_OPERATIONS: Mapping[str, Callable[[Fraction, Fraction], Fraction]] = {
    "*": lambda a, b: a * b,
    "/": lambda a, b: a / b,
    "//": lambda a, b: Fraction(a // b),
    "%": lambda a, b: a % b,
}
FUNCTIONS: Mapping[str, tuple[int, int, Callable[[Sequence[CalculatorNumber]], CalculatorNumber]]] = {
    "sqrt": (1, 1, _compute_sqrt),
    "abs": (1, 1, lambda g: CalculatorNumber(abs(g[0].number))),
    "min": (1, 99, _make_picker(min)),
    "max": (1, 99, _make_picker(max)),
    "floor": (1, 1, lambda g: CalculatorNumber(Fraction(math.floor(g[0].number)))),
    "ceil": (1, 1, lambda g: CalculatorNumber(Fraction(math.ceil(g[0].number)))),
    "round": (1, 2, _round_half_away),
    "gcd": (2, 99, lambda g: CalculatorNumber(Fraction(math.gcd(*_require_integers(g, "gcd"))))),
    "lcm": (2, 8, lambda g: CalculatorNumber(Fraction(math.lcm(*_require_integers(g, "lcm"))))),
    "factorial": (1, 1, lambda g: CalculatorNumber(Fraction(math.factorial(*_require_integers(g, "factorial", 1_000))))),
    "comb": (2, 2, lambda g: CalculatorNumber(Fraction(math.comb(*_require_integers(g, "comb", 5_000))))),
    "exp": (1, 1, lambda g: _compute_decimal(lambda c, a: c.exp(a), g[0])),
    "ln": (1, 1, lambda g: _compute_decimal(lambda c, a: c.ln(a), g[0])),
    "log10": (1, 1, lambda g: _compute_decimal(lambda c, a: c.log10(a), g[0])),
}
"""Name, the minimum and maximum number of arguments, and the function."""
CONSTANTS: Mapping[str, Fraction] = {
    "pi": Fraction("3.14159265358979323846264338327950288419716939937510"),
    "e": Fraction("2.71828182845904523536028747135266249775724709369996"),
}
