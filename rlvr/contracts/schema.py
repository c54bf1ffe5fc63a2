"""Build the schema of a function's arguments from its signature and docstring; check arguments against a schema, strictly.

The subset of JSON Schema: type, properties, required, additionalProperties, items, enum, const, anyOf, minimum, maximum.
Nothing is converted except an integer where any number is allowed: the text "3" is not the number 3.
"""

from __future__ import annotations

import inspect
import json
import math
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from rlvr.errors import PluginLoadError, format_suggestion

JSON_TYPES: Mapping[type, str] = {str: "string", int: "integer", float: "number", bool: "boolean"}
TYPE_DESCRIPTIONS: Mapping[str, str] = {
    "string": "a text",
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
    "array": "a list",
    "object": "an object",
    "null": "null",
}
MAX_NESTING_DEPTH = 24
"""The maximum nesting depth of schemas and arguments."""


class SchemaValidationError(ValueError):
    """A value does not match its schema; the message says where, what it is and what is allowed."""


# ---- build a schema from a function


def build_parameters_schema(function: Callable[..., Any]) -> dict[str, Any]:
    """Build the JSON Schema of a function's arguments, without `self`; raise PluginLoadError if a signature cannot be expressed.

    >>> def double(number: int, times: int = 1) -> str:
    ...     '''Double it.
    ...
    ...     Args:
    ...         number: what is doubled.
    ...     '''
    >>> build_parameters_schema(double)["properties"]
    {'number': {'type': 'integer', 'description': 'what is doubled.'}, 'times': {'type': 'integer', 'default': 1}}
    """
    name = getattr(function, "__name__", repr(function))
    try:
        hints = get_type_hints(function)
    except Exception as error:
        raise PluginLoadError(f"the type hints of {name} cannot be read: {error}; use hints that its module can resolve") from error
    notes = _parse_argument_descriptions(inspect.getdoc(function) or "")
    properties: dict[str, Any] = {}
    required: list[str] = []
    for key, parameter in inspect.signature(function).parameters.items():
        if key == "self":
            continue
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
            raise PluginLoadError(f"{name} takes {parameter}; a tool must name each of its arguments")
        if key not in hints:
            raise PluginLoadError(f"argument {key!r} of {name} has no type; write for example {key}: str")
        one = build_type_schema(hints[key], f"argument {key!r} of {name}")
        if key in notes:
            one["description"] = notes[key]
        if parameter.default is parameter.empty:
            required.append(key)
        else:
            one["default"] = parameter.default
        properties[key] = one
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def build_type_schema(hint: Any, location: str = "a type") -> dict[str, Any]:
    """Build the JSON Schema of one type hint.

    >>> build_type_schema(list[int] | None)
    {'anyOf': [{'type': 'array', 'items': {'type': 'integer'}}, {'type': 'null'}]}
    """
    origin, inner = get_origin(hint), get_args(hint)
    if hint in JSON_TYPES:
        return {"type": JSON_TYPES[hint]}
    if hint is type(None):
        return {"type": "null"}
    if hint is Any:
        return {}
    if origin is Literal:
        kinds = {type(value) for value in inner}
        if len(kinds) != 1 or (kind := kinds.pop()) not in JSON_TYPES:
            raise PluginLoadError(f"{location} is {hint}; the values of a Literal must be of one plain type")
        return {"type": JSON_TYPES[kind], "enum": list(inner)}
    if origin in (Union, types.UnionType):
        return {"anyOf": [build_type_schema(one, location) for one in inner]}
    if hint in (list, Sequence) or origin in (list, Sequence):
        return {"type": "array"} | ({"items": build_type_schema(inner[0], location)} if inner else {})
    if hint in (dict, Mapping) or origin in (dict, Mapping):
        if inner and inner[0] is not str:
            raise PluginLoadError(f"{location} is {hint}; the keys of an object must be str")
        return {"type": "object"} | ({"additionalProperties": build_type_schema(inner[1], location)} if inner else {})
    raise PluginLoadError(f"{location} is {hint!r}; a tool takes str, int, float, bool, list, dict, Literal, Optional, or unions of them")


def strip_docstring_sections(docstring: str) -> str:
    r"""Return a docstring up to its `Args:` and other sections.

    >>> strip_docstring_sections("Add.\n\nArgs:\n    x: one number.")
    'Add.'
    """
    lines: list[str] = []
    for line in inspect.cleandoc(docstring).splitlines():
        if line.strip() in ("Args:", "Returns:", "Raises:", "Examples:", "Example:") or line.lstrip().startswith(">>>"):
            break
        lines.append(line)
    return "\n".join(lines).strip()


def _parse_argument_descriptions(docstring: str) -> dict[str, str]:
    r"""Parse the descriptions of the arguments in the `Args:` section of a docstring.

    >>> _parse_argument_descriptions("Add.\n\nArgs:\n    x: one number,\n        any.\n    y: another.\n")
    {'x': 'one number, any.', 'y': 'another.'}
    """
    found: dict[str, str] = {}
    _, _, section = inspect.cleandoc(docstring).partition("Args:\n")
    name = ""
    for line in section.splitlines():
        if line.strip() and not line.startswith(" "):
            break
        head, colon, rest = line.strip().partition(":")
        if colon and head.isidentifier() and line.startswith("    ") and not line.startswith("     "):
            name = head
            found[name] = rest.strip()
        elif name and line.strip():
            found[name] += " " + line.strip()
    return found


# ---- validate arguments against a schema


def _validate_value(schema: Mapping[str, Any], value: Any, location: str = "", nesting_depth: int = 0) -> Any:
    """Return the value if the schema allows it (with integers as floats for `number`); raise SchemaValidationError otherwise.

    >>> _validate_value({"type": "number"}, 3)
    3.0
    >>> _validate_value({"type": "integer"}, "3", "argument 'limit'")
    Traceback (most recent call last):
    rlvr.contracts.schema.SchemaValidationError: argument 'limit' is the text "3"; it must be a whole number
    """
    if nesting_depth > MAX_NESTING_DEPTH:
        raise SchemaValidationError(f"{_describe_location(location)} is nested more than {MAX_NESTING_DEPTH} levels deep")
    if "anyOf" in schema:
        return _validate_any_of(schema["anyOf"], value, location, nesting_depth)
    allowed = schema.get("type")
    kinds = [allowed] if isinstance(allowed, str) else list(allowed or ())
    kind = next((kind for kind in kinds if _has_type(kind, value)), None)
    if kinds and kind is None:
        raise SchemaValidationError(
            f"{_describe_location(location)} is {_format_value(value)}; it must be {' or '.join(TYPE_DESCRIPTIONS.get(k, k) for k in kinds)}"
        )
    options = [schema["const"]] if "const" in schema else schema.get("enum")
    if options is not None and not any(type(value) is type(option) and value == option for option in options):
        raise SchemaValidationError(
            f"{_describe_location(location)} is {_format_value(value)}; it must be one of {', '.join(map(_format_value, options))}"
        )
    if kind in ("integer", "number"):
        return _validate_number(schema, value, kind, location)
    if isinstance(value, Mapping):
        return _validate_object(schema, value, location, nesting_depth)
    if isinstance(value, list):
        items = schema.get("items")
        one = items if isinstance(items, Mapping) else {}
        return [_validate_value(one, item, f"{_describe_location(location)}, item {n}", nesting_depth + 1) for n, item in enumerate(value)]
    return value


def validate_arguments(schema: Mapping[str, Any], call_arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Validate a call's arguments against a tool's schema; SchemaValidationError names the wrong argument and what the tool accepts.

    >>> validate_arguments({"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}, {})
    Traceback (most recent call last):
    rlvr.contracts.schema.SchemaValidationError: argument 'x' is missing; the arguments are x (a whole number)
    """
    try:
        fitted: dict[str, Any] = _validate_object(schema, call_arguments, "", 0)
    except SchemaValidationError as wrong:
        raise SchemaValidationError(f"{wrong}; the arguments are {_describe_parameters(schema)}") from None
    return fitted


def _describe_parameters(schema: Mapping[str, Any]) -> str:
    """Describe the parameters of a tool in one line.

    >>> _describe_parameters({"properties": {"x": {"type": "integer"}, "y": {"type": "string"}}, "required": ["x"]})
    'x (a whole number), y (a text, optional)'
    """
    needed = schema.get("required", ())
    parts = [
        f"{key} ({_describe_type(one)}{'' if key in needed else ', optional'})" for key, one in (schema.get("properties") or {}).items()
    ]
    return ", ".join(parts) or "none"


def _describe_type(schema: Mapping[str, Any]) -> str:
    """Describe the type that a schema requires.

    >>> _describe_type({"anyOf": [{"type": "array", "items": {"type": "string"}}, {"type": "null"}]})
    'a list or null'
    """
    if "anyOf" in schema:
        return " or ".join(_describe_type(one) for one in schema["anyOf"])
    if "enum" in schema:
        return "one of " + ", ".join(map(_format_value, schema["enum"]))
    kind = schema.get("type")
    kinds = [kind] if isinstance(kind, str) else list(kind or ())
    return " or ".join(TYPE_DESCRIPTIONS.get(k, k) for k in kinds) or "any value"


def _format_value(value: Any) -> str:
    """Format a value for an error message, shortened if it is long.

    >>> _format_value("3"), _format_value(3), _format_value([1, 2])
    ('the text "3"', '3', 'the list [1, 2]')
    """
    word = "the text " if isinstance(value, str) else "the list " if isinstance(value, list) else ""
    try:
        text = json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError):
        text = type(value).__name__
    return word + (text if len(text) <= 60 else text[:57] + "...")


def _validate_any_of(choices: Sequence[Mapping[str, Any]], value: Any, where: str, depth: int) -> Any:
    wrong: list[SchemaValidationError] = []
    for choice in choices:
        try:
            return _validate_value(choice, value, where, depth + 1)
        except SchemaValidationError as error:
            wrong.append(error)
    if len(choices) == 1:
        raise wrong[0]
    raise SchemaValidationError(
        f"{_describe_location(where)} is {_format_value(value)}; it must be {' or '.join(_describe_type(choice) for choice in choices)}"
    )


def _validate_object(schema: Mapping[str, Any], value: Mapping[str, Any], where: str, depth: int) -> dict[str, Any]:
    properties: Mapping[str, Any] = schema.get("properties") or {}
    others = schema.get("additionalProperties", not properties)
    inside = f"{where}, " if where else ""
    for key in schema.get("required", ()):
        if key not in value:
            raise SchemaValidationError(f"{inside}argument {key!r} is missing")
    fitted: dict[str, Any] = {}
    for key, one in value.items():
        if key in properties:
            wanted = properties[key]
        elif others is False:
            raise SchemaValidationError(f"{inside}argument {key!r} is unknown; {format_suggestion(key, properties)}")
        else:
            wanted = others if isinstance(others, Mapping) else {}
        fitted[key] = _validate_value(wanted, one, f"{inside}argument {key!r}", depth + 1)
    return fitted


def _validate_number(schema: Mapping[str, Any], value: Any, kind: str, where: str) -> Any:
    low, high = schema.get("minimum"), schema.get("maximum")
    if (low is not None and value < low) or (high is not None and value > high):
        raise SchemaValidationError(
            f"{_describe_location(where)} is {_format_value(value)}; it must be {' and '.join(_describe_bounds(low, high))}"
        )
    if kind == "integer" or isinstance(value, float):
        return value
    try:
        return float(value)
    except OverflowError:
        raise SchemaValidationError(f"{_describe_location(where)} is too large a number") from None


def _describe_bounds(low: Any, high: Any) -> list[str]:
    return ([f"at least {low}"] if low is not None else []) + ([f"at most {high}"] if high is not None else [])


def _has_type(kind: str, value: Any) -> bool:
    match kind:
        case "string":
            return isinstance(value, str)
        case "boolean":
            return isinstance(value, bool)
        case "integer":
            return isinstance(value, int) and not isinstance(value, bool)
        case "number":
            return isinstance(value, int | float) and not isinstance(value, bool) and (isinstance(value, int) or math.isfinite(value))
        case "array":
            return isinstance(value, list)
        case "object":
            return isinstance(value, Mapping)
        case "null":
            return value is None
    return False


def _describe_location(where: str) -> str:
    return where or "the value"


# ---- schemas from elsewhere


def inline_schema_references(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Remove titles and resolve references in the schema of another package or of a server, so that arguments can be checked with it.

    >>> inline_schema_references({"title": "A", "properties": {"x": {"$ref": "#/$defs/X"}}, "$defs": {"X": {"title": "X", "type": "integer"}}})
    {'properties': {'x': {'type': 'integer'}}}
    """
    named = {f"#/{key}/{name}": one for key in ("$defs", "definitions") for name, one in (schema.get(key) or {}).items()}
    found = _simplify_part(schema, named, 0)
    return found if isinstance(found, dict) else {}


def _simplify_part(part: Any, named: Mapping[str, Any], depth: int) -> Any:
    if depth > MAX_NESTING_DEPTH:
        return {}
    if isinstance(part, list):
        return [_simplify_part(one, named, depth + 1) for one in part]
    if not isinstance(part, Mapping):
        return part
    merged = dict(part)
    if isinstance(reference := merged.pop("$ref", None), str):
        merged = {**named.get(reference, {}), **merged}
    if isinstance(parts := merged.get("allOf"), list) and len(parts) == 1 and isinstance(parts[0], Mapping):
        merged = {**parts[0], **{key: value for key, value in merged.items() if key != "allOf"}}
        return _simplify_part(merged, named, depth + 1)
    if "oneOf" in merged and "anyOf" not in merged:
        merged["anyOf"] = merged.pop("oneOf")
    found: dict[str, Any] = {}
    for key, value in merged.items():
        if key in ("$defs", "definitions", "$schema") or (key == "title" and isinstance(value, str)):
            continue
        if key == "properties" and isinstance(value, Mapping):
            found[key] = {name: _simplify_part(one, named, depth + 1) for name, one in value.items()}
        else:
            found[key] = value if key in ("default", "enum", "const", "required") else _simplify_part(value, named, depth + 1)
    return found
