"""A whole run whose answers come from collectors: the same files to the bit, also when collectors are lost in the middle."""

from __future__ import annotations

import random
import sys
import threading
import zlib
from collections.abc import Mapping, Set
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator

from rlvr.config.cluster import ClusterConfig
from rlvr.config.config import check
from rlvr.contracts import Sampling
from rlvr.errors import CollectorsLost, ConfigError, MissingExtra, RlvrError, SamplerError
from rlvr.learn.banner import promised
from rlvr.learn.crew import assemble
from rlvr.learn.train import train as train_here
from rlvr.rollout.columns import Columns, from_columns
from rlvr.rollout.draws import Draw, seed_of
from rlvr.runs.runlog import rows_of
from rlvr.scale import actors
from rlvr.scale.collector import Cancelled, Collector, Facts, put_into, weights_of
from rlvr.scale.orders import Assign, Load
from rlvr.scale.training import train
from rlvr.scale.transport import Ended, Event, Loaded, Lost, Started
from rlvr.scale.units import Unit
from tests.fixtures.tiny import tiny_run

FACTS = Facts(precision="float32", lockstep=False, threads=1)
CHANCE = random.Random(0)


class InThisProcess:
    """Real collectors without a cluster. One in five is lost before it says what it did."""

    lost = 0

    def __init__(self, settings: ClusterConfig, config: Mapping[str, Any], facts: Facts) -> None:
        self.config, self.facts = check(config, "the run"), facts
        self.collectors, self.weights, self.work = dict[str, Collector](), dict[int, bytes](), list[Any]()

    def start(self, worker: str) -> None:
        self.collectors[worker] = Collector(self.config, self.facts)
        self.work.append(Started(worker))

    def stop(self, worker: str) -> None:
        if (gone := self.collectors.pop(worker, None)) is not None:
            gone.close()
        self.work = [event for event in self.work if (event.worker if isinstance(event, Started) else event.order.worker) != worker]

    def hold(self, version: int, data: bytes) -> None:
        self.weights[version] = data

    def keep(self, versions: Set[int]) -> None:
        self.weights = {version: self.weights[version] for version in versions}

    def load(self, order: Load) -> None:
        data = self.weights[order.version]
        self.collectors[order.worker].load(order.version, data, zlib.crc32(data))
        self.work.append(Loaded(order))

    def sample(self, order: Assign, unit: Unit, sampling: Sampling, label: int) -> None:
        self.work.append(Ended(order, *self.collectors[order.worker].collect(order.version, unit, sampling, label)))

    def cancel(self, order: Assign) -> None:
        raise AssertionError("no backups were asked for")

    def about(self, worker: str) -> dict[str, Any]:
        return {"host": "here", "pid": 1, "words": ["the last line"]}

    def poll(self, timeout_s: float) -> list[Event]:
        event = self.work.pop(CHANCE.randrange(len(self.work)))
        if isinstance(event, Ended) and CHANCE.random() < 0.2:
            InThisProcess.lost += 1
            return [Lost(event.order.worker, "killed", blame=False)]
        return [event]

    def close(self) -> None:
        for worker in list(self.collectors):
            self.stop(worker)


def files(folder: Path) -> list[bytes]:
    weights = (folder / "checkpoints" / "last" / "model.safetensors").resolve()
    return [path.read_bytes() for path in (folder / "episodes.jsonl", folder / "metrics.jsonl", weights)]


@pytest.mark.parametrize("ahead", [0, 1])
def test_a_run_is_the_same_with_collectors_that_are_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ahead: int) -> None:
    monkeypatch.setattr(actors, "Actors", InThisProcess)
    rollout = {"prompts_per_step": 4, "num_generations": 4, "max_staleness": ahead}
    for collectors in (0, 2):
        config = tiny_run(rollout=rollout, cluster={"collectors": collectors, "restarts": 100}, train={"steps": 3, "learning_rate": 1e-3})
        train(config, out=tmp_path / str(collectors))
    assert InThisProcess.lost and files(tmp_path / "0") == files(tmp_path / "2")
    metrics, times, losses = (list(rows_of(tmp_path / "2" / f"{name}.jsonl")) for name in ("metrics", "timings", "collectors"))
    assert not any(key.startswith("cluster/") for row in metrics for key in row)
    assert sum(row["cluster/lost"] for row in times) <= len(losses) and all(0 < row["cluster/trainer"] < 1 for row in times)
    assert all(0 < row["cluster/sampling"] <= 1.001 and row["cluster/weights_bytes"] > 0 for row in times)
    assert {(row["event"], row["why"], *row["words"]) for row in losses} == {("lost", "killed", "the last line")}


class Mortal(InThisProcess):
    """Collectors that are all lost for good in the step after the first checkpoint, in so many of the first runs."""

    runs, bad = 0, 0

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        Mortal.runs += 1

    def poll(self, timeout_s: float) -> list[Event]:
        event = self.work.pop()
        if isinstance(event, Ended) and event.order.version + Mortal.runs > 1 and Mortal.runs <= Mortal.bad:
            return [Lost(event.order.worker, "killed", blame=False)]
        return [event]


@pytest.mark.parametrize(("bad", "resumes"), [(2, 2), (3, 2), (1, 0)])
def test_a_run_that_loses_all_collectors_resumes_as_often_as_it_may(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], bad: int, resumes: int
) -> None:
    monkeypatch.setattr(actors, "Actors", Mortal)
    monkeypatch.setattr(Mortal, "bad", bad)
    monkeypatch.setattr(Mortal, "runs", 0)
    slept = list[float]()
    monkeypatch.setattr("rlvr.scale.training.time.sleep", slept.append)
    cluster = {"collectors": 1, "restarts": 0, "resumes": resumes}
    config = tiny_run(cluster=cluster, warmstart=None, eval={"tasks": 0}, train={"steps": 3, "learning_rate": 1e-3})
    if bad > resumes:
        with pytest.raises(CollectorsLost, match=r"no collector is left: .*continue with --resume"):
            train(config, out=tmp_path / "run")
    else:
        train(config, out=tmp_path / "run")
        train(tiny_run(**config.model_dump() | {"cluster": {"collectors": 0}}), out=tmp_path / "alone")
        assert files(tmp_path / "run") == files(tmp_path / "alone")
    assert slept == [10.0, 20.0][:resumes] and Mortal.runs == min(bad, resumes) + 1
    told = [line for line in capsys.readouterr().err.splitlines() if "is resumed in" in line]
    assert len(told) == resumes and all("no collector is left" in line for line in told)
    events = [row["event"] for row in rows_of(tmp_path / "run" / "collectors.jsonl")]
    assert events == (["lost", "resumed"] * bad if bad <= resumes else ["lost", "resumed"] * resumes + ["lost"])


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, ["same schedule: always", "same tokens: yes, where collectors", "same gradients: yes, from the same tokens, with 1 learning"]),
        ({"train": {"steps": 1, "deterministic": False}}, ["same schedule: always", "same tokens: in distribution only", "up to rounding"]),
    ],
)
def test_what_is_exact_is_told_in_three_sentences(monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], words: list[str]) -> None:
    if changes:
        monkeypatch.setattr("rlvr.learn.banner.is_deterministic", lambda config, device: False)
    accelerator = Accelerator(cpu=True)
    with ExitStack() as stack:
        crew = assemble(tiny_run(cluster={"collectors": 0}, **changes), accelerator, stack)
        told = promised(crew)
        assert len(told) == 3 and all(word in line for word, line in zip(words, told, strict=True))
        assert promised(assemble(tiny_run(), accelerator, stack)) == []


# ---- one collector ------------------------------------------------------------------------------------------------------


def collector() -> tuple[Collector, Unit, Sampling]:
    made = Collector(tiny_run(), FACTS)
    mdp = made.rollout.mdp
    unit = [Draw(mdp.environment.task("train", 0), "1:0", seed_of(member)) for member in range(4)]
    return made, unit, Sampling(stop_ids=mdp.tokenizer.stop_ids)


def test_a_collector_samples_with_the_weights_that_it_was_given_last() -> None:
    made, unit, sampling = collector()
    other = Collector(tiny_run(seed=5), FACTS)
    data = weights_of(other.model)
    with pytest.raises(SamplerError, match="asked for answers of version 3 of the weights, but this collector has version -1"):
        made.collect(3, unit, sampling, 0)
    for one in (made, other):
        one.load(3, data, zlib.crc32(data))
    assert made.collect(3, unit, sampling, 9)[0] == other.collect(3, unit, sampling, 9)[0]
    [[episode, *_]] = from_columns(Columns.from_bytes(made.collect(3, unit, sampling, 9)[0]))
    assert episode.policy_version == 9 and episode.verdict is not None
    for one in (made, other):
        one.close()


def test_weights_that_changed_on_the_way_or_are_of_another_model_are_refused() -> None:
    made, *_ = collector()
    data = weights_of(made.model)
    with pytest.raises(RlvrError, match="version 1 of the weights has another checksum"):
        made.load(1, data[:-1] + b"\x00\x01"[:1], zlib.crc32(data) ^ 1)
    other = torch.nn.Linear(3, 3)
    with pytest.raises(RlvrError, match=r"another model: \d+ names differ, such as "):
        put_into(other, data)
    made.close()


def test_a_unit_is_cancelled_between_two_tokens() -> None:
    made, unit, sampling = collector()
    data = weights_of(made.model)
    made.load(0, data, zlib.crc32(data))
    step, seen = made.sampler.serve, list[int]()

    def slow(feed: Any, how: Sampling) -> Any:
        for one in step(feed, how):
            seen.append(1)
            if len(seen) == 1:
                thread = threading.Thread(target=made.cancel)
                thread.start()
                thread.join(10)
            yield one

    setattr(made.sampler, "serve", slow)  # noqa: B010 -- type checkers take an assignment for an override
    with pytest.raises(Cancelled):
        made.collect(0, unit, sampling, 0)
    assert len(seen) == 1
    made.close()


# ---- what is refused ----------------------------------------------------------------------------------------------------


def test_ray_that_is_not_installed_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtra, match=r"ray is not installed; `pip install .*ray.*`, or set cluster.collectors to 0"):
        train(tiny_run(cluster={}), out=tmp_path / "run")


def test_without_a_cluster_ray_is_never_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.delitem(sys.modules, "rlvr.scale.actors", raising=False)
    train(tiny_run(cluster={"collectors": 0}, train={"steps": 1}), out=tmp_path / "run")
    assert "rlvr.scale.actors" not in sys.modules


def test_a_loop_that_does_not_know_clusters_says_so() -> None:
    with pytest.raises(ConfigError, match=r"cluster is set, which this function does not know; call rlvr.scale.training.train"):
        train_here(tiny_run(cluster={}))


def test_nothing_is_sampled_from_data() -> None:
    with pytest.raises(ConfigError, match="cluster is set, but with `data` nothing is sampled"):
        tiny_run(cluster={}, data={})
