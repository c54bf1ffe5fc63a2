"""One verifiable instruction: its id, its text, its arguments and its check."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

Check = Callable[[str, Mapping[str, Any]], bool]
COMPARISONS = ("at least", "less than")


class BadArguments(ValueError):
    """Raised if the arguments of an instruction are invalid: the task is broken, not the answer."""


@dataclass(frozen=True, slots=True)
class InstructionKind:
    """A kind of verifiable instruction: its id, its check and its arguments. `correct` and `incorrect` are answers to it with
    `example_arguments`.

    >>> InstructionKind("punctuation:no_comma", "Use no commas.", lambda text, _: "," not in text, correct="a b", incorrect="a, b").id
    'punctuation:no_comma'
    """

    id: str
    description: str
    """Short description of the instruction."""
    check: Check
    """Returns whether a text follows the instruction; called with the text and the validated arguments."""
    argument_types: Mapping[str, type | tuple[str, ...]] = field(default_factory=dict)
    """The arguments: the type of each, or the allowed values."""
    example_arguments: Mapping[str, Any] = field(default_factory=dict)
    correct: str = ""
    incorrect: str = ""
    difference_note: str = ""
    """How the verdict differs from the published checker's, and why; "" if it does not."""

    def parse_arguments(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Validate and return the required arguments; raises BadArguments. None means not given, as in the published files."""
        found = {}
        for name, kind in self.argument_types.items():
            value = given.get(name)
            if value is None:
                raise BadArguments(f"{self.id} needs {name!r}")
            found[name] = _validate_argument(self.id, name, value, kind)
        return found


def _validate_argument(kind_id: str, name: str, value: Any, expected: type | tuple[str, ...]) -> Any:
    if isinstance(expected, tuple):
        if value not in expected:
            raise BadArguments(f"{kind_id}: {name} is {value!r:.60}; it must be {' or '.join(map(repr, expected))}")
        return value
    if expected is int and isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, expected):
        fits = False
    elif isinstance(value, int):
        fits = value >= 0
    elif isinstance(value, list):
        fits = bool(value) and all(isinstance(word, str) and word.strip() for word in value)
    else:
        fits = isinstance(value, str) and bool(value.strip())
    if not fits:
        raise BadArguments(f"{kind_id}: {name} is {value!r:.60}; it must be {_EXPECTED_FORMS[expected]}")
    return value


_EXPECTED_FORMS = {int: "a whole number of at least 0", str: "a text", list: "a list of texts"}


def is_relation_met(count: int, relation: str, number: int) -> bool:
    """Whether a count is at least, or less than, a number.

    >>> is_relation_met(3, "at least", 3), is_relation_met(3, "less than", 3)
    (True, False)
    """
    return count >= number if relation == "at least" else count < number
