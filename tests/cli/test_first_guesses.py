"""What a newcomer types first, and the message or the reading that helps."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rlvr.cli.commands import run_command
from rlvr.config.config import load_config, validate_config
from rlvr.errors import ConfigError, format_suggestion
from rlvr.integrations.formats import FORMATS
from rlvr.runs.report import plot_curve

MODEL = {"config": {"model_type": "qwen2", "hidden_size": 16}}


def fail(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert run_command(words) == 2
    return capsys.readouterr().err


def test_a_template_of_braces_is_a_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = tmp_path / "data.jsonl"
    data.write_text("".join(json.dumps({"prompt": f"{n}+1=", "answer": str(n + 1)}) + "\n" for n in range(4)))
    for setting in ("question={prompt}", 'question="{prompt}"'):
        assert run_command(["eval", str(data), "--set", setting, "--policy", "scripted:gold", "--json"]) == 0
    assert load_config("quickstart", ["env.question={prompt}"]).env["question"] == "{prompt}"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["show", "countdown"], "`rlvr show env countdown` or `rlvr show verifier countdown`"),
        (["check", "countdown"], "`rlvr check env countdown` or `rlvr check verifier countdown`"),
        (["check", "quickstart"], "`rlvr doctor --plan quickstart`"),
        (["show", "cofig"], "did you mean 'config'?"),
        (["show", "envs"], "`rlvr show env NAME`; `rlvr list envs` shows the names"),
        (["verify", "numeric", "--answer", "4"], "verify lacks --reference;"),
        (["verify", "numeric"], "verify lacks --reference and --answer;"),
        (["verify", "numeric", "--answer", "4", "--file", "x"], "not both; leave out one of them"),
    ],
)
def test_a_wrong_guess_gets_the_command_that_works(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert said in fail(capsys, *words)


def test_a_file_where_a_folder_is_wanted_is_said_to_be_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "FILE").touch()
    assert "is a file, not a folder" in fail(capsys, "eval", "gsm8k", "--set", f"path={tmp_path}/FILE", "--policy", "scripted:gold")


def test_settings_of_the_algorithm_alone_are_those_of_the_default() -> None:
    made = validate_config({"env": "arithmetic", "tokenizer": "chars", "model": MODEL, "algorithm": {"epsilon": 0.1}}, "test")
    assert made.algorithm == {"name": "grpo", "epsilon": 0.1}


def test_a_number_for_lora_is_explained() -> None:
    with pytest.raises(ConfigError, match=r"write model\.lora\.rank=8"):
        validate_config({"env": "arithmetic", "tokenizer": "chars", "model": {**MODEL, "lora": 8}}, "test")


def test_letters_in_another_order_are_the_nearest_name() -> None:
    assert "did you mean 'grpo'?" in format_suggestion("gpro", ["gtpo", "grpo", "dapo"])


def test_a_curve_is_ascii_where_the_terminal_has_no_braille() -> None:
    rewards = [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]
    assert not plot_curve(rewards, "reward").isascii()
    plot = plot_curve(rewards, "reward", encoding="ascii")
    assert plot.isascii() and len(plot.splitlines()) == len(plot_curve(rewards, "reward").splitlines())
    assert "1.00 |" in plot and "?" not in plot


def test_the_help_of_export_env_names_every_target(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["export-env", "--help"]) == 0
    said = capsys.readouterr().out
    assert [name for name in FORMATS if name not in said] == []
