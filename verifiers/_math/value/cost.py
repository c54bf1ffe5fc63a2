"""The work that evaluation may do for one answer: every call is charged in advance, by its function and its number of digits.

The charges are microseconds of a slow processor, rounded up. Nothing is timed: the same answer costs the same on every machine.
"""

from __future__ import annotations

import threading

from rlvr.verifiers._math.read.tree import TooBig

LIMIT = 400_000
CHEAP = frozenset(("num", "dec", "const", "sym", "add", "mul", "neg", "div", "percent", "unit"))
_LOCAL = threading.local()


def price(name: str, digits: int) -> int:
    """What one call costs: `erf` grows with the square of the digits, and functions like Gamma with the cube.

    >>> price("add", 60), price("sin", 60), price("erf", 60), price("Gamma", 60)
    (16, 24, 450, 647)
    """
    if name in CHEAP:
        return 10 + digits // 10
    if name == "erf":
        return digits * digits // 8
    if name == "Gamma":  # the first call at a precision computes as many Bernoulli numbers as it has digits
        return 12 + digits**3 // 340
    return 20 + digits * digits // 900


def begin(limit: int = LIMIT) -> None:
    """Start the account of a new answer, for this thread."""
    _LOCAL.left = limit


def left() -> int:
    """What this thread may still spend on its answer."""
    found: int = getattr(_LOCAL, "left", LIMIT)
    return found


def charge(name: str, digits: int) -> None:
    """Pay for one call; over the limit the answer is refused."""
    _LOCAL.left = left() - price(name, digits)
    if _LOCAL.left < 0:
        raise TooBig("evaluating it needs too much work")
