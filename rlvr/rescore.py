"""Judge the samples of an evaluation again, without sampling: by a verifier that was mended, or with other settings.

The old run stays as it is. Each answer is put to the verifier as it was recorded, beside the reference as it is now; answers that
never came stay failed. Called again, it judges what could not be judged, and what was sampled or corrected since.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import ExitStack
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from rich.console import Console

from rlvr.contracts import Environment
from rlvr.episode import End
from rlvr.errors import ConfigError, NotFound
from rlvr.evaluate import Report, report_on, verifier_label
from rlvr.judges import Judges
from rlvr.mdp import judged
from rlvr.progress import Work
from rlvr.registry import from_config
from rlvr.samples import ROWS, Key, Plan, SampleFile, plan_of, question_of, rows_in
from rlvr.suite import with_settings
from rlvr.task import Fault, Task, Verdict

AT_ONCE, DEADLINE_S = 256, 600.0
"""How many answers are put to the judges at a time, and how long one may take."""


def rescore(
    run: Path, *, out: Path | None = None, settings: Mapping[str, Any] | None = None, select: str = "", console: Console | None = None
) -> Report:
    """Judge every sample of `run` again and write a new run; by default beside it, as `RUN-rescored`."""
    run = run.resolve()  # so that it has a name
    old, out = plan_of(run), out or run.with_name(f"{run.name}-rescored")
    if not (run / ROWS).is_file() or next(rows_in(run), None) is None:
        raise NotFound(f"{run} holds no sample yet, so there is nothing to judge; let `rlvr eval` sample first")
    if out.resolve() == run:
        raise ConfigError(f"--out is {run} itself, and nothing is ever overwritten; choose another --out")
    items = with_settings(list(old.envs), settings or {})
    with ExitStack() as stack:
        environments: dict[str, Environment] = {item.name: stack.enter_context(from_config("env", item.env)) for item in items}
        labels = {name: verifier_label(environment.verifier) for name, environment in environments.items()}
        plan = old.model_copy(update={"envs": items, "verifiers": labels, "rescored": run.name})
        file = stack.enter_context(SampleFile.open(out, plan))
        # which row of a sample is to be judged: its last one, or none where that has its verdict already
        last = {_key(row): None if _done(row, plan, environments, file) else number for number, row in enumerate(rows_in(run))}
        todo = (row for number, row in enumerate(rows_in(run)) if last.get(_key(row)) == number)  # the run may have grown meanwhile
        had = list(last.values()).count(None)
        stack.callback((judges := Judges(8)).close)
        if had < len(last):
            file.outdate()
        with Work(console or Console(quiet=True), "judged", len(last), had, patience_s=5.0) as work:
            while rows := list(islice(todo, AT_ONCE)):
                for row in _again(rows, plan, environments, judges):
                    file.append(row)
                    work.advance({})
        return report_on(plan, file, environments, out, select=select, sampled=len(last) - had)


def _done(row: Mapping[str, Any], plan: Plan, environments: Mapping[str, Environment], file: SampleFile) -> bool:
    """Whether this very answer has a verdict already, beside the reference as it is now."""
    sample = file.samples.get(_key(row))
    if sample is None or (sample.text, sample.finish) != (row["text"], row["finish"]):
        return False
    if sample.finish == End.FAILED.value:
        return True
    return sample.score is not None and sample.question == question_of(_task(row, plan, environments))


def _again(rows: list[dict[str, Any]], plan: Plan, environments: Mapping[str, Environment], judges: Judges) -> Iterator[dict[str, Any]]:
    """The rows as they are now: with the present reference, and its verdict."""
    tasks = [_task(row, plan, environments) for row in rows]
    futures = [
        None
        if row["finish"] == End.FAILED.value
        else judges.submit(judged, environments[row["env"]].verifier, task, partial(str, row["text"]))
        for row, task in zip(rows, tasks, strict=True)
    ]
    for row, task, future in zip(rows, tasks, futures, strict=True):
        if future is None:
            yield row | {"reference": task.reference}
            continue
        try:
            verdict = future.result(timeout=DEADLINE_S)
        except FutureTimeout:
            verdict = Verdict(None, f"the verifier gave no verdict within {DEADLINE_S:g} s", fault=Fault.INFRA)
        yield _judged_anew(row, task, verdict)


def _judged_anew(row: Mapping[str, Any], task: Task, verdict: Verdict) -> dict[str, Any]:
    scored, reward = verdict.score is not None, verdict.score or 0.0
    kept = dict(row)
    if not math.isclose(math.fsum(row.get("rewards", ())), reward, abs_tol=1e-6):
        kept.pop("rewards", None)  # without them the whole of it is paid at the end
    return kept | {
        "reference": task.reference,
        "reward": reward,
        "end": row["finish"] if scored else End.FAILED.value,
        "verdict": verdict.record(),
        "error": "" if scored else verdict.reason,
    }


def _task(row: Mapping[str, Any], plan: Plan, environments: Mapping[str, Environment]) -> Task:
    split = next(item.split for item in plan.envs if item.name == row["env"])
    size = environments[row["env"]].size(split)
    if size is not None and row["index"] >= size:
        raise ConfigError(f"task {row['task_id']!r} is there no more: {row['env']} has {size} now; restore the data of then")
    task = environments[row["env"]].task(split, row["index"])
    if [dict(message) for message in task.prompt] != row["prompt"]:
        raise ConfigError(f"task {row['task_id']!r} asks something else now than when it was sampled; judge with the settings of then")
    return task


def _key(row: Mapping[str, Any]) -> Key:
    return row["env"], row["index"], row["sample"]
