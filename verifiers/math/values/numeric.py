"""Numeric evaluation: values at sample points, to many digits, with every cost limited in advance.

Used to distinguish two expressions (a difference at one point is a proof), to order end points and to round decimals.
mpmath contexts are not safe to share between threads, so each thread has its own.
"""

from __future__ import annotations

import threading
import zlib
from fractions import Fraction
from typing import Any

from mpmath.ctx_mp import MPContext

from rlvr.verifiers.math.parsing.tree import LimitExceeded, Tree, get_free_symbols, list_nodes
from rlvr.verifiers.math.values.cost import charge
from rlvr.verifiers.math.values.rational import NotFinite, to_rational

_LOCAL = threading.local()
MAX_WORDS = 400
BASE_DIGITS = 60
MAX_DIGITS = 1_200
NUM_POINTS = 6


POINT_SCALES = (1, 3, 20, Fraction(1, 9), 7, 300)
"""How far from zero the sample points are."""


class NoNumericRule(Exception):
    """Raised if there is no numeric rule for a part of the expression."""


def get_thread_mp_context() -> Any:
    """Return the mpmath context of this thread."""
    if not hasattr(_LOCAL, "mp"):
        _LOCAL.mp = MPContext()
    return _LOCAL.mp


def _count_digits_needed(*trees: Tree) -> int:
    """Count the digits needed to distinguish these expressions: sixty, plus digits for every numeral and power in them."""
    total = BASE_DIGITS
    for tree in trees:
        for node in list_nodes(tree):
            if node[0] in ("num", "dec"):
                total += len(bin(node[1])) // 3 + abs(node[2] if node[0] == "dec" else 0)
            elif node[0] == "pow":
                exponent = to_rational(node[2])
                base = to_rational(node[1])
                if exponent is not None and base is not None:
                    total += int(abs(exponent) * max(base.numerator.bit_length(), base.denominator.bit_length())) // 3
    if total > MAX_DIGITS:
        raise LimitExceeded(f"comparing it needs more than {MAX_DIGITS} digits")
    return total


class Evaluator:
    """Evaluates trees as mpmath numbers at one sample point, with a given number of digits."""

    def __init__(self, digits: int, point: dict[str, Fraction]) -> None:
        self.mp = get_thread_mp_context()
        self.digits = digits
        self.point = point
        self.max_exponent = 0
        """The largest binary exponent so far: cancellation is measured against it."""
        self.has_precision_loss = False
        """Whether a part was too small relative to another one for this precision: e^(-1000) next to sin x."""

    def evaluate(self, tree: Tree) -> Any:
        """Evaluate a tree as an mpmath number."""
        old = self.mp.prec
        self.mp.dps = self.digits
        try:
            found = self.mp.convert(self._evaluate(tree))
        except (ZeroDivisionError, ValueError, OverflowError) as error:
            raise NotFinite("it has no finite value") from error
        finally:
            self.mp.prec = old
        if not self.mp.isfinite(found):
            raise NotFinite("it has no finite value")
        return found

    def _evaluate(self, tree: Tree) -> Any:
        charge(tree[1] if tree[0] == "fun" else tree[0], self.digits)
        found = self._evaluate_node(tree)
        size = self.mp.mag(found) if found else 0
        if abs(size) > 4_000_000:
            raise LimitExceeded("a number in it is too large")
        self.max_exponent = max(self.max_exponent, int(size))
        return found

    def _evaluate_node(self, tree: Tree) -> Any:
        mp, op = self.mp, tree[0]
        if op in ("num", "dec", "sum", "prod"):
            value = to_rational(tree)
            if value is None:
                return self._raise_undecided(tree)
            return mp.mpf(value.numerator) / value.denominator
        if op == "const":
            return {"pi": mp.pi, "e": mp.e, "i": mp.mpc(0, 1)}[tree[1]] if tree[1] in ("pi", "e", "i") else self._raise_undecided(tree)
        if op == "sym":
            at = self.point.get(tree[1])
            return mp.mpf(at.numerator) / at.denominator if at is not None else self._raise_undecided(tree)
        if op == "add":
            terms = [self._evaluate(arg) for arg in tree[1:]]
            sizes = [mp.mag(term) for term in terms if term]
            self.has_precision_loss |= bool(sizes) and max(sizes) - min(sizes) > 2.5 * self.digits
            return mp.fsum(terms)
        if op == "mul":
            return mp.fprod(self._evaluate(arg) for arg in tree[1:])
        if op == "neg":
            return -self._evaluate(tree[1])
        if op == "div":
            return self._evaluate(tree[1]) / self._evaluate(tree[2])
        if op == "percent":
            return self._evaluate(tree[1]) / 100
        if op == "unit" and tree[2] in ("degree", "degrees"):
            return self._evaluate(tree[1]) * mp.pi / 180
        if op == "pow":
            return self._compute_power(self._evaluate(tree[1]), self._evaluate(tree[2]), tree)
        if op == "root":
            return self._compute_root(self._evaluate(tree[1]), self._evaluate(tree[2]))
        if op == "fact":
            return mp.gamma(self._evaluate_factorial_argument(tree[1]) + 1)
        if op == "binom":
            return mp.binomial(self._evaluate_factorial_argument(tree[1]), self._evaluate_factorial_argument(tree[2]))
        return self._compute_function(tree) if op == "fun" else self._raise_undecided(tree)

    def _compute_power(self, base: Any, exponent: Any, tree: Tree) -> Any:
        if base == 0:
            if self.mp.re(exponent) > 0:
                return self.mp.mpf(0)
            raise NotFinite("it raises zero to a power that is not positive")
        self._record_precision_loss(exponent, -1)
        if abs(exponent) * (abs(self.mp.mag(base)) + 1) > 3_000_000:
            raise LimitExceeded("a power in it is too large")
        power = to_rational(tree[2])
        if (
            power is not None
            and power.denominator % 2
            and power.denominator > 1
            and self.mp.im(base) == 0
            and base < 0
            and power.denominator < 99
        ):
            sign = -1 if power.numerator % 2 else 1
            return sign * self.mp.power(-base, exponent)
        return self.mp.power(base, exponent)

    def _record_precision_loss(self, argument: Any, limit_side: int) -> None:
        """Record precision loss for extreme arguments: cos of 10^-40 is 1, arctan of 10^40 is pi/2."""
        size = self.mp.mag(argument) if argument else 0
        self.has_precision_loss |= size < -1.6 * self.digits or (limit_side == 0 and size > 1.6 * self.digits)

    def _compute_root(self, base: Any, degree: Any) -> Any:
        if degree == 0 or abs(degree) > 100:
            raise NotFinite("there is no such root")
        real = self.mp.im(base) == 0
        if real and base < 0 and degree == int(self.mp.re(degree)) and int(self.mp.re(degree)) % 2:
            return -self.mp.power(-base, 1 / self.mp.mpf(degree))
        return self.mp.power(base, 1 / degree) if base else base

    def _limit_argument(self, value: Any, limit: int) -> Any:
        if abs(value) > limit:
            raise LimitExceeded(f"an argument in it is over {limit}")
        return value

    def _evaluate_factorial_argument(self, tree: Tree) -> Any:
        """Evaluate the argument of a factorial; one that is not an integer is charged as Gamma."""
        value = self._limit_argument(self._evaluate(tree), 10_000)
        if value != int(self.mp.re(value)):
            charge("Gamma", self.digits)
        return value

    def _compute_function(self, tree: Tree) -> Any:
        mp, name = self.mp, tree[1]
        if name == "det":
            return self._compute_determinant(tree[2])
        args = [self._evaluate(arg) for arg in tree[2:]]
        if name in ("max", "min", "gcd", "lcm"):
            return self._raise_undecided(tree)
        (x,) = args
        self._record_precision_loss(x, 0)
        self.has_precision_loss |= name in _SATURATING_FUNCTIONS and (abs(x) ** 2 if name == "erf" else 2 * abs(x)) > 1.4 * self.digits
        if name == "abs":
            return abs(x)
        rule = _FUNCTIONS.get(name)
        if rule is None:
            return self._raise_undecided(tree)
        return getattr(mp, rule)(self._limit_argument(x, 10**30) if name not in ("ln", "floor", "ceil") else x)

    def _compute_determinant(self, tree: Tree) -> Any:
        if tree[0] != "matrix" or len(tree[1]) != len(tree[1][0]) or len(tree[1]) > 6:
            return self._raise_undecided(tree)
        rows = [[self._evaluate(cell) for cell in row] for row in tree[1]]
        result = self.mp.mpf(1)
        for k in range(len(rows)):
            pivot = max(range(k, len(rows)), key=lambda r: abs(rows[r][k]))
            if not rows[pivot][k]:
                return self.mp.mpf(0)
            if pivot != k:
                rows[k], rows[pivot], result = rows[pivot], rows[k], -result
            result *= rows[k][k]
            for r in range(k + 1, len(rows)):
                part = rows[r][k] / rows[k][k]
                rows[r] = [a - part * b for a, b in zip(rows[r], rows[k], strict=True)]
        return result

    def _raise_undecided(self, tree: Tree) -> Any:
        raise NoNumericRule(f"there is no rule for {tree[1] if tree[0] in ('fun', 'const', 'sym') else tree[0]}")


_SATURATING_FUNCTIONS = frozenset(("tanh", "coth", "erf"))
"""Functions that approach a constant like e^(-2x) or, for erf, e^(-x^2), so that the difference soon falls below the precision."""
_FUNCTIONS = {
    name: name
    for name in [
        "sin",
        "cos",
        "tan",
        "cot",
        "sec",
        "csc",
        "sinh",
        "cosh",
        "tanh",
        "coth",
        "sech",
        "csch",
        "floor",
        "ceil",
        "exp",
        "arg",
        "sgn",
        "erf",
    ]
}
_FUNCTIONS |= {"ln": "ln", "arcsin": "asin", "arccos": "acos", "arctan": "atan", "arccot": "acot", "arcsec": "asec", "arccsc": "acsc"}
_FUNCTIONS |= {"asinh": "asinh", "acosh": "acosh", "atanh": "atanh", "Re": "re", "Im": "im", "sgn": "sign", "Gamma": "gamma"}


def _make_sample_point(names: frozenset[str], index: int, salt: int) -> dict[str, Fraction]:
    """Make a sample point for these letters, equal in every process: mixed signs, no small integers, seeded by the expressions."""
    point = {}
    for place, name in enumerate(sorted(names)):
        seed = (place * 7919 + index * 104_729 + salt + 31_337) * 48_271 % 2_147_483_647
        sign = -1 if index % 2 and (place + index) % 3 != 0 else 1
        point[name] = sign * (Fraction(seed % 9973, 9973) + Fraction(1, 7)) * POINT_SCALES[index]
    return point


def differs_at_sample_points(a: Tree, b: Tree) -> bool | None:
    """Compare at sample points. True: the values differ at some point. False: they agree at every point. None: undecided."""
    names = get_free_symbols(a) | get_free_symbols(b)
    digits = _count_digits_needed(a, b)
    salt = zlib.crc32(repr((a, b)).encode())
    on_reals = bool(names) and not any(node == ("const", "i") for tree in (a, b) for node in list_nodes(tree))
    points = [_make_sample_point(names, turn, salt) for turn in range(NUM_POINTS if names else 1)]
    agreed = False
    for precision in (digits, MAX_DIGITS):
        vague = []
        for point in points:
            left, right = Evaluator(precision, point), Evaluator(precision, point)
            try:
                x, y = left.evaluate(a), right.evaluate(b)
            except NoNumericRule:
                return None
            except NotFinite:
                if not names:
                    raise
                continue
            if on_reals and left.mp.im(x) and left.mp.im(y):
                continue  # outside the real domain of both
            if not is_close(x, y, max(left.max_exponent, right.max_exponent), precision):
                return True
            vague += [point] if left.has_precision_loss or right.has_precision_loss else []
            agreed |= not (left.has_precision_loss or right.has_precision_loss)
        if agreed or not vague:
            break
        points = vague[:1]  # precision was lost at every point: repeat one with the maximum number of digits
    return False if agreed else None


def is_close(x: Any, y: Any, max_exponent: int, digits: int) -> bool:
    """Whether two values agree to all but a dozen of their digits, with cancellation taken into account."""
    mp = get_thread_mp_context()
    if x == y:
        return True
    old = mp.prec
    mp.dps = digits
    try:
        gap = mp.mag(x - y)
        return bool(gap < max(mp.mag(x) if x else -(10**9), mp.mag(y) if y else -(10**9)) - 3.33 * (digits - 15)) or bool(
            gap < max_exponent - 3.33 * (digits - 8) and max_exponent > 0
        )
    finally:
        mp.prec = old


def evaluate_real(tree: Tree, digits: int = BASE_DIGITS) -> Any | None:
    """Evaluate an expression without letters as a real number; None if it is not one."""
    try:
        value = Evaluator(digits, {}).evaluate(tree)
    except (NoNumericRule, NotFinite, LimitExceeded):
        return None
    mp = get_thread_mp_context()
    if mp.im(value) != 0:
        return None
    return mp.re(value)
