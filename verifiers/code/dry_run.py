"""Dry-run a test in the sandbox without any answer, to decide whether the test is valid. No answer can affect that decision.

Every call of the answer returns an unknown value, which passes each assertion. The test is invalid if it passes or expects values that are
not data, or fails before its first call. If it branches on a result of the answer, the dry run ends, and the test counts as valid.

The verdict is always a record: a dry run without one did not run, and says nothing about the test.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable
from typing import Any

from rlvr.verifiers.code.checker import (
    AnswerProcessEnded,
    DependsOnAnswer,
    InvalidTest,
    add_answer_and_helpers_to_namespace,
    compile_test,
    count_call,
    encode_call,
    run_test,
)
from rlvr.verifiers.code.wire import OpaqueValue, write_message


class UnknownValue(OpaqueValue):
    """A placeholder for a value that an answer returns. Values computed from it are unknown too; branching on it ends the dry run.

    >>> type(abs(UnknownValue() - 5) < 1).__name__
    'UnknownValue'
    """

    def __init__(self) -> None:
        super().__init__("unknown")

    def __getattr__(self, name: str) -> UnknownValue:
        if name.startswith("__"):
            raise DependsOnAnswer
        return UnknownValue()


def _return_unknown(*_: Any, **__: Any) -> UnknownValue:
    return UnknownValue()


def _raise_undecided(*_: Any, **__: Any) -> Any:
    raise DependsOnAnswer


UNKNOWN_RESULT_OPS = ("eq", "ne", "lt", "le", "gt", "ge", "call", "getitem", "neg", "pos", "abs", "invert", "round")
BINARY_OPS = ("add", "sub", "mul", "truediv", "floordiv", "mod", "divmod", "pow", "lshift", "rshift", "and", "xor", "or", "matmul")
DECIDING_OPS = (
    "bool",
    "iter",
    "len",
    "hash",
    "contains",
    "int",
    "float",
    "complex",
    "index",
    "str",
    "repr",
    "format",
    "setitem",
    "delitem",
)
for _name in (*UNKNOWN_RESULT_OPS, *BINARY_OPS, *(f"r{name}" for name in BINARY_OPS)):
    setattr(UnknownValue, f"__{_name}__", _return_unknown)
for _name in (*DECIDING_OPS, "next", "enter", "exit", "bytes", "fspath", "reversed"):
    setattr(UnknownValue, f"__{_name}__", _raise_undecided)


def _make_unknown_function(name: str) -> Callable[..., UnknownValue]:
    """Make a replacement of the answer's function that checks that its arguments are data, and returns an unknown value."""

    def call(*args: Any, **kwargs: Any) -> UnknownValue:
        with contextlib.suppress(DependsOnAnswer):  # an argument is what the answer returned
            encode_call(args, kwargs)
        count_call()
        return UnknownValue()

    call.__name__ = call.__qualname__ = name
    return call


class UnknownAnswerObject(UnknownValue):
    """A placeholder for an object of the answer's class. Objects are not compared: their own `==` would decide the assertion."""


def _reject_comparison(*_: Any, **__: Any) -> Any:
    raise InvalidTest(
        "the test compares or computes with objects of the answer's class; compare their attributes or what their methods return"
    )


for _name in ("eq", "ne", "lt", "le", "gt", "ge", "neg", "pos", "abs", "invert", *BINARY_OPS, *(f"r{name}" for name in BINARY_OPS)):
    setattr(UnknownAnswerObject, f"__{_name}__", _reject_comparison)
UnknownAnswerObject.__hash__ = object.__hash__  # type: ignore[method-assign]


class UnknownClass:
    """A replacement of the answer's class: calling it checks the arguments and makes a placeholder."""

    def __init__(self, name: str) -> None:
        self.__name__ = self.__qualname__ = name

    def __call__(self, *args: Any, **kwargs: Any) -> UnknownAnswerObject:
        """Make a placeholder of an object."""
        _make_unknown_function(self.__name__)(*args, **kwargs)
        return UnknownAnswerObject()

    def __instancecheck__(self, value: Any) -> bool:
        raise DependsOnAnswer


def dry_run_test() -> None:
    """Run the instrumented test without an answer, and record whether the test is valid, or why not."""
    write_message(5, {"started": True})
    brief = json.loads(sys.stdin.buffer.read())
    function = (UnknownClass if brief["is_class"] else _make_unknown_function)(brief["entry_point"])
    try:
        code, names = compile_test(brief, lambda *_: None)
        add_answer_and_helpers_to_namespace(names, function, function)
        names["__holds__"] = lambda value: type(value) is UnknownValue or value
        run_test(code, names, brief["check"])
    except InvalidTest as error:
        write_message(5, {"unfit": str(error)[:300]})
        return
    except (AnswerProcessEnded, DependsOnAnswer):
        pass  # valid, as far as can be known without an answer
    except SystemExit:
        write_message(5, {"unfit": "the test ends its own process, so no answer can pass it"})
        return
    write_message(5, {"valid": True})
