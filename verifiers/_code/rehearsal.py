"""Dry-run a test in the sandbox without any answer, to decide whether the test is valid. No answer can affect that decision.

Every call of the answer returns an unknown value, which passes each assertion. The test is invalid if it passes or expects values that are
not data, or fails before its first call. If it branches on a result of the answer, the dry run ends, and the test counts as valid.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable
from typing import Any

from rlvr.verifiers._code.judge import Over, Undecided, Unfit, begun, lend, noted, passed, run
from rlvr.verifiers._code.wire import Opaque, send


class Unknown(Opaque):
    """A placeholder for a value that an answer returns. Values computed from it are unknown too; branching on it ends the dry run.

    >>> type(abs(Unknown() - 5) < 1).__name__
    'Unknown'
    """

    def __init__(self) -> None:
        super().__init__("unknown")

    def __getattr__(self, name: str) -> Unknown:
        if name.startswith("__"):
            raise Undecided
        return Unknown()


def _unknown(*_: Any, **__: Any) -> Unknown:
    return Unknown()


def _undecided(*_: Any, **__: Any) -> Any:
    raise Undecided


SAME = ("eq", "ne", "lt", "le", "gt", "ge", "call", "getitem", "neg", "pos", "abs", "invert", "round")
TWO_SIDED = ("add", "sub", "mul", "truediv", "floordiv", "mod", "divmod", "pow", "lshift", "rshift", "and", "xor", "or", "matmul")
DECIDES = ("bool", "iter", "len", "hash", "contains", "int", "float", "complex", "index", "str", "repr", "format", "setitem", "delitem")
for _name in (*SAME, *TWO_SIDED, *(f"r{name}" for name in TWO_SIDED)):
    setattr(Unknown, f"__{_name}__", _unknown)
for _name in (*DECIDES, "next", "enter", "exit", "bytes", "fspath", "reversed"):
    setattr(Unknown, f"__{_name}__", _undecided)


def unanswered(name: str) -> Callable[..., Unknown]:
    """Make a replacement of the answer's function that checks that its arguments are data, and returns an unknown value."""

    def call(*args: Any, **kwargs: Any) -> Unknown:
        with contextlib.suppress(Undecided):  # an argument is what the answer returned
            passed(args, kwargs)
        noted()
        return Unknown()

    call.__name__ = call.__qualname__ = name
    return call


def rehearse() -> None:
    """Run the instrumented test; if it is invalid, write the reason to a record."""
    brief = json.loads(sys.stdin.buffer.read())
    function = unanswered(brief["entry_point"])
    try:
        code, names = begun(brief, lambda *_: None)
        lend(names, function, function)
        names["__holds__"] = lambda value: type(value) is Unknown or value
        run(code, names, brief["check"])
    except Unfit as error:
        send(5, {"unfit": str(error)[:300]})
    except (Over, Undecided):
        pass  # valid, as far as can be known without an answer
