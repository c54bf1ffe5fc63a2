"""Find the gold answers of an environment that cannot be verified, by reading every task once before any training."""

from __future__ import annotations

from rlvr.contracts import Environment
from rlvr.task import Fault

READ = 20_000
"""Maximum number of tasks of each split that are read."""
LISTED = 50


def ungradeable(env: Environment) -> str:
    """Return one line for each task whose gold answer gets no score; "" if every gold can be verified.

    Only for a verifier with a `lint` method, such as `symbolic`, which reports a faulty task whatever the answer is.

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
    return "\n    ".join([f"{len(found)} tasks cannot be scored:", *found[:LISTED], *more]) if found else ""
