"""The result of a program, as a user reads it."""

from __future__ import annotations

import copy
import pickle
from dataclasses import replace
from typing import Any

import pytest

from rlvr.contracts import ExecutionResult, ExitStatus


def test_the_output_is_read_as_text() -> None:
    result = ExecutionResult(ExitStatus.OK, exit_code=0, stdout_bytes=b"42\n")
    assert result.stdout == "42\n" and result.stderr == ""
    assert ExecutionResult(ExitStatus.OK, stdout_bytes=b"caf\xc3\xa9 \xff").stdout == "caf\xe9 \ufffd"


@pytest.mark.parametrize("status", ExitStatus)
def test_how_it_ended_is_asked_by_name(status: ExitStatus) -> None:
    result = ExecutionResult(status)
    assert result.ok is (status is ExitStatus.OK) and result.timed_out is (status is ExitStatus.TIMEOUT)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("code", r"write \.exit_code"),
        ("result", r"write \.stdout"),
        ("timeout", r"write \.timed_out"),
        ("error", r"write \.stderr"),
        ("duration", r"write \.wall_s"),
        ("nothing", r"no attribute 'nothing'; it has \.checker_output, "),
    ],
)
def test_a_name_of_another_library_gets_ours(name: str, words: str) -> None:
    with pytest.raises(AttributeError, match=words):
        getattr(ExecutionResult(ExitStatus.OK), name)


def test_names_of_other_libraries_for_the_same_thing_are_read() -> None:
    result: Any = ExecutionResult(ExitStatus.OK, exit_code=0, stdout_bytes=b"1")
    assert (result.success, result.passed, result.returncode, result.output) == (True, True, 0, "1")


def test_it_is_still_a_plain_record() -> None:
    result = ExecutionResult(ExitStatus.OK, stdout_bytes=b"1")
    assert pickle.loads(pickle.dumps(result)) == copy.deepcopy(result) == replace(result) == result


def test_a_result_is_printed_with_the_ends_of_a_long_output() -> None:
    result = ExecutionResult(ExitStatus.RUNTIME_ERROR, exit_code=1, stderr_bytes=b"a" * 9_000 + b"ValueError", stdout_bytes=b"1\n")
    assert len(repr(result)) < 600 and "ValueError' (9010 bytes)" in repr(result) and "stdout_bytes=b'1\\n'" in repr(result)
    assert repr(ExecutionResult(ExitStatus.OK)) == "ExecutionResult(status=<ExitStatus.OK: 'OK'>)"
