"""Parser and numbers of the calculator. Every number has a size limit, checked before the computation."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Context, Decimal
from fractions import Fraction

from rlvr.errors import ToolError

LONGEST = 2_000
"""Maximum number of characters of an expression."""
DEEPEST = 60
"""Maximum nesting depth: open parentheses, signs and powers."""
MOST_BITS = 12_000
"""Maximum bits of numerator and denominator: about 3,600 digits."""
DIGITS = 34
"""Precision of an inexact number, in digits."""
_ABOUT = Context(prec=DIGITS)
TOKEN = re.compile(r"\s*(?:(\d+(?:\.\d+)?(?:[eE][+-]?\d{1,4})?|\.\d+)|([A-Za-z_]\w*)|(\*\*|//|[-+*/%^(),]))", re.ASCII)
SIGNS = {"×": "*", "·": "*", "÷": "/", "−": "-", "–": "-", "²": "^2", "³": "^3", "√": "sqrt", "π": "pi"}


@dataclass(frozen=True, slots=True)
class Value:
    """A number, and whether it is exact.

    >>> Value(Fraction(1, 3)).exact
    True
    """

    number: Fraction
    exact: bool = True


def evaluate(expression: str) -> Value:
    """Evaluate an expression. ToolError if it is invalid.

    >>> shown(evaluate("2 * (3 + 4)"))
    '14'
    """
    if len(expression) > LONGEST:
        raise ToolError(f"the expression has {len(expression)} characters; at most {LONGEST} are allowed")
    for sign, plain in SIGNS.items():
        expression = expression.replace(sign, plain)
    parser = _Parser(_tokens(expression.strip().removesuffix("=")))
    value = parser.sum(0)
    parser.finish()
    return value


def shown(value: Value) -> str:
    """Format a number: exact if its decimals end, otherwise as a fraction.

    >>> shown(Value(Fraction(22, 7))), shown(Value(Fraction(-5, 4)))
    ('22/7 (about 3.142857142857142857142857142857143)', '-1.25')
    """
    number = value.number
    if value.exact and number.denominator == 1:
        return str(number.numerator)
    if value.exact and (places := _places(number.denominator)) <= 200:
        digits = str(abs(number.numerator) * 10**places // number.denominator).rjust(places + 1, "0")
        return f"{'-' if number < 0 else ''}{digits[:-places]}.{digits[-places:]}"
    about = _about(number)
    if not value.exact:
        return f"about {about}"
    exact = f"{number.numerator}/{number.denominator}"
    return f"{exact} (about {about})" if len(exact) <= 200 else f"about {about}"


def _about(number: Fraction) -> str:
    found = _ABOUT.divide(Decimal(number.numerator), Decimal(number.denominator))
    text = format(found, "f") if found == 0 or -20 < found.adjusted() < 40 else format(found, "e")
    return text.rstrip("0").rstrip(".") if "." in text and "e" not in text else text


def _places(denominator: int) -> int:
    """Count the decimals of a fraction; more than 200 if they do not end."""
    twos = fives = 0
    while denominator % 2 == 0 and twos <= 200:
        denominator, twos = denominator // 2, twos + 1
    while denominator % 5 == 0 and fives <= 200:
        denominator, fives = denominator // 5, fives + 1
    return max(twos, fives) if denominator == 1 else 201


def _tokens(text: str) -> list[str]:
    found, at = [], 0
    text = text.rstrip()
    while at < len(text):
        match = TOKEN.match(text, at)
        if not match:
            raise ToolError(f"{text[at:].strip()[:20]!r} cannot be read; use numbers, + - * / // % ^ ( ) and {', '.join(FUNCTIONS)}")
        found.append(match.group().strip())
        at = match.end()
    return found


class _Parser:
    """Recursive-descent parser, one method per precedence: sum, product, sign, power, atom."""

    def __init__(self, tokens: Sequence[str]) -> None:
        self.tokens, self.at = tokens, 0

    def next(self) -> str:
        return self.tokens[self.at] if self.at < len(self.tokens) else ""

    def take(self, *wanted: str) -> str:
        token = self.next()
        if token and token in wanted:
            self.at += 1
            return token
        return ""

    def finish(self) -> None:
        if self.at < len(self.tokens):
            if self.next() == ",":
                raise ToolError("a comma only separates the arguments of a function; write 1000 for 1,000")
            raise ToolError(f"{self.next()!r} is not expected after {' '.join(self.tokens[max(0, self.at - 3) : self.at])!r}")

    def sum(self, depth: int) -> Value:
        if depth > DEEPEST:
            raise ToolError(f"the expression is nested more than {DEEPEST} levels deep")
        left = self.product(depth)
        while sign := self.take("+", "-"):
            right = self.product(depth)
            left = _sized(SUMS[sign], left, right)
        return left

    def product(self, depth: int) -> Value:
        left = self.signed(depth)
        while sign := self.take("*", "/", "//", "%"):
            right = self.signed(depth)
            if sign != "*" and right.number == 0:
                raise ToolError("division by zero")
            left = _sized(PRODUCTS[sign], left, right)
        return left

    def signed(self, depth: int) -> Value:
        if depth > DEEPEST:
            raise ToolError(f"the expression has more than {DEEPEST} consecutive signs")
        if self.take("-"):
            inner = self.signed(depth + 1)
            return Value(-inner.number, inner.exact)
        if self.take("+"):
            return self.signed(depth + 1)
        return self.power(depth)

    def power(self, depth: int) -> Value:
        base = self.atom(depth)
        if self.take("^", "**"):
            return _power(base, self.signed(depth + 1))
        return base

    def atom(self, depth: int) -> Value:
        token = self.next()
        self.at += 1
        if not token:
            raise ToolError("the expression ends where a number is expected")
        if token == "(":
            inner = self.sum(depth + 1)
            self._close()
            return inner
        if token[0].isdigit() or token[0] == ".":
            return Value(_literal(token))
        if token in CONSTANTS and self.next() != "(":
            return Value(CONSTANTS[token], exact=False)
        if token in FUNCTIONS:
            return self._function(token, depth)
        raise ToolError(f"{token!r} is not expected here; a number, a parenthesis or one of {', '.join((*FUNCTIONS, *CONSTANTS))} is")

    def _function(self, name: str, depth: int) -> Value:
        if not self.take("("):
            raise ToolError(f"{name} must be followed by a parenthesis: {name}(...)")
        given = [self.sum(depth + 1)]
        while self.take(","):
            given.append(self.sum(depth + 1))
        self._close()
        fewest, most, function = FUNCTIONS[name]
        if not fewest <= len(given) <= most:
            wanted = str(fewest) if fewest == most else f"{fewest} or more" if most > 2 else f"{fewest} or {most}"
            raise ToolError(f"{name} takes {wanted} numbers, got {len(given)}")
        value = function(given)
        return _checked(Value(value.number, value.exact and all(one.exact for one in given)))

    def _close(self) -> None:
        if not self.take(")"):
            raise ToolError("a parenthesis is not closed" if not self.next() else f"{self.next()!r} is where ')' is expected")


def _literal(token: str) -> Fraction:
    mantissa, _, exponent = token.lower().partition("e")
    if len(mantissa) > 1_500 or abs(int(exponent or 0)) > 1_500:
        raise ToolError(f"{token[:20]}... has too many digits; at most 1500 are allowed")
    return Fraction(mantissa) * Fraction(10) ** int(exponent or 0)


def _checked(value: Value) -> Value:
    if max(value.number.numerator.bit_length(), value.number.denominator.bit_length()) > MOST_BITS:
        raise ToolError("the result is too large: more than about 3600 digits")
    return value


def _sized(work: Callable[[Fraction, Fraction], Fraction], left: Value, right: Value) -> Value:
    return _checked(Value(work(left.number, right.number), left.exact and right.exact))


def _power(base: Value, exponent: Value) -> Value:
    exact = base.exact and exponent.exact
    if base.number == 0 and exponent.number < 0:
        raise ToolError("division by zero: 0 to a negative power")
    if exponent.number.denominator == 1:
        bits = max(base.number.numerator.bit_length(), base.number.denominator.bit_length())
        trivial = abs(base.number) in (0, 1)
        if not trivial and (bits - 1) * abs(exponent.number) > MOST_BITS:
            raise ToolError("the result is too large: more than about 3600 digits")
        power = int(exponent.number) % 2 + 2 if trivial and exponent.number != 0 else int(exponent.number)
        return _checked(Value(base.number**power, exact))
    if base.number < 0:
        raise ToolError("a root of a negative number is not a real number")
    if exact and exponent.number == Fraction(1, 2):
        return _sqrt([base])
    if abs(exponent.number) > 10**6:
        raise ToolError("the exponent is too large")
    return _decimal(lambda c, a, b: c.power(a, b), base, exponent)


def _decimal(work: Callable[..., Decimal], *given: Value) -> Value:
    context = Context(prec=DIGITS + 6, Emax=4_000, Emin=-4_000)
    try:
        found = work(context, *(context.divide(Decimal(v.number.numerator), Decimal(v.number.denominator)) for v in given))
    except ArithmeticError as error:
        raise ToolError("the result is too large, too small, or not a real number") from error
    if not found.is_finite():
        raise ToolError("the result is infinite or not a number")
    return _checked(Value(Fraction(found), exact=False))


def _sqrt(given: Sequence[Value]) -> Value:
    number = given[0].number
    if number < 0:
        raise ToolError("a root of a negative number is not a real number")
    top, bottom = math.isqrt(number.numerator), math.isqrt(number.denominator)
    if top * top == number.numerator and bottom * bottom == number.denominator:
        return Value(Fraction(top, bottom))
    return _decimal(lambda c, a: c.sqrt(a), given[0])


def _whole(given: Sequence[Value], name: str, most: int = 0) -> list[int]:
    for one in given:
        if one.number.denominator != 1 or one.number < 0:
            raise ToolError(f"{name} takes whole numbers from 0, got {shown(one)[:40]}")
        if most and one.number > most:
            raise ToolError(f"{name} takes numbers up to {most}, got {shown(one)[:40]}")
    return [int(one.number) for one in given]


def _round(given: Sequence[Value]) -> Value:
    """Round half away from zero, as taught at school."""
    places = 0
    if len(given) == 2:
        if given[1].number.denominator != 1 or not -100 <= given[1].number <= 100:
            raise ToolError("round takes a number and how many decimals, from -100 to 100")
        places = int(given[1].number)
    scaled = abs(given[0].number) * Fraction(10) ** places
    rounded = Fraction(math.floor(scaled + Fraction(1, 2))) / Fraction(10) ** places
    return Value(-rounded if given[0].number < 0 else rounded)


def _pick(choose: Callable[..., Value]) -> Callable[[Sequence[Value]], Value]:
    return lambda given: choose(given, key=lambda one: one.number)


SUMS: Mapping[str, Callable[[Fraction, Fraction], Fraction]] = {"+": lambda a, b: a + b, "-": lambda a, b: a - b}
PRODUCTS: Mapping[str, Callable[[Fraction, Fraction], Fraction]] = {
    "*": lambda a, b: a * b,
    "/": lambda a, b: a / b,
    "//": lambda a, b: Fraction(a // b),
    "%": lambda a, b: a % b,
}
FUNCTIONS: Mapping[str, tuple[int, int, Callable[[Sequence[Value]], Value]]] = {
    "sqrt": (1, 1, _sqrt),
    "abs": (1, 1, lambda g: Value(abs(g[0].number))),
    "min": (1, 99, _pick(min)),
    "max": (1, 99, _pick(max)),
    "floor": (1, 1, lambda g: Value(Fraction(math.floor(g[0].number)))),
    "ceil": (1, 1, lambda g: Value(Fraction(math.ceil(g[0].number)))),
    "round": (1, 2, _round),
    "gcd": (2, 99, lambda g: Value(Fraction(math.gcd(*_whole(g, "gcd"))))),
    "lcm": (2, 8, lambda g: Value(Fraction(math.lcm(*_whole(g, "lcm"))))),
    "factorial": (1, 1, lambda g: Value(Fraction(math.factorial(*_whole(g, "factorial", 1_000))))),
    "comb": (2, 2, lambda g: Value(Fraction(math.comb(*_whole(g, "comb", 5_000))))),
    "exp": (1, 1, lambda g: _decimal(lambda c, a: c.exp(a), g[0])),
    "ln": (1, 1, lambda g: _decimal(lambda c, a: c.ln(a), g[0])),
    "log10": (1, 1, lambda g: _decimal(lambda c, a: c.log10(a), g[0])),
}
"""Name, the minimum and maximum number of arguments, and the function."""
CONSTANTS: Mapping[str, Fraction] = {
    "pi": Fraction("3.14159265358979323846264338327950288419716939937510"),
    "e": Fraction("2.71828182845904523536028747135266249775724709369996"),
}
