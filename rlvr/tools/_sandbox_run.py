"""Shared code of the tools that use a sandbox session: format an outcome as text for the policy."""

from __future__ import annotations

import math
from typing import Literal

from rlvr.contracts import ExecutionResult, ExitStatus, SandboxSession
from rlvr.errors import ToolInfrastructureError

STATUS_MESSAGES = {
    ExitStatus.TIMEOUT: "[stopped: it ran longer than {timeout:g} s]",
    ExitStatus.MEMORY_LIMIT: "[stopped: it used too much memory]",
    ExitStatus.OUTPUT_LIMIT: "[stopped: it wrote too much]",
    ExitStatus.SANDBOX_VIOLATION: "[stopped: it broke the sandbox]",
    ExitStatus.COMPILE_ERROR: "[it could not be compiled]",
}


def run_in_sandbox(sandbox_session: SandboxSession, source: str, language: Literal["bash", "python"], timeout: float) -> str:
    """Run a program in the sandbox and return its output as one text. ToolInfrastructureError if the sandbox itself failed."""
    outcome = sandbox_session.run(source, language=language, timeout=timeout)
    if outcome.status is ExitStatus.INTERNAL_ERROR:
        raise ToolInfrastructureError(f"the sandbox failed: {outcome.reason or 'no reason given'}")
    return format_result(outcome, timeout)


def format_result(outcome: ExecutionResult, timeout: float) -> str:
    r"""Format the output and the errors of a program, and how it ended if it failed.

    >>> format_result(ExecutionResult(ExitStatus.RUNTIME_ERROR, exit_code=2, stdout_bytes=b"a", stderr_bytes=b"no b"), 10)
    'a\nno b\n[exit code 2]'
    """
    parts = [stream.decode("utf-8", "replace").rstrip("\n") for stream in (outcome.stdout_bytes, outcome.stderr_bytes)]
    if outcome.truncated:
        parts.append("[the output was cut off]")
    if outcome.status in STATUS_MESSAGES:
        parts.append(STATUS_MESSAGES[outcome.status].format(timeout=timeout))
    elif outcome.status is not ExitStatus.OK:
        parts.append(f"[exit code {outcome.exit_code}]" if outcome.exit_code is not None else "[it crashed]")
    if outcome.message:
        parts.append(f"[{outcome.message}]")
    return "\n".join(part for part in parts if part) or "[no output]"


def validate_timeout_setting(timeout: float) -> float:
    """Check a timeout from a configuration and return it; ValueError if it is invalid.

    >>> validate_timeout_setting(10)
    10.0
    """
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not 0 < timeout < math.inf:
        raise ValueError(f"a timeout is {timeout!r}; it must be a number of seconds above 0")
    return float(timeout)
