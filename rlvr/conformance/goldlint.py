"""Which golds of an environment cannot be judged: every task is read once, before anybody is paid, or not paid, for one."""

from __future__ import annotations

from rlvr.contracts import Environment
from rlvr.task import Fault

READ = 20_000
"""Tasks of each split that are read."""
LISTED = 50


def ungradeable(env: Environment) -> str:
    """One line a task whose gold gets no verdict; empty when every gold can be judged.

    It asks a verifier that has a `lint`, as `symbolic` has: such a one says that the task is at fault whatever the answer.

    >>> import rlvr
    >>> ungradeable(rlvr.make("env", "arithmetic"))
    ''
    """
    if not hasattr(env.verifier, "lint"):
        return ""
    found: list[str] = []
    for split in env.splits:
        size = env.size(split)
        for index in range(READ if size is None else min(READ, size)):
            task = env.task(split, index)
            verdict = env.verifier.verify(task, "")
            if verdict.fault is Fault.TASK:
                found.append(f"{task.id}: {verdict.reason}")
    more = [f"and {len(found) - LISTED} more"] if len(found) > LISTED else []
    return "\n    ".join([f"{len(found)} tasks pay nobody:", *found[:LISTED], *more]) if found else ""
