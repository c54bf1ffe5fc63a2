"""Compare an environment between processes: its tasks, and its Gymnasium vector environments in one process and in several."""

from __future__ import annotations

import hashlib
import json
from functools import partial
from typing import Any

import numpy as np
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv

from rlvr.conformance.subprocess_call import TIMEOUT_S
from rlvr.mdp.env import make_token_env
from rlvr.registry.plugins import build
from rlvr.task import Task

NUM_COMPARED_TASKS = 8
"""Number of tasks of each split that are compared."""


def digest_tasks_and_compare_vector_envs(name: str, settings: dict[str, Any]) -> dict[str, str]:
    """Compute the task digest and compare the vector environments in one call, for use in a subprocess."""
    found = {"digest": digest_tasks(name, settings)}
    try:
        return found | {"vectors": _compare_vector_envs(name, settings)}
    except Exception as error:  # the digest is still useful
        return found | {"vectors": f"{type(error).__name__}: {error}"}


def digest_tasks(name: str, settings: dict[str, Any]) -> str:
    """Compute a digest of the first tasks, equal in every process if tasks depend only on split and index.

    >>> digest_tasks("arithmetic", {}) == digest_tasks("arithmetic", {})
    True
    """
    made = hashlib.sha256()
    with build("env", name, **settings) as env:
        for split in env.splits:
            size = env.num_tasks(split)
            for index in range(NUM_COMPARED_TASKS if size is None else min(NUM_COMPARED_TASKS, size)):
                made.update(task_to_text(env.task(split, index)).encode())
    return made.hexdigest()


def _compare_vector_envs(name: str, settings: dict[str, Any]) -> str:
    """Describe the difference between SyncVectorEnv (one process) and AsyncVectorEnv (several) over a few steps; '' if there is none."""
    makers = [partial(make_token_env, name=name, tokenizer="bytes", obs="ids", render_mode="ansi", **settings)] * 2
    together = SyncVectorEnv(makers)
    apart = AsyncVectorEnv(makers, context="spawn")
    try:
        a = together.reset(seed=[5, 6])
        apart.reset_async(seed=[5, 6])
        b = apart.reset_wait(timeout=TIMEOUT_S)
        if not np.array_equal(a[0], b[0]):
            return "after reset(seed=[5, 6]) their observations differ"
        together.action_space.seed(0)
        for step in range(6):
            actions = together.action_space.sample()
            x = together.step(actions)
            apart.step_async(actions)
            y = apart.step_wait(timeout=TIMEOUT_S)
            if not all(np.array_equal(p, q) for p, q in zip(x[:4], y[:4], strict=True)):
                return f"at step {step} they differ"
    finally:
        together.close()
        apart.close(terminate=True)
    return ""


def task_to_text(task: Task) -> str:
    """Convert a task to one text for comparison."""
    return json.dumps([task.id, task.prompt, task.reference, dict(task.meta)], default=str, sort_keys=True)
