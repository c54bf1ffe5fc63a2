"""Canary tasks: a hole in the verifier is told, a sound verifier is never blamed, and the answers are in the run folder."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from rlvr.config.config import load_config
from rlvr.errors import CheckFailed, ConfigError
from rlvr.registry.plugins import build
from rlvr.rollout.replay import replay_recorded_episodes
from rlvr.runs.run_log import read_jsonl
from rlvr.task import Task, make_user_prompt
from rlvr.training.task_sampling.canary import CanaryTasks, make_canary
from rlvr.training.train import train
from tests.fixtures.tiny import tiny_run

LEAKY = '''
from rlvr import VerifierExample, Task, Verdict
from rlvr.verifiers.exact import make as Exact


class Leaky(Exact):
    """Pays every answer that begins with an even digit, which is a hole."""

    def verify(self, task: Task, answer: str) -> Verdict:
        return Verdict(1.0, "a hole") if answer[:1] in tuple("02468") else super().verify(task, answer)


class Blind(Exact):
    """Never looks at the reference."""

    def verify(self, task: Task, answer: str) -> Verdict:
        return Verdict(1.0, "paid")
'''


def quiet() -> Console:
    return Console(file=io.StringIO(), width=200)


def run(tmp_path: Path, verifier: Any, **rollout: Any) -> Any:
    sums = {"name": "arithmetic", "levels": ["1+1"], "verifier": verifier}
    counts = {"prompts_per_step": 4, "num_generations": 4, "max_new_tokens": 4, "canary_fraction": 0.5, **rollout}
    return tiny_run(env=sums, rollout=counts, eval={"tasks": 0}, sft_warmup=None)


@pytest.fixture
def leaky(tmp_path: Path) -> str:
    path = tmp_path / "leaky.py"
    path.write_text(LEAKY, "utf-8")
    return str(path)


def test_a_hole_is_told_and_stops_the_run(tmp_path: Path, leaky: str) -> None:
    screen, out = quiet(), tmp_path / "run"
    with pytest.raises(CheckFailed, match=r"rewarded \d+ answers to canary tasks.*canaries.jsonl"):
        train(run(tmp_path, f"{leaky}:Leaky", max_rewarded_canaries=0), out=out, console=screen)
    found = list(read_jsonl(out / "canaries.jsonl"))
    assert found and all(row["canary"] and row["reward"] == 1.0 and row["text"] and len(row["reference"]) == 12 for row in found)
    rows = list(read_jsonl(out / "metrics.jsonl"))
    assert sum(row["canary/rewarded"] for row in rows) == rows[-1]["canary/rewarded_total"] == len(found)
    assert "were rewarded: the verifier has a loophole" in " ".join(screen.file.getvalue().split())  # type: ignore[attr-defined]


@pytest.mark.slow
def test_the_recipe_has_a_hole_that_stops_it_and_that_a_sound_verifier_has_not(tmp_path: Path) -> None:
    short = ["eval.tasks=0", "train.steps=12"]
    with pytest.raises(CheckFailed, match="it has a loophole and the policy has found it"):
        train(load_config("canaries", short), out=tmp_path / "weak", console=quiet())
    for row in read_jsonl(tmp_path / "weak" / "canaries.jsonl"):
        assert row["verdict"]["components"] == {"value": 0.0, "form": 1.0} and len(row["text"]) >= 3
    sound = load_config("canaries", [*short, "env.verifier=numeric", "train.steps=2", "sft_warmup.max_steps=5"])
    train(sound, out=tmp_path / "sound", console=quiet())
    assert list(read_jsonl(tmp_path / "sound" / "metrics.jsonl"))[-1]["canary/rewarded_total"] == 0


def test_a_sound_verifier_is_not_blamed_and_nothing_else_changes(tmp_path: Path) -> None:
    train(run(tmp_path, "exact"), out=tmp_path / "with", console=quiet())
    train(run(tmp_path, "exact", canary_fraction=0.0), out=tmp_path / "without", console=quiet())
    ours, plain = (read_jsonl(tmp_path / name / "metrics.jsonl") for name in ("with", "without"))
    for with_pots, without in zip(ours, plain, strict=True):
        assert with_pots["canary/scored"] == 8 and with_pots["canary/rewarded"] == 0
        for name in ("reward", "reward_std", "loss", "grad_norm", "tokens/trained", "completions/mean_length"):
            assert with_pots[name] == without[name], name
        assert with_pots["tokens/sampled"] == without["tokens/sampled"] + with_pots["tokens/dropped_canary"]
    assert not (tmp_path / "with" / "canaries.jsonl").exists()
    assert replay_recorded_episodes(tmp_path / "with").mismatches == 0


def test_the_count_goes_on_after_a_resume(tmp_path: Path, leaky: str) -> None:
    config = run(tmp_path, f"{leaky}:Leaky", max_rewarded_canaries=1000)
    train(config, out=tmp_path / "run", console=quiet())
    whole = [row["canary/rewarded_total"] for row in read_jsonl(tmp_path / "run" / "metrics.jsonl")]
    pots = CanaryTasks(build("env", "arithmetic"), fraction=0.1, max_rewarded=3, seed=0)
    pots.load_state_dict({"num_rewarded": int(whole[-1])})
    assert pots.pop_metrics()["canary/rewarded_total"] == whole[-1] >= whole[0]


@pytest.mark.parametrize(
    ("env", "words"),
    [
        ({"name": "guess_number"}, "one turn"),
        ({"name": "countdown"}, "needs references that are a text or a number|cannot judge"),
        ({"name": "arithmetic", "verifier": "LEAKY:Blind"}, "does not compare with the reference"),
    ],
)
def test_what_canaries_cannot_tell_is_refused_before_the_run(env: dict[str, Any], words: str, leaky: str) -> None:
    env = {key: value.replace("LEAKY", leaky) for key, value in env.items()}
    with build("env", env.pop("name"), **env) as environment, pytest.raises(ConfigError, match=words):
        CanaryTasks(environment, fraction=0.01, max_rewarded=3, seed=0)


def test_a_canary_is_the_same_prompt_with_a_reference_of_the_same_kind() -> None:
    task = Task(make_user_prompt("2+2="), "4", id="t", meta={"level": 1})
    pot = make_canary(task, 7)
    assert (pot.prompt, pot.id, pot.meta) == (task.prompt, task.id, task.meta)
    assert pot.reference.isdigit() and len(pot.reference) == 12 and pot == make_canary(task, 7) != make_canary(task, 8)
    assert isinstance(make_canary(Task(make_user_prompt("?"), 4, id="t"), 0).reference, int)
    assert make_canary(Task(make_user_prompt("?"), "Paris", id="t"), 0).reference.isalpha()


def test_so_many_are_asked_as_the_share_says() -> None:
    with build("env", "arithmetic") as environment:
        pots = CanaryTasks(environment, fraction=0.01, max_rewarded=3, seed=0)
        asked = [(i, environment.task("train", i)) for i in range(8)]
        counts = [len(pots.make_requests(asked, step=step, first_group_number=0, num_regular_completions=64)) for step in range(300)]
    assert set(counts) == {0, 1} and 150 < sum(counts) < 240
