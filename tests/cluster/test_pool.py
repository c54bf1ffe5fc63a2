"""The pool alone: what it says in small cases, and what always holds in ten thousand random histories."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Hashable, Sequence
from typing import Any

import pytest

from rlvr.cluster.scheduler_commands import (
    AbandonTask,
    AcceptResult,
    CancelCopy,
    Command,
    CountRetry,
    DispatchTask,
    KillWorker,
    LoadWeights,
)
from rlvr.cluster.work_scheduler import WorkScheduler

HISTORIES = 10_000


def ready(*workers: str, room: int = 1, **limits: Any) -> WorkScheduler:
    """A pool at version 0 whose workers have loaded it."""
    pool = WorkScheduler(**limits)
    pool.add_version(0)
    for worker in workers:
        pool.add_worker(worker, 0, capacity=room)
    return pool


def given(orders: Sequence[Command], kind: type = DispatchTask) -> list[Any]:
    return [order for order in orders if isinstance(order, kind)]


# ---- small cases --------------------------------------------------------------------------------------------------------


def test_groups_are_dealt_in_order_to_whoever_has_least() -> None:
    orders = given(ready("a", "b", room=2).enqueue(range(5), 0))
    assert [(order.task_name, order.worker) for order in orders] == [(0, "a"), (1, "b"), (2, "a"), (3, "b")]


def test_a_worker_gets_nothing_before_it_has_the_version() -> None:
    pool = ready()
    pool.enqueue([0], 0)
    [load] = given(pool.add_worker("a", None), LoadWeights)
    assert load == LoadWeights("a", 0, 1) and pool.enqueue([1], 0) == []
    assert given(pool.handle_weights_loaded(load))[0].task_name == 0
    pool.remove_worker("a", "killed")
    [again] = given(pool.add_worker("a", None), LoadWeights)
    assert pool.handle_weights_loaded(load) == []  # said by the earlier worker of this name
    assert given(pool.handle_weights_loaded(again))[0] == DispatchTask("a", 0, 0, 2)


def test_what_a_lost_worker_says_later_is_dropped() -> None:
    pool = ready("a")
    [old] = given(pool.enqueue(["g"], 0))
    assert pool.remove_worker("a", "killed") == [CountRetry("g", "killed")]
    [new] = given(pool.add_worker("a", 0))
    assert pool.handle_task_ended(old) == [] and pool.num_unfinished_groups == 1
    assert pool.handle_task_ended(new) == [AcceptResult(new)] and pool.num_unfinished_groups == 0
    assert pool.handle_task_ended(new) == []


def test_a_lost_group_comes_before_all_others() -> None:
    pool = ready("a", "b")
    first, _ = given(pool.enqueue(range(4), 0))
    pool.remove_worker("a", "killed")
    assert given(pool.handle_task_ended(DispatchTask("b", 1, 0, 1)))[0].task_name == first.task_name


def test_a_group_that_ends_its_worker_twice_is_given_up() -> None:
    pool = ready("a", "b", max_lost_workers_per_task=2)
    pool.enqueue(["bad", "good"], 0)
    assert given(pool.remove_worker("a", "killed"), CountRetry)
    assert given(pool.handle_task_ended(DispatchTask("b", "good", 0, 1)))[0].task_name == "bad"
    assert pool.remove_worker("b", "out of memory") == [AbandonTask("bad", "out of memory")] and pool.num_unfinished_groups == 0


def test_a_loss_that_is_nobodys_fault_is_not_counted() -> None:
    pool = ready("a")
    pool.enqueue(["g"], 0)
    for _ in range(5):
        assert given(pool.remove_worker("a", "its machine is gone", may_be_cause=False), CountRetry)
        assert given(pool.add_worker("a", 0))[0].task_name == "g"


def test_the_company_of_a_bad_group_is_not_given_up() -> None:
    pool, up, kept = ready(max_lost_workers_per_task=2), list[Hashable](), list[Hashable]()
    pool.enqueue(["bad", *range(7)], 0)
    for _ in range(3):  # each time it takes three others with it, until it has its worker to itself
        running = given(pool.add_worker("a", 0, capacity=4))
        while not any(order.task_name == "bad" for order in running):
            said = pool.handle_task_ended(running.pop(0))
            kept += [keep.command.task_name for keep in given(said, AcceptResult)]
            running += given(said)
        up += [order.task_name for order in given(pool.remove_worker("a", "killed"), AbandonTask)]
    running = given(pool.add_worker("a", 0, capacity=4))
    while running:
        said = pool.handle_task_ended(running.pop(0))
        kept += [keep.command.task_name for keep in given(said, AcceptResult)]
        running += given(said)
    assert up == ["bad"] and sorted(kept, key=str) == list(range(7))


@pytest.mark.parametrize("others", ["b", "bc", "bcd"])
def test_a_suspect_does_not_wait_until_nothing_else_is_asked(others: str) -> None:
    pool = ready("a", *others, room=2, max_lost_workers_per_task=1)
    running = [order for order in given(pool.enqueue(range(2 + 2 * len(others)), 0)) if order.worker != "a"]
    lost = {again.task_name for again in given(pool.remove_worker("a", "killed"), CountRetry)}
    begun = list[Hashable]()
    for place in range(60):  # there is always more to do
        said = [*pool.enqueue([f"more {place}"], 0), *pool.handle_task_ended(running.pop(0))]
        running += given(said)
        begun += [order.task_name for order in given(said)]
    assert len(lost) == 2 and lost <= set(begun[:20]) and len(begun) > 50, begun


def test_a_worker_with_nothing_left_takes_the_next_batch_while_others_still_work() -> None:
    pool = ready("a", "b", backup_task_fraction=0.0)
    pool.enqueue(["0:0", "0:1"], 0)
    pool.enqueue(["1:0"], 1)
    assert pool.handle_task_ended(DispatchTask("a", "0:0", 0, 1)) == [
        AcceptResult(DispatchTask("a", "0:0", 0, 1))
    ]  # version 1 does not exist yet
    [load] = given(pool.add_version(1), LoadWeights)
    assert load == LoadWeights("a", 1, 1) and given(pool.handle_weights_loaded(load))[0].task_name == "1:0"
    assert pool.needed_versions == {0, 1}


def test_a_group_that_was_asked_first_is_not_passed_over_for_a_suspect_of_its_version() -> None:
    pool = WorkScheduler(max_lost_workers_per_task=1, num_older_versions=2)
    pool.add_version(0)
    for group, version in (("first", 0), ("newer", 2), ("one", 0), ("two", 0)):
        pool.enqueue([group], version)
    assert [order.task_name for order in given(pool.add_worker("a", 0))] == ["first"]
    assert [order.task_name for order in given(pool.add_worker("b", 0, capacity=2))] == ["one", "two"]
    pool.remove_worker("b", "its groups may have ended it")
    pool.remove_worker("a", "its machine is gone", may_be_cause=False)
    orders = [*pool.add_version(1), *pool.add_version(2), *pool.add_worker("c", 0)]
    done = list[Hashable]()
    for order in orders:
        done += [order.command.task_name] if isinstance(order, AcceptResult) else []
        orders += (
            pool.handle_weights_loaded(order)
            if isinstance(order, LoadWeights)
            else pool.handle_task_ended(order)
            if isinstance(order, DispatchTask)
            else []
        )
        assert len(orders) < 50, "it loads one version after the other, and samples nothing"
    assert set(done) == {"first", "newer", "one", "two"} and done.index("first") < done.index("newer")


def test_a_lost_group_of_an_older_version_is_sampled_by_that_version() -> None:
    pool = ready("a", "b", backup_task_fraction=0.0)
    pool.enqueue(["0:0"], 0)
    pool.add_version(1)
    pool.enqueue(["1:0", "1:1", "1:2"], 1)
    [old] = [load for load in pool.remove_worker("a", "killed") if isinstance(load, LoadWeights)] or [LoadWeights("b", 1, 1)]
    orders = pool.handle_weights_loaded(old)
    seen = [old.version]
    while pool.num_unfinished_groups:
        for order in orders:
            if isinstance(order, DispatchTask):
                assert order.version == seen[-1] == int(str(order.task_name)[0])
                orders = pool.handle_task_ended(order)
                break
            if isinstance(order, LoadWeights):
                seen.append(order.version)
                orders = pool.handle_weights_loaded(order)
                break
        else:
            raise AssertionError(orders)
    assert 0 in seen and 1 in seen


def test_the_last_groups_are_copied_and_the_slower_copy_is_cancelled() -> None:
    pool = ready("a", "b", backup_task_fraction=0.5)
    first, second = given(pool.enqueue(["g", "h"], 0))
    copy = DispatchTask("b", "g", 0, 2)
    assert pool.handle_task_ended(second) == [AcceptResult(second), copy]
    assert pool.handle_task_ended(copy) == [AcceptResult(copy), CancelCopy(first)]
    assert pool.handle_task_ended(first) == [] and pool.num_unfinished_groups == 0  # it stopped, or it had ended too


def test_all_workers_without_work_take_copies_once_few_groups_are_left() -> None:
    pool = ready("a", "b", "c", "d", backup_task_fraction=0.5)
    orders = given(pool.enqueue(range(4), 0))
    assert given(pool.handle_task_ended(orders[3])) == []  # three of four are left
    assert {(order.worker, order.task_name) for order in given(pool.handle_task_ended(orders[2]))} == {("c", 0), ("d", 1)}


def test_a_copy_whose_worker_is_lost_costs_nothing() -> None:
    pool = ready("a", "b", backup_task_fraction=0.5)
    first, second = given(pool.enqueue(["g", "h"], 0))
    pool.handle_task_ended(second)
    assert pool.remove_worker("b", "killed") == []
    assert pool.handle_task_ended(first) == [AcceptResult(first)]


def test_a_worker_that_has_had_its_time_is_dropped() -> None:
    pool = ready("a", task_timeout_s=10, load_timeout_s=5)
    pool.enqueue(["g"], 0)
    assert pool.kill_late_workers(100) == [] and pool.kill_late_workers(110) == []
    drop, again = pool.kill_late_workers(110.1)
    assert drop == KillWorker("a", "task g did not end in 10 s (cluster.task_timeout_s)") and isinstance(again, CountRetry)
    pool.add_worker("b", None)
    assert pool.kill_late_workers(200) == []
    assert pool.kill_late_workers(206)[0] == KillWorker("b", "version 0 was not loaded in 5 s (cluster.startup_timeout_s)")


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda pool: pool.enqueue(["g"], 0), "'g' was already added"),
        (lambda pool: pool.add_version(0), "version 0 of the weights is not newer than 0"),
        (lambda pool: pool.add_worker("a", 0), "'a' was already added"),
        (lambda pool: pool.add_worker("b", 0, capacity=0), "capacity for 0 groups"),
        (
            lambda pool: (pool.handle_task_ended(DispatchTask("a", "g", 0, 1)), pool.add_version(1), pool.enqueue(["h"], 0)),
            "version 0 of the weights is gone",
        ),
    ],
)
def test_a_driver_that_errs_is_told(call: Any, words: str) -> None:
    pool = ready("a")
    pool.enqueue(["g"], 0)
    with pytest.raises(ValueError, match=words):
        call(pool)


def test_no_version_can_be_left_out_while_groups_of_it_are_asked() -> None:
    pool = ready("a")
    pool.enqueue(["g"], 5)
    with pytest.raises(ValueError, match="version 6 of the weights came before version 5, which has waiting groups"):
        pool.add_version(6)
    [load] = given(pool.add_version(5), LoadWeights)
    assert given(pool.handle_weights_loaded(load))[0].task_name == "g"


def test_a_version_that_is_needed_no_more_cannot_be_asked() -> None:
    pool = ready("a")
    [order] = given(pool.enqueue(["g"], 0))
    pool.add_version(1)
    assert pool.needed_versions == {0, 1}
    pool.enqueue(["h"], 0)  # its weights are still there
    [other] = given(pool.handle_task_ended(order))
    pool.handle_task_ended(other)
    assert pool.needed_versions == {1}  # now the driver may free them
    with pytest.raises(ValueError, match="version 0 of the weights is gone"):
        pool.enqueue(["i"], 0)


def test_an_ask_that_is_refused_changes_nothing() -> None:
    pool = ready("a")
    with pytest.raises(ValueError, match="'g' was already added"):
        pool.enqueue(["f", "g", "g"], 0)
    assert pool.num_unfinished_groups == 0 and [order.task_name for order in given(pool.enqueue(["f"], 0))] == ["f"]


def test_a_worker_that_is_dropped_too_gets_nothing_of_one_that_is_dropped_with_it() -> None:
    pool = ready("a", "b", "c", room=4, task_timeout_s=10)
    pool.enqueue(["f", "g", "h"], 0)
    pool.kill_late_workers(0)
    said = pool.kill_late_workers(11)
    assert [order.worker for order in given(said, KillWorker)] == ["a", "b", "c"] and not given(said)
    assert [order.task_name for order in given(said, CountRetry)] == ["f", "g", "h"]


# ---- ten thousand random histories --------------------------------------------------------------------------------------


class History:
    """A driver and its workers, which do at random whatever can happen. It checks each order, and what must hold at the end."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.k, self.steps, self.size = self.draw.randrange(3), 4, self.draw.randrange(1, 6)
        self.early = self.draw.random() < 0.5  # asks before the version exists
        self.rooms = self.draw.choice([(1,), (1, 2, 3)])
        self.killers = {(step, place) for step in range(self.steps) for place in range(self.size) if self.draw.random() < 0.03}
        self.pool = WorkScheduler(
            task_timeout_s=20,
            load_timeout_s=20,
            max_lost_workers_per_task=2,
            backup_task_fraction=self.draw.choice([0.0, 0.1, 0.5]),
        )
        self.workers = dict[str, dict[str, Any]]()
        self.said = list[tuple[str, Any]]()  # what lost workers may still say
        self.kept, self.given_up, self.losses = Counter[Hashable](), Counter[Hashable](), Counter[Hashable]()
        self.made, self.asked, self.now, self.births = -1, 0, 0.0, 0
        self.storm = True

    def follow(self, orders: Sequence[Command]) -> None:
        for order in orders:
            match order:
                case DispatchTask(name, tuple() as group, version, _):
                    worker = self.workers[name]
                    assert worker["version"] == version == max(0, group[0] - self.k) <= self.made and worker["loading"] is None
                    assert sum(order.task_name == other.task_name for w in self.workers.values() for other in w["holds"]) <= 1
                    worker["holds"].add(order)
                    assert len(worker["holds"]) <= worker["room"]
                    assert order.task_name not in self.kept and order.task_name not in self.given_up
                case LoadWeights(name, version, _):
                    assert (
                        not self.workers[name]["holds"] and self.workers[name]["loading"] is None and version in self.pool.needed_versions
                    )
                    self.workers[name]["loading"] = order
                case AcceptResult(kept):
                    self.kept[kept.task_name] += 1
                case AbandonTask(group, _):
                    self.given_up[group] += 1
                    assert self.losses[group] >= 2
                case CancelCopy(cancelled):
                    assert (
                        cancelled in self.workers[cancelled.worker]["holds"]
                        and self.kept[cancelled.task_name] + self.given_up[cancelled.task_name]
                    )
                    self.workers[cancelled.worker]["cancelled"].add(cancelled)
                case KillWorker(name, _):
                    self.bury(name, blame=True)
                case CountRetry(group, _):
                    assert group not in self.kept

    def bury(self, name: str, *, blame: bool) -> None:
        gone = self.workers.pop(name)
        self.said += [("handle_task_ended", order) for order in gone["holds"]] + (
            [("handle_weights_loaded", gone["loading"])] if gone["loading"] else []
        )
        if blame:
            self.losses.update(order.task_name for order in gone["holds"])

    def join(self) -> None:
        name = self.draw.choice("abcd")
        if name not in self.workers:
            self.births += 1
            version = self.draw.choice([None, 0]) if self.storm else None
            worker: dict[str, Any] = {"version": version, "room": self.draw.choice(self.rooms), "loading": None, "frozen": False}
            self.workers[name] = worker | {"holds": set(), "cancelled": set()}
            self.follow(self.pool.add_worker(name, version, capacity=worker["room"]))

    def lose(self) -> None:
        if self.workers:
            name, blame = self.draw.choice(sorted(self.workers)), self.draw.random() < 0.2
            self.bury(name, blame=blame)
            self.follow(self.pool.remove_worker(name, "killed", may_be_cause=blame))

    def work(self) -> None:
        awake = [name for name in sorted(self.workers) if not self.workers[name]["frozen"]]
        if not awake:
            return
        name = self.draw.choice(awake)
        worker = self.workers[name]
        if (load := worker["loading"]) is not None:
            worker["loading"], worker["version"] = None, load.version
            self.follow(self.pool.handle_weights_loaded(load))
        elif bad := [order for order in worker["holds"] if order.task_name in self.killers and order not in worker["cancelled"]]:
            self.bury(name, blame=True)
            self.follow(self.pool.remove_worker(name, f"{bad[0].task_name} is bad"))
        elif worker["holds"]:
            order = self.draw.choice(sorted(worker["holds"], key=str))
            worker["holds"].remove(order)
            self.follow(self.pool.handle_task_ended(order))

    def freeze(self) -> None:
        if self.workers:
            self.workers[self.draw.choice(sorted(self.workers))]["frozen"] = True

    def speak(self) -> None:
        """A worker that is lost says what it had to say."""
        if self.said:
            what, order = self.said.pop(self.draw.randrange(len(self.said)))
            assert getattr(self.pool, what)(order) == []

    def go_on(self) -> None:
        """The trainer: batch t is asked, and when it is all there, version t + 1 exists."""
        if self.made < 0:
            self.made = 0
            self.follow(self.pool.add_version(0))
        if self.asked < self.steps and (self.early or max(0, self.asked - self.k) <= self.made):
            step, self.asked = self.asked, self.asked + 1
            self.follow(self.pool.enqueue([(step, place) for place in range(self.size)], max(0, step - self.k)))
        over = sum(group[0] == self.made for group in [*self.kept, *self.given_up])  # type: ignore[index]
        in_time = self.asked >= min(self.steps, self.made + 1 + self.k)  # what this version is to sample was asked
        if self.made < self.steps and over == self.size and in_time:
            self.made += 1
            self.follow(self.pool.add_version(self.made))

    def tick(self, seconds: float = 5.0) -> None:
        self.now += seconds
        self.follow(self.pool.kill_late_workers(self.now))

    def run(self) -> None:
        doings = [self.join, *[self.work] * 4, *[self.go_on] * 2, self.lose, self.freeze, self.speak, self.tick]
        for _ in range(40):
            self.draw.choice(doings)()
        self.storm = False
        for _ in range(600):  # from now on, whoever is lost comes back, and nobody is lost but by a bad group
            if self.pool.num_unfinished_groups == 0 and self.asked == self.steps:
                break
            if not self.workers:
                self.join()
            for doing in (self.work, self.work, self.go_on, self.speak):
                doing()
            if any(worker["frozen"] for worker in self.workers.values()):
                self.tick(10)
        every = {(step, place) for step in range(self.steps) for place in range(self.size)}
        assert {*self.kept, *self.given_up} == every and {*self.kept.values(), *self.given_up.values()} == {1}, (self.kept, self.given_up)
        assert not self.kept.keys() & self.given_up.keys() and not self.kept.keys() & self.killers
        assert self.pool.num_unfinished_groups == 0 and math.isfinite(self.now)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(4))
def test_random_histories(part: int) -> None:
    for seed in range(part, HISTORIES, 4):
        try:
            History(seed).run()
        except AssertionError as error:
            raise AssertionError(f"history {seed}: {error}") from error
