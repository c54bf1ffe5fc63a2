"""Configuration sections: strict pydantic models, and one error message that names every wrong key."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar, get_origin

from pydantic import BaseModel, ConfigDict, ValidationError

from rlvr.errors import ConfigError, format_suggestion
from rlvr.hints import translate_config_key


class Section(BaseModel):
    """The base class of all sections: unknown keys are errors, and values are never converted."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


S = TypeVar("S", bound=Section)


def validate_section(model: type[S], data: Any, source: str, sources: Mapping[str, str] | None = None) -> S:
    """Validate plain data as a section; raise one ConfigError that names every wrong key, and where it stands: in `source`, or in what
    `sources` has for its key or for the section around it.
    """
    try:
        return model.model_validate(data)
    except ValidationError as error:
        told: dict[str, list[str]] = {source: []}
        for problem in error.errors():
            where = ".".join(str(part) for part in problem["loc"])
            origin = next((one for key, one in (sources or {}).items() if f"{where}.".startswith(f"{key}.")), source)
            told.setdefault(origin, []).append(_format_problem(model, problem))
        raise ConfigError("; ".join(f"{origin}: {'; '.join(problems)}" for origin, problems in told.items() if problems)) from None


MEANT_KEYS: Mapping[str, str] = {"model.id": "model.path", "model.name": "model.path"}
"""Keys of no section that other libraries have, with the section in which they are written, and the key here."""


def _format_problem(model: type[Section], problem: Any) -> str:
    where = ".".join(str(part) for part in problem["loc"])
    if problem["type"] == "extra_forbidden":
        section: Any = model
        for part in problem["loc"][:-1]:
            section = _get_subsection(section, str(part))
        inner = _find_nested_keys(model, where) if len(problem["loc"]) == 1 else []
        known = MEANT_KEYS.get(where) or translate_config_key(str(problem["loc"][-1]))
        if known and known.partition(".")[0] in model.model_fields:
            inner = [known, *(key for key in inner if key != known)]
        if inner:
            return f"there is no key {where!r}; did you mean {' or '.join(map(repr, inner))}?"
        prefix = "".join(f"{part}." for part in problem["loc"][:-1])
        suggestion = format_suggestion(str(problem["loc"][-1]), section.model_fields, max_names=20)
        suggestion = suggestion.replace("did you mean '", f"did you mean '{prefix}", 1)
        return f"there is no key {where!r}; {suggestion}"
    if problem["type"] == "missing":
        return f"the key {where!r} is missing"
    if problem["type"] == "list_type" and isinstance(problem["input"], str):
        return f"{where}: {problem['input']!r:.80} is not a list; write [{problem['input']:.80}]"
    message = problem["msg"].removeprefix("Value error, ")
    return f"{where or 'this run'}: {message[:1].lower()}{message[1:]}" + (
        f", got {problem['input']!r:.80}" if where and problem["type"] != "value_error" else ""
    )


def _find_nested_keys(model: Any, name: str) -> list[str]:
    """Find keys of this name in the subsections of a configuration."""
    sections = {key: _get_subsection(model, key) for key, field in model.model_fields.items() if get_origin(field.annotation) is not dict}
    return [f"{key}.{name}" for key, section in sections.items() if section is not model and name in section.model_fields]


def _get_subsection(model: Any, name: str) -> Any:
    if name not in model.model_fields:  # a name in a mapping of sections, such as `frozen_models`
        return model
    for candidate in getattr(model.model_fields[name].annotation, "__args__", None) or [model.model_fields[name].annotation]:
        if isinstance(candidate, type) and issubclass(candidate, BaseModel):
            return candidate
    return model


def normalize_plugin(value: Any) -> Any:
    """Normalize a plugin in a configuration to a mapping; a bare name means default settings.

    >>> normalize_plugin("grpo")
    {'name': 'grpo'}
    """
    if isinstance(value, str):
        return {"name": value}
    if isinstance(value, Mapping) and (not isinstance(value.get("name"), str) or not value["name"]):
        meant = f"name: {value['id']}, not id" if isinstance(value.get("id"), str) else "{name: ..., setting: value}"
        raise ValueError(f"a 'name' is missing in {dict(value)!r}; write {meant}")
    return value
