"""The evaluation budget of one answer: every call is charged in advance, by its function and its number of digits.

The charges are microseconds of a slow processor, rounded up. Nothing is measured: the same answer costs the same on every machine.
"""

from __future__ import annotations

import threading

from rlvr.verifiers.math.parsing.tree import LimitExceeded

MAX_COST = 400_000
CHEAP_OPS = frozenset(("num", "dec", "const", "sym", "add", "mul", "neg", "div", "percent", "unit"))
_LOCAL = threading.local()


def compute_cost(function_name: str, digits: int) -> int:
    """Compute the cost of one call: `erf` grows with the square of the digits, Gamma with the cube.

    >>> compute_cost("add", 60), compute_cost("sin", 60), compute_cost("erf", 60), compute_cost("Gamma", 60)
    (16, 24, 450, 647)
    """
    if function_name in CHEAP_OPS:
        return 10 + digits // 10
    if function_name == "erf":
        return digits * digits // 8
    if function_name == "Gamma":  # the first call at a precision computes as many Bernoulli numbers as it has digits
        return 12 + digits**3 // 340
    return 20 + digits * digits // 900


def reset_budget(limit: int = MAX_COST) -> None:
    """Reset the evaluation budget of this thread (in microseconds of a slow processor) for a new answer."""
    _LOCAL.left = limit


def _get_remaining_budget() -> int:
    """Return the remaining budget of this thread's answer."""
    found: int = getattr(_LOCAL, "left", MAX_COST)
    return found


def charge(function_name: str, digits: int) -> None:
    """Charge one call to the budget; raises if the budget is exceeded."""
    _LOCAL.left = _get_remaining_budget() - compute_cost(function_name, digits)
    if _LOCAL.left < 0:
        raise LimitExceeded("evaluating it needs too much work")
