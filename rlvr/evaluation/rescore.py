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
from rlvr.contracts.plugin import is_default_implementation
from rlvr.episode import StopReason
from rlvr.errors import ConfigError, NotFound
from rlvr.evaluation.evaluate import format_verifier_label, make_report
from rlvr.evaluation.plan import EvalPlan
from rlvr.evaluation.report import EvalReport
from rlvr.evaluation.samples import PLAN_FILE, ROWS_FILE, Key, SampleStore, digest_prompt_and_reference, iter_rows, load_plan
from rlvr.evaluation.suite import apply_env_settings
from rlvr.mdp.answer_faults import verify_recorded_answer
from rlvr.mdp.state import ConversationState, find_last_policy_token
from rlvr.mdp.token_mdp import TokenMDP
from rlvr.mdp.transcript import decode_messages_after_prompt, load_tokenizer_or_none
from rlvr.mdp.verifier_executor import DaemonThreadExecutor, build_timeout_verdict
from rlvr.plugin_files import FILE_PLUGIN_PATTERN
from rlvr.registry.plugins import build_from_config, list_entries
from rlvr.runs.plugin_record import warn_about_plugin_changes
from rlvr.runs.progress import ProgressReporter
from rlvr.task import Task, Verdict
from rlvr.turns import Turn

MAX_PARALLEL_ROWS, VERIFY_TIMEOUT_S = 256, 600.0
"""Number of answers that are verified at a time, and timeout of one verification."""
TokenizerLoader = Callable[[], Tokenizer | None]
"""Returns the policy's tokenizer, if it is available."""
UNKNOWN_STEP_REWARDS = "the step rewards are not known: they need the policy's tokenizer, which is not available"


def rescore(
    run: str | Path,
    *,
    out: str | Path | None = None,
    settings: Mapping[str, Any] | None = None,
    select: str = "",
    console: Console | None = None,
) -> EvalReport:
    """Verify every sample of `run` again and write a new run; by default next to it, as `RUN-rescored`."""
    run = Path(run).resolve()  # an absolute path always has a name
    if (run / "config.yaml").is_file() and not (run / PLAN_FILE).is_file():
        raise NotFound(
            f"{run} is a training run, and not an evaluation; its answers are verified again in Python: "
            "rlvr.verify_many(verifier, list(rlvr.load_run(folder).episodes.text), references)"
        )
    old, out = load_plan(run), Path(out or run.with_name(f"{run.name}-rescored"))
    if not (run / ROWS_FILE).is_file() or next(iter_rows(run), None) is None:
        raise NotFound(f"{run} has no samples yet; run `rlvr eval` first")
    if out.resolve() == run:
        raise ConfigError(f"--out is {run} itself, which is not overwritten; choose another --out")
    warn_about_plugin_changes(run)
    _check_envs_can_be_built(old)
    items = apply_env_settings(list(old.envs), settings or {})
    with ExitStack() as stack:
        environments: dict[str, Environment] = {item.name: stack.enter_context(build_from_config("env", item.env)) for item in items}
        labels = {name: format_verifier_label(environment.verifier) for name, environment in environments.items()}
        plan = old.model_copy(update={"envs": items, "verifiers": labels, "rescored_from": run.name})
        file = stack.enter_context(SampleStore.open(out, plan, environments.values()))
        # the row of each sample to verify: its last one, or None if it already has a verdict
        last = {
            _get_row_key(row): None if _is_already_rescored(row, plan, environments, file) else number
            for number, row in enumerate(iter_rows(run))
        }
        todo = (
            row for number, row in enumerate(iter_rows(run)) if last.get(_get_row_key(row)) == number
        )  # rows may have been added meanwhile
        had, unknown, tokenizer = list(last.values()).count(None), 0, _make_tokenizer_loader(plan)
        stack.callback((judges := DaemonThreadExecutor(8)).close)
        if had < len(last):
            file.remove_report_and_extend_plan()
        with ProgressReporter(console or Console(quiet=True), "judged", len(last), had, initial_delay_s=5.0) as work:
            while rows := list(islice(todo, MAX_PARALLEL_ROWS)):
                for row in _rescore_rows(rows, plan, environments, judges, tokenizer):
                    unknown += (row["verdict"] or {}).get("detail", {}).get("step_rewards") == UNKNOWN_STEP_REWARDS
                    file.append(row)
                    work.advance({})
        if unknown and console:
            console.print(
                f"note: {UNKNOWN_STEP_REWARDS}, for {unknown} of {len(last) - had} answers", highlight=False, markup=False, soft_wrap=True
            )
        return make_report(plan, file, environments, out, select=select, num_new_samples=len(last) - had)


def _check_envs_can_be_built(plan: EvalPlan) -> None:
    """Raise ConfigError where an environment was given as an object, of which the plan has only the class."""
    known = {entry.name for entry in list_entries("env")}
    if wrong := [item for item in plan.envs if item.env["name"] not in known and not FILE_PLUGIN_PATTERN.fullmatch(str(item.env["name"]))]:
        raise ConfigError(
            f"{wrong[0].name} was evaluated from a Python object, so it cannot be built again to verify its answers; evaluate a file "
            f"or a registered environment, or verify the answers in Python: rlvr.verify_many(verifier, answers, references) with those of "
            f"rlvr.load_evaluation(folder).samples"
        )


def _is_already_rescored(row: Mapping[str, Any], plan: EvalPlan, environments: Mapping[str, Environment], file: SampleStore) -> bool:
    """Whether this answer already has a verdict against the current reference."""
    sample = file.samples.get(_get_row_key(row))
    if sample is None or (sample.text, sample.stop_reason) != (row["text"], row["finish"]):
        return False
    if sample.stop_reason == StopReason.FAILED.value:
        return True
    return sample.score is not None and sample.question_digest == digest_prompt_and_reference(_load_task(row, plan, environments))


def _rescore_rows(
    rows: list[dict[str, Any]],
    plan: EvalPlan,
    environments: Mapping[str, Environment],
    executor: DaemonThreadExecutor,
    load_tokenizer: TokenizerLoader,
) -> Iterator[dict[str, Any]]:
    """Yield the rows with the current reference and its verdict."""
    tasks = [_load_task(row, plan, environments) for row in rows]
    futures = [
        None
        if row["finish"] == StopReason.FAILED.value
        else executor.submit(_verify_row, environments[row["env"]], task, row, load_tokenizer)
        for row, task in zip(rows, tasks, strict=True)
    ]
    for row, task, future in zip(rows, tasks, futures, strict=True):
        if future is None:
            yield row | {"reference": task.reference}
            continue
        try:
            verdict, rewards = future.result(timeout=VERIFY_TIMEOUT_S)
        except FutureTimeout:
            verdict, rewards = build_timeout_verdict(VERIFY_TIMEOUT_S), []
        yield _build_rescored_row(row, task, verdict, rewards)


def _verify_row(
    environment: Environment, task: Task, row: Mapping[str, Any], load_tokenizer: TokenizerLoader
) -> tuple[Verdict, list[float]]:
    """Verify a recorded answer; also return the reward of each token if it is not all at the last token."""
    verdict = verify_recorded_answer(environment, task, str(row["text"]), row.get("session"))
    if not verdict.is_scored or not (verdict.step_rewards or not is_default_implementation(environment.step_rewards)):
        return verdict, []
    spoken = load_tokenizer()
    if spoken is None or (messages := decode_messages_after_prompt(row, spoken)) is None:
        return replace(verdict, step_rewards=(), detail={**verdict.detail, "step_rewards": UNKNOWN_STEP_REWARDS}), []
    said = [message["content"] for message in messages if message["role"] == "assistant"]
    mdp, state = (
        TokenMDP(environment, spoken),
        ConversationState(task, row["tokens"], [bool(own) for own in row["action_mask"]], [Turn(text) for text in said]),
    )
    verdict = mdp.add_step_rewards(state, verdict)
    return verdict, mdp.compute_token_rewards(state, verdict) if verdict.step_rewards else []


def _make_tokenizer_loader(plan: EvalPlan) -> TokenizerLoader:
    """Make a function that loads the policy's tokenizer when it is first needed."""
    lock, load = Lock(), cache(partial(load_tokenizer_or_none, plan.policy_folder or plan.policy.partition(":")[2]))

    def tokenizer() -> Tokenizer | None:
        with lock:
            return load()

    return tokenizer


def _build_rescored_row(row: Mapping[str, Any], task: Task, verdict: Verdict, rewards: list[float]) -> dict[str, Any]:
    scored = verdict.score is not None
    new = {
        "reference": task.reference,
        "reward": verdict.score,
        "stop_reason": row["finish"] if scored else StopReason.FAILED.value,
        "verdict": verdict.to_dict(),
        "error": "" if scored else verdict.reason,
    }
    if rewards and any(rewards[: find_last_policy_token(row["action_mask"])]):  # otherwise all of the reward is at the last token
        new["rewards"] = [round(reward, 6) for reward in rewards]
    return {key: value for key, value in row.items() if key != "rewards"} | new


def _load_task(row: Mapping[str, Any], plan: EvalPlan, environments: Mapping[str, Environment]) -> Task:
    item = next(item for item in plan.envs if item.name == row["env"])
    size = environments[row["env"]].num_tasks(item.split)
    if size is not None and row["index"] >= size:
        raise ConfigError(f"task {row['task_id']!r} no longer exists: {row['env']} has only {size} tasks now; restore the earlier data")
    task = item.apply_system_prompt(environments[row["env"]].task(item.split, row["index"]))
    if [dict(message) for message in task.prompt] != row["prompt"]:
        raise ConfigError(f"task {row['task_id']!r} has changed since it was sampled; judge with the settings it was sampled with")
    return task


def _get_row_key(row: Mapping[str, Any]) -> Key:
    return row["env"], row["index"], row["sample"]
