"""What the tools that work in a sandbox box share: how an outcome is told to the policy."""

from __future__ import annotations

import math
from typing import Literal

from rlvr.contracts import Outcome, Stop
from rlvr.contracts.tool import Box
from rlvr.errors import ToolCrash

WORDS = {
    Stop.TLE: "[stopped: it ran longer than {timeout:g} s]",
    Stop.MLE: "[stopped: it used too much memory]",
    Stop.OLE: "[stopped: it wrote too much]",
    Stop.SV: "[stopped: it did what is not allowed here]",
    Stop.CE: "[it could not be compiled]",
}


def run(box: Box, source: str, language: Literal["bash", "python"], timeout: float) -> str:
    """Run it in the box, and what came out as one text. ToolCrash when the box itself failed."""
    outcome = box.run(source, language=language, timeout=timeout)
    if outcome.stop is Stop.IE:
        raise ToolCrash(f"the sandbox failed: {outcome.reason or 'no reason given'}")
    return told(outcome, timeout)


def told(outcome: Outcome, timeout: float) -> str:
    r"""What a program wrote, its errors, and how it ended if that was not well.

    >>> told(Outcome(Stop.RE, exit_code=2, stdout=b"a", stderr=b"no b"), 10)
    'a\nno b\n[exit code 2]'
    """
    parts = [stream.decode("utf-8", "replace").rstrip("\n") for stream in (outcome.stdout, outcome.stderr)]
    if outcome.cut:
        parts.append("[the output was cut off]")
    if outcome.stop in WORDS:
        parts.append(WORDS[outcome.stop].format(timeout=timeout))
    elif outcome.stop is not Stop.OK:
        parts.append(f"[exit code {outcome.exit_code}]" if outcome.exit_code is not None else "[it crashed]")
    return "\n".join(part for part in parts if part) or "[no output]"


def seconds(timeout: float) -> float:
    """A time limit from a configuration; ValueError when it is none.

    >>> seconds(10)
    10.0
    """
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not 0 < timeout < math.inf:
        raise ValueError(f"timeout is {timeout!r}; it must be a number of seconds above 0")
    return float(timeout)
