"""Parse a row of a request, and format its verdict as a line."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from json import dumps, loads
from json.encoder import encode_basestring_ascii as quoted
from typing import Any

from rlvr.task import Fault, Message, Task, Verdict, make_user_prompt, to_plain_json

fast_decode: Callable[[bytes], Any] = loads
with suppress(ModuleNotFoundError):  # it only saves time
    from msgspec.json import decode as fast_decode

ROW_FORMAT = 'a row is {"reference": ..., "answer": "...", "id": ..., "prompt": ..., "meta": {...}}; only the first two are required'


MAX_VALUES = 200_000
"""The maximum number of values in JSON that is parsed at a time: nothing else runs in a process while it parses, and a million values take
seconds.
"""


class BadRow(ValueError):
    """A malformed row: the client gets an error instead of a verdict."""


def decode_json_leniently(line: bytes) -> Any:
    """Decode JSON with msgspec, five times faster than `json`, which decodes what msgspec rejects, such as NaN and lone surrogates.

    >>> decode_json_leniently(b'{"id": 12345678901234567890123, "x": NaN}')
    {'id': 12345678901234567890123, 'x': nan}
    """
    try:
        return fast_decode(line)
    except (ValueError, RecursionError):
        return loads(line)


def has_too_many_values(data: bytes) -> bool:
    r"""Whether JSON has more than `MAX_VALUES` values, without parsing it. Commas of texts are left out of the count.

    >>> has_too_many_values(b'["' + b"a, " * MAX_VALUES + b'"]'), has_too_many_values(b"[" + b"1," * MAX_VALUES + b"1]")
    (False, True)
    """
    if _count_separators(data) < MAX_VALUES:
        return False
    bare = data.replace(rb"\\", b"").replace(rb"\"", b"")
    return bare.count(b'"') > 4 * MAX_VALUES or _count_separators(b"".join(bare.split(b'"')[::2])) >= MAX_VALUES


def _count_separators(data: bytes) -> int:
    """Count what may stand before a value: a comma, or the beginning of a list or an object."""
    return data.count(b",") + data.count(b"[") + data.count(b"{")


def parse_row(line: bytes) -> tuple[Any, Task, str]:
    """Parse a row into its id, its task and its answer.

    >>> parse_row(b'{"id": 7, "reference": "4", "answer": "5"}')[2]
    '5'
    """
    if has_too_many_values(line):
        raise BadRow(f"this row has more than {MAX_VALUES:,} values; {ROW_FORMAT}")
    try:
        row = decode_json_leniently(line)
    except (ValueError, RecursionError) as error:
        raise BadRow(f"this row is not JSON ({error}); {ROW_FORMAT}"[:400]) from None
    if not isinstance(row, dict) or "reference" not in row or not isinstance(row.get("answer"), str):
        raise BadRow(f"this row has no reference, or no answer that is a string; {ROW_FORMAT}")
    meta = row.get("meta") or {}
    if not isinstance(meta, dict):
        raise BadRow(f"meta is {meta!r:.60}, and must be an object; {ROW_FORMAT}")
    name = row.get("id")
    try:
        name = name if name is None or isinstance(name, str | int) else to_plain_json(name)
        task = Task(_parse_prompt(row.get("prompt")), row["reference"], id="row" if name is None or name == "" else str(name), meta=meta)
    except RecursionError:
        raise BadRow(f"the row is nested too deeply; {ROW_FORMAT}") from None
    except (ValueError, TypeError) as error:
        raise BadRow(f"{error}; {ROW_FORMAT}"[:400]) from None
    return name, task, row["answer"]


def get_row_id(line: bytes) -> Any:
    """Return the id of a row; None if the row has none or is malformed.

    >>> get_row_id(b'{"id": 7, "reference": "4", "answer": "5"}')
    7
    """
    try:
        return parse_row(line)[0]
    except BadRow:
        return None


def _parse_prompt(value: Any) -> tuple[Message, ...]:
    """Parse the prompt of a row: None, a text, or messages.

    >>> _parse_prompt("2+2=")
    ({'role': 'user', 'content': '2+2='},)
    """
    if value is None or isinstance(value, str):
        return make_user_prompt(value or "")
    if not isinstance(value, list) or not all(isinstance(message, dict) for message in value):
        raise ValueError(f"prompt is {value!r:.60}; it must be a text or a list of messages")
    return tuple({"role": str(message.get("role")), "content": message["content"]} for message in value if "content" in message)


def format_verdict_line(row_id: Any, verdict: Verdict, index: int | None = None) -> bytes:
    """Format a verdict as a JSON line, with the row's index in its batch if given.

    >>> format_verdict_line(7, Verdict(1.0, "equal"))
    b'{"id": 7, "score": 1.0, "reason": "equal", "fault": "none"}'
    >>> format_verdict_line("a", Verdict(None, "away", fault=Fault.INFRA), 3)
    b'{"index": 3, "id": "a", "score": null, "reason": "away", "fault": "infra"}'
    """
    if (row_id is None or type(row_id) in (int, str)) and not (verdict.components or verdict.detail or verdict.step_rewards):
        # the common case, formatted like `dumps` but four times faster, which matters for fast verifiers
        text = "null" if row_id is None else quoted(row_id) if type(row_id) is str else str(row_id)
        score = "null" if verdict.score is None else repr(verdict.score)
        head = "" if index is None else f'"index": {index}, '
        return f'{{{head}"id": {text}, "score": {score}, "reason": {quoted(verdict.reason)}, "fault": "{verdict.fault.value}"}}'.encode()
    row = {"id": row_id} if index is None else {"index": index, "id": row_id}
    try:
        return dumps({**row, **verdict.to_dict()}).encode()
    except (TypeError, ValueError, RecursionError) as error:  # objects that a plugin put into the verdict: the row still gets its line
        wrong = Verdict(None, f"the verdict cannot be written as JSON: {error}"[:400], fault=Fault.INFRA)
        return dumps({**row, **wrong.to_dict()}).encode()


def format_error_line(message: str, index: int) -> bytes:
    """Format the JSON line for a malformed row.

    >>> format_error_line("no answer", 0)
    b'{"index": 0, "id": null, "error": "no answer"}'
    """
    return dumps({"index": index, "id": None, "error": message}).encode()


def parse_row_index(line: bytes) -> int:
    """Parse the row's index, which a verdict line begins with.

    >>> parse_row_index(b'{"index": 12, "id": null, "error": "no answer"}')
    12
    """
    return int(line[10 : line.index(b",")])


def strip_row_index(line: bytes) -> bytes:
    """Remove the index from a line, for the reply to a single row.

    >>> strip_row_index(b'{"index": 12, "id": null, "error": "no answer"}')
    b'{"id": null, "error": "no answer"}'
    """
    return b"{" + line[line.index(b", ") + 2 :]
