"""Parse JSON written by a policy: strictly, at any position in a text, with ValueSyntaxError as the only exception.

Strict means: no NaN or Infinity, no duplicate keys in an object, no number that is too long.
"""

from __future__ import annotations

import json
import re
from typing import Any

MAX_DEPTH = 100
"""Arguments of a call that are nested more deeply are a text: writing them again would need more frames than Python has."""
WHITESPACE_PATTERN = re.compile(r"[ \t\r\n]*")


class ValueSyntaxError(ValueError):
    """A value has invalid syntax; the message contains the position."""

    def __init__(self, message: str, *, cut: bool = False) -> None:
        super().__init__(message)
        self.truncated = cut
        """True if the text only ends too early."""


def _reject_constant(word: str) -> Any:
    raise ValueSyntaxError(f"{word} is not a JSON value")


def _reject_duplicate_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise ValueSyntaxError(f"the key {twice!r:.60} appears twice in one object")
    return found


_DECODER = json.JSONDecoder(parse_constant=_reject_constant, object_pairs_hook=_reject_duplicate_keys)


def skip_whitespace(text: str, position: int) -> int:
    """Return the next position that is not white space.

    >>> skip_whitespace("a  b", 1)
    3
    """
    match = WHITESPACE_PATTERN.match(text, position)
    return match.end() if match else position


def parse_value(text: str, position: int = 0) -> tuple[Any, int]:
    """Parse the JSON value that starts at `position`; return it and its end. Raises ValueSyntaxError.

    >>> parse_value('x {"a": 1} y', 1)
    ({'a': 1}, 10)
    """
    start = skip_whitespace(text, position)
    if start >= len(text):
        raise ValueSyntaxError("the text ends where a JSON value is expected", cut=True)
    try:
        found, end = _DECODER.raw_decode(text, start)
    except json.JSONDecodeError as error:
        cut = (
            error.pos >= len(text)
            or error.msg.startswith("Unterminated")
            or (len(text) - error.pos < 6 and _is_partial_json_literal(text[error.pos :]))
        )
        raise ValueSyntaxError(f"{error.msg} at character {max(0, error.pos - start)} of the JSON", cut=cut) from None
    except RecursionError:
        raise ValueSyntaxError("the JSON is nested too deeply") from None
    except ValueSyntaxError:
        raise
    except ValueError as error:  # an integer with more digits than Python accepts
        raise ValueSyntaxError(f"the JSON has a value that cannot be read: {error}") from None
    return found, end


def _is_partial_json_literal(rest: str) -> bool:
    """Return whether the rest of a text is an incomplete `true`, `false` or `null`, or the first sign of a number or an escape."""
    return any(word.startswith(rest) for word in ("true", "false", "null")) or rest in ("-", "\\")


def parse_complete_value(text: str) -> Any:
    """Parse a text that is exactly one JSON value. Raises ValueSyntaxError.

    >>> parse_complete_value(" [1, 2] ")
    [1, 2]
    """
    found, end = parse_value(text)
    if skip_whitespace(text, end) != len(text):
        raise ValueSyntaxError(f"there is more text after the JSON value: {text[end : end + 20]!r}")
    return found


def is_nested_deeper(value: Any, depth: int = MAX_DEPTH) -> bool:
    """Return whether a JSON value has lists and objects in each other, more than `depth` deep.

    >>> is_nested_deeper([[1]], 1)
    True
    """
    level = [value]
    for _ in range(depth + 1):
        level = [
            item for outer in level if isinstance(outer, dict | list) for item in (outer.values() if isinstance(outer, dict) else outer)
        ]
        if not level:
            return False
    return True


def parse_call_arguments(text: str) -> Any:
    """Parse the arguments of a call that an agent or a client wrote. Raises ValueSyntaxError, also if they are nested too deeply.

    >>> parse_call_arguments('{"a": 1}')
    {'a': 1}
    """
    found = parse_complete_value(text)
    if is_nested_deeper(found):
        raise ValueSyntaxError("the JSON is nested too deeply")
    try:
        format_json(found)
    except ValueError:  # 1e400 is read as infinity
        raise ValueSyntaxError("the JSON has a number that is too large") from None
    return found


def format_json(value: Any) -> str:
    """Format JSON in one line, as chat templates do.

    >>> format_json({"a": "é"})
    '{"a": "é"}'
    """
    return json.dumps(value, ensure_ascii=False, allow_nan=False)
