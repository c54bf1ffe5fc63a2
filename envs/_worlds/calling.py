"""Conversations in which calls are the answer: recording the calls, and comparing them with the expected ones."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from rlvr.contracts import Example, Heard, Session, Transcript, Verifier
from rlvr.contracts.schema import Misfit, arguments
from rlvr.contracts.tool import Tool, cut_middle
from rlvr.envs._host import ForeignError, ForeignLate, Host, World
from rlvr.errors import RlvrError
from rlvr.task import Fault, Message, Task, Verdict
from rlvr.turns import Call, CallStatus, Result, ToolSpec, Turn

MISSING = ""
"""Entry in a list of allowed values that means the argument may be omitted."""
LONGEST = 6_000
PARALLEL = ("parallel", "parallel_multiple", "live_parallel", "live_parallel_multiple")
"""Categories in which several calls are expected, at once or over several turns."""
NOTED = "The call is noted."
"""Result of one call of several; it does not reveal whether the call is correct."""


class Calls(Verifier):
    """Verify the calls of a conversation; its text does not count.

    A single turn is correct if its calls are the expected ones, in any order. Texts are compared without case and runs of spaces; numbers
    by value; types are not converted.

    >>> task = Task("t", ({"role": "user", "content": "Add."},), {"truth": [{"add": {"x": [1], "y": [2, ""]}}], "single": True})
    >>> Calls().judge(task, Transcript("", {"calls": [{"name": "add", "arguments": {"x": 1}}]})).score
    1.0
    """

    examples = (Example({"truth": [{"add": {"x": [1]}}], "single": True}, right=(), wrong=("", "add(x=1)", '{"name": "add"}')),)

    def verify(self, task: Task, answer: str) -> Verdict:
        """Score 0: a text alone calls nothing."""
        return Verdict(0.0, "nothing was called")

    def judge(self, task: Task, transcript: Transcript) -> Verdict:
        """Verify the recorded calls, or the recorded state of each turn."""
        left = transcript.evidence
        if trouble := left.get("trouble"):
            fault = Fault(trouble["fault"])
            return Verdict(0.0 if fault is Fault.ANSWER else None, trouble["why"], fault=fault)
        if task.reference["single"]:
            calls = left.get("calls", [])
            if not calls:
                return self.verify(task, transcript.answer)
            right = matched(task.reference["truth"], calls)
            return Verdict(float(right), f"{len(calls)} call{'s' * (len(calls) > 1)}, {'as listed' if right else 'not as listed'}")
        turns, wanted = left.get("turns", []), len(task.reference["truth"])
        if wrong := next((turn for turn in turns if not turn["right"]), None):
            return Verdict(0.0, f"request {turns.index(wrong) + 1} of {wanted}: {wrong['why']}")
        return Verdict(float(len(turns) == wanted), f"{len(turns)} of {wanted} requests were done")


class Listing(Tool):
    """Placeholder tool: the functions of a question are tools that are known only when its session is open.

    >>> Listing().specs()
    ()
    """

    def specs(self) -> tuple[ToolSpec, ...]:
        """Return no tools."""
        return ()


class CallTalk(Session):
    """Session whose tools are the functions of the question. Without services, calls are recorded and not run."""

    def __init__(self, task: Task, specs: Sequence[ToolSpec], row: Mapping[str, Any], host: Host | None, category: str) -> None:
        self.task, self.specs, self.row, self.host, self.category = task, tuple(specs), row, host, category
        self.calls: list[dict[str, Any]] = []
        self.done: list[list[dict[str, Any]]] = [[]]
        """The calls that were run, by request, for replaying the conversation."""
        self.turns: list[dict[str, Any]] = []
        self.trouble: dict[str, str] = {}
        self.world: World | None = None

    def tools(self) -> Sequence[ToolSpec]:
        """Start the services, and return the functions of the question."""
        if self.host is not None and self.world is None:
            self.world = self._fresh(self.host)
        return self.specs

    def hear(self, turn: Turn) -> Heard | None:
        """Record the calls of a single turn; in a conversation run the calls, or go to the next request if there are none."""
        if self.host is None:
            return self._recorded(turn)
        try:
            return self._ran(turn) if turn.pending else self._next()
        except ForeignError as error:
            self.trouble = self._blame(error)
            return Heard(over=True)

    def evidence(self) -> Mapping[str, Any]:
        """Return the calls, or the result of each request."""
        left: dict[str, Any] = {"calls": self.calls} if self.host is None else {"turns": self.turns}
        return left | ({"trouble": self.trouble} if self.trouble else {})

    def close(self) -> None:
        """End the services."""
        if self.world is not None:
            self.world.close()

    def _fresh(self, host: Host) -> World:
        world = host.open(category=self.category)
        try:
            allowed = [one["name"] for one in self.row["functions"]]
            world.ask("start", config=self.row["config"], involved=self.row["involved"], truth=self.row["truth"], allowed=allowed)
        except BaseException:
            world.close()
            raise
        return world

    def _fitted(self, call: Call) -> tuple[dict[str, Any] | None, str]:
        """Check a call; return its arguments and '', or None and the error."""
        spec = next((spec for spec in self.specs if spec.name == call.name), None)
        if call.status is not CallStatus.OK:
            return None, call.told
        if spec is None:
            return None, Call(call.id, call.name, status=CallStatus.UNKNOWN_TOOL, why=f"{call.name!r:.80} is unknown").told
        try:
            return arguments(spec.parameters, call.arguments or {}), ""
        except Misfit as wrong:
            return None, Call(call.id, call.name, status=CallStatus.BAD_ARGUMENTS, why=str(wrong)).told

    def _recorded(self, turn: Turn) -> Heard | None:
        """Record the calls of a single turn, which end the conversation. If no call is valid, reply with the errors instead.

        If several calls are expected, a turn with one call is followed by another turn: some dialects end a turn at its first call.
        """
        fitted = [self._fitted(call) for call in turn.pending]
        if turn.pending and all(given is None for given, _ in fitted):
            return _told(turn, [Result(call.id, why, ok=False) for call, (_, why) in zip(turn.pending, fitted, strict=True)])
        pairs = zip(turn.pending, fitted, strict=True)  # an invalid call beside valid ones counts as a wrong call
        self.calls += [
            {"name": call.name, "arguments": given} if given is not None else {"name": "", "arguments": {}} for call, (given, _) in pairs
        ]
        if self.category in PARALLEL and len(turn.pending) == 1:
            return _told(turn, [Result(turn.pending[0].id, NOTED, ok=True)])
        return None

    def _ran(self, turn: Turn) -> Heard:
        results: list[Result] = []
        for call in turn.pending:
            given, why = self._fitted(call)
            if given is None:
                results.append(Result(call.id, why, ok=False))
                continue
            assert self.world is not None
            self.done[-1].append({"name": call.name, "given": given})
            found = self.world.ask("call", **self.done[-1][-1])
            text = cut_middle(str(found["text"]), LONGEST)
            results.append(Result(call.id, text, ok=bool(found["ok"]), cut=len(text) < len(str(found["text"]))))
        return _told(turn, results)

    def _next(self) -> Heard | None:
        assert self.world is not None
        found = self.world.ask("turn")
        self.turns.append({"right": found["right"] is True, "why": str(found["why"])[:200]})
        self.done.append([])
        place = len(self.turns)
        if place >= len(self.row["question"]) or not self.turns[-1]["right"]:
            return None
        asked = [one["content"] for one in self.row["question"][place] if one["role"] == "user"]
        return Heard(({"role": "user", "content": "\n".join(asked) or "Go on."},))

    def _blame(self, error: ForeignError) -> dict[str, str]:
        """Find the fault of a failure: the answer's, if the last call fails again in a replay; else the infrastructure's."""
        why = f"the services failed: {error}"[:400]
        if self.done[-1] and self.host is not None:
            try:
                with self._fresh(self.host) as world:
                    for place, calls in enumerate(self.done):
                        for call in calls[: len(calls) - (place == len(self.done) - 1)]:
                            world.ask("call", **call)
                        if place < len(self.done) - 1:
                            world.ask("turn")
                    try:
                        world.ask("call", **self.done[-1][-1])
                    except ForeignLate:
                        return {"fault": Fault.ANSWER.value, "why": f"{why}, and again with the same call"}
            except RlvrError:
                pass
        return {"fault": Fault.INFRA.value, "why": why}


def _told(turn: Turn, results: Sequence[Result]) -> Heard:
    pairs = zip(turn.pending, results, strict=True)
    told = tuple(Message(role="tool", content=one.text, name=call.name or "unknown", tool_call_id=call.id) for call, one in pairs)
    return Heard(told, results=tuple(results))


def matched(truth: Sequence[Mapping[str, Mapping[str, Any]]], calls: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether the calls match the expected ones one to one, in any order.

    >>> matched([{"f": {"x": [1]}}, {"f": {"x": [2]}}], [{"name": "f", "arguments": {"x": 2}}, {"name": "f", "arguments": {"x": 1}}])
    True
    """
    if len(truth) != len(calls):
        return False
    dotted, fitting = re.compile(r"[^A-Za-z0-9_-]"), list[list[int]]()
    for one in truth:
        name, wanted = next(iter(one.items()))
        plain = dotted.sub("_", name)
        fitting.append([n for n, call in enumerate(calls) if call["name"] == plain and given_right(call["arguments"], wanted)])
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

    return all(placed(row, set()) for row in range(len(truth)))


def given_right(given: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    """Return whether all arguments have allowed values, and none is missing or unknown.

    >>> given_right({"x": "San  Francisco"}, {"x": ["san francisco"], "y": [2, ""]}), given_right({"x": "1"}, {"x": [1]})
    (True, False)
    """
    if set(given) - set(wanted):
        return False
    return all(_allowed(given[name], of) if name in given else MISSING in of for name, of in wanted.items())


def _allowed(value: Any, options: Any) -> bool:
    return any(_same(value, option) for option in options) if isinstance(options, list) else _same(value, options)


def _same(value: Any, option: Any) -> bool:
    if isinstance(option, bool) or isinstance(value, bool):
        return value is option
    if isinstance(option, Mapping):
        return isinstance(value, Mapping) and given_right(
            value, {name: of if isinstance(of, list) else [of] for name, of in option.items()}
        )
    if isinstance(option, list):
        return isinstance(value, list) and len(value) == len(option) and all(map(_same, value, option))
    if isinstance(option, str):
        return isinstance(value, str) and _plain(value) == _plain(option)
    return value is None if option is None else isinstance(value, int | float) and value == option


def _plain(text: str) -> str:
    return " ".join(text.split()).casefold()


def first_calls(
    truth: Sequence[Mapping[str, Mapping[str, Any]]], required: Mapping[str, Collection[str]]
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each expected call with the first allowed values, without arguments that may be omitted.

    >>> list(first_calls([{"f": {"x": [1, 2], "y": ["", 3], "z": ["", 4]}}], {"f": ["z"]}))
    [('f', {'x': 1, 'z': 4})]
    """
    for one in truth:
        for name, wanted in one.items():
            needed = required.get(name, ())
            yield name, _firsts({key: options for key, options in wanted.items() if key in needed or not _may_miss(options)})


def _may_miss(options: Any) -> bool:
    return isinstance(options, list) and MISSING in options


def _firsts(wanted: Mapping[str, Any]) -> dict[str, Any]:
    found = {}
    for name, options in wanted.items():
        some = [option for option in options if option != MISSING] if isinstance(options, list) else [options]
        if some:
            found[name] = _one(some[0])
    return found


def _one(option: Any) -> Any:
    if isinstance(option, Mapping):
        return _firsts(option)
    return [_one(inner) for inner in option] if isinstance(option, list) else option
