"""One row of a request, and the line that answers it."""

from __future__ import annotations

from json import dumps, loads
from typing import Any

from rlvr.task import Fault, Message, Task, Verdict, plain, user

FORM = 'a row is {"reference": ..., "answer": "...", "id": ..., "prompt": ..., "meta": {...}}; only the first two are required'


class BadRow(ValueError):
    """A row that no verifier can be asked about: the client's error, and no verdict."""


def task_of(line: bytes) -> tuple[Any, Task, str]:
    """The id, the task and the answer of a row.

    >>> task_of(b'{"id": 7, "reference": "4", "answer": "5"}')[2]
    '5'
    """
    try:
        row = loads(line)
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
    """The id of a row, None if it has none that can be read.

    >>> name_of(b'{"id": 7, "reference": "4", "answer": "5"}')
    7
    """
    try:
        return task_of(line)[0]
    except BadRow:
        return None


def prompt_of(value: Any) -> tuple[Message, ...]:
    """The prompt of a row: nothing, a text, or messages.

    >>> prompt_of("2+2=")
    ({'role': 'user', 'content': '2+2='},)
    """
    if value is None or isinstance(value, str):
        return user(value or "")
    if not isinstance(value, list) or not all(isinstance(message, dict) for message in value):
        raise ValueError(f"prompt is {value!r:.60}; it must be a text or a list of messages")
    return tuple({"role": str(message.get("role")), "content": message["content"]} for message in value if "content" in message)


def verdict_line(name: Any, verdict: Verdict) -> bytes:
    """The line that answers a row.

    >>> verdict_line(7, Verdict(1.0, "equal"))
    b'{"id": 7, "score": 1.0, "reason": "equal", "fault": "none"}'
    """
    try:
        return dumps({"id": name, **verdict.record()}).encode()
    except (TypeError, ValueError, RecursionError) as error:  # a plugin's own objects: the row still gets its line
        wrong = Verdict(None, f"the verdict cannot be written as JSON: {error}"[:400], fault=Fault.INFRA)
        return dumps({"id": name, **wrong.record()}).encode()


def error_line(message: str, name: Any = None) -> bytes:
    """The line that answers a row that cannot be judged because the client wrote it wrong.

    >>> error_line("no answer")
    b'{"id": null, "error": "no answer"}'
    """
    return dumps({"id": name, "error": message}).encode()
