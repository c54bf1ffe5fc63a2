"""The driver over a pretended cluster: the same episodes whatever happens to rollout_workers, and clear words where nothing can be done."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Mapping, Sequence, Set
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from rlvr.cluster.checks.comparison import choose_audit_tasks
from rlvr.cluster.checks.episode_fields import EpisodeLimits
from rlvr.cluster.driver import Driver, _decode_task
from rlvr.cluster.event_log import EventLog
from rlvr.cluster.rollout_tasks import SINGLES_PER_TASK, RolloutTask, choose_groups_per_task, split_into_tasks
from rlvr.cluster.scheduler_commands import DispatchTask, LoadWeights
from rlvr.cluster.transport import Event, TaskEnded, WeightsLoaded, WorkerLost, WorkerStarted
from rlvr.cluster.weights.weight_updates import WeightUpdate
from rlvr.config.cluster import ClusterConfig
from rlvr.contracts import SamplingParams
from rlvr.episode import Episode, StopReason
from rlvr.errors import RlvrError, SamplerError
from rlvr.rollout.episode_encoding import CorruptData, EncodedEpisodes, decode_episodes, encode_episodes
from rlvr.rollout.rollout_request import PartialCompletion, RolloutRequest, derive_seed
from rlvr.samplers.hf import HFSampler
from rlvr.samplers.vllm import VLLMSampler
from rlvr.task import Fault, StepReward, Task, Verdict, make_user_prompt


def draws(groups: int = 6, members: int = 2) -> list[RolloutRequest]:
    return [
        RolloutRequest(Task(make_user_prompt("?"), "4", id=f"t/{g}"), f"1:{g}", derive_seed(g, m), {"index": g})
        for g in range(groups)
        for m in range(members)
    ]


def answered(draw: RolloutRequest, label: int) -> Episode:
    """What a sampler says to a draw: it depends on the seed alone."""
    reward = float(draw.seed % 2)
    tokens = [5, draw.seed % 1000, 2]
    verdict = Verdict(reward, "judged")
    acted, logprobs, rewards = [False, True, True], [0.0, -0.5, -0.25], [0.0, 0.0, reward]
    meta = {**draw.meta, "finish": "terminated"}
    return Episode(draw.task.id, draw.group, tokens, acted, logprobs, rewards, StopReason.TERMINATED, label, verdict, meta=meta)


class Pretended:
    """A cluster in which at random anything happens; it says so as a transport does."""

    def __init__(
        self, seed: int = 0, *, deaths: float = 0.0, bad: Set[str] = frozenset(), broken: Sequence[bytes] = (), start: Event | None = None
    ) -> None:
        self.draw, self.deaths, self.bad, self.broken, self.first = random.Random(seed), deaths, bad, list(broken), start
        self.alive, self.loaded, self.held = set[str](), dict[str, int](), dict[int, WeightUpdate]()
        self.lock = threading.Lock()  # weights are held by the thread that sends them
        self.work, self.stopped, self.begun = list[Any](), list[str](), 0

    def start_worker(self, worker: str) -> None:
        self.begun += 1
        self.alive.add(worker)
        self.work.append(self.first or WorkerStarted(worker))

    def kill_worker(self, worker: str) -> None:
        self.stopped.append(worker)
        self.alive.discard(worker)
        self.work = [event for event in self.work if worker_of(event) != worker]

    def store_weights(self, version: int, update: WeightUpdate) -> None:
        with self.lock:
            self.held[version] = update

    def free_unneeded_weights(self, needed_versions: Set[int]) -> None:
        with self.lock:
            self.held = {version: parcel for version, parcel in self.held.items() if version >= min(needed_versions)}

    def send_weight_update(self, command: LoadWeights) -> int:
        assert command.worker in self.alive and command.version in self.held
        self.work.append(WeightsLoaded(command))
        return self.held[command.version].num_bytes

    def start_task(self, command: DispatchTask, rollout_task: RolloutTask, sampling: SamplingParams, policy_version: int) -> None:
        assert self.loaded[command.worker] == command.version
        data = encode_episodes([[answered(draw, policy_version) for draw in rollout_task]]).to_bytes()
        self.work.append(WorkerLost(command.worker, "killed by it") if rollout_task[0].group in self.bad else TaskEnded(command, data, 0.1))

    def cancel_task(self, command: DispatchTask) -> None:
        self.work = [TaskEnded(command, b"") if getattr(event, "command", None) == command else event for event in self.work]

    def get_worker_location_and_log(self, worker: str) -> dict[str, Any]:
        return {"host": "here", "pid": 1, "words": ["the last line"]}

    def poll(self, timeout_s: float) -> list[Event]:
        if not self.work:
            return []
        event = self.work.pop(self.draw.randrange(len(self.work)))
        worker = worker_of(event)
        if not isinstance(event, WorkerLost) and self.draw.random() < self.deaths:
            return [WorkerLost(worker, "killed", may_be_cause=False)]
        if isinstance(event, WeightsLoaded):
            self.loaded[worker] = event.command.version
        if isinstance(event, TaskEnded) and event.data and self.broken:
            return [TaskEnded(event.command, self.broken.pop())]
        return [event]

    def close(self) -> None:
        self.alive.clear()


def worker_of(event: Any) -> str:
    return str(event.command.worker if hasattr(event, "command") else event.worker)


def driven(transport: Pretended, told: list[str] | None = None, record: EventLog | None = None, **settings: Any) -> Driver:
    config = ClusterConfig(**{"rollout_workers": 3, "max_restarts_per_worker": 1000, **settings})
    return Driver(transport, config, log=(told if told is not None else []).append, record=record)


EXPECTED = [answered(draw, 7) for draw in draws()]


@pytest.mark.parametrize("rollout_workers", [1, 2, 5])
def test_the_episodes_are_the_same_whatever_happens(rollout_workers: int) -> None:
    for seed in range(60):
        deaths, backups = random.Random(seed).choice([0.0, 0.1, 0.3]), random.Random(seed).choice([0.0, 0.5])
        with driven(Pretended(seed, deaths=deaths), rollout_workers=rollout_workers, backup_task_fraction=backups) as driver:
            for _ in range(3):
                driver.send_weights()
                assert driver.collect(draws(), SamplingParams(), version=7) == EXPECTED
            assert driver.num_abandoned == 0


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"\x80\x04.", "are not columns of episodes"),
        (encode_episodes([EXPECTED]).to_bytes()[:-1], "bytes where"),
        (encode_episodes([EXPECTED[:2]]).to_bytes(), "came back with the episodes of other requests"),
        (b"", "came back without episodes, although it was not cancelled"),
    ],
)
def test_what_comes_back_damaged_or_from_other_draws_is_sampled_again(data: bytes, words: str) -> None:
    told = list[str]()
    assert driven(Pretended(broken=[data]), told, rollout_workers=1).collect(draws()[2:], SamplingParams(), version=7) == EXPECTED[2:]
    assert len(told) == 1 and words in told[0] and "it is restarted" in told[0]


def test_an_answer_that_comes_back_with_another_beginning_is_sampled_again() -> None:
    told = list[str]()
    begun = [replace(draw, partial_completion=PartialCompletion([draw.seed % 1000], [-0.5], [[7, 1]])) for draw in draws(groups=1)]
    changed = [EXPECTED[0], replace(EXPECTED[1], tokens=[5, 6, 2])]
    driver = driven(Pretended(broken=[encode_episodes([changed]).to_bytes()]), told, rollout_workers=1)
    assert driver.collect(begun, SamplingParams(), version=7) == EXPECTED[:2]
    assert len(told) == 1 and "is lost: completion 1 of task 1:0 does not begin with its partial episode; it is restarted" in told[0]


def test_a_unit_that_ends_its_rollout_workers_is_left_out_without_a_score() -> None:
    told = list[str]()
    found = driven(Pretended(bad={"1:2"}), told).collect(draws(), SamplingParams(), version=7)
    failed = [episode for episode in found if episode.stop_reason is StopReason.FAILED]
    assert [episode.group for episode in failed] == ["1:2"] * 2 and [e for e in found if e not in failed] == EXPECTED[:4] + EXPECTED[6:]
    verdict = failed[0].verdict
    assert verdict is not None and verdict.score is None and verdict.fault is Fault.INFRA and "killed by it" in verdict.reason
    assert any("2 completions from group 1:2 on are left out" in line for line in told)
    assert len([line for line in told if "is lost" in line]) == ClusterConfig().max_lost_workers_per_task


def test_the_run_goes_on_with_fewer_and_ends_in_words_when_none_is_left() -> None:
    told = list[str]()
    transport = Pretended(bad={f"1:{group}" for group in range(6)})
    with pytest.raises(
        SamplerError, match=r"no rollout worker is left: each was started 1 times; the last one was lost: killed by it; .*--resume"
    ):
        driven(transport, told, rollout_workers=2, max_restarts_per_worker=0).collect(draws(), SamplingParams())
    assert told[0].endswith("it is not restarted, the run continues with fewer workers") and transport.begun == 2


def test_each_loss_and_each_call_given_up_is_a_row_with_the_last_words(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("seed: 0")
    with driven(Pretended(bad={"1:2"}), [], record=EventLog(tmp_path)) as driver:
        driver.collect(draws(), SamplingParams())
        figures = driver.metrics.take_step_metrics()
    rows = [json.loads(line) for line in (tmp_path / "rollout_workers.jsonl").read_text("utf-8").splitlines()]
    lost, given_up = ([row for row in rows if row["event"] == event] for event in ("lost", "given_up"))
    assert len(lost) == ClusterConfig().max_lost_workers_per_task and {row["unit"] for row in lost} == {"1:2"} and lost[0]["again"]
    assert (lost[0]["host"], lost[0]["words"], lost[0]["why"]) == ("here", ["the last line"], "killed by it")
    assert [(row["groups"], row["answers"], row["why"]) for row in given_up] == [(["1:2"], 2, "killed by it")]
    assert (figures["cluster/workers_lost"], figures["cluster/abandoned_tasks"], figures["cluster/retried_tasks"]) == (4.0, 1.0, 3.0)


def test_a_collector_that_is_lost_for_two_reasons_is_replaced_once() -> None:
    class Twice(Pretended):
        def poll(self, timeout_s: float) -> list[Event]:
            return [event for event in super().poll(timeout_s) for _ in range(1 + isinstance(event, WorkerLost))]

    transport, told = Twice(deaths=0.2), list[str]()
    assert driven(transport, told, rollout_workers=2).collect(draws(), SamplingParams(), version=7) == EXPECTED
    assert told and transport.begun == 2 + len(told) == 2 + len(transport.stopped)


def test_a_collector_that_is_lost_and_says_in_the_same_moment_that_it_is_ready_gets_nothing() -> None:
    class Both(Pretended):
        def poll(self, timeout_s: float) -> list[Event]:
            events, known = super().poll(timeout_s), self.begun
            late = [event for event in events if isinstance(event, WorkerStarted) and known == 1]
            return [WorkerLost(event.worker, "no machine had room", may_be_cause=False) for event in late] + events

    transport = Both()
    assert driven(transport, rollout_workers=1).collect(draws(), SamplingParams(), version=7) == EXPECTED
    assert transport.stopped == ["c0.0"]


def test_a_collector_that_never_ends_its_call_is_ended_and_the_call_is_sampled_elsewhere() -> None:
    class Silent(Pretended):
        def start_task(self, order: DispatchTask, *given: Any) -> None:
            super().start_task(order, *given)
            if order.worker == "c0.0":
                self.work.pop()

    transport, told = Silent(), list[str]()
    with driven(transport, told, rollout_workers=2, task_timeout_s=0.2) as driver:
        assert driver.collect(draws(), SamplingParams(), version=7) == EXPECTED
        assert transport.stopped == ["c0.0"] and "did not end in 0.2 s" in told[0] and driver.num_retries == 1
        assert "c0.0" not in driver.metrics._states  # its time is nobody's


class Wrong(Pretended):
    """The rollout_workers of slot 1 compute wrongly."""

    def start_task(self, command: DispatchTask, rollout_task: RolloutTask, sampling: SamplingParams, policy_version: int) -> None:
        super().start_task(command, rollout_task, sampling, policy_version)
        if command.worker.startswith("c1."):
            episodes = [replace(answered(draw, policy_version), tokens=[5, 1, 2]) for draw in rollout_task]
            self.work[-1] = TaskEnded(command, encode_episodes([episodes]).to_bytes(), 0.1)


def test_an_audit_finds_the_collector_that_computes_wrongly_and_keeps_both_answers(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("seed: 0")
    record, told = EventLog(tmp_path), list[str]()
    settings = ClusterConfig(rollout_workers=3, resample_fraction=1.0)
    with Driver(Wrong(), settings, log=told.append, record=record) as driver:
        for label in range(4):
            driver.send_weights()
            driver.collect(draws(), SamplingParams(), version=label)
        figures = driver.metrics.take_step_metrics()
    rows = [json.loads(line) for line in (tmp_path / "rollout_workers.jsonl").read_text("utf-8").splitlines()]
    assert figures["cluster/audited_tasks"] > figures["cluster/differing_tasks"] == len(rows) == len(told) > 0
    for row in rows:
        assert row["event"] == "differs" and "c1.0" in row["workers"]
        one, other = row["sampled"]
        group = [answered(draw, row["version"]).tokens for draw in draws() if draw.group == row["group"]]
        right, wrong = (one, other) if row["workers"][1] == "c1.0" else (other, one)
        assert [answer["tokens"] for answer in right] == group and {tuple(answer["tokens"]) for answer in wrong} == {(5, 1, 2)}
    assert "sample group 1:" in told[0] and "in 2 of 2 completions, first token 1 is " in told[0]


@pytest.mark.parametrize("deaths", [0.0, 0.2])
def test_an_audit_changes_nothing_and_says_nothing_where_all_compute_the_same(deaths: float) -> None:
    told, audited = list[str](), 0.0
    for seed in range(10):
        with driven(Pretended(seed, deaths=deaths, bad=frozenset()), told, resample_fraction=0.5) as driver:
            assert driver.collect(draws(), SamplingParams(), version=7) == EXPECTED
            audited += driver.metrics.take_step_metrics()["cluster/audited_tasks"]
    assert audited and not any("differently" in line for line in told)


class Unlucky(Pretended):
    """In slot 1 the engine falls over in the middle of answers, or they are cut because time is up."""

    how: Mapping[str, Any] = {}

    def start_task(self, command: DispatchTask, rollout_task: RolloutTask, sampling: SamplingParams, policy_version: int) -> None:
        super().start_task(command, rollout_task, sampling, policy_version)
        if command.worker.startswith("c1."):
            short: dict[str, Any] = {"tokens": [5, 1], "action_mask": [False, True], "logprobs": [0.0, -0.5], "rewards": [0.0, 0.0]}
            short |= {"verdict": Verdict(0.0, "short"), **self.how}
            episodes = [
                replace(answered(draw, policy_version), **short | {"meta": {**draw.meta, **short.get("meta", {})}}) for draw in rollout_task
            ]
            self.work[-1] = TaskEnded(command, encode_episodes([episodes]).to_bytes(), 0.1)


@pytest.mark.parametrize(
    "how",
    [
        {"error": "it fell", "stop_reason": StopReason.FAILED, "verdict": Verdict(None, "it fell", fault=Fault.INFRA)},
        {"stop_reason": StopReason.TRUNCATED, "meta": {"finish": "truncated", "truncated": "time"}},
    ],
    ids=str,
)
def test_what_failed_or_was_cut_by_time_is_not_compared(how: dict[str, Any]) -> None:
    told, transport = list[str](), Unlucky()
    transport.how = how
    with driven(transport, told, resample_fraction=1.0) as driver:
        driver.collect(draws(), SamplingParams(), version=7)
        figures = driver.metrics.take_step_metrics()
    assert not told and not figures["cluster/differing_tasks"] and figures["cluster/audited_tasks"] < 6


def test_an_audit_of_a_unit_that_ends_its_rollout_workers_leaves_it_out_once() -> None:
    told = list[str]()
    found = driven(Pretended(bad={"1:2"}), told, resample_fraction=1.0).collect(draws(), SamplingParams(), version=7)
    assert [episode.group for episode in found if episode.stop_reason is StopReason.FAILED] == ["1:2"] * 2
    assert len([line for line in told if "are left out" in line]) == 1


def test_which_calls_are_audited_depends_on_their_groups_alone() -> None:
    units = {str(place): unit for place, unit in enumerate(split_into_tasks(draws(400)))}
    chosen = choose_audit_tasks(units, 0.1)
    assert 20 < len(chosen) < 60 and all(units[name.removesuffix(" again")] == unit for name, unit in chosen.items())
    renamed = choose_audit_tasks({f"9:{name}": unit for name, unit in units.items()}, 0.1)  # as in a run that was resumed
    assert list(renamed.values()) == list(chosen.values())
    assert (
        choose_audit_tasks(dict(reversed(units.items())), 0.1) == chosen
        and len(choose_audit_tasks(units, 1.0)) == 400
        and not choose_audit_tasks(units, 0.0)
    )


def test_an_audit_needs_two_rollout_workers() -> None:
    with pytest.raises(ValidationError, match=r"resample_fraction is 0.1, but rollout_workers is 1"):
        ClusterConfig(resample_fraction=0.1)


def test_bytes_of_weights_are_counted_for_each_collector() -> None:
    driver = driven(Pretended(), rollout_workers=3)
    driver.send_weights(WeightUpdate([], num_bytes=10))
    driver.collect(draws(), SamplingParams())
    figures = driver.metrics.take_step_metrics()
    assert figures["cluster/weights_bytes"] == 30.0 and figures["cluster/sampling_fraction"] > 0


def test_a_start_that_can_never_work_ends_the_run_at_once() -> None:
    transport = Pretended(start=WorkerLost("c0.0", "ConfigError: no such file", is_permanent=True))
    with pytest.raises(RlvrError, match=r"rollout worker c0.0 cannot start: ConfigError: no such file"):
        driven(transport, rollout_workers=1).collect(draws(), SamplingParams())
    assert transport.begun == 1


def test_a_collector_that_is_never_ready_is_ended() -> None:
    class Silent(Pretended):
        def poll(self, timeout_s: float) -> list[Event]:
            return []

    transport = Silent()
    with pytest.raises(SamplerError, match=r"not ready after 0.01 s \(cluster.startup_timeout_s\)"):
        driven(transport, rollout_workers=1, max_restarts_per_worker=1, startup_timeout_s=0.01).collect(draws(), SamplingParams())
    assert transport.stopped == ["c0.0", "c0.1"]


def test_old_weights_are_freed() -> None:
    transport = Pretended()
    driver = driven(transport)
    for version in range(5):
        driver.send_weights(WeightUpdate([version]))
        driver.collect(draws(), SamplingParams())
    assert transport.held == {4: WeightUpdate([4])}


def test_another_thread_can_end_the_wait() -> None:
    driver = driven(Pretended())
    driver.is_closed = True
    with pytest.raises(SamplerError, match="closed while they sampled"):
        driver.collect(draws(), SamplingParams())


def test_units_are_whole_groups_and_single_draws_go_together() -> None:
    assert [len(unit) for unit in split_into_tasks(draws(5, 2))] == [2] * 5
    assert [len(unit) for unit in split_into_tasks(draws(5, 2), groups_per_task=2)] == [4, 4, 2]
    assert [len(unit) for unit in split_into_tasks(draws(SINGLES_PER_TASK + 3, 1))] == [SINGLES_PER_TASK, 3]
    assert [draw for unit in split_into_tasks(draws(), 4) for draw in unit] == draws() and split_into_tasks([]) == []


def test_an_engine_samples_many_completions_in_one_task() -> None:
    """One group of 8 leaves a GPU idle; a model that runs in the process samples a group at a time, so that its bits are the same."""
    engine = VLLMSampler.traits
    assert [choose_groups_per_task(asked, engine, 8) for asked in (None, 1, 3)] == [8, 1, 3]
    assert choose_groups_per_task(None, engine, 1000) == 1 and choose_groups_per_task(None, HFSampler.traits, 8) == 1


# ---- several batches ----------------------------------------------------------------------------------------------------


class Slow(Pretended):
    """The first unit of all does not end until `free` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.free, self.held_back, self.order = threading.Event(), list[Any](), list[tuple[str, int]]()

    def start_task(self, command: DispatchTask, rollout_task: RolloutTask, sampling: SamplingParams, policy_version: int) -> None:
        super().start_task(command, rollout_task, sampling, policy_version)
        self.order.append((command.worker, policy_version))
        if len(self.order) == 1:
            self.held_back.append(self.work.pop())

    def poll(self, timeout_s: float) -> list[Event]:
        if self.free.is_set():
            self.work += self.held_back
            self.held_back.clear()
        return super().poll(timeout_s)


def test_a_collector_takes_the_next_batch_while_another_still_samples_the_first() -> None:
    transport = Slow()
    driver = driven(transport, rollout_workers=2)
    driver.send_weights(WeightUpdate([0]))
    first = driver.start_rollout(draws(3), SamplingParams(), version=0)
    driver.send_weights(WeightUpdate([1]))
    second = driver.start_rollout(draws(4), SamplingParams(), version=1)
    assert second.result() == [answered(draw, 1) for draw in draws(4)] and not first.is_done.is_set()
    slow, *others = transport.order
    assert {label for worker, label in others if worker == slow[0]} == set()
    assert [label for _, label in others] == [0, 0, 1, 1, 1, 1]
    assert transport.held == {0: WeightUpdate([0]), 1: WeightUpdate([1])}  # what is still sampled may have to be sampled again
    transport.free.set()
    assert first.result() == [answered(draw, 0) for draw in draws(3)]
    assert first.timing.sampling_s > second.timing.sampling_s and len(first.timing.verification_spans) == 3


class Exact(Pretended):
    """Whatever is sampled is sampled by the weights whose number the episodes name."""

    def start_task(self, command: DispatchTask, rollout_task: RolloutTask, sampling: SamplingParams, policy_version: int) -> None:
        assert self.held[command.version] == WeightUpdate([policy_version])
        super().start_task(command, rollout_task, sampling, policy_version)


def test_what_is_asked_while_another_thread_has_the_turn_keeps_its_version() -> None:
    driver = driven(Exact())
    with driver._transport_lock:
        batches = []
        for version in range(3):
            driver.send_weights(WeightUpdate([version]))
            batches.append(driver.start_rollout(draws(4), SamplingParams(), version=version))
        assert not driver.scheduler.num_unfinished_groups
    assert [batch.result() for batch in reversed(batches)] == [[answered(draw, v) for draw in draws(4)] for v in (2, 1, 0)]


@pytest.mark.parametrize("rollout_workers", [1, 3])
def test_batches_that_are_asked_while_others_are_awaited_are_the_same_whatever_happens(rollout_workers: int) -> None:
    """One thread waits, another asks and sends weights; every unit is sampled by the version that was the newest when it was asked."""

    def wait(begun: list[Any], found: list[list[Episode]]) -> None:
        found += [batch.result() for batch in list(begun)]

    for seed in range(25):
        found, deaths = list[list[Episode]](), random.Random(seed).choice([0.0, 0.2])
        with driven(Exact(seed, deaths=deaths), rollout_workers=rollout_workers, backup_task_fraction=0.5) as driver:
            begun = []
            for version in range(4):
                driver.send_weights(WeightUpdate([version]))
                begun += [driver.start_rollout(draws(5), SamplingParams(), version=version) for _ in range(2)]
                if not version:
                    waiting = threading.Thread(target=wait, args=(begun, found))
                    waiting.start()
            here = [batch.result() for batch in begun]
            waiting.join(20)
        expected = [[answered(draw, version) for draw in draws(5)] for version in range(4) for _ in range(2)]
        assert here == expected and found == expected[: len(found)] and len(found) >= 2 and not driver.scheduler.num_unfinished_groups


def test_an_error_reaches_every_thread_that_waits() -> None:
    raised = list[str]()
    driver = driven(Pretended(bad={f"1:{group}" for group in range(6)}), rollout_workers=2, max_restarts_per_worker=0)
    batches = [driver.start_rollout(draws(), SamplingParams()) for _ in range(3)]

    def wait(batch: Any) -> None:
        with pytest.raises(SamplerError) as caught:
            batch.result()
        raised.append(str(caught.value))

    threads = [threading.Thread(target=wait, args=(batch,)) for batch in batches]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert len(raised) == 3 and all("no rollout worker is left" in words for words in raised)


def forge(**changes: Any) -> Any:
    """A lie about the first episode of a task, in a block that is otherwise right."""

    def lie(groups: list[list[Episode]]) -> bytes:
        episode = object.__new__(Episode)
        for name in Episode.__slots__:
            object.__setattr__(episode, name, changes.get(name, getattr(groups[0][0], name)))
        return encode_episodes([[episode, *groups[0][1:]], *groups[1:]]).to_bytes()

    return lie


THREE = {"action_mask": [False, True, True], "logprobs": [0.0, -0.5, -0.25]}
LIES: dict[str, Any] = {
    "no group": lambda groups: encode_episodes([]).to_bytes(),
    "two groups": lambda groups: encode_episodes(groups * 2).to_bytes(),
    "a text": lambda groups: "episodes",
    "a list": lambda groups: [1],
    "older weights": forge(policy_version=6),
    "weights without a number": forge(policy_version="7"),
    "a version that is true": forge(policy_version=True),
    "an id beyond the vocabulary": forge(tokens=[5, 10**12, 2], **THREE),
    "a negative id": forge(tokens=[5, -3, 2], **THREE),
    "no token": forge(tokens=[], action_mask=[], logprobs=[], rewards=[]),
    "no token of the policy": forge(action_mask=[False] * 3, logprobs=[0.0] * 3, rewards=[0.0] * 3, verdict=Verdict(0.0, "")),
    "a reward that is no verdict's": forge(rewards=[0.0, 0.0, 0.25]),
    "a reward of 1e300": forge(rewards=[0.0, 0.0, 1e300]),
    "a score beyond that of its verifier": forge(rewards=[0.0, 0.0, 5.0], verdict=Verdict(5.0, "")),
    "a score below that of its verifier": forge(rewards=[0.0, 0.0, -1.0], verdict=Verdict(-1.0, "")),
    "no verdict": forge(verdict=None),
    "no score and no failure": forge(verdict=Verdict(None, "down", fault=Fault.INFRA), rewards=[0.0] * 3),
    "a failure with a score": forge(stop_reason=StopReason.FAILED, rewards=[0.0] * 3, verdict=Verdict(0.0, "")),
    "many turns": forge(turns="many"),
    "a turn less than none": forge(turns=-1),
    "no text": forge(text=None),
    "an error that is a list": forge(error=["x"]),
    "a baseline that nobody asked for": forge(meta={"index": 0, "finish": "terminated", "greedy": True}),
    "a canary that nobody asked for": forge(meta={"index": 0, "finish": "terminated", "canary": True}),
    "another task's index": forge(meta={"index": 99, "finish": "terminated"}),
    "no meta": forge(meta={}),
    "a key that no rollout writes": forge(meta={"index": 0, "finish": "terminated", "advantage": 9}),
    **{
        f"{name} {value!r:.30}": forge(meta={"index": 0, "finish": "terminated", name: value})
        for name, values in {
            "versions": ("xx", 5, None, [["a", "b"]], [[-(10**12), 1]], [[7, 2]], [[8, 2]], [[7]], [7, 2]),
            "malformed_turns": (5, "0", [[1]], [1], [-1], [0, 0], [True], None),
            "session": (
                5,
                "x",
                [1],
                {"turns": 5},
                {"turns": [5]},
                {"turns": [{"text": "4"}]},
                {"turns": [{"text": 4}], "step_results": []},
                {"turns": [{"text": "4"}], "step_results": [5]},
                {"turns": [{"text": "4"}], "step_results": [], "more": 1},
                {"turns": [{"text": "4"}] * 2, "step_results": [], "answer": "4"},
                {"turns": [{"text": "4", "calls": [{"id": [], "name": "f"}]}], "step_results": [], "answer": "4"},
                {"tools": [{"name": []}], "turns": [{"text": "4"}], "step_results": []},
                {"turns": [{"text": "4"}], "step_results": [], "answer": "4", "files": {"a": 5}},
                {"turns": [{"text": "4"}], "step_results": [], "verdict": {"score": "x", "reason": "", "fault": "none"}},
                {
                    "turns": [{"text": "4"}],
                    "answer": "4",
                    "step_results": [
                        {"messages": [], "done": True, "tool_results": [{"call": "0", "text": "", "ok": True, "duration_s": "x"}]}
                    ],
                },
            ),
            "truncated": (5, "never", ["time"]),
            "finish": (5, "bad", ["terminated"]),
            "trouble": (5, "x" * 1_000_001),
            "usage": (5, [1], [1, -1], [1, "2"], [1, 2.5]),
            "reasoning": (5, "x", [5], ["a", "b"]),
        }.items()
        for value in values
    },
    "no finish": forge(meta={"index": 0}),
    "another end than its finish": forge(stop_reason=StopReason.TRUNCATED),
    "an end that was cut, and is complete": forge(
        stop_reason=StopReason.TRUNCATED, meta={"index": 0, "finish": "truncated", "truncated": "tokens"}
    ),
    "a cut without its limit": forge(stop_reason=StopReason.TRUNCATED, tokens=[5, 1, 1], meta={"index": 0, "finish": "truncated"}),
    "a limit without a cut": forge(meta={"index": 0, "finish": "terminated", "truncated": "tokens"}),
    "an end without its token": forge(tokens=[5, 1, 1]),
    "tokens after the end": forge(tokens=[5, 2, 2]),
    "an error and a score": forge(error="down"),
    "many components": forge(verdict=Verdict(1.0, "", components={f"c{n}": 1.0 for n in range(10_001)}), rewards=[0.0, 0.0, 1.0]),
    "rewards that cancel": forge(rewards=[0.0, 1e6, -1e6], verdict=Verdict(0.0, "")),
    "a reward before the last token": forge(rewards=[0.0, 1.0, 0.0], verdict=Verdict(1.0, "")),
    "steps that cancel": forge(
        rewards=[0.0, -1e6, 1e6 + 1], verdict=Verdict(1.0, "", step_rewards=[StepReward(-1e6, characters=1), StepReward(1e6 + 1)])
    ),
    "more rewards than steps": forge(rewards=[0.0, 0.5, 0.5], verdict=Verdict(1.0, "", step_rewards=[StepReward(1.0)])),
    "rewards beyond the steps": forge(
        rewards=[0.0, -99.0, 100.0], verdict=Verdict(1.0, "", step_rewards=[StepReward(0.5, characters=1), StepReward(0.5)])
    ),
    "a step of a turn that was not": forge(rewards=[0.0, 0.0, 1.0], verdict=Verdict(1.0, "", step_rewards=[StepReward(1.0, turn=3)])),
    "a log-probability of -1e30": forge(logprobs=[0.0, -1e30, -0.25]),
    "a billion turns": forge(turns=10**9),
    "no turn": forge(turns=0),
    "more turns than tokens": forge(turns=3),
    "too many tokens": forge(
        tokens=[5] * 99, action_mask=[False] + [True] * 98, logprobs=[0.0] * 99, rewards=[0.0] * 99, verdict=Verdict(0.0, "")
    ),
    "too long a prompt": forge(
        tokens=[5] * 99, action_mask=[False] * 98 + [True], logprobs=[0.0] * 99, rewards=[0.0] * 99, verdict=Verdict(0.0, "")
    ),
    "another prompt": forge(tokens=[6, 1, 2]),
    "a reply where there is one turn": forge(
        tokens=[5, 1, 2, 2],
        action_mask=[False, True, False, True],
        logprobs=[0.0, -0.5, 0.0, -0.5],
        rewards=[0.0] * 4,
        verdict=Verdict(0.0, ""),
        turns=2,
    ),
    "a failure with another prompt": forge(
        tokens=[6],
        action_mask=[False],
        logprobs=[0.0],
        rewards=[0.0],
        stop_reason=StopReason.FAILED,
        verdict=Verdict(None, "down", fault=Fault.INFRA),
        error="down",
    ),
    "tokens counted as by an endpoint": forge(meta={"index": 0, "finish": "terminated", "usage": [1, 2]}),
    "a reason of 3 MB": forge(verdict=Verdict(1.0, "x" * 3_000_000), rewards=[0.0, 0.0, 1.0]),
    "a text of 5 MB": forge(text="a" * 5_000_000),
    "an error of 5 MB": forge(error="a" * 5_000_000),
}
LIMITS = EpisodeLimits(
    1000,
    max_new_tokens=8,
    max_length=16,
    max_turns=1,
    may_count_own_tokens=False,
    has_bounded_score=True,
    render_prompt=lambda task: [5],
    stop_ids=frozenset((2,)),
)


def test_what_a_worker_says_of_its_loss_obeys_no_terminal() -> None:
    told, why = list[str](), "ValueError: \x1b[2J\x1b]0;x\x07\r\nnote: all is well\u202e" + "x" * 10_000

    class Loud(Pretended):
        def poll(self, timeout_s: float) -> list[Event]:
            events = super().poll(timeout_s)
            if not told and events and isinstance(events[0], TaskEnded):
                return [WorkerLost(events[0].command.worker, why)]
            return events

    with driven(Loud(), told) as driver:
        driver.collect(draws(), SamplingParams(), version=7)
    assert told[0].isprintable() and "is lost: ..." in told[0] and len(told[0]) < 1200


@pytest.mark.parametrize("place", [2, 4])
def test_a_verdict_whose_parts_are_no_mappings_is_refused(place: int) -> None:
    for value in (0, "", "x", [], [1], True):
        encoded = encode_episodes([[answered(draws()[0], 0)]])
        encoded.metadata_rows[0][4][place] = ["plain", value]
        with pytest.raises(CorruptData, match="it must be a mapping"):
            _decode_task("1:0", encoded.to_bytes())


def test_what_is_too_large_is_refused_before_it_is_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlvr.cluster.driver.MAX_TABLE_VALUES", 1000)
    monkeypatch.setattr("rlvr.cluster.driver.decode_episodes", lambda _: pytest.fail("it was decoded"))
    for groups, words in (
        ([[]] * 2000, "more than 1,000 values"),
        ([[]] * 3, "as 3 tasks"),
        ([[answered(draws()[0], 0)] * 6], "18 tokens"),
    ):
        with pytest.raises(CorruptData, match=words):
            _decode_task("1:0", encode_episodes(groups).to_bytes(), max_tokens=17)


@pytest.mark.parametrize("name", LIES)
def test_a_worker_that_lies_is_replaced_and_nothing_of_it_is_taken(name: str) -> None:
    told = list[str]()

    class Liar(Pretended):
        def __init__(self) -> None:
            super().__init__()
            self.has_lied = False

        def poll(self, timeout_s: float) -> list[Event]:
            events = super().poll(timeout_s)
            if events and isinstance(events[0], TaskEnded) and events[0].data and not self.has_lied:
                self.has_lied = True
                return [TaskEnded(events[0].command, LIES[name](decode_episodes(EncodedEpisodes.from_bytes(events[0].data))))]
            return events

    config = ClusterConfig(rollout_workers=2, max_restarts_per_worker=1000)
    with Driver(Liar(), config, log=told.append, limits=LIMITS) as driver:
        driver.send_weights()
        assert driver.collect(draws(), SamplingParams(), version=7) == EXPECTED
        assert driver.num_lost == 1 and "task" in told[0]
