"""`rlvr train` on a data file: make a recipe, check the data, keep the recipe in the run folder. And `rlvr init`, which writes a recipe."""

from __future__ import annotations

import json
import os
import re
import sys
import textwrap
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import typer
import yaml
from rich.console import Console
from rich.text import Text

from rlvr.cli import screen
from rlvr.cli.settings import find_config_key
from rlvr.config.config import RunConfig, find_recipes, translate_overrides, validate_config
from rlvr.config.data_source import HUB_PREFIX, is_data_source
from rlvr.config.overrides import apply_overrides
from rlvr.conformance.gold_check import find_unreadable_references
from rlvr.errors import ConfigError, NotFound, format_suggestion
from rlvr.registry.plugins import build_from_config, get_parameters, list_entries, load_factory
from rlvr.synonyms import VERIFIERS

RECIPE_FILE = "recipe.yaml"
SETTING_PATTERN = re.compile(r"[a-z_]\w*(\.\w+)*=")
"""How a setting of a run begins: env=arithmetic, train.steps=5."""
MAX_LISTED_GOLDS = 5
SIZE_PRESETS: Mapping[str, Mapping[str, Any]] = {
    "cpu": {
        "rollout": {"sampler": "hf", "prompts_per_step": 4, "num_generations": 4, "max_new_tokens": 256},
        "train": {"steps": 10, "learning_rate": 1e-5},
        "eval": {"tasks": 30},
        "log": {"save_every": 2},
    },
    "gpu": {
        "rollout": {"sampler": "hf", "prompts_per_step": 16, "num_generations": 8, "max_new_tokens": 1024},
        "train": {"steps": 200, "learning_rate": 1e-6, "warmup_steps": 5, "gradient_checkpointing": True},
        "eval": {"tasks": 200, "every": 50},
        "log": {"save_every": 10},
    },
}
"""The sizes of a first run, by the kind of machine. An answer that is cut before its last line scores 0, so the token limit must leave
room to reason. Of 48 answers of SmolLM2-135M-Instruct to GSM8K at temperature 1, 29 % ended within 256 tokens and 48 % within 512, and no
answer of 257 to 512 tokens was right: on a CPU the larger limit would double the time and add no reward."""
SIZE_NOTES = {
    "cpu": "No accelerator was found: the sizes below are small, so that a model of some 100 million parameters takes minutes.",
    "gpu": "For one GPU. With vLLM installed, `sampler: vllm` samples several times faster.",
}
SECTION_COMMENTS = {
    "model": "a folder, or an id of the Hugging Face Hub",
    "algorithm": "`rlvr list algorithms` shows all",
    "train": "`rlvr doctor --plan` on this file estimates the memory",
}


def _make_recipe(env: Mapping[str, Any], model: str, machine_kind: str) -> dict[str, Any]:
    """Make a first recipe as plain data; `machine_kind` is cpu or gpu."""
    sizes = SIZE_PRESETS[machine_kind]
    head = {"seed": 0, "env": dict(env), "model": {"path": model} if model else {}}
    return head | {"rollout": sizes["rollout"], "algorithm": {"name": "grpo"}, **{key: sizes[key] for key in ("train", "eval", "log")}}


def _render_recipe(recipe: Mapping[str, Any], file: Path, machine_kind: str, title: str) -> str:
    """Render a recipe as YAML with comments, one line for each section except the environment."""
    lines = [f"# {title}", "#", f"#     rlvr train {file}", "#", f"# {SIZE_NOTES[machine_kind]}"]
    lines += [f"# `rlvr show env {recipe['env']['name']}` explains the settings of the environment, `rlvr show config` the others."]
    for key, value in recipe.items():
        if key == "env":
            block = yaml.safe_dump(value, sort_keys=False, allow_unicode=True, width=130)
            lines += ["env:", textwrap.indent(block.rstrip(), "  ")]
        else:
            one = yaml.safe_dump({key: value}, sort_keys=False, allow_unicode=True, default_flow_style=True, width=10_000)
            lines.append(
                one.strip().removeprefix("{").removesuffix("}") + (f"   # {SECTION_COMMENTS[key]}" if key in SECTION_COMMENTS else "")
            )
    return "\n".join(lines) + "\n"


def write_data_recipe(
    data: str, overrides: Sequence[str], *, model: str, test_data: str, verifier: str, out: Path | None
) -> tuple[RunConfig, Path]:
    """Prepare a run on a data file: check the data, write the recipe into the run folder; return the configuration and the folder."""
    own = apply_overrides({}, overrides)
    asked = own.get("env") if isinstance(own.get("env"), dict) else {}
    for key in own.keys() - RunConfig.model_fields.keys():
        of_data = key in get_parameters(load_factory("env", "dataset"))
        meant = f"did you mean {known!r}?" if (known := find_config_key(key)) else format_suggestion(key, RunConfig.model_fields)
        hint = f"write env.{key}=..., it is a setting of the data" if of_data else meant
        raise ConfigError(f"there is no key {key!r}; {hint}")
    env = {
        "name": "dataset",
        "path": data,
        **({"test": test_data} if test_data else {}),
        **({"verifier": _parse_verifier(verifier)} if verifier else {}),
    }
    if missing := [name for name in (data, test_data) if name and not name.startswith(HUB_PREFIX) and not Path(name).expanduser().exists()]:
        raise NotFound(f"there is no file or folder {missing[0]!r}; give a data file, a folder with some, or hf:ORG/NAME")
    named = own.get("model")
    if not model and not isinstance(named, str) and not (isinstance(named, dict) and {"path", "config"} & named.keys()):
        raise ConfigError(
            f"no model is named to train on {data}; add --model, a Hub id such as Qwen/Qwen2.5-0.5B-Instruct or a folder: "
            f"rlvr train {data} --model Qwen/Qwen2.5-0.5B-Instruct"
        )
    named_out = Path(str(own["out"])).expanduser() if own.get("out") else None
    folder = out or named_out or Path("runs") / f"{_make_run_name(data)}-{datetime.now():%Y%m%d-%H%M%S}"
    kept = folder / RECIPE_FILE
    with build_from_config("env", {**env, **(asked or {})}) as environment:
        found = {key: value for key, value in getattr(environment, "guessed_columns", {}).items() if key not in (asked or {})}
        env |= found
        console = screen.make_stderr_console()
        checked = find_unreadable_references(environment)
        checked.raise_if_none_readable()
        if checked.problems:
            console.print(Text(checked.describe(MAX_LISTED_GOLDS), style="yellow"), soft_wrap=True)
    recipe = apply_overrides(_make_recipe(env, model, _detect_machine_kind()), overrides)
    config = validate_config(recipe, "the command line")
    recipe.pop("out", None)
    if config.model.path is not None:
        _ = config.model.local_folder  # raises for a missing model before anything is written
    if os.environ.get("RANK", "0") == "0" and not kept.exists():  # only rank 0 writes
        folder.mkdir(parents=True, exist_ok=True)
        kept.write_text(_render_recipe(recipe, kept, _detect_machine_kind(), f"Train on {data}."), "utf-8")
    return config, folder


def needs_no_recipe(target_or_override: str) -> bool:
    """Whether `rlvr train TARGET` names an environment or an algorithm or sets a key, and is no recipe and no path that exists."""
    if target_or_override in find_recipes() or Path(target_or_override).expanduser().exists():
        return False
    return bool(SETTING_PATTERN.match(target_or_override)) or target_or_override in [
        entry.name for kind in ("env", "algorithm") for entry in list_entries(kind)
    ]


def make_run_without_recipe(target: str, overrides: Sequence[str], *, model: str, verifier: str = "") -> RunConfig:
    """Make the configuration of `rlvr train ENV --model MODEL`, also written `rlvr train env=ENV`; the sizes are those of a first run."""
    if not SETTING_PATTERN.match(target):
        target = f"{'env' if target in [entry.name for entry in list_entries('env')] else 'algorithm'}={target}"
    overrides = [*translate_overrides([target]), *overrides]
    own = apply_overrides({}, overrides)
    env = own.get("env")
    example = "rlvr train env=arithmetic --model Qwen/Qwen2.5-0.5B-Instruct"
    if not env:
        raise ConfigError(f"no recipe, data or environment is named; write for example: {example}")
    if not isinstance(env, str | Mapping):
        raise ConfigError(f"env is {env!r:.60}; give a name, or a mapping with a name and settings: {example}")
    if not model and "model" not in own:
        raise ConfigError(f"no model is named; add --model, a Hub id such as Qwen/Qwen2.5-0.5B-Instruct or a folder: {example}")
    overrides += make_verifier_overrides(verifier, overrides)
    base = _make_recipe({"name": env} if isinstance(env, str) else env, model, _detect_machine_kind())
    return validate_config(apply_overrides(base, overrides), "the command line")


def write_recipe(recipe_file: str, *, data: str, model: str, verifier: str, force: bool, json: bool) -> None:
    """Write a first recipe (`rlvr init`); prompt for missing options if there is a terminal."""
    place = Path(recipe_file)
    if place.suffix not in (".yaml", ".yml"):
        raise ConfigError(
            f"{place} is not the name of a YAML file, and init writes a recipe; write {place}.yaml, or for a template of an environment "
            f"`rlvr new env {place.name}`"
        )
    if place.exists() and not force:
        raise ConfigError(f"{place} exists and is not overwritten; choose another file, or give --force")
    data = data or _prompt_user("Questions: a data file or folder, hf:ORG/NAME, or an environment's name", "gsm8k", "--data")
    model = model or _prompt_user("Model: a Hub id or a folder", "Qwen/Qwen2.5-0.5B-Instruct", "--model")
    known = [entry.name for entry in list_entries("env")]
    env: dict[str, Any] = {"name": data} if data in known else {"name": "dataset", "path": data}
    if data not in known and not is_data_source(data):
        raise ConfigError(f"{data!r} is neither data (a .jsonl, .csv or .parquet file, a folder, hf:ORG/NAME) nor an environment")
    if env["name"] == "dataset":
        if not verifier and sys.stdin.isatty():
            verifier = _prompt_user("Verifier of the answers (`rlvr list verifiers`)", "symbolic", "--verifier")
        env["verifier"] = _parse_verifier(verifier or "symbolic")
    elif verifier:
        env["verifier"] = _parse_verifier(verifier)
    recipe = _make_recipe(env, model, _detect_machine_kind())
    validate_config(recipe, str(place))
    text = _render_recipe(recipe, place, _detect_machine_kind(), f"Train {model} on {data}.")
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(text, "utf-8")
    if json:
        screen.print_json({"written": str(place), "env": env, "model": model})
    else:
        print(f"{text}\nwritten to {place}; start with: rlvr train {place}")


def write_page_and_print_next_steps(folder: Path, console: Console) -> None:
    """Write the page of a finished run on a data file, and print the next commands."""
    from rlvr.viewer.view import write_page

    page, last = write_page(folder), folder / "checkpoints" / "last"
    console.print(
        f"page {page.path}\n"
        f"to change it and train again: {folder / RECIPE_FILE}, then rlvr train {folder / RECIPE_FILE}\n"
        f"to measure it on all held-out questions: rlvr eval {folder / RECIPE_FILE} --policy hf:{last}\n"
        f"to measure it on other data: rlvr eval FILE --policy hf:{last}",
        highlight=False, markup=False, soft_wrap=True,
    )  # fmt: skip


def _parse_verifier(text: str) -> Any:
    """Parse a verifier of the command line: a name, or YAML such as {symbolic: 0.9, format: 0.1}."""
    return apply_overrides({}, [f"v={VERIFIERS.get(text, text)}"])["v"]


def _detect_machine_kind() -> str:
    """Return gpu if torch finds an accelerator, else cpu."""
    try:
        import torch
    except ModuleNotFoundError:
        return "gpu"  # the recipe may be for another machine
    return "gpu" if torch.accelerator.is_available() else "cpu"


def make_model_overrides(model: str) -> list[str]:
    """Make the overrides for `--model`: the model with its own tokenizer and without a warmup.

    >>> make_model_overrides("")
    []
    """
    return ["model={path: " + yaml.safe_dump(model, default_style='"').strip() + "}", "tokenizer=null", "sft_warmup=null"] if model else []


def is_data_target(recipe_or_data: str) -> bool:
    """Whether `rlvr train TARGET` names data and not a recipe."""
    return recipe_or_data not in find_recipes() and is_data_source(recipe_or_data)


def make_verifier_overrides(verifier: str, overrides: Sequence[str]) -> list[str]:
    """Make the override for `--verifier` with an environment by name.

    >>> make_verifier_overrides("math_verify", []), make_verifier_overrides("", [])
    (['env.verifier="symbolic"'], [])
    """
    if not verifier:
        return []
    env = apply_overrides({}, overrides).get("env")
    if isinstance(env, Mapping) and "verifier" in env:
        raise ConfigError(f"--verifier {verifier} and env.verifier are both given, which set the same; give one of them")
    return [f"env.verifier={json.dumps(_parse_verifier(verifier))}"]


def _make_run_name(target: str) -> str:
    """Make the name of a run folder from a data path.

    >>> _make_run_name("hf:openai/gsm8k:main"), _make_run_name("data/train.jsonl.gz")
    ('gsm8k-main', 'train')
    """
    name = target.removeprefix("hf:").rstrip("/").rpartition("/")[2].replace(":", "-")
    return re.sub(r"\.(jsonl|json|csv|tsv|parquet)(\.gz)?$", "", name) or "data"


def _prompt_user(question: str, default: str, option: str) -> str:
    if not sys.stdin.isatty():
        raise ConfigError(f"{option} is missing, and there is no terminal to ask on; for example {option} {default}")
    return str(typer.prompt(question, default=default))
