"""A whole run whose answers come from rollout_workers: the same files to the bit, also when rollout_workers are lost in the middle."""

from __future__ import annotations

import random
import shutil
import sys
import threading
from collections.abc import Mapping, Set
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from rlvr.cluster import ray_transport as actors
from rlvr.cluster.rollout_tasks import RolloutTask
from rlvr.cluster.rollout_worker import EvalWorkerSettings, RolloutCancelled, RolloutWorker, WorkerSettings
from rlvr.cluster.scheduler_commands import DispatchTask, LoadWeights
from rlvr.cluster.training import WeightBroadcaster, train
from rlvr.cluster.transport import Event, TaskEnded, WeightsLoaded, WorkerLost, WorkerStarted
from rlvr.cluster.weights.packing import WeightPacker, apply_updates
from rlvr.cluster.weights.weight_updates import WeightUpdate, WeightUpdateHistory
from rlvr.config.cluster import ClusterConfig
from rlvr.contracts import Sampler, SamplingParams
from rlvr.errors import ConfigError, MissingExtra, SamplerError
from rlvr.models.plain_weights import PlainWeights
from rlvr.rollout.episode_encoding import EncodedEpisodes, decode_episodes
from rlvr.rollout.rollout_request import RolloutRequest, derive_seed
from rlvr.runs.run_log import read_jsonl
from rlvr.samplers.hf import HFSampler
from rlvr.training.train import train as train_here
from tests.cluster.test_weights import carried, model, same, tensors_of
from tests.fixtures.tiny import MODEL, tiny_run

FACTS = WorkerSettings(precision="float32", sync_turns=False, threads=1)
CHANCE = random.Random(0)
PACKER = WeightPacker("whole", "float32")


class InThisProcess:
    """Real rollout_workers without a cluster. One in five is lost before it says what it did."""

    lost, deltas = 0, 0
    verifier_workers = None
    early = 0
    """How many units were begun while some of an earlier step were still being sampled."""

    def __init__(self, settings: ClusterConfig, config: Mapping[str, Any], facts: WorkerSettings | EvalWorkerSettings) -> None:
        self.config, self.facts = config, facts
        self.rollout_workers, self.weights, self.work = dict[str, RolloutWorker](), WeightUpdateHistory(), list[Any]()
        self.steps = dict[Any, int]()

    def start_worker(self, worker: str) -> None:
        self.rollout_workers[worker] = self.facts.build_worker(self.config)
        self.work.append(WorkerStarted(worker))

    def kill_worker(self, worker: str) -> None:
        if (gone := self.rollout_workers.pop(worker, None)) is not None:
            gone.close()
        self.work = [event for event in self.work if (event.worker if isinstance(event, WorkerStarted) else event.command.worker) != worker]

    def store_weights(self, version: int, update: WeightUpdate) -> None:
        self.weights.add(version, carried(update))

    def free_unneeded_weights(self, needed_versions: Set[int]) -> None:
        self.weights.free_unneeded_weights(needed_versions)

    def send_weight_update(self, command: LoadWeights) -> int:
        collector = self.rollout_workers[command.worker]
        parcels = self.weights.get_updates(command.version, collector.version if collector.version >= 0 else None)
        InThisProcess.deltas += parcels[0].is_delta
        collector.load_weights(command.version, parcels)
        self.work.append(WeightsLoaded(command))
        return sum(parcel.num_bytes for parcel in parcels)

    def start_task(self, command: DispatchTask, rollout_task: RolloutTask, sampling: SamplingParams, policy_version: int) -> None:
        if rollout_task[0].meta.get("split") == "train":
            self.steps[command.task_name] = int(rollout_task[0].group.split(":")[0])
            before = [self.steps.get(event.command.task_name, 99) for event in self.work if isinstance(event, TaskEnded)]
            InThisProcess.early += any(step < self.steps[command.task_name] for step in before)
        self.work.append(
            TaskEnded(command, *self.rollout_workers[command.worker].run_task(command.version, rollout_task, sampling, policy_version))
        )

    def cancel_task(self, command: DispatchTask) -> None:
        raise AssertionError("no backups were asked for")

    def get_worker_location_and_log(self, worker: str) -> dict[str, Any]:
        return {"host": "here", "pid": 1, "words": ["the last line"]}

    def poll(self, timeout_s: float) -> list[Event]:
        event = self.work.pop(CHANCE.randrange(len(self.work)))
        if isinstance(event, TaskEnded) and CHANCE.random() < 0.2:
            InThisProcess.lost += 1
            return [WorkerLost(event.command.worker, "killed", may_be_cause=False)]
        return [event]

    def close(self) -> None:
        for worker in list(self.rollout_workers):
            self.kill_worker(worker)


def files(folder: Path) -> list[bytes]:
    weights = (folder / "checkpoints" / "last" / "model.safetensors").resolve()
    return [path.read_bytes() for path in (folder / "episodes.jsonl", folder / "metrics.jsonl", weights)]


GUIDED = {"curriculum": {"meta_key": "carries", "candidates_per_task": 3}}


@pytest.mark.slow
@pytest.mark.parametrize(("ahead", "more", "early"), [(0, {}, False), (1, {}, True), (2, {}, True), (1, GUIDED, False)])
def test_a_run_is_the_same_with_rollout_workers_that_are_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ahead: int, more: dict[str, Any], early: bool
) -> None:
    """Batches overlap in the rollout_workers where none depends on the answers to the one before."""
    monkeypatch.setattr(actors, "RayTransport", InThisProcess)
    monkeypatch.setattr(InThisProcess, "lost", 0)
    monkeypatch.setattr(InThisProcess, "early", 0)
    settings = {
        "rollout": {"prompts_per_step": 4, "num_generations": 4, "max_staleness": ahead, "canary_fraction": 0.2, "max_rewarded_canaries": 99, **more},
        "train": {"steps": 4, "learning_rate": 1e-3}, "eval": {"tasks": 10, "every": 2}, "log": {"save_every": 3},
    }  # fmt: skip
    for rollout_workers in (0, 2):
        train(
            tiny_run(**settings, cluster={"rollout_workers": rollout_workers, "max_restarts_per_worker": 100}),
            out=tmp_path / str(rollout_workers),
        )
    assert InThisProcess.lost and files(tmp_path / "0") == files(tmp_path / "2")
    assert bool(InThisProcess.early) == early
    metrics, times, losses = (list(read_jsonl(tmp_path / "2" / f"{name}.jsonl")) for name in ("metrics", "timings", "rollout_workers"))
    assert not any(key.startswith("cluster/") for row in metrics for key in row)
    assert sum(row["cluster/workers_lost"] for row in times) <= len(losses) and all(
        0 < row["cluster/trainer_busy_fraction"] < 1 for row in times
    )
    shares = [row["cluster/sampling_fraction"] for row in times]  # 0 where all of a step was sampled during the one before
    assert all(0 <= share <= 1.001 for share in shares) and any(shares) and any(row["cluster/weights_bytes"] for row in times)
    assert {(row["event"], row["why"], *row["words"]) for row in losses} == {("lost", "killed", "the last line")}


@pytest.mark.slow
@pytest.mark.parametrize("ahead", [0, 1])
def test_partial_rollouts_are_the_same_with_rollout_workers_that_are_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ahead: int
) -> None:
    """What is there of an answer travels to whichever collector continues it, and half of the units are sampled twice and compared."""
    monkeypatch.setattr(actors, "RayTransport", InThisProcess)
    monkeypatch.setattr(InThisProcess, "lost", 0)
    parts = {"partial_rollout_tokens": 2, "max_new_tokens": 8, "max_staleness": ahead}
    settings = {
        "rollout": {"prompts_per_step": 8, "num_generations": 2, **parts},
        "train": {"steps": 5, "learning_rate": 1e-3}, "eval": {"tasks": 10, "every": 2}, "log": {"save_every": 1},
    }  # fmt: skip
    for name, cluster in {
        "here": {"rollout_workers": 0},
        "there": {"rollout_workers": 3, "max_restarts_per_worker": 100, "resample_fraction": 0.5},
    }.items():
        train(tiny_run(**settings, cluster=cluster), out=tmp_path / name)
    assert InThisProcess.lost and files(tmp_path / "here") == files(tmp_path / "there")
    assert max(len(row.get("versions", ())) for row in read_jsonl(tmp_path / "there" / "episodes.jsonl")) == 2
    times = list(read_jsonl(tmp_path / "there" / "timings.jsonl"))
    assert sum(row.get("cluster/audited_tasks", 0) for row in times) and not sum(row.get("cluster/differing_tasks", 0) for row in times)
    shutil.rmtree(tmp_path / "there" / "checkpoints" / "step-000005")
    train(tiny_run(**settings, cluster={"rollout_workers": 2, "max_restarts_per_worker": 100}), out=tmp_path / "there", resume=True)
    assert files(tmp_path / "here") == files(tmp_path / "there")


def test_what_cannot_be_sampled_in_parts_is_refused_before_a_collector_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def started(*given: Any) -> Any:
        raise AssertionError("rollout_workers were started")

    monkeypatch.setattr(actors, "RayTransport", started)
    rollout = {"prompts_per_step": 4, "num_generations": 4, "partial_rollout_tokens": 2}
    with pytest.raises(ConfigError, match=r"partial_rollout_tokens is 2.*; remax needs all answers of a step at its end"):
        train(tiny_run(algorithm={"name": "remax"}, rollout=rollout, cluster={}), out=tmp_path / "run")


@pytest.mark.slow
def test_a_run_that_samples_ahead_resumes_to_the_bit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(actors, "RayTransport", InThisProcess)
    settings = {
        "rollout": {"prompts_per_step": 4, "num_generations": 4, "max_staleness": 2},
        "train": {"steps": 5, "learning_rate": 1e-3}, "log": {"save_every": 2, "save_total_limit": None},
        "cluster": {"rollout_workers": 2, "max_restarts_per_worker": 100},
    }  # fmt: skip
    train(tiny_run(**settings), out=tmp_path / "whole")
    shutil.copytree(tmp_path / "whole", tmp_path / "cut", symlinks=True)
    shutil.rmtree(tmp_path / "cut" / "checkpoints" / "step-000005")
    shutil.rmtree(tmp_path / "cut" / "checkpoints" / "step-000004")
    train(tiny_run(**settings), out=tmp_path / "cut", resume=True)
    assert files(tmp_path / "whole") == files(tmp_path / "cut")


def test_weights_are_sent_once_but_those_of_a_warm_start_whenever_they_change() -> None:
    sent = list[WeightUpdate]()
    inner: Any = Sampler.__new__(HFSampler)
    sending = WeightBroadcaster(inner, SimpleNamespace(send_weights=sent.append), SimpleNamespace(pack=WeightUpdate))  # type: ignore[arg-type]
    weights: Any = SimpleNamespace(gather_on_main=dict)
    for version in (0, 0, 1, 1, 2):
        sending.update_weights(weights, version)
    assert len(sent) == 4


def test_sharded_weights_are_sent_by_the_main_process_and_no_process_builds_the_model() -> None:
    """A process that trains on shards has no room for the whole model; the main process has it in host memory while it is sent."""
    sent = list[WeightUpdate]()

    class Shards(PlainWeights):
        def gather_model(self) -> Any:
            raise AssertionError("a whole model was built")

        def gather_on_main(self) -> dict[str, Any]:
            return {name: tensor.clone() for name, tensor in self._model.state_dict().items()}

    trainer, other = model(dtype=torch.float32), model(1)
    here: Any = SimpleNamespace(send_weights=sent.append)
    inner: Any = Sampler.__new__(HFSampler)
    for driver in (here, None):  # of the main process, and of another one
        WeightBroadcaster(inner, driver, WeightPacker("whole", "bfloat16")).update_weights(Shards(trainer), 1)
    apply_updates(other, sent)
    assert same(other, trainer.to(torch.bfloat16))


@pytest.mark.slow
def test_a_run_is_the_same_where_only_changes_of_the_weights_are_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(actors, "RayTransport", InThisProcess)
    for rollout_workers in (0, 2):
        cluster = {"rollout_workers": rollout_workers, "max_restarts_per_worker": 100, "weight_transfer": "delta"}
        few: dict[str, Any] = {"eval": {"tasks": 0}, "rollout": {"prompts_per_step": 2, "num_generations": 4}, "sft_warmup": None}
        config = tiny_run(cluster=cluster, model={"config": MODEL, "dtype": "bfloat16"}, train={"steps": 3, "learning_rate": 1e-4}, **few)
        train(config, out=tmp_path / str(rollout_workers))
    assert InThisProcess.deltas and files(tmp_path / "0") == files(tmp_path / "2")


# ---- one collector ------------------------------------------------------------------------------------------------------


def collector() -> tuple[RolloutWorker, RolloutTask, SamplingParams]:
    made = RolloutWorker(tiny_run(), FACTS)
    mdp = made.rollout.mdp
    unit = [RolloutRequest(mdp.environment.task("train", 0), "1:0", derive_seed(member)) for member in range(4)]
    return made, unit, SamplingParams(stop_ids=mdp.tokenizer.stop_ids)


def test_a_collector_samples_with_the_weights_that_it_was_given_last() -> None:
    made, unit, sampling = collector()
    other = RolloutWorker(tiny_run(seed=5), FACTS)
    parcel = carried(PACKER.pack(tensors_of(other.model)))
    with pytest.raises(SamplerError, match="asked for version 3 of the weights, but this rollout worker has version -1"):
        made.run_task(3, unit, sampling, 0)
    for one in (made, other):
        one.load_weights(3, [parcel])
    assert made.run_task(3, unit, sampling, 9)[0] == other.run_task(3, unit, sampling, 9)[0]
    [[episode, *_]] = decode_episodes(EncodedEpisodes.from_bytes(made.run_task(3, unit, sampling, 9)[0]))
    assert episode.policy_version == 9 and episode.verdict is not None
    for one in (made, other):
        one.close()


@pytest.mark.parametrize("named", ["this", "the one before"])
def test_a_unit_is_cancelled_between_two_tokens_and_a_late_word_about_another_one_stops_nothing(named: str) -> None:
    made, unit, sampling = collector()
    made.load_weights(0, [PACKER.pack(tensors_of(made.model))])
    step, seen = made.sampler.stream_from_queue, list[int]()

    def slow(feed: Any, how: SamplingParams) -> Any:
        for one in step(feed, how):
            seen.append(1)
            if len(seen) == 1:
                thread = threading.Thread(target=made.cancel, args=[named])
                thread.start()
                thread.join(10)
            yield one

    setattr(made.sampler, "stream_from_queue", slow)  # noqa: B010 -- type checkers take an assignment for an override
    if named == "this":
        with pytest.raises(RolloutCancelled):
            made.run_task(0, unit, sampling, 0, "this")
        assert len(seen) == 1
    else:
        data, _ = made.run_task(0, unit, sampling, 0, "this")
        assert len(decode_episodes(EncodedEpisodes.from_bytes(data))[0]) == len(unit)
    made.close()


# ---- what is refused ----------------------------------------------------------------------------------------------------


def test_ray_that_is_not_installed_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtra, match=r"ray is not installed; `pip install .*ray.*`, or set cluster.rollout_workers to 0"):
        train(tiny_run(cluster={}), out=tmp_path / "run")


@pytest.mark.slow
def test_without_a_cluster_ray_is_never_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.delitem(sys.modules, "rlvr.cluster.ray_transport", raising=False)
    train(tiny_run(cluster={"rollout_workers": 0}, train={"steps": 1}), out=tmp_path / "run")
    assert "rlvr.cluster.ray_transport" not in sys.modules


def test_a_loop_that_does_not_know_clusters_says_so() -> None:
    with pytest.raises(ConfigError, match=r"cluster is set, which this trainer does not know; call rlvr.cluster.training.train"):
        train_here(tiny_run(cluster={}))


def test_nothing_is_sampled_from_data() -> None:
    with pytest.raises(ConfigError, match="cluster is set, but with `data` nothing is sampled"):
        tiny_run(cluster={}, data={})
