"""Verify a JSON answer with the JSON Schema of the task."""

from __future__ import annotations

import importlib.util
import json
import math
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from rlvr.contracts import Verifier, VerifierExample
from rlvr.errors import MissingExtra, require_text_answers
from rlvr.extraction import extract_answer, strip_thinking
from rlvr.task import Fault, Task, Verdict
from rlvr.verifiers._workers.pool import PATTERNS_FILE, BudgetExceeded, TwoLanePool, WorkersFailed

MAX_ANSWER_CHARS, MAX_DEPTH = 1_000_000, 200
"""Maximum characters of an answer, and maximum nesting depth of its lists and objects."""
PROBE_VALUES: tuple[Any, ...] = (None, True, 0, 1.5, "", "text", [], [1], {}, {"a": 1})
"""A schema that accepts all of these accepts everything."""
REF_KEYWORDS = ("$ref", "$dynamicRef", "$recursiveRef")


class JsonSchema(Verifier):
    """The answer is one JSON document, alone or in one code block, that is valid under the JSON Schema of the reference.

    JSON is parsed strictly: no NaN, no number beyond a double, no duplicate key, no comments. A schema that accepts every value, is invalid
    itself or refers to another file or address gives no score. Validation runs in a worker process with a CPU limit, because a `pattern`
    may need exponential time. Requires the package jsonschema (`pip install 'rlvr[json]'`).

    >>> import rlvr
    >>> with rlvr.make_verifier("json_schema") as valid:
    ...     valid.verify(rlvr.Task("?", {"type": "object", "required": ["name"]}), '{"name": "Ann"}').score
    1.0
    """

    examples = (
        VerifierExample(
            {"type": "object", "properties": {"age": {"type": "integer"}}, "required": ["age"], "additionalProperties": False},
            correct=('{"age": 3}', '```json\n{"age": 3}\n```'),
            incorrect=('{"age": "3"}', '{"age": 3, "age": 4}', "{'age': 3}", '{"age": 3, "b": 1}', ""),
        ),
    )

    def __init__(self, *, formats: bool = False, workers: int = 1, cpu_s: float = 1.0) -> None:
        """Set what is checked.

        Args:
            formats: whether `format` is enforced (date, email, ipv4, ...), and not only an annotation.
            workers: the maximum number of worker processes.
            cpu_s: processor seconds for one answer.
        """
        if importlib.util.find_spec("jsonschema") is None:
            raise MissingExtra("jsonschema", "json")
        self.formats = formats
        self.pool = TwoLanePool(workers, cpu_s=cpu_s, memory_mb=1024, handler_file=PATTERNS_FILE, work_name="validation")
        self._schema_flaws: dict[str, str] = {}

    @require_text_answers
    def verify(self, task: Task, answer: str) -> Verdict:
        """Validate the one document of the answer."""
        try:
            schema = _load_schema(task.reference)
            if why := self._find_schema_flaw(schema):
                return Verdict(None, f"the schema cannot be used: {why}", fault=Fault.TASK)
            document = _parse_document(answer)
        except _InvalidSchema as error:
            return Verdict(None, f"the schema cannot be used: {error}", fault=Fault.TASK)
        except WorkersFailed as error:
            return Verdict(None, f"the worker failed: {error}", fault=Fault.INFRA)
        except ValueError as error:
            return Verdict(0.0, f"no JSON document: {error}"[:300])
        try:
            said = self.pool.send_request({"do": "validate", "schema": schema, "value": document, "formats": self.formats})
        except BudgetExceeded as error:
            return Verdict(0.0, f"validation did not finish: {error}", fault=Fault.ANSWER)
        except WorkersFailed as error:
            return Verdict(None, f"the worker failed: {error}", fault=Fault.INFRA)
        if "problem" not in said:
            return Verdict(0.0, f"validation failed: {said.get('failed') or said.get('missing')}", fault=Fault.ANSWER)
        return Verdict(float(not said["problem"]), said["problem"] or "the document is valid")

    def _find_schema_flaw(self, schema: Any) -> str:
        """Explain why a schema cannot be used (cached); "" if it can."""
        key = json.dumps(schema, sort_keys=True)
        if key not in self._schema_flaws:
            if len(self._schema_flaws) > 10_000:
                self._schema_flaws.clear()
            self._schema_flaws[key] = _find_external_reference(schema) or self._test_schema(schema)
        return self._schema_flaws[key]

    def _test_schema(self, schema: Any) -> str:
        try:
            said = self.pool.send_request({"do": "schema", "schema": schema})
            if said.get("flaw", said.get("failed")):
                return str(said.get("flaw") or said.get("failed"))
            replies = [
                self.pool.send_request({"do": "validate", "schema": schema, "value": probe, "formats": False}) for probe in PROBE_VALUES
            ]
        except BudgetExceeded as error:
            return str(error)
        broken = next((reply for reply in replies if "problem" not in reply), None)
        if broken is not None:
            return str(broken.get("failed") or broken.get("over") or broken.get("missing"))
        return "" if any(reply["problem"] for reply in replies) else "it accepts every value"

    def prepare(self) -> None:
        """Start the workers in the background."""
        self.pool.start_workers()

    def close(self) -> None:
        """Stop the workers."""
        self.pool.close()


class _InvalidSchema(Exception):
    """Raised for a reference that is not a schema."""


def _load_schema(reference: Any) -> Any:
    if isinstance(reference, str):
        return _parse_schema(reference)
    if not isinstance(reference, Mapping):
        raise _InvalidSchema(f"it is {reference!r:.80}; it must be an object, or the JSON text of one")
    try:
        return _parse_schema(json.dumps(reference, allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        raise _InvalidSchema(f"it is not plain JSON: {error}") from error


@lru_cache(maxsize=1024)
def _parse_schema(text: str) -> Any:
    try:
        schema = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _InvalidSchema(f"{text!r:.80} is not JSON: {error}") from error
    if not isinstance(schema, dict):
        raise _InvalidSchema(f"it is {text!r:.80}; it must be an object")
    return schema


def _find_external_reference(schema: Any) -> str:
    """Find a reference to another document; "" if there is none. Nothing is ever fetched."""
    if isinstance(schema, list):
        return next((why for part in schema if (why := _find_external_reference(part))), "")
    if not isinstance(schema, dict):
        return ""
    for key, value in schema.items():
        if key in REF_KEYWORDS and isinstance(value, str) and not value.startswith("#"):
            return f"{key} is {value!r:.80}; only references inside the schema (#...) are followed"
        if why := _find_external_reference(value):
            return why
    return ""


def _parse_document(answer: str) -> Any:
    """Parse the one JSON document of an answer; ValueError if there is none."""
    shown = strip_thinking(answer)
    if shown is None:
        raise ValueError("the thought section is not closed")
    text = shown.strip()
    if len(text) > MAX_ANSWER_CHARS:
        raise ValueError(f"the answer has {len(text)} characters; at most {MAX_ANSWER_CHARS} are read")
    marks = sum(line.lstrip().startswith("```") for line in text.splitlines())
    if marks == 2 and (block := extract_answer(text, "fence").text) is not None:
        text = block
    elif marks:
        raise ValueError(f"there are {marks} marks of code blocks; write one block, or the document alone")
    try:
        value = json.loads(text, parse_constant=_reject_constant, parse_float=_parse_finite, object_pairs_hook=_reject_duplicate_keys)
    except RecursionError as error:
        raise ValueError("it is nested too deep") from error
    if _nesting_depth(value) > MAX_DEPTH:
        raise ValueError("it is nested too deep")
    return value


def _reject_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _parse_finite(text: str) -> float:
    if not math.isfinite(value := float(text)):
        raise ValueError(f"{text:.40} is beyond the largest number")
    return value


def _reject_duplicate_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        raise ValueError("a key is used twice in one object")
    return made


def _nesting_depth(value: Any) -> int:
    level, deep = [value], 0
    while level and deep <= MAX_DEPTH:
        deep += 1
        level = [part for one in level for part in (one.values() if isinstance(one, dict) else one if isinstance(one, list) else ())]
    return deep


make = JsonSchema
