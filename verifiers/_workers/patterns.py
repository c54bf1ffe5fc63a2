"""Match regular expressions and JSON schemas in a worker process (`worker_main.py`).

Python's `re` may need exponential time, so it runs in a worker whose CPU time is limited by the kernel, and never in the training process.
"""

from __future__ import annotations

import re
from typing import Any


def _is_match(pattern: str, flags: int, text: str, *, allow_partial: bool) -> bool:
    """Whether the whole text matches a regular expression, or with `allow_partial` any part of the text.

    >>> _is_match("a|ab", 0, "ab", allow_partial=False)
    True
    """
    made = re.compile(pattern, flags)
    return bool(made.search(text) if allow_partial else made.fullmatch(text))


def _find_schema_violation(schema: Any, value: Any, *, check_formats: bool) -> str:
    """Describe the first violation of a schema by a JSON value; "" if the value is valid."""
    import jsonschema
    import jsonschema.validators

    kind = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
    checker = kind.FORMAT_CHECKER if check_formats else None
    for error in kind(schema, format_checker=checker).iter_errors(value):
        return f"{error.json_path}: {error.message}"[:300]
    return ""


def _find_schema_flaw(schema: Any) -> str:
    """Describe what is wrong with a schema itself; "" if it is valid."""
    import jsonschema
    import jsonschema.validators

    kind = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
    try:
        kind.check_schema(schema)
    except jsonschema.SchemaError as error:
        return f"{error.json_path}: {error.message}"[:300]
    return ""


def handle_request(request: dict[str, Any]) -> dict[str, Any]:
    """Handle one request of the worker protocol."""
    if request["do"] == "match":
        return {"same": _is_match(request["pattern"], request["flags"], request["text"], allow_partial=request["search"])}
    if request["do"] == "schema":
        return {"flaw": _find_schema_flaw(request["schema"])}
    return {"problem": _find_schema_violation(request["schema"], request["value"], check_formats=request["formats"])}


def preload() -> None:
    """Preload nothing: jsonschema may be missing where only regular expressions are matched."""
