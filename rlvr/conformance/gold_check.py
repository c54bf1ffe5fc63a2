"""Find the gold answers of an environment that cannot be verified, by reading every task once before any training."""

from __future__ import annotations

from rlvr.contracts import Environment
from rlvr.task import Fault

MAX_TASKS_PER_SPLIT = 20_000
"""Maximum number of tasks of each split that are read."""
MAX_LISTED_TASKS = 50


def describe_ungradeable_golds(env: Environment) -> str:
    """Return one line for each task whose gold answer gets no score; "" if every gold can be verified.

    Only for a verifier with a `lint` method, such as `symbolic`, which reports a faulty task whatever the answer is.

    >>> import rlvr
    >>> describe_ungradeable_golds(rlvr.make_env("arithmetic"))
    ''
    """
    if not hasattr(env.verifier, "lint"):
        return ""
    found: list[str] = []
    for split in env.splits:
        size = env.num_tasks(split)
        for index in range(MAX_TASKS_PER_SPLIT if size is None else min(MAX_TASKS_PER_SPLIT, size)):
            task = env.task(split, index)
            verdict = env.verifier.verify(task, "")
            if verdict.fault is Fault.TASK:
                found.append(f"{task.id}: {verdict.reason}")
    more = [f"and {len(found) - MAX_LISTED_TASKS} more"] if len(found) > MAX_LISTED_TASKS else []
    return "\n    ".join([f"{len(found)} tasks cannot be scored:", *found[:MAX_LISTED_TASKS], *more]) if found else ""
