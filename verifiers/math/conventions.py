"""The conventions of comparing: every convention of the math verifier is a field here, set per task or per environment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from rlvr.errors import ConfigError, format_suggestion

ALLOWED_VALUES: Mapping[str, tuple[str, ...]] = {
    "percent": ("lenient", "strict"),
    "units": ("optional", "required"),
    "order": ("any", "strict"),
    "brackets": ("lenient", "strict"),
    "form": ("", "reduced", "factored", "expanded", "numeral"),
    "base": ("required", "optional"),
    "multiple_answers": ("refuse", "last"),
    "worked_out": ("strict", "lenient", "off"),
}


@dataclass(frozen=True, slots=True)
class MathConventions:
    """How two answers are compared where conventions differ. A task overrides it with `meta["conventions"]`.

    >>> MathConventions().override({"percent": "strict"}).percent
    'strict'
    """

    percent: str = "lenient"
    """lenient: for the gold 50%, both 50 and 0.5 are accepted, and 50% for the gold 50. strict: the sign or the same value."""
    units: str = "optional"
    """optional: a unit may be missing on either side; two units that conflict are always wrong. required: it may not be missing."""
    order: str = "any"
    """Whether the order of a list without brackets counts. In tuples it always does."""
    brackets: str = "lenient"
    """lenient: `1, 2` is accepted for (1, 2) and for {1, 2}, and (1, 2) for `1, 2` in that order. strict: brackets as in the gold."""
    form: str = ""
    """The required form of a right value: reduced (fractions in lowest terms), factored, expanded, numeral (no arithmetic left)."""
    base: str = "required"
    """Whether a numeral in a base needs its base."""
    multiple_answers: str = "refuse"
    """How several different declared answers are handled. refuse: they score 0. last: the last one counts."""
    worked_out: str = "strict"
    """Whether a right value must be worked out. strict: a gold that is a numeral wants a numeral, any other gold an answer without a sum,
    product, power, root or function of numbers that the gold has evaluated. lenient: arithmetic may be left open, but no sum over an index,
    product, integral, limit, derivative, and no gcd, lcm, max, min or determinant of numbers, unless the gold has one. Both refuse what
    is copied from the prompt, also in disguise, unless it is the gold's own expression. off: the value alone counts."""
    allow_symbol: bool = False
    """Whether the gold may be a bare letter."""
    tolerance: float = 5e-3
    """How far, relatively, an exact value may lie from a gold decimal that it rounds to: pi for the gold 3.14. Another decimal is
    another value, and money is never rounded."""
    min_gold_digits: int = 3
    """Minimum of significant digits for a gold decimal to count as rounded; one with fewer is exact."""
    min_answer_digits: int = 6
    """Minimum of significant digits for a decimal answer to be accepted as the rounding of an exact gold; for a gold that is not a
    fraction, up to the 18 digits that a computer prints."""

    def __post_init__(self) -> None:
        for name, allowed in ALLOWED_VALUES.items():
            if getattr(self, name) not in allowed:
                raise ConfigError(f"convention {name} is {getattr(self, name)!r}; {format_suggestion(str(getattr(self, name)), allowed)}")
        if not isinstance(self.allow_symbol, bool):
            raise ConfigError(f"convention allow_symbol is {self.allow_symbol!r}; it must be true or false")
        if isinstance(self.tolerance, bool) or not isinstance(self.tolerance, int | float) or not 0 <= self.tolerance < 0.1:
            raise ConfigError(f"convention tolerance is {self.tolerance!r}; it must be at least 0 and less than 0.1")
        for name in ("min_gold_digits", "min_answer_digits"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= 100:
                raise ConfigError(f"convention {name} is {value!r}; it must be a whole number from 1 to 100")

    def override(self, overrides: Any) -> MathConventions:
        """Return the policy with some fields replaced."""
        if not overrides:
            return self
        if not isinstance(overrides, Mapping):
            raise ConfigError(f"conventions must be a mapping, got {overrides!r}; write {{'percent': 'strict'}}")
        known = [field.name for field in fields(self)]
        for key in overrides:
            if key not in known:
                raise ConfigError(f"there is no convention {key!r}; {format_suggestion(str(key), known, max_names=len(known))}")
        return replace(self, **overrides)

    def get_non_default_fields(self) -> dict[str, Any]:
        """Return the fields that differ from the default, for the log."""
        return {f.name: getattr(self, f.name) for f in fields(self) if getattr(self, f.name) != f.default}
