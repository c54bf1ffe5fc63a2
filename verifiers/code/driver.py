"""Program of the answer's process: loads the answer, calls its functions, sends the return values to the checker.

It has no secrets and decides nothing. An answer that reads, changes or replaces it can only send other values, which the checker compares
like any others.
"""

from __future__ import annotations

import itertools
import operator
import sys
import types
from typing import Any

from rlvr.verifiers.code.wire import MAX_ITEMS, NotData, decode, encode, find_kept_object, kept_objects, read_message, write_message

BUILTIN_EXCEPTIONS = {name for name, kind in vars(__import__("builtins")).items() if isinstance(kind, type) and issubclass(kind, Exception)}


def _load_answer(source: str) -> dict[str, Any]:
    """Run the answer as a module and return the names that it defines."""
    module = types.ModuleType("answer")
    sys.modules["answer"] = module
    exec(compile(source, "answer.py", "exec", dont_inherit=True), module.__dict__)
    return module.__dict__


def _find_function(names: dict[str, Any], function: str) -> Any:
    """Find a function by its name; also a method of a class `Solution`, as on contest sites."""
    if function in names:
        return names[function]
    solution = names.get("Solution")
    if isinstance(solution, type) and hasattr(solution, function):
        return getattr(solution(), function)
    raise NameError(f"the answer defines no {function!r}")


def call_function(function: Any, arguments: Any, keyword_arguments: Any) -> dict[str, Any]:
    """Call the function; return its value, or its exception under the name of a built-in exception, as data."""
    try:
        try:
            return {"value": encode(function(*arguments, **keyword_arguments))}
        except NotData as error:
            return {"raised": "TypeError", "message": str(error)}
    except Exception as error:
        return _encode_exception(error)


OBJECT_OPERATIONS: dict[str, Any] = {
    "len": len,
    "bool": bool,
    "str": str,
    "repr": repr,
    "iter": lambda target: list(itertools.islice(target, MAX_ITEMS)),
    "contains": operator.contains,
    "getitem": operator.getitem,
    "setitem": operator.setitem,
    "delitem": operator.delitem,
    "set": setattr,
}
"""What a test of a class may do with an object, besides reading its attributes and calling its methods."""


def _use_object(request: dict[str, Any]) -> dict[str, Any]:
    """Use an object of the answer's class as the test does, and return what comes of it, or the exception."""
    try:
        target, arguments, named = find_kept_object(request["object"]), decode(request["args"]), decode(request["kwargs"])
        if request["do"] == "get":
            found = getattr(target, *arguments)
            return {"callable": True} if callable(found) else _encode_result(found)
        if request["do"] == "call":
            return _encode_result(getattr(target, arguments[0])(*arguments[1:], **named))
        return _encode_result(OBJECT_OPERATIONS[request["do"]](target, *arguments))
    except NotData as error:
        return {"raised": "TypeError", "message": str(error)}
    except Exception as error:
        return _encode_exception(error)


def _encode_result(value: Any, *, is_made: bool = False) -> dict[str, Any]:
    """Encode a value as data, or by its number if it is an object of a class of the answer. One that `is_made` by the test always is."""
    own = type(value).__module__ == "answer"
    if own and (is_made or encode(value)[:1] == ["o"]):
        numbers = [number for number, kept in enumerate(kept_objects) if kept is value]
        if not numbers:
            kept_objects.append(value)
        return {"object": numbers[0] if numbers else len(kept_objects) - 1, "kind": type(value).__name__}
    return {"value": encode(value)}


def _make_object(make: Any, arguments: Any, named: Any) -> dict[str, Any]:
    """Make an object of the answer's class, and return its number."""
    try:
        return _encode_result(make(*arguments, **named), is_made=True)
    except NotData as error:
        return {"raised": "TypeError", "message": str(error)}
    except Exception as error:
        return _encode_exception(error)


def _encode_exception(error: BaseException) -> dict[str, Any]:
    """Encode an exception as data."""
    known = next((kind.__name__ for kind in type(error).__mro__ if kind.__name__ in BUILTIN_EXCEPTIONS), "Exception")
    try:
        message = str(error)[:500]
    except Exception:
        message = ""
    return {"raised": known, "message": f"{type(error).__name__}: {message}" if known != type(error).__name__ else message}


def run_answer_process() -> None:
    """Main loop of the answer's process: load the answer, then make the calls that the checker process requests."""
    names: dict[str, Any] = {}
    while True:
        try:
            order = read_message(3)
        except EOFError:
            return
        if "load" in order:
            try:
                names = _load_answer(order["load"])
                solution = vars(names.get("Solution", object))
                write_message(4, {"value": encode([name for name in order["wanted"] if callable(names.get(name)) or name in solution])})
            except Exception as error:
                write_message(4, _encode_exception(error))
                raise
        elif "object" in order:
            write_message(4, _use_object(order))
        else:
            try:
                function = _find_function(names, order["call"])
            except Exception as error:
                write_message(4, _encode_exception(error))
                continue
            for case in order["cases"]:
                arguments, named = decode(case["args"]), decode(case["kwargs"])
                reply = _make_object(function, arguments, named) if order.get("makes") else call_function(function, arguments, named)
                if order["in_place"]:
                    reply |= _encode_arguments(arguments, named)
                write_message(4, reply)


def _encode_arguments(arguments: Any, keyword_arguments: Any) -> dict[str, Any]:
    """Encode the arguments after a call, which may have changed them."""
    try:
        return {"args": encode(arguments), "kwargs": encode(keyword_arguments)}
    except Exception:
        return {}
