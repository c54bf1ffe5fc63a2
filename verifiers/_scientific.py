"""Tell a number in scientific notation from a product with a power of ten that is left to do."""

from __future__ import annotations

from fractions import Fraction


def is_scientific_notation(mantissa: Fraction, exponent: int) -> bool:
    """Whether a number is usually written with this power of ten: 3 * 10^6, 1.44 * 10^2, 2.5 * 10^-1; but not 14 * 10^1 or 250 * 10^-1.

    >>> [is_scientific_notation(Fraction(value), exponent) for value, exponent in (("3", 6), ("1.44", 2), ("14", 1), ("250", -1))]
    [True, True, False, False]
    """
    if exponent >= 3 or not mantissa or exponent < -1000:  # thousands and more, or out of reach for a whole number
        return True
    if (mantissa * Fraction(10) ** exponent).denominator != 1:
        return True
    if mantissa.denominator == 1:
        return 1 <= abs(mantissa) < 10 and exponent == 2
    return 1 <= abs(mantissa) < (10 if exponent == 1 else 100) and exponent >= 1
