"""Models by their Hub ids: found in the cache, with the revision that was asked for, and refused in words where they cannot be had."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from huggingface_hub import constants

from rlvr.cli.commands import run_command
from rlvr.config.config import ModelConfig, RunConfig, load_config
from rlvr.config.hub import resolve_model_folder
from rlvr.errors import ConfigError, NotFound
from rlvr.evaluation.evaluate import evaluate
from rlvr.evaluation.evaluate import find_local_policy_folder as policy_folder
from rlvr.mdp.tokenizers import CharTokenizer, load_tokenizer
from rlvr.models.model_loading import load_model, to_transformers_tokenizer
from tests.fixtures.tiny import MODEL

FIRST, SECOND = "1" * 40, "2" * 40


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A cache as the Hub's client keeps it, with two revisions of the model org/tiny; nothing can be downloaded."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    home = tmp_path / "models--org--tiny"
    (home / "refs").mkdir(parents=True)
    (home / "refs" / "main").write_text(SECOND)
    (home / "refs" / "old").write_text(FIRST)
    for seed, revision in enumerate((FIRST, SECOND)):
        place = home / "snapshots" / revision
        tokenizer = CharTokenizer("0123456789+=")
        load_model(ModelConfig(config=MODEL), tokenizer, seed).save_pretrained(place)
        to_transformers_tokenizer(tokenizer).save_pretrained(place)
    resolve_model_folder.cache_clear()
    yield tmp_path
    resolve_model_folder.cache_clear()


def test_an_id_is_found_in_the_cache_by_revision(hub: Path) -> None:
    assert (
        resolve_model_folder("org/tiny").name == SECOND
        and resolve_model_folder("org/tiny", "old").name == resolve_model_folder("org/tiny@old").name == FIRST
    )
    now, old = (load_model(ModelConfig(path="org/tiny", revision=revision)) for revision in (None, "old"))
    assert (now.get_input_embeddings().weight != old.get_input_embeddings().weight).any()
    assert load_tokenizer("org/tiny").vocab_size == load_tokenizer("org/tiny@old").vocab_size == 16


def test_a_policy_and_a_run_take_ids(hub: Path, tmp_path: Path) -> None:
    report = evaluate("digit_sum", "hf:org/tiny", tasks=2)
    assert report.envs["digit_sum"].scored == 2 and policy_folder("hf:org/tiny").endswith(SECOND)
    config = load_config("quickstart", ["model={path: org/tiny, revision: old}", "tokenizer=null", "sft_warmup=null"])
    assert config.model.local_folder.name == FIRST and config.tokenizer_name == "org/tiny@old"
    assert RunConfig.model_validate(config.model_dump()).model.path == "org/tiny", "the id, and not a path of this machine, is recorded"


def test_a_model_that_is_not_here_says_how_to_fetch_it(hub: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = r"hf download org/none --revision v2 --local-dir DIR`, and give the folder DIR"
    with pytest.raises(NotFound, match=words):
        resolve_model_folder("org/none", "v2")
    assert run_command(["eval", "digit_sum", "--policy", "hf:org/none"]) == 2
    said = capsys.readouterr().err
    assert "`hf download org/none --local-dir DIR`" in said and len(said.strip().splitlines()) == 1


@pytest.mark.parametrize(("name", "words"), [
    ("nowhere", "'nowhere' is not a folder, and not an id of the Hugging Face Hub"),
    ("../x/y", "not an id"), ("a/b/c", "not an id"), ("org/ti ny", "not an id"),
])  # fmt: skip
def test_what_is_neither_a_folder_nor_an_id_is_refused(name: str, words: str) -> None:
    with pytest.raises(NotFound, match=words):
        resolve_model_folder(name)


def test_a_folder_has_no_revision(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="only ids of the Hub have revisions"):
        resolve_model_folder(str(tmp_path), "main")
    with pytest.raises(ConfigError, match="revision and trust_remote_code belong to a model of the Hub"):
        load_config("quickstart", ["model.revision=main"])


def test_a_model_that_brings_its_own_code_is_refused_with_the_reason(hub: Path, tmp_path: Path) -> None:
    place = tmp_path / "own"
    load_model(ModelConfig(path="org/tiny")).save_pretrained(place)
    settings = json.loads((place / "config.json").read_text()) | {"auto_map": {"AutoModelForCausalLM": "modeling_own.Own"}}
    (place / "config.json").write_text(json.dumps(settings))
    (place / "modeling_own.py").write_text("raise SystemExit('the code of the model ran')\n")
    with pytest.raises(
        ConfigError, match=r"brings its own code \(modeling_own\.Own\).*model\.trust_remote_code=true.*model\.revision=COMMIT"
    ):
        load_model(ModelConfig(path=str(place)))
