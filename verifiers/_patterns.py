"""Patterns and schemas, matched in a worker (`worker_main.py`).

Python's own `re` may need exponential time, so it runs there, with a limit on processor time that the kernel enforces, and never in the
process that trains.
"""

from __future__ import annotations

import re
from typing import Any


def matched(pattern: str, flags: int, text: str, *, search: bool) -> bool:
    """Whether the whole text matches, or with `search` a part of it.

    >>> matched("a|ab", 0, "ab", search=False)
    True
    """
    made = re.compile(pattern, flags)
    return bool(made.search(text) if search else made.fullmatch(text))


def problem(schema: Any, value: Any, *, formats: bool) -> str:
    """The first way in which a JSON value violates a schema; empty if it is valid."""
    import jsonschema
    import jsonschema.validators

    kind = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
    checker = kind.FORMAT_CHECKER if formats else None
    for error in kind(schema, format_checker=checker).iter_errors(value):
        return f"{error.json_path}: {error.message}"[:300]
    return ""


def flaw(schema: Any) -> str:
    """What is wrong with a schema itself; empty if nothing is."""
    import jsonschema
    import jsonschema.validators

    kind = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
    try:
        kind.check_schema(schema)
    except jsonschema.SchemaError as error:
        return f"{error.json_path}: {error.message}"[:300]
    return ""


def reply(question: dict[str, Any]) -> dict[str, Any]:
    """What one request asks for."""
    if question["do"] == "match":
        return {"same": matched(question["pattern"], question["flags"], question["text"], search=question["search"])}
    if question["do"] == "schema":
        return {"flaw": flaw(question["schema"])}
    return {"problem": problem(question["schema"], question["value"], formats=question["formats"])}


def warm() -> None:
    """Nothing is loaded early: jsonschema may be absent where only patterns are matched."""
