"""The exit code of every command, in one table: what a shell script or a CI job goes by."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlvr.cli.commands import app, run_command
from rlvr.cli.commands.failures import report_exception
from rlvr.errors import ConfigError

Said = pytest.CaptureFixture[str]
BROKEN = """
from rlvr import Verdict, Verifier

class Bad(Verifier):
    def verify(self, task, answer):
        return Verdict(1.0, "")

class Raises(Verifier):
    def verify(self, task, answer):
        raise RuntimeError("a fault")

def pays(answer, reference):
    return 1.0
"""


# What is typed, and its exit code: 0 success, 1 a check failed or a score is missing, 2 wrong usage or settings, 3 an error inside rlvr.
EXIT_CODES: list[tuple[str, int]] = [
    ("", 0),
    ("--help", 0),
    ("--version", 0),
    ("nothing-of-ours", 2),
    ("list", 0),
    ("list models", 2),
    ("show env arithmetic", 0),
    ("show suite quick", 0),
    ("show env nothing", 2),
    ("new env chess_mate --out made", 0),
    ("new env chess_mate --out a", 2),
    ("check env arithmetic", 0),
    ("check verifier broken.py:Bad", 1),
    ("check verifier nothing", 2),
    ("verify numeric --reference 4 --answer 4", 0),
    ("verify numeric --reference 4 --answer 5", 0),
    ("verify numeric --reference four --answer 4", 1),
    ("verify broken.py:Raises --reference 4 --answer 4", 1),
    ("verify numeric --reference 4", 2),
    ("verify numeric --file judged.jsonl", 0),
    ("verify numeric --file judged.jsonl --json", 0),
    ("verify numeric --file unjudged.jsonl", 1),
    ("verify numeric --file unjudged.jsonl --json", 1),
    ("verify numeric --file nothing.jsonl", 2),
    ("audit exact --golds 1 --search 0 --max-fpr 0", 0),
    ("audit broken.py:pays --pairs labelled.jsonl --golds 1 --search 0", 0),
    ("audit broken.py:pays --pairs labelled.jsonl --golds 1 --search 0 --max-fpr 0", 1),
    ("audit broken.py:Raises --pairs labelled.jsonl --golds 1 --search 0 --max-fnr 0.5", 1),
    ("audit broken.py:pays --golds 1 --search 0", 0),
    ("play nothing", 2),
    ("audit nothing", 2),
    ("eval arithmetic --policy scripted:gold --tasks 2", 0),
    ("eval arithmetic --policy scripted:noop --tasks 2", 0),
    ("eval arithmetic --policy scripted:gold --tasks 2 --set verifier=broken.py:Raises", 1),
    ("eval arithmetic --policy scripted:gold --tasks 2 --set verifier=broken.py:Raises --allow-unscored", 0),
    ("eval arithmetic", 2),
    ("eval arithmetic --policy scripted:gold --tasks 2 --cluster nothing.yaml", 2),
    ("eval arithmetic --policy scripted:gold --tasks 2 --cluster judged.jsonl", 2),
    ("eval --rescore a", 0),
    ("eval --rescore a --cluster auto", 2),
    ("compare a b", 0),
    ("compare a nothing", 2),
    ("export a --to csv", 0),
    ("export a --to nothing", 2),
    ("export-env arithmetic --to trl --out door", 0),
    ("export-env arithmetic --to nothing --out door", 2),
    ("serve nothing", 2),
    ("view a", 0),
    ("view nothing", 2),
    ("replay a", 0),
    ("replay tampered", 1),
    ("replay nothing", 2),
    ("replay nothing --audit 2", 2),
    ("replay a --audit 0", 2),
    ("train nothing", 2),
    ("train quickstart --cluster nothing.yaml", 2),
    ("train quickstart --cluster judged.jsonl", 2),
    ("doctor --cluster nothing.yaml", 2),
    ("init made.yaml --data gsm8k --model org/name", 0),
    ("init made.yaml --data nothing --model org/name", 2),
    ("doctor", 0),
]


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two evaluations, one that was tampered with, plugins with faults, and files of answers."""
    folder = tmp_path_factory.mktemp("desk")
    (folder / "broken.py").write_text(BROKEN, "utf-8")
    line = '{"id": 1, "reference": "4", "answer": "5"}\n'
    (folder / "judged.jsonl").write_text(line, "utf-8")
    (folder / "labelled.jsonl").write_text('{"reference": "4", "answer": "5", "label": 0}\n', "utf-8")
    (folder / "unjudged.jsonl").write_text(line + '{"id": 2, "reference": "four", "answer": "4"}\n' + line, "utf-8")
    for name, script in (("a", "gold"), ("b", "noop"), ("tampered", "gold")):
        assert run_command(f"eval arithmetic --policy scripted:{script} --tasks 3 --out {folder / name} --json".split()) == 0
        (folder / name / "config.yaml").write_text("env: arithmetic\ntokenizer: bytes\nmodel: {path: none}\n", "utf-8")
    log = folder / "tampered" / "episodes.jsonl"
    log.write_text(log.read_text("utf-8").replace('"reward": 1.0', '"reward": 0.0'), "utf-8")
    return folder


@pytest.mark.parametrize(("typed", "code"), EXIT_CODES, ids=[typed or "rlvr" for typed, _ in EXIT_CODES])
def test_exit_codes(typed: str, code: int, desk: Path, monkeypatch: pytest.MonkeyPatch, capsys: Said) -> None:
    monkeypatch.chdir(desk)
    assert run_command(typed.split()) == code, capsys.readouterr()


def test_every_command_stands_in_the_table_of_exit_codes() -> None:
    typed = {line.split()[0] for line, _ in EXIT_CODES if line}
    assert {command.name or command.callback.__name__ for command in app.registered_commands if command.callback} <= typed


@pytest.mark.parametrize(("raised", "code"), [(143, 143), (0, 0), (1, 0), (None, 0)])
def test_a_command_that_a_signal_ended_in_order_has_its_exit_code(raised: int | None, code: int) -> None:
    """143 is SIGTERM; 1 is what Typer gives when the reader of a pipe has closed it."""
    assert report_exception(SystemExit(raised)) == code


def test_an_advantage_of_the_user_that_raises_is_named_with_its_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Said) -> None:
    (tmp_path / "own.py").write_text("def wrong(answers):\n    return [1.0 for group in answers]\n", "utf-8")
    monkeypatch.chdir(tmp_path)
    typed = "train quickstart algorithm.advantage=own.py:wrong train.steps=1 sft_warmup.max_steps=1 eval.tasks=2 --out run"
    assert run_command(typed.split()) == 2
    shown = capsys.readouterr().err
    assert f"a plugin raised TypeError: 'AnswerBatch' object is not iterable ({tmp_path / 'own.py'}:2, in wrong)" in shown
    assert "bug in rlvr" not in shown


def test_what_was_noted_on_the_way_of_an_error_is_printed_below_it(capsys: Said) -> None:
    error = ConfigError("too long")
    error.add_note("step 3 of 9 failed; saved: step-000002")
    assert report_exception(error) == 2
    assert capsys.readouterr().err == "error: too long\nstep 3 of 9 failed; saved: step-000002\n"
