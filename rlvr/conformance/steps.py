"""Common code of all conformance kits: the result of a check, the loop that runs the checks, and the format of a failure.

A kit never raises for a defect: every check gives a result, and a check that could not run is marked as skipped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import wait
from dataclasses import dataclass

from rlvr.conformance.blame import place_of
from rlvr.contracts import Plugin
from rlvr.errors import PluginError, RlvrError
from rlvr.mdp.judges import Judges
from rlvr.task import Fault, Verdict

DEADLINE_S = 600.0
"""Timeout of one check: far longer than any check needs, so a check that exceeds it hangs."""


@dataclass(frozen=True, slots=True)
class Check:
    """The result of one check.

    >>> Check("the gold answer scores 1", ok=False, detail="task arithmetic/test/0.3: '14' scored 0").ok
    False
    """

    name: str
    ok: bool
    detail: str = ""
    skipped: bool = False
    """Whether the check could not run; `detail` says why. It never counts as a failure and is always shown."""


class CannotCheck(Exception):
    """Raised inside a check that does not apply; the reason is shown."""


def failures(checks: Sequence[Check]) -> list[str]:
    """List the failed checks, one line each; a test asserts that the list is empty.

    >>> failures([Check("a", True), Check("b", False, "why")])
    ['b: why']
    """
    return [f"{check.name}: {check.detail}" for check in checks if not check.ok]


Steps = Iterator[tuple[str, Callable[[], str]]]


def run(steps: Steps) -> Iterator[Check]:
    """Run the checks one after the other. A check is a function that returns a description of the problem, or ''.

    A plugin that cannot be built fails its first check; a wrong name or setting is the caller's error, and raises.
    """
    while True:
        try:
            step = next(steps)
        except StopIteration:
            return
        except PluginError as error:
            yield Check("it can be built", False, str(error))
            return
        except RlvrError:
            raise
        except (Exception, SystemExit) as error:  # between two checks only `close` runs
            yield Check("it can be closed", False, _raised(error))
            return
        made = _made(*step)
        if made is None:
            yield Check(step[0], False, f"timeout: not finished after {DEADLINE_S:g} s; the checks after it were not run")
            return
        yield made


def _made(name: str, look: Callable[[], str]) -> Check | None:
    """Run one check in a thread; None if it did not finish in time (the thread is then abandoned)."""
    judges = Judges(1)
    looked = judges.submit(look)
    try:
        if not wait([looked], DEADLINE_S).done:
            return None
        wrong = looked.result()
    except CannotCheck as reason:
        return Check(name, True, str(reason), skipped=True)
    except (Exception, SystemExit) as error:
        return Check(name, False, _raised(error))
    finally:
        judges.close()
    return Check(name, not wrong, wrong)


def _raised(error: BaseException) -> str:
    place = place_of(error)
    return f"raised {type(error).__name__}: {' '.join(str(error).split())[:400]}" + (f" ({place})" if place else "")


def first(texts: Iterator[str]) -> str:
    """Return the first problem, and how many more there are; "" without problems.

    >>> first(iter(["", "a is wrong", "b is wrong"]))
    'a is wrong; and 1 more'
    """
    found = [text for text in texts if text]
    return "" if not found else found[0] if len(found) == 1 else f"{found[0]}; and {len(found) - 1} more"


def closed(plugin: Plugin) -> str:
    """Close the plugin a second time; a problem shows as an exception."""
    plugin.close()
    return ""


def shown(verdict: Verdict) -> str:
    """Format a verdict for a failure message.

    >>> shown(Verdict(1.0, "4 equals 4"))
    'scored 1 (4 equals 4)'
    """
    score = "no score" if verdict.score is None else f"scored {verdict.score:g}"
    return f"{score} ({'' if verdict.fault is Fault.NONE else f'fault {verdict.fault.value}: '}{verdict.reason:.120})"
