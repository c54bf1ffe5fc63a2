"""Audit a run: sample recorded groups again and compare them token by token. It detects faulty machines and changed tokens.

A replay compares the rest, such as the reward, which follows from the tokens.

The seed of a completion is a function of the seed of the run, the step, the number of its group and its number in the group. So a group
can be sampled again with the weights alone: here in this process, from the checkpoints that the run still has.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field
from itertools import groupby
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from accelerate import Accelerator

from rlvr.cluster.checks.comparison import ComparedFields, describe_first_difference, get_compared_fields
from rlvr.cluster.rollout_worker import RolloutWorker, WorkerSettings
from rlvr.cluster.weights.packing import WeightPacker
from rlvr.config.config import ModelConfig, RunConfig
from rlvr.contracts import SamplingParams
from rlvr.episode import Episode
from rlvr.errors import ConfigError, NotFound
from rlvr.models.device import get_trainer_precision
from rlvr.models.model_loading import load_model, load_position_limit
from rlvr.registry.plugins import build_from_config
from rlvr.rollout.episode_encoding import EncodedEpisodes, decode_episodes
from rlvr.rollout.rollout_request import RolloutRequest, derive_seed
from rlvr.runs.run_log import load_run_config, read_jsonl
from rlvr.training.checkpoint import iter_complete_checkpoints, parse_step
from rlvr.training.components import choose_sync_turns

AUXILIARY_FLAGS = ("greedy", "mismatched", "canary")
"""Flags of completions of a group that have other seeds or settings."""
REQUIRED_FIELDS = {
    "step": int,
    "group": str,
    "policy_version": int,
    "split": str,
    "index": int,
    "tokens": list,
    "action_mask": list,
    "logprobs": list,
}
"""The fields that a row needs to be sampled again, and their types."""
MAX_DETAILS = 20
Group = Sequence[Mapping[str, Any]]


@dataclass(slots=True)
class ResamplingReport:
    """The result of sampling recorded groups of a run again: how many groups and answers were compared, and how many answers differ.

    >>> ResamplingReport(groups=2, answers=16).to_dict()
    {'groups': 2, 'answers': 16, 'differing': 0, 'left_out': 0, 'details': []}
    """

    groups: int = 0
    answers: int = 0
    differing: int = 0
    left_out: int = 0
    """Recorded groups with members that are missing, failed, or were cut by a timeout; they cannot be sampled again."""
    details: list[str] = field(default_factory=list)
    """One line for each of the first differing completions."""

    def to_dict(self) -> dict[str, Any]:
        """Return the report as JSON values."""
        return asdict(self)


def audit_recorded_groups(run: str | Path, *, num_groups: int = 8) -> ResamplingReport:
    """Sample some recorded groups of a run again, and compare the completions.

    Args:
        run: the run folder; the run may still be going on.
        num_groups: how many groups; they are drawn at random, with a fixed seed, from those whose weights are in a checkpoint.
    """
    if num_groups < 1:
        raise ConfigError(f"num_groups is {num_groups}; an audit compares at least 1")
    run, report = Path(run), ResamplingReport()
    config, places = load_run_config(run), {parse_step(place): place for place in iter_complete_checkpoints(run)}
    if config.rollout.partial_rollout_tokens is not None:
        raise ConfigError("--audit needs completions of one version of the weights, and rollout.partial_rollout_tokens mixes versions")
    known = [group for group in _iter_recorded_groups(run, config, report) if group[0]["policy_version"] in places]
    if not known:
        found = (", ".join(map(str, sorted(places))) or "none") + (f"; {report.left_out} groups are incomplete" if report.left_out else "")
        raise NotFound(
            f"{run} has no recorded group whose weights are in a checkpoint (there are those of steps: {found}); "
            "for an audit, save more often (log.save_every) and keep the checkpoints (log.save_total_limit)"
        )
    chosen = random.Random(0).sample(known, min(num_groups, len(known)))
    with closing(_build_local_worker(config)) as collector:
        for version, group in sorted(((group[0]["policy_version"], group) for group in chosen), key=lambda pair: pair[0]):
            if version != collector.version and collector.model is not None:
                model = load_model(ModelConfig(path=str(places[version]), dtype=config.model.dtype))
                collector.load_weights(
                    version,
                    [
                        WeightPacker("whole", collector.settings.precision, converts_vectors=collector.sampler.traits.runs_model).pack(
                            model.state_dict(keep_vars=True)
                        )
                    ],
                )
                del model
            collector.version = version
            compare_and_add_group(report, group, _resample_group(collector, config, group))
    return report


def _iter_recorded_groups(run: Path, config: RunConfig, report: ResamplingReport) -> Iterator[Group]:
    """Read the groups of the log, each in the order of its members. Groups that cannot be sampled again are counted and skipped."""
    log = run / "episodes.jsonl"
    rows = (
        _check_log_row(row, number, log)
        for number, row in enumerate(read_jsonl(log), 1)
        if not any(row.get(name) for name in AUXILIARY_FLAGS)
    )
    for _, found in groupby(rows, key=lambda row: (row["step"], row["group"])):
        group = list(found)
        alike = len({(row["policy_version"], row["index"]) for row in group}) == 1
        whole = all(row["tokens"] and row.get("truncated") != "time" for row in group)
        if len(group) == config.rollout.num_generations and alike and whole:
            yield group
        else:
            report.left_out += 1


def _check_log_row(row: Mapping[str, Any], line_number: int, log: Path) -> Mapping[str, Any]:
    """Check a row and return it; ConfigError if it was damaged."""
    for name, kind in REQUIRED_FIELDS.items():
        if not isinstance(row.get(name), kind):
            raise ConfigError(
                f"{log}, line {line_number} has {name} {row.get(name)!r:.40}, not {kind.__name__}; the record was damaged or changed"
            )
    if not re.fullmatch(r"\d+:\d+", row["group"]):
        raise ConfigError(f"{log}, line {line_number} has group {row['group']!r:.40}, not STEP:PLACE; the record was damaged or changed")
    if not all(isinstance(value, int | float) for name in ("tokens", "action_mask", "logprobs") for value in row[name]):
        raise ConfigError(
            f"{log}, line {line_number} has tokens, acted or logprobs that are not numbers; the record was damaged or changed"
        )
    return row


def _build_local_worker(config: RunConfig) -> RolloutWorker:
    """Build a rollout worker in this process, without verifier workers."""
    accelerator = Accelerator()
    plain = config.model_copy(update={"cluster": None})
    with closing(build_from_config("sampler", config.rollout.sampler)) as sampler:
        if sampler.traits.loads_weights and not sampler.traits.runs_model:
            raise ConfigError(f"--audit cannot sample by {config.rollout.sampler['name']!r}, which has its own processes")
        loads = sampler.traits.loads_weights
    like = SimpleNamespace(dtype=getattr(torch, config.model.dtype))
    precision = get_trainer_precision(like, accelerator.mixed_precision, accelerator.device)
    settings = WorkerSettings(
        precision, None, torch.get_num_threads(), uses_weights=loads, position_limit=load_position_limit(config.model)
    )
    made = RolloutWorker(plain, settings)
    if (sync_turns := choose_sync_turns(config, accelerator, made.rollout.mdp, made.sampler)) is not None:
        made.rollout.sync_turns = sync_turns
    return made


def _resample_group(worker: RolloutWorker, config: RunConfig, group: Group) -> list[Episode]:
    """Sample the completions of a recorded group again."""
    mdp, asked, first = worker.rollout.mdp, config.rollout, group[0]
    step, place = map(int, str(first["group"]).split(":"))
    task = mdp.environment.task(first["split"], first["index"])
    requests = [RolloutRequest(task, first["group"], derive_seed(config.seed, step - 1, place, member)) for member in range(len(group))]
    sampling = SamplingParams(asked.temperature, asked.top_p, asked.top_k, mdp.tokenizer.stop_ids)
    data, _ = worker.run_task(worker.version, requests, sampling, worker.version)
    [found] = decode_episodes(EncodedEpisodes.from_bytes(data))
    return found


def compare_and_add_group(report: ResamplingReport, recorded_group: Group, resampled_episodes: Sequence[Episode]) -> None:
    """Compare one recorded group with its new sampling, and add the result to the report."""
    report.groups += 1
    for member, (row, episode) in enumerate(zip(recorded_group, resampled_episodes, strict=True)):
        report.answers += 1
        before = ComparedFields(row["tokens"], list(map(bool, row["action_mask"])), row["logprobs"])
        if what := describe_first_difference(before, get_compared_fields(episode)):
            report.differing += 1
            if len(report.details) < MAX_DETAILS:
                report.details.append(
                    f"completion {member} of group {row['group']} (version {row['policy_version']} of the weights): {what}"
                )
