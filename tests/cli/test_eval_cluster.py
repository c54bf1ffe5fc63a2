"""An evaluation whose answers come from rollout_workers, which are lost in the middle: the folder is that of one process. Without a cluster."""

from __future__ import annotations

import pickle
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from rlvr.cli.commands import run_command
from rlvr.cli.evaluating import ClusterSampling
from rlvr.cluster import ray_transport as actors
from rlvr.cluster.rollout_tasks import RolloutTask
from rlvr.cluster.rollout_worker import EvalWorkerSettings
from rlvr.cluster.scheduler_commands import DispatchTask
from rlvr.cluster.transport import Event, WorkerLost
from rlvr.config.config import ModelConfig
from rlvr.contracts import Completion, RequestQueue
from rlvr.errors import AllClusterWorkersLost, ConfigError, RlvrError
from rlvr.evaluation.evaluate import evaluate
from rlvr.evaluation.suite import SuiteItem
from rlvr.mdp.tokenizers import CharTokenizer
from rlvr.models.model_loading import load_model, to_transformers_tokenizer
from rlvr.registry.plugins import PluginSpec
from rlvr.runs.run_log import read_jsonl
from rlvr.samplers.scripted import ScriptedSampler
from rlvr.training import checkpoint
from rlvr.training.checkpoint import Progress
from tests.cluster import test_training
from tests.cluster.test_training import InThisProcess
from tests.evaluation.test_rounds import SUITE, SUMS, results
from tests.fixtures.tiny import MODEL
from tests.fixtures.worlds import DIGITS

Said = pytest.CaptureFixture[str]


@pytest.fixture
def there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ClusterSampling:
    """Two rollout workers in this process; one call in five loses its rollout worker."""
    monkeypatch.setattr(actors, "RayTransport", InThisProcess)
    monkeypatch.setattr(InThisProcess, "lost", 0)
    monkeypatch.setattr(test_training, "CHANCE", random.Random(0))
    return asked(tmp_path, "{rollout_workers: 2, max_restarts_per_worker: 100}", tmp_path / "there")


def asked(tmp_path: Path, settings: str, out: Path | None) -> ClusterSampling:
    (tmp_path / "cluster.yaml").write_text(f"cluster: {settings}", "utf-8")
    found = ClusterSampling.from_cli(str(tmp_path / "cluster.yaml"), out, Console(stderr=True))
    assert found is not None
    return found


def test_a_suite_is_the_same_with_rollout_workers_that_are_lost(tmp_path: Path, there: ClusterSampling, capsys: Said) -> None:
    suite = tmp_path / "suite.yaml"
    suite.write_text(SUITE, "utf-8")
    for folder, elsewhere in (("here", None), ("there", there)):
        evaluate(suite, "scripted:random", n=20, out=tmp_path / folder, remote_sampling=elsewhere)
    assert results(tmp_path / "here") == results(tmp_path / "there")
    said = capsys.readouterr().err
    assert "note: starting 2 rollout workers (cluster.address 'local')" in said and said.count(" is lost: killed;") == InThisProcess.lost
    assert InThisProcess.lost and {row["event"] for row in read_jsonl(tmp_path / "there" / "rollout_workers.jsonl")} == {"lost"}


def test_a_model_is_sampled_in_the_rounds_of_one_process(tmp_path: Path, there: ClusterSampling, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = CharTokenizer(DIGITS)
    place = checkpoint.save_checkpoint(
        tmp_path, load_model(ModelConfig(config=MODEL), tokenizer), to_transformers_tokenizer(tokenizer), {}, Progress(1)
    )
    sizes = list[int]()

    class Counting(InThisProcess):
        def start_task(self, order: DispatchTask, unit: RolloutTask, *rest: Any) -> None:
            sizes.append(len(unit))
            super().start_task(order, unit, *rest)

    monkeypatch.setattr(actors, "RayTransport", Counting)
    for folder, elsewhere in (("here", None), ("there", there)):
        evaluate(SUMS, f"hf:{place}", tasks=60, n=4, concurrency=16, out=tmp_path / folder, remote_sampling=elsewhere)
    assert results(tmp_path / "here") == results(tmp_path / "there") and {*sizes} == {16}


class Dead(InThisProcess):
    def start_task(self, command: DispatchTask, rollout_task: RolloutTask, *rest: Any) -> None:
        self.work.append(WorkerLost(command.worker, "killed by it"))

    def poll(self, timeout_s: float) -> list[Event]:
        return [self.work.pop(0)]

    def kill_worker(self, worker: str) -> None:
        self.rollout_workers.pop(worker).close()


def test_without_rollout_workers_it_ends_and_the_same_call_continues(
    tmp_path: Path, there: ClusterSampling, monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluate(SUMS, "scripted:random", tasks=30, n=2, out=tmp_path / "here")
    monkeypatch.setattr(actors, "RayTransport", Dead)
    few = asked(tmp_path, "{rollout_workers: 2, max_restarts_per_worker: 0, max_lost_workers_per_task: 9}", tmp_path / "there")
    with pytest.raises(AllClusterWorkersLost, match=r"the last one was lost: killed by it; .*an evaluation: with the same command"):
        evaluate(SUMS, "scripted:random", tasks=30, n=2, out=tmp_path / "there", remote_sampling=few)
    assert not (tmp_path / "there").exists()  # there is no sample, and so no evaluation to resume
    monkeypatch.setattr(actors, "RayTransport", InThisProcess)
    evaluate(SUMS, "scripted:random", tasks=30, n=2, out=tmp_path / "there", remote_sampling=there)
    assert results(tmp_path / "here") == results(tmp_path / "there")


class Never(Dead):
    def start_worker(self, worker: str) -> None:
        self.work.append(WorkerLost(worker, "NotFound: there is no such file", is_permanent=True))

    def kill_worker(self, worker: str) -> None:
        pass


def test_rollout_workers_that_cannot_start_leave_the_folder_as_it_was(
    tmp_path: Path, there: ClusterSampling, monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluate(SUMS, "scripted:random", tasks=3, out=tmp_path / "there")
    before = {path.name: path.read_bytes() for path in (tmp_path / "there").iterdir() if path.is_file()}
    monkeypatch.setattr(actors, "RayTransport", Never)
    with pytest.raises(RlvrError, match=r"rollout worker c0\.0 cannot start: NotFound: there is no such file"):
        evaluate(SUMS, "scripted:random", tasks=5, out=tmp_path / "there", remote_sampling=there)
    after = {path.name: path.read_bytes() for path in (tmp_path / "there").iterdir() if path.is_file()}
    assert b"there is no such file" in after.pop("rollout_workers.jsonl") and after == before


def test_what_would_fail_everywhere_ends_it_at_once(tmp_path: Path, there: ClusterSampling, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a key that an endpoint refuses: it is no reason to lose rollout_workers one after the other."""

    def refused(self: ScriptedSampler, feed: RequestQueue, *rest: Any) -> Completion:
        raise ConfigError("the key is wrong")

    class Telling(Dead):
        def start_task(self, order: DispatchTask, unit: RolloutTask, *rest: Any) -> None:
            try:
                InThisProcess.start_task(self, order, unit, *rest)
            except ConfigError as error:
                self.work.append(WorkerLost(order.worker, f"ConfigError: {error}", is_permanent=True))

    monkeypatch.setattr(ScriptedSampler, "stream_from_queue", refused)
    monkeypatch.setattr(actors, "RayTransport", Telling)
    with pytest.raises(RlvrError, match=r"rollout worker c\d\.0 cannot sample: ConfigError: the key is wrong"):
        evaluate(SUMS, "scripted:random", tasks=30, n=2, out=tmp_path / "there", remote_sampling=there)


@pytest.mark.parametrize("settings", ["{verifier_workers: 1}", "{max_resumes_after_all_rollout_workers_lost: 2}"])
def test_what_rollout_workers_of_an_evaluation_cannot_do_is_refused(tmp_path: Path, settings: str, capsys: Said) -> None:
    (tmp_path / "cluster.yaml").write_text(f"cluster: {settings}", "utf-8")
    out = tmp_path / "out"
    line = ["eval", SUMS, "--policy", "scripted:gold", "--tasks", "2", "--out", str(out), "--cluster", str(tmp_path / "cluster.yaml")]
    assert run_command(line) == 2 and not out.exists()
    assert f"cluster.{settings[1:-4]} is {settings[-2]}" in capsys.readouterr().err


def test_a_sampler_with_processes_of_its_own_is_refused(tmp_path: Path, there: ClusterSampling, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ScriptedSampler, "traits", replace(ScriptedSampler.traits, loads_weights=True, runs_model=False))
    with pytest.raises(ConfigError, match="the sampler 'scripted' has its own processes"):
        evaluate(SUMS, "scripted:random", tasks=3, out=tmp_path / "there", remote_sampling=there)
    assert not (tmp_path / "there").exists()


def test_no_rollout_workers_are_this_process(tmp_path: Path) -> None:
    (tmp_path / "cluster.yaml").write_text("cluster: {rollout_workers: 0}", "utf-8")
    assert ClusterSampling.from_cli(str(tmp_path / "cluster.yaml"), None, Console()) is None


def test_a_rollout_worker_is_built_from_plain_settings() -> None:
    exam = EvalWorkerSettings(PluginSpec("sampler", "scripted", {"answer": "gold"}), (SuiteItem(env={"name": SUMS}),))
    assert pickle.loads(pickle.dumps(exam)) == exam
