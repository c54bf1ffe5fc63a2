"""Training on code: programs are run while others are still being sampled, and a run that is killed leaves nothing behind."""

from __future__ import annotations

import io
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from rlvr.contracts import Completion, Request, Sampler, SamplingParams
from rlvr.mdp.token_mdp import TokenMDP
from rlvr.mdp.tokenizers import load_tokenizer
from rlvr.registry.plugins import build, build_from_config
from rlvr.rollout.rollout import Rollout, RolloutRequest
from rlvr.runs.run_log import read_jsonl
from rlvr.samplers.scripted import ScriptedSampler
from rlvr.sandbox._outside import engine
from rlvr.task import Task, Verdict
from rlvr.training.train import train
from tests.fixtures.preloaded import COMMAND, started_program
from tests.fixtures.tiny import MODEL, tiny_run

pytestmark = pytest.mark.docker
CODE: dict[str, Any] = {
    "env": {
        "name": "code_contest",
        "shown": 0,
        "hidden": 2,
        "verifier": {"name": "unit_tests", "sandbox": {"name": "docker", "containers": 1}},
    },
    "tokenizer": "bytes",
    "model": {"config": MODEL | {"max_position_embeddings": 2048}},
    "sft_warmup": None,
    "eval": {"tasks": 2},
}
ROOT = Path(__file__).resolve().parents[2]


class Attentive(ScriptedSampler):
    """Says the gold solutions, and each only when all but the last one before it have been judged."""

    def __init__(self, judged: list[str]) -> None:
        super().__init__()
        self.judged = judged

    def stream_completions(self, requests: Sequence[Request], sampling: SamplingParams) -> Iterator[tuple[int, Completion]]:
        for count, pair in enumerate(super().stream_completions(requests, sampling)):
            until(lambda done=count - 1: len(self.judged) >= done)
            yield pair

    stream_from_queue = Sampler.stream_from_queue  # which calls `stream_completions`


def test_programs_run_while_others_are_being_sampled(monkeypatch: pytest.MonkeyPatch) -> None:
    """If verification began when sampling ends, this sampler would wait for ever."""
    tokenizer = load_tokenizer("bytes")
    judged: list[str] = []
    with build_from_config("env", CODE["env"]) as environment:
        verify = environment.verifier.verify

        def counted(task: Task, answer: str) -> Verdict:
            verdict: Verdict = verify(task, answer)
            judged.append(task.id)
            return verdict

        monkeypatch.setattr(environment.verifier, "verify", counted)
        sampler = Attentive(judged)
        sampler.setup(environment, tokenizer)
        with Rollout(TokenMDP(environment, tokenizer), sampler=sampler) as rollout:
            draws = [RolloutRequest(environment.task("train", n), f"g{n}", n) for n in range(12)]
            episodes = rollout.collect(draws, SamplingParams(stop_ids=tokenizer.stop_ids))
    assert [episode.reward for episode in episodes] == [1.0] * 12
    timing = rollout.timing
    assert 0 < timing.verify_busy_s <= timing.total_verify_s + 1e-9 and 0 < timing.hidden_verify_fraction <= 1, timing


def test_a_model_is_trained_on_code_and_the_hidden_share_is_logged(tmp_path: Path) -> None:
    config = tiny_run(**CODE, rollout={"sampler": "scripted", "prompts_per_step": 2, "num_generations": 4})
    report = train(config, out=tmp_path / "run", console=Console(file=io.StringIO()))
    assert report.rewards == [1.0, 1.0] and report.accuracy_after == 1.0
    assert all(0 <= row["verify_hidden"] <= 1 for row in read_jsonl(tmp_path / "run" / "timings.jsonl"))


def test_a_killed_training_leaves_no_container_and_no_process(tmp_path: Path, preloaded: Path) -> None:
    config = tiny_run(**CODE, rollout={"sampler": "scripted", "prompts_per_step": 4, "num_generations": 8}, train={"steps": 100_000})
    (tmp_path / "long.yaml").write_text(config.to_yaml(), "utf-8")
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)}
    arguments = ("train", str(tmp_path / "long.yaml"), "--out", str(tmp_path / "run"))
    with started_program(preloaded, COMMAND, *arguments, said=tmp_path / "said", env=environment) as program:
        until(lambda: (tmp_path / "run" / "metrics.jsonl").is_file() and (tmp_path / "run" / "metrics.jsonl").stat().st_size > 0)
        names, pids = belonging(program.pid)
        assert names and pids
        program.kill()
    with build("sandbox", "docker", containers=1) as sandbox:
        sandbox.prepare()  # the next start, with its sweep
        until(lambda: belonging(program.pid) == ([], []) and not any(os.path.exists(f"/proc/{pid}") for pid in pids))
    assert not list(tmp_path.glob("rlvr-*")), "nor a folder among the temporary ones"


def belonging(pid: int) -> tuple[list[str], list[int]]:
    """The containers of one run, by their label, and the processes in them."""
    client = engine.connect()
    try:
        found = client.containers.list(all=True, filters={"label": engine.LABEL}, ignore_removed=True)
        mine = [container for container in found if container.labels[engine.LABEL].split("|")[3] == str(pid)]
        return [str(container.id) for container in mine], [container.attrs["State"]["Pid"] for container in mine]
    finally:
        client.close()


def until(true: Any, seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "it did not come true in time"
        time.sleep(0.1)
