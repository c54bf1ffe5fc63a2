"""Rollout workers on a real Ray cluster of two nodes, whose processes and nodes are killed and frozen: the episodes are those of one process.

Without torch where possible, so that an actor starts in a second. More of everything, at random moments: benchmarks/scale/equal.py.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import pytest

from rlvr.cli.commands import run_command
from rlvr.cluster import ray_transport as actors
from rlvr.cluster.checks.doctor import check_cluster_ready
from rlvr.cluster.driver import Driver
from rlvr.cluster.event_log import EventLog
from rlvr.cluster.ray_transport import RayTransport
from rlvr.cluster.rollout_tasks import split_into_tasks
from rlvr.cluster.rollout_worker import RolloutWorker, WorkerSettings
from rlvr.cluster.scheduler_commands import DispatchTask, LoadWeights
from rlvr.cluster.training import train
from rlvr.cluster.transport import Event, TaskEnded, WorkerLost
from rlvr.cluster.weights.weight_updates import TensorBucket, TensorSlice, WeightUpdate, compute_checksum
from rlvr.config.cluster import ClusterConfig
from rlvr.config.config import RunConfig
from rlvr.contracts import SamplingParams
from rlvr.episode import Episode, StopReason
from rlvr.errors import ConfigError, RlvrError
from rlvr.registry.plugins import PluginSpec
from rlvr.rollout.episode_encoding import EncodedEpisodes, decode_episodes
from rlvr.rollout.rollout_request import RolloutRequest, derive_seed
from rlvr.runs.run_log import read_jsonl
from rlvr.task import Fault
from tests.cluster.nodes import MARK, OBJECTS, Idle, Nodes, SlowToLoad, ended, running, two_nodes
from tests.fixtures.preloaded import Started, started_program
from tests.fixtures.tiny import tiny_run
from tests.fixtures.worlds import TOKENS

pytestmark = pytest.mark.slow  # all of them share one cluster

FACTS = WorkerSettings("float32", False, 1, uses_weights=False)
SAMPLER = "tests/cluster/nodes.py:Paced"
UNITS, MEMBERS = 6, 4
BAD = "sums/train/102"
"""The task of the third unit of the second step."""


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    with two_nodes() as made:
        yield made


def run_of(**sampler: Any) -> RunConfig:
    return tiny_run(rollout={"prompts_per_step": 4, "num_generations": 4, "sampler": {"name": SAMPLER, **sampler}}, tokenizer=TOKENS)


def draws(step: int) -> list[RolloutRequest]:
    from tests.fixtures.worlds import Sums

    tasks = [Sums(below=5).task("train", 100 * step + place) for place in range(UNITS)]
    return [RolloutRequest(task, f"{step}:{task.id}", derive_seed(step, task.id, member)) for task in tasks for member in range(MEMBERS)]


STEPS = (0, 1)
SAMPLING = SamplingParams()


def in_this_process() -> list[list[Episode]]:
    collector = RolloutWorker(run_of(), FACTS)
    collector.load_weights(0, [])
    steps = [[collector.run_task(0, unit, SAMPLING, step) for unit in split_into_tasks(draws(step))] for step in STEPS]
    collector.close()
    return [[episode for data, _ in step for episode in decode_episodes(EncodedEpisodes.from_bytes(data))[0]] for step in steps]


@pytest.fixture(scope="module")
def expected() -> list[list[Episode]]:
    return in_this_process()


class Harmed(RayTransport):
    """Actors with a plan: what is done to them, and when. It is looked at before each poll, in the thread that drives."""

    plan: Callable[[Harmed], bool] | None = None
    """Returns whether it is done."""
    told: list[str]

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.assigned, self.loads = list[tuple[DispatchTask, float]](), list[LoadWeights]()

    def start_task(self, command: DispatchTask, *given: Any) -> None:
        super().start_task(command, *given)
        self.assigned.append((command, time.monotonic()))

    def send_weight_update(self, command: LoadWeights) -> int:
        self.loads.append(command)
        return super().send_weight_update(command)

    def poll(self, timeout_s: float) -> list[Event]:
        if self.plan is not None and self.plan(self):
            self.plan = None
        return super().poll(min(timeout_s, 0.05))

    def kill(self, worker: str, how: int = signal.SIGKILL) -> None:
        os.kill(self._locations[worker]["pid"], how)


def sampled(
    config: RunConfig,
    plan: Callable[[Harmed], bool] | None = None,
    *,
    kind: type[Harmed] = Harmed,
    record: EventLog | None = None,
    **settings: Any,
) -> tuple[list[list[Episode]], Harmed, list[str]]:
    """What two steps give, and what was said."""
    asked = ClusterConfig(**{"rollout_workers": 2, "max_restarts_per_worker": 20, **settings})
    config = config.model_copy(update={"cluster": asked})
    transport, told = kind(asked, config.model_dump(mode="json"), FACTS), list[str]()
    transport.plan = plan
    with Driver(transport, asked, log=told.append, record=record) as driver:
        found = []
        for step in STEPS:
            driver.send_weights()
            found.append(driver.collect(draws(step), SAMPLING, version=step))
    assert not transport.plan, "the plan was never carried out"
    return found, transport, told


@pytest.mark.parametrize("rollout_workers", [1, 2, 3])
def test_the_episodes_are_those_of_one_process_for_any_number_of_rollout_workers(
    nodes: Nodes, expected: list[list[Episode]], rollout_workers: int
) -> None:
    found, transport, told = sampled(run_of(seconds=0.1), rollout_workers=rollout_workers)
    assert found == expected and not told
    workers = {order.worker for order, _ in transport.assigned}
    assert 1 <= len(workers) <= rollout_workers  # on a busy machine one may have done all before another has started


# ---- killed -------------------------------------------------------------------------------------------------------------


def first(transport: Harmed) -> bool:
    """Kill a collector as soon as it has its first unit."""
    if transport.assigned:
        transport.kill(transport.assigned[0][0].worker)
    return bool(transport.assigned)


def middle(transport: Harmed) -> bool:
    """Kill a collector that is in the middle of its second unit."""
    for order, since in transport.assigned[2:]:
        if time.monotonic() - since > 0.15 and order.worker in transport._locations:
            transport.kill(order.worker)
            return True
    return False


def loading(transport: Harmed) -> bool:
    """Kill a collector that was told to load."""
    if transport.loads:
        transport.kill(transport.loads[-1].worker)
    return bool(transport.loads)


@pytest.mark.parametrize("plan", [first, middle, loading])
def test_a_collector_that_is_killed_changes_nothing(nodes: Nodes, expected: list[list[Episode]], plan: Callable[[Harmed], bool]) -> None:
    found, _, told = sampled(run_of(seconds=0.1), plan)
    assert found == expected
    assert len(told) == 1 and "is lost: ActorDiedError (process" in told[0]


def crashes(transport: Harmed) -> bool:
    """A collector crashes as soon as it has a unit."""
    if transport.assigned:
        transport.kill(transport.assigned[0][0].worker, signal.SIGSEGV)
    return bool(transport.assigned)


def test_the_last_words_of_a_collector_are_in_the_record(nodes: Nodes, expected: list[list[Episode]], tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("seed: 0")
    found, transport, told = sampled(run_of(seconds=0.1), crashes, record=EventLog(tmp_path))
    assert found == expected and len(told) == 1
    [row] = read_jsonl(tmp_path / "rollout_workers.jsonl")
    assert row["collector"] == transport.assigned[0][0].worker and row["unit"].startswith("0:sums/") and row["again"]
    assert "Fatal Python error: Segmentation fault" in row["words"] and row["why"].endswith(": Fatal Python error: Segmentation fault")
    assert row["host"] and row["pid"] != os.getpid() and not any(":actor_name:" in line for line in row["words"])


def test_a_unit_may_kill_two_rollout_workers_in_a_row(nodes: Nodes, expected: list[list[Episode]], tmp_path: Path) -> None:
    found, _, told = sampled(run_of(dies=[BAD], times=2, home=str(tmp_path)))
    assert found == expected and len(told) == 2


def test_a_unit_that_always_kills_its_collector_is_left_out_with_a_reason(
    nodes: Nodes, expected: list[list[Episode]], tmp_path: Path
) -> None:
    found, _, told = sampled(run_of(dies=[BAD], home=str(tmp_path)), max_lost_workers_per_task=2)
    failed = [episode for episode in found[1] if episode.stop_reason is StopReason.FAILED]
    assert {episode.task_id for episode in failed} == {BAD} and len(failed) == MEMBERS
    others = [[episode for episode in step if episode.task_id != BAD] for step in (*found, *expected)]
    assert others[:2] == others[2:]
    verdict = failed[0].verdict
    assert verdict is not None and verdict.score is None and verdict.fault is Fault.INFRA
    assert verdict.reason.startswith("no rollout worker could sample it: ActorDiedError (process ")
    assert any(f"{MEMBERS} completions from group 1:{BAD} on are left out: ActorDiedError" in line for line in told)


def test_an_evaluation_whose_collector_is_killed_is_that_of_one_process(
    nodes: Nodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """By the command; its policy is one that takes its time."""
    suite, two = tmp_path / "suite.yaml", tmp_path / "two.yaml"
    suite.write_text("- {name: a, env: {name: tests/fixtures/worlds.py:Sums}, tasks: 16, n: 4}\n- {env: arithmetic, tasks: 40}", "utf-8")
    two.write_text("cluster: {rollout_workers: 2}", "utf-8")

    class Killed(Harmed):
        plan = staticmethod(middle)

    monkeypatch.setattr(actors, "RayTransport", Killed)
    monkeypatch.setattr("rlvr.evaluation.evaluate.parse_policy", lambda *_: PluginSpec("sampler", SAMPLER, {"seconds": 0.02}))
    for folder, more in (("here", []), ("there", ["--cluster", str(two)])):
        assert run_command(["eval", str(suite), "--policy", "scripted:random", "--out", str(tmp_path / folder), "--json", *more]) == 0
    here, there = (
        ((tmp_path / name / "report.json").read_bytes(), sorted((tmp_path / name / "episodes.jsonl").read_text("utf-8").splitlines()))
        for name in ("here", "there")
    )
    assert here == there and "is lost: ActorDiedError (process" in capfd.readouterr().err
    [row] = read_jsonl(tmp_path / "there" / "rollout_workers.jsonl")
    assert row["unit"].startswith("test:") and row["again"]


# ---- frozen, slow, deaf -------------------------------------------------------------------------------------------------


def test_a_frozen_collector_is_noticed_by_its_pulse_and_ended(nodes: Nodes, expected: list[list[Episode]]) -> None:
    frozen = list[int]()

    def plan(transport: Harmed) -> bool:
        if transport.assigned:
            worker = transport.assigned[0][0].worker
            frozen.append(transport._locations[worker]["pid"])
            transport.kill(worker, signal.SIGSTOP)
        return bool(frozen)

    found, _, told = sampled(run_of(), plan, heartbeat_timeout_s=3)
    assert found == expected and "is lost: no heartbeat in 3 s (cluster.heartbeat_timeout_s)" in told[0]
    assert not Path(f"/proc/{frozen[0]}").exists() or "State:\tZ" in Path(f"/proc/{frozen[0]}/status").read_text("utf-8")


def test_a_collector_that_comes_back_gets_no_work_before_it_has_the_version(
    nodes: Nodes, expected: list[list[Episode]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(actors, "_RolloutActor", SlowToLoad)
    found, transport, told = sampled(run_of(seconds=0.1), middle, rollout_workers=1)
    assert found == expected and len(told) == 1  # one that was asked too early would say so, and be lost too
    assert {order.worker for order, _ in transport.assigned} == {order.worker for order in transport.loads} == {"c0.0", "c0.1"}


class Haunted(Harmed):
    """A transport that cannot reach what it has given up: it lives on, and what it says comes."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.ghosts, self.heard = dict[Any, TaskEnded](), 0

    def give_up(self, worker: str) -> None:
        self.ghosts |= {
            call: meant for call, meant in self._calls.items() if isinstance(meant, TaskEnded) and meant.command.worker == worker
        }
        self.kept = self._actors.pop(worker)
        self._locations.pop(worker)

    def poll(self, timeout_s: float) -> list[Event]:
        events = super().poll(timeout_s)
        for call in self.ray.wait(list(self.ghosts), num_returns=len(self.ghosts), timeout=0)[0] if self.ghosts else []:
            self.heard += 1
            events.append(TaskEnded(self.ghosts.pop(call).command, *self.ray.get(call, timeout=5)))
        return events

    def close(self) -> None:
        super().close()
        self.ray.kill(self.kept)


def test_what_a_collector_says_after_it_was_given_up_is_dropped(nodes: Nodes, expected: list[list[Episode]]) -> None:
    lost = list[str]()

    class Given(Haunted):
        def poll(self, timeout_s: float) -> list[Event]:
            if self.assigned and not lost:
                lost.append(self.assigned[0][0].worker)
                self.give_up(lost[0])
                return [WorkerLost(lost[0], "it is out of reach")]
            return super().poll(timeout_s)

    found, transport, _ = sampled(run_of(seconds=0.05), kind=Given)
    assert found == expected
    assert isinstance(transport, Given) and transport.heard == 1  # it did say its unit
    [worker] = lost
    assert len([order for order, _ in transport.assigned if order.worker == worker]) == 1


# ---- no room ------------------------------------------------------------------------------------------------------------


def test_what_no_machine_can_hold_is_one_sentence_at_once(nodes: Nodes) -> None:
    words = (
        r"cluster.rollout_workers is 1, each with 6 CPUs on one machine, and the cluster has capacity for 0 of them "
        r"\(its machines: 4 CPUs, 0 GPUs; "
    )
    with pytest.raises(ConfigError, match=words):
        RayTransport(ClusterConfig(cpus_per_rollout_worker=6), {}, FACTS)


def test_machines_that_are_full_are_a_message_within_the_limit(nodes: Nodes) -> None:
    others = [nodes.ray.remote(num_cpus=4)(Idle).remote() for _ in range(2)]
    nodes.ray.get([other.pulse.remote() for other in others], timeout=120)
    try:
        with pytest.raises(RlvrError, match=r"no machine had capacity for it within 0.5 s .* and 0 of 8 CPUs are free"):
            sampled(run_of(), rollout_workers=1, placement_timeout_s=0.5)
    finally:
        for other in others:
            nodes.ray.kill(other)


@pytest.mark.timeout(120)
def test_weights_for_which_the_object_store_is_too_small_go_over_the_disk_and_nothing_hangs(
    nodes: Nodes, expected: list[list[Episode]]
) -> None:
    asked = ClusterConfig(rollout_workers=2, max_restarts_per_worker=1)
    transport = RayTransport(asked, run_of().model_dump(mode="json"), FACTS)
    with Driver(transport, asked, log=lambda line: None) as driver:
        driver.send_weights(
            WeightUpdate([TensorBucket.from_parts([TensorSlice("w", "", 0, np.full(OBJECTS, k, np.uint8))]) for k in range(2)])
        )
        assert driver.collect(draws(0), SAMPLING, version=0) == expected[0]
        [held] = transport._weight_history.get_updates(0, None)
        for bucket in nodes.ray.get(list(held.buckets), timeout=60):
            assert compute_checksum(bucket.parts) == bucket.checksum


def test_a_cluster_is_examined_by_placing_one_process_of_each_kind(nodes: Nodes) -> None:
    found = {
        seen.name: seen for seen in check_cluster_ready(ClusterConfig(rollout_workers=2, verifier_workers=1, cpus_per_verifier_worker=2))
    }
    assert not any(seen.problem for seen in found.values()) and "2: 4 CPUs, 0 GPUs; 4 CPUs, 0 GPUs" in found["machines"].detail
    assert "needs 1 CPUs; placed on " in found["rollout_workers"].detail and "needs 2 CPUs; placed on " in found["verifier_workers"].detail
    assert len([name for name in found if name.startswith("machine ")]) == 2


def test_what_a_cluster_lacks_is_said_within_the_limit(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlvr.cluster.checks.doctor.collect_versions", lambda: {"Python": "2.7.1"})
    found = {seen.name: seen for seen in check_cluster_ready(ClusterConfig(gpus_per_rollout_worker=1), timeout_s=30)}
    assert "cluster.rollout_workers is 1" in found["capacity"].detail and found["capacity"].problem
    assert found["rollout_workers"].problem == "no machine is large enough"
    assert "no machine has so many GPUs" in found["rollout_workers"].detail
    assert [seen.problem for name, seen in found.items() if name.startswith("machine ")] == ["other versions"] * 2


# ---- verifier workers --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", [None, signal.SIGKILL, signal.SIGSTOP])
def test_verdicts_of_verifier_workers_are_those_of_one_process_also_if_a_host_is_killed_or_frozen(
    nodes: Nodes,
    expected: list[list[Episode]],
    how: signal.Signals | None,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    harmed = list[int]()

    def plan(transport: Harmed) -> bool:
        assert transport.verifier_workers is not None
        places = [slot.location for slot in transport.verifier_workers.slots if slot.location is not None]
        if places and len(transport.assigned) > 2:
            harmed.append(places[0]["pid"])
            if how is not None:
                os.kill(harmed[0], how)
        return bool(harmed)

    found, transport, told = sampled(
        run_of(seconds=0.5 if how is signal.SIGSTOP else 0.1),
        plan,
        verifier_workers=2,
        cpus_per_verifier_worker=0.5,
        rollout_workers=2,
        heartbeat_timeout_s=3,
    )
    assert found == expected and not told and transport.verifier_workers is not None
    assert transport.verifier_workers.num_lost == (how is not None)
    assert ("verifier worker j" in caplog.text + capfd.readouterr().err) == (how is not None)


# ---- whole runs ---------------------------------------------------------------------------------------------------------

RUN_STEPS = 6
DRIVER = """
import sys
from pathlib import Path
from rlvr.config.config import RunConfig
from rlvr.cluster.training import train
train(RunConfig.model_validate_json(Path(sys.argv[1]).read_text()), out=Path(sys.argv[2]))
"""


def config_of(ahead: int, rollout_workers: int, address: str) -> RunConfig:
    rollout = {"prompts_per_step": 4, "num_generations": 4, "max_staleness": ahead}
    cluster = {"rollout_workers": rollout_workers, "address": address}
    return tiny_run(rollout=rollout, cluster=cluster, train={"steps": RUN_STEPS, "learning_rate": 1e-3}, eval={"tasks": 0})


def driver(preloaded: Path, config: RunConfig, out: Path) -> AbstractContextManager[Started]:
    """A run in a process of its own."""
    asked = out.with_suffix(".json")
    asked.write_text(config.model_dump_json(), "utf-8")
    return started_program(preloaded, DRIVER, str(asked), str(out), said=out.with_suffix(".err"))


def rows(folder: Path) -> int:
    path = folder / "metrics.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def files(folder: Path) -> dict[str, bytes]:
    weights = (folder / "checkpoints" / "last" / "model.safetensors").resolve()
    return {path.name: path.read_bytes() for path in (folder / "episodes.jsonl", folder / "metrics.jsonl", weights)}


def test_a_run_whose_driver_is_killed_and_resumed_is_the_one_of_one_process(nodes: Nodes, tmp_path: Path, preloaded: Path) -> None:
    """With two batches ahead; `benchmarks/scale/equal.py` kills runs without any too."""
    out = tmp_path / "run"
    with driver(preloaded, config_of(2, 1, nodes.address), out) as run:
        until = time.monotonic() + 240
        while run.client.poll() is None and rows(out) < 2 and time.monotonic() < until:
            time.sleep(0.02)
        assert run.client.poll() is None and rows(out) >= 2, out.with_suffix(".err").read_text("utf-8")[-2000:]
        run.kill()
    train(config_of(2, 1, nodes.address), out=out, resume=True)
    train(config_of(2, 0, nodes.address), out=tmp_path / "here")
    assert files(out) == files(tmp_path / "here")


def test_a_killed_run_that_started_its_own_cluster_leaves_two_agents_of_ray_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """They try to report to the head of the cluster, which is gone, for a minute (measured: 64 s).

    Its program has imported Ray before it asked for a cluster with a token.
    """
    mark = uuid4().hex
    monkeypatch.setenv(MARK, mark)
    code = (
        "import ray, time, rlvr.cluster.ray_transport as it; it.connect_ray(it.ClusterConfig()); print('up', flush=True); time.sleep(600)"
    )
    run = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True)
    try:
        assert run.stdout is not None and run.stdout.readline() == b"up\n" and len(running(mark)) > 3
        run.kill()
        run.communicate(timeout=30)
        assert not ended(mark, 30, but="Agent")
    finally:
        run.kill()
        for pid in running(mark):
            os.kill(pid, signal.SIGKILL)


# ---- the last of all, since the second node is gone after it ----------------------------------------------------------


def test_a_node_that_is_killed_changes_nothing(nodes: Nodes, expected: list[list[Episode]]) -> None:
    there = nodes.other.node_id

    def plan(transport: Harmed) -> bool:
        on_it = {worker for worker, place in transport._locations.items() if place["node"] == there}
        if any(order.worker in on_it for order, _ in transport.assigned):
            nodes.lose()
            return True
        return False

    found, _, told = sampled(run_of(seconds=0.1), plan)
    assert found == expected and told
