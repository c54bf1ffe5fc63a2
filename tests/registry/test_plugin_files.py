"""Plugins in files: names relative to the file that names them, and what a run keeps of them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from rlvr.cli.commands import run_command
from rlvr.config.config import load_config
from rlvr.evaluation.evaluate import evaluate
from rlvr.evaluation.samples import load_plan
from rlvr.integrations.exporting import export_env
from rlvr.plugin_files import resolve_plugin_files, shorten_plugin_files
from rlvr.registry.plugins import build
from rlvr.runs.plugin_record import find_plugin_changes

ENV = '''
from rlvr import Environment, Task

class Twice(Environment):
    """Double a number."""
    needs = {"verifier": "judge.py:Same"}
    max_prompt_tokens = 24
    max_new_tokens = 4
    def __init__(self, *, verifier):
        self.verifier = verifier
    def task(self, split, index):
        return Task(f"2*{index % 50}=", reference=str(2 * (index % 50)), id=f"twice/{split}/{index}")
    def gold(self, task):
        return str(task.reference)
'''
VERIFIER = '''
from rlvr import Verdict, Verifier

class Same(Verifier):
    """The answer is the reference."""
    def verify(self, task, answer):
        return Verdict(float(answer == task.reference), "compared")
'''
RECIPE = """
env: worlds.py:Twice
tokenizer: chars
model: {config: {model_type: qwen2, hidden_size: 16, num_hidden_layers: 1, num_attention_heads: 2, num_key_value_heads: 2, intermediate_size: 32}}
rollout: {num_generations: 2, prompts_per_step: 2}
train: {steps: 1}
eval: {tasks: 2}
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with an environment, the verifier that it names, a recipe and a suite; the current folder is another one."""
    folder, elsewhere = tmp_path / "project", tmp_path / "elsewhere"
    folder.mkdir()
    elsewhere.mkdir()
    (folder / "worlds.py").write_text(ENV)
    (folder / "judge.py").write_text(VERIFIER)
    (folder / "recipe.yaml").write_text(RECIPE)
    (folder / "suite.yaml").write_text("- {env: worlds.py:Twice, tasks: 3}\n")
    monkeypatch.chdir(elsewhere)
    return folder


def test_a_file_that_needs_names_is_relative_to_the_file_of_the_class(project: Path) -> None:
    assert type(build("env", f"{project}/worlds.py:Twice").verifier).__name__ == "Same"


def test_a_recipe_and_a_suite_name_files_relative_to_themselves(project: Path) -> None:
    assert load_config(project / "recipe.yaml").env["name"] == f"{project}/worlds.py:Twice"
    assert evaluate(str(project / "suite.yaml"), "scripted:gold").envs["Twice"].mean_score.value == 1.0  # type: ignore[union-attr]


def test_then_a_name_is_relative_to_the_current_folder(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (project / "sub").mkdir()
    (project / "sub" / "recipe.yaml").write_text(RECIPE)
    monkeypatch.chdir(project)
    assert load_config("sub/recipe.yaml").env["name"] == f"{project}/worlds.py:Twice"
    assert load_config("sub/recipe.yaml", ["env.verifier=judge.py:Same"]).env["verifier"] == f"{project}/judge.py:Same"


def test_names_are_found_in_keys_and_lists_and_nothing_else_is_touched(project: Path) -> None:
    data = {"verifier": {"judge.py:Same": 0.5, "format": 0.5}, "tools": ["judge.py:Same"], "prompt": "look at no.py:x", "n": 3}
    found = resolve_plugin_files(data, project)
    assert found == {
        "verifier": {f"{project}/judge.py:Same": 0.5, "format": 0.5},
        "tools": [f"{project}/judge.py:Same"],
        "prompt": "look at no.py:x",
        "n": 3,
    }
    assert shorten_plugin_files(found) == data


def test_a_missing_file_is_named_with_the_places_that_were_tried(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["eval", "no.py:Env", "--policy", "scripted:gold"]) == 2
    assert "there is no file 'no.py'" in (said := capsys.readouterr().err) and "relative to the file that names it" in said


def test_an_evaluation_keeps_files_and_digests_and_goes_on_from_another_folder(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    monkeypatch.chdir(project)
    assert run_command(["eval", "worlds.py:Twice", "--policy", "scripted:gold", "--tasks", "2", "--out", str(out)]) == 0
    record = json.loads((out / "plugins.json").read_text())
    assert [Path(row["path"]).name for row in record["files"]] == ["judge.py", "worlds.py"]
    assert (out / "plugins" / "worlds.py").read_text() == ENV
    assert find_plugin_changes(out) == []

    moved = tmp_path / "moved"
    shutil.copytree(project, moved)
    monkeypatch.chdir(moved)
    assert run_command(["eval", "worlds.py:Twice", "--policy", "scripted:gold", "--tasks", "3", "--out", str(out)]) == 0
    assert load_plan(out).envs[0].tasks == 3

    (project / "judge.py").write_text(VERIFIER + "\n# another line\n")
    (project / "worlds.py").unlink()
    capsys.readouterr()
    assert run_command(["eval", "--rescore", str(out), "--out", str(tmp_path / "again")]) == 0
    said = capsys.readouterr().err
    assert "worlds.py is gone; its copy" in said and "judge.py has changed since" in said


def test_a_training_run_is_replayed_and_evaluated_from_another_folder(
    project: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch")
    run = tmp_path / "run"
    assert run_command(["train", str(project / "recipe.yaml"), "--out", str(run), "--json"]) == 0
    assert (run / "plugins" / "worlds.py").read_text() == ENV
    shutil.rmtree(project)  # only what the run keeps is left
    capsys.readouterr()
    assert run_command(["replay", str(run)]) == 0
    assert "worlds.py is gone; its copy" in capsys.readouterr().err
    assert run_command(["eval", str(run / "config.yaml"), "--policy", "scripted:gold", "--tasks", "2"]) == 0


def test_exported_files_name_plugins_by_absolute_paths(project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(project)
    written = export_env("worlds.py:Twice", "trl", tmp_path / "out", settings={"verifier": "judge.py:Same"}, count=2)
    text = "".join((written.folder / name).read_text() for name in written.files if name.endswith(".py"))
    assert f"{project}/worlds.py:Twice" in text and f"{project}/judge.py:Same" in text
