"""The openai sampler against an endpoint that misbehaves in every way that endpoints do."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from rlvr.contracts import Request, SamplingParams
from rlvr.errors import ConfigError
from rlvr.evaluation.evaluate import evaluate
from rlvr.mdp.tokenizers import ByteTokenizer
from rlvr.runs.run_log import read_jsonl
from rlvr.samplers import openai
from rlvr.samplers._chat_calls import decode_messages_by_role_tokens
from rlvr.samplers._http import HttpClient, HttpResponse, NoReply
from rlvr.samplers.openai import OpenAISampler, compute_retry_delay
from rlvr.task import Task, make_user_prompt
from tests.fixtures.endpoint import Endpoint, closed_port, drip, endpoint, hang_up, silent
from tests.fixtures.worlds import Sums

KEY = "sk-never-to-be-seen-0123456789"
WORDS = ByteTokenizer()


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openai, "FIRST_RETRY_DELAY_S", 0.01)
    monkeypatch.setenv("OPENAI_API_KEY", KEY)


def said(text: Any, reason: str | None = "stop", usage: Any = None) -> tuple[int, Any]:
    return 200, {"choices": [{"message": {"role": "assistant", "content": text}, "finish_reason": reason}], "usage": usage}


def sampler(url: str, **settings: Any) -> OpenAISampler:
    made = OpenAISampler(url=url + "/v1", model="tiny", **settings)
    made.setup(Sums(), WORDS)
    return made


def request(question: str = "1+1=", max_tokens: int = 20) -> Request:
    task = Task(make_user_prompt(question), id="t", reference="2")
    return Request(WORDS.render(task.prompt), max_tokens, seed=7, task=task)


def ask(seen: Endpoint, count: int = 1, **settings: Any) -> list[Any]:
    with sampler(seen.url, **settings) as asked:
        return asked.sample([request()] * count, SamplingParams(0.5, top_p=0.9))


def test_text_comes_back_as_tokens_that_say_it() -> None:
    with endpoint(lambda path, body, before: said("π is 3")) as seen:
        (completion,) = ask(seen)
    assert WORDS.decode(completion.tokens) == "π is 3" and completion.finish_reason == "stop"
    path, body = seen.asked[0]
    assert path == "/v1/chat/completions" and body["messages"] == [{"role": "user", "content": "1+1="}]
    wanted = {"model": "tiny", "temperature": 0.5, "top_p": 0.9, "max_tokens": 20, "seed": 7}
    assert {name: body[name] for name in wanted} == wanted and seen.headers[0]["Authorization"] == f"Bearer {KEY}"


@pytest.mark.parametrize(
    "nothing",
    [said(None, usage={"prompt_tokens": 9, "completion_tokens": 0}), (200, b"<html>busy</html>"), (200, {"choices": []})],
    ids=str,
)
def test_a_reply_that_is_no_answer_is_asked_for_again_and_is_never_an_empty_answer(nothing: Any) -> None:
    """As gateways send it when their provider fails."""
    with endpoint(lambda path, body, before: said("2") if before >= 2 else nothing) as seen:
        (completion,) = ask(seen, retries=3)
        assert completion.finish_reason == "stop" and WORDS.decode(completion.tokens) == "2" and len(seen.asked) == 3
    with endpoint(lambda *_: nothing) as seen:
        (completion,) = ask(seen, retries=1)
        assert completion.finish_reason == "error" and "not a chat completion" in completion.error and len(seen.asked) == 2
    with endpoint(lambda *_: said("", usage={"completion_tokens": 1})) as seen:  # a policy that says nothing
        assert ask(seen)[0].finish_reason == "stop"


def test_a_conversation_is_read_back_turn_by_turn() -> None:
    task = Task(({"role": "system", "content": "be brief"}, *make_user_prompt("1+1=")), id="t", reference="2")
    tokens = [*WORDS.render(task.prompt), *WORDS.encode("é 3"), WORDS.eos_id, *WORDS.render_environment_reply("no")]
    tokens += [
        WORDS.eos_id,
        *WORDS.render_environment_reply("say something"),
        *WORDS.encode("4"),
        WORDS.eos_id,
        *WORDS.render_environment_reply(""),
    ]
    assert decode_messages_by_role_tokens(Request(tokens, 5, task=task), WORDS) == [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "1+1="},
        {"role": "assistant", "content": "é 3"},
        {"role": "user", "content": "no"},
        {"role": "assistant", "content": ""},
        {"role": "user", "content": "say something"},
        {"role": "assistant", "content": "4"},
        {"role": "user", "content": ""},
    ]


@pytest.mark.parametrize(
    "trouble",
    [
        *[(429, {"error": {"message": "slow down"}}), (500, b"oops"), (503, b""), (520, b""), hang_up],
        *[(200, b"<html>"), (200, {}), (200, {"choices": []}), (200, b"[" * 100_000), said(["2"])],
    ],
    ids=["429", "500", "503", "520", "hangs up", "no JSON", "empty JSON", "no choice", "brackets", "no text"],
)
def test_what_passes_is_asked_again(trouble: Any) -> None:
    with endpoint(lambda path, body, before: trouble if before < 2 else said("2")) as seen:
        found = ask(seen, 3, concurrency=1)
    assert [c.finish_reason for c in found] == ["stop"] * 3 and len(seen.asked) == 5


@pytest.mark.parametrize("trouble", [silent, drip], ids=["silent", "a byte at a time"])
def test_a_slow_endpoint_is_given_up_at_the_deadline(trouble: Any) -> None:
    with endpoint(lambda path, body, before: trouble) as seen:
        began = time.monotonic()
        (completion,) = ask(seen, attempt_timeout_s=0.4, completion_timeout_s=1.0, retries=5)
        took = time.monotonic() - began
    assert completion.finish_reason == "error" and "did not respond in time" in completion.error and len(seen.asked) >= 2
    assert took < 10  # generous: the drip alone would take half an hour


def test_nobody_at_home_is_a_failed_answer_and_not_a_wrong_one() -> None:
    with sampler(closed_port(), retries=1) as asked:
        (completion,) = asked.sample([request()], SamplingParams())
    assert completion.finish_reason == "error" and "no answer after 2 attempts: nothing listens at" in completion.error


def test_retry_after_is_obeyed_and_pauses_grow_out_of_step() -> None:
    reply = HttpResponse(429, {"retry-after": "7"}, b"")
    assert compute_retry_delay(reply, 0) == compute_retry_delay(reply, 5) == 7.0
    date = HttpResponse(503, {"retry-after": time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime(time.time() + 40))}, b"")
    assert 30 < compute_retry_delay(date, 0) <= 40 and 0 < compute_retry_delay(HttpResponse(503, {"retry-after": "soon"}, b""), 0) <= 0.01
    assert all(0 < compute_retry_delay(HttpResponse(503, {"retry-after": odd}, b""), 0) <= 0.01 for odd in ("\u00b2", "-3"))
    pauses = [[compute_retry_delay(None, attempt) for _ in range(50)] for attempt in (0, 3, 30)]
    assert max(pauses[0]) < min(pauses[1]) and max(pauses[2]) <= openai.MAX_RETRY_DELAY_S and len(set(pauses[1])) == 50
    with endpoint(lambda path, body, before: (429, {}, {"Retry-After": "3600"})) as seen:
        (completion,) = ask(seen, completion_timeout_s=5.0)  # an hour is more than there is: not even begun
    assert completion.finish_reason == "error" and len(seen.asked) == 1


def test_no_more_are_under_way_than_were_asked_for() -> None:
    def slowly(path: str, body: dict[str, Any], before: int) -> Any:
        time.sleep(0.05)
        return said("2")

    with endpoint(slowly) as seen:
        ask(seen, 20, concurrency=3)
    assert 1 < seen.most <= 3


@pytest.mark.parametrize(
    ("status", "told", "words"),
    [(401, f"bad key {KEY}", "OPENAI_API_KEY"), (404, "no such model", "has a model 'tiny'"), (400, "top_p is odd", "top_p is odd")],
)
def test_a_refusal_for_good_stops_the_run_and_says_what_to_do(status: int, told: str, words: str) -> None:
    with (
        endpoint(lambda path, body, before: (status, {"error": {"message": told}})) as seen,
        pytest.raises(ConfigError, match=words) as raised,
    ):
        ask(seen)
    assert KEY not in str(raised.value) and len(seen.asked) == 1


def test_a_refused_key_is_looked_for_in_the_variable_that_was_named() -> None:
    with endpoint(lambda path, body, before: (401, "who are you?")) as seen, pytest.raises(ConfigError, match="variable THEIR_KEY"):
        ask(seen, api_key_env="THEIR_KEY")


def test_the_newer_name_of_the_limit_is_learned() -> None:
    def newer(path: str, body: dict[str, Any], before: int) -> Any:
        return (400, {"error": {"message": "use max_completion_tokens"}}) if "max_tokens" in body else said("2")

    with endpoint(newer) as seen:
        assert [c.finish_reason for c in ask(seen, 3, concurrency=1, retries=0)] == ["stop"] * 3
    assert len(seen.asked) == 4 and seen.asked[-1][1]["max_completion_tokens"] == 20


def test_the_newer_name_of_the_limit_is_learned_by_all_who_used_the_old_one_at_once() -> None:
    together = threading.Barrier(4)

    def newer(path: str, body: dict[str, Any], before: int) -> Any:
        if "max_tokens" not in body:
            return said("2")
        together.wait(20)
        return 400, {"error": {"message": "use max_completion_tokens"}}

    with endpoint(newer) as seen:
        assert [c.finish_reason for c in ask(seen, 4, concurrency=4)] == ["stop"] * 4


def test_a_long_text_is_whole_and_the_endpoint_says_whether_it_was_cut() -> None:
    long = "π" * 300
    told = [said(long), said(long, "length", {"prompt_tokens": 9, "completion_tokens": 20}), said(None, "length"), said("")]
    told += [said("I must not", "content_filter"), said("hm", None)]
    with endpoint(lambda path, body, before: told[before]) as seen:
        whole, cut, nothing, empty, filtered, unsaid = ask(seen, 6, concurrency=1)
    assert WORDS.decode(whole.tokens) == WORDS.decode(cut.tokens) == long
    assert (whole.finish_reason, whole.usage) == ("stop", (0, 0)) and (cut.finish_reason, cut.usage) == ("length", (9, 20))
    assert [(c.finish_reason, WORDS.decode(c.tokens)) for c in (nothing, empty)] == [("length", ""), ("stop", "")]
    assert (unsaid.finish_reason, WORDS.decode(unsaid.tokens)) == ("stop", "hm"), "some endpoints say no finish_reason"
    assert filtered.finish_reason == "error" and "ended an answer of 10 characters by 'content_filter'" in filtered.error


def test_more_fields_go_with_each_request() -> None:
    with endpoint(lambda path, body, before: said("7")) as seen:
        ask(seen, 1, extra_body={"reasoning_effort": "low", "temperature": 1})
        assert seen.asked[0][1]["reasoning_effort"] == "low" and seen.asked[0][1]["temperature"] == 1


class Chat(Sums):
    """Goes on until the policy has spoken three times, and looks at everything it said."""

    max_turns, max_new_tokens = 3, 20

    def reply(self, task: Task, completions: Sequence[str]) -> str | None:
        return "go on"

    def select_answer(self, task: Task, completions: Sequence[str]) -> str:
        return completions[0]


def test_an_evaluation_measures_in_the_endpoint_s_tokens(tmp_path: Path) -> None:
    def talks(path: str, body: dict[str, Any], before: int) -> Any:
        return said("2" + " " * 500, usage={"prompt_tokens": 100, "completion_tokens": 8})

    with endpoint(talks) as seen:
        report = evaluate(Chat(), f"openai:{seen.url}/v1#tiny", tasks=1, out=tmp_path / "run")
    (summary,) = report.envs.values()
    assert [body["max_tokens"] for _, body in seen.asked] == [20, 12, 4]  # what is left, and no byte of ours counted
    assert (summary.tokens, summary.prompt_tokens, summary.truncated, summary.failed) == (24, 300, 1, 0)
    (row,) = read_jsonl(tmp_path / "run" / "episodes.jsonl")
    assert row["text"] == "2" + " " * 500 and row["usage"] == [300, 24]


def test_an_answer_that_was_cut_is_judged_whole_and_shown_as_truncated() -> None:
    told = {0: said("7" * 90 + "=2", "length", {"prompt_tokens": 5, "completion_tokens": 8}), 1: said("not 2" * 40)}
    with endpoint(lambda path, body, before: told[before]) as seen:
        report = evaluate("tests/fixtures/worlds.py:Sums", f"openai:{seen.url}/v1#tiny", tasks=2, max_new_tokens=8, concurrency=1)
    (summary,) = report.envs.values()
    assert (summary.truncated, summary.failed, summary.scored) == (1, 0, 2)


def test_token_ids_go_in_and_come_out_where_the_endpoint_gives_them() -> None:
    choice = {"token_ids": [7, 0], "logprobs": {"token_logprobs": [-0.5, -0.1]}, "finish_reason": "stop"}
    texts = {0: choice, 1: choice, 2: choice | {"token_ids": [7, 5]}, 3: choice | {"token_ids": None}}
    with endpoint(lambda path, body, before: (200, {"choices": [texts[before]]})) as seen:
        asked = OpenAISampler(url=seen.url, model="tiny", tokenizer="somewhere")
        (completion,) = asked.sample([Request([2, 5], 4, seed=3)], SamplingParams(stop_ids=frozenset({0})))
        assert (completion.tokens, completion.logprobs, completion.finish_reason) == ([7, 0], [-0.5, -0.1], "stop")
        (certain,) = asked.sample([Request([2, 5], 4)], SamplingParams(temperature=0, stop_ids=frozenset({0})))
        assert (certain.tokens, certain.logprobs) == ([7, 0], [0.0, 0.0])  # no chance was in it
        (contrary,) = asked.sample([Request([2, 5], 4)], SamplingParams(stop_ids=frozenset({0})))
        assert contrary.finish_reason == "error" and "by 'stop' with the token [5]" in contrary.error
        with pytest.raises(ConfigError, match="returns no token ids; remove the tokenizer"):
            asked.sample([Request([2, 5], 4)], SamplingParams())
        asked.close()
    assert seen.asked[0][0] == "/completions" and seen.asked[0][1]["prompt"] == [2, 5] and seen.asked[0][1]["stop_token_ids"] == [0]


def test_an_evaluation_counts_what_was_not_answered_apart_and_writes_no_key(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    def sums(path: str, body: dict[str, Any], before: int) -> Any:
        a, b = body["messages"][-1]["content"].rstrip("=").split("+")
        return (500, f"your key {KEY} broke me".encode()) if a == "3" else said(str(int(a) + int(b)))

    caplog.set_level(logging.DEBUG)
    with endpoint(sums) as seen:
        report = evaluate(
            "tests/fixtures/worlds.py:Sums", f"openai:{seen.url}/v1#tiny", tasks=10, max_new_tokens=8, out=tmp_path / "run", concurrency=2
        )
    (summary,) = report.envs.values()
    assert (summary.samples, summary.unscored) == (10, 1)
    written = [path for path in (tmp_path / "run").rglob("*") if path.is_file()]
    assert len(written) >= 2 and all(KEY.encode() not in path.read_bytes() for path in written)
    assert any(b"returned 500: your key [key] broke me" in path.read_bytes() for path in written)  # it was there to be found
    out, err = capfd.readouterr()
    assert KEY not in out + err + caplog.text


def test_what_cannot_be_is_refused_before_anything_is_asked() -> None:
    for url, words in (
        ("localhost:8000", "not the URL of a server"),
        ("https://me:secret@host/v1", "environment variable"),
        ("http://h/v1?key=1", "would appear in logs"),
    ):
        with pytest.raises(ConfigError, match=words) as raised:
            OpenAISampler(url=url, model="m")
        assert "secret" not in str(raised.value)
    assert OpenAISampler.settings_from_cli("http://h/v1#a/b#DIR") == {"url": "http://h/v1", "model": "a/b", "tokenizer": "DIR"}
    with pytest.raises(ConfigError, match="has no model"):
        OpenAISampler.settings_from_cli("http://localhost:8000/v1")
    with pytest.raises(ConfigError, match="cannot load new weights"):
        OpenAISampler(url="http://localhost:1", model="m").update_from_model(None, 1)
    with pytest.raises(ConfigError, match="retries is 0; it must be above 0"):
        OpenAISampler(url="http://localhost:1", model="m", retries=-1)


@pytest.mark.parametrize("status", [400, 413, 422])
def test_a_refusal_of_one_request_among_others_is_that_request_s_alone(status: int) -> None:
    def picky(path: str, body: dict[str, Any], before: int) -> Any:
        return (status, {"error": "the response was filtered"}) if before == 1 else said("2")

    with endpoint(picky) as seen:
        found = ask(seen, 3, concurrency=1)
    assert [c.finish_reason for c in found] == ["stop", "error", "stop"] and len(seen.asked) == 3
    assert f"returned {status}: the response was filtered" in found[1].error
    with endpoint(lambda path, body, before: (status, {"error": "no such parameter"})) as seen, pytest.raises(ConfigError, match="no such"):
        ask(seen, 3, concurrency=1)


def test_a_thread_that_was_about_to_ask_when_it_was_closed_leaves_no_connection_open() -> None:
    with endpoint(lambda path, body, before: said("2")) as seen:
        asked = HttpClient(seen.url)
        connection, _ = asked._take_connection()
        asked.close()
        with pytest.raises(OSError, match="aborted"):
            asked._connect(connection, time.monotonic() + 10)
        asked._return_connection(connection)
        assert connection.sock is None and not asked._idle
        with pytest.raises(NoReply, match="cannot be used"):
            asked.request("GET", "/", deadline=time.monotonic() + 10)
    assert not seen.asked
