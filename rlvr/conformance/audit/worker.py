"""The program of an audit's worker: load one verifier or reward function and verify one answer for each line of input.

It is a separate process, so that code that hangs, exits or prints affects one answer and not the whole audit.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import math
import os
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rlvr.contracts import Verifier
from rlvr.contracts.reward_function import QUESTION_ARGUMENTS, REFERENCE_ARGUMENTS, RewardSignature
from rlvr.errors import RlvrError
from rlvr.registry.plugins import build
from rlvr.task import Task, make_user_prompt

VERL_ARGUMENTS = {"data_source": "audit", "extra_info": None}
"""Arguments of verl's `compute_score` that a reward function may want."""
VerifyRow = Callable[[dict[str, Any]], dict[str, Any]]


def _load_verify_function(target: str, settings: Mapping[str, Any]) -> tuple[VerifyRow, str]:
    """Load a verifier by name, from `file.py:object` or from `module:object`, and return its verify function for rows, and its version."""
    found = _import_object(target) if ":" in target else None
    if found is not None and not isinstance(found, Verifier) and not (isinstance(found, type) and issubclass(found, Verifier)):
        return _wrap_reward_function(found), ""
    verifier = found if isinstance(found, Verifier) else build("verifier", target, **settings)

    def verify_row(row: dict[str, Any]) -> dict[str, Any]:
        verdict = verifier.verify(
            Task(make_user_prompt(row.get("question") or "?"), row["reference"], id="audit", meta=row.get("meta") or {}), row["answer"]
        )
        return {"score": verdict.score, "reason": verdict.reason[:200], "fault": verdict.fault.value}

    return verify_row, str(verifier.version)


def _import_object(target: str) -> Any:
    where, _, name = target.rpartition(":")
    if where.endswith(".py"):
        path = Path(where).expanduser().resolve()
        if not path.is_file():
            raise RlvrError(f"there is no file {where!r}")
        sys.path.insert(0, str(path.parent))
        spec = importlib.util.spec_from_file_location("_rlvr_plugin_audited", path)
        if spec is None or spec.loader is None:
            raise RlvrError(f"{where} cannot be imported")
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        spec.loader.exec_module(module)
    else:
        sys.path.insert(0, os.getcwd())
        module = importlib.import_module(where)
    if not hasattr(module, name):
        raise RlvrError(f"{where} has no {name!r}")
    return getattr(module, name)


def _wrap_reward_function(function: Any) -> VerifyRow:
    """Wrap a plain function, a TRL reward function, or verl's `compute_score`, recognized by the names of the arguments."""
    if not callable(function):
        raise RlvrError(f"it is a {type(function).__name__}, not a function")
    known = RewardSignature.read(function)
    names, answer, reference, batched = known.names, known.answer, known.reference, known.is_batched

    def verify_row(row: dict[str, Any]) -> dict[str, Any]:
        given: dict[str, Any] = {answer: row["answer"], **{name: value for name, value in VERL_ARGUMENTS.items() if name in names}}
        given |= {name: row.get("question") or "?" for name in QUESTION_ARGUMENTS if name in names}
        if reference:
            given[reference] = row["reference"]
        elif known.takes_columns:
            given |= {name: row["reference"] for name in REFERENCE_ARGUMENTS if name != answer}
        if batched:
            given = {name: value if name in VERL_ARGUMENTS else [value] for name, value in given.items()}
        return _parse_reward_result(function(**given))

    return verify_row


def _parse_reward_result(reward_result: Any) -> dict[str, Any]:
    """Parse the score in the return value of a reward function."""
    value: Any = reward_result[0] if isinstance(reward_result, list | tuple) and reward_result else reward_result
    if isinstance(value, Mapping):
        value = value.get("score", value.get("reward"))
    if value is None:
        return {"score": None, "reason": "it returned no score", "fault": "infra"}
    score = float(value)  # raises for a value that is not a number, which is reported
    if not math.isfinite(score):
        return {"score": None, "reason": f"it returned {score}", "fault": "infra"}
    return {"score": score, "reason": "", "fault": "none"}


def main() -> None:
    """Handle rows until the input ends. Output of the audited code goes to standard error."""
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    target, settings = sys.argv[1], json.loads(sys.argv[2])

    def say(reply: dict[str, Any]) -> None:
        out.write(json.dumps(reply) + "\n")
        out.flush()

    try:
        verify_row, version = _load_verify_function(target, settings)
    except BaseException as error:
        say({"broken": f"{type(error).__name__}: {error}"[:500]})
        return
    say({"ready": True, "version": version})
    for line in sys.stdin:
        row = json.loads(line)
        began = time.perf_counter()
        try:
            reply = verify_row(row)
        except (Exception, SystemExit, KeyboardInterrupt) as error:
            reply = {"score": None, "crash": f"{type(error).__name__}: {error}"[:300]}
        reply["seconds"] = time.perf_counter() - began
        say(reply)


if __name__ == "__main__":
    main()
