"""The first commands: training and evaluating on a data file, and `rlvr init`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from rlvr.cli.commands import run_command
from rlvr.config.config import ModelConfig, load_config
from rlvr.config.data_source import is_data_source
from rlvr.errors import ConfigError, format_install_command
from rlvr.mdp.tokenizers import CharTokenizer
from rlvr.models.model_loading import load_model, to_transformers_tokenizer
from tests.fixtures.tiny import MODEL

SMALL = [
    "rollout={prompts_per_step: 2, num_generations: 2, max_new_tokens: 4}",
    "train.steps=2",
    "eval.tasks=5",
    "env.instruction=''",
]
Said = pytest.CaptureFixture[str]


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a file of thirty questions and a model of a few thousand parameters."""
    monkeypatch.chdir(tmp_path)
    rows = [{"question": f"{n}+{n}=", "answer": 2 * n} for n in range(30)]
    (tmp_path / "id.toml").write_text('model = "model"\n[env]\nid = "arithmetic"\n')
    (tmp_path / "broken.toml").write_text("model\n")
    (tmp_path / "sums.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    tokenizer = CharTokenizer("0123456789+=")
    load_model(ModelConfig(config=MODEL), tokenizer).save_pretrained(tmp_path / "model")
    to_transformers_tokenizer(tokenizer).save_pretrained(tmp_path / "model")
    return tmp_path


@pytest.mark.slow
def test_one_command_makes_a_run_with_recipe_interval_and_page(desk: Path, capsys: Said) -> None:
    line = ["train", "sums.jsonl", "--model", "model", "--verifier", "numeric", "--out", "runs/a", *SMALL]
    assert run_command([*line, "--json"]) == 0
    said = capsys.readouterr()
    report = json.loads(said.out)
    assert report["held_out_tasks"] == 3 and report["held_out_contaminated"] == 0 and len(report["interval_after"]) == 2
    told = " ".join(said.err.split())
    assert "question = {question}, reference = {answer}" in told and "3 of 30 rows are held out" in told and "(95 %: " in told
    assert "note: no step changed the weights: the checkpoint is the model that training began with" in told, "no answer was right"
    assert (desk / "runs/a/view.html").is_file() and (desk / "runs/a/checkpoints/last/config.json").is_file()
    recipe = yaml.safe_load((desk / "runs/a/recipe.yaml").read_text())
    assert recipe["env"] == {
        "name": "dataset", "path": "sums.jsonl", "verifier": "numeric", "question": "{question}", "reference": "{answer}", "instruction": ""
    }  # fmt: skip
    assert load_config("runs/a/recipe.yaml") == load_config("runs/a/config.yaml"), "the recipe is the run"
    assert run_command(["export", "runs/a", "--to", "trl-dataset"]) == 0
    rows = [json.loads(row) for row in (desk / "runs/a/trl.jsonl").read_text().splitlines()]
    assert len(rows) == 8 and rows[0]["prompt"][0]["content"].endswith("=") and rows[0]["completion"][0]["role"] == "assistant"
    assert run_command([*line, "--resume"]) == 0, "the same command continues the run"
    assert run_command(line) == 2 and "is not empty and is not overwritten" in capsys.readouterr().err
    assert run_command(["train", "runs/a/recipe.yaml", "--out", "runs/b", "train.steps=1", "eval.tasks=0"]) == 0
    said = capsys.readouterr()
    assert "held-out accuracy not measured (eval.tasks=0)" in said.out and "accuracy before" not in said.out


@pytest.mark.parametrize("target", ["env=arithmetic", "arithmetic", "recipe.toml"])
def test_a_run_needs_no_recipe_and_a_recipe_may_be_toml(target: str, desk: Path, capsys: Said) -> None:
    (desk / "recipe.toml").write_text('model = "model"\n[env]\nname = "arithmetic"\n')
    sizes = ["rollout={prompts_per_step: 2, num_generations: 2, max_new_tokens: 4}", "train.steps=1", "eval.tasks=2"]
    assert run_command(["train", target, *sizes, *(["--model", "model"] if "toml" not in target else []), "--out", "run", "--json"]) == 0
    config = load_config("run/config.yaml")
    assert config.env == {"name": "arithmetic"} and config.model.path == "model" and config.train.steps == 1


def test_a_path_is_a_path_whatever_its_name(desk: Path, capsys: Said) -> None:
    for name in ("lr=1e-5", "grpo", "arithmetic"):
        (desk / name).mkdir()
        (desk / name / "train.jsonl").write_text((desk / "sums.jsonl").read_text())
    for line in (["lr=1e-5/train.jsonl"], ["grpo"], ["arithmetic"]):
        assert run_command(["train", *line, "--model", "none", "--verifier", "numeric"]) == 2
        assert "'none' is not a folder, and not an id" in capsys.readouterr().err
    assert run_command(["train", "countdown", "--model", "model", "--test", "sums.jsonl"]) == 2
    assert "--test goes with a data file" in capsys.readouterr().err
    assert run_command(["train", "env=[arithmetic]", "--model", "model"]) == 2
    assert "env is ['arithmetic']; give a name" in capsys.readouterr().err


def test_a_data_file_is_evaluated_whole(desk: Path, capsys: Said) -> None:
    assert run_command(["eval", "sums.jsonl", "--policy", "scripted:gold", "--set", "verifier=numeric", "--json"]) == 0
    said = capsys.readouterr()
    report = json.loads(said.out)
    assert "sums.jsonl: 30 rows, question = {question}, reference = {answer}" in said.err
    assert report["envs"]["sums"]["tasks"] == 30 and report["envs"]["sums"]["mean_score"] == 1.0
    assert run_command(["eval", "sums.jsonl", "--policy", "scripted:gold", "--limit", "4", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["envs"]["sums"]["tasks"] == 4


@pytest.mark.parametrize(("line", "words"), [
    (["train", "sums.jsonl"], "no model is named to train on sums.jsonl; add --model"),
    (["train", "none.jsonl", "--model", "model"], "there is no file or folder 'none.jsonl'"),
    (["train", "sums.jsonl", "--model", "modle"], "'modle' is not a folder, and not an id"),
    (["train", "sums.jsonl", "--model", "model", "env.question=q"], "which names no column; allowed: answer, question"),
    (["train", "sums.jsonl", "--model", "model", "--verifier", "numerc"], "did you mean 'numeric'"),
    (["train", "quickstart", "--test", "sums.jsonl"], "--test goes with a data file"),
    (["train", "arithmetic", "--model", "model", "--verifier", "numeric", "env.verifier=exact"], "env.verifier are both given"),
    (["train", "quickstart", "--verifier", "numerc"], "did you mean 'numeric'"),
    (["train", "arithmetic"], "no model is named; add --model"),
    (["train", "train.steps=1", "--model", "model"], "no recipe, data or environment is named; write for example: rlvr train env=arithmetic"),
    (["train", "id.toml"], "write name: arithmetic, not id"),
    (["train", "broken.toml"], "broken.toml is not valid TOML: Expected '=' after a key"),
    (["eval", "none.csv", "--policy", "scripted:gold"], "there is no file or folder 'none.csv'"),
    (["init", "--data", "sums.jsonl"], "--model is missing, and there is no terminal to ask on"),
    (["init", "--data", "sumz", "--model", "model"], "'sumz' is neither data"),
])  # fmt: skip
def test_what_is_missing_is_said_before_anything_is_written(line: list[str], words: str, desk: Path, capsys: Said) -> None:
    before = sorted(desk.rglob("*"))
    assert run_command(line) == 2
    said = capsys.readouterr().err
    assert words in said and "Traceback" not in said and sorted(desk.rglob("*")) == before


def test_references_that_cannot_be_read_are_listed_by_line(desk: Path, capsys: Said) -> None:
    with (desk / "sums.jsonl").open("a") as file:
        file.write('{"question": "why?", "answer": "because \\\\frac{1"}\n')
    assert run_command(["train", "sums.jsonl", "--model", "model", "train.steps=0"]) == 2
    said = capsys.readouterr().err
    assert "1 of 31 references cannot be read by the verifier" in said and "sums.jsonl:31: " in said


def test_init_writes_a_recipe_that_train_takes(desk: Path, capsys: Said) -> None:
    assert run_command(["init", "--data", "sums.jsonl", "--model", "model", "--verifier", "{numeric: 0.9, format: 0.1}"]) == 0
    assert "start with: rlvr train recipe.yaml" in capsys.readouterr().out
    assert load_config("recipe.yaml").env["verifier"] == {"numeric": 0.9, "format": 0.1}
    assert run_command(["init", "--data", "gsm8k", "--model", "model"]) == 2 and "--force" in capsys.readouterr().err
    assert run_command(["init", "--data", "gsm8k", "--model", "model", "--force", "--json"]) == 0
    assert load_config("recipe.yaml").env == {"name": "gsm8k"}
    assert run_command(["init", "usual.yaml", "--data", "sums.jsonl", "--model", "model"]) == 0
    assert load_config("usual.yaml").env["verifier"] == "symbolic"


def test_init_asks_three_questions(desk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def prompt(question: str, default: str) -> str:
        asked.append(question)
        return {"Q": "sums.jsonl", "M": "model", "V": "numeric"}[question[0]]

    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("typer.prompt", prompt)
    assert run_command(["init", "first.yaml"]) == 0 and len(asked) == 3
    assert load_config("first.yaml").env == {"name": "dataset", "path": "sums.jsonl", "verifier": "numeric"}


def test_data_is_told_apart_from_runs_and_names(desk: Path) -> None:
    (desk / "runs").mkdir()
    (desk / "runs" / "config.yaml").write_text("")
    (desk / "runs" / "episodes.jsonl").write_text("")
    (desk / "data").mkdir()
    (desk / "data" / "a.csv").write_text("question,answer\n1,2\n")
    assert [is_data_source(name) for name in ("sums.jsonl", "data", "hf:org/name", "x.parquet", "runs", "quick", "", "model")] == [
        True, True, True, True, False, False, False, False
    ]  # fmt: skip


def test_a_model_replaces_that_of_a_recipe(desk: Path) -> None:
    from rlvr.cli.data_training import make_model_overrides

    config = load_config("quickstart", make_model_overrides("model"))
    assert (config.model.path, config.model.config, config.tokenizer, config.sft_warmup) == ("model", None, None, None)


def test_what_to_install_works_from_a_clone_and_without_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = Path(__file__).resolve().parents[2]
    monkeypatch.chdir(root)
    assert format_install_command("train") == "pip install -e '.[train]'" and format_install_command() == "pip install -e '.'"
    monkeypatch.chdir(tmp_path)
    assert format_install_command("train") == f"pip install -e '{root}[train]'"
    monkeypatch.setattr("rlvr.errors.__file__", str(tmp_path / "site-packages" / "rlvr" / "errors.py"))
    monkeypatch.setattr("rlvr.errors.requires", lambda name: ["numpy>=1", "torch>=2.6; extra == 'train'", "peft; extra == 'lora'"])
    assert format_install_command("train") == "pip install 'torch>=2.6'"


def test_an_unknown_ending_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"no recipe 'sums\.txt'"):
        load_config("sums.txt")
