"""Runs in the answer's own process: loads the answer, calls its functions, sends the judge what they return.

It has no secret and no say. The answer may read it, change it or speak in its place: all that gains it is to hand over some
other value, which the judge then compares like any other.
"""

from __future__ import annotations

import sys
import types
from typing import Any

from rlvr.verifiers._code.wire import NotData, decode, encode, receive, send

BUILTIN = {name for name, kind in vars(__import__("builtins")).items() if isinstance(kind, type) and issubclass(kind, Exception)}


def load(source: str) -> dict[str, Any]:
    """The names that the answer defines."""
    module = types.ModuleType("answer")
    sys.modules["answer"] = module
    exec(compile(source, "answer.py", "exec", dont_inherit=True), module.__dict__)
    return module.__dict__


def find(names: dict[str, Any], function: str) -> Any:
    """A function by its name; `Solution.name`'s short form is understood, as contest sites use it."""
    if function in names:
        return names[function]
    solution = names.get("Solution")
    if isinstance(solution, type) and hasattr(solution, function):
        return getattr(solution(), function)
    raise NameError(f"the answer defines no {function!r}")


def attempt(function: Any, arguments: Any, named: Any) -> dict[str, Any]:
    """Call it; what it returned, or what it raised as the name of a built-in exception."""
    try:
        try:
            return {"value": encode(function(*arguments, **named))}
        except NotData as error:
            return {"raised": "TypeError", "message": str(error)}
    except Exception as error:
        return describe(error)


def describe(error: BaseException) -> dict[str, Any]:
    """An exception as data."""
    known = next((kind.__name__ for kind in type(error).__mro__ if kind.__name__ in BUILTIN), "Exception")
    try:
        message = str(error)[:500]
    except Exception:
        message = ""
    return {"raised": known, "message": f"{type(error).__name__}: {message}" if known != type(error).__name__ else message}


def answer_judge() -> None:
    """Load the answer, then make one call after another, as the judge asks for them."""
    names: dict[str, Any] = {}
    while True:
        try:
            order = receive(3)
        except EOFError:
            return
        if "load" in order:
            try:
                names = load(order["load"])
                solution = vars(names.get("Solution", object))
                send(4, {"value": encode([name for name in order["wanted"] if callable(names.get(name)) or name in solution])})
            except Exception as error:
                send(4, describe(error))
                raise
        else:
            try:
                function = find(names, order["call"])
            except Exception as error:
                send(4, describe(error))
                continue
            for case in order["cases"]:
                arguments, named = decode(case["args"]), decode(case["kwargs"])
                reply = attempt(function, arguments, named)
                if order["in_place"]:
                    reply |= changed(arguments, named)
                send(4, reply)


def changed(arguments: Any, named: Any) -> dict[str, Any]:
    """What a call made of its arguments."""
    try:
        return {"args": encode(arguments), "kwargs": encode(named)}
    except Exception:
        return {}
