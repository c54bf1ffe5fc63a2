"""Conversations in which calls are the answer: recording the calls, and comparing them with the expected ones."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from rlvr.contracts import Session, StepResult, Transcript, Verifier, VerifierExample
from rlvr.contracts.schema import SchemaValidationError, validate_arguments
from rlvr.contracts.tool import Tool, truncate_middle
from rlvr.envs.external._foreign_host import ForeignError, ForeignHost, ForeignInstanceProxy, ForeignProcessLost
from rlvr.errors import RlvrError, require_text_answers
from rlvr.task import Fault, Message, Task, Verdict
from rlvr.turns import Call, CallStatus, ToolResult, ToolSpec, Turn

OMITTED = ""
"""Entry in a list of allowed values that means the argument may be omitted."""
MAX_RESULT_CHARS = 6_000
PARALLEL_CATEGORIES = ("parallel", "parallel_multiple", "live_parallel", "live_parallel_multiple")
"""Categories in which several calls are expected, at once or over several turns."""
CALL_NOTED_RESULT = "The call is noted."
"""Result of one call of several; it does not reveal whether the call is correct."""


class CallsVerifier(Verifier):
    """Verify the calls of a conversation; its text does not count.

    A single turn is correct if its calls are the expected ones, in any order. Texts are compared without case and runs of spaces; numbers
    by value; types are not converted.

    >>> task = Task(({"role": "user", "content": "Add."},), {"truth": [{"add": {"x": [1], "y": [2, ""]}}], "single": True}, id="t")
    >>> CallsVerifier().verify_transcript(task, Transcript("", {"calls": [{"name": "add", "arguments": {"x": 1}}]})).score
    1.0
    """

    examples = (
        VerifierExample({"truth": [{"add": {"x": [1]}}], "single": True}, correct=(), incorrect=("", "add(x=1)", '{"name": "add"}')),
    )

    @require_text_answers
    def verify(self, task: Task, answer: str) -> Verdict:
        """Score 0: a text alone calls nothing."""
        return Verdict(0.0, "nothing was called")

    def verify_transcript(self, task: Task, transcript: Transcript) -> Verdict:
        """Verify the recorded calls, or the recorded state of each turn."""
        left = transcript.artifacts
        if trouble := left.get("trouble"):
            fault = Fault(trouble["fault"])
            return Verdict(0.0 if fault is Fault.ANSWER else None, trouble["why"], fault=fault)
        if task.reference["single"]:
            calls = left.get("calls", [])
            if not calls:
                return self.verify(task, transcript.answer)
            right = match_calls(task.reference["truth"], calls)
            return Verdict(float(right), f"{len(calls)} call{'s' * (len(calls) > 1)}, {'as listed' if right else 'not as listed'}")
        turns, wanted = left.get("turns", []), len(task.reference["truth"])
        if wrong := next((turn for turn in turns if not turn["right"]), None):
            return Verdict(0.0, f"request {turns.index(wrong) + 1} of {wanted}: {wrong['why']}")
        return Verdict(float(len(turns) == wanted), f"{len(turns)} of {wanted} requests were done")


class PlaceholderTool(Tool):
    """Placeholder tool: the functions of a question are tools that are known only when its session is open.

    >>> PlaceholderTool().specs()
    ()
    """

    def specs(self) -> tuple[ToolSpec, ...]:
        """Return no tools."""
        return ()


class CallSession(Session):
    """Session whose tools are the functions of the question. Without services, calls are recorded and not run."""

    def __init__(self, task: Task, specs: Sequence[ToolSpec], row: Mapping[str, Any], host: ForeignHost | None, category: str) -> None:
        self.task, self.specs, self.row, self.host, self.category = task, tuple(specs), row, host, category
        self.calls: list[dict[str, Any]] = []
        self.executed_calls: list[list[dict[str, Any]]] = [[]]
        """The calls that were run, by request, for replaying the conversation."""
        self.turns: list[dict[str, Any]] = []
        self.failure: dict[str, str] = {}
        self.instance: ForeignInstanceProxy | None = None

    def start_tools(self) -> Sequence[ToolSpec]:
        """Start the services, and return the functions of the question."""
        if self.host is not None and self.instance is None:
            self.instance = self._start_services(self.host)
        return self.specs

    def step(self, turn: Turn) -> StepResult | None:
        """Single-turn questions: record the calls of the turn. Conversations: run the calls, or go to the user's next request if the
        turn has none.
        """
        if self.host is None:
            return self._record_calls(turn)
        try:
            return self._run_calls(turn) if turn.calls_needing_result_or_error else self._next_request()
        except ForeignError as error:
            self.failure = self._find_fault(error)
            return StepResult(done=True)

    def artifacts(self) -> Mapping[str, Any]:
        """Return the recorded calls of a single-turn question, or for each request of a conversation whether it was done correctly."""
        left: dict[str, Any] = {"calls": self.calls} if self.host is None else {"turns": self.turns}
        return left | ({"trouble": self.failure} if self.failure else {})

    def close(self) -> None:
        """End the services."""
        if self.instance is not None:
            self.instance.close()

    def _start_services(self, host: ForeignHost) -> ForeignInstanceProxy:
        world = host.new_instance(category=self.category)
        try:
            allowed = [one["name"] for one in self.row["functions"]]
            world.call(
                "start_services",
                config=self.row["config"],
                service_names=self.row["involved"],
                correct_calls=self.row["truth"],
                allowed_functions=allowed,
            )
        except BaseException:
            world.close()
            raise
        return world

    def _record_calls(self, turn: Turn) -> StepResult | None:
        """Record the calls of a single turn, which end the conversation. If no call is valid, reply with the errors instead.

        If several calls are expected, a turn with one call is followed by another turn: some dialects end a turn at its first call.
        """
        fitted = [check_call(self.specs, call) for call in turn.calls_needing_result_or_error]
        if turn.calls_needing_result_or_error and all(given is None for given, _ in fitted):
            return make_step_result(
                turn,
                [ToolResult(call.id, why, ok=False) for call, (_, why) in zip(turn.calls_needing_result_or_error, fitted, strict=True)],
            )
        pairs = zip(turn.calls_needing_result_or_error, fitted, strict=True)  # an invalid call beside valid ones counts as a wrong call
        self.calls += [
            {"name": call.name, "arguments": given} if given is not None else {"name": "", "arguments": {}} for call, (given, _) in pairs
        ]
        if self.category in PARALLEL_CATEGORIES and len(turn.calls_needing_result_or_error) == 1:
            return make_step_result(turn, [ToolResult(turn.calls_needing_result_or_error[0].id, CALL_NOTED_RESULT, ok=True)])
        return None

    def _run_calls(self, turn: Turn) -> StepResult:
        results: list[ToolResult] = []
        for call in turn.calls_needing_result_or_error:
            given, why = check_call(self.specs, call)
            if given is None:
                results.append(ToolResult(call.id, why, ok=False))
                continue
            assert self.instance is not None
            self.executed_calls[-1].append({"name": call.name, "arguments": given})
            found = self.instance.call("call_function", **self.executed_calls[-1][-1])
            text = truncate_middle(str(found["text"]), MAX_RESULT_CHARS)
            results.append(ToolResult(call.id, text, ok=bool(found["ok"]), truncated=len(text) < len(str(found["text"]))))
        return make_step_result(turn, results)

    def _next_request(self) -> StepResult | None:
        assert self.instance is not None
        found = self.instance.call("grade_request")
        self.turns.append({"right": found["right"] is True, "why": str(found["why"])[:200]})
        self.executed_calls.append([])
        place = len(self.turns)
        if place >= len(self.row["question"]) or not self.turns[-1]["right"]:
            return None
        asked = [one["content"] for one in self.row["question"][place] if one["role"] == "user"]
        return StepResult(({"role": "user", "content": "\n".join(asked) or "Go on."},))

    def _find_fault(self, error: ForeignError) -> dict[str, str]:
        """Find the fault of a failure: the answer's, if the last call fails again in a replay; else the infrastructure's."""
        why = f"the services failed: {error}"[:400]
        if self.executed_calls[-1] and self.host is not None:
            try:
                with self._start_services(self.host) as world:
                    for place, calls in enumerate(self.executed_calls):
                        for call in calls[: len(calls) - (place == len(self.executed_calls) - 1)]:
                            world.call("call_function", **call)
                        if place < len(self.executed_calls) - 1:
                            world.call("grade_request")
                    try:
                        world.call("call_function", **self.executed_calls[-1][-1])
                    except ForeignProcessLost:
                        return {"fault": Fault.ANSWER.value, "why": f"{why}, and again with the same call"}
            except RlvrError:
                pass
        return {"fault": Fault.INFRA.value, "why": why}


def check_call(specs: Sequence[ToolSpec], call: Call) -> tuple[dict[str, Any] | None, str]:
    """Check a call against the tools; return its arguments and '', or None and the error for the policy."""
    spec = next((spec for spec in specs if spec.name == call.name), None)
    if call.status is not CallStatus.OK:
        return None, call.error_message
    if spec is None:
        return None, Call(call.id, call.name, status=CallStatus.UNKNOWN_TOOL, error_detail=f"{call.name!r:.80} is unknown").error_message
    try:
        return validate_arguments(spec.parameters, call.arguments or {}), ""
    except SchemaValidationError as wrong:
        return None, Call(call.id, call.name, status=CallStatus.BAD_ARGUMENTS, error_detail=str(wrong)).error_message


def make_step_result(turn: Turn, results: Sequence[ToolResult]) -> StepResult:
    """Make the reply to a turn with calls: one message for each result."""
    pairs = zip(turn.calls_needing_result_or_error, results, strict=True)
    told = tuple(Message(role="tool", content=one.text, name=call.name or "unknown", tool_call_id=call.id) for call, one in pairs)
    return StepResult(told, tool_results=tuple(results))


def match_calls(expected_calls: Sequence[Mapping[str, Mapping[str, Any]]], calls: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether the calls match the expected ones one to one, in any order.

    >>> calls = [{"name": "f", "arguments": {"x": 2}}, {"name": "f", "arguments": {"x": 1}}]
    >>> match_calls([{"f": {"x": [1]}}, {"f": {"x": [2]}}], calls)
    True
    """
    if len(expected_calls) != len(calls):
        return False
    dotted, fitting = re.compile(r"[^A-Za-z0-9_-]"), list[list[int]]()
    for one in expected_calls:
        name, wanted = next(iter(one.items()))
        plain = dotted.sub("_", name)
        fitting.append([n for n, call in enumerate(calls) if call["name"] == plain and match_allowed_arguments(call["arguments"], wanted)])
    taken: dict[int, int] = {}

    def placed(row: int, tried: set[int]) -> bool:
        """Find a call for one expected call, reassigning others if needed (bipartite matching)."""
        for n in fitting[row]:
            if n not in tried:
                tried.add(n)
                if n not in taken or placed(taken[n], tried):
                    taken[n] = row
                    return True
        return False

    return all(placed(row, set()) for row in range(len(expected_calls)))


def match_allowed_arguments(arguments: Mapping[str, Any], allowed_values: Mapping[str, Any]) -> bool:
    """Return whether all arguments have allowed values, and none is missing or unknown.

    >>> match_allowed_arguments({"x": "San  Francisco"}, {"x": ["san francisco"], "y": [2, ""]}), match_allowed_arguments({"x": "1"}, {"x": [1]})
    (True, False)
    """
    if set(arguments) - set(allowed_values):
        return False
    return all(_is_allowed(arguments[name], of) if name in arguments else OMITTED in of for name, of in allowed_values.items())


def _is_allowed(value: Any, options: Any) -> bool:
    return any(_equals(value, option) for option in options) if isinstance(options, list) else _equals(value, options)


def _equals(value: Any, option: Any) -> bool:
    if isinstance(option, bool) or isinstance(value, bool):
        return value is option
    if isinstance(option, Mapping):
        return isinstance(value, Mapping) and match_allowed_arguments(
            value, {name: of if isinstance(of, list) else [of] for name, of in option.items()}
        )
    if isinstance(option, list):
        return isinstance(value, list) and len(value) == len(option) and all(map(_equals, value, option))
    if isinstance(option, str):
        return isinstance(value, str) and _normalize(value) == _normalize(option)
    return value is None if option is None else isinstance(value, int | float) and value == option


def _normalize(text: str) -> str:
    return " ".join(text.split()).casefold()


def iter_minimal_expected_calls(
    expected_calls: Sequence[Mapping[str, Mapping[str, Any]]], required: Mapping[str, Collection[str]]
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each expected call with the first allowed values, without arguments that may be omitted.

    >>> list(iter_minimal_expected_calls([{"f": {"x": [1, 2], "y": ["", 3], "z": ["", 4]}}], {"f": ["z"]}))
    [('f', {'x': 1, 'z': 4})]
    """
    for one in expected_calls:
        for name, wanted in one.items():
            needed = required.get(name, ())
            yield (
                name,
                _choose_first_values({key: options for key, options in wanted.items() if key in needed or not _may_be_omitted(options)}),
            )


def _may_be_omitted(options: Any) -> bool:
    return isinstance(options, list) and OMITTED in options


def _choose_first_values(wanted: Mapping[str, Any]) -> dict[str, Any]:
    found = {}
    for name, options in wanted.items():
        some = [option for option in options if option != OMITTED] if isinstance(options, list) else [options]
        if some:
            found[name] = _choose_value(some[0])
    return found


def _choose_value(option: Any) -> Any:
    if isinstance(option, Mapping):
        return _choose_first_values(option)
    return [_choose_value(inner) for inner in option] if isinstance(option, list) else option
