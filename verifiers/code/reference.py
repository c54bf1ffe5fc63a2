r"""Parse and validate the reference of a `unit_tests` task: three kinds of tests, in plain JSON.

    {"kind": "stdio", "cases": [{"stdin": "3\n", "stdout": "9\n"}]}
    {"kind": "calls", "function": "square", "cases": [{"args": [3], "expected": 9}]}
    {"kind": "asserts", "entry_point": "square", "test": "def check(candidate):\n    assert candidate(3) == 9"}

A text of assertions alone, or a list of such texts, is a reference of kind asserts, whose entry point is the one function that it calls and
neither Python nor the text defines: "assert square(3) == 9".

Every kind takes "limits" (fields of `Limits`) and "prelude" (code put in front of the answer); stdio and calls take "checker"
(a rule's name, or {"name": "tolerance", "absolute": 1e-6}), and a "weight" and a "name" in each case; stdio takes "language";
asserts takes "setup" (code that only the checker sees) and "in_place". A case of calls may have "kwargs". Types that JSON lacks are written
{"__tuple__": [...]}, {"__set__": [...]}, {"__dict__": [[key, value], ...]}, {"__bytes__": "hex"} or {"__float__": "inf"}.

The answer gets copies of its arguments. Its changes to them are copied back if a test makes the call as a separate statement
(`f(xs)`, then `assert xs == [1, 2]`). With "in_place": true they are copied back after every call: set it if the test checks both the
result and the arguments, and never if it computes the expected result from the arguments after the call.

An entry point whose name begins with a capital is a class. Its objects stay in the answer's process: the test makes them, reads and sets
attributes, calls methods, and takes `len`, items and the like of an object that it made; what comes back is data, or another object. An
object equals only itself, so compare attributes and results of methods, not objects.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, get_args

from rlvr.contracts import Limits
from rlvr.contracts.sandbox import Language
from rlvr.errors import ConfigError, format_suggestion
from rlvr.verifiers.code.compare_text import TEXT_RULES
from rlvr.verifiers.code.compare_values import VALUE_RULES
from rlvr.verifiers.code.test_analysis import InstrumentedTest, find_answer_names, prepare_test
from rlvr.verifiers.code.wire import NotData, encode, find_non_data

KEYS_BY_KIND: Mapping[str, frozenset[str]] = {
    "stdio": frozenset({"cases", "checker", "language"}),
    "calls": frozenset({"function", "cases", "checker"}),
    "asserts": frozenset({"entry_point", "test", "setup", "in_place"}),
}
COMMON_KEYS = frozenset({"kind", "limits", "prelude"})
CASE_KEYS = {"stdio": frozenset({"stdin", "stdout"}), "calls": frozenset({"args", "expected", "kwargs"})}
LANGUAGES: tuple[str, ...] = get_args(Language)
EXAMPLES: Mapping[str, str] = {
    "asserts": "{'kind': 'asserts', 'entry_point': 'add', 'test': 'assert add(1, 2) == 3'}",
    "calls": "{'kind': 'calls', 'function': 'add', 'cases': [{'args': [1, 2], 'expected': 3}]}",
    "stdio": "{'kind': 'stdio', 'cases': [{'stdin': '1 2', 'stdout': '3'}]}",
}
"""One whole reference of each kind, for messages."""
VALUE_TAGS = {"__tuple__", "__set__", "__dict__", "__bytes__", "__float__"}


@dataclass(frozen=True, slots=True)
class UnitTestCase:
    """One test: its input, its expected output, its weight.

    >>> UnitTestCase("case 1", b"3", b"9").weight
    1.0
    """

    name: str
    inputs: Any
    expected: Any
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class UnitTestSpec:
    """All tests of a task, as plain values.

    >>> parse_reference({"kind": "stdio", "cases": [{"stdin": "3", "stdout": "9"}]}, Limits()).cases[0].expected
    b'9'
    """

    kind: Literal["stdio", "calls", "asserts"]
    limits: Limits
    cases: tuple[UnitTestCase, ...] = ()
    comparison_rule: Mapping[str, Any] = ()  # type: ignore[assignment]
    function: str = ""
    prepared: InstrumentedTest | None = None
    setup: str = ""
    prelude: str = ""
    language: Language = "python"
    in_place: bool = False

    def build_checker_input(self) -> dict[str, Any]:
        """Build the input of the checker in the sandbox, for tests of kind calls or asserts; plain JSON."""
        if self.kind == "calls":
            cases = [{"args": encode(args), "kwargs": encode(kwargs)} for args, kwargs in (case.inputs for case in self.cases)]
            expected = [encode(case.expected) for case in self.cases]
            return {"function": self.function, "cases": cases, "expected": expected, "rule": dict(self.comparison_rule)}
        test: dict[str, Any] = {}
        if self.prepared:
            test = {"test": self.prepared.source, "check": self.prepared.has_check_function, "asserting": self.prepared.num_assertions}
            test["is_class"] = self.prepared.is_class
        return {"entry_point": self.function, "setup": self.setup, "in_place": self.in_place, **test}


def parse_reference(reference: Any, default: Limits) -> UnitTestSpec:
    """Parse the tests of a reference; ConfigError if it is not valid."""
    if isinstance(reference, str | list | tuple):
        reference = _parse_assertions(reference)
    if not isinstance(reference, Mapping):
        raise ConfigError(f"the reference is {reference!r:.80}; give a text of assertions, or a mapping{_such_as()}")
    kind: Any = reference.get("kind")
    if kind is None:
        raise ConfigError(f"the reference {dict(reference)!r:.80} has no 'kind'; give {', '.join(sorted(KEYS_BY_KIND))}{_such_as()}")
    if not isinstance(kind, str) or kind not in KEYS_BY_KIND:
        raise ConfigError(f"the reference's kind is {kind!r:.80}; {format_suggestion(str(kind)[:80], KEYS_BY_KIND)}{_such_as()}")
    for key in reference:
        if key not in KEYS_BY_KIND[kind] | COMMON_KEYS:
            raise ConfigError(
                f"a reference of kind {kind!r} has no {key!r}; {format_suggestion(str(key), KEYS_BY_KIND[kind] | COMMON_KEYS)}"
                + _such_as(kind)
            )
    texts = {name: _get_text(reference, name) for name in ("prelude", "setup", "test", "function", "entry_point")}
    limits = override_limits(reference.get("limits", {}), default)
    if kind == "asserts":
        if not texts["test"].strip() or not texts["entry_point"].isidentifier():
            raise ConfigError(
                f"a reference of kind 'asserts' needs 'test' and 'entry_point', code and the name of the answer's function{_such_as(kind)}"
            )
        in_place = reference.get("in_place", False)
        if not isinstance(in_place, bool):
            raise ConfigError(f"in_place is {in_place!r}; true or false is needed")
        prepared = prepare_test(texts["test"], texts["setup"], texts["entry_point"])
        given = UnitTestSpec("asserts", limits, function=texts["entry_point"], setup=texts["setup"], prelude=texts["prelude"])
        return replace(given, prepared=prepared, in_place=in_place)
    if kind == "calls" and not texts["function"].isidentifier():
        raise ConfigError(f"a reference of kind 'calls' needs 'function', the name of the answer's function{_such_as(kind)}")
    language = reference.get("language", "python")
    if language not in LANGUAGES:
        raise ConfigError(f"language is {language!r}; {format_suggestion(str(language), LANGUAGES)}")
    cases = reference.get("cases")
    if not isinstance(cases, Sequence) or isinstance(cases, str) or not cases:
        raise ConfigError(f"a reference of kind {kind!r} needs 'cases', a list of at least one{_such_as(kind)}")
    parsed = tuple(_parse_case(kind, number, case) for number, case in enumerate(cases, 1))
    rule = _parse_rule(reference.get("checker"), kind)
    return UnitTestSpec(
        "calls" if kind == "calls" else "stdio",
        limits,
        parsed,
        rule,
        function=texts["function"],
        prelude=texts["prelude"],
        language=language,
    )


def _such_as(kind: str = "asserts") -> str:
    return f", such as {EXAMPLES[kind]}"


def _parse_assertions(given: str | Sequence[Any]) -> dict[str, str]:
    """Turn a text of assertions, or a list of such texts, into a reference of kind asserts."""
    if not isinstance(given, str) and not (given and all(isinstance(text, str) for text in given)):
        raise ConfigError(f"the reference is {given!r:.80}, a list; it may be a list of assertions as texts, or a mapping{_such_as()}")
    text = given if isinstance(given, str) else "\n".join(given)
    try:
        names = find_answer_names(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ConfigError(f"the text {text!r:.60} {error}; give assertions, or a mapping{_such_as()}") from None
    if not names:
        raise ConfigError(f"the assertions {text!r:.60} call no function of the answer; name it, with a mapping{_such_as()}")
    name, *others = names
    if others:
        raise ConfigError(
            f"the assertions call {' and '.join(names)}, which they do not define; say which one is the answer's, with a mapping{_such_as()}"
        )
    return {"kind": "asserts", "entry_point": name, "test": text}


def _parse_case(kind: str, number: int, case: Any) -> UnitTestCase:
    if not isinstance(case, Mapping) or not set(case) <= CASE_KEYS[kind] | {"weight", "name"}:
        raise ConfigError(f"case {number} is {str(case)[:200]!r}; it may have {', '.join(sorted(CASE_KEYS[kind] | {'weight', 'name'}))}")
    name, weight = str(case.get("name", f"case {number}")), case.get("weight", 1.0)
    if isinstance(weight, bool) or not isinstance(weight, int | float) or not math.isfinite(weight) or weight <= 0:
        raise ConfigError(f"case {number} has weight {weight!r}; a finite number above 0 is needed")
    if kind == "stdio":
        if "stdout" not in case:
            raise ConfigError(f"case {number} has no 'stdout'; an empty one is written as ''")
        return UnitTestCase(name, _to_bytes(case.get("stdin", "")), _to_bytes(case["stdout"]), float(weight))
    if "expected" not in case or not isinstance(case.get("args", []), list | tuple) or not isinstance(case.get("kwargs", {}), Mapping):
        raise ConfigError(f"case {number} needs 'expected', 'args' as a list, and 'kwargs', if any, as a mapping")
    given = (list(untag_values(case.get("args", []))), {str(key): untag_values(value) for key, value in case.get("kwargs", {}).items()})
    wanted = untag_values(case["expected"])
    for item in find_non_data((given, wanted)):
        raise ConfigError(f"case {number} holds a {type(item).__name__}; arguments and expected values must be plain data")
    try:
        encode((given, wanted))
    except NotData as error:
        raise ConfigError(f"case {number} cannot be sent to the sandbox: {error}") from None
    return UnitTestCase(name, given, wanted, float(weight))


def untag_values(value: Any) -> Any:
    """Replace tagged values such as {"__tuple__": ...} in a value of the reference by the values they describe.

    >>> untag_values({"__tuple__": [1, 2]})
    (1, 2)
    """
    if isinstance(value, Mapping):
        if len(value) == 1 and (tag := next(iter(value))) in VALUE_TAGS:
            return _build_tagged(tag, value[tag])
        return {key: untag_values(item) for key, item in value.items()}
    if isinstance(value, list):
        return [untag_values(item) for item in value]
    if isinstance(value, tuple):
        return tuple(untag_values(item) for item in value)
    return value


def _build_tagged(tag: str, body: Any) -> Any:
    try:
        if tag == "__tuple__":
            return tuple(untag_values(item) for item in body)
        if tag == "__set__":
            return {untag_values(item) for item in body}
        if tag == "__dict__":
            return {untag_values(key): untag_values(item) for key, item in body}
        return bytes.fromhex(body) if tag == "__bytes__" else float(body)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{{{tag!r}: {str(body)[:80]!r}}} is not valid: {error}") from None


def _parse_rule(checker: Any, kind: str) -> Mapping[str, Any]:
    allowed = TEXT_RULES if kind == "stdio" else VALUE_RULES
    rule = {"name": checker or allowed[0]} if checker is None or isinstance(checker, str) else dict(checker)
    if rule.get("name") not in allowed or not set(rule) <= {"name", "absolute", "relative"}:
        raise ConfigError(
            f"checker is {checker!r}; {format_suggestion(str(rule.get('name')), allowed)} (tolerance takes absolute and relative)"
        )
    for key in ("absolute", "relative"):
        value = rule.get(key, 0)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
            raise ConfigError(f"checker's {key} is {value!r}; a finite number of at least 0 is needed")
    return rule


def override_limits(overrides: Any, default: Limits) -> Limits:
    """Return `default` with some fields replaced; ConfigError for unknown fields or invalid values."""
    names = [field.name for field in fields(Limits)]
    if not isinstance(overrides, Mapping):
        raise ConfigError(f"limits is {overrides!r}; a mapping of {', '.join(names)} is needed")
    for key in overrides:
        if key not in names:
            raise ConfigError(f"there is no limit {key!r}; {format_suggestion(str(key), names)}")
    try:
        return Limits(**{name: overrides.get(name, getattr(default, name)) for name in names})
    except ValueError as error:
        raise ConfigError(str(error)) from None


def _get_text(reference: Mapping[str, Any], name: str) -> str:
    value = reference.get(name, "")
    if not isinstance(value, str):
        raise ConfigError(f"{name!r} is {str(value)[:80]!r}; text is needed")
    return value


def _to_bytes(value: Any) -> bytes:
    if not isinstance(value, str | bytes):
        raise ConfigError(f"a case's stdin or stdout is {str(value)[:80]!r}; text is needed")
    return value if isinstance(value, bytes) else value.encode("utf-8", "surrogatepass")
