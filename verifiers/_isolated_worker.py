"""The part of `isolated` that runs in a worker process (`worker_main.py`): it builds the verifier once, and judges answers."""

from __future__ import annotations

import json
from typing import Any

MAX_VERDICT_CHARS = 60_000

_built: dict[str, Any] = {}


def preload() -> None:
    """Import what building a verifier needs."""


def handle_request(request: dict[str, Any]) -> dict[str, Any]:
    """Judge one answer; what the verifier raises is told, and ends nothing."""
    from rlvr.errors import describe_exception
    from rlvr.registry.plugins import build_from_config
    from rlvr.task import Task

    key = json.dumps(request["verifier"], sort_keys=True)
    try:
        if key not in _built:
            _built[key] = build_from_config("verifier", request["verifier"])
        verdict = _built[key].verify(Task(**request["task"]), request["answer"]).to_dict()
    except (MemoryError, RecursionError):
        raise  # limits: `worker_main` tells these
    except BaseException as error:
        if type(error).__name__ == "OutOfTime":
            raise
        return {"raised": describe_exception(error)[:1000]}
    if len(json.dumps(verdict)) > MAX_VERDICT_CHARS:
        verdict = {key: value for key, value in verdict.items() if key != "detail"} | {"reason": verdict["reason"][:1000]}
    return {"verdict": verdict}
