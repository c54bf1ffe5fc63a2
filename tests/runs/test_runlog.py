"""The run folder: what it refuses and what survives a kill."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlvr.errors import ConfigError, NotFound
from rlvr.runs.run_log import RunLog, collect_versions, load_run_config, read_jsonl
from tests.fixtures.tiny import tiny_run


def test_logs_are_cut_back_to_a_checkpoint_and_go_on(tmp_path: Path) -> None:
    run = RunLog.create(tmp_path / "a", tiny_run())
    run.log_metrics({"step": 1}, {"step": 1, "step_time": 0.1})
    offsets = run.flush_and_get_offsets()
    run.log_metrics({"step": 2}, {"step": 2, "step_time": 0.2})
    run.truncate_logs(offsets)
    run.log_metrics({"step": 2, "again": True}, {"step": 2})
    run.close()
    assert list(read_jsonl(tmp_path / "a" / "metrics.jsonl")) == [{"step": 1}, {"step": 2, "again": True}]


def test_a_torn_last_line_ends_a_log_and_a_torn_middle_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text('{"a": 1}\n{"a": 2')
    assert list(read_jsonl(path)) == [{"a": 1}]
    path.write_text('{"a": 1}\n{"a": \n{"a": 3}\n')
    with pytest.raises(ConfigError, match="line 2 is not valid JSON"):
        list(read_jsonl(path))
    path.write_text("[1]\n")
    with pytest.raises(ConfigError, match="line 1 contains list"):
        list(read_jsonl(path))


def test_a_number_that_is_none_is_never_written(tmp_path: Path) -> None:
    run = RunLog.create(tmp_path / "a", tiny_run())
    with pytest.raises(ValueError, match="JSON"):
        run.log_metrics({"loss": float("nan")}, {})
    run.close()


def test_a_folder_that_cannot_be_a_run(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(ConfigError, match="cannot be written"):
        RunLog.create(tmp_path / "file", tiny_run())
    with pytest.raises(ConfigError, match="cannot be written"):
        RunLog.create(tmp_path / "file" / "x", tiny_run())
    assert (tmp_path / "file").read_text() == "mine"
    with pytest.raises(NotFound, match="is not a run folder"):
        load_run_config(tmp_path)


def test_versions_name_what_ran() -> None:
    assert {"rlvr", "python", "platform", "torch", "transformers"} <= collect_versions().keys()


def test_a_line_torn_inside_a_letter_ends_a_log_too(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes('{"a": 1}\n{"a": "é'.encode()[:-1])
    assert list(read_jsonl(path)) == [{"a": 1}]
    path.write_bytes(b'{"a": 1}\n{"a": "\xff"}\n')
    with pytest.raises(ConfigError, match="line 2 is not valid JSON"):
        list(read_jsonl(path))


def test_half_a_surrogate_pair_is_written_and_read_back(tmp_path: Path) -> None:
    run = RunLog.create(tmp_path / "a", tiny_run())
    run.log_metrics({"said": "é \ud83d"}, {})
    run.close()
    assert list(read_jsonl(tmp_path / "a" / "metrics.jsonl")) == [{"said": "é \ud83d"}]
    assert "é".encode() in (tmp_path / "a" / "metrics.jsonl").read_bytes()  # what people read stays readable
