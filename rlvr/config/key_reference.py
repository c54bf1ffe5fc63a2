"""Every configuration key with its default, limits and description, for `rlvr show config` and the website."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

from pydantic_core import PydanticUndefined

from rlvr.config.section import Section

LIMIT_DESCRIPTIONS = (("ge", "at least"), ("gt", "above"), ("le", "at most"), ("lt", "below"))


@dataclass(frozen=True, slots=True)
class ConfigKey:
    """The documentation of one key of a configuration section: name, default, description, limits.

    >>> ConfigKey("seed", "int", "0", "The seed of all randomness.", "at least 0").name
    'seed'
    """

    name: str
    type_text: str
    """The type as it is written in Python."""
    default_text: str
    """The repr of the default; or `required`, or `a section`."""
    description: str
    limits: str


def iter_sections(section: type[Section], path: str = "") -> Iterator[tuple[str, type[Section]]]:
    """Yield a section of the configuration and its subsections, with the key of each."""
    yield path, section
    for name, field in section.model_fields.items():
        inside = re.findall(r"\w+Config", str(field.annotation))
        for kind in [kind for kind in Section.__subclasses__() if kind.__name__ in inside]:
            yield from iter_sections(kind, f"{path}.{name}{'.NAME' if get_origin(field.annotation) is dict else ''}".strip("."))


def list_keys(kind: type[Section]) -> list[ConfigKey]:
    """Return the keys of a section, in definition order."""
    notes, inside = _read_attribute_docs(kind), {path: part for path, part in iter_sections(kind) if path}
    found = []
    for name, field in kind.model_fields.items():
        default = field.default if field.default_factory is None else field.default_factory()  # type: ignore[call-arg]
        shown = "required" if default is PydanticUndefined else "a section" if isinstance(default, Section) else repr(default)
        limits = [
            f"{sign} {value:g}"
            for part in field.metadata
            for mark, sign in LIMIT_DESCRIPTIONS
            if (value := getattr(part, mark, None)) is not None
        ]
        limits += _describe_choices(field.annotation)
        about = notes.get(name, "") or ((inspect.getdoc(inside[name]) or "").partition("\n")[0] if name in inside else "")
        found.append(ConfigKey(name, _format_type(field.annotation), shown, _make_sentence(" ".join(about.split())), ", ".join(limits)))
    return found


def _format_type(hint: Any) -> str:
    """Return a type as it is written in Python, without modules.

    >>> _format_type(int | None), _format_type(Literal["auto", "no"] | int), _format_type(dict[str, Any])
    ('int | None', "Literal['auto', 'no'] | int", 'dict[str, Any]')
    """
    if get_origin(hint) in (Union, UnionType):
        return " | ".join(map(_format_type, get_args(hint)))
    return (
        "None"
        if hint is NoneType
        else hint.__name__
        if isinstance(hint, type) and not get_args(hint)
        else re.sub(r"\b[a-z_]+\.", "", str(hint))
    )


def _make_sentence(text: str) -> str:
    """Make a sentence of a comment: comments in the code begin in lower case and have no full stop.

    >>> _make_sentence("the number of tasks per step"), _make_sentence("`truncate` ends a turn.")
    ('The number of tasks per step.', '`truncate` ends a turn.')
    """
    return text[:1].upper() + text[1:] + ("" if not text or text[-1] in ".!?" else ".")


def _describe_choices(hint: Any) -> list[str]:
    """Describe the words that a value may be.

    >>> _describe_choices(Literal["no", "bf16"]), _describe_choices(int | Literal["auto"]), _describe_choices(int)
    (['one of no, bf16'], ['or auto'], [])
    """
    kinds = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    words = [word for kind in kinds if get_origin(kind) is Literal for word in map(str, get_args(kind))]
    is_free = any(kind is not NoneType and get_origin(kind) is not Literal for kind in kinds)
    return [f"{'or' if is_free else 'one of'} {', '.join(words)}"] if words else []


def _read_attribute_docs(kind: type) -> dict[str, str]:
    """Read the docstring or the comment of each attribute of a class from its source."""
    source = textwrap.dedent(inspect.getsource(kind))
    (tree,) = ast.parse(source).body
    assert isinstance(tree, ast.ClassDef)
    found = {}
    for place, node in enumerate(tree.body):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            after = tree.body[place + 1] if place + 1 < len(tree.body) else None
            comment = source.splitlines()[(node.end_lineno or 1) - 1].partition("  # ")[2]
            text = after.value.value if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant) else comment
            found[node.target.id] = str(text)
    return found
