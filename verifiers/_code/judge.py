"""Runs in a process of its own in the sandbox: executes the test code, and calls the answer's functions across the channel.

The answer is another process under another user id; here it is only a stub that sends arguments and receives data. What
`check` asserts is therefore asserted about built-in values that this process made itself. Every statement of the test that
holds an assertion is a test of its own; its record leaves on descriptor 5, which the answer does not have.
"""

from __future__ import annotations

import ast
import builtins
import json
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rlvr.verifiers._code.wire import NotData, decode, encode, receive, send

PASSED, FAILED = "__passed__", "__failed__"
UNMADE = (UnicodeDecodeError, UnicodeEncodeError, UnicodeTranslateError, ExceptionGroup)  # these take more than one word
asked = 0
"""How often the answer was called: what fails outside of a test after that may be its doing, and is never held against the task."""


class Over(BaseException):
    """The answer is gone or speaks nonsense; no `except Exception` of a test may swallow that."""


def stub(name: str) -> Callable[..., Any]:
    """A function of the answer's, as seen from here."""

    def call(*args: Any, **kwargs: Any) -> Any:
        return ask({"call": name, "args": encode(args), "kwargs": encode(kwargs)})

    call.__name__ = call.__qualname__ = name
    return call


def ask(order: dict[str, Any]) -> Any:
    """One question across the channel: the value that came back, or the exception."""
    global asked
    asked += "call" in order
    try:
        send(4, order)
        reply = receive(3)
    except (EOFError, OSError):
        raise Over("the answer ended before it answered") from None
    except NotData as error:
        raise Over(f"the answer broke the channel: {error}") from None
    if type(reply) is not dict:
        raise Over("the answer broke the channel: no reply")
    if "raised" in reply:
        kind = getattr(builtins, str(reply["raised"]), None)
        if not (isinstance(kind, type) and issubclass(kind, Exception)) or kind in UNMADE:
            kind = Exception
        if kind in (StopIteration, StopAsyncIteration):  # it would end a loop of the test's, as if there were no more to assert
            kind = RuntimeError
        raise kind(str(reply.get("message", ""))[:500])
    try:
        return decode(reply.get("value"))
    except NotData as error:
        raise Over(f"the answer broke the channel: {error}") from None


def holds_assertion(statement: ast.stmt) -> bool:
    """Whether a statement, other than a definition, asserts something."""
    if isinstance(statement, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef):
        return False
    return any(isinstance(node, ast.Assert) for node in ast.walk(statement))


def split(body: list[ast.stmt], first: int) -> list[ast.stmt]:
    """Put every asserting statement into a `try` of its own that notes whether it held."""
    changed: list[ast.stmt] = []
    for statement in body:
        if holds_assertion(statement):
            note = ast.parse(
                f"try:\n    pass\nexcept Exception as __error__:\n    {FAILED}({first}, __error__)\nelse:\n    {PASSED}({first})"
            ).body[0]
            assert isinstance(note, ast.Try)
            note.body = [statement]
            changed.append(note)
            first += 1
        else:
            changed.append(statement)
    return [ast.fix_missing_locations(statement) for statement in changed]


def prepare(test: str) -> tuple[ast.Module, int]:
    """The test code with every test set apart, and how many there are."""
    tree = ast.parse(test)
    count = 0
    checks = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "check"]
    bodies: list[ast.Module | ast.FunctionDef] = [tree, *checks]
    for node in bodies:
        found = sum(holds_assertion(statement) for statement in node.body)
        node.body = split(node.body, count)
        count += found
    return tree, count


def judge() -> None:
    """Read the brief, run the tests, write the records."""
    brief = json.loads(sys.stdin.buffer.read())
    entry = brief["entry_point"]
    told: dict[int, bool] = {}

    def record(index: int, ok: bool, why: str = "") -> None:
        if told.get(index) is not False:  # one failure is enough, in a loop too
            told[index] = ok
            if not ok:
                send(5, {"test": index, "ok": False, "why": why[:300]})

    names: dict[str, Any] = {"__name__": "tests", PASSED: lambda index: record(index, True)}
    names[FAILED] = lambda index, error: record(index, False, f"{type(error).__name__}: {error}")
    try:
        exec(compile(brief.get("setup", ""), "setup.py", "exec"), names)
        tree, count = prepare(brief["test"])
        code = compile(tree, "test.py", "exec")
    except Exception as error:
        send(5, {"broken": f"the test code does not compile: {type(error).__name__}: {error}"})
        return
    has_check = any(isinstance(node, ast.FunctionDef) and node.name == "check" for node in tree.body)
    total = count or int(has_check)
    if not total:
        send(5, {"broken": "the test code asserts nothing"})
        return
    send(5, {"total": total})
    try:
        try:
            defined = ask({"load": brief["source"], "wanted": [entry]})
        except Exception as error:
            send(5, {"over": f"the answer does not load: {type(error).__name__}: {error}"})
            return
        if type(defined) is not list or entry not in defined:
            send(5, {"over": f"the answer defines no function {entry!r}"})
            return
        names[entry] = names["candidate"] = stub(entry)
        run(code, names, entry if has_check else "", count)
    except Over as error:
        send(5, {"over": str(error)})
        return
    for index in range(total):
        if told.get(index) is True:
            send(5, {"test": index, "ok": True})
    if not count and has_check:
        send(5, {"test": 0, "ok": True})
    send(5, {"end": True})


def run(code: Any, names: dict[str, Any], entry: str, count: int) -> None:
    """Execute the test module, then `check` if it has one."""
    try:
        exec(code, names)
    except Exception as error:
        if asked:
            raise Over(f"the tests did not come to their end: {type(error).__name__}: {error}") from None
        send(5, {"broken": f"the test code fails outside of its tests: {type(error).__name__}: {error}"})
        raise Over("broken") from None
    if entry:
        try:
            names["check"](names[entry])
        except Exception as error:
            raise Over(f"check did not come to its end: {type(error).__name__}: {error}") from None
