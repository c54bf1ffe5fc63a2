"""`rlvr play`: turns from standard input, tools as lines of JSON, the verdict at the end."""

from __future__ import annotations

import io
import json
import sys

import pytest

from rlvr.cli.commands import run_command


def play(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], lines: str, *arguments: str) -> tuple[int, str, str]:
    monkeypatch.setattr(sys, "stdin", io.StringIO(lines))
    code = run_command(["play", *arguments])
    said = capsys.readouterr()
    return code, said.out, said.err


def test_a_question_is_answered_by_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = play(monkeypatch, capsys, "6\n", "arithmetic", "--task", "3")
    assert code == 0 and out.startswith("user: 3+3=\nscore 1: ")


def test_a_conversation_goes_on_until_it_ends(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = play(monkeypatch, capsys, "50\n25\n39\n", "guess_number")
    assert "user: lower" in out and "user: higher" in out and "score 1" in out


def test_a_tool_is_called_by_json_and_a_slip_ends_nothing(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    lines = '{"name": calculator}\n{"name": "calculator", "arguments": {"expression": "6500583+27874"}}\n6528457\n'
    code, out, err = play(monkeypatch, capsys, lines, "calculator_sums", "--json")
    assert code == 0 and "is not JSON" in err and "calculator: 6528457" in err
    assert json.loads(out)["verdict"]["score"] == 1.0 and json.loads(out)["turns"] == 2


def test_several_lines_are_one_turn(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = play(monkeypatch, capsys, "<<<\nI add.\n6\n.\n", "arithmetic", "--task", "3", "--json")
    assert code == 0 and json.loads(out)["turns"] == 1


def test_wrong_names_are_usage_errors(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert play(monkeypatch, capsys, "", "quick")[0] == 2
    assert play(monkeypatch, capsys, "", "arithmetic", "--split", "dev")[0] == 2
