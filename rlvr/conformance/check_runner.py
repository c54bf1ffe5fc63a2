"""Common code of all conformance kits: the result of a check, the loop that runs the checks, and the format of a failure.

A kit never raises for a defect: every check gives a result, and a check that could not run is marked as skipped.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import wait
from dataclasses import dataclass
from pathlib import Path

from rlvr.conformance.plugin_location import find_plugin_location
from rlvr.contracts import Plugin
from rlvr.errors import PluginLoadError, RlvrError
from rlvr.mdp.verifier_executor import DaemonThreadExecutor
from rlvr.rollout.hang_watchdog import abort_on_blocked_interpreter
from rlvr.task import Fault, Verdict

CHECK_TIMEOUT_S = 600.0
"""Timeout of one check: far longer than any check needs, so a check that exceeds it hangs."""
BLOCKED_TIMEOUT_S = 30.0
"""Longest time for which a call may block the whole interpreter, as a regular expression with much backtracking does."""


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The result of one check.

    >>> CheckResult("the gold answer scores 1", ok=False, detail="task arithmetic/test/0.3: '14' scored 0").ok
    False
    """

    name: str
    ok: bool
    detail: str = ""
    skipped: bool = False
    """Whether the check could not run; `detail` says why. It never counts as a failure and is always shown."""


class CheckSkipped(Exception):
    """Raised inside a check that does not apply; the reason is shown."""


def list_failures(checks: Sequence[CheckResult]) -> list[str]:
    """List the failed checks, one line each; a test asserts that the list is empty.

    >>> list_failures([CheckResult("a", True), CheckResult("b", False, "why")])
    ['b: why']
    """
    return [f"{check.name}: {check.detail}" for check in checks if not check.ok]


Steps = Iterator[tuple[str, Callable[[], str]]]


def run_checks(checks: Steps) -> Iterator[CheckResult]:
    """Run the checks one after the other. A check is a function that returns a description of the problem, or ''.

    A plugin that cannot be built fails its first check; a wrong name or setting is the caller's error, and raises.
    """
    while True:
        try:
            step = next(checks)
        except StopIteration:
            return
        except PluginLoadError as error:
            yield CheckResult("it can be built", False, str(error))
            return
        except RlvrError:
            raise
        except (Exception, SystemExit) as error:  # between two checks only `close` runs
            yield CheckResult("it can be closed", False, _format_exception(error))
            return
        made = _run_check(*step)
        if made is None:
            yield CheckResult(step[0], False, f"timeout: not finished after {CHECK_TIMEOUT_S:g} s; the checks after it were not run")
            return
        yield made


def _run_check(name: str, check: Callable[[], str]) -> CheckResult | None:
    """Run one check in a thread; None if it did not finish in time (the thread is then abandoned)."""
    judges = DaemonThreadExecutor(1)
    try:
        with abort_on_blocked_interpreter(BLOCKED_TIMEOUT_S):
            looked = judges.submit(check)
            if not wait([looked], CHECK_TIMEOUT_S).done:
                return None
        wrong = looked.result()
    except CheckSkipped as reason:
        return CheckResult(name, True, str(reason), skipped=True)
    except (Exception, SystemExit) as error:
        return CheckResult(name, False, _format_exception(error))
    finally:
        judges.close()
    return CheckResult(name, not wrong, wrong)


def _format_exception(error: BaseException) -> str:
    place, said = find_plugin_location(error), " ".join(str(error).split())[:400]
    if not said:  # an assertion without a message
        last = traceback.extract_tb(error.__traceback__)[-1:]
        said = f"{last[0].line}, in {Path(last[0].filename).name}, line {last[0].lineno}" if last else ""
    return f"raised {type(error).__name__}: {said}" + (f" ({place})" if place else "")


def describe_first_problem(problems: Iterator[str]) -> str:
    """Return the first problem, and how many more there are; "" without problems.

    >>> describe_first_problem(iter(["", "a is wrong", "b is wrong"]))
    'a is wrong; and 1 more'
    """
    found = [text for text in problems if text]
    return "" if not found else found[0] if len(found) == 1 else f"{found[0]}; and {len(found) - 1} more"


def check_closing_twice(plugin: Plugin) -> str:
    """Check that a plugin can be closed a second time: close it, and return ''; a problem shows as an exception."""
    plugin.close()
    return ""


def format_verdict(verdict: Verdict) -> str:
    """Format a verdict for a failure message.

    >>> format_verdict(Verdict(1.0, "4 equals 4"))
    'scored 1 (4 equals 4)'
    """
    score = "no score" if verdict.score is None else f"scored {verdict.score:g}"
    return f"{score} ({'' if verdict.fault is Fault.NONE else f'fault {verdict.fault.value}: '}{verdict.reason:.120})"
