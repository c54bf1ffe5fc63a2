"""Servers that answer, but not as they should: alone they end the run in words, with others left they lose their requests to these."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest

from rlvr.contracts import Completion, SamplingParams
from rlvr.errors import ConfigError, SamplerError
from rlvr.samplers._http import HttpClient
from rlvr.samplers._servers import server_pool as roll
from rlvr.samplers._servers.server_pool import ServerPool, get_base_url
from rlvr.samplers.vllm import VLLMSampler
from tests.fixtures.endpoint import endpoint
from tests.samplers.test_vllm import STOPS, fresh
from tests.samplers.test_vllm_lost import alone, prompts
from tests.samplers.test_vllm_server import GENERATE, Stand, served

SAMPLING = SamplingParams(stop_ids=STOPS)
Choice = dict[str, Any]


class Bad(Stand):
    """Answers rightly until `bad` is set: to a reply, or to what is done to the choice of each completion."""

    bad: Any = None
    path = GENERATE

    def __call__(self, path: str, body: dict[str, Any], before: int) -> Any:
        scores = "prompt_logprobs" in body.get("sampling_params", {})
        if self.bad is None or path != self.path or (path == GENERATE and not scores and self.only_scores):
            return super().__call__(path, body, before)
        if not callable(self.bad):
            return self.bad
        status, found = super().__call__(path, body, before)
        if not scores:
            self.bad(found["choices"][0])
        return status, found

    only_scores = False


@pytest.fixture(scope="module")
def expected() -> list[Completion]:
    """What a server that never fails answers to the first three groups."""
    return list(alone(prompts(3)))


def setting(**values: Any) -> Callable[[Choice], None]:
    return lambda choice: choice.update(values)


def shorter(choice: Choice) -> None:
    choice["token_ids"].pop()


def fewer_scores(choice: Choice) -> None:
    choice["logprobs"]["content"].pop()


def without_score(choice: Choice) -> None:
    choice["logprobs"]["content"][0] = {"token": "a"}


def scored(value: Any) -> Callable[[Choice], None]:
    return lambda choice: choice["logprobs"]["content"][0].update(logprob=value)


def longer(choice: Choice) -> None:
    choice["token_ids"] *= 100
    choice["logprobs"]["content"] *= 100


def without_reason(choice: Choice) -> None:
    del choice["finish_reason"]


def other_ids(value: Any) -> Callable[[Choice], None]:
    return lambda choice: choice.update(token_ids=[value] * len(choice["token_ids"]))


REPLIES: list[tuple[Any, str]] = [
    ((200, b"<html>hello</html>"), "returned 200: <html>hello</html>; that is not a completion"),
    ((429, {"error": {"message": "too many"}}), "returned 429: too many"),
    ((307, b"", {"Location": "/elsewhere"}), r"returned 307: \(empty\); that is not a completion"),
    ((200, None), "returned 200: None"),
    ((200, {"choices": []}), "that is not a completion with token ids"),
    (shorter, r"cannot be read: ValueError: \d tokens but \d log-probabilities"),
    (fewer_scores, r"cannot be read: ValueError: \d tokens but \d log-probabilities"),
    (without_score, "cannot be read: KeyError: 'logprob'"),
    (without_reason, "cannot be read: KeyError: 'finish_reason'"),
    (setting(finish_reason="abort"), "finish_reason is 'abort', so the answer is not complete"),
    (setting(finish_reason=None), "finish_reason is 'None'"),
    (longer, r"\d00 tokens but \d00 log-probabilities, and at most \d+ were asked for"),
    (scored(5.0), "the log-probability '5.0' is not a finite number of at most 0"),
    (scored(True), "the log-probability 'True' is not"),
    (scored("-0.5"), "the log-probability '-0.5' is not"),
    (scored(float("nan")), "the log-probability 'nan' is not"),
    (other_ids("a"), "the token id 'a' is not a whole number"),
    (other_ids(-5), "the token id '-5' is not a whole number of at least 0"),
    (other_ids(10**30), "the token id '10000"),
    (setting(weight_versions=7), "cannot be read: TypeError"),
    (setting(weight_versions=[{"version": None}]), "sampled with the weights None, but "),
]


@pytest.mark.slow
@pytest.mark.parametrize(("bad", "words"), REPLIES, ids=[words[:40] for _, words in REPLIES])
def test_what_is_no_completion_ends_the_run_in_words_unless_another_server_is_left(
    bad: Any, words: str, expected: list[Completion]
) -> None:
    asked, script = prompts(3), Bad()
    with endpoint(script) as one, endpoint(Stand()) as two:
        with served(one.url) as sampler:
            sampler.update_from_model(fresh(), 0)
            script.bad = bad
            with pytest.raises(SamplerError, match=words):
                sampler.sample(asked, SAMPLING)
        script.bad = None
        with served(one.url, two.url, concurrency=1) as sampler:
            sampler.update_from_model(fresh(), 0)
            script.bad = bad
            assert sampler.sample(asked, SAMPLING) == expected


@pytest.mark.parametrize(
    ("path", "bad", "words"),
    [
        ("/collective_rpc", (500, {"error": "out of memory"}), "returned 500: out of memory, for /collective_rpc"),
        ("/update_weight_version", (429, {"error": "busy"}), "returned 429: busy, for /update_weight_version"),
        (GENERATE, (200, b"<html>"), "returned 200: <html>; these are no log-probabilities of the prompt"),
        (GENERATE, (200, {"prompt_logprobs": [None]}), "these are no log-probabilities of the prompt"),
    ],
)
def test_a_server_that_fails_while_it_takes_newer_weights_is_lost(
    path: str, bad: Any, words: str, expected: list[Completion], caplog: pytest.LogCaptureFixture
) -> None:
    script, asked = Bad(), prompts(3)
    script.path, script.only_scores = path, True
    with endpoint(script) as one, endpoint(Stand()) as two:
        with served(one.url) as sampler:
            sampler.update_from_model(fresh(), 0)
            script.bad = bad
            with pytest.raises(SamplerError, match=words):
                sampler.update_from_model(fresh(), 1)
        script.bad = None
        with served(one.url, two.url) as sampler:
            sampler.update_from_model(fresh(), 0)
            script.bad = bad
            sampler.update_from_model(fresh(), 1)
            before = len(one.asked)
            assert sampler.sample(asked, SAMPLING) == expected and len(one.asked) == before
    [record] = caplog.records
    assert record.levelno == logging.WARNING and record.getMessage().startswith(f"{one.url} is lost")


def test_a_server_that_cannot_take_the_first_weights_ends_the_run_at_once() -> None:
    """It is not set up as it must be: nothing is gained without it unnoticed."""
    script = Bad()
    script.path, script.bad = "/collective_rpc", (500, {"error": "no such folder"})
    with (
        endpoint(script) as one,
        endpoint(Stand()) as two,
        served(one.url, two.url) as sampler,
        pytest.raises(SamplerError, match=r"returned 500: no such folder, for /collective_rpc"),
    ):
        sampler.update_from_model(fresh(), 0)


@pytest.mark.parametrize("body", [b"<html>", None, [1], {}])
def test_a_cache_that_was_perhaps_not_cleared_ends_the_run(body: Any) -> None:
    script = Bad()
    script.path, script.bad = "/reset_prefix_cache", (200, body)
    with (
        endpoint(script) as one,
        served(one.url) as sampler,
        pytest.raises(SamplerError, match="did not reset its prefix cache for version 0"),
    ):
        sampler.update_from_model(fresh(), 0)


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (lambda choice: choice["logprobs"].update(content=[]), "is not a vLLM server: IndexError"),
        (lambda choice: choice["logprobs"].update(content=[{"logprob": float("nan")}]), "reports raw log-probabilities"),
        (lambda choice: choice["logprobs"].update(content=[{"logprob": None}]), "is not a vLLM server: TypeError"),
    ],
)
def test_a_first_answer_that_shows_no_probability_is_refused(bad: Any, words: str) -> None:
    script = Bad()
    script.bad = bad
    with endpoint(script) as one, served(one.url) as sampler, pytest.raises(ConfigError, match=words):
        sampler.update_from_model(fresh(), 0)


def test_a_server_that_comes_back_with_less_room_is_not_taken_back(expected: list[Completion], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(roll, "FIRST_CHECK_INTERVAL_S", 0.0)
    script, asked = Bad(), prompts(3)
    with endpoint(script) as one, endpoint(Stand()) as two, served(one.url, two.url) as sampler:
        sampler.update_from_model(fresh(), 0)
        script.bad = (500, {"error": "dead"})
        sampler.sample(asked, SAMPLING)
        script.path, script.bad = "/v1/models", (200, {"data": [{"max_model_len": 16}]})
        sampler.update_from_model(fresh(), 1)
        before = len(one.asked)
        assert sampler.sample(asked, SAMPLING) == expected and len(one.asked) == before


def test_servers_behind_one_host_are_told_apart_by_their_paths() -> None:
    one, two = HttpClient("http://host:8000/a"), HttpClient("http://host:8000/b")
    both = ServerPool([one, two], log=lambda line: None)
    both.mark_lost(two, "it is dead")
    both.set_active([get_base_url(server) for server in both.active])
    assert both.active == [one]


@pytest.mark.parametrize("placement", ["server", "local"])
@pytest.mark.parametrize(
    ("urls", "words"),
    [
        (["http://me:secret@host:1"], "a URL with a user, a password or a query would appear in logs"),
        (["http://host:1/?key=secret"], "a URL with a user, a password or a query would appear in logs"),
        (["http://host:1", "http://other:1", "http://host:1/"], "urls names http://host:1 2 times; name each server once"),
        (["host"], "'host' is not the URL of a server"),
    ],
)
def test_urls_are_checked_before_a_run_begins_and_a_password_is_never_shown(urls: list[str], words: str, placement: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        VLLMSampler(placement=placement, urls=urls)
    assert "secret" not in str(caught.value)
