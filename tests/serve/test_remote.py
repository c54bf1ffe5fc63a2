"""The verifier `remote` against a real service, and against one that is away, broken or slow."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rlvr.contracts import Environment, SamplingParams
from rlvr.errors import ConfigError
from rlvr.mdp.sessions import verify_transcript_safely
from rlvr.mdp.token_mdp import TokenMDP
from rlvr.mdp.tokenizers import CharTokenizer
from rlvr.registry.plugins import build
from rlvr.rollout.rollout import Rollout, RolloutRequest
from rlvr.samplers.scripted import ScriptedSampler
from rlvr.task import Fault, StepReward, Task, Verdict, make_user_prompt
from rlvr.verifiers.remote import ServiceClient
from tests.fixtures.endpoint import endpoint
from tests.fixtures.worlds import DIGITS, Sums
from tests.serve.served import VERIFIERS, Server, served, until

TOKEN = "a-token-of-the-tests-0123456789"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    path = tmp_path_factory.mktemp("verifiers") / "moody.py"
    path.write_text(VERIFIERS, "utf-8")
    with served("numeric", f"{path}:Moody", "--workers", "2", token=TOKEN) as running:
        yield running


@pytest.fixture
def token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUDGES_TOKEN", TOKEN)


def task(reference: Any = "4") -> Task:
    return Task(make_user_prompt("2+2="), reference, id="t")


def remote(server: Server, **settings: Any) -> Any:
    return build("verifier", "remote", url=server.url, token_env="JUDGES_TOKEN", **settings)


def test_the_verdicts_are_those_of_the_verifier_there(server: Server, token: None) -> None:
    answers = ["4", "4.0", "5", "", "no number", "\ud800", "4" * 20_000]
    with remote(server) as verifier, build("verifier", "numeric") as local:
        verifier.prepare()
        ours = verifier.verify_many([task()] * len(answers), answers)
        assert [v.to_dict() for v in ours] == [local.verify(task(), answer).to_dict() for answer in answers]
        assert verifier.verify(task("no number"), "4").fault is Fault.TASK
        assert verifier.verify(task({1, 2}), "4").fault is Fault.TASK  # a set is no JSON
        assert verifier.verify(task(), "4" * 1_000_001).score == 0.0


def test_answers_that_wait_share_a_request(server: Server, token: None) -> None:
    with remote(server, batch=50) as verifier:
        before = requests(server)
        assert [v.score for v in verifier.verify_many([task()] * 120, ["4"] * 120)] == [1.0] * 120
        assert 3 <= requests(server) - before <= 8


def test_a_worker_that_is_killed_costs_no_verdict(server: Server, token: None) -> None:
    with remote(server, remote_name="Moody") as verifier:
        found: list[Any] = []
        judging = threading.Thread(target=lambda: found.extend(verifier.verify_many([task()] * 40, ["sleep 0.05"] * 40)))
        judging.start()
        time.sleep(0.3)
        os.kill(server.workers()[0], signal.SIGKILL)
        judging.join(30)
        assert [v.score for v in found] == [1.0] * 40
    until(lambda: server.ask("/healthz")[1]["workers"] == 2)


def test_a_service_that_is_away_is_no_score() -> None:
    with build("verifier", "remote", url="http://127.0.0.1:1", retries=1, timeout_s=5.0) as verifier:
        verdict = verifier.verify(task(), "4")
        assert verdict.score is None and verdict.fault is Fault.INFRA and "127.0.0.1:1" in verdict.reason
        with pytest.raises(ConfigError, match="not a service that can be used"):
            verifier.prepare()


def test_a_wrong_token_is_told_without_the_token(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUDGES_TOKEN", "another-token-0123456789")
    with remote(server) as verifier:
        verdict = verifier.verify(task(), "4")
        assert verdict.score is None and "401" in verdict.reason and "another-token" not in verdict.reason
        with pytest.raises(ConfigError, match="401"):
            verifier.prepare()


def test_a_request_is_repeated_with_its_key_and_refusals_are_waited_for() -> None:
    def script(path: str, body: dict[str, Any], before: int) -> Any:
        if before == 0:
            return 429, {"error": "later"}, {"Retry-After": "0"}
        if before == 1:
            return lambda handler: None  # closes without a reply
        return 200, {"index": 0, "id": "t", "score": 1.0, "reason": "equal", "fault": "none"}

    with endpoint(script) as seen, build("verifier", "remote", url=seen.url.removesuffix("/v1"), retries=3) as verifier:
        assert verifier.verify(task(), "4").score == 1.0
        keys = {headers["Idempotency-Key"] for headers in seen.headers}
        assert len(seen.asked) == 3 and len(keys) == 1
        verifier.verify(task(), "4")
        assert seen.headers[-1]["Idempotency-Key"] not in keys


def test_components_and_step_rewards_arrive() -> None:
    """A verdict has the same fields there and here."""
    verdict = Verdict(0.75, "half", {"a": 0.5, "b": 1.0}, step_rewards=(StepReward(0.25, 0), StepReward(0.5, 1)), detail={"n": 1})
    line = {"index": 0, "id": "t", **verdict.to_dict()}
    with endpoint(lambda *_: (200, line)) as seen, build("verifier", "remote", url=seen.url.removesuffix("/v1"), retries=0) as verifier:
        assert verifier.verify(task(), "4") == verdict


@pytest.mark.parametrize(
    "line",
    [
        {"index": 0, "score": 2.0, "reason": "?", "fault": "none"},
        {"index": 0, "score": 0.0, "fault": "infra", "reason": ""},
        {"index": 1, "score": 1.0},
        {"score": 1.0},
        ["4"],
        {"index": 0, "score": 1.0},
    ],
)
def test_a_reply_that_is_no_verdict_is_no_score(line: Any) -> None:
    with endpoint(lambda *_: (200, line)) as seen, build("verifier", "remote", url=seen.url.removesuffix("/v1"), retries=0) as verifier:
        assert verify_transcript_safely(verifier, task(), "4").fault is Fault.INFRA


def fails_on(trick: Any) -> Any:
    """A service that judges all answers but one text, at which `trick` gives its reply from the rows and the place of the text."""

    def script(path: str, body: dict[str, Any], before: int) -> Any:
        rows = body.get("rows", [body])
        lines = [
            {"index": place, "score": float(row["answer"] == row["reference"]), "reason": "", "fault": "none"}
            for place, row in enumerate(rows)
        ]
        bad = next((place for place, row in enumerate(rows) if row["answer"] == "bad"), None)
        said = lines if bad is None else trick(lines, bad)
        if not isinstance(said, list):
            return said
        return 200, b"\n".join(line if isinstance(line, bytes) else json.dumps(line).encode() for line in said)

    return script


TRICKS: dict[str, Any] = {
    "no line": lambda lines, bad: lines[:bad] + lines[bad + 1 :],
    "another place": lambda lines, bad: [*lines[:bad], {**lines[bad], "index": 99}, *lines[bad + 1 :]],
    "two verdicts": lambda lines, bad: [*lines, {**lines[bad], "score": 1.0}],
    "no JSON": lambda lines, bad: [*lines[:bad], b"{", *lines[bad + 1 :]],
    "a deep line": lambda lines, bad: [*lines[:bad], b"[" * 200_000, *lines[bad + 1 :]],
    "a huge score": lambda lines, bad: [*lines[:bad], {**lines[bad], "score": 10**400}, *lines[bad + 1 :]],
    "a score of 1e300": lambda lines, bad: [*lines[:bad], {**lines[bad], "score": 1e300}, *lines[bad + 1 :]],
    "a refused row": lambda lines, bad: [*lines[:bad], {"index": bad, "error": "no"}, *lines[bad + 1 :]],
    "status 413": lambda lines, bad: (413, {"error": "too large"}),
    "status 503": lambda lines, bad: (503, {"error": "down"}, {"Retry-After": "0"}),
    "hangs": lambda lines, bad: lambda handler: time.sleep(2),
    "hangs up": lambda lines, bad: lambda handler: None,
}


@pytest.mark.parametrize("name", TRICKS)
def test_an_answer_on_which_the_service_fails_is_wrong_and_costs_no_other_its_score(name: str) -> None:
    answers = ["4", "bad", "5", "4"]
    with (
        endpoint(fails_on(TRICKS[name])) as seen,
        build("verifier", "remote", url=seen.url.removesuffix("/v1"), retries=0, timeout_s=0.5) as verifier,
    ):
        verdicts = verifier.verify_many([task()] * 4, answers)
        assert [verdict.score for verdict in verdicts] == [1.0, 0.0, 0.0, 1.0], verdicts
        alone = verifier.verify(task(), "bad")
        assert (alone.score, alone.fault) == (0.0, Fault.ANSWER) and "judges another one" in alone.reason


def test_a_service_that_fails_on_every_answer_is_asked_once_more_for_a_whole_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlvr.verifiers.remote.BATCH_WAIT_S", 30.0)  # one batch, however slow the machine is: it is sent when it is full
    with (
        endpoint(lambda *_: (500, {"error": "down"})) as seen,
        build("verifier", "remote", url=seen.url.removesuffix("/v1"), retries=0, batch=20) as verifier,
    ):
        assert {verdict.fault for verdict in verifier.verify_many([task()] * 20, ["4"] * 20)} == {Fault.INFRA}
        assert len(seen.asked) == 2


UNUSABLE_URLS = ("judges:8765", "ftp://judges", "http://", "http://:8765", "http://judges:99999", "http://judges:0", "http://[::1")
URLS_WITH_SECRETS = ("http://me:secret@judges", "me:secret@judges", "http://judges?key=secret")


@pytest.mark.parametrize("url", [*UNUSABLE_URLS, *URLS_WITH_SECRETS])
def test_a_url_that_cannot_be_or_has_a_secret_is_refused_and_the_secret_is_not_shown(url: str) -> None:
    with pytest.raises(ConfigError, match="http://judges:8765") as refused:
        build("verifier", "remote", url=url)
    assert "secret" not in str(refused.value)


def test_a_rollout_waits_for_many_verdicts_in_few_threads(server: Server, token: None) -> None:
    """Forty verdicts of a quarter second each, two threads to judge in: they are waited for together."""
    with remote(server, remote_name="Moody", batch=4, concurrency=16) as verifier:
        environment: Environment = Sums(verifier=verifier)
        sampler, tokenizer = ScriptedSampler(answer="gold"), CharTokenizer(DIGITS)
        sampler.setup(environment, tokenizer)
        most, others = 0, set(threading.enumerate())

        def watch() -> None:
            nonlocal most
            while not done.wait(0.01):
                most = max(most, sum(thread.name.startswith("verify_") for thread in threading.enumerate() if thread not in others))

        done = threading.Event()
        watching = threading.Thread(target=watch)
        watching.start()
        with Rollout(TokenMDP(environment, tokenizer), sampler=sampler, max_concurrent_calls=2) as rollout:
            episodes = rollout.collect([RolloutRequest(environment.task("train", i), "g", i) for i in range(40)], SamplingParams())
        done.set()
        watching.join()
        assert [e.reward for e in episodes] == [1.0] * 40 and most <= 3


def test_averify_holds_no_thread(server: Server, token: None) -> None:
    async def many(verifier: Any) -> list[Any]:
        before = threading.active_count()
        waiting = [asyncio.ensure_future(verifier.averify(task(), "sleep 0.2")) for _ in range(30)]
        await asyncio.sleep(0.1)
        assert threading.active_count() - before <= 1
        return await asyncio.gather(*waiting)

    with remote(server, remote_name="Moody", batch=4) as verifier:
        assert [v.score for v in asyncio.run(many(verifier))] == [1.0] * 30


def requests(server: Server) -> int:
    text = server.ask("/metrics")[1]
    return sum(int(line.split()[-1]) for line in text.splitlines() if line.startswith('rlvr_requests_total{route="batch"'))


def test_the_examples_hold_without_a_service(tmp_path: Path) -> None:
    with build("verifier", "remote") as verifier:
        assert verifier.verify(task(), "4").score == 1.0 and verifier.verify(task(), "5").score == 0.0


@pytest.mark.parametrize("reply", [b"{}", b"[]", b"null", b"<html>", b'{"paths": 5}', b"\xff", b"[" * 100_000], ids=range(7))
def test_another_service_is_told_from_one_of_rlvr(monkeypatch: pytest.MonkeyPatch, reply: bytes) -> None:
    async def request(*_: Any, **__: Any) -> bytes:
        return reply

    monkeypatch.setattr(ServiceClient, "_request", request)
    with pytest.raises(ConfigError, match="serves something else than verifiers of rlvr; start a service with `rlvr serve`"):
        asyncio.run(ServiceClient("http://127.0.0.1:9").list_verifiers())
