"""The part of `isolated` that runs in a worker process (`worker_main.py`): it builds the verifier once, and judges answers."""

from __future__ import annotations

import json
import os
from typing import Any

MAX_VERDICT_CHARS = 60_000

CONFIG_VARIABLE = "RLVR_ISOLATED_VERIFIER"

_verifier: Any = None


def preload() -> None:
    """Build the verifier, so that no answer pays for its imports."""
    global _verifier
    from rlvr.registry.plugins import build_from_config

    _verifier = build_from_config("verifier", json.loads(os.environ[CONFIG_VARIABLE]))


def handle_request(request: dict[str, Any]) -> dict[str, Any]:
    """Verify the answer of a request; an exception of the verifier is part of the reply, and ends nothing."""
    from rlvr.errors import describe_exception
    from rlvr.task import Task

    try:
        verdict = _verifier.verify(Task(**request["task"]), request["answer"]).to_dict()
    except (MemoryError, RecursionError):
        raise  # limits: `worker_main` tells these
    except BaseException as error:
        if type(error).__name__ == "OutOfTime":
            raise
        return {"raised": describe_exception(error)[:1000], "raised_at": _locate(error)[:1000]}
    if len(json.dumps(verdict)) > MAX_VERDICT_CHARS:
        verdict = {key: value for key, value in verdict.items() if key != "detail"} | {"reason": verdict["reason"][:1000]}
    return {"verdict": verdict}


def _locate(error: BaseException) -> str:
    """Return the type of an exception and the line that raised it."""
    traceback = error.__traceback__
    while traceback is not None and traceback.tb_next is not None:
        traceback = traceback.tb_next
    line = "" if traceback is None else f"{traceback.tb_frame.f_code.co_filename}:{traceback.tb_lineno}"
    return f"{type(error).__module__}.{type(error).__qualname__} {line}"
