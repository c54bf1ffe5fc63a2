"""Endpoints as they are: each mode of a fake one is measured, or refused in one sentence."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rlvr.errors import ConfigError
from rlvr.evaluation.evaluate import evaluate
from rlvr.runs.run_log import read_jsonl
from rlvr.samplers import openai
from rlvr.samplers._chat import parse_chat_reply, parse_usage
from tests.fixtures.endpoint import drip, endpoint, hang_up, silent

Mode = Callable[[dict[str, Any], int], Any]
SUMS = "tests/fixtures/worlds.py:Sums"


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openai, "FIRST_RETRY_DELAY_S", 0.01)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)


def right(body: dict[str, Any]) -> str:
    """The answer to the last question of the environment of sums."""
    a, b = body["messages"][-1]["content"].rstrip("=").split("+")
    return str(int(a) + int(b))


def reply(content: Any, reason: Any = "stop", usage: Any = None, **message: Any) -> tuple[int, Any]:
    return 200, {"choices": [{"message": {"role": "assistant", "content": content, **message}, "finish_reason": reason}], "usage": usage}


def choice(body: dict[str, Any], **fields: Any) -> tuple[int, Any]:
    """A reply whose choice has exactly these fields besides the right answer."""
    return 200, {"choices": [{"message": {"role": "assistant", "content": right(body)}, **fields}]}


def refusing(field: str, text: str) -> Mode:
    return lambda body, before: (400, {"error": {"message": text}}) if field in body else reply(right(body))


def needing(field: str, value: Any) -> Mode:
    return lambda body, before: reply(right(body)) if body.get(field) == value else (400, {"error": {"message": f"{field} is needed"}})


def parts(body: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}, {"type": "text", "text": right(body)}]


CALL = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
NO_THOUGHT = {"enable_thinking": False}
SLOWER = (429, {"error": "slow down"}, {"Retry-After": "0"})
FRAMES = b'data: {"choices": [{"delta": {"content": "1"}}]}\n\ndata: [DONE]\n\n'
MEASURED: dict[str, tuple[Mode, dict[str, Any], tuple[float, int]]] = {
    # mode: what it does, settings of the sampler, the average and how many were truncated
    "plain": (lambda body, before: reply(right(body)), {}, (1, 0)),
    "no usage": (lambda body, before: reply(right(body), usage=None), {}, (1, 0)),
    "odd usage": (lambda body, before: reply(right(body), usage={"prompt_tokens": "many", "completion_tokens": -3}), {}, (1, 0)),
    "finish_reason missing": (lambda body, before: choice(body), {}, (1, 0)),
    "finish_reason null": (lambda body, before: reply(right(body), None), {}, (1, 0)),
    "finish_reason in capitals": (lambda body, before: reply(right(body), "STOP"), {}, (1, 0)),
    "finish_reason null, and cut": (lambda body, before: reply("x" * 9, None, {"completion_tokens": 8}), {}, (0, 1)),
    "cut": (lambda body, before: reply("x" * 9, "length"), {}, (0, 1)),
    "cut before any text": (lambda body, before: reply(None, "length", reasoning_content="hm"), {}, (0, 1)),
    "a call where there are no tools": (lambda body, before: reply(None, "tool_calls", tool_calls=[CALL]), {}, (0, 0)),
    "an answer that ends by tool_calls": (lambda body, before: reply(right(body), "tool_calls"), {}, (1, 0)),
    "content null": (lambda body, before: reply(None), {}, (0, 0)),
    "a refusal": (lambda body, before: reply(None, refusal="I cannot help with that."), {}, (0, 0)),
    "reasoning_content": (lambda body, before: reply(right(body), reasoning_content="hm"), {}, (1, 0)),
    "reasoning": (lambda body, before: reply(right(body), reasoning="hm"), {}, (1, 0)),
    "content in parts": (lambda body, before: reply(parts(body)), {}, (1, 0)),
    "max_completion_tokens": (refusing("max_tokens", "max_tokens is not supported, use max_completion_tokens"), {}, (1, 0)),
    "no seed, left out": (refusing("seed", "Unsupported parameter: 'seed'"), {"omit": ["seed"]}, (1, 0)),
    "no temperature, left out": (refusing("temperature", "temperature must be 1"), {"omit": "temperature"}, (1, 0)),
    "reasoning_effort": (needing("reasoning_effort", "low"), {"extra_body": {"reasoning_effort": "low"}}, (1, 0)),
    "thinking off": (
        needing("chat_template_kwargs", NO_THOUGHT), {"extra_body": {"chat_template_kwargs": NO_THOUGHT}}, (1, 0),
    ),
    "stop": (needing("stop", ["\n\n"]), {"stop": ["\n\n"]}, (1, 0)),
    "busy at first": (lambda body, before: SLOWER if before < 1 else reply(right(body)), {}, (1, 0)),
    "down at first": (lambda body, before: (503, b"") if before < 1 else reply(right(body)), {}, (1, 0)),
    "hangs up at first": (lambda body, before: hang_up if before < 1 else reply(right(body)), {}, (1, 0)),
    "url to the end": (lambda body, before: reply(right(body)), {"url": "/v1/chat/completions"}, (1, 0)),
}  # fmt: skip


@pytest.mark.parametrize("name", MEASURED)
def test_what_can_be_measured_is(name: str, tmp_path: Path) -> None:
    does, settings, (average, truncated) = MEASURED[name]
    path = settings.pop("url", "/v1")
    with endpoint(lambda path, body, before: does(body, before)) as seen:
        run = evaluate(SUMS, f"openai:{seen.url}{path}#m", tasks=2, max_new_tokens=8, concurrency=1, sampler=settings, out=tmp_path / "r")
    summary = run.envs["Sums"]
    assert summary.mean_score and (summary.mean_score.value, summary.truncated, summary.unscored) == (average, truncated * 2, 0)
    for row in read_jsonl(tmp_path / "r" / "episodes.jsonl"):
        assert row.get("reasoning", ["hm"] if "parts" in name or "reasoning" in name else None) in (["hm"], None)


UNSCORED: dict[str, tuple[Mode, str]] = {
    "500": (lambda body, before: (500, {"error": {"message": "boom"}}), "no answer after 2 attempts: * returned 500: boom"),
    "a page": (lambda body, before: (200, b"<html>gateway</html>"), "returned 200: <html>gateway</html>; that is not a chat completion"),
    "an error with 200": (lambda body, before: (200, {"error": {"message": "overloaded"}}), "overloaded; that is not a chat completion"),
    "events": (lambda body, before: (200, FRAMES), "that is not a chat completion"),
    "no choices": (lambda body, before: (200, {"choices": []}), "that is not a chat completion (IndexError)"),
    "message null": (lambda body, before: (200, {"choices": [{"message": None}]}), "that is not a chat completion"),
    "a filter": (lambda body, before: reply("I", "content_filter"), "ended an answer of 1 characters by 'content_filter'"),
    "silence": (lambda body, before: silent, "did not respond in time"),
    "a byte at a time": (lambda body, before: drip, "did not respond in time"),
    "half a reply": (lambda body, before: (200, b"{}", {"Content-Length": "99"}), "did not respond in time"),
}


@pytest.mark.parametrize("name", UNSCORED)
def test_what_cannot_be_measured_has_no_score_and_a_reason(name: str) -> None:
    does, words = UNSCORED[name]
    settings = {"attempt_timeout_s": 0.3, "completion_timeout_s": 1.0, "retries": 1}
    with endpoint(lambda path, body, before: does(body, before)) as seen:
        summary = evaluate(SUMS, f"openai:{seen.url}/v1#m", tasks=1, max_new_tokens=8, sampler=settings).envs["Sums"]
    (reason,) = summary.reasons
    assert summary.unscored == 1 and summary.mean_score is None
    assert all(part in reason for part in words.split("*")), reason


REFUSED: dict[str, tuple[Mode, dict[str, Any], str]] = {
    "a wrong key": (lambda body, before: (401, {"error": {"message": "bad key"}}), {}, "set the key in the environment variable"),
    "no such model": (lambda body, before: (404, {"error": {"message": "not found"}}), {}, "has a model 'm'"),
    "no money": (lambda body, before: (402, {"error": {"message": "add credits"}}), {}, "returned 402: add credits"),
    "it has moved": (lambda body, before: (308, b"", {"Location": "https://h/v1?key=1"}), {}, "moved to https://h/v1: use that URL"),
    "temperature": (refusing("temperature", "temperature must be 1"), {}, "--temperature 1, or --sampler 'omit=[temperature]'"),
    "seed": (refusing("seed", "Unsupported parameter: 'seed'"), {}, "to leave the field out: --sampler 'omit=[seed]'"),
    "a parameter of the user's": (refusing("effort", "effort is odd"), {"extra_body": {"effort": 1}}, "returned 400: effort is odd"),
    "a header without its key": (lambda body, before: reply("1"), {"headers": {"api-key": "$NOT_SET"}}, "variable NOT_SET is not set"),
    "a header that cannot be": (lambda body, before: reply("1"), {"headers": {"a b": "c"}}, "which cannot be set"),
    "omit of what is not sent": (lambda body, before: reply("1"), {"omit": ["sed"]}, "did you mean 'seed'"),
    "a stop that is no text": (lambda body, before: reply("1"), {"stop": [3]}, "must be a text or a list of texts"),
    "no such setting": (lambda body, before: reply("1"), {"retires": 3}, "did you mean 'retries'"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_would_fail_for_all_is_refused_in_one_sentence(name: str) -> None:
    does, settings, words = REFUSED[name]
    with endpoint(lambda path, body, before: does(body, before)) as seen, pytest.raises(ConfigError) as raised:
        evaluate(SUMS, f"openai:{seen.url}/v1#m", tasks=2, max_new_tokens=8, sampler=settings)
    assert words in str(raised.value) and "\n" not in str(raised.value)


def test_reasoning_is_recorded_and_not_judged(tmp_path: Path) -> None:
    with endpoint(lambda path, body, before: reply(right(body), reasoning_content="is it 7? no")) as seen:
        evaluate(SUMS, f"openai:{seen.url}/v1#m", tasks=1, max_new_tokens=8, out=tmp_path / "run")
    (row,) = read_jsonl(tmp_path / "run" / "episodes.jsonl")
    assert row["reasoning"] == ["is it 7? no"] and "7" not in row["text"] and row["verdict"]["score"] == 1


def test_headers_are_sent_and_their_secrets_are_neither_written_nor_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THEIR_KEY", "secret-0123")
    headers = {"api-key": "$THEIR_KEY", "X-Title": "measure", "authorization": "Basic Zm9v"}
    told = (500, b"your secret-0123 and Basic Zm9v broke me")
    with endpoint(lambda path, body, before: reply(right(body)) if before else told) as seen:
        evaluate(SUMS, f"openai:{seen.url}/v1#m", tasks=2, sampler={"headers": headers, "retries": 0}, concurrency=1, out=tmp_path / "run")
    sent = seen.headers[0]
    assert (sent["api-key"], sent["X-Title"], sent["authorization"]) == ("secret-0123", "measure", "Basic Zm9v")
    assert "Authorization" not in sent
    written = b"".join(path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file())
    assert b"your [key] and [key] broke me" in written and b"secret-0123" not in written and b"Zm9v" not in written


def test_a_suite_sets_how_each_of_its_environments_is_sampled(tmp_path: Path) -> None:
    suite = tmp_path / "mine.yaml"
    common = {"env": SUMS, "tasks": 1, "max_new_tokens": 8}
    how = {"top_p": 0.5, "top_k": 20, "temperature": 0.7, "system": "Be brief.", "sampler": {"stop": "!", "extra_body": {"effort": "low"}}}
    suite.write_text(json.dumps([{"name": "plain", **common}, {"name": "set", **common, **how}]))
    with endpoint(lambda path, body, before: reply(right(body))) as seen:
        report = evaluate(suite, f"openai:{seen.url}/v1#m", sampler={"extra_body": {"effort": "high"}}, out=tmp_path / "run")
        same = evaluate(suite, f"openai:{seen.url}/v1#m", sampler={"extra_body": {"effort": "high"}, "retries": 2}, out=tmp_path / "run")
        with pytest.raises(ConfigError, match="begun with another plan"):
            evaluate(suite, f"openai:{seen.url}/v1#m", sampler={"extra_body": {"effort": "low"}}, out=tmp_path / "run")
    plain, changed = (body for _, body in seen.asked)
    assert same.num_new_samples == 0 and "stop" not in plain and "top_p" not in plain and plain["effort"] == changed["effort"] == "high"
    assert (changed["top_p"], changed["top_k"], changed["temperature"], changed["stop"]) == (0.5, 20, 0.7, ["!"])
    assert changed["messages"][0] == {"role": "system", "content": "Be brief."} and len(plain["messages"]) == 1
    assert "top_p 0.5, top_k 20 (set)" in report.plan.sampling_summary


@pytest.mark.parametrize(("usage", "counted"), [(None, (0, 0)), ({"completion_tokens": 1e300}, (0, 0)), ({"prompt_tokens": True}, (1, 0))])
def test_counts_that_cannot_be_are_none(usage: Any, counted: tuple[int, int]) -> None:
    assert parse_usage(usage) == counted
    assert parse_chat_reply({"choices": [{"message": {"content": "4"}, "finish_reason": ""}], "usage": usage}, 8).finish_reason == "stop"


FENCED = 'I look.\n```add\n{"amount": 3}\n```\nResult of add: 99\n```add\n{"amount": 50}\n```\n'


def test_calls_in_the_text_of_an_endpoint_without_tools_end_the_turn(tmp_path: Path) -> None:
    turns = [FENCED, '```add\n{"amount": 4}\n```', "!add 50", "done"]

    def script(path: str, body: dict[str, Any], before: int) -> Any:
        return reply(turns[sum(message["role"] == "assistant" for message in body["messages"])])

    desks = "tests/tools/desks.py:Desks"
    with endpoint(script) as seen:
        report = evaluate(desks, f"openai:{seen.url}/v1#m", tasks=1, sampler={"dialect": "fenced"}, out=tmp_path / "run")
    assert report.envs["Desks"].mean_score and report.envs["Desks"].mean_score.value == 1.0
    first, last = seen.asked[0][1], seen.asked[-1][1]
    assert "tools" not in first and "You can call these tools" in first["messages"][0]["content"]
    assert last["messages"][-4] == {"role": "assistant", "content": 'I look.\n```add\n{"amount": 3}\n```'}
    assert last["messages"][-3]["role"] == "user" and last["messages"][-3]["content"] == "Result of add:\n3"
    (row,) = read_jsonl(tmp_path / "run" / "episodes.jsonl")
    assert [len(turn.get("calls", ())) for turn in row["session"]["turns"]] == [1, 1, 0]
    assert row["session"]["turns"][0]["text"].endswith("```\n") and "99" not in row["session"]["turns"][0]["text"]
