"""Program of the answer's process: loads the answer, calls its functions, sends the return values to the checker.

It has no secrets and decides nothing. An answer that reads, changes or replaces it can only send other values, which the checker compares
like any others.
"""

from __future__ import annotations

import sys
import types
from typing import Any

from rlvr.verifiers._code.wire import NotData, decode, encode, receive, send

BUILTIN = {name for name, kind in vars(__import__("builtins")).items() if isinstance(kind, type) and issubclass(kind, Exception)}


def load(source: str) -> dict[str, Any]:
    """Run the answer as a module and return the names that it defines."""
    module = types.ModuleType("answer")
    sys.modules["answer"] = module
    exec(compile(source, "answer.py", "exec", dont_inherit=True), module.__dict__)
    return module.__dict__


def find(names: dict[str, Any], function: str) -> Any:
    """Find a function by its name; also a method of a class `Solution`, as on contest sites."""
    if function in names:
        return names[function]
    solution = names.get("Solution")
    if isinstance(solution, type) and hasattr(solution, function):
        return getattr(solution(), function)
    raise NameError(f"the answer defines no {function!r}")


def attempt(function: Any, arguments: Any, named: Any) -> dict[str, Any]:
    """Call the function; return its value, or its exception under the name of a built-in exception, as data."""
    try:
        try:
            return {"value": encode(function(*arguments, **named))}
        except NotData as error:
            return {"raised": "TypeError", "message": str(error)}
    except Exception as error:
        return describe(error)


def describe(error: BaseException) -> dict[str, Any]:
    """Encode an exception as data."""
    known = next((kind.__name__ for kind in type(error).__mro__ if kind.__name__ in BUILTIN), "Exception")
    try:
        message = str(error)[:500]
    except Exception:
        message = ""
    return {"raised": known, "message": f"{type(error).__name__}: {message}" if known != type(error).__name__ else message}


def answer_judge() -> None:
    """Load the answer, then make the calls that the checker requests, one after another."""
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
    """Encode the arguments after a call, which may have changed them."""
    try:
        return {"args": encode(arguments), "kwargs": encode(named)}
    except Exception:
        return {}
