"""Tools over a chat endpoint: sent as they are, and its `tool_calls` are calls with a status."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rlvr.evaluation.evaluate import evaluate
from rlvr.evaluation.export import write_export
from rlvr.evaluation.report import EvalReport
from rlvr.evaluation.rescore import rescore
from rlvr.runs.run_log import read_jsonl
from rlvr.samplers import openai
from tests.fixtures.endpoint import endpoint

DESKS = "tests/tools/desks.py:Desks"


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openai, "FIRST_RETRY_DELAY_S", 0.01)


def said(content: str | None, *calls: tuple[str, str], reason: str = "stop") -> tuple[int, Any]:
    wired = [{"id": f"x{k}", "type": "function", "function": {"name": name, "arguments": given}} for k, (name, given) in enumerate(calls)]
    message = {"role": "assistant", "content": content} | ({"tool_calls": wired} if wired else {})
    return 200, {"choices": [{"message": message, "finish_reason": "tool_calls" if calls else reason}], "usage": {"completion_tokens": 3}}


def average(report: EvalReport) -> float | None:
    found = report.envs["Desks"].mean_score
    return found.value if found else None


TURNS = [
    said("I add.", ("add", '{"amount": 3}'), ("add", '{"amount": "x"}')),
    said(None, ("add", '{"amount": 4'), ("ad", "{}")),
    said("!add 1", ("add", '{"amount": 4}')),
    said("!add 50"),
]


def test_calls_are_run_and_their_results_are_sent_back(tmp_path: Path) -> None:
    def script(path: str, body: dict[str, Any], before: int) -> Any:
        return TURNS[sum(message["role"] == "assistant" for message in body["messages"])]

    with endpoint(script) as seen:
        report = evaluate(DESKS, f"openai:{seen.url}/v1#tiny", tasks=1, out=tmp_path / "run")
    assert average(report) == 1.0
    first, last = seen.asked[0][1], seen.asked[-1][1]
    assert [tool["function"]["name"] for tool in first["tools"]] == ["add", "close_till"]
    assert [message["content"] for message in first["messages"]] == ["make it 7", "it has 0"]
    assert [message["role"] for message in last["messages"][2:]] == ["assistant", "tool", "tool"] * 2 + ["assistant", "tool"]
    calls = [call for message in last["messages"] for call in message.get("tool_calls", ())]
    results = [message for message in last["messages"] if message["role"] == "tool"]
    assert [call["id"] for call in calls] == [result["tool_call_id"] for result in results] and len({call["id"] for call in calls}) == 5
    assert json.loads(calls[0]["function"]["arguments"]) == {"amount": 3} and calls[2]["function"]["arguments"] == '{"amount": 4'
    (row,) = read_jsonl(tmp_path / "run" / "episodes.jsonl")
    turns = row["session"]["turns"]
    assert [[call.get("status", "ok") for call in turn.get("calls", ())] for turn in turns] == [
        ["ok", "bad_arguments"], ["bad_json", "unknown_tool"], ["ok"], []
    ]  # fmt: skip
    assert [heard["tool_results"][0]["text"] for heard in row["session"]["step_results"][:3]][::2] == ["3", "7"]
    assert row["text"] == "!add 50" and row["session"]["values"] == {"total": 7}  # the content of an endpoint is not searched for calls

    again = rescore(tmp_path / "run", out=tmp_path / "again")
    assert average(again) == 1.0
    write_export(tmp_path / "run", "trl-dataset", tmp_path / "trl.jsonl")
    (kept,) = read_jsonl(tmp_path / "trl.jsonl")
    assert kept["completion"] == [{"role": "assistant", "content": "!add 50"}] and kept["tools"] == first["tools"]
    assert [message["role"] for message in kept["prompt"]] == [message["role"] for message in last["messages"]]
    write_export(tmp_path / "run", "inspect", tmp_path / "logs")
    (log,) = [json.loads(path.read_text()) for path in (tmp_path / "logs").iterdir()]
    shown = log["samples"][0]["messages"]
    assert shown[2]["tool_calls"][0] == {"id": "call00000", "function": "add", "arguments": {"amount": 3}} and shown[3]["function"] == "add"


@pytest.mark.parametrize("calls", [{"add": 1}, ["add"], [{"function": "add"}]])
def test_calls_in_another_format_fail_alone(calls: Any, tmp_path: Path) -> None:
    answer = 200, {"choices": [{"message": {"content": "", "tool_calls": calls}, "finish_reason": "tool_calls"}]}
    with endpoint(lambda path, body, before: answer) as seen:
        report = evaluate(DESKS, f"openai:{seen.url}/v1#tiny", tasks=1, out=tmp_path / "run")
    (row,) = read_jsonl(tmp_path / "run" / "episodes.jsonl")
    assert (
        report.envs["Desks"].is_headline_withheld
        and row["stop_reason"] == "failed"
        and "that is not a chat completion (TypeError)" in row["error"]
    )


def test_a_call_that_was_cut_off_is_not_run(tmp_path: Path) -> None:
    answer = said(None, ("add", '{"amount": 7'))
    answer[1]["choices"][0]["finish_reason"] = "length"
    with endpoint(lambda path, body, before: answer) as seen:
        evaluate(DESKS, f"openai:{seen.url}/v1#tiny", tasks=1, out=tmp_path / "run")
    (row,) = read_jsonl(tmp_path / "run" / "episodes.jsonl")
    assert (
        row["stop_reason"] == "truncated"
        and row["session"]["step_results"] == []
        and row["session"]["turns"][0]["calls"][0]["status"] == "unclosed"
    )
    assert row["session"]["values"] == {"total": 0} and row["verdict"]["score"] == 0.0
