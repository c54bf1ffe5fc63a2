"""Parse a row of a request, and format its verdict as a line."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from json import dumps, loads
from json.encoder import encode_basestring_ascii as quoted
from typing import Any

from rlvr.task import Fault, Message, Task, Verdict, plain, user

quick: Callable[[bytes], Any] = loads
with suppress(ModuleNotFoundError):  # it only saves time
    from msgspec.json import decode as quick

FORM = 'a row is {"reference": ..., "answer": "...", "id": ..., "prompt": ..., "meta": {...}}; only the first two are required'


class BadRow(ValueError):
    """A malformed row: the client gets an error instead of a verdict."""


def read(line: bytes) -> Any:
    """Decode JSON with msgspec, five times faster than `json`, which decodes what msgspec rejects, such as NaN and lone surrogates.

    >>> read(b'{"id": 12345678901234567890123, "x": NaN}')
    {'id': 12345678901234567890123, 'x': nan}
    """
    try:
        return quick(line)
    except (ValueError, RecursionError):
        return loads(line)


def task_of(line: bytes) -> tuple[Any, Task, str]:
    """Parse a row into its id, its task and its answer.

    >>> task_of(b'{"id": 7, "reference": "4", "answer": "5"}')[2]
    '5'
    """
    try:
        row = read(line)
    except (ValueError, RecursionError) as error:
        raise BadRow(f"this row is not JSON ({error}); {FORM}"[:400]) from None
    if not isinstance(row, dict) or "reference" not in row or not isinstance(row.get("answer"), str):
        raise BadRow(f"this row has no reference, or no answer that is a string; {FORM}")
    meta = row.get("meta") or {}
    if not isinstance(meta, dict):
        raise BadRow(f"meta is {meta!r:.60}, and must be an object; {FORM}")
    name = row.get("id")
    try:
        name = name if name is None or isinstance(name, str | int) else plain(name)
        task = Task("row" if name is None or name == "" else str(name), prompt_of(row.get("prompt")), row["reference"], meta)
    except RecursionError:
        raise BadRow(f"the row is nested too deeply; {FORM}") from None
    except (ValueError, TypeError) as error:
        raise BadRow(f"{error}; {FORM}"[:400]) from None
    return name, task, row["answer"]


def name_of(line: bytes) -> Any:
    """Return the id of a row; None if the row has none or is malformed.

    >>> name_of(b'{"id": 7, "reference": "4", "answer": "5"}')
    7
    """
    try:
        return task_of(line)[0]
    except BadRow:
        return None


def prompt_of(value: Any) -> tuple[Message, ...]:
    """Parse the prompt of a row: None, a text, or messages.

    >>> prompt_of("2+2=")
    ({'role': 'user', 'content': '2+2='},)
    """
    if value is None or isinstance(value, str):
        return user(value or "")
    if not isinstance(value, list) or not all(isinstance(message, dict) for message in value):
        raise ValueError(f"prompt is {value!r:.60}; it must be a text or a list of messages")
    return tuple({"role": str(message.get("role")), "content": message["content"]} for message in value if "content" in message)


def verdict_line(name: Any, verdict: Verdict, index: int | None = None) -> bytes:
    """Format a verdict as a JSON line, with the row's index in its batch if given.

    >>> verdict_line(7, Verdict(1.0, "equal"))
    b'{"id": 7, "score": 1.0, "reason": "equal", "fault": "none"}'
    >>> verdict_line("a", Verdict(None, "away", fault=Fault.INFRA), 3)
    b'{"index": 3, "id": "a", "score": null, "reason": "away", "fault": "infra"}'
    """
    if (name is None or type(name) in (int, str)) and not (verdict.parts or verdict.detail or verdict.earned):
        # the common case, formatted like `dumps` but four times faster, which matters for fast verifiers
        text = "null" if name is None else quoted(name) if type(name) is str else str(name)
        score = "null" if verdict.score is None else repr(verdict.score)
        head = "" if index is None else f'"index": {index}, '
        return f'{{{head}"id": {text}, "score": {score}, "reason": {quoted(verdict.reason)}, "fault": "{verdict.fault.value}"}}'.encode()
    row = {"id": name} if index is None else {"index": index, "id": name}
    try:
        return dumps({**row, **verdict.record()}).encode()
    except (TypeError, ValueError, RecursionError) as error:  # objects that a plugin put into the verdict: the row still gets its line
        wrong = Verdict(None, f"the verdict cannot be written as JSON: {error}"[:400], fault=Fault.INFRA)
        return dumps({**row, **wrong.record()}).encode()


def error_line(message: str, index: int) -> bytes:
    """Format the JSON line for a malformed row.

    >>> error_line("no answer", 0)
    b'{"index": 0, "id": null, "error": "no answer"}'
    """
    return dumps({"index": index, "id": None, "error": message}).encode()


def index_of(line: bytes) -> int:
    """Parse the index of a line.

    >>> index_of(b'{"index": 12, "id": null, "error": "no answer"}')
    12
    """
    return int(line[10 : line.index(b",")])


def without_index(line: bytes) -> bytes:
    """Remove the index from a line, for the reply to a single row.

    >>> without_index(b'{"index": 12, "id": null, "error": "no answer"}')
    b'{"id": null, "error": "no answer"}'
    """
    return b"{" + line[line.index(b", ") + 2 :]
