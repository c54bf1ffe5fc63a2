"""Runs that are started with the words of TRL: options, a verifier beside an environment by name, and flat recipes with a run folder."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import yaml

import rlvr
from rlvr.cli.commands import run_command
from rlvr.config.config import ModelConfig
from rlvr.mdp.tokenizers import CharTokenizer
from rlvr.models.model_loading import load_model, to_transformers_tokenizer
from tests.fixtures.tiny import MODEL

Said = pytest.CaptureFixture[str]
SMALL = ["--num-generations", "2", "--max-completion-length", "4"]
FUNCTION = "def score(answer, reference):\n    return float(len(answer) % 2)\n"


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a model of a few thousand parameters and a function that scores."""
    monkeypatch.chdir(tmp_path)
    tokenizer = CharTokenizer()
    load_model(ModelConfig(config=MODEL), tokenizer).save_pretrained(tmp_path / "model")
    to_transformers_tokenizer(tokenizer).save_pretrained(tmp_path / "model")
    (tmp_path / "mine.py").write_text(FUNCTION)
    return tmp_path


def read_config(folder: Path) -> dict[str, dict[str, object]]:
    found: dict[str, dict[str, object]] = yaml.safe_load((folder / "config.yaml").read_text())
    return found


@pytest.mark.slow
def test_the_options_of_trl_start_a_run(desk: Path, capsys: Said) -> None:
    line = ["train", "--model", "model", "--env", "arithmetic", "--reward", "mine.py:score", "--max_steps", "1", "--output-dir", "out"]
    assert run_command([*line, *SMALL, "eval.tasks=2", "prompts_per_step=2"]) == 0
    read = "note: read as: rlvr train eval.tasks=2 prompts_per_step=2 env=arithmetic train.steps=1 rollout.num_generations=2 "
    assert f"{read}rollout.max_new_tokens=4 --model model --verifier mine.py:score --out out" in capsys.readouterr().err
    made = read_config(desk / "out")
    assert made["env"] == {"name": "arithmetic", "verifier": str(desk / "mine.py:score")}
    assert (made["train"]["steps"], made["rollout"]["max_new_tokens"]) == (1, 4)


@pytest.mark.slow
def test_a_flat_recipe_names_its_run_folder_and_out_wins(desk: Path, capsys: Said) -> None:
    flat = {
        "model": "model", "env": "arithmetic", "algorithm": "grpo", "max_steps": 1, "num_generations": 2, "prompts_per_step": 2,
        "max_completion_length": 4, "learning_rate": "1e-5", "output_dir": "from_file", "eval": {"tasks": 2},
    }  # fmt: skip
    (desk / "grpo.yaml").write_text(yaml.safe_dump(flat))
    assert run_command(["train", "--config", "grpo.yaml"]) == 0
    made = read_config(desk / "from_file")
    assert made["train"]["learning_rate"] == 1e-5 and "out" not in made and "max_steps" not in made
    assert run_command(["train", "grpo.yaml", "output_dir=from_line"]) == 0 and (desk / "from_line" / "config.yaml").is_file()
    assert run_command(["train", "grpo.yaml", "output_dir=from_line", "--out", "from_option"]) == 0
    assert (desk / "from_option" / "config.yaml").is_file()
    capsys.readouterr()
    assert run_command(["train", "grpo.yaml"]) == 2 and "from_file is not empty" in capsys.readouterr().err
    assert run_command(["train", "grpo.yaml", "--resume"]) == 0, "the folder to resume is that of the recipe"


@pytest.mark.slow
def test_a_flat_recipe_is_read_from_python_too(desk: Path) -> None:
    flat = {
        "model": "model", "env": "arithmetic", "max_steps": 1, "num_generations": 2, "prompts_per_step": 2, "max_completion_length": 4,
        "output_dir": "from_file", "eval": {"tasks": 2},
    }  # fmt: skip
    (desk / "grpo.yaml").write_text(yaml.safe_dump(flat))
    assert Path(rlvr.train("grpo.yaml").run) == Path("from_file") and (desk / "from_file" / "config.yaml").is_file()
    assert Path(rlvr.train("grpo.yaml", out="other").run) == Path("other")
    assert Path(rlvr.train({**flat, "output_dir": "from_mapping"}).run) == Path("from_mapping")


def test_a_flat_recipe_is_a_suite_of_its_environment(desk: Path, capsys: Said) -> None:
    (desk / "grpo.yaml").write_text("model: model\nenvironment: arithmetic\nreward_funcs: numeric\nmax_steps: 1\n")
    assert run_command(["eval", "grpo.yaml", "--policy", "scripted:gold", "--limit", "2", "--json"]) == 0
    assert '"mean_score": 1.0' in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize("scheduler", ["linear", "constant"])
def test_the_commands_of_a_refused_resume_work(scheduler: str, desk: Path, capsys: Said) -> None:
    start = ["train", "env=arithmetic", "--model", "model", "eval.tasks=2", "rollout.num_generations=2", "rollout.prompts_per_step=2"]
    start += ["rollout.max_new_tokens=4", f"train.lr_scheduler={scheduler}", "log.save_every=1", "--out", "out"]
    assert run_command([*start, "train.steps=1"]) == 0
    changed = [] if scheduler == "linear" else ["train.weight_decay=0.5"]
    capsys.readouterr()
    assert run_command([*start, "train.steps=3", *changed, "--resume"]) == 2
    said = capsys.readouterr().err
    commands = re.findall(r"rlvr (train [^;\n]+)", said)
    assert len(commands) == 2 and ("train.steps=3" in commands[0]) is (scheduler == "constant"), said
    for command in commands:
        assert run_command(shlex.split(command)) == 0, command
    assert read_config(desk / "out")["train"]["steps"] == (3 if scheduler == "constant" else 1)


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["colour=red"], "error: the command line: there is no key 'colour'"),
        (["train.steps=many"], "error: the command line: train.steps: "),
        (["model.name=model"], "error: the command line: there is no key 'model.name'; did you mean 'model.path'?"),
        ([], "error: grpo.yaml: there is no key 'output_dirr'"),
    ],
)
def test_a_wrong_key_is_told_with_the_place_where_it_stands(overrides: list[str], words: str, desk: Path, capsys: Said) -> None:
    (desk / "grpo.yaml").write_text(f"model: model\nenv: arithmetic\n{'' if overrides else 'output_dirr: out'}\n")
    assert run_command(["train", "grpo.yaml", *overrides]) == 2
    assert words in capsys.readouterr().err


def test_the_folder_of_a_run_is_viewed_and_not_shown(desk: Path, capsys: Said) -> None:
    (desk / "out").mkdir()
    (desk / "out" / "config.yaml").write_text("env: arithmetic\n")
    assert run_command(["show", "out"]) == 2
    assert "out is the folder of a run; `rlvr view out` writes it as a page" in capsys.readouterr().err
