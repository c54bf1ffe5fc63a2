"""A normal form for polynomials, radicals and complex numbers: equal forms mean equal values.

A form is a sum: a dict from monomials to rational coefficients. A monomial is a sorted tuple of (atom, exponent). Atoms are
letters, pi, e, i, primes under a root ("#2"), and, as a string, every opaque part ("sin(1*x)", an inverse of a sum).
Without opaque parts, different forms mean different values too, because square-free radicals are independent.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

from rlvr.verifiers.math.parsing.tree import MAX_BITS, LimitExceeded, Tree
from rlvr.verifiers.math.values.rational import NotFinite, compute_power, to_rational

Rational = Fraction | int
Monomial = tuple[tuple[str, Rational], ...]
Form = dict[Monomial, Rational]

MAX_TERMS = 400
MAX_STEPS = 20_000
POLE_FUNCTIONS = frozenset(("ln", "cot", "csc", "Gamma"))
"""Functions without a value at zero."""


class Normalizer:
    """Converts trees to normal forms with a budget of steps, so that the cost of products is bounded."""

    def __init__(self, steps: int = MAX_STEPS) -> None:
        self.steps_left = steps
        self._cache: dict[Tree, Form] = {}  # without this cache, a part that is visited twice at every level costs 2^depth
        self.has_opaque_part = False
        """Whether some part is opaque: then different forms prove nothing."""

    def to_form(self, tree: Tree) -> Form:
        """Return the normal form of an expression (cached)."""
        found = self._cache.get(tree)
        if found is None:
            found = self._cache[tree] = self._compute_form(tree)
        return found

    def _compute_form(self, tree: Tree) -> Form:
        op = tree[0]
        if op in ("num", "dec"):
            return _constant_form(to_rational(tree) or Fraction(0))
        if op == "sym":
            return {((tree[1] + ".", 1),): 1}
        if op == "const":
            if tree[1] == "oo":
                raise NotFinite("it calculates with infinity")
            return {((tree[1], 1),): 1}
        rule: Callable[[Tree], Form] | None = getattr(self, f"_{op}", None)
        return rule(tree) if rule else self.make_atom(tree)

    def make_atom(self, tree: Tree) -> Form:
        """Make an opaque atom, named by its operator and the forms of its arguments."""
        self.has_opaque_part = True
        parts = [arg if isinstance(arg, str) else _format_form(self.to_form(arg)) for arg in tree[1:] if not isinstance(arg, int)]
        return {((f"{tree[0]}({','.join(parts)})", 1),): 1}

    def _add(self, tree: Tree) -> Form:
        total: Form = {}
        for arg in tree[1:]:
            total = self.add(total, self.to_form(arg))
        return total

    def _neg(self, tree: Tree) -> Form:
        return {mono: -value for mono, value in self.to_form(tree[1]).items()}

    def _mul(self, tree: Tree) -> Form:
        total = _constant_form(1)
        for arg in tree[1:]:
            total = self.multiply(total, self.to_form(arg))
        return total

    def _div(self, tree: Tree) -> Form:
        return self.multiply(self.to_form(tree[1]), self.invert(self.to_form(tree[2])))

    def _percent(self, tree: Tree) -> Form:
        return self.multiply(self.to_form(tree[1]), _constant_form(Fraction(1, 100)))

    def _pow(self, tree: Tree) -> Form:
        exponent = self.to_form(tree[2])
        if not set(exponent) <= {()}:
            return self.make_atom(tree)
        return self.raise_power(self.to_form(tree[1]), Fraction(exponent.get((), 0)), tree)

    def _root(self, tree: Tree) -> Form:
        degree = to_rational(tree[2])
        if degree is None or degree.denominator != 1 or not 1 <= degree <= 64:
            return self.make_atom(tree)
        base = self.to_form(tree[1])
        if set(base) <= {()} and degree % 2 and base.get((), 1) < 0:
            return {mono: -value for mono, value in self.raise_power({(): -base[()]}, 1 / degree, tree).items()}
        return self.raise_power(base, 1 / degree, tree)

    def _fact(self, tree: Tree) -> Form:
        value = to_rational(tree)
        return _constant_form(value) if value is not None else self.make_atom(tree)

    _binom = _fact

    def _sum(self, tree: Tree) -> Form:
        """Compute a short sum or product; make a long one, a limit, an integral or a derivative an opaque atom, since its bounds may be
        infinite.
        """
        value = to_rational(tree)
        if value is not None:
            return _constant_form(value)
        self.has_opaque_part = True
        return {((repr(tree), 1),): 1}

    _prod = _integral = _limit = _deriv = _sum

    def _fun(self, tree: Tree) -> Form:
        if tree[1] == "abs":
            inner = self.to_form(tree[2])
            if set(inner) <= {()}:
                return _constant_form(abs(Fraction(inner.get((), 0))))
        if tree[1] in POLE_FUNCTIONS and not self.to_form(tree[2]):
            raise NotFinite(f"{tree[1]} of zero has no finite value")
        return self.make_atom(tree)

    def raise_power(self, base: Form, exponent: Fraction, tree: Tree) -> Form:
        """Raise a form to a rational power."""
        if not base and exponent <= 0:
            raise NotFinite("it raises zero to a power that is not positive")
        if exponent.denominator == 1 and abs(exponent) <= 4096:
            n = int(exponent)
            if n < 0:
                return self.raise_power(self.invert(base), Fraction(-n), tree)
            if len(base) == 1:
                ((mono, value),) = base.items()
                scaled = compute_power(Fraction(value), exponent)
                return _make_form({atom: e * n for atom, e in mono}, scaled or 0)
            if not base:
                return {}
            if n > 64:
                raise LimitExceeded("a power of a sum in it is over 64")
            result = _constant_form(1)
            for _ in range(n):
                result = self.multiply(result, base)
            return result
        if len(base) == 1 and exponent.denominator <= 64 and abs(exponent) <= 4096:
            ((mono, value),) = base.items()
            signed = exponent.denominator == 2 and value < 0
            good = (value > 0 or signed) and all(atom in ("pi", "e") or atom[0] == "#" or (e == 1 and atom != "i") for atom, e in mono)
            primes = (
                _factor_primes(abs(Fraction(value))) if good and (not signed or not mono or all(a[0] == "#" for a, _ in mono)) else None
            )
            if primes is not None:
                powers: dict[str, Rational] = {}
                for atom, e in (*mono, *primes, *([("i", 2)] if signed else [])):
                    powers[atom] = powers.get(atom, 0) + e * exponent
                return _make_form(powers, 1)
        return self.make_atom(("pow", tree[1], ("num", exponent.numerator, exponent.denominator))) if base else {}

    def add(self, a: Form, b: Form) -> Form:
        """Add two forms."""
        self.charge_steps(len(b))
        total = dict(a)
        for mono, value in b.items():
            _add_term(total, mono, value)
        return total

    def multiply(self, a: Form, b: Form) -> Form:
        """Multiply two forms."""
        self.charge_steps(len(a) * len(b))
        total: Form = {}
        for mono, value in a.items():
            for other, factor in b.items():
                _add_term(total, *_multiply_monomials(mono, other, value * factor))
        if len(total) > MAX_TERMS:
            raise LimitExceeded(f"it expands into more than {MAX_TERMS} terms")
        return total

    def invert(self, base: Form) -> Form:
        """Invert a form; a sum of two square roots is made rational."""
        if not base:
            raise NotFinite("it divides by zero")
        if len(base) == 1:
            ((mono, value),) = base.items()
            return _make_form({atom: -e for atom, e in mono}, Fraction(1) / value)
        if len(base) == 2:
            (p, a), (q, b) = base.items()
            if all(atom == "i" or (atom[0] == "#" and 2 * e == 1) for atom, e in p + q):
                other = {p: a, q: -b}
                low = self.multiply(base, other)
                if low and set(low) <= {()}:
                    return {mono: Fraction(value) / low[()] for mono, value in other.items()}
        self.has_opaque_part = True
        lead = base[min(base)]
        scaled: Form = {mono: Fraction(value) / lead for mono, value in base.items()}
        return {((f"({_format_form(scaled)})", -1),): Fraction(1) / lead}

    def charge_steps(self, steps: int) -> None:
        """Charge steps to the budget; raises if it is exceeded."""
        self.steps_left -= steps
        if self.steps_left < 0:
            raise LimitExceeded("it needs too many steps to expand")


def _constant_form(value: Rational) -> Form:
    return {(): _to_int(value)} if value else {}


def _to_int(value: Rational) -> Rational:
    """Convert an integral value to int, because sums and products are faster with ints."""
    return value.numerator if value.denominator == 1 else value


def _add_term(total: Form, mono: Monomial, value: Rational) -> None:
    new = total.get(mono, 0) + value
    if new:
        total[mono] = new
    else:
        total.pop(mono, None)


def _multiply_monomials(a: Monomial, b: Monomial, value: Rational) -> tuple[Monomial, Rational]:
    """Multiply two monomials; return the monomial and its factor."""
    if not a or not b:
        return a or b, value
    powers = dict(a)
    for atom, exponent in b:
        powers[atom] = powers.get(atom, 0) + exponent
    return _reduce_monomial(powers, value)


def _make_form(powers: dict[str, Rational], value: Rational) -> Form:
    mono, factor = _reduce_monomial(powers, value)
    return {mono: _to_int(factor)} if factor else {}


def _reduce_monomial(powers: dict[str, Rational], value: Rational) -> tuple[Monomial, Rational]:
    """Reduce powers to a monomial and its factor: i to the fourth is 1, a prime's exponent is in [0, 1)."""
    for atom in [atom for atom in powers if atom == "i" or atom[0] == "#"]:
        exponent = powers[atom]
        if atom != "i":
            whole = math.floor(exponent)
            if abs(whole) > MAX_BITS // 16:
                raise LimitExceeded("a power in it is too large")
            if whole:
                value = _to_int(value * Fraction(int(atom[1:])) ** whole)
                powers[atom] = exponent - whole
        elif exponent.denominator == 1:
            value = -value if exponent % 4 > 1 else value
            powers[atom] = exponent % 2
    return tuple(sorted((atom, exponent) for atom, exponent in powers.items() if exponent)), value


def _factor_primes(value: Fraction) -> list[tuple[str, Rational]] | None:
    """Factor a rational into prime powers; None if that takes too long."""
    found: list[tuple[str, Rational]] = []
    for number, sign in ((value.numerator, 1), (value.denominator, -1)):
        rest, prime = number, 2
        if rest.bit_length() > 256:
            return None
        while prime * prime <= rest and prime < 3000:
            count = 0
            while rest % prime == 0:
                rest //= prime
                count += 1
            if count:
                found.append((f"#{prime}", sign * count))
            prime += 1 if prime == 2 else 2
        if rest > 1:
            if prime * prime <= rest:
                return None
            found.append((f"#{rest}", sign))
    return found


def _format_form(form: Form) -> str:
    """Format a form as one canonical string."""
    rows = sorted("*".join([str(value), *(f"{atom}^{e}" for atom, e in mono)]) for mono, value in form.items())
    joined = "+".join(rows) or "0"
    if len(joined) > 20_000:
        raise LimitExceeded("it is too long when written out")
    return joined


def is_equal_normal_form(a: Tree, b: Tree, max_steps: int = MAX_STEPS) -> bool | None:
    """Compare two expressions by their normal forms; None if the forms do not decide."""
    normaliser = Normalizer(max_steps)
    left, right = normaliser.to_form(a), normaliser.to_form(b)
    if left == right:
        return True
    return None if normaliser.has_opaque_part else False
