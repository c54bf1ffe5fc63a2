"""A recipe may have keywords of `rlvr.train` at its top, in the words of TRL too: they are the keys of its sections."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from rlvr.config.config import (
    ALGORITHM_KEYWORDS,
    SECTIONS_OF_KEYWORDS,
    RunConfig,
    find_key_of_keyword,
    find_recipes,
    load_config,
    translate_flat_keys,
)
from rlvr.config.data_source import is_data_source
from rlvr.config.yamlfile import read_yaml
from rlvr.errors import ConfigError
from rlvr.registry.plugins import get_parameters, load_factory

FLAT: dict[str, Any] = {
    "model": "models/tiny",
    "env": "arithmetic",
    "algorithm": "grpo",
    "max_steps": 2,
    "num_generations": 2,
    "max_completion_length": 8,
    "learning_rate": 1e-05,
    "save_steps": 1,
    "beta": 0.5,
    "output_dir": "out",
    "logging_steps": 1,
}
NESTED: dict[str, Any] = {
    "model": {"path": "models/tiny"},
    "env": {"name": "arithmetic"},
    "algorithm": {"name": "grpo", "beta": 0.5},
    "train": {"steps": 2, "learning_rate": 1e-05},
    "rollout": {"num_generations": 2, "max_new_tokens": 8},
    "log": {"save_every": 1},
}


def write(folder: Path, recipe: dict[str, Any], name: str = "grpo.yaml") -> Path:
    path = folder / name
    if name.endswith(".toml"):
        path.write_text("".join(f"{key} = {json.dumps(value)}\n" for key, value in recipe.items()))
    else:
        path.write_text(json.dumps(recipe, indent="\t") if name.endswith(".json") else yaml.safe_dump(recipe, sort_keys=False))
    return path


@pytest.mark.parametrize("name", ["grpo.yaml", "grpo.toml", "grpo.json"])
def test_flat_keys_are_those_of_the_sections_in_each_language(name: str, tmp_path: Path) -> None:
    made, wanted = load_config(write(tmp_path, FLAT, name)), load_config(write(tmp_path, NESTED, "nested.yaml"))
    assert made.out == "out" and wanted.out is None
    assert yaml.safe_load(made.to_yaml()) == yaml.safe_load(wanted.to_yaml()), "the run's own record is nested"


def test_flat_and_nested_keys_go_together(tmp_path: Path) -> None:
    made = load_config(write(tmp_path, {"env": "arithmetic", "model": "m", "train": {"steps": 3}, "lr": 0.5, "eval": {"tasks": 4}}))
    assert (made.train.steps, made.train.learning_rate, made.eval.tasks) == (3, 0.5, 4)


@pytest.mark.parametrize(
    ("recipe", "words"),
    [
        ({"max_steps": 2, "train": {"steps": 3}}, "max_steps and train.steps are both given, which set the same"),
        ({"reward_funcs": "numeric", "env": {"name": "arithmetic", "verifier": "exact"}}, "reward_funcs and env.verifier are both given"),
        ({"max_steps": 2, "steps": 3}, "grpo.yaml: max_steps and steps, which mean the same"),
        ({"output_dir": "a", "out": "b"}, "output_dir and out, which mean the same"),
        ({"train_dataset": "d.jsonl"}, "train_dataset and env are both given"),
        ({"num_train_epochs": 3}, "there is no key 'num_train_epochs'; did you mean 'train.steps'"),
        ({"resume_from_checkpoint": True}, "there is no key 'resume_from_checkpoint'"),
        ({"per_device_train_batch_size": 3, "num_generations": 2}, "must be a multiple of num_generations=2"),
        ({"model": {"name": "models/tiny"}}, "there is no key 'model.name'; did you mean 'model.path'?"),
    ],
)
def test_what_is_given_twice_or_unknown_is_an_error(
    recipe: dict[str, Any], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path, {"env": "arithmetic", "model": "m", **recipe})
    with pytest.raises(ConfigError) as caught:
        load_config("grpo.yaml")
    assert words in str(caught.value) and str(caught.value).startswith("grpo.yaml: ")


def test_words_whose_value_is_converted() -> None:
    made = translate_flat_keys(
        {
            "model": "m",
            "train_dataset": "d.jsonl",
            "reward_funcs": "numeric",
            "report_to": "wandb",
            "peft_config": {"r": 4, "lora_alpha": 8},
        },
        "test",
    )
    assert made["env"] == {"name": "dataset", "path": "d.jsonl", "verifier": "numeric"} and made["log"] == {"report_to": ["wandb"]}
    assert made["model"] == {"path": "m", "lora": {"rank": 4, "alpha": 8}}
    assert translate_flat_keys({"report_to": "none"}, "test") == {"log": {"report_to": []}}
    batch = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2}
    assert translate_flat_keys({**batch, "num_generations": 2}, "test") == {"rollout": {"num_generations": 2, "prompts_per_step": 4}}
    assert translate_flat_keys({**batch, "rollout": {"num_generations": 4}}, "test") == {
        "rollout": {"num_generations": 4, "prompts_per_step": 2}
    }
    assert translate_flat_keys({"data": {"run": "runs/a"}}, "test") == {"data": {"run": "runs/a"}}


def test_overrides_may_be_keywords_and_win_over_the_file(tmp_path: Path) -> None:
    path = write(tmp_path, FLAT)
    overrides = [
        "max_steps=7",
        "learning_rate=1e-4",
        "beta=0.25",
        "reward_funcs=numeric",
        "output_dir=other",
        "report_to=wandb",
        "top_p=0.5",
    ]
    made = load_config(path, overrides)
    assert (made.train.steps, made.train.learning_rate, made.algorithm["beta"], made.out) == (7, 1e-4, 0.25, "other")
    assert (made.env["verifier"], made.log.report_to, made.rollout.top_p) == ("numeric", ["wandb"], 0.5)
    assert load_config(path, ["max_steps=7", "train.steps=8"]).train.steps == 8, "the last one, as of overrides with one key"


def test_an_error_names_where_the_key_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path, {**NESTED, "eval": {"tasks": -1}})
    with pytest.raises(ConfigError) as caught:
        load_config("grpo.yaml", ["colour=red", "train.steps=many"], overrides_source="the command line")
    told = str(caught.value)
    file, line = told.split("the command line: ")
    assert file.startswith("grpo.yaml: eval.tasks: ") and "train.steps" in line and "'colour'" in line and "grpo.yaml" not in line


def test_every_keyword_has_a_key_that_exists() -> None:
    known = {word for kind in SECTIONS_OF_KEYWORDS.values() for word in kind.model_fields}
    for word in known:
        section, _, name = find_key_of_keyword(word).partition(".")
        assert name == word and word in SECTIONS_OF_KEYWORDS[section].model_fields
    settings = {name for algorithm in ("grpo", "ppo") for name in get_parameters(load_factory("algorithm", algorithm))}
    assert settings >= ALGORITHM_KEYWORDS and not ALGORITHM_KEYWORDS & (known | RunConfig.model_fields.keys())


def test_the_recipes_of_the_package_are_unchanged() -> None:
    for name, path in find_recipes().items():
        assert translate_flat_keys(read_yaml(path), name) == read_yaml(path)


def test_a_json_recipe_is_no_data(tmp_path: Path) -> None:
    row = {"question": "1+1=", "answer": "2"}
    texts = {
        "rows.json": json.dumps([row]),
        "lines.json": f"{json.dumps(row)}\n{json.dumps(row)}\n",
        "columns.json": json.dumps({"model": ["a"], "env": ["b"], "question": ["c"]}),
        "broken.json": '{"env": "arithmetic"',
        "flat.json": json.dumps(FLAT),
        "data.json": json.dumps({"model": "m", "train_dataset": "d.jsonl"}),
    }
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    assert [name for name in texts if not is_data_source(str(tmp_path / name))] == ["flat.json", "data.json"]
