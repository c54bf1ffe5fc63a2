"""Several vLLM servers of which some are lost: the others get their requests, and they come back only with the current weights."""

from __future__ import annotations

import logging
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from rlvr.contracts import Request, SamplingParams
from rlvr.errors import ConfigError, SamplerError
from rlvr.runs.run_log import read_jsonl
from rlvr.samplers._http import HttpClient
from rlvr.samplers._servers import server_pool as roll
from rlvr.samplers._servers.server_pool import ServerPool
from rlvr.training.train import train
from tests.fixtures.endpoint import endpoint, hang_up, silent
from tests.samplers.test_vllm import STOPS, TOKENIZER, fresh, nudged, requests
from tests.samplers.test_vllm_server import GENERATE, Stand, run_of, served

SAMPLING = SamplingParams(stop_ids=STOPS)


class Mortal(Stand):
    """A server that dies in the middle of its work, or freezes, and may be started again with the weights that it once had."""

    def __init__(self, dies_after: int | None = None, how: Any = hang_up, path: str = GENERATE) -> None:
        super().__init__()
        self.left, self.how, self.path, self.dead, self.samples = dies_after, how, path, False, 0

    def __call__(self, path: str, body: dict[str, Any], before: int) -> Any:
        if path == self.path and self.left is not None:
            self.left -= 1
            self.dead = self.dead or self.left < 0
        if self.dead:
            return self.how
        self.samples += path == GENERATE and "seed" in body["sampling_params"]
        return super().__call__(path, body, before)

    def born_again(self) -> None:
        self.model, self.name, self.dead, self.left = fresh(9), "default", False, None


def prompts(count: int, first: int = 0) -> list[Request]:
    """Groups of two."""
    rendered = [TOKENIZER.render([{"role": "user", "content": str(i)}]) for i in range(first, first + count)]
    return [Request(prompt, 4, 2 * place + seed) for place, prompt in enumerate(rendered) for seed in range(2)]


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(roll, "FIRST_CHECK_INTERVAL_S", 0.0)


def alone(asked: list[Request]) -> Any:
    """What one server that never fails answers."""
    with endpoint(Stand()) as one, served(one.url) as sampler:
        sampler.update_from_model(fresh(), 0)
        return sampler.sample(asked, SAMPLING)


@pytest.mark.slow
@pytest.mark.parametrize(
    "how", [hang_up, silent, (500, {"error": {"message": "EngineDeadError"}})], ids=["killed", "frozen", "dead engine"]
)
def test_a_lost_server_s_requests_go_to_the_others(how: Any, caplog: pytest.LogCaptureFixture) -> None:
    mortal, asked = Mortal(3 + 4, how), prompts(16)  # three for its start and the probe
    patient: Any = {
        "concurrency": 3,
        "heartbeat_timeout_s": 0.5,
        "completion_timeout_s": 600.0,
    }  # a frozen one is found by its health
    with endpoint(mortal) as one, endpoint(Stand()) as two, served(one.url, two.url, **patient) as sampler:
        sampler.update_from_model(fresh(), 0)
        assert sampler.sample(asked, SAMPLING) == alone(asked) and mortal.dead
        again = prompts(4, first=50)
        before = len(one.asked)
        assert sampler.sample(again, SAMPLING) == alone(again) and len(one.asked) == before, "nothing is asked of it any more"
    [record] = caplog.records
    assert record.levelno == logging.WARNING
    assert record.getMessage().startswith(f"{one.url} is lost, the others get its requests until it loads new weights: ")


@pytest.mark.slow
def test_a_server_that_comes_back_gets_nothing_before_it_has_the_current_weights(caplog: pytest.LogCaptureFixture) -> None:
    mortal, model = Mortal(3 + 2), fresh()
    with endpoint(mortal) as one, endpoint(Stand()) as two, served(one.url, two.url, concurrency=2) as sampler:
        sampler.update_from_model(model, 0)
        sampler.sample(prompts(8), SAMPLING)
        assert mortal.dead
        sampler.update_from_model(nudged(model, 0.05, 1), 1)  # still dead
        mortal.born_again()
        mortal.samples = 0
        sampler.sample(prompts(8), SAMPLING)
        assert mortal.samples == 0
        sampler.update_from_model(nudged(model, 0.05, 2), 2)
        found = sampler.sample(prompts(8), SAMPLING)
        assert mortal.samples > 0 and mortal.name.endswith("-2")
    with endpoint(Stand()) as single, served(single.url) as sampler:
        sampler.update_from_model(model, 0)
        assert sampler.sample(prompts(8), SAMPLING) == found
    assert f"{one.url} is healthy again and gets the next weights" in [record.getMessage() for record in caplog.records]


@pytest.mark.slow
def test_a_server_that_was_restarted_behind_our_back_is_lost_and_its_answers_do_not_count() -> None:
    mortal, asked = Mortal(), prompts(12)
    with endpoint(mortal) as one, endpoint(Stand()) as two, served(one.url, two.url, concurrency=2) as sampler:
        sampler.update_from_model(fresh(), 0)
        mortal.born_again()
        assert sampler.sample(asked, SAMPLING) == alone(asked)
        assert 0 < mortal.samples <= 2 * 2


@pytest.mark.slow
@pytest.mark.parametrize("path", ["/collective_rpc", "/reset_prefix_cache", "/update_weight_version", GENERATE])
@pytest.mark.parametrize("how", [hang_up, silent])
def test_a_server_that_dies_while_it_takes_weights_leaves_the_run_to_the_others(path: str, how: Any) -> None:
    mortal, model = Mortal(None, how, path), fresh()
    with endpoint(mortal) as one, endpoint(Stand()) as two, served(one.url, two.url, heartbeat_timeout_s=0.3) as sampler:
        sampler.update_from_model(model, 0)
        mortal.left = 0
        sampler.update_from_model(nudged(model, 0.05, 1), 1)
        mortal.samples = 0
        assert len(sampler.sample(prompts(4), SAMPLING)) == 8 and mortal.samples == 0 and mortal.dead
        mortal.born_again()
        sampler.update_from_model(model, 2)
        assert sampler._engine is not None and len(sampler._engine.get_logprob_scorers()) == 2


def test_a_server_that_comes_back_with_another_model_ends_the_run_with_its_name() -> None:
    mortal = Mortal(3 + 1)
    with endpoint(mortal) as one, endpoint(Stand()) as two, served(one.url, two.url) as sampler:
        sampler.update_from_model(fresh(), 0)
        sampler.sample(requests(12), SAMPLING)
        mortal.born_again()
        mortal.keeps_its_weights = True
        with pytest.raises(SamplerError, match=f"{one.url} does not sample from the trainer's weights: at version 1"):
            sampler.update_from_model(nudged(fresh(), 0.05, 1), 1)


def test_without_the_last_server_the_run_ends() -> None:
    with endpoint(Mortal(3 + 2)) as one, endpoint(Mortal(3 + 5)) as two, served(one.url, two.url, concurrency=2) as sampler:
        sampler.update_from_model(fresh(), 0)
        with pytest.raises(SamplerError, match=r"closed the connection.*with \d+ answers in progress.*--resume"):
            sampler.sample(prompts(16), SAMPLING)


@pytest.mark.slow
def test_a_run_has_the_same_numbers_where_a_server_dies_and_comes_back(tmp_path: Path) -> None:
    quiet = Console(quiet=True)
    for name, mortal in (("whole", Mortal()), ("torn", Mortal(3 + 4 + 3))):
        with endpoint(mortal) as one, endpoint(Stand()) as two:
            config = run_of(one.url, steps=3)
            config.rollout.sampler["urls"] = [one.url, two.url]
            train(config, out=tmp_path / name, console=quiet)
            assert mortal.dead == (name == "torn")
    whole, torn = ([*read_jsonl(tmp_path / name / "metrics.jsonl")] for name in ("whole", "torn"))
    assert len(whole) == 3 and whole == torn


def test_a_lost_server_is_asked_for_its_health_at_growing_intervals(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, told, asked = [1000.0], list[str](), list[float]()
    monkeypatch.setattr(roll, "FIRST_CHECK_INTERVAL_S", 1.0)
    monkeypatch.setattr("rlvr.samplers._servers.server_pool.time.monotonic", lambda: clock[0])
    one, two = HttpClient("http://one:1"), HttpClient("http://two:1")

    def ask(method: str, path: str, *, deadline: float) -> Any:
        asked.append(clock[0] - 1000)
        raise SamplerError("nothing listens")

    monkeypatch.setattr(two, "request", ask)
    both = ServerPool([one, two], log=told.append)
    both.mark_lost(two, "closed the connection")
    both.mark_lost(two, "again")
    assert both.active == [one] and len(told) == 1 and both.cannot_be_lost(one)
    for _ in range(1200):
        both.restore_healthy(1.0, lambda server: None)
        clock[0] += 1
    gaps = [later - earlier for earlier, later in pairwise(asked)]
    assert asked[0] == 1 and gaps[:5] == [2, 4, 8, 16, 32] and gaps[-1] == roll.MAX_CHECK_INTERVAL_S and len(asked) < 15
    monkeypatch.setattr(two, "request", lambda *given, deadline: type("Ok", (), {"status": 200})())

    def refuses(server: HttpClient) -> None:
        raise ConfigError("another version")

    clock[0] += 1000
    both.restore_healthy(1.0, refuses)
    assert both.active == [one]
    clock[0] += 1000
    both.restore_healthy(1.0, lambda server: None)
    assert both.active == [one, two] and "healthy again" in told[-1]
    with pytest.raises(SamplerError, match=r"x\. Fix it, then continue"):
        both.set_active([two.url])
        both.mark_lost(two, "x")
