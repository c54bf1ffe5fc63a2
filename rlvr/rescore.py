"""Judge the samples of an evaluation again, without sampling: by a verifier that was mended, or with other settings.

The old run stays as it is. Each answer is put to the verifier as it was recorded; answers that never came stay failed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from typing import Any

from rich.console import Console

from rlvr.contracts import Environment
from rlvr.episode import End
from rlvr.errors import ConfigError
from rlvr.evaluate import Report, report_on, verifier_label
from rlvr.mdp import judged
from rlvr.progress import Work
from rlvr.registry import from_config
from rlvr.samples import Key, Plan, SampleFile, plan_of, rows_in
from rlvr.suite import with_settings
from rlvr.task import Fault, Verdict

AT_ONCE, DEADLINE_S = 256, 600.0
"""How many answers are put to the judges at a time, and how long one may take."""


def rescore(
    run: Path, *, out: Path | None = None, settings: Mapping[str, Any] | None = None, select: str = "", console: Console | None = None
) -> Report:
    """Judge every sample of `run` again and write a new run; by default beside it, as `RUN-rescored`."""
    old, out = plan_of(run), out or run.with_name(f"{run.name}-rescored")
    if out.resolve() == run.resolve():
        raise ConfigError(f"--out is {run} itself, and nothing is ever overwritten; choose another --out")
    items = with_settings(list(old.envs), settings or {})
    with ExitStack() as stack:
        environments: dict[str, Environment] = {item.name: stack.enter_context(from_config("env", item.env)) for item in items}
        labels = {name: verifier_label(environment.verifier) for name, environment in environments.items()}
        plan = old.model_copy(update={"envs": items, "verifiers": labels, "rescored": run.name})
        file = stack.enter_context(SampleFile.open(out, plan))
        last = {_key(row): number for number, row in enumerate(rows_in(run))}
        todo = (row for number, row in enumerate(rows_in(run)) if last[_key(row)] == number and _key(row) not in file.samples)
        pool = stack.enter_context(ThreadPoolExecutor(8, thread_name_prefix="verify"))
        had = len(file.samples)
        with Work(console or Console(quiet=True), "judged", len(last), had, patience_s=5.0) as work:
            while rows := list(islice(todo, AT_ONCE)):
                for row in _again(rows, plan, environments, pool):
                    file.append(row)
                    work.advance({})
        return report_on(plan, file, environments, out, select=select, sampled=len(file.samples) - had)


def _again(
    rows: list[dict[str, Any]], plan: Plan, environments: Mapping[str, Environment], pool: ThreadPoolExecutor
) -> Iterator[dict[str, Any]]:
    splits = {item.name: item.split for item in plan.envs}
    futures = [
        None if row["finish"] == End.FAILED.value else pool.submit(_judge, environments[row["env"]], splits[row["env"]], row)
        for row in rows
    ]
    for row, future in zip(rows, futures, strict=True):
        if future is None:
            yield row
            continue
        try:
            verdict = future.result(timeout=DEADLINE_S)
        except FutureTimeout:
            verdict = Verdict(None, f"the verifier gave no verdict within {DEADLINE_S:g} s", fault=Fault.INFRA)
        scored = verdict.score is not None
        yield row | {
            "reward": verdict.score or 0.0,
            "end": row["finish"] if scored else End.FAILED.value,
            "verdict": verdict.record(),
            "error": "" if scored else verdict.reason,
        }


def _judge(environment: Environment, split: str, row: Mapping[str, Any]) -> Verdict:
    task = environment.task(split, row["index"])
    if [dict(message) for message in task.prompt] != row["prompt"]:
        raise ConfigError(f"task {row['task_id']!r} asks something else now than when it was sampled; judge with the settings of then")
    return judged(environment.verifier, task, lambda: str(row["text"]))


def _key(row: Mapping[str, Any]) -> Key:
    return row["env"], row["index"], row["sample"]
