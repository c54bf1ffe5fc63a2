"""Checkpoints: whole or not at all, and loaded by transformers."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from rlvr.config.config import ModelConfig
from rlvr.errors import ConfigError, NotFound, RlvrError
from rlvr.mdp.tokenizers import CharTokenizer, HFTokenizer, load_tokenizer
from rlvr.models.model_loading import load_model, to_transformers_tokenizer
from rlvr.training import checkpoint
from rlvr.training.checkpoint import Progress
from tests.fixtures.tiny import MODEL
from tests.fixtures.worlds import DIGITS

TOKENIZER = CharTokenizer(DIGITS)


@pytest.fixture(scope="module")
def model() -> Any:
    return load_model(ModelConfig(config=MODEL), TOKENIZER, seed=1)


def saved(folder: Path, model: Any, step: int) -> Path:
    return checkpoint.save_checkpoint(
        folder, model, to_transformers_tokenizer(TOKENIZER), {"x": torch.arange(3)}, Progress(step, {"metrics.jsonl": step}, {"a": 0.5})
    )


def test_what_was_saved_is_what_is_read(tmp_path: Path, model: Any) -> None:
    saved(tmp_path, model, 5)
    state, progress = checkpoint.load_checkpoint_state(checkpoint.find_newest_checkpoint(tmp_path))
    assert progress == Progress(5, {"metrics.jsonl": 5}, {"a": 0.5}) and torch.equal(state["x"], torch.arange(3))
    last = tmp_path / "checkpoints" / "last"
    loaded = AutoModelForCausalLM.from_pretrained(last)
    assert all(torch.equal(a, b) for a, b in zip(loaded.state_dict().values(), model.state_dict().values(), strict=True))
    tokenizer = HFTokenizer(AutoTokenizer.from_pretrained(last))
    conversation: Any = [{"role": "user", "content": "12+3="}, {"role": "assistant", "content": "15"}, {"role": "user", "content": "x"}]
    assert tokenizer.render(conversation) == TOKENIZER.render(conversation) and tokenizer.stop_ids == TOKENIZER.stop_ids


def test_the_random_state_of_an_accelerator_comes_back_too(tmp_path: Path, model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    held = [torch.arange(4, dtype=torch.uint8)]
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("cuda"))
    monkeypatch.setattr(torch.cuda, "get_rng_state", lambda: held[-1])
    monkeypatch.setattr(torch.cuda, "set_rng_state", held.append)
    saved(tmp_path, model, 5)
    held.append(torch.zeros(4, dtype=torch.uint8))  # later kernels draw from it
    checkpoint.load_checkpoint_state(checkpoint.find_newest_checkpoint(tmp_path))
    assert len(held) == 3 and held[-1].tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("family", ["llama", "qwen2"])
def test_a_saved_character_tokenizer_comes_back_as_itself(tmp_path: Path, family: str) -> None:
    tokenizer = CharTokenizer("01 x\n<")
    checkpoint.save_checkpoint(
        tmp_path,
        load_model(ModelConfig(config=MODEL | {"model_type": family}), tokenizer),
        to_transformers_tokenizer(tokenizer),
        {},
        Progress(1),
    )
    loaded = load_tokenizer(str(tmp_path / "checkpoints" / "last"))
    assert loaded.encode("0 1\n<x?") == tokenizer.encode("0 1\n<x?") and loaded.vocab_size == tokenizer.vocab_size
    assert loaded.decode([4, 6, 5, 8, 0]) == tokenizer.decode([4, 6, 5, 8, 0]) and loaded.render_environment_reply(
        "1"
    ) == tokenizer.render_environment_reply("1")
    everybody_s = AutoTokenizer.from_pretrained(tmp_path / "checkpoints" / "last")  # as servers load it: a class of its own for qwen2
    assert everybody_s.encode("0 1\n<x") == tokenizer.encode("0 1\n<x") and everybody_s.decode([4, 6, 5, 8]) == "0 1\n"


def test_two_are_kept_and_last_is_the_newest(tmp_path: Path, model: Any) -> None:
    for step in (1, 2, 3):
        saved(tmp_path, model, step)
    home = tmp_path / "checkpoints"
    assert sorted(p.name for p in home.glob("step-*")) == ["step-000002", "step-000003"]
    assert (home / "last").resolve().name == "step-000003"


def test_one_from_before_the_steps_that_rules_need_is_kept_and_moves_on(tmp_path: Path, model: Any) -> None:
    home, kept = tmp_path / "checkpoints", []
    for step in range(0, 60, 5):
        partial = checkpoint.create_partial_folder(tmp_path, step)
        model.save_pretrained(partial)
        checkpoint.publish_checkpoint(partial, None, {}, Progress(step), safe_step=max(0, min(step, 50) - 20))  # in doubt from step 50 on
        kept.append(sorted(checkpoint.parse_step(place) for place in home.glob("step-*")))
    assert kept[2:] == [
        [0, 5, 10], [0, 5, 10, 15], [0, 5, 15, 20], [5, 15, 20, 25], [5, 15, 25, 30], [15, 25, 30, 35], [15, 25, 35, 40], [25, 35, 40, 45],
        [25, 35, 45, 50], [25, 35, 50, 55],
    ]  # fmt: skip


def test_one_from_before_the_last_check_of_the_verifier_is_kept_with_the_next(tmp_path: Path, model: Any) -> None:
    for step in range(0, 19, 3):
        partial = checkpoint.create_partial_folder(tmp_path, step)
        model.save_pretrained(partial)
        checkpoint.publish_checkpoint(partial, None, {}, Progress(step), verified_step=step - step % 8)
    assert sorted(checkpoint.parse_step(place) for place in (tmp_path / "checkpoints").glob("step-*")) == [15, 18]
    partial = checkpoint.create_partial_folder(tmp_path, 21)
    model.save_pretrained(partial)
    checkpoint.publish_checkpoint(partial, None, {}, Progress(21), verified_step=16)
    assert sorted(checkpoint.parse_step(place) for place in (tmp_path / "checkpoints").glob("step-*")) == [15, 18, 21]


def test_a_resume_goes_on_from_no_checkpoint_whose_weights_are_not_finite(tmp_path: Path) -> None:
    model = load_model(ModelConfig(config=MODEL), TOKENIZER, seed=1)
    saved(tmp_path, model, 1)
    next(model.parameters()).data[3, 3] = float("nan")
    saved(tmp_path, model, 2)
    assert checkpoint.set_aside_checkpoints_after(tmp_path, 2) == 1


def test_they_are_ordered_by_number_and_what_is_not_ours_is_left_alone(tmp_path: Path, model: Any) -> None:
    mine = tmp_path / "checkpoints" / "step-000001-the-good-one"
    mine.mkdir(parents=True)
    assert not checkpoint.has_checkpoint(tmp_path)
    for step in (999_950, 999_999, 1_000_000):
        saved(tmp_path, model, step)
    assert [place.name for place in checkpoint.iter_complete_checkpoints(tmp_path)] == ["step-1000000", "step-999999"] and mine.is_dir()
    assert checkpoint.find_newest_checkpoint(tmp_path).name == "step-1000000"


@pytest.mark.parametrize("file", ["model.safetensors", "learner.pt", "progress.json", "manifest.json"])
@pytest.mark.parametrize("how", ["cut", "gone", "flipped"])
def test_a_torn_checkpoint_is_passed_over_for_the_one_before(tmp_path: Path, model: Any, file: str, how: str) -> None:
    older = saved(tmp_path, model, 1)
    path = saved(tmp_path, model, 2) / file
    data = bytearray(path.read_bytes())
    if how == "gone":
        path.unlink()
    elif how == "cut":
        path.write_bytes(data[: len(data) // 2])
    else:
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
    assert checkpoint.find_damage(tmp_path / "checkpoints" / "step-000002")
    assert checkpoint.find_newest_checkpoint(tmp_path) == older
    [line] = checkpoint.describe_skipped(tmp_path, older)
    assert "step-000002 is passed over: " in line and file.removesuffix(".json") in line


@pytest.mark.parametrize(
    "manifest", [b"null", b"[]", b"NaN", b'"x"', b"[" * 100_000, b"\xff", b"9" * 9999, None], ids=lambda text: repr(text)[:12]
)
def test_a_manifest_that_is_none_is_damage_too(tmp_path: Path, model: Any, manifest: bytes | None) -> None:
    older = saved(tmp_path, model, 1)
    path = saved(tmp_path, model, 2) / "manifest.json"
    path.unlink()
    if manifest is None:
        os.mkfifo(path)
    else:
        path.write_bytes(manifest)
    assert checkpoint.find_newest_checkpoint(tmp_path) == older
    assert "step-000002 is passed over: its manifest " in checkpoint.describe_skipped(tmp_path, older)[0]


def test_nothing_to_resume_from_is_said(tmp_path: Path, model: Any) -> None:
    with pytest.raises(NotFound, match="none was written yet"):
        checkpoint.find_newest_checkpoint(tmp_path)
    (saved(tmp_path, model, 1) / "learner.pt").unlink()
    with pytest.raises(NotFound, match="1 found, none of them complete"):
        checkpoint.find_newest_checkpoint(tmp_path)


def test_a_file_that_is_no_state_is_refused_and_never_unpickled(tmp_path: Path, model: Any) -> None:
    import pickle

    class Canary:
        def __reduce__(self) -> tuple[Any, tuple[str]]:
            return (print, ("unpickled",))

    place = saved(tmp_path, model, 1)
    (place / "learner.pt").write_bytes(pickle.dumps({"learner": Canary()}))
    with pytest.raises(ConfigError, match="not a checkpoint of this version"):
        checkpoint.load_checkpoint_state(place)


def test_half_written_leavings_are_swept(tmp_path: Path, model: Any) -> None:
    saved(tmp_path, model, 1)
    home = tmp_path / "checkpoints"
    (home / ".step-000002.part").mkdir()
    (home / ".step-000002.part" / "model.safetensors").write_bytes(b"half")
    (home / ".last.part").symlink_to("step-000002")
    checkpoint.remove_partial_checkpoints(tmp_path)
    assert sorted(p.name for p in home.iterdir()) == ["last", "step-000001"]


def test_one_that_finds_no_room_says_so_and_takes_none(tmp_path: Path, model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    older = saved(tmp_path, model, 1)

    def full(_: object, path: Path) -> None:
        path.write_bytes(b"half")
        raise RuntimeError("[enforce fail at inline_container.cc:672] . unexpected pos")  # what torch says of a full disk

    monkeypatch.setattr(torch, "save", full)
    with pytest.raises(RlvrError, match=r"step 2 could not be written to .* GB are left: .* free some space, then continue with --resume"):
        saved(tmp_path, model, 2)
    assert (
        sorted(p.name for p in older.parent.iterdir()) == ["last", "step-000001"] and checkpoint.find_newest_checkpoint(tmp_path) == older
    )


def test_a_tokenizer_with_several_chat_templates_is_saved_and_guarded(tmp_path: Path, model: Any) -> None:
    tokenizer = to_transformers_tokenizer(TOKENIZER)
    tokenizer.chat_template = {"default": tokenizer.chat_template, "tool_use": tokenizer.chat_template}
    place = checkpoint.save_checkpoint(tmp_path, model, tokenizer, {}, Progress(1))
    [other] = [path for path in place.rglob("*") if path.is_file() and path.parent != place]  # transformers writes a folder
    assert not checkpoint.find_damage(place)
    other.write_text("spoiled", "utf-8")
    assert other.name in checkpoint.find_damage(place)


def test_what_is_copied_keeps_its_values_and_ties(model: Any) -> None:
    tied = torch.ones(3)
    live = {"a": tied, "b": [tied, (torch.zeros(2), "x")], "moments": {0: {"step": torch.tensor(1.0)}}}
    kept = checkpoint.copy_to_host(live)
    tied += 1
    assert torch.equal(kept["a"], torch.ones(3)) and kept["b"][0] is kept["a"] and kept["b"][1][1] == "x"
    assert checkpoint.count_tensor_bytes(live) == 12 + 8 + 4
    assert 0 < checkpoint.measure_copy_budget_bytes() < 1 << 50


def test_a_checkpoint_that_fails_is_an_error_at_the_next_step_and_the_one_before_stays(tmp_path: Path, model: Any) -> None:
    older, begun, gone_on = saved(tmp_path, model, 1), threading.Event(), threading.Event()
    partial = checkpoint.create_partial_folder(tmp_path, 2)

    def write() -> None:
        with checkpoint.handle_write_errors(partial):
            begun.set()
            gone_on.wait(10)
            raise OSError(28, "No space left on device")

    with checkpoint.CheckpointWriter(write_timeout_s=10) as writer:
        writer.start_write(2, write)
        assert begun.wait(10)
        writer.raise_if_failed()  # still being written
        gone_on.set()
        with pytest.raises(RlvrError, match=r"step 2 could not be written to .*No space left on device"):
            until_raised(writer.raise_if_failed)
        writer.raise_if_failed()  # an error is raised once
    assert checkpoint.find_newest_checkpoint(tmp_path) == older and not partial.exists()


def until_raised(check: Callable[[], None]) -> None:
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        check()
        time.sleep(0.01)


def test_a_disk_that_hangs_does_not_hang_the_run() -> None:
    hangs = threading.Event()
    writer = checkpoint.CheckpointWriter(write_timeout_s=0.05)
    try:
        with pytest.raises(RlvrError, match=r"step 3 was not written in 0.05 s .*Continue with --resume"), writer:
            writer.start_write(3, lambda: hangs.wait(30))
    finally:
        hangs.set()


def test_an_error_of_the_run_is_not_hidden_by_that_of_a_write() -> None:
    def fail() -> None:
        raise RlvrError("the disk")

    with pytest.raises(ZeroDivisionError), checkpoint.CheckpointWriter(write_timeout_s=5) as writer:
        writer.start_write(4, fail)
        raise ZeroDivisionError
