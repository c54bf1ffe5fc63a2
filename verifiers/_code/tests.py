r"""Parse and validate the reference of a `unit_tests` task: three kinds of tests, in plain JSON.

    {"kind": "stdio", "cases": [{"stdin": "3\n", "stdout": "9\n"}]}
    {"kind": "calls", "function": "square", "cases": [{"args": [3], "expected": 9}]}
    {"kind": "asserts", "entry_point": "square", "test": "def check(candidate):\n    assert candidate(3) == 9"}

Every kind takes "limits" (fields of `Limits`) and "prelude" (code put in front of the answer); stdio and calls take "checker"
(a rule's name, or {"name": "tolerance", "absolute": 1e-6}), and a "weight" and a "name" in each case; stdio takes "language";
asserts takes "setup" (code that only the checker sees) and "in_place". A case of calls may have "kwargs". Types that JSON lacks are written
{"__tuple__": [...]}, {"__set__": [...]}, {"__dict__": [[key, value], ...]}, {"__bytes__": "hex"} or {"__float__": "inf"}.

The answer gets copies of its arguments. Its changes to them are copied back if a test makes the call as a separate statement
(`f(xs)`, then `assert xs == [1, 2]`). With "in_place": true they are copied back after every call: set it if the test checks both the
result and the arguments, and never if it computes the expected result from the arguments after the call.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

from rlvr.contracts import Limits
from rlvr.errors import ConfigError, suggest
from rlvr.verifiers._code.examine import Prepared, prepare
from rlvr.verifiers._code.texts import TEXT_RULES
from rlvr.verifiers._code.values import VALUE_RULES
from rlvr.verifiers._code.wire import NotData, encode, foreign

KINDS: Mapping[str, frozenset[str]] = {
    "stdio": frozenset({"cases", "checker", "language"}),
    "calls": frozenset({"function", "cases", "checker"}),
    "asserts": frozenset({"entry_point", "test", "setup", "in_place"}),
}
ANY = frozenset({"kind", "limits", "prelude"})
CASE = {"stdio": frozenset({"stdin", "stdout"}), "calls": frozenset({"args", "expected", "kwargs"})}
LANGUAGES = ("python", "cpp", "javascript")
TAGGED = {"__tuple__", "__set__", "__dict__", "__bytes__", "__float__"}


@dataclass(frozen=True, slots=True)
class Case:
    """One test: its input, its expected output, its weight.

    >>> Case("case 1", b"3", b"9").weight
    1.0
    """

    name: str
    given: Any
    wanted: Any
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class Tests:
    """All tests of a task, as plain values.

    >>> read({"kind": "stdio", "cases": [{"stdin": "3", "stdout": "9"}]}, Limits()).cases[0].wanted
    b'9'
    """

    kind: Literal["stdio", "calls", "asserts"]
    limits: Limits
    cases: tuple[Case, ...] = ()
    rule: Mapping[str, Any] = ()  # type: ignore[assignment]
    function: str = ""
    prepared: Prepared | None = None
    setup: str = ""
    prelude: str = ""
    language: Literal["python", "cpp", "javascript"] = "python"
    in_place: bool = False

    def brief(self) -> dict[str, Any]:
        """Build the input of the checker in the sandbox, for tests of kind calls or asserts; plain JSON."""
        if self.kind == "calls":
            cases = [{"args": encode(args), "kwargs": encode(kwargs)} for args, kwargs in (case.given for case in self.cases)]
            expected = [encode(case.wanted) for case in self.cases]
            return {"function": self.function, "cases": cases, "expected": expected, "rule": dict(self.rule)}
        test = {"test": self.prepared.text, "check": self.prepared.check, "asserting": self.prepared.asserting} if self.prepared else {}
        return {"entry_point": self.function, "setup": self.setup, "in_place": self.in_place, **test}


def read(reference: Any, default: Limits) -> Tests:
    """Parse the tests of a reference; ConfigError if it is not valid."""
    kind: Any = reference.get("kind") if isinstance(reference, Mapping) else reference
    if not isinstance(reference, Mapping) or not isinstance(kind, str) or kind not in KINDS:
        raise ConfigError(f"the reference's kind is {str(kind)[:80]!r}; {suggest(str(kind)[:80], KINDS)}")
    for key in reference:
        if key not in KINDS[kind] | ANY:
            raise ConfigError(f"a reference of kind {kind!r} has no {key!r}; {suggest(str(key), KINDS[kind] | ANY)}")
    texts = {name: _text(reference, name) for name in ("prelude", "setup", "test", "function", "entry_point")}
    limits = limits_of(reference.get("limits", {}), default)
    if kind == "asserts":
        if not texts["test"].strip() or not texts["entry_point"].isidentifier():
            raise ConfigError("a reference of kind 'asserts' needs 'test' (code) and 'entry_point' (the name of the answer's function)")
        in_place = reference.get("in_place", False)
        if not isinstance(in_place, bool):
            raise ConfigError(f"in_place is {in_place!r}; true or false is needed")
        prepared = prepare(texts["test"], texts["setup"], texts["entry_point"])
        given = Tests("asserts", limits, function=texts["entry_point"], setup=texts["setup"], prelude=texts["prelude"])
        return replace(given, prepared=prepared, in_place=in_place)
    if kind == "calls" and not texts["function"].isidentifier():
        raise ConfigError("a reference of kind 'calls' needs 'function', the name of the answer's function")
    language = reference.get("language", "python")
    if language not in LANGUAGES:
        raise ConfigError(f"language is {language!r}; {suggest(str(language), LANGUAGES)}")
    cases = reference.get("cases")
    if not isinstance(cases, Sequence) or isinstance(cases, str) or not cases:
        raise ConfigError(f"a reference of kind {kind!r} needs 'cases', a list of at least one")
    parsed = tuple(_case(kind, number, case) for number, case in enumerate(cases, 1))
    rule = _rule(reference.get("checker"), kind)
    return Tests(
        "calls" if kind == "calls" else "stdio",
        limits,
        parsed,
        rule,
        function=texts["function"],
        prelude=texts["prelude"],
        language=language,
    )


def _case(kind: str, number: int, case: Any) -> Case:
    if not isinstance(case, Mapping) or not set(case) <= CASE[kind] | {"weight", "name"}:
        raise ConfigError(f"case {number} is {str(case)[:200]!r}; it may have {', '.join(sorted(CASE[kind] | {'weight', 'name'}))}")
    name, weight = str(case.get("name", f"case {number}")), case.get("weight", 1.0)
    if isinstance(weight, bool) or not isinstance(weight, int | float) or not math.isfinite(weight) or weight <= 0:
        raise ConfigError(f"case {number} has weight {weight!r}; a finite number above 0 is needed")
    if kind == "stdio":
        if "stdout" not in case:
            raise ConfigError(f"case {number} has no 'stdout'; an empty one is written as ''")
        return Case(name, _bytes(case.get("stdin", "")), _bytes(case["stdout"]), float(weight))
    if "expected" not in case or not isinstance(case.get("args", []), list | tuple) or not isinstance(case.get("kwargs", {}), Mapping):
        raise ConfigError(f"case {number} needs 'expected', 'args' as a list, and 'kwargs', if any, as a mapping")
    given = (list(plain(case.get("args", []))), {str(key): plain(value) for key, value in case.get("kwargs", {}).items()})
    wanted = plain(case["expected"])
    for item in foreign((given, wanted)):
        raise ConfigError(f"case {number} holds a {type(item).__name__}; arguments and expected values must be plain data")
    try:
        encode((given, wanted))
    except NotData as error:
        raise ConfigError(f"case {number} cannot be sent to the sandbox: {error}") from None
    return Case(name, given, wanted, float(weight))


def plain(value: Any) -> Any:
    """Replace tagged values such as {"__tuple__": ...} in a value of the reference by the values they describe.

    >>> plain({"__tuple__": [1, 2]})
    (1, 2)
    """
    if isinstance(value, Mapping):
        if len(value) == 1 and (tag := next(iter(value))) in TAGGED:
            return _tagged(tag, value[tag])
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [plain(item) for item in value]
    if isinstance(value, tuple):
        return tuple(plain(item) for item in value)
    return value


def _tagged(tag: str, body: Any) -> Any:
    try:
        if tag == "__tuple__":
            return tuple(plain(item) for item in body)
        if tag == "__set__":
            return {plain(item) for item in body}
        if tag == "__dict__":
            return {plain(key): plain(item) for key, item in body}
        return bytes.fromhex(body) if tag == "__bytes__" else float(body)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{{{tag!r}: {str(body)[:80]!r}}} is not valid: {error}") from None


def _rule(checker: Any, kind: str) -> Mapping[str, Any]:
    allowed = TEXT_RULES if kind == "stdio" else VALUE_RULES
    rule = {"name": checker or allowed[0]} if checker is None or isinstance(checker, str) else dict(checker)
    if rule.get("name") not in allowed or not set(rule) <= {"name", "absolute", "relative"}:
        raise ConfigError(f"checker is {checker!r}; {suggest(str(rule.get('name')), allowed)} (tolerance takes absolute and relative)")
    for key in ("absolute", "relative"):
        value = rule.get(key, 0)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
            raise ConfigError(f"checker's {key} is {value!r}; a finite number of at least 0 is needed")
    return rule


def limits_of(wanted: Any, default: Limits) -> Limits:
    """Return `default` with some fields replaced; ConfigError for unknown fields or invalid values."""
    names = [field.name for field in fields(Limits)]
    if not isinstance(wanted, Mapping):
        raise ConfigError(f"limits is {wanted!r}; a mapping of {', '.join(names)} is needed")
    for key in wanted:
        if key not in names:
            raise ConfigError(f"there is no limit {key!r}; {suggest(str(key), names)}")
    try:
        return Limits(**{name: wanted.get(name, getattr(default, name)) for name in names})
    except ValueError as error:
        raise ConfigError(str(error)) from None


def _text(reference: Mapping[str, Any], name: str) -> str:
    value = reference.get(name, "")
    if not isinstance(value, str):
        raise ConfigError(f"{name!r} is {str(value)[:80]!r}; text is needed")
    return value


def _bytes(value: Any) -> bytes:
    if not isinstance(value, str | bytes):
        raise ConfigError(f"a case's stdin or stdout is {str(value)[:80]!r}; text is needed")
    return value if isinstance(value, bytes) else value.encode("utf-8", "surrogatepass")
