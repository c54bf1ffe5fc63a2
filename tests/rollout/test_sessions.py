"""Sessions in a rollout: each conversation goes on by itself, each session is closed once, and failures are data."""

from __future__ import annotations

import gc
import random
import threading
import time
import weakref
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlvr.config.config import ModelConfig
from rlvr.contracts import Completion, Request, RequestQueue, Sampler, SamplingParams
from rlvr.episode import Episode, StopReason
from rlvr.errors import ConfigError, SamplerError
from rlvr.mdp.token_mdp import TokenMDP
from rlvr.mdp.tokenizers import CharTokenizer
from rlvr.models.model_loading import load_model
from rlvr.rollout.rollout import Rollout, RolloutRequest, derive_seed
from rlvr.rollout.session_scheduler import SessionRolloutScheduler
from rlvr.samplers.hf import HFSampler
from rlvr.samplers.scripted import ScriptedSampler
from rlvr.task import Fault, Task, Verdict
from tests.fixtures.boards import Boards
from tests.fixtures.tiny import MODEL
from tests.fixtures.worlds import DIGITS, Talk

TOK = CharTokenizer(DIGITS)
STOPS = SamplingParams(stop_ids=TOK.stop_ids)


def rollout_of(environment: Any, sampler: Sampler, **options: Any) -> Rollout:
    sampler.setup(environment, TOK)
    return Rollout(TokenMDP(environment, TOK), sampler=sampler, **options)


def draws(environment: Any, count: int, start: int = 0) -> list[RolloutRequest]:
    return [RolloutRequest(environment.task("train", start + i), f"g{i // 2}", derive_seed(i), {"index": start + i}) for i in range(count)]


def soon(what: Any, seconds: float = 20.0) -> bool:
    until = time.monotonic() + seconds
    while not what() and time.monotonic() < until:
        time.sleep(0.01)
    return bool(what())


class Waves(ScriptedSampler):
    """The same answers, a wave at a time."""

    def stream_completions(self, requests: Sequence[Request], sampling: SamplingParams) -> Iterator[tuple[int, Completion]]:
        yield from super().stream_completions(requests, sampling)

    stream_from_queue = Sampler.stream_from_queue  # which calls `stream_completions`


def test_sessions_are_told_each_turn_and_closed() -> None:
    boards = Boards()
    with rollout_of(boards, ScriptedSampler(answers=["1", "2", "7"])) as rollout:
        episodes = rollout.collect(draws(boards, 12), STOPS)
    assert [e.reward for e in episodes] == [float(i == 10) for i in range(12)] and boards.settled and len(boards.opened) == 12


def test_a_group_has_one_world_and_other_groups_have_others() -> None:
    boards = Boards()
    task = boards.task("train", 5)
    asked = [RolloutRequest(task, f"g{i // 4}", derive_seed(i)) for i in range(8)] + [
        RolloutRequest(task, "own", 0, session_seed_override=77)
    ]
    with rollout_of(boards, ScriptedSampler(answers=["7"])) as rollout:
        rollout.collect(asked, STOPS)
    seeds = [board.opened_with for board in boards.opened]
    assert len(set(seeds)) == 3 and 77 in seeds and sorted(map(seeds.count, set(seeds))) == [1, 4, 4]


def test_a_conversation_goes_on_while_the_session_of_another_takes_its_time() -> None:
    gate, others = threading.Event(), threading.Semaphore(0)

    def happens(what: str, task: Task, turn: int) -> None:
        if what == "step" and task.id.endswith("/0"):
            assert gate.wait(20)

    boards = Boards(happens=happens)
    with rollout_of(boards, ScriptedSampler(answers=["1", "2", "7"])) as rollout:
        seen = list[int]()
        for i, episode in rollout.stream_episodes(draws(boards, 6), STOPS):
            assert episode.is_scored
            seen.append(i)
            others.release()
            if len(seen) == 5:
                gate.set()  # in waves nobody would have come so far
    assert seen[-1] == 0 and boards.settled


def test_in_sync_everybody_waits_for_the_slowest() -> None:
    order, lock = list[int](), threading.Lock()

    def happens(what: str, task: Task, turn: int) -> None:
        if what == "step":
            time.sleep(0.05 if task.id.endswith("/0") else 0.0)
            with lock:
                order.append(turn)

    boards = Boards(happens=happens)
    with rollout_of(boards, ScriptedSampler(answers=["1", "2", "7"]), sync_turns=True) as rollout:
        rollout.collect(draws(boards, 6), STOPS)
    assert order == sorted(order)


def test_replies_are_given_side_by_side() -> None:
    party = threading.Barrier(8, timeout=20)

    class Meets(Talk):
        def reply(self, task: Task, said: Sequence[str]) -> str | None:
            party.wait()
            return super().reply(task, said)

    environment = Meets()
    with rollout_of(environment, ScriptedSampler(answers=["1", "2", "7"])) as rollout:
        episodes = rollout.collect(draws(environment, 8), STOPS)
    assert all(e.is_scored and e.turns == 3 for e in episodes)


class Composed(ScriptedSampler):
    """Notes which conversations each wave has."""

    def __init__(self) -> None:
        super().__init__(answers=["1", "123456"])  # the second is cut off: a session is asked for its answer after the last turn
        self.waves = list[list[str]]()

    def stream_completions(self, requests: Sequence[Request], sampling: SamplingParams) -> Iterator[tuple[int, Completion]]:
        self.waves.append([request.task.id for request in requests if request.task])
        yield from super().stream_completions(requests, sampling)

    stream_from_queue = Sampler.stream_from_queue  # which calls `stream_completions`


def test_in_sync_waves_do_not_depend_on_how_long_sessions_take_to_close() -> None:
    def waves(seconds: float) -> list[list[str]]:
        def happens(what: str, task: Task, turn: int) -> None:
            time.sleep(seconds if what == "answer" and task.id.endswith("/1") else 0.0)

        boards, sampler = Boards(happens=happens), Composed()
        boards.max_new_tokens = 5
        with rollout_of(boards, sampler, sync_turns=True, max_open_sessions=3) as rollout:
            rollout.collect(draws(boards, 7), STOPS)
        return sampler.waves

    assert waves(0.0) == waves(0.3) and {len(wave) for wave in waves(0.0)} == {3, 1}


def record(episode: Episode) -> Any:
    return (
        episode.tokens,
        episode.action_mask,
        episode.logprobs,
        episode.rewards,
        episode.stop_reason,
        episode.text,
        episode.turns,
        episode.meta,
    )


@pytest.mark.parametrize("sync_turns", [False, True])
def test_episodes_are_those_of_the_waves(sync_turns: bool) -> None:
    dice = random.Random(0)

    def happens(what: str, task: Task, turn: int) -> None:
        time.sleep(dice.random() * 0.005)

    found = []
    for sampler in (Waves(answer="random"), ScriptedSampler(answer="random")):
        boards = Boards(happens=happens)
        with rollout_of(boards, sampler, sync_turns=sync_turns) as rollout:
            found.append([record(e) for e in rollout.collect(draws(boards, 40), STOPS)])
    assert found[0] == found[1] and len({len(row[0]) for row in found[0]}) > 3


def test_no_more_sessions_are_open_than_allowed_and_no_more_are_asked_at_once() -> None:
    now, most, lock = [0, 0], [0, 0], threading.Lock()
    boards = Boards()

    def happens(what: str, task: Task, turn: int) -> None:
        with lock:
            now[0] += {"new_session": 1, "close": -1}.get(what, 0)
            now[1] += 1
            most[0], most[1] = max(most[0], now[0]), max(most[1], now[1])
        time.sleep(0.002)
        with lock:
            now[1] -= 1

    boards.happens = happens
    with rollout_of(boards, ScriptedSampler(answers=["1", "2", "7"]), max_open_sessions=5, session_workers=3) as rollout:
        assert all(e.is_scored for e in rollout.collect(draws(boards, 30), STOPS))
    assert boards.settled and most[0] <= 5 and 1 < most[1] <= 3


@pytest.mark.parametrize("what", ["new_session", "step", "answer", "artifacts"])
def test_a_session_that_hangs_costs_its_own_episode_and_is_closed_when_it_comes_back(what: str) -> None:
    release = threading.Event()

    def happens(step: str, task: Task, turn: int) -> None:
        if step == what and task.id.endswith(("/1", "/3")):
            release.wait(60)

    boards = Boards(happens=happens)
    with rollout_of(boards, ScriptedSampler(answers=["1", "2", "7"]), call_timeout_s=0.3, session_workers=2) as rollout:
        episodes = rollout.collect(draws(boards, 6), STOPS)
        assert [e.is_scored for e in episodes] == [True, False, True, False, True, True]
        assert all("gave nothing within 0.3 s" in e.error for e in episodes if not e.is_scored)
        assert all(e.verdict is not None and e.verdict.fault is Fault.INFRA for e in episodes if not e.is_scored)
        release.set()
        assert soon(lambda: boards.settled and len(boards.opened) == 6)


def test_a_generator_that_is_left_closes_every_session() -> None:
    boards = Boards()
    with rollout_of(boards, ScriptedSampler(answers=["1", "1", "7"])) as rollout:
        stream = rollout.stream_episodes(draws(boards, 40), STOPS)
        next(stream)
        del stream
        assert boards.settled and boards.opened


class Breaks(ScriptedSampler):
    """A sampler that is interrupted, or falls over, in the middle."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(answers=["1", "1", "7"])
        self.error = error

    def stream_from_queue(self, queue: RequestQueue, sampling: SamplingParams) -> Iterator[tuple[int, Completion] | None]:
        for count, answer in enumerate(super().stream_from_queue(queue, sampling)):
            if count == 25:
                raise self.error
            yield answer


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SamplerError("the engine is gone")])
def test_an_interrupted_rollout_closes_every_session(error: BaseException) -> None:
    boards = Boards()
    with rollout_of(boards, Breaks(error)) as rollout:
        with pytest.raises(type(error)):
            rollout.collect(draws(boards, 20), STOPS)
        assert boards.settled and boards.opened


class Leaves(ScriptedSampler):
    """A sampler that ends before its work."""

    def stream_from_queue(self, queue: RequestQueue, sampling: SamplingParams) -> Iterator[tuple[int, Completion] | None]:
        yield from (answer for _, answer in zip(range(9), super().stream_from_queue(queue, sampling), strict=False))


def test_a_sampler_that_ends_early_leaves_failed_episodes() -> None:
    boards = Boards()
    with rollout_of(boards, Leaves(answers=["1", "7"])) as rollout:
        episodes = rollout.collect(draws(boards, 12), STOPS)
    assert boards.settled and any(not e.is_scored for e in episodes)
    assert all("no answer at all" in e.error for e in episodes if not e.is_scored)


class Twice(ScriptedSampler):
    """A sampler that answers everything twice."""

    def stream_from_queue(self, queue: RequestQueue, sampling: SamplingParams) -> Iterator[tuple[int, Completion] | None]:
        for answer in super().stream_from_queue(queue, sampling):
            yield answer
            yield answer


def test_a_second_answer_to_one_request_is_refused() -> None:
    boards = Boards()
    with rollout_of(boards, Twice(answers=["1", "7"])) as rollout, pytest.raises(SamplerError, match="returned request"):
        rollout.collect(draws(boards, 3), STOPS)
    assert boards.settled


def test_bad_bounds_are_refused() -> None:
    with pytest.raises(ConfigError, match="session_workers 0"):
        rollout_of(Boards(), ScriptedSampler(), session_workers=0)


class Erring(ScriptedSampler):
    """A sampler whose completions fail by chance."""

    def __init__(self, dice: random.Random, share: float) -> None:
        super().__init__(answer="random")
        self.dice, self.share = dice, share

    def stream_from_queue(self, queue: RequestQueue, sampling: SamplingParams) -> Iterator[tuple[int, Completion] | None]:
        for answer in super().stream_from_queue(queue, sampling):
            if answer is not None and self.dice.random() < self.share:
                kind = self.dice.randrange(3)
                answer = answer[0], (
                    Completion([], [], "error", "the engine hiccuped"),
                    Completion([0, 5], [-0.1, -0.1], "stop"),
                    Completion([5], [float("nan")], "length"),
                )[kind]  # fmt: skip
            yield answer
            if self.dice.random() < self.share:
                yield None


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    count=st.integers(1, 24),
    share=st.sampled_from([0.0, 0.05, 0.3]),
    hang=st.sampled_from([0.0, 0.0, 0.03]),
    left=st.one_of(st.none(), st.integers(0, 24)),
    shape=st.tuples(st.integers(1, 4), st.integers(1, 6), st.integers(1, 8), st.booleans(), st.booleans()),
)
def test_whatever_fails_every_draw_comes_out_once_and_every_session_is_closed_once(
    seed: int, count: int, share: float, hang: float, left: int | None, shape: tuple[int, int, int, bool, bool]
) -> None:
    workers, actors, open_sessions, sync_turns, waves = shape
    release = threading.Event()

    def happens(what: str, task: Task, turn: int) -> None:
        chance = random.Random(f"{seed} {what} {task.id} {turn}").random()
        if chance < hang and what != "close":
            release.wait(30)
        elif chance > 1 - share:
            raise (RuntimeError, SystemExit, OSError)[int(chance * 1e6) % 3](what)

    boards = Boards(happens=happens)
    judge = boards.verifier.verify_transcript

    def unsure(task: Task, transcript: Any) -> Verdict:
        happens("verify", task, 0)
        return judge(task, transcript)

    boards.verifier.verify_transcript = unsure  # type: ignore[method-assign]
    sampler: Sampler = Waves(answer="random") if waves else Erring(random.Random(seed), share)
    options = {
        "max_concurrent_calls": workers,
        "session_workers": actors,
        "max_open_sessions": open_sessions,
        "sync_turns": sync_turns,
        "call_timeout_s": 0.15,
    }
    began, seen = time.monotonic(), dict[int, Episode]()
    try:
        with rollout_of(boards, sampler, **options) as rollout:
            for i, episode in rollout.stream_episodes(draws(boards, count), STOPS):
                assert i not in seen
                seen[i] = episode
                if len(seen) == left:
                    break
            else:
                assert sorted(seen) == list(range(count))
            assert time.monotonic() - began < 30
            release.set()
            assert soon(lambda: boards.settled), (len(boards.opened), len(boards.closed))
    finally:
        release.set()
    for i, episode in seen.items():
        assert episode.meta["index"] == i and (
            episode.stop_reason is not StopReason.FAILED or (episode.verdict is not None and episode.verdict.score is None)
        )
        assert episode.is_scored or episode.error


def test_the_hf_sampler_gives_the_tokens_of_the_waves_however_long_sessions_take() -> None:
    model = load_model(ModelConfig(config=MODEL), TOK, 0)
    dice = random.Random(0)

    def happens(what: str, task: Task, turn: int) -> None:
        time.sleep(dice.random() * 0.01)

    found: list[list[Episode]] = []
    for sync_turns in (True, False):
        sampler, boards = HFSampler(batch_size=8), Boards(happens=happens)
        sampler.update_from_model(model, 0)
        with rollout_of(boards, sampler, sync_turns=sync_turns) as rollout:
            found.append(rollout.collect(draws(boards, 32), STOPS))
    waves, flowing = found
    assert [(e.tokens, e.action_mask, e.stop_reason, e.reward) for e in waves] == [
        (e.tokens, e.action_mask, e.stop_reason, e.reward) for e in flowing
    ]
    assert all(e.logprobs == pytest.approx(f.logprobs, abs=1e-4) for e, f in zip(waves, flowing, strict=True))
    assert {e.turns for e in waves} >= {1, 2, 3}


def test_a_session_that_is_slow_to_close_leaves_the_verdict_alone() -> None:
    release = threading.Event()

    def happens(step: str, task: Task, turn: int) -> None:
        if step == "close" and task.id.endswith("/10"):
            release.wait(60)

    boards = Boards(happens=happens)
    try:
        with rollout_of(boards, ScriptedSampler(answers=["1", "2", "7"]), call_timeout_s=0.3) as rollout:
            episodes = rollout.collect(draws(boards, 3, start=9), STOPS)
    finally:
        release.set()
    assert [(e.is_scored, e.reward) for e in episodes] == [(True, 0.0), (True, 1.0), (True, 0.0)]
    assert ["trouble" in e.meta for e in episodes] == [False, True, False] and "not closed within 0.3 s" in episodes[1].meta["trouble"]


def test_sessions_that_are_being_closed_after_an_error_count_as_open() -> None:
    now, most, lock = [0], [0], threading.Lock()

    def happens(what: str, task: Task, turn: int) -> None:
        if what == "step":
            raise RuntimeError("the board fell")
        with lock:
            now[0] += what == "new_session"
            most[0] = max(most[0], now[0])
        if what == "close":
            time.sleep(0.05)
            with lock:
                now[0] -= 1

    boards = Boards(happens=happens)
    with rollout_of(boards, ScriptedSampler(answers=["1"]), max_open_sessions=2) as rollout:
        assert not any(e.is_scored for e in rollout.collect(draws(boards, 8), STOPS))
        assert soon(lambda: boards.settled)
    assert most[0] <= 2 and len(boards.opened) == 3 * 8, "each conversation, and two that look for the cause, with a text and a number"


def test_a_rollout_that_another_thread_closes_ends_and_leaves_no_session_open() -> None:
    gate, inside = threading.Event(), threading.Event()

    def happens(what: str, task: Task, turn: int) -> None:
        if what == "step" and not task.id.endswith("/0"):
            inside.set()
            gate.wait(0.5)

    boards = Boards(happens=happens)
    rollout = rollout_of(boards, ScriptedSampler(answers=["1", "7"]), session_workers=2)

    def close() -> None:
        inside.wait(20)
        rollout.close()

    closer = threading.Thread(target=close)
    closer.start()
    began, failed = time.monotonic(), list[str]()
    try:
        failed += [e.error for _, e in rollout.stream_episodes(draws(boards, 12), STOPS) if not e.is_scored]
    except RuntimeError as error:
        failed.append(str(error))
    closer.join(20)
    assert failed and time.monotonic() - began < 30 and soon(lambda: boards.settled)


def test_a_thread_that_hangs_keeps_one_conversation_alive_and_not_the_collection() -> None:
    release, seen = threading.Event(), list[Any]()

    class Watched(SessionRolloutScheduler):
        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            seen.append(weakref.ref(self))

    def happens(what: str, task: Task, turn: int) -> None:
        if what == "step" and task.id.endswith("/1"):
            release.wait(60)

    boards = Boards(happens=happens)
    with pytest.MonkeyPatch.context() as patch, rollout_of(boards, ScriptedSampler(answers=["7"]), call_timeout_s=0.2) as rollout:
        patch.setattr("rlvr.rollout.rollout.SessionRolloutScheduler", Watched)
        assert sum(e.is_scored for e in rollout.collect(draws(boards, 4), STOPS)) == 3
        gc.collect()
        assert seen[0]() is None
        release.set()
        assert soon(lambda: boards.settled)
