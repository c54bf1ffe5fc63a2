"""A run that loses all its rollout_workers resumes by itself, within a bound; and what it promises before it begins."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from accelerate import Accelerator

from rlvr.cluster import ray_transport as actors
from rlvr.cluster.training import train
from rlvr.cluster.transport import Event, TaskEnded, WorkerLost
from rlvr.errors import AllClusterWorkersLost, ConfigError
from rlvr.runs.run_log import read_jsonl
from rlvr.training.components import build_components
from rlvr.training.run_summary import describe_cluster_guarantees
from tests.cluster.test_training import InThisProcess, files
from tests.fixtures.tiny import tiny_run


class Mortal(InThisProcess):
    """Rollout workers that are all lost for good in the step after the first checkpoint, in so many of the first runs."""

    runs, bad = 0, 0

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        Mortal.runs += 1

    def poll(self, timeout_s: float) -> list[Event]:
        event = self.work.pop()
        if isinstance(event, TaskEnded) and event.command.version + Mortal.runs > 1 and Mortal.runs <= Mortal.bad:
            return [WorkerLost(event.command.worker, "killed", may_be_cause=False)]
        return [event]


@pytest.mark.parametrize(("bad", "resumes"), [(2, 2), (3, 2), (1, 0)])
def test_a_run_that_loses_all_rollout_workers_resumes_as_often_as_it_may(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, bad: int, resumes: int
) -> None:
    monkeypatch.setattr(actors, "RayTransport", Mortal)
    monkeypatch.setattr(Mortal, "bad", bad)
    monkeypatch.setattr(Mortal, "runs", 0)
    slept = list[float]()
    monkeypatch.setattr("rlvr.cluster.training.time.sleep", slept.append)
    cluster = {"rollout_workers": 1, "max_restarts_per_worker": 0, "max_resumes_after_all_rollout_workers_lost": resumes}
    config = tiny_run(cluster=cluster, sft_warmup=None, eval={"tasks": 0}, train={"steps": 3, "learning_rate": 1e-3})
    if bad > resumes:
        with pytest.raises(AllClusterWorkersLost, match=r"no rollout worker is left: .*continue with --resume"):
            train(config, out=tmp_path / "run")
    else:
        train(config, out=tmp_path / "run")
        train(tiny_run(**config.model_dump() | {"cluster": {"rollout_workers": 0}}), out=tmp_path / "alone")
        assert files(tmp_path / "run") == files(tmp_path / "alone")
    assert slept == [10.0, 20.0][:resumes] and Mortal.runs == min(bad, resumes) + 1
    told = [record.getMessage() for record in caplog.records if "is resumed in" in record.getMessage()]
    assert len(told) == resumes and all("no rollout worker is left" in line for line in told)
    events = [row["event"] for row in read_jsonl(tmp_path / "run" / "rollout_workers.jsonl")]
    assert events == (["lost", "resumed"] * bad if bad <= resumes else ["lost", "resumed"] * resumes + ["lost"])


def test_a_run_is_resumed_on_other_machines_and_with_other_limits_but_not_in_other_calls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(actors, "RayTransport", Mortal)
    monkeypatch.setattr(Mortal, "bad", 1)
    monkeypatch.setattr(Mortal, "runs", 0)

    def config(**cluster: Any) -> Any:
        return tiny_run(cluster=cluster, sft_warmup=None, eval={"tasks": 0}, train={"steps": 3, "learning_rate": 1e-3})

    with pytest.raises(AllClusterWorkersLost):
        train(config(rollout_workers=1, max_restarts_per_worker=0), out=tmp_path / "run")
    with pytest.raises(ConfigError, match=r"started with another configuration \(cluster.groups_per_task: None -> 2\)"):
        train(config(rollout_workers=3, groups_per_task=2), out=tmp_path / "run", resume=True)
    train(
        config(rollout_workers=3, max_restarts_per_worker=1000, startup_timeout_s=900.0, verifier_workers=0),
        out=tmp_path / "run",
        resume=True,
    )
    train(config(rollout_workers=0), out=tmp_path / "alone")
    assert files(tmp_path / "run") == files(tmp_path / "alone")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {},
            [
                "same schedule: always",
                "same tokens: yes, where rollout workers",
                "same gradients: yes, from the same tokens, with 1 learning",
            ],
        ),
        ({"train": {"steps": 1, "deterministic": False}}, ["same schedule: always", "same tokens: in distribution only", "up to rounding"]),
    ],
)
def test_what_is_exact_is_told_in_three_sentences(monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], words: list[str]) -> None:
    if changes:
        monkeypatch.setattr("rlvr.training.run_summary.requires_determinism", lambda config, device: False)
    accelerator = Accelerator(cpu=True)
    with ExitStack() as stack:
        components = build_components(tiny_run(cluster={"rollout_workers": 0}, **changes), accelerator, stack)
        told = describe_cluster_guarantees(components)
        assert len(told) == 3 and all(word in line for word, line in zip(words, told, strict=True))
        assert describe_cluster_guarantees(build_components(tiny_run(), accelerator, stack)) == []
        if not changes:
            components.sampler.traits = replace(components.sampler.traits, runs_model=False)  # as an engine of its own
            assert describe_cluster_guarantees(components)[1].startswith("same tokens: mostly, since an engine decides")
