"""How a verdict came about: the texts and values on the way, and the function that decided.

Nothing is recorded while answers are verified. `explain_verdict` runs one verification under a trace of Python, watches which functions
return, and finds the one that made the reason of the verdict: no verifier has to keep a list of the names of its rules.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from rlvr.task import Verdict

MAX_SHOWN_CHARS = 400
_PACKAGE = Path(__file__).parents[1]
_CONTRACT = "rlvr.contracts.verifier"
"""The module that asks for explanations; no function there decides."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """A verdict, the steps that led to it, and the rule that decided.

    >>> Explanation(Verdict(1.0, "4 equals 4"), (("extracted", "4"),), "Numeric.verify", "verifiers/numeric.py:135").rule
    'Numeric.verify'
    """

    verdict: Verdict
    steps: tuple[tuple[str, str], ...] = ()
    """Named intermediate results in their order: the extracted text, the parsed value."""
    rule: str = ""
    """Name of the function that decided. To change the verdict, change this function, or what calls it."""
    where: str = ""
    """File and line of the decision."""
    path: tuple[str, ...] = ()
    """The functions from `verify` down to the rule."""

    def to_dict(self) -> dict[str, Any]:
        """Convert the explanation to plain JSON."""
        steps = [{"name": name, "value": value} for name, value in self.steps]
        return {**self.verdict.to_dict(), "steps": steps, "rule": self.rule, "where": self.where, "path": list(self.path)}


@dataclass(frozen=True, slots=True)
class _DecisionSite:
    """A reason, and the place in the code that made it."""

    reason: str
    rule: str
    where: str
    path: tuple[str, ...]


class _CallTracer:
    """Watches the functions of one call: what they return, and where they raise."""

    def __init__(self, watched: Sequence[tuple[str, Callable[..., Any]]], module: str) -> None:
        self._module = module
        """The module of the verifier, which is followed like those of rlvr."""
        self._names: dict[CodeType, str] = {getattr(function, "__wrapped__", function).__code__: name for name, function in watched}
        self.steps: list[tuple[str, str]] = []
        self._open: dict[FrameType, tuple[int, Any]] = {}
        """The watched calls that have not returned: the place of the step, and the first argument."""
        self.returned: list[_DecisionSite] = []
        self.raised: list[_DecisionSite] = []

    def on_event(self, frame: FrameType, event: str, argument: Any) -> Any:
        """Handle an event of `sys.settrace`."""
        if event == "call":
            name = frame.f_globals.get("__name__", "")
            if name == _CONTRACT or not (name.startswith("rlvr.") or name == self._module):
                return None
            frame.f_trace_lines = False
            if frame.f_code in self._names:
                self._open[frame] = len(self.steps), frame.f_locals.get(frame.f_code.co_varnames[0])
                self.steps.append((self._names[frame.f_code], ""))
        elif event == "return" and frame in self._open:
            place, first = self._open.pop(frame)
            self.steps[place] = self._names[frame.f_code], _format_step(first, argument, _format_place(frame))
        if event == "return" and isinstance(reason := getattr(argument, "reason", None), str):
            self.returned.append(_decision(reason, frame))
        elif event == "exception" and str(argument[1]):
            self.raised.append(_decision(str(argument[1]), frame))
        return self.on_event

    def find_decision(self, verdict: Verdict) -> _DecisionSite | None:
        """Find the innermost function that returned the reason of the verdict, or raised an error that the reason repeats."""
        raised = next((found for found in self.raised if verdict.reason.endswith(found.reason)), None)
        returned = next((found for found in self.returned if found.reason == verdict.reason), None)
        if returned is None or (raised is not None and raised.reason != verdict.reason and len(raised.path) > len(returned.path)):
            return raised or returned
        return returned


def explain_verdict(
    verify: Callable[[], Verdict], explained_functions: Sequence[tuple[str, Callable[..., Any]]] = (), *, module: str = ""
) -> Explanation:
    """Run one verification under a trace and explain its verdict. `explained_functions`: functions whose calls become steps, each with
    the name of the step. `module`: that of the verifier, if it is not in rlvr.
    """
    trace, before = _CallTracer(explained_functions, module), sys.gettrace()
    sys.settrace(trace.on_event)
    try:
        verdict = verify()
    finally:
        sys.settrace(before)
    found = trace.find_decision(verdict)
    if found is None:
        return Explanation(verdict, tuple(trace.steps))
    return Explanation(verdict, tuple(trace.steps), found.rule, found.where, found.path)


def _decision(reason: str, frame: FrameType) -> _DecisionSite:
    path, caller = [], frame.f_back
    while caller is not None and caller.f_globals.get("__name__", "").startswith("rlvr.verifiers"):
        if "<" not in caller.f_code.co_qualname:
            path.append(caller.f_code.co_qualname)
        caller = caller.f_back
    rule = frame.f_code.co_qualname
    return _DecisionSite(reason, rule, _format_place(frame), (*reversed(path), rule))


def _format_place(frame: FrameType) -> str:
    file = Path(frame.f_code.co_filename)
    return f"{file.relative_to(_PACKAGE) if file.is_relative_to(_PACKAGE) else file}:{frame.f_lineno}"


def _format_step(first_argument: Any, result: Any, place: str) -> str:
    """Format a call as its first argument and its result; an extraction as the text and where it stood; a yes or no with its place."""
    if isinstance(result, bool):
        return f"{result}, decided at {place}"
    if hasattr(result, "text") and hasattr(result, "reason"):
        return f"nothing: {result.reason}" if result.text is None else f"{format_shortened(result.text)}  ({result.reason})"
    return f"{format_shortened(first_argument)}  ->  {'nothing' if result is None else format_shortened(result)}"


def format_shortened(value: Any) -> str:
    """Show a value in one short text."""
    text = str(value)
    return text if len(text) <= MAX_SHOWN_CHARS else text[: MAX_SHOWN_CHARS - 3] + "..."
