"""Shared code of the tools that use a sandbox session: format an outcome as text for the policy."""

from __future__ import annotations

import math
from typing import Literal

from rlvr.contracts import Box, Outcome, Stop
from rlvr.errors import ToolCrash

WORDS = {
    Stop.TLE: "[stopped: it ran longer than {timeout:g} s]",
    Stop.MLE: "[stopped: it used too much memory]",
    Stop.OLE: "[stopped: it wrote too much]",
    Stop.SV: "[stopped: it broke the sandbox]",
    Stop.CE: "[it could not be compiled]",
}


def run(box: Box, source: str, language: Literal["bash", "python"], timeout: float) -> str:
    """Run a program in the sandbox and return its output as one text. ToolCrash if the sandbox itself failed."""
    outcome = box.run(source, language=language, timeout=timeout)
    if outcome.stop is Stop.IE:
        raise ToolCrash(f"the sandbox failed: {outcome.reason or 'no reason given'}")
    return outcome_text(outcome, timeout)


def outcome_text(outcome: Outcome, timeout: float) -> str:
    r"""Format the output and the errors of a program, and how it ended if it failed.

    >>> outcome_text(Outcome(Stop.RE, exit_code=2, stdout=b"a", stderr=b"no b"), 10)
    'a\nno b\n[exit code 2]'
    """
    parts = [stream.decode("utf-8", "replace").rstrip("\n") for stream in (outcome.stdout, outcome.stderr)]
    if outcome.cut:
        parts.append("[the output was cut off]")
    if outcome.stop in WORDS:
        parts.append(WORDS[outcome.stop].format(timeout=timeout))
    elif outcome.stop is not Stop.OK:
        parts.append(f"[exit code {outcome.exit_code}]" if outcome.exit_code is not None else "[it crashed]")
    if outcome.note:
        parts.append(f"[{outcome.note}]")
    return "\n".join(part for part in parts if part) or "[no output]"


def seconds(timeout: float) -> float:
    """Check a timeout from a configuration and return it; ValueError if it is invalid.

    >>> seconds(10)
    10.0
    """
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not 0 < timeout < math.inf:
        raise ValueError(f"timeout is {timeout!r}; it must be a number of seconds above 0")
    return float(timeout)
