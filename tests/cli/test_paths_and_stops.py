"""Paths that cannot be read or written, Ctrl-C in the first moments, and names of a user's own files in messages."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rlvr.cli.commands import run_command
from rlvr.cli.commands.failures import PACKAGE_FOLDER, report_exception
from rlvr.errors import ConfigError
from rlvr.registry.plugins import build

Said = pytest.CaptureFixture[str]


def test_init_below_a_file_is_one_sentence(tmp_path: Path, capsys: Said) -> None:
    (tmp_path / "taken").write_text("")
    assert run_command(["init", str(tmp_path / "taken" / "r.yaml"), "--data", "gsm8k", "--model", "org/name"]) == 2
    said = capsys.readouterr().err
    assert "taken cannot be read or written: " in said and "internal error" not in said


@pytest.mark.parametrize("command", ["view", "compare"])
def test_a_file_of_a_run_that_cannot_be_read_is_one_sentence(
    command: str, tmp_path: Path, capsys: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "a"
    assert run_command(f"eval arithmetic --policy scripted:gold --tasks 2 --out {run} --json".split()) == 0
    capsys.readouterr()
    opened = Path.open

    def deny(path: Path, *args: object, **kwargs: object) -> object:
        if path.name == "episodes.jsonl":
            raise PermissionError(13, "Permission denied", str(path))
        return opened(path, *args, **kwargs)  # type: ignore[call-overload]

    monkeypatch.setattr(Path, "open", deny)
    assert run_command([command, str(run)] + [str(run)] * (command == "compare")) == 2
    said = capsys.readouterr().err
    assert "episodes.jsonl cannot be read or written: Permission denied" in said and "internal error" not in said


def test_a_missing_file_of_the_package_is_an_internal_error(capsys: Said) -> None:
    assert report_exception(FileNotFoundError(2, "No such file or directory", str(PACKAGE_FOLDER / "gone.yaml"))) == 3
    assert report_exception(OSError(2, "No such file or directory")) == 3


@pytest.mark.parametrize("module", ["rlvr.cli.commands.app", "rlvr.registry.plugins", "typer"])
def test_ctrl_c_during_the_imports_is_quiet(module: str, tmp_path: Path) -> None:
    """A finder raises KeyboardInterrupt where the module is imported, as a signal in that moment does."""
    code = f"""
import sys
class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            raise KeyboardInterrupt
sys.meta_path.insert(0, Interrupt())
from rlvr.cli.commands import main
main()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, cwd=tmp_path, env={**os.environ})
    assert (done.returncode, done.stderr, done.stdout) == (130, "stopped\n", "")


def test_a_name_that_an_own_file_lacks_is_said_with_the_name_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("import math\n\ndef pays(answer, reference):\n    return 1.0\n")
    with pytest.raises(Exception, match=r"mine\.py:pay': mine\.py has no 'pay'; did you mean 'pays'\? Allowed: pays$"):
        build("verifier", f"{tmp_path}/mine.py:pay")


def takes_nothing() -> None:
    """A function that no algorithm can call."""


def takes_two(batch: object, other: object) -> None:
    """A function that no algorithm can call."""


@pytest.mark.parametrize(("policy", "form"), [("hf", "hf:DIR"), ("hf:", "hf:DIR"), ("scripted", "scripted:gold|noop|random")])
def test_the_name_of_a_sampler_alone_gets_the_form_of_the_whole_policy(policy: str, form: str, capsys: Said) -> None:
    assert run_command(["eval", "arithmetic", "--policy", policy]) == 2
    said = capsys.readouterr().err
    assert f"the policy {policy!r} names a sampler, and not what it samples from; write {form}" in said and "did you mean" not in said


@pytest.mark.parametrize("function", [takes_nothing, takes_two])
@pytest.mark.parametrize("component", ["advantage", "loss"])
def test_a_component_that_cannot_be_called_is_said_before_the_run(component: str, function: object) -> None:
    with pytest.raises(ConfigError, match=rf"{component} is takes_\w+\(.*\); it is called with one value, .*; write def takes_"):
        build("algorithm", "grpo", **{component: function})


def test_rows_of_verify_with_keys_that_nothing_reads(tmp_path: Path, capsys: Said, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "rows.jsonl"
    row = '{"id": 1, "reference": "4", "answer": "4", %s}\n'
    file.write_text(row % '"promt": "2+2"')
    assert run_command(["verify", "numeric", "--file", str(file)]) == 2
    assert "rows.jsonl:1: there is no key 'promt'; did you mean 'prompt'? each line must be" in capsys.readouterr().err
    file.write_text((row % '"label": 1') * 3)
    assert run_command(["verify", "numeric", "--file", str(file), "--json"]) == 0
    said = capsys.readouterr()
    assert said.err.count("the key 'label' is not read") == 1 and said.out.count("score") == 3
    file.write_text('{"answer": "4"}\n')
    assert run_command(["verify", "numeric", "--file", str(file)]) == 2
    assert "'reference' is missing; the columns are 'answer';" in capsys.readouterr().err


def test_comparing_training_runs_names_the_command_that_does(tmp_path: Path, capsys: Said) -> None:
    (tmp_path / "config.yaml").write_text("seed: 0\n")
    assert run_command(["compare", str(tmp_path), str(tmp_path)]) == 2
    assert (
        "is a training run, and not an evaluation: it has no eval.yaml; `rlvr view A B` compares training runs" in capsys.readouterr().err
    )


def test_a_split_that_is_not_there_names_the_option(capsys: Said) -> None:
    assert run_command(["eval", "gymnasium", "--set", "id=CliffWalking", "--policy", "scripted:noop"]) == 2
    assert "split is 'test'; allowed: train; choose it with split='train', or --split train in a shell" in capsys.readouterr().err
