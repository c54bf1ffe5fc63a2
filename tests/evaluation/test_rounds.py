"""An evaluation that others sample: they are told what to sample together, and the folder and the figures are those of one process."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from rlvr.contracts import Sampler
from rlvr.episode import Episode
from rlvr.errors import ConfigError, SamplerError
from rlvr.evaluation.episode_sources import EnvRequests, EpisodeSource, LocalEpisodeSource
from rlvr.evaluation.evaluate import evaluate
from rlvr.evaluation.suite import SuiteItem
from rlvr.registry.plugins import PluginSpec
from rlvr.rollout.rollout_request import RolloutRequest
from rlvr.samplers.scripted import ScriptedSampler
from tests.fixtures.worlds import Sums

SUMS = "tests/fixtures/worlds.py:Sums"
SUITE = f"""
- {{name: small, env: {{name: "{SUMS}", below: 4}}, tasks: 9, n: 2}}
- {{name: chatty, env: guess_number, tasks: 5, n: 2}}
- {{name: sure, env: "{SUMS}", tasks: 4, sampler: {{answer: gold}}}}
"""


class Backwards:
    """Samples with a sampler of its own, and gives what it has in another order, some at a time."""

    def __init__(self) -> None:
        self.entered, self.asked = list[list[str]](), list[EnvRequests]()

    @contextmanager
    def __call__(self, spec: PluginSpec, sampler: Sampler, items: Sequence[SuiteItem]) -> Iterator[EpisodeSource]:
        self.entered.append([item.name for item in items])
        with spec.build() as own:
            self.here = LocalEpisodeSource(own)
            yield self

    def stream_episodes(self, asked: Iterable[EnvRequests]) -> Iterator[list[tuple[RolloutRequest, Episode]]]:
        mine = list(asked)
        self.asked += mine
        found = [pair for pairs in self.here.stream_episodes(mine) for pair in pairs][::-1]
        yield from (found[start : start + 7] for start in range(0, len(found), 7))


def results(folder: Path) -> tuple[bytes, list[str]]:
    return (folder / "report.json").read_bytes(), sorted((folder / "episodes.jsonl").read_text("utf-8").splitlines())


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    path = tmp_path / "suite.yaml"
    path.write_text(SUITE, "utf-8")
    return path


def test_what_others_sample_is_reported_as_if_this_process_had(tmp_path: Path, suite: Path) -> None:
    others = Backwards()
    evaluate(suite, "scripted:random", out=tmp_path / "here")
    evaluate(suite, "scripted:random", out=tmp_path / "there", remote_sampling=others)
    assert results(tmp_path / "there") == results(tmp_path / "here")
    assert others.entered == [["small", "chatty"], ["sure"]]  # one policy, one start


def test_others_are_asked_for_what_is_missing_alone(tmp_path: Path, suite: Path) -> None:
    others, folder = Backwards(), tmp_path / "there"
    evaluate(suite, "scripted:random", out=tmp_path / "here")
    evaluate(suite, "scripted:random", out=folder)
    lines = (folder / "episodes.jsonl").read_text("utf-8").splitlines(keepends=True)
    (folder / "episodes.jsonl").write_text("".join(lines[:15]), "utf-8")  # as a kill leaves it
    report = evaluate(suite, "scripted:random", out=folder, remote_sampling=others)
    assert report.num_new_samples == len(lines) - 15 == sum(len(draws) for one in others.asked for draws in one.batches)
    assert results(folder) == results(tmp_path / "here")
    assert not (again := Backwards()).entered and evaluate(suite, "scripted:random", out=folder, remote_sampling=again).num_new_samples == 0
    assert not again.entered


def test_rounds_of_a_sampler_whose_company_matters_are_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ScriptedSampler, "traits", replace(ScriptedSampler.traits, eval_batch_size=8))
    others, folder = Backwards(), tmp_path / "e"
    evaluate(SUMS, "scripted:random", tasks=20, out=folder)
    before = results(folder)
    lines = (folder / "episodes.jsonl").read_text("utf-8").splitlines(keepends=True)
    (folder / "episodes.jsonl").write_text("".join(lines[:10]), "utf-8")
    report = evaluate(SUMS, "scripted:random", tasks=20, out=folder, remote_sampling=others)
    assert [len(draws) for draws in others.asked[0].batches] == [8, 4] and report.num_new_samples == 10 and results(folder) == before


def test_the_sampler_of_this_process_need_not_come_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may have a model, and this machine no place for it."""
    ready = list[Sampler]()
    monkeypatch.setattr(ScriptedSampler, "prepare", lambda self: ready.append(self))
    evaluate(SUMS, "scripted:random", tasks=3, remote_sampling=Backwards())
    assert not ready
    evaluate(SUMS, "scripted:random", tasks=3)
    assert len(ready) == 1


class Refusing(Backwards):
    @contextmanager
    def __call__(self, spec: PluginSpec, sampler: Sampler, items: Sequence[SuiteItem]) -> Iterator[EpisodeSource]:
        raise SamplerError("nobody is there")
        yield self


def test_others_who_do_not_come_up_change_nothing(tmp_path: Path) -> None:
    with pytest.raises(SamplerError, match="nobody is there"):
        evaluate(SUMS, "scripted:random", tasks=3, out=tmp_path / "e", remote_sampling=Refusing())
    assert not (tmp_path / "e").exists()
    evaluate(SUMS, "scripted:random", tasks=3, out=tmp_path / "e")
    before = {path.name: path.read_bytes() for path in (tmp_path / "e").iterdir() if path.is_file()}
    with pytest.raises(SamplerError, match="nobody is there"):
        evaluate(SUMS, "scripted:random", tasks=5, out=tmp_path / "e", remote_sampling=Refusing())
    assert before == {path.name: path.read_bytes() for path in (tmp_path / "e").iterdir() if path.is_file()}


def test_an_environment_that_is_an_object_stays_here() -> None:
    with pytest.raises(ConfigError, match="this Sums is an object, and other processes build an environment by its name"):
        evaluate(Sums(), "scripted:random", tasks=3, remote_sampling=Backwards())


def test_an_evaluation_in_this_process_needs_no_ray() -> None:
    code = "import sys; from rlvr.cli.commands import run_command; run_command(['eval', 'arithmetic', '--policy', 'scripted:gold', '--tasks', '2']); "
    done = subprocess.run([sys.executable, "-c", code + "print('ray' in sys.modules)"], capture_output=True, text=True, timeout=60)
    assert done.stdout.endswith("\nFalse\n"), done.stdout + done.stderr
