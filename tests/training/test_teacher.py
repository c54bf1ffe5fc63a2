"""A reference that is another model, in whole runs: what it changes, what is refused, and that it is loaded again on resume."""

from __future__ import annotations

import io
import json
import shutil
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file

from rlvr.config.config import ModelConfig
from rlvr.errors import ConfigError, NotFound
from rlvr.mdp.tokenizers import load_tokenizer
from rlvr.models.frozen_models import check_policy_tokenizer
from rlvr.models.model_loading import load_model, to_transformers_tokenizer
from rlvr.training.components import build_components
from rlvr.training.train import train
from tests.fixtures.tiny import MODEL, tiny_run

KL = {"name": "grpo", "beta": 0.2}


def saved(folder: Path, alphabet: str = "0123456789+=", **changes: Any) -> Path:
    """A model of another size with its tokenizer, as a run would save it."""
    tokenizer = load_tokenizer(f"chars:{alphabet}")
    load_model(ModelConfig(config={**MODEL, "hidden_size": 16, "num_hidden_layers": 2, **changes}), tokenizer, seed=9).save_pretrained(
        folder
    )
    to_transformers_tokenizer(tokenizer).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(tmp_path_factory.mktemp("teacher"))


def run(folder: Path, *, resume: bool = False, **changes: Any) -> dict[str, Any]:
    train(tiny_run(**changes), out=folder, resume=resume, console=Console(file=io.StringIO()))
    return json.loads((folder / "metrics.jsonl").read_text().splitlines()[0])


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "checkpoints" / "last" / "model.safetensors")


def test_the_kl_is_to_the_model_that_is_named(tmp_path: Path, teacher: Path) -> None:
    own = run(tmp_path / "own", algorithm=KL)
    other = run(tmp_path / "other", algorithm=KL, frozen_models={"reference": str(teacher)})
    assert abs(own["kl"]) < 1e-6 and other["kl"] > 0.01
    assert not (tmp_path / "other" / "reference").exists()  # it stays where it is
    assert any(not torch.equal(a, weights(tmp_path / "other")[name]) for name, a in weights(tmp_path / "own").items())


@pytest.mark.parametrize(
    "settings",
    [
        {"algorithm": {"name": "distill", "divergence": "reverse_kl", "advantage": "grpo"}},
        {"algorithm": KL, "model": {"config": MODEL, "lora": {"rank": 2}}},
        {"algorithm": {"name": "ppo", "num_iterations": 1}, "train": {"steps": 2, "separate_critic": {"learning_rate": 1e-3}}},
    ],
    ids=["distill", "adapter", "critic"],
)
def test_a_killed_run_ends_as_it_would_have(tmp_path: Path, teacher: Path, settings: dict[str, Any]) -> None:
    given: dict[str, Any] = {"frozen_models": {"reference": str(teacher)}, "train": {"steps": 2, "learning_rate": 1e-3}} | settings
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    run(whole, **given)
    shutil.copytree(whole, cut, symlinks=True)
    shutil.rmtree(cut / "checkpoints" / "step-000002")
    (cut / "report.json").unlink()
    run(cut, resume=True, **given)
    assert (whole / "metrics.jsonl").read_text() == (cut / "metrics.jsonl").read_text()
    assert all(torch.equal(a, weights(cut)[name]) for name, a in weights(whole).items())


def test_an_algorithm_has_models_of_its_own(tmp_path: Path, teacher: Path) -> None:
    """The models of a new algorithm are one line of its file and one of the configuration."""
    (tmp_path / "mine.py").write_text(
        "from rlvr.algorithms.base.algorithm_spec import declare_traits\n\n\n"
        '@declare_traits(frozen_models=("expert",))\n'
        'def loss(x):\n    return -(x.logprobs - x.old_logprobs).exp() * (x.advantages + x.frozen_logprobs["expert"])\n'
    )
    algorithm = {"name": "grpo", "loss": f"{tmp_path}/mine.py:loss"}
    other = saved(tmp_path / "other", hidden_size=32)
    for name, folder in (("a", teacher), ("b", other)):
        run(tmp_path / name, algorithm=algorithm, frozen_models={"expert": str(folder)})
    assert any(not torch.equal(a, weights(tmp_path / "b")[name]) for name, a in weights(tmp_path / "a").items())
    for models, message in (
        ({}, "frozen_models.expert is not set; set it to the folder of a model"),
        ({"expert": str(teacher), "expret": str(teacher)}, "grpo has no model of that name; did you mean 'expert'"),
        ({"expret": str(teacher)}, r"did you mean 'expert'\? Allowed: expert, reference \(reference needs algorithm.beta above 0\)"),
    ):
        with pytest.raises(ConfigError, match=message):
            run(tmp_path / "c", algorithm=algorithm, frozen_models=models)


def test_another_tokenizer_is_refused(tmp_path: Path) -> None:
    other = saved(tmp_path / "other", alphabet="0123456789=+")  # as many tokens, two of them swapped
    with pytest.raises(ConfigError, match=r"has another tokenizer than the policy \(\d+ tokens and \d+; '[+=]' differs\)"):
        run(tmp_path / "a", algorithm=KL, frozen_models={"reference": str(other)})
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (other / name).unlink(missing_ok=True)
    with pytest.raises(ConfigError, match="has no tokenizer to compare with the policy's"):
        run(tmp_path / "b", algorithm=KL, frozen_models={"reference": str(other)})


def test_a_tokenizer_that_the_policy_was_not_trained_with_is_refused(tmp_path: Path) -> None:
    model = ModelConfig(path=str(saved(tmp_path / "own")))
    check_policy_tokenizer(model, load_tokenizer("chars:0123456789+=ab"))  # longer, with the same ids
    with pytest.raises(
        ConfigError, match=r"'.' has the id \d+, and the model was trained with \d+ \(\d+ of \d+ common tokens differ\); leave"
    ):
        check_policy_tokenizer(model, load_tokenizer("chars:=+9876543210"))
    with pytest.raises(ConfigError, match=r"'1' has the id 6, and the model was trained with 5 \(2 of 12 common tokens"):
        check_policy_tokenizer(model, load_tokenizer("chars:0213456789+="))
    with pytest.raises(ConfigError, match="leave tokenizer out"):
        run(tmp_path / "run", tokenizer="chars:=+9876543210", model={"path": model.path}, sft_warmup=None)


def test_a_teacher_with_a_shorter_window_is_refused(tmp_path: Path) -> None:
    short = saved(tmp_path / "short", max_position_embeddings=4)
    with pytest.raises(
        ConfigError, match=r"may reach \d+ tokens, but the model in frozen_models.reference '.*short' has 4 positions; set rollout"
    ):
        run(tmp_path / "a", algorithm=KL, frozen_models={"reference": str(short)})
    (short / "config.json").unlink()
    with pytest.raises(ConfigError, match="short' contains no model"):
        run(tmp_path / "a", algorithm=KL, frozen_models={"reference": str(short)})
    assert not (tmp_path / "a").exists()


def test_what_a_teacher_needs_is_said_before_the_run_begins(tmp_path: Path, teacher: Path) -> None:
    there = {"reference": {"path": str(teacher)}}
    for settings, message in (
        ({"algorithm": {"name": "distill"}}, r"distill learns from another model, and frozen_models\.reference is not set"),
        ({"frozen_models": there}, "grpo without a KL has no reference; set algorithm.beta"),
        ({"frozen_models": there, "algorithm": KL | {"ref_model_sync_steps": 5}}, "frozen_models.reference is another model; remove one"),
    ):
        with pytest.raises(ConfigError, match=message):
            run(tmp_path / "a", **settings)
    with pytest.raises(NotFound, match="'nowhere' is not a folder"):
        run(tmp_path / "a", algorithm=KL, frozen_models={"reference": "nowhere"})
    assert not (tmp_path / "a").exists()


def test_what_sharded_weights_do_not_allow_is_said_before_a_model_is_made(teacher: Path) -> None:
    distilled = {"algorithm": {"name": "distill", "divergence": "forward_kl"}, "frozen_models": {"reference": str(teacher)}}
    own = {"algorithm": {"name": "ppo"}, "train": {"steps": 2, "separate_critic": {"learning_rate": 1e-3}}}
    sharded: Any = SimpleNamespace(is_fsdp2=True)
    for settings, message in (
        (distilled, r"algorithm\.divergence=forward_kl .* sharded weights \(FSDP2\) do not allow; set algorithm\.divergence=sampled"),
        (own, r"train\.separate_critic makes a second network, which sharded weights \(FSDP2\) do not allow yet; remove it"),
    ):
        with ExitStack() as stack, pytest.raises(ConfigError, match=message):
            build_components(tiny_run(**settings), sharded, stack)
