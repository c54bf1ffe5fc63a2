"""The rollout: groups of episodes out of tasks, and what becomes of failures."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from rlvr.contracts import Completion, Environment, Request, Sampler, SamplingParams
from rlvr.episode import StopReason
from rlvr.errors import ConfigError, SamplerError, TooManyHungCalls
from rlvr.mdp.token_mdp import TokenMDP
from rlvr.mdp.tokenizers import ByteTokenizer, CharTokenizer
from rlvr.rollout.rollout import Rollout, RolloutRequest, derive_seed
from rlvr.samplers._vllm_format import make_completion
from rlvr.samplers.scripted import ScriptedSampler
from rlvr.task import Fault, Task, Verdict, make_user_prompt
from tests.fixtures.worlds import DIGITS, Match, Raises, Sums, Talk, Unable


def rollout_of(environment: Environment, sampler: Sampler, **settings: Any) -> Rollout:
    tokenizer = CharTokenizer(DIGITS)
    sampler.setup(environment, tokenizer)
    return Rollout(TokenMDP(environment, tokenizer), sampler=sampler, **settings)


def draws(environment: Environment, count: int) -> list[RolloutRequest]:
    return [RolloutRequest(environment.task("train", i), f"g{i // 2}", derive_seed(i), {"index": i}) for i in range(count)]


def test_gold_answers_score_the_maximum_in_order() -> None:
    environment = Sums()
    with rollout_of(environment, ScriptedSampler(answer="gold")) as rollout:
        episodes = rollout.collect(draws(environment, 20), SamplingParams(), version=7)
    assert [e.reward for e in episodes] == [1.0] * 20
    assert [e.task_id for e in episodes] == [f"sums/train/{i}" for i in range(20)]
    assert {e.policy_version for e in episodes} == {7} and [e.meta["index"] for e in episodes] == list(range(20))


def test_turns_alternate_and_only_the_policy_s_tokens_are_acted() -> None:
    environment = Talk()
    with rollout_of(environment, ScriptedSampler(answers=["1", "2", "7"])) as rollout:
        episode = rollout.collect([RolloutRequest(environment.task("train", 12), "g", 0)], SamplingParams())[0]
    tokenizer = CharTokenizer(DIGITS)
    said = [token for token, acted in zip(episode.tokens, episode.action_mask, strict=True) if acted]
    assert tokenizer.decode(said) == "127" and episode.turns == 3 and episode.stop_reason is StopReason.TERMINATED
    assert episode.text == "127" and len(episode.tokens) == episode.prompt_length + 6 + 2 * 3


class Fails(Sampler):
    """A sampler of which every third completion is broken, each in its own way."""

    def stream_completions(self, requests: Sequence[Request], sampling: SamplingParams) -> Iterator[tuple[int, Completion]]:
        for i in range(len(requests)):
            yield (
                i,
                (
                    Completion([], [], "error", "the engine hiccuped"),
                    Completion([0, 5], [-0.1, -0.1], "stop"),  # goes on after a stop id
                    Completion([5, 6, 0], [-0.1, -0.2, -0.3], "stop"),
                    Completion([5], [-0.1], "length"),  # stops early for no reason
                )[i % 4],
            )


def test_a_failed_completion_is_a_failed_episode_and_the_others_go_on() -> None:
    environment = Sums()
    with rollout_of(environment, Fails()) as rollout:
        episodes = rollout.collect(draws(environment, 8), SamplingParams())
    assert [e.stop_reason for e in episodes] == [StopReason.FAILED, StopReason.FAILED, StopReason.TERMINATED, StopReason.FAILED] * 2
    assert [e.is_scored for e in episodes] == [False, False, True, False] * 2
    assert "hiccuped" in episodes[0].error and "stop id" in episodes[1].error and "before the limit" in episodes[3].error
    assert all(e.verdict is not None and e.verdict.score is None and e.verdict.fault is Fault.INFRA for e in episodes if not e.is_scored)
    assert episodes[2].logprobs[-3:] == [-0.1, -0.2, -0.3]


@pytest.mark.parametrize(("verifier", "told"), [(Raises(), "the judge fell over"), (Unable(), "engine does not answer")])
def test_a_verifier_that_cannot_judge_gives_no_score(verifier: Any, told: str) -> None:
    environment = Sums(verifier=verifier)
    with rollout_of(environment, ScriptedSampler(answer="gold")) as rollout:
        episode = rollout.collect(draws(environment, 1), SamplingParams())[0]
    assert episode.stop_reason is StopReason.FAILED and not episode.is_scored and episode.reward == 0.0 and told in episode.error


class BadReply(Talk):
    def reply(self, task: Task, completions: Sequence[str]) -> str | None:
        raise KeyError("lost")


class LeavingReply(Talk):
    def reply(self, task: Task, completions: Sequence[str]) -> str | None:
        raise SystemExit(0)


@pytest.mark.parametrize(("environment", "told"), [(BadReply(), "BadReply.reply raised KeyError"), (LeavingReply(), "raised SystemExit")])
def test_an_environment_that_raises_fails_its_episode_alone(environment: Environment, told: str) -> None:
    with rollout_of(environment, ScriptedSampler(answers=["1"])) as rollout:
        episode = rollout.collect(draws(environment, 1), SamplingParams())[0]
    assert episode.stop_reason is StopReason.FAILED and told in episode.error


class WaitingReply(Talk):
    def reply(self, task: Task, completions: Sequence[str]) -> str | None:
        if task.id.endswith("/0"):
            threading.Event().wait(5)
        return None


def test_a_reply_that_hangs_is_not_waited_for_past_the_deadline() -> None:
    environment = WaitingReply()
    began = time.perf_counter()
    with rollout_of(environment, ScriptedSampler(answers=["1"]), call_timeout_s=0.3) as rollout:
        hung, other = rollout.collect(draws(environment, 2), SamplingParams())
    assert (
        hung.stop_reason is StopReason.FAILED
        and "WaitingReply.reply gave nothing within 0.3 s" in hung.error
        and time.perf_counter() - began < 4
    )
    assert other.is_scored and other.stop_reason is StopReason.TERMINATED


class Hangs(Match):
    def __init__(self) -> None:
        self.release = threading.Event()

    def verify(self, task: Task, answer: str) -> Verdict:
        self.release.wait(60)
        return super().verify(task, answer)


def test_a_verifier_that_hangs_is_not_waited_for_past_the_deadline() -> None:
    verifier = Hangs()
    environment = Sums(verifier=verifier)
    with rollout_of(environment, ScriptedSampler(answer="gold"), call_timeout_s=0.2) as rollout:
        episodes = rollout.collect(draws(environment, 3), SamplingParams())
    verifier.release.set()
    assert all(not e.is_scored and "no verdict within 0.2 s" in e.error for e in episodes)


def test_a_rollout_stops_where_so_many_calls_hang_that_no_thread_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlvr.mdp.verifier_executor.MAX_HUNG_THREADS", 2)
    verifier = Hangs()
    environment = Sums(verifier=verifier)
    with rollout_of(environment, ScriptedSampler(answer="gold"), max_concurrent_calls=1, call_timeout_s=0.2) as rollout:
        with pytest.raises(TooManyHungCalls, match=r"2 verifications still run after their timeout of 0\.2 s, and no thread is left"):
            rollout.collect(draws(environment, 6), SamplingParams())
        verifier.release.set()


class Slowly(Sampler):
    """Hands out one completion at a time, and notes how many verdicts were in by then."""

    def __init__(self, verifier: Counts) -> None:
        self.verifier = verifier
        self.seen: list[int] = []

    def stream_completions(self, requests: Sequence[Request], sampling: SamplingParams) -> Iterator[tuple[int, Completion]]:
        for i in range(len(requests)):
            if i:
                self.verifier.arrived.wait(20)
            self.seen.append(self.verifier.calls)
            yield i, Completion([5, 0], [-0.1, -0.1], "stop")


class Counts(Match):
    def __init__(self) -> None:
        self.calls = 0
        self.arrived = threading.Event()

    def verify(self, task: Task, answer: str) -> Verdict:
        self.calls += 1
        self.arrived.set()
        return super().verify(task, answer)


def test_an_answer_is_judged_while_the_others_are_still_sampled() -> None:
    verifier = Counts()
    environment = Sums(verifier=verifier)
    sampler = Slowly(verifier)
    with rollout_of(environment, sampler) as rollout:
        rollout.collect(draws(environment, 3), SamplingParams())
    assert sampler.seen[0] == 0 and sampler.seen[1] >= 1


class Sleeps(Match):
    def verify(self, task: Task, answer: str) -> Verdict:
        time.sleep(0.05)
        return super().verify(task, answer)


def test_the_times_of_sampling_and_of_verification_are_told_apart() -> None:
    environment = Sums(verifier=Sleeps())
    with rollout_of(environment, ScriptedSampler(answer="gold"), max_concurrent_calls=2) as rollout:
        rollout.collect(draws(environment, 4), SamplingParams())
    assert rollout.timing.total_verify_s > 0.19 and rollout.timing.verify_tail_s > rollout.timing.sampling_s


class Trickle(Sampler):
    """An answer every few milliseconds, as an engine with many lanes gives them."""

    def stream_completions(self, requests: Sequence[Request], sampling: SamplingParams) -> Iterator[tuple[int, Completion]]:
        for i in range(len(requests)):
            time.sleep(0.01)
            yield i, Completion([5, 0], [-0.1, -0.1], "stop")


class Slow(Match):
    def verify(self, task: Task, answer: str) -> Verdict:
        time.sleep(0.2)
        return super().verify(task, answer)


def test_a_slow_verifier_is_hidden_behind_sampling() -> None:
    environment = Sums(verifier=Slow())
    with rollout_of(environment, Trickle()) as rollout:
        rollout.collect(draws(environment, 250), SamplingParams())
    timing = rollout.timing
    assert timing.total_verify_s > 250 * 0.2 and timing.hidden_verify_fraction >= 0.9
    assert timing.sampling_s + timing.verify_tail_s <= 1.15 * timing.sampling_s  # against a verifier that takes no time at all


def test_seeds_are_functions_of_their_parts_alone() -> None:
    assert derive_seed(1, "a") == derive_seed(1, "a") and len({derive_seed(i, j) for i in range(30) for j in range(30)}) == 900
    assert all(0 <= derive_seed(i) < 2**63 for i in range(1000))


def test_bad_settings_are_refused() -> None:
    with pytest.raises(ConfigError, match="max_concurrent_calls 0"):
        Rollout(TokenMDP(Sums(), ByteTokenizer()), sampler=ScriptedSampler(), max_concurrent_calls=0)


class Mute(Sampler):
    """A sampler that forgets every other request."""

    def stream_completions(self, requests: Sequence[Request], sampling: SamplingParams) -> Iterator[tuple[int, Completion]]:
        yield from ((i, Completion([5, 0], [-0.1, -0.1], "stop")) for i in range(0, len(requests), 2))


def test_a_request_that_nobody_answers_is_a_failed_episode() -> None:
    environment = Sums()
    with rollout_of(environment, Mute()) as rollout:
        episodes = rollout.collect(draws(environment, 6), SamplingParams())
    assert [e.stop_reason for e in episodes] == [StopReason.TERMINATED, StopReason.FAILED] * 3 and "no answer at all" in episodes[1].error
    assert [e.meta["finish"] for e in episodes[:2]] == ["terminated", "failed"]


def test_episodes_are_handed_over_while_others_are_still_sampled() -> None:
    environment, sampled = Sums(), []

    class Slow(Sampler):
        def stream_completions(self, requests: Sequence[Request], sampling: SamplingParams) -> Iterator[tuple[int, Completion]]:
            for i in range(len(requests)):
                sampled.append(i)
                time.sleep(0.02)  # room for the judge
                yield i, Completion([5, 0], [-0.1, -0.1], "stop")

    with rollout_of(environment, Slow()) as rollout:
        seen = [(i, len(sampled)) for i, _ in rollout.stream_episodes(draws(environment, 10), SamplingParams())]
    assert sorted(i for i, _ in seen) == list(range(10)) and seen[0][1] < 10


class Patient(Match):
    """Takes a while for each answer, and hangs on one of them."""

    def __init__(self, hangs_on: str) -> None:
        self.hangs_on, self.release = hangs_on, threading.Event()

    def verify(self, task: Task, answer: str) -> Verdict:
        self.release.wait(60 if task.id == self.hangs_on else 0.15)
        return super().verify(task, answer)


def test_the_deadline_is_one_verification_s_and_not_that_of_the_queue() -> None:
    verifier = Patient("")
    environment = Sums(verifier=verifier)
    with rollout_of(environment, ScriptedSampler(answer="gold"), max_concurrent_calls=1, call_timeout_s=0.5) as rollout:
        assert all(e.reward == 1.0 for e in rollout.collect(draws(environment, 8), SamplingParams()))
        verifier.hangs_on = draws(environment, 3)[2].task.id
        found = rollout.collect(draws(environment, 8), SamplingParams())
    verifier.release.set()
    assert [e.is_scored for e in found] == [True, True, False, *[True] * 5]  # the only worker hangs: another takes its place
    assert "no verdict within 0.5 s" in found[2].error


def test_a_verification_has_its_whole_deadline_from_when_it_was_submitted() -> None:
    class Slow(ScriptedSampler):
        def stream_completions(self, requests: Sequence[Request], sampling: SamplingParams) -> Iterator[tuple[int, Completion]]:
            time.sleep(0.5)
            yield from super().stream_completions(requests, sampling)

        stream_from_queue = Sampler.stream_from_queue  # which calls `stream_completions`

    class Late(Sums):
        def select_answer(self, task: Task, said: Sequence[str]) -> str:
            time.sleep(0.1)
            return super().select_answer(task, said)

    environment = Late()
    with rollout_of(environment, Slow(answer="gold"), max_concurrent_calls=1, call_timeout_s=0.4) as rollout:
        for _ in range(4):
            assert [e.reward for e in rollout.collect(draws(environment, 1), SamplingParams())] == [1.0]


class LongWinded(Sums):
    def task(self, split: str, index: int) -> Task:
        task = super().task(split, index)
        return Task(make_user_prompt("1+" * 50 + "1="), task.reference, id=task.id) if index == 1 else task


def test_a_prompt_that_is_too_long_costs_its_own_answer_alone() -> None:
    environment = LongWinded()
    with rollout_of(environment, ScriptedSampler(answer="gold")) as rollout:
        found = rollout.collect(draws(environment, 3), SamplingParams())
    assert [e.is_scored for e in found] == [True, False, True] and "no token is left for an answer" in found[1].error
    assert found[1].verdict is not None and found[1].verdict.fault is Fault.INFRA and not found[1].tokens


class Mumbles(Sums):
    def select_answer(self, task: Task, completions: Sequence[str]) -> str:
        raise RuntimeError("lost for words")


def test_an_answer_that_cannot_be_read_is_the_machinery_s_fault() -> None:
    environment = Mumbles()
    with rollout_of(environment, ScriptedSampler(answer="gold")) as rollout:
        (episode,) = rollout.collect(draws(environment, 1), SamplingParams())
    assert not episode.is_scored and episode.error == "the environment's select_answer() raised RuntimeError: lost for words"


@pytest.mark.parametrize("logprob", [float("nan"), float("-inf"), 0.01])
def test_an_impossible_log_probability_costs_its_own_answer_alone(logprob: float) -> None:
    class Odd(Sampler):
        def stream_completions(self, requests: Sequence[Request], sampling: SamplingParams) -> Iterator[tuple[int, Completion]]:
            yield from ((i, Completion([5, 0], [logprob if i == 1 else -0.1, -0.1], "stop")) for i in range(len(requests)))

    environment = Sums()
    with rollout_of(environment, Odd()) as rollout:
        found = rollout.collect(draws(environment, 3), SamplingParams())
    assert [e.is_scored for e in found] == [True, False, True]
    assert f"the log-probability {logprob}; it must be a finite number of at most 0" in found[1].error


@pytest.mark.parametrize(
    ("token", "logprob", "words"),
    [
        (1.5, -0.1, "the token id 1.5; it must be a whole number"),
        ("7", -0.1, "the token id '7'"),
        (5, "a lot", "the log-probability 'a lot'"),
    ],
)
def test_a_completion_of_other_types_costs_its_own_answer_alone(token: Any, logprob: Any, words: str) -> None:
    class Odd(Sampler):
        def stream_completions(self, requests: Sequence[Request], sampling: SamplingParams) -> Iterator[tuple[int, Completion]]:
            odd = Completion([token, 0], [logprob, -0.1], "stop")
            yield from ((i, odd if i == 1 else Completion([5, 0], [-0.1, -0.1], "stop")) for i in range(len(requests)))

    environment = Sums()
    with rollout_of(environment, Odd()) as rollout:
        found = rollout.collect(draws(environment, 3), SamplingParams())
    assert [e.is_scored for e in found] == [True, False, True] and words in found[1].error


@pytest.mark.parametrize("environment", [Sums, Talk])
@pytest.mark.parametrize("sync_turns", [False, True])
@pytest.mark.parametrize(
    ("given", "words"),
    [
        (
            (7, Completion([5, 0], [-0.1, -0.1], "stop")),
            "an answer to request 7; it was given 3 requests, and must yield their places, from 0 to 2",
        ),
        ((-1, Completion([5, 0], [-0.1, -0.1], "stop")), "an answer to request -1"),
        ((0, None), "with None; it must be an rlvr.contracts.Completion"),
        ((0, {"tokens": [5, 0]}), "with {'tokens': .*; it must be"),
    ],
    ids=["beyond", "negative", "nothing", "mapping"],
)
def test_a_sampler_that_yields_something_else_is_named(given: Any, words: str, sync_turns: bool, environment: type[Environment]) -> None:
    class Wild(Sampler):
        def stream_completions(self, requests: Sequence[Request], sampling: SamplingParams) -> Iterator[tuple[int, Completion]]:
            yield given

    made = environment()
    with rollout_of(made, Wild(), sync_turns=sync_turns) as rollout, pytest.raises(SamplerError, match=words):
        rollout.collect(draws(made, 3), SamplingParams())


def test_an_engine_s_nan_stays_one_until_the_rollout_looks() -> None:
    said = make_completion([5, 0], [float("nan"), 1e-3], "stop", SamplingParams(stop_ids=frozenset({0})))
    assert math.isnan(said.logprobs[0]) and said.logprobs[1] == 0.0
