"""An evaluation of objects is not continued with other code, other settings or other weights: its name alone does not tell."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import rlvr
from rlvr.errors import ConfigError
from rlvr.evaluation.object_digest import compute_object_digest, is_changed

ROWS = [{"question": "2+2=", "answer": "4.1"}, {"question": "2+3=", "answer": "5.1"}]


def answer_four(prompt: str) -> str:
    return "4"


def _make_weighted(first: float) -> Any:
    return rlvr.make_verifier("composite", components={"a": {"verifier": "numeric", "weight": first}, "b": {"verifier": "exact"}})


def _make_game(reward: float) -> Any:
    class Game(rlvr.Env):
        def reset(self, seed: int | None = None, options: Any = None) -> Any:
            return f"question {seed}", {}

        def step(self, action: str) -> Any:
            return "", reward, True, False, {}

    return Game


CHANGES: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "the code of a verifier": (
        partial(rlvr.evaluate, ROWS, answer_four, verifier=lambda answer, reference: 1.0),
        partial(rlvr.evaluate, ROWS, answer_four, verifier=lambda answer, reference: 0.0),
    ),
    "a setting of a verifier": (
        partial(rlvr.evaluate, ROWS, answer_four, verifier={"name": "numeric", "tolerance": 0.01}),
        partial(rlvr.evaluate, ROWS, answer_four, verifier={"name": "numeric", "tolerance": 0.2}),
    ),
    "weights": (
        lambda out: rlvr.evaluate(ROWS, answer_four, verifier=_make_weighted(1), out=out),
        lambda out: rlvr.evaluate(ROWS, answer_four, verifier=_make_weighted(2), out=out),
    ),
    "the code of a policy": (
        partial(rlvr.evaluate, ROWS, lambda prompt: "4", verifier="numeric"),
        partial(rlvr.evaluate, ROWS, lambda prompt: "4.1", verifier="numeric"),
    ),
    "the code of an environment": (
        partial(rlvr.evaluate, _make_game(1.0), answer_four, tasks=2),
        partial(rlvr.evaluate, _make_game(0.0), answer_four, tasks=2),
    ),
}


@pytest.mark.parametrize("change", CHANGES)
def test_an_evaluation_does_not_continue_after_a_change(change: str, tmp_path: Path) -> None:
    before, after = CHANGES[change]
    assert before(out=tmp_path / "run").num_new_samples == 2
    assert before(out=tmp_path / "run").num_new_samples == 0
    with pytest.raises(ConfigError, match="choose another --out"):
        after(out=tmp_path / "run")


def test_other_verifiers_are_not_compared_unless_forced(tmp_path: Path) -> None:
    first, second = CHANGES["a setting of a verifier"]
    reports = first(out=tmp_path / "a"), second(out=tmp_path / "b")
    with pytest.raises(ConfigError, match="the code or the settings of the environment or its verifier are others"):
        reports[0].compare(reports[1])
    assert reports[0].compare(reports[1], force=True).envs


def test_weights_of_a_model_object_belong_to_the_evaluation(tmp_path: Path) -> None:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    tokenizer = rlvr.load_tokenizer("chars:0123456789+=.")
    config = AutoConfig.for_model(
        "llama",
        vocab_size=tokenizer.vocab_size,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        eos_token_id=tokenizer.eos_id,
        bos_token_id=None,
        pad_token_id=None,
    )
    model = AutoModelForCausalLM.from_config(config)
    again = partial(rlvr.evaluate, "arithmetic", model, tokenizer=tokenizer, tasks=2, max_new_tokens=2, out=tmp_path / "run")
    assert again().num_new_samples == 2
    assert again().num_new_samples == 0
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.01
    with pytest.raises(ConfigError, match="its code or its weights changed"):
        again()


def test_what_a_program_counts_is_no_change() -> None:
    calls, total = [0], 0

    def count(answer: str) -> bool:
        nonlocal total
        total += 1
        calls.append(1)
        return answer in {"a", "b", "c"}

    before = compute_object_digest(count)
    count("a")
    assert compute_object_digest(count) == before


def test_a_digest_is_the_same_in_another_process() -> None:
    """Sets of texts have another order in each process."""
    code = (
        "from rlvr.evaluation.object_digest import compute_object_digest as digest\n"
        "def helper(a): return a in {'x', 'y', 'z', 'w'}\n"
        "def judge(answer, reference, *, words=frozenset('abc')): return helper(answer) or answer in words\n"
        "print(digest(judge))"
    )
    seen = [
        subprocess.run(
            [sys.executable, "-c", code], env={"PYTHONHASHSEED": seed, "PATH": ""}, capture_output=True, text=True, check=True
        ).stdout
        for seed in ("1", "2")
    ]
    assert seen[0] == seen[1] != ""
    changed = subprocess.run([sys.executable, "-c", code.replace("'w'", "'v'")], capture_output=True, text=True, check=True).stdout
    assert is_changed(seen[0].strip(), changed.strip())


def test_functions_that_call_each_other_are_described_once_each() -> None:
    """Along all paths there would be billions."""
    space: dict[str, Any] = {"__name__": "__main__"}
    names = [f"f{place}" for place in range(40)]
    exec("\n".join(f"def {name}(answer): return [{', '.join(f'{other}(answer)' for other in names)}]" for name in names), space)
    began = time.monotonic()
    first = compute_object_digest(space["f0"])
    assert time.monotonic() - began < 5
    exec("def f39(answer): return 0", space)
    assert is_changed(first, compute_object_digest(space["f0"]))


def test_an_object_that_cannot_be_looked_at_has_no_digest() -> None:
    class Shy(str):
        def __repr__(self) -> str:
            raise RuntimeError("no")

    assert compute_object_digest([Shy("a")]) == ""
