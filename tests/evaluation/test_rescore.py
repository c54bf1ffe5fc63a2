"""Judging again: what is judged once more, what is left as it is, and what the new run says was asked."""

from __future__ import annotations

import io
import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import rlvr.evaluation.rescore
from rlvr.cli.commands import run_command
from rlvr.contracts import Tokenizer
from rlvr.errors import ConfigError, NotFound
from rlvr.evaluation.compare import compare_evaluations
from rlvr.evaluation.evaluate import evaluate
from rlvr.evaluation.report import EvalReport
from rlvr.evaluation.rescore import rescore
from rlvr.evaluation.samples import iter_rows, load_samples
from rlvr.mdp.tokenizers import CharTokenizer
from tests.fixtures.boards import Boards

WORLD = '''
"""Questions from a file, and a verifier that is away while a file says so."""
import json
from pathlib import Path

from rlvr import Environment, Fault, Task, Verdict, Verifier, make_user_prompt


class Same(Verifier):
    def __init__(self, down):
        self.down = down

    def verify(self, task, answer):
        if self.down.is_file():
            return Verdict(None, "the engine is away", fault=Fault.INFRA)
        return Verdict(float(answer == task.reference), "compared")


class Asked(Environment):
    splits = ("test",)

    def __init__(self, *, path):
        self.rows = json.loads(Path(path, "data.json").read_text("utf-8"))
        self.verifier = Same(Path(path, "down"))

    def num_tasks(self, split):
        return len(self.rows)

    def task(self, split, index):
        return Task(make_user_prompt(self.rows[index][0]), self.rows[index][1], id=f"asked/{index}")

    def gold(self, task):
        return task.reference
'''


class World:
    """The environment above in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "world.py").write_text(WORLD, "utf-8")
        self.asks([["a", "1"], ["b", "2"], ["c", "3"]])

    def asks(self, rows: list[Any]) -> None:
        (self.folder / "data.json").write_text(json.dumps(rows), "utf-8")

    def down(self, is_down: bool) -> None:
        (self.folder / "down").touch() if is_down else (self.folder / "down").unlink()

    def evaluate(self, out: Path, policy: str = "scripted:gold", **how: Any) -> EvalReport:
        return evaluate({"name": f"{self.folder / 'world.py'}:Asked", "path": str(self.folder)}, policy, out=out, **how)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def scores(folder: Path) -> list[float | None]:
    return [sample.score for _, sample in sorted(load_samples(folder).items())]


def first(folder: Path) -> dict[str, Any]:
    """The row of the first task, wherever it stands."""
    return next(row for row in iter_rows(folder) if row["index"] == 0)


def write(folder: Path, *rows: dict[str, Any]) -> None:
    with (folder / "episodes.jsonl").open("a", encoding="utf-8") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)


def test_what_could_not_be_judged_is_judged_by_the_next_call(world: World, tmp_path: Path) -> None:
    world.evaluate(a := tmp_path / "a")
    again = tmp_path / "a-rescored"
    world.down(True)
    assert rescore(a).num_new_samples == 3 and scores(again) == [None] * 3
    world.down(False)
    assert rescore(a).num_new_samples == 3 and scores(again) == [1.0] * 3
    assert rescore(a).num_new_samples == 0 and len(list(iter_rows(again))) == 6


def test_an_answer_that_was_asked_for_anew_is_judged_anew(world: World, tmp_path: Path) -> None:
    world.evaluate(a := tmp_path / "a")
    rescore(a)
    write(a, first(a) | {"text": "another"})
    assert rescore(a).num_new_samples == 1 and scores(tmp_path / "a-rescored") == [0.0, 1.0, 1.0]


def test_a_run_does_not_go_on_with_another_question(world: World, tmp_path: Path) -> None:
    world.evaluate(a := tmp_path / "a")
    before = (a / "report.json").read_bytes()
    for rows in ([["a", "1"], ["b", "9"], ["c", "3"]], [["a", "1"], ["B", "2"], ["c", "3"]]):
        world.asks(rows)
        for retry in (False, True):
            with pytest.raises(ConfigError, match="task 'asked/1' has another prompt or reference now"):
                world.evaluate(a, retry=retry)
    assert (a / "report.json").read_bytes() == before
    world.asks([["a", "1"], ["b", "2"], ["c", "3"]])
    assert world.evaluate(a).num_new_samples == 0


def test_a_task_that_is_there_no_more_is_told(world: World, tmp_path: Path) -> None:
    world.evaluate(a := tmp_path / "a")
    world.asks([["a", "1"], ["b", "2"]])
    with pytest.raises(ConfigError, match="Asked has no task 2 any more"):
        world.evaluate(a)
    with pytest.raises(ConfigError, match="task 'asked/2' no longer exists: Asked has only 2 tasks now"):
        rescore(a)


def test_a_run_that_is_judged_before_its_end_is_told_to_go_on(world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    world.evaluate(a := tmp_path / "a")
    rows = list(iter_rows(a))
    (a / "episodes.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows[:2]), "utf-8")
    assert run_command(["eval", "--rescore", str(a)]) == 0
    said = capsys.readouterr().out
    assert "1 samples are missing; run the same `rlvr eval` again" in said and "tokens in" not in said


def test_a_run_may_grow_while_it_is_judged(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world.evaluate(a := tmp_path / "a")
    reads = 0

    def growing(folder: Path) -> Iterator[dict[str, Any]]:
        nonlocal reads
        reads += 1
        yield from list(iter_rows(folder))[:reads]

    monkeypatch.setattr(rlvr.evaluation.rescore, "iter_rows", growing)
    found = rescore(a)
    assert (found.num_new_samples, reads) == (2, 3)


def test_beside_a_corrected_reference_the_new_run_holds_the_new_one(world: World, tmp_path: Path) -> None:
    world.evaluate(a := tmp_path / "a")
    row = first(a)
    paid = [0.0] * (len(row["action_mask"]) - 2) + [0.25, 0.75]
    write(a, row | {"rewards": paid})  # by a verifier of then
    rescore(a, out=tmp_path / "same")
    assert first(tmp_path / "same")["reward"] == 1.0 and "rewards" not in first(tmp_path / "same")
    world.asks([["a", "7"], ["b", "2"], ["c", "3"]])
    rescore(a, out=tmp_path / "b")
    new = first(tmp_path / "b")
    assert (new["reference"], new["reward"]) == ("7", 0.0)
    with pytest.raises(ConfigError, match="1 of 3 prompts or references differ"):
        compare_evaluations(a, tmp_path / "b")
    assert rescore(a, out=tmp_path / "same").num_new_samples == 1 and scores(tmp_path / "same") == [0.0, 1.0, 1.0]


def test_when_a_score_was_earned_is_worked_out_anew(tmp_path: Path) -> None:
    evaluate({"name": "tests/mdp/test_earned.py:PaidTalk"}, "scripted:gold", tasks=2, out=tmp_path / "a")
    rescore(tmp_path / "a", out=tmp_path / "same")
    before, again = first(tmp_path / "a"), first(tmp_path / "same")
    assert before["turns"] == 3 and [reward for reward in before["rewards"] if reward] == [0.125] * 3
    assert again["verdict"] == before["verdict"] and again["rewards"] == before["rewards"]
    rescore(tmp_path / "a", out=tmp_path / "other", settings={"shift": -1})
    assert [part["turn"] for part in first(tmp_path / "other")["verdict"]["step_rewards"]] == [-1, 0, 1]
    rescore(tmp_path / "a", out=tmp_path / "wrong", settings={"shift": 1})
    lost = first(tmp_path / "wrong")
    assert lost["verdict"]["fault"] == "infra" and "for turn 3, and there were 3" in lost["error"] and "rewards" not in lost


@pytest.mark.parametrize("tokenizer", [None, CharTokenizer()], ids=["none", "another"])
def test_without_the_policy_s_tokenizer_it_is_said_that_nobody_knows_when_a_score_was_earned(
    tokenizer: Tokenizer | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluate({"name": "tests/mdp/test_earned.py:PaidTalk"}, "scripted:gold", tasks=2, out=tmp_path / "a")
    monkeypatch.setattr("rlvr.evaluation.rescore.load_tokenizer_or_none", lambda spec: tokenizer)
    screen = io.StringIO()
    rescore(tmp_path / "a", out=tmp_path / "b", console=Console(file=screen, width=300))
    row = first(tmp_path / "b")
    assert row["reward"] == 0.375 and "rewards" not in row and "earned" not in row["verdict"]
    assert "not known" in row["verdict"]["detail"]["step_rewards"] and "is not available, for 2 of 2 answers" in screen.getvalue()


def test_a_report_does_not_outlive_the_samples_it_was_made_of(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world.evaluate(a := tmp_path / "a")
    world.down(True)
    rescore(a)
    world.down(False)
    monkeypatch.setattr(rlvr.evaluation.rescore, "_rescore_rows", lambda *given: 1 / 0)
    assert (tmp_path / "a-rescored" / "report.json").is_file()
    with pytest.raises(ZeroDivisionError):
        rescore(a)
    assert not (tmp_path / "a-rescored" / "report.json").exists()


def test_a_run_is_found_from_inside_it(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world.evaluate(a := tmp_path / "a")
    monkeypatch.chdir(a)
    assert run_command(["eval", "--rescore", ".", "--json"]) == 0
    assert scores(tmp_path / "a-rescored") == [1.0] * 3


def test_options_that_would_do_nothing_are_refused_in_one_message(world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    world.evaluate(a := tmp_path / "a")
    numbers = ["-n", "--tasks", "--max-new-tokens", "--max-length", "--concurrency", "--seed"]
    given = ["--split", "test", "--temperature", "0", "--price", "1,2", *(word for name in numbers for word in (name, "4"))]
    assert run_command(["eval", "--rescore", str(a), *given]) == 2
    said = capsys.readouterr().err
    assert all(option in said for option in given if option.startswith("-"))
    assert not (tmp_path / "a-rescored").exists()
    assert run_command(["eval", "--rescore", str(a), "--retry", "--select", "shortest", "--json"]) == 0


@pytest.mark.parametrize("left", ["", None, '{"torn'])
def test_a_run_without_samples_leaves_nothing(left: str | None, world: World, tmp_path: Path) -> None:
    world.evaluate(a := tmp_path / "a")
    if left is None:
        (a / "episodes.jsonl").unlink()
    else:
        (a / "episodes.jsonl").write_text(left, "utf-8")
    with pytest.raises(NotFound, match="has no samples yet"):
        rescore(a)
    assert not (tmp_path / "a-rescored").exists()


def test_a_verifier_that_hangs_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    evaluate("tests/fixtures/worlds.py:Sums", "scripted:gold", tasks=2, out=tmp_path / "e")
    release = threading.Event()
    monkeypatch.setattr("rlvr.evaluation.rescore.VERIFY_TIMEOUT_S", 0.2)
    monkeypatch.setattr("rlvr.evaluation.rescore.verify_recorded_answer", lambda *_: release.wait(60))
    began = time.monotonic()
    (env,) = rescore(tmp_path / "e", out=tmp_path / "again").envs.values()
    took = time.monotonic() - began
    release.set()
    assert (env.samples, env.unscored) == (2, 2) and took < 30  # the verifier hangs for twice as long


def test_the_evidence_of_a_session_is_judged_again() -> None:
    boards = Boards()
    session = {"seed": 0, "step_results": [{"messages": [], "done": True}], "answer": "7", "values": {"total": 10}}
    found = [
        rlvr.evaluation.rescore._verify_row(boards, boards.task("train", index), {"text": "7", "session": session}, lambda: None)[0].score
        for index in (10, 11)
    ]
    assert found == [1.0, 0.0]


def test_settings_of_a_verifier_and_a_training_run_get_the_call_that_is_meant(tmp_path: Path) -> None:
    evaluate("arithmetic", "scripted:gold", tasks=1, out=tmp_path / "run")
    with pytest.raises(ConfigError, match=r"written verifier=\{name: numeric, tolerance: 2\}"):
        rescore(tmp_path / "run", settings={"tolerance": 2}, out=tmp_path / "again")
    (tmp_path / "trained").mkdir()
    (tmp_path / "trained" / "config.yaml").write_text("{}")
    with pytest.raises(NotFound, match=r"is a training run, .* rlvr\.verify_many\("):
        rescore(tmp_path / "trained")
