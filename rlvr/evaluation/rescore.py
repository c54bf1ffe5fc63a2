"""Rescore the samples of an evaluation, without sampling: with a corrected verifier, or with other settings.

The old run is not changed. Each recorded answer is verified against the current reference; failed samples stay failed. Step rewards are
recomputed too. A second call verifies samples without a score, and samples or references that are new since.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import ExitStack
from dataclasses import replace
from functools import cache, partial
from itertools import islice
from pathlib import Path
from threading import Lock
from typing import Any

from rich.console import Console

from rlvr.contracts import Environment, Tokenizer
from rlvr.episode import End
from rlvr.errors import ConfigError, NotFound
from rlvr.evaluation.evaluate import Report, report_on, verifier_label
from rlvr.evaluation.plan import Plan
from rlvr.evaluation.samples import ROWS, Key, SampleFile, plan_of, question_of, rows_in
from rlvr.evaluation.suite import with_settings
from rlvr.mdp.judges import Judges, late
from rlvr.mdp.rules import TokenMDP
from rlvr.mdp.sessions import judged, judged_whole, recorded_ending
from rlvr.mdp.state import State, last_acted
from rlvr.mdp.transcript import messages_of, tokenizer_of
from rlvr.plugins.registry import from_config
from rlvr.runs.progress import Work
from rlvr.task import Task, Verdict
from rlvr.turns import Turn

AT_ONCE, DEADLINE_S = 256, 600.0
"""Number of answers that are verified at a time, and timeout of one verification."""
Reader = Callable[[], Tokenizer | None]
"""Returns the policy's tokenizer, if it is available."""
UNKNOWN = "the step rewards are not known: they need the policy's tokenizer, which is not available"


def rescore(
    run: str | Path,
    *,
    out: str | Path | None = None,
    settings: Mapping[str, Any] | None = None,
    select: str = "",
    console: Console | None = None,
) -> Report:
    """Verify every sample of `run` again and write a new run; by default next to it, as `RUN-rescored`."""
    run = Path(run).resolve()  # an absolute path always has a name
    old, out = plan_of(run), Path(out or run.with_name(f"{run.name}-rescored"))
    if not (run / ROWS).is_file() or next(rows_in(run), None) is None:
        raise NotFound(f"{run} has no samples yet; run `rlvr eval` first")
    if out.resolve() == run:
        raise ConfigError(f"--out is {run} itself, which is not overwritten; choose another --out")
    items = with_settings(list(old.envs), settings or {})
    with ExitStack() as stack:
        environments: dict[str, Environment] = {item.name: stack.enter_context(from_config("env", item.env)) for item in items}
        labels = {name: verifier_label(environment.verifier) for name, environment in environments.items()}
        plan = old.model_copy(update={"envs": items, "verifiers": labels, "rescored": run.name})
        file = stack.enter_context(SampleFile.open(out, plan))
        # the row of each sample to verify: its last one, or None if it already has a verdict
        last = {_key(row): None if _done(row, plan, environments, file) else number for number, row in enumerate(rows_in(run))}
        todo = (row for number, row in enumerate(rows_in(run)) if last.get(_key(row)) == number)  # rows may have been added meanwhile
        had, unknown, tokenizer = list(last.values()).count(None), 0, _reader(plan)
        stack.callback((judges := Judges(8)).close)
        if had < len(last):
            file.outdate()
        with Work(console or Console(quiet=True), "judged", len(last), had, patience_s=5.0) as work:
            while rows := list(islice(todo, AT_ONCE)):
                for row in _again(rows, plan, environments, judges, tokenizer):
                    unknown += (row["verdict"] or {}).get("detail", {}).get("earned") == UNKNOWN
                    file.append(row)
                    work.advance({})
        if unknown and console:
            console.print(f"note: {UNKNOWN}, for {unknown} of {len(last) - had} answers", highlight=False, markup=False, soft_wrap=True)
        return report_on(plan, file, environments, out, select=select, sampled=len(last) - had)


def _done(row: Mapping[str, Any], plan: Plan, environments: Mapping[str, Environment], file: SampleFile) -> bool:
    """Whether this answer already has a verdict against the current reference."""
    sample = file.samples.get(_key(row))
    if sample is None or (sample.text, sample.finish) != (row["text"], row["finish"]):
        return False
    if sample.finish == End.FAILED.value:
        return True
    return sample.score is not None and sample.question == question_of(_task(row, plan, environments))


def _again(
    rows: list[dict[str, Any]], plan: Plan, environments: Mapping[str, Environment], judges: Judges, tokenizer: Reader
) -> Iterator[dict[str, Any]]:
    """Yield the rows with the current reference and its verdict."""
    tasks = [_task(row, plan, environments) for row in rows]
    futures = [
        None if row["finish"] == End.FAILED.value else judges.submit(_verdict, environments[row["env"]], task, row, tokenizer)
        for row, task in zip(rows, tasks, strict=True)
    ]
    for row, task, future in zip(rows, tasks, futures, strict=True):
        if future is None:
            yield row | {"reference": task.reference}
            continue
        try:
            verdict, rewards = future.result(timeout=DEADLINE_S)
        except FutureTimeout:
            verdict, rewards = late(DEADLINE_S), []
        yield _judged_anew(row, task, verdict, rewards)


def _verdict(environment: Environment, task: Task, row: Mapping[str, Any], tokenizer: Reader) -> tuple[Verdict, list[float]]:
    """Verify a recorded answer; also return the reward of each token if it is not all at the last token."""
    if (record := row.get("session")) is None:
        verdict = judged(environment.verifier, task, partial(str, row["text"]))
    else:  # the artifacts of the session are verified with the answer
        ending = recorded_ending(record)
        verdict = ending if isinstance(ending, Verdict) else judged_whole(environment.verifier, task, ending)
    if not verdict.scored or not (verdict.earned or type(environment).earned is not Environment.earned):
        return verdict, []
    spoken = tokenizer()
    if spoken is None or (messages := messages_of(row, spoken)) is None:
        return replace(verdict, earned=(), detail={**verdict.detail, "earned": UNKNOWN}), []
    said = [message["content"] for message in messages if message["role"] == "assistant"]
    mdp, state = (
        TokenMDP(environment, spoken),
        State(task, row["tokens"], [bool(own) for own in row["acted"]], [Turn(text) for text in said]),
    )
    verdict = mdp.with_earned(state, verdict)
    return verdict, mdp.rewards(state, verdict) if verdict.earned else []


def _reader(plan: Plan) -> Reader:
    """Make a function that loads the policy's tokenizer when it is first needed."""
    lock, load = Lock(), cache(partial(tokenizer_of, plan.policy_folder or plan.policy.partition(":")[2]))

    def tokenizer() -> Tokenizer | None:
        with lock:
            return load()

    return tokenizer


def _judged_anew(row: Mapping[str, Any], task: Task, verdict: Verdict, rewards: list[float]) -> dict[str, Any]:
    scored = verdict.score is not None
    new = {
        "reference": task.reference,
        "reward": verdict.score or 0.0,
        "end": row["finish"] if scored else End.FAILED.value,
        "verdict": verdict.record(),
        "error": "" if scored else verdict.reason,
    }
    if rewards and any(rewards[: last_acted(row["acted"])]):  # otherwise all of the reward is at the last token
        new["rewards"] = [round(reward, 6) for reward in rewards]
    return {key: value for key, value in row.items() if key != "rewards"} | new


def _task(row: Mapping[str, Any], plan: Plan, environments: Mapping[str, Environment]) -> Task:
    item = next(item for item in plan.envs if item.name == row["env"])
    size = environments[row["env"]].size(item.split)
    if size is not None and row["index"] >= size:
        raise ConfigError(f"task {row['task_id']!r} no longer exists: {row['env']} has only {size} tasks now; restore the earlier data")
    task = item.asks(environments[row["env"]].task(item.split, row["index"]))
    if [dict(message) for message in task.prompt] != row["prompt"]:
        raise ConfigError(f"task {row['task_id']!r} has changed since it was sampled; judge with the settings it was sampled with")
    return task


def _key(row: Mapping[str, Any]) -> Key:
    return row["env"], row["index"], row["sample"]
