"""One normal form for polynomials, radicals and complex numbers: equal forms are equal values.

A form is a sum: a dict from monomials to rational coefficients. A monomial is a sorted tuple of (atom, exponent). Atoms are
letters, pi, e, i, primes under a root ("#2"), and, as a string, whatever is not looked into ("sin(1*x)", an inverse of a sum).
When no such string occurs, different forms are different values too, because square-free radicals are independent.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

from rlvr.verifiers._exact import NotFinite, exact, power
from rlvr.verifiers._tree import MAX_BITS, TooBig, Tree

Monomial = tuple[tuple[str, Fraction], ...]
Form = dict[Monomial, Fraction]

ONE = Fraction(1)
MAX_TERMS = 400
STEPS = 20_000


class Normaliser:
    """Turns trees into forms with a budget of steps, so that no product can run away."""

    def __init__(self) -> None:
        self.steps = STEPS
        self._known: dict[Tree, Form] = {}  # a part that is looked at twice at every level costs 2^depth without this
        self.opaque = False
        """Whether some part was not looked into: then different forms prove nothing."""

    def form(self, tree: Tree) -> Form:
        """The normal form of an expression."""
        found = self._known.get(tree)
        if found is None:
            found = self._known[tree] = self._form(tree)
        return found

    def _form(self, tree: Tree) -> Form:
        op = tree[0]
        if op in ("num", "dec"):
            return _constant(exact(tree) or Fraction(0))
        if op == "sym":
            return {((tree[1] + ".", ONE),): ONE}
        if op == "const":
            if tree[1] == "oo":
                raise NotFinite("it calculates with infinity")
            return {((tree[1], ONE),): ONE}
        rule: Callable[[Tree], Form] | None = getattr(self, f"_{op}", None)
        return rule(tree) if rule else self.atom(tree)

    def atom(self, tree: Tree) -> Form:
        """A part that is not looked into, named by its operator and the forms of its arguments."""
        self.opaque = True
        parts = [arg if isinstance(arg, str) else text(self.form(arg)) for arg in tree[1:] if not isinstance(arg, int)]
        return {((f"{tree[0]}({','.join(parts)})", ONE),): ONE}

    def _add(self, tree: Tree) -> Form:
        total: Form = {}
        for arg in tree[1:]:
            total = self.plus(total, self.form(arg))
        return total

    def _neg(self, tree: Tree) -> Form:
        return {mono: -value for mono, value in self.form(tree[1]).items()}

    def _mul(self, tree: Tree) -> Form:
        total = _constant(ONE)
        for arg in tree[1:]:
            total = self.times(total, self.form(arg))
        return total

    def _div(self, tree: Tree) -> Form:
        return self.times(self.form(tree[1]), self.inverse(self.form(tree[2])))

    def _percent(self, tree: Tree) -> Form:
        return self.times(self.form(tree[1]), _constant(Fraction(1, 100)))

    def _pow(self, tree: Tree) -> Form:
        exponent = self.form(tree[2])
        value = exponent.get((), Fraction(0)) if set(exponent) <= {()} else None
        if value is None:
            return self.atom(tree)
        return self.power(self.form(tree[1]), value, tree)

    def _root(self, tree: Tree) -> Form:
        degree = exact(tree[2])
        if degree is None or degree.denominator != 1 or not 1 <= degree <= 64:
            return self.atom(tree)
        base = self.form(tree[1])
        if set(base) <= {()} and degree % 2 and base.get((), ONE) < 0:
            return {mono: -value for mono, value in self.power({(): -base[()]}, 1 / degree, tree).items()}
        return self.power(base, 1 / degree, tree)

    def _fact(self, tree: Tree) -> Form:
        value = exact(tree)
        return _constant(value) if value is not None else self.atom(tree)

    _binom = _fact

    def _sum(self, tree: Tree) -> Form:
        """A short sum is its value; a long one, a limit or an integral is not looked into: its bounds may be infinite."""
        value = exact(tree)
        if value is not None:
            return _constant(value)
        self.opaque = True
        return {((repr(tree), ONE),): ONE}

    _prod = _integral = _limit = _deriv = _sum

    def _fun(self, tree: Tree) -> Form:
        if tree[1] == "abs":
            inner = self.form(tree[2])
            if set(inner) <= {()}:
                return _constant(abs(inner.get((), Fraction(0))))
        return self.atom(tree)

    def power(self, base: Form, exponent: Fraction, tree: Tree) -> Form:
        """A form to a rational power."""
        if exponent.denominator == 1 and abs(exponent) <= 4096:
            n = int(exponent)
            if n < 0:
                return self.power(self.inverse(base), Fraction(-n), tree)
            if len(base) == 1:
                ((mono, value),) = base.items()
                scaled = power(value, exponent)
                return _reduced([(atom, e * n) for atom, e in mono], scaled or Fraction(0))
            if not base:
                return {} if n else _constant(ONE)
            if n > 64:
                raise TooBig("a power of a sum in it is over 64")
            result = _constant(ONE)
            for _ in range(n):
                result = self.times(result, base)
            return result
        if len(base) == 1 and exponent.denominator <= 64 and abs(exponent) <= 4096:
            ((mono, value),) = base.items()
            signed = exponent.denominator == 2 and value < 0
            good = (value > 0 or signed) and all(atom in ("pi", "e") or atom[0] == "#" or (e == 1 and atom != "i") for atom, e in mono)
            primes = _primes(abs(value)) if good and (not signed or not mono or all(a[0] == "#" for a, _ in mono)) else None
            if primes is not None:
                powers = [(atom, e * exponent) for atom, e in [*mono, *primes]]
                return _reduced(powers + ([("i", 2 * exponent)] if signed else []), ONE)
        return self.atom(("pow", tree[1], ("num", exponent.numerator, exponent.denominator))) if base else {}

    def plus(self, a: Form, b: Form) -> Form:
        """The sum of two forms."""
        self.spend(len(b))
        total = dict(a)
        for mono, value in b.items():
            new = total.get(mono, Fraction(0)) + value
            if new:
                total[mono] = new
            else:
                total.pop(mono, None)
        return total

    def times(self, a: Form, b: Form) -> Form:
        """The product of two forms."""
        self.spend(len(a) * len(b))
        total: Form = {}
        for mono, value in a.items():
            for other, factor in b.items():
                total = _plus_one(total, *_product(mono, value, other, factor))
        if len(total) > MAX_TERMS:
            raise TooBig(f"it expands into more than {MAX_TERMS} terms")
        return total

    def inverse(self, base: Form) -> Form:
        """One over a form; a sum of two square roots is made rational."""
        if not base:
            raise NotFinite("it divides by zero")
        if len(base) == 1:
            ((mono, value),) = base.items()
            return _reduced([(atom, -e) for atom, e in mono], 1 / value)
        if len(base) == 2:
            (p, a), (q, b) = base.items()
            if all(atom == "i" or (atom[0] == "#" and 2 * e == 1) for atom, e in p + q):
                other = {p: a, q: -b}
                low = self.times(base, other)
                if low and set(low) <= {()}:
                    return {mono: value / low[()] for mono, value in other.items()}
        self.opaque = True
        lead = base[min(base)]
        scaled = {mono: value / lead for mono, value in base.items()}
        return {((f"({text(scaled)})", Fraction(-1)),): 1 / lead}

    def spend(self, steps: int) -> None:
        """Count work; over the budget the answer is refused, not computed."""
        self.steps -= steps
        if self.steps < 0:
            raise TooBig("it takes too many steps to expand")


def _constant(value: Fraction) -> Form:
    return {(): value} if value else {}


def _plus_one(total: Form, mono: Monomial, value: Fraction) -> Form:
    new = total.get(mono, Fraction(0)) + value
    if new:
        total[mono] = new
    else:
        total.pop(mono, None)
    return total


def _product(a: Monomial, value: Fraction, b: Monomial, factor: Fraction) -> tuple[Monomial, Fraction]:
    if not a or not b:
        return a or b, value * factor
    ((mono, result),) = _reduced([*a, *b], value * factor).items() or (((), Fraction(0)),)
    return mono, result


def _reduced(powers: list[tuple[str, Fraction]], value: Fraction) -> Form:
    """The monomial of these powers: i to the fourth is 1, a prime's exponent lies in [0, 1)."""
    total: dict[str, Fraction] = {}
    for atom, exponent in powers:
        total[atom] = total.get(atom, Fraction(0)) + exponent
    if "i" in total and total["i"].denominator == 1:
        turns = int(total.pop("i")) % 4
        value = -value if turns > 1 else value
        if turns % 2:
            total["i"] = ONE
    for atom in [atom for atom in total if atom[0] == "#"]:
        whole = total[atom].__floor__()
        if abs(whole) > MAX_BITS // 16:
            raise TooBig("a power in it is too large")
        value *= Fraction(int(atom[1:])) ** whole
        total[atom] -= whole
    mono = tuple(sorted((atom, exponent) for atom, exponent in total.items() if exponent))
    return {mono: value} if value else {}


def _primes(value: Fraction) -> list[tuple[str, Fraction]] | None:
    """The prime powers of a rational; None when it does not factor quickly."""
    found: list[tuple[str, Fraction]] = []
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
                found.append((f"#{prime}", Fraction(sign * count)))
            prime += 1 if prime == 2 else 2
        if rest > 1:
            if prime * prime <= rest:
                return None
            found.append((f"#{rest}", Fraction(sign)))
    return found


def text(form: Form) -> str:
    """A form as one canonical string."""
    rows = sorted("*".join([str(value), *(f"{atom}^{e}" for atom, e in mono)]) for mono, value in form.items())
    joined = "+".join(rows) or "0"
    if len(joined) > 20_000:
        raise TooBig("it is too long when written out")
    return joined


def compare(a: Tree, b: Tree) -> bool | None:
    """Whether two expressions are equal by their normal forms; None when the forms do not decide."""
    normaliser = Normaliser()
    left, right = normaliser.form(a), normaliser.form(b)
    if left == right:
        return True
    return None if normaliser.opaque else False
