"""A batch source of the user's: it samples as it likes, its groups share no seed, and everything sampled is accounted for."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from rlvr.contracts.algorithm import Algorithm
from rlvr.episode import Episode
from rlvr.errors import CheckFailed, ConfigError
from rlvr.runs.run_log import read_jsonl
from rlvr.training.batch_sources import OnPolicySource, RolloutBatch, StepRollout, SynchronousSource, batch_from_json, batch_to_json
from rlvr.training.trainer import Trainer
from tests.fixtures.tiny import tiny_run


class BetterOfTwo(OnPolicySource):
    """Samples twice in a step, and trains on the batch with the higher reward. A subclass of a shipped source is not taken for it."""

    def collect(self, rollout: StepRollout) -> RolloutBatch:
        batches = [rollout.sample_groups(self.components.config.rollout.prompts_per_step) for _ in range(2)]
        worse, better = sorted(batches, key=lambda groups: sum(episode.reward for group in groups for episode in group))
        return rollout.build_batch(better, dropped={"worse_batch": worse}, metrics={"better_of_two/num_batches": 2.0})


def run(folder: Path, source: Any, *, resume: bool = False, **changes: Any) -> list[dict[str, Any]]:
    console = Console(file=io.StringIO(), width=300)
    with Trainer(tiny_run(**changes), batch_source=source, out=folder, resume=resume, console=console) as trainer:
        trainer.fit()
    return list(read_jsonl(folder / "episodes.jsonl"))


@pytest.mark.parametrize("staleness", [0, 1])
def test_the_better_of_two_batches_is_trained_on(tmp_path: Path, staleness: int) -> None:
    rollout = {"prompts_per_step": 4, "num_generations": 4, "max_staleness": staleness}
    episodes = run(tmp_path / "a", BetterOfTwo, rollout=rollout)
    for step, metrics in enumerate(read_jsonl(tmp_path / "a" / "metrics.jsonl"), 1):
        mine = [episode for episode in episodes if episode["step"] == step]
        assert len(mine) == 2 * 4 * 4 and len({episode["group"] for episode in mine}) == 8
        dropped = [episode for episode in mine if episode.get("dropped") == "worse_batch"]
        kept = [episode for episode in mine if not episode.get("dropped")]
        assert len(dropped) == len(kept) == 16
        assert sum(episode["reward"] for episode in kept) >= sum(episode["reward"] for episode in dropped)
        assert metrics["better_of_two/num_batches"] == 2.0
        assert metrics["tokens/sampled"] == sum(sum(episode["action_mask"]) for episode in mine)


class Repeated(SynchronousSource):
    """Samples one batch in two calls."""

    def collect(self, rollout: StepRollout) -> RolloutBatch:
        return rollout.build_batch([*rollout.sample_groups(2), *rollout.sample_groups(2)], dropped={})


def test_two_calls_sample_what_one_call_does(tmp_path: Path) -> None:
    def drop_time(rows: list[dict[str, Any]]) -> list[Any]:
        return [(row["step"], row["group"], row["tokens"], row["logprobs"]) for row in rows]

    assert drop_time(run(tmp_path / "two", Repeated)) == drop_time(run(tmp_path / "one", None))


class HalfAgain(SynchronousSource):
    """Samples two new tasks and, after the first step, those of the step before again."""

    def __init__(self, components: Any) -> None:
        super().__init__(components)
        self.last: list[int] = []

    def collect(self, rollout: StepRollout) -> RolloutBatch:
        again = rollout.sample_groups(self.last) if self.last else []
        new = rollout.sample_groups(2)
        self.last = [int(group[0].meta["index"]) for group in new]
        return rollout.build_batch([*new, *again], dropped={})


def test_tasks_of_an_earlier_step_are_sampled_again(tmp_path: Path) -> None:
    episodes = run(tmp_path / "a", HalfAgain)
    taken = [{episode["index"] for episode in episodes if episode["step"] == step} for step in (1, 2)]
    assert len(taken[0]) == 2 and len(taken[1]) == 4 and taken[0] < taken[1]
    groups = [{episode["group"] for episode in episodes if episode["step"] == step} for step in (1, 2)]
    assert [len(one) for one in groups] == [2, 4] and not groups[0] & groups[1]


class Replayed(SynchronousSource):
    """Trains twice on each batch."""

    is_off_policy = True

    def __init__(self, components: Any) -> None:
        super().__init__(components)
        self.last: list[list[Episode]] = []

    def collect(self, rollout: StepRollout) -> RolloutBatch:
        groups, self.last = (self.last, []) if self.last else (rollout.sample_groups(4), [])
        if rollout.step % 2 == 0:
            self.last = groups
        return rollout.build_batch(groups, dropped={})


def test_a_source_of_older_episodes_trains_off_policy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train = {"steps": 4, "learning_rate": 1e-2}
    with Trainer(tiny_run(train=train), batch_source=Replayed, out=tmp_path / "a", console=Console(file=io.StringIO())) as trainer:
        assert "importance_sampling_correction='token_truncate'" in repr(trainer.learner.algorithm)
        trainer.fit()
    episodes = list(read_jsonl(tmp_path / "a" / "episodes.jsonl"))
    tokens = [[episode["tokens"] for episode in episodes if episode["step"] == step] for step in (1, 2, 3, 4)]
    assert tokens[0] == tokens[1] != tokens[2] == tokens[3]
    assert [row["staleness/mean"] for row in read_jsonl(tmp_path / "a" / "metrics.jsonl")] == [0, 1, 0, 1]
    monkeypatch.setattr(Replayed, "is_off_policy", False)
    with pytest.raises(CheckFailed):
        run(tmp_path / "b", Replayed, train=train)


class UsedTwice(OnPolicySource):
    """The batch of every second step is that of the step before."""

    is_off_policy = True
    state: Any = None

    def collect(self, rollout: StepRollout) -> RolloutBatch:
        if rollout.step % 2 and self.state is not None:
            return batch_from_json(self.state)
        batch = rollout.build_batch(rollout.sample_groups(self.components.config.rollout.prompts_per_step), dropped={})
        self.state = batch_to_json(batch)
        return batch

    def state_dict(self) -> dict[str, Any]:
        return {"kept": self.state}

    def load_state_dict(self, state: Any) -> None:
        self.state = state["kept"]


class WithObjects(UsedTwice):
    def state_dict(self) -> dict[str, Any]:
        return {"kept": [Path("a")]}


def test_a_batch_is_kept_in_a_checkpoint_and_what_could_not_be_loaded_is_refused(tmp_path: Path) -> None:
    whole = run(tmp_path / "a", UsedTwice, train={"steps": 4})
    run(tmp_path / "b", UsedTwice, train={"steps": 1, "lr_scheduler": "constant"})
    again = run(tmp_path / "b", UsedTwice, resume=True, train={"steps": 2, "lr_scheduler": "constant"})
    for episodes in (whole, again):
        first, second = ([e["tokens"] for e in episodes if e["step"] == step] for step in (1, 2))
        assert first == second
    with pytest.raises(
        ConfigError, match=r"state_dict of WithObjects has a PosixPath at \['kept'\]\[0\], which a checkpoint cannot be loaded with"
    ):
        run(tmp_path / "c", WithObjects, train={"steps": 1})


def test_what_is_no_source_and_what_asks_for_another_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="give a subclass of"):
        run(tmp_path / "a", dict)
    with pytest.raises(ConfigError, match=r"algorithm\.dynamic_sampling_rounds chooses another batch source than the given BetterOfTwo"):
        run(tmp_path / "b", BetterOfTwo, algorithm={"name": "dapo", "dynamic_sampling_rounds": 3})


def test_an_algorithm_selects_the_groups_that_it_trains_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Groups = list[list[Episode]]

    def keep_first(self: Any, groups: Groups) -> tuple[Groups, dict[str, Groups]]:
        return groups[:1], {"not_first": groups[1:]}

    monkeypatch.setattr(Algorithm, "select_groups", keep_first)
    episodes = run(tmp_path / "a", None)
    assert [episode.get("dropped") for episode in episodes if episode["step"] == 1] == [None] * 4 + ["not_first"] * 12
    assert next(iter(read_jsonl(tmp_path / "a" / "metrics.jsonl")))["tokens/sampled"] == sum(
        sum(episode["action_mask"]) for episode in episodes if episode["step"] == 1
    )

    stored = run(tmp_path / "b", None, data={}, algorithm={"name": "sft"})  # gold solutions, of which nothing is sampled
    assert {episode.get("dropped") for episode in stored if episode["step"] == 1} == {None, "not_first"}


def test_dynamic_sampling_samples_others_for_groups_that_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def drop_even(self: Any, groups: list[list[Episode]]) -> tuple[list[list[Episode]], dict[str, list[list[Episode]]]]:
        is_even = [group[0].meta["index"] % 2 == 0 for group in groups]
        parts = [[group for group, even in zip(groups, is_even, strict=True) if even is wanted] for wanted in (False, True)]
        return parts[0], {"even": parts[1]}

    monkeypatch.setattr(Algorithm, "select_groups", drop_even)
    monkeypatch.setattr("rlvr.training.task_sampling.dynamic_sampling.has_no_signal", lambda rewards: False)
    mine = {"name": "grpo", "dynamic_sampling_rounds": 6}
    episodes = [episode for episode in run(tmp_path / "a", None, algorithm=mine) if episode["step"] == 1]
    kept = [episode for episode in episodes if not episode.get("dropped")]
    assert len(kept) == 16 and all(episode["index"] % 2 for episode in kept)
    assert {episode["dropped"] for episode in episodes if episode["index"] % 2 == 0} == {"even"}
    row = next(iter(read_jsonl(tmp_path / "a" / "metrics.jsonl")))
    assert row["dynamic_sampling/missing_groups"] == 0 and row["dynamic_sampling/rounds"] > 1
    assert row["dynamic_sampling/useful_fraction"] == pytest.approx(sum(bool(e["index"] % 2) for e in episodes) / len(episodes))


def test_a_step_whose_groups_are_all_left_out_is_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = tmp_path / "mine.py"
    mine.write_text("def advantage(answers):\n    return [[reward or 0.0 for reward in group] for group in answers.rewards]\n")
    monkeypatch.setattr(Algorithm, "select_groups", lambda self, groups: ([], {"all": list(groups)}))
    run(tmp_path / "a", None, algorithm={"name": "grpo", "advantage": f"{mine}:advantage"})
    assert [row["step/skipped"] for row in read_jsonl(tmp_path / "a" / "metrics.jsonl")] == [1, 1]


def test_a_run_is_resumed_with_the_source_that_it_began_with(tmp_path: Path) -> None:
    run(tmp_path / "a", BetterOfTwo, train={"steps": 1, "learning_rate": 1e-3})
    with pytest.raises(ConfigError, match="the run began with batch_source=BetterOfTwo, and none is given"):
        run(tmp_path / "a", None, resume=True, train={"steps": 1, "learning_rate": 1e-3})
    run(tmp_path / "a", BetterOfTwo, resume=True, train={"steps": 1, "learning_rate": 1e-3})
