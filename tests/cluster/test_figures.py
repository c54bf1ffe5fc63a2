"""What the driver counts of its rollout_workers: shares of the time of all of them, and what was lost, each since the last step."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path

import pytest

from rlvr.cluster.cluster_metrics import ClusterMetrics
from rlvr.cluster.event_log import FILE_NAME, EventLog


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_shares_are_of_the_time_of_all_rollout_workers_and_begin_again_with_each_step() -> None:
    clock = Clock()
    figures = ClusterMetrics(num_workers=2, clock=clock)
    figures.set_state("c0.0", "starting")
    figures.set_state("c1.0", "starting")
    clock.now += 2
    figures.set_state("c0.0", "idle")
    clock.now += 2
    figures.set_state("c0.0", "sampling")
    clock.now += 6
    row = figures.take_step_metrics()
    assert [row[f"cluster/{name}_fraction"] for name in ("starting", "idle", "sampling", "loading")] == [12 / 20, 2 / 20, 6 / 20, 0.0]
    assert row["cluster/rollout_workers"] == pytest.approx(0.8)
    clock.now += 10
    row = figures.take_step_metrics()
    assert row["cluster/sampling_fraction"] == row["cluster/starting_fraction"] == 0.5 and row["cluster/idle_fraction"] == 0.0


def test_a_lost_collector_has_no_share_and_what_it_says_later_does_not_count() -> None:
    clock = Clock()
    figures = ClusterMetrics(num_workers=1, clock=clock)
    figures.set_state("c0.0", "starting")
    figures.set_state("c0.0", "sampling")
    clock.now += 1
    figures.set_state("c0.0", None)
    figures.set_state("c0.0", "idle")
    clock.now += 3
    row = figures.take_step_metrics()
    assert row["cluster/sampling_fraction"] == 0.25 and row["cluster/idle_fraction"] == 0.0 and row["cluster/rollout_workers"] == 0.25


def test_counts_are_those_since_the_last_step() -> None:
    figures = ClusterMetrics(num_workers=1)
    figures.add_count("workers_lost")
    figures.add_count("weights_bytes", 10)
    figures.add_count("weights_bytes", 5)
    row = figures.take_step_metrics()
    assert (row["cluster/workers_lost"], row["cluster/weights_bytes"], row["cluster/retried_tasks"]) == (1.0, 15.0, 0.0)
    assert figures.take_step_metrics()["cluster/workers_lost"] == 0.0


def test_how_busy_verifier_workers_are_is_told_where_there_are_any() -> None:
    figures = ClusterMetrics(num_workers=1)
    assert "cluster/verifier_busy_fraction" not in figures.take_step_metrics()
    figures.get_verifier_load = lambda: 0.75
    assert figures.take_step_metrics()["cluster/verifier_busy_fraction"] == 0.75


def test_the_record_waits_for_its_run_and_then_only_grows(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    record = EventLog(folder)
    record.add("lost", collector="c0.0", words=["cut \ud800"])
    assert not folder.exists()
    folder.mkdir()
    (folder / "config.yaml").write_text("seed: 0")
    record.add("lost", collector="c1.0")
    EventLog(folder).add("resumed", times=1)
    rows = [json.loads(line) for line in (folder / FILE_NAME).read_text("utf-8").splitlines()]
    assert [(row["event"], row.get("collector")) for row in rows] == [("lost", "c0.0"), ("lost", "c1.0"), ("resumed", None)]
    assert rows[0]["time"] <= rows[1]["time"]


def test_a_log_that_is_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("seed: 1\n")
    os.mkfifo(tmp_path / FILE_NAME)
    writing = threading.Thread(target=EventLog(tmp_path).add, args=["lost"], daemon=True)
    writing.start()
    writing.join(10)
    assert not writing.is_alive()
