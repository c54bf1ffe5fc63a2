"""Verifier workers without a cluster: who is asked, what happens to a verdict whose host is lost, and that verdicts are the same ones."""

from __future__ import annotations

import asyncio
import threading
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from rlvr.cluster.checks.episode_fields import EpisodeLimits
from rlvr.cluster.rollout_tasks import check_task_episodes
from rlvr.cluster.rollout_worker import RolloutWorker, WorkerSettings
from rlvr.cluster.verifier_workers import (
    MAX_RETRIES,
    AskVerdict,
    VerifierBusy,
    VerifierClient,
    VerifierLost,
    VerifierLostBeforeVerification,
    VerifierWorker,
)
from rlvr.contracts import Environment, SamplingParams, Transcript, Verifier
from rlvr.mdp.sessions import verify_transcript_safely
from rlvr.rollout.episode_encoding import EncodedEpisodes, decode_episodes
from rlvr.rollout.rollout_request import RolloutRequest, derive_seed
from rlvr.task import Fault, Task, Verdict, make_user_prompt
from tests.fixtures.tiny import tiny_run
from tests.fixtures.worlds import Sums, Talk

TASK, SAID = Task(make_user_prompt("2+2="), "4", id="t"), Transcript("4")


def answers(name: str, seen: list[str], *, after: float = 0.0) -> AskVerdict:
    async def ask(task: Task, transcript: Transcript, alone: bool) -> Verdict:
        seen.append(name)
        await asyncio.sleep(after)
        return Verdict(1.0, name)

    return ask


async def dies(task: Task, transcript: Transcript, alone: bool) -> Verdict:
    raise VerifierLost("killed")


def asked(desk: VerifierClient, times: int = 1) -> list[Verdict]:
    async def all_of_them() -> list[Verdict]:
        return list(await asyncio.gather(*(desk.verify(TASK, SAID) for _ in range(times))))

    return asyncio.run(asyncio.wait_for(all_of_them(), 20))


def test_the_host_with_the_fewest_questions_is_asked() -> None:
    desk, seen = VerifierClient(1.0), list[str]()
    desk.set_workers({name: answers(name, seen, after=0.05) for name in "abc"})
    asked(desk, 9)
    assert {name: seen.count(name) for name in "abc"} == {"a": 3, "b": 3, "c": 3}


def test_a_verdict_whose_host_is_lost_is_asked_for_elsewhere() -> None:
    desk, seen = VerifierClient(1.0), list[str]()
    desk.set_workers({"a": dies, "b": answers("b", seen)})
    assert [verdict.reason for verdict in asked(desk, 4)] == ["b"] * 4
    assert desk.num_lost <= 4 and asked(desk)[0].score == 1.0


def test_a_verdict_that_is_lost_with_its_hosts_is_no_score() -> None:
    desk = VerifierClient(1.0)
    desk.set_workers(dict.fromkeys("abcd", dies))
    [verdict] = asked(desk)
    assert verdict == Verdict(None, "the verification was lost with 3 verifier workers; the last one: killed", fault=Fault.INFRA)
    assert desk.num_lost == 1 + MAX_RETRIES


def test_a_host_that_says_nothing_any_more_is_left_when_it_is_not_named() -> None:
    desk, seen = VerifierClient(5.0), list[str]()
    desk.set_workers({"frozen": answers("frozen", seen, after=600)})
    later = threading.Timer(0.3, lambda: desk.set_workers({"b": answers("b", seen)}))
    later.start()
    assert [verdict.reason for verdict in asked(desk, 2)] == ["b", "b"] and seen == ["frozen", "frozen", "b", "b"]
    later.join()


def test_without_a_host_a_verdict_waits_for_one_and_then_has_no_score() -> None:
    desk, seen = VerifierClient(0.3), list[str]()
    [verdict] = asked(desk)
    assert verdict.score is None and verdict.fault is Fault.INFRA and verdict.reason == "there was no verifier worker for 0.3 s"
    later = threading.Timer(0.2, lambda: desk.set_workers({"b": answers("b", seen)}))
    desk.no_worker_timeout_s = 10.0
    later.start()
    assert asked(desk)[0].reason == "b"
    later.join()


@pytest.mark.parametrize("gives", ["nonsense", ValueError("broken")])
def test_a_host_that_answers_with_nonsense_is_no_score_and_is_not_lost(gives: Any) -> None:
    async def ask(task: Task, transcript: Transcript, alone: bool) -> Verdict:
        if isinstance(gives, Exception):
            raise gives
        return gives

    desk = VerifierClient(1.0)
    desk.set_workers({"a": ask})
    [verdict] = asked(desk)
    assert verdict.score is None and verdict.fault is Fault.INFRA and "verifier worker a raised" in verdict.reason and desk.num_lost == 0


def test_a_host_that_could_not_be_reached_once_is_asked_again_after_a_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing names it again, since for the driver nothing has happened to it."""
    monkeypatch.setattr("rlvr.cluster.verifier_workers.UNREACHABLE_PAUSE_S", 0.3)
    desk, times = VerifierClient(5.0), list[bool]()

    async def ask(task: Task, transcript: Transcript, alone: bool) -> Verdict:
        times.append(alone)
        if len(times) == 1:
            raise VerifierLost("ActorUnavailableError: the network was down")
        return Verdict(1.0, "back")

    desk.set_workers({"a": ask})
    assert asked(desk)[0].reason == "back" and times == [False, False]


def test_of_two_namings_the_later_one_counts_whenever_it_comes() -> None:
    desk, seen = VerifierClient(1.0), list[str]()
    desk.set_workers({"new": answers("new", seen)}, 2)
    desk.set_workers({"old": dies}, 1)
    assert asked(desk)[0].reason == "new"


def test_a_host_that_is_gone_between_its_choice_and_the_question_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    desk, seen = VerifierClient(5.0), list[str]()
    desk.set_workers({"frozen": answers("frozen", seen, after=600)})
    chosen = desk._choose_worker

    async def least() -> Any:
        host = await chosen()
        if host is not None and host.name == "frozen":
            desk.set_workers({"b": answers("b", seen)})
        return host

    monkeypatch.setattr(desk, "_choose_worker", least)
    assert asked(desk)[0].reason == "b"


# ---- a verifier worker -------------------------------------------------------------------------------------------------------


class Moody(Verifier):
    """Hangs, raises, waits or judges, as the answer says."""

    def verify(self, task: Task, answer: str) -> Verdict:
        if answer == "hang":
            time.sleep(60)
        if answer == "slow":
            time.sleep(0.2)
        if answer == "raise":
            raise RuntimeError("the judge fell over")
        if answer == "77":
            return Verdict(0.5, "x" * 2_000_000)
        if answer == "88":
            return Verdict(0.5, "judged", components={f"c{n}": 1.0 for n in range(20_000)})
        return Verdict(0.1 + 0.2, "judged", components={"a": 1 / 3})


class World(Environment):
    def __init__(self) -> None:
        self.verifier = Moody()

    def task(self, split: str, index: int) -> Task:
        return TASK


def host(**rollout: Any) -> VerifierWorker:
    return VerifierWorker(tiny_run(env={"name": f"{__file__}:World"}, rollout=rollout))


def test_a_verifier_worker_gives_the_verdict_of_the_verifier_to_the_bit_and_its_errors_as_faults() -> None:
    judge = host()
    for answer in ("4", "raise", "hello"):
        assert asyncio.run(judge.verify(TASK, Transcript(answer))) == verify_transcript_safely(Moody(), TASK, Transcript(answer))
    judge.close()


def test_a_verifier_that_hangs_costs_its_own_verdict_and_no_thread() -> None:
    judge = host(max_concurrent_calls=1, call_timeout_s=0.4)

    async def three() -> list[Verdict]:
        return list(await asyncio.gather(*(judge.verify(TASK, Transcript(answer)) for answer in ("hang", "hang", "4"))))

    *hung, good = asyncio.run(asyncio.wait_for(three(), 30))
    assert {verdict.reason for verdict in hung} == {"the verifier gave no verdict within 0.4 s"} and good.score == 0.1 + 0.2
    judge.close()


def test_an_answer_that_must_be_alone_has_the_next_turn_and_nothing_beside_it() -> None:
    judge = host()

    async def order() -> list[str]:
        ended = list[str]()

        async def ask(name: str, answer: str, alone: bool) -> None:
            while True:
                try:
                    if alone:
                        judge.reserve_exclusively()
                    await judge.verify(TASK, Transcript(answer), alone)
                    return ended.append(name)
                except VerifierBusy:
                    await asyncio.sleep(0.01)

        first = asyncio.ensure_future(ask("first", "slow", False))
        await asyncio.sleep(0.05)
        alone = asyncio.ensure_future(ask("alone", "slow", True))
        await asyncio.sleep(0.05)
        await asyncio.gather(first, alone, ask("later", "4", False))
        return ended

    assert asyncio.run(asyncio.wait_for(order(), 20)) == ["first", "alone", "later"]
    judge.close()


def test_a_host_knows_which_share_of_its_threads_was_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    judge, clock = host(max_concurrent_calls=2), [100.0]
    monkeypatch.setattr("rlvr.cluster.verifier_workers.perf_counter", lambda: clock[0])
    judge._counting_since = judge._counted_until = 100.0
    for more, passed in ((1, 4.0), (2, 2.0), (-3, 2.0)):  # 1, then 3 of 2, then none
        judge._update_count(more)
        clock[0] += passed
    assert judge.take_busy_fraction() == (0.5 * 4 + 1.0 * 2) / 8 and judge.take_busy_fraction() == 0.0
    asyncio.run(judge.verify(TASK, Transcript("4")))
    assert judge._num_running == 0
    judge.close()


def test_a_host_is_kept_for_one_answer_at_a_time_and_not_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    judge, clock = host(), [100.0]
    monkeypatch.setattr("rlvr.cluster.verifier_workers.monotonic", lambda: clock[0])
    judge.reserve_exclusively()
    with pytest.raises(VerifierBusy, match="another exclusive verification is reserved"):
        judge.reserve_exclusively()
    clock[0] += 60  # whoever reserved it was lost
    judge._num_running = 1
    with pytest.raises(VerifierBusy, match="other verifications run here"):
        judge.reserve_exclusively()
    judge._num_running = 0
    judge.reserve_exclusively()  # and not refused for the one that is gone
    assert asyncio.run(judge.verify(TASK, Transcript("4"), True)).score == 0.1 + 0.2
    judge.reserve_exclusively()  # it is free at once
    judge.close()


@pytest.mark.parametrize("limit_s", [5.0, 0.0])
def test_a_host_that_is_lost_before_it_begins_with_an_answer_is_not_lost_by_it(monkeypatch: pytest.MonkeyPatch, limit_s: float) -> None:
    monkeypatch.setattr("rlvr.cluster.verifier_workers.UNREACHABLE_PAUSE_S", 0.0)
    desk, ends = (
        VerifierClient(5.0),
        [
            VerifierLost("a"),
            VerifierLost("b"),
            VerifierLostBeforeVerification("c"),
            VerifierLostBeforeVerification("d"),
            VerifierLostBeforeVerification("e"),
        ],
    )

    async def ask(task: Task, transcript: Transcript, alone: bool) -> Verdict:
        desk.no_worker_timeout_s = limit_s
        if ends:
            raise ends.pop(0)
        return Verdict(1.0, "judged")

    desk.set_workers({"a": ask})
    [verdict] = asked(desk)
    assert verdict.reason == ("judged" if limit_s else "the verification was lost with 3 verifier workers; the last one: c")


class Mortal:
    """A verifier worker that dies, with all that it judges, once it has judged "kill"."""

    def __init__(self, away: float) -> None:
        """`away`: how long a question is under way."""
        self.inner, self.dead, self.away = host(), asyncio.Event(), away

    async def ask(self, task: Task, transcript: Transcript, alone: bool) -> Verdict:
        if alone:
            await asyncio.sleep(self.away)
            if self.dead.is_set():
                raise VerifierLostBeforeVerification("killed")
            self.inner.reserve_exclusively()

        async def judged() -> Verdict:
            found = await self.inner.verify(task, transcript, alone)
            if transcript.answer == "kill":
                self.dead.set()
            return found

        work, death = asyncio.ensure_future(judged()), asyncio.ensure_future(self.dead.wait())
        await asyncio.wait([work, death], return_when=asyncio.FIRST_COMPLETED)
        death.cancel()
        if not self.dead.is_set():
            return work.result()
        work.cancel()
        raise VerifierLost("killed")


@pytest.mark.parametrize("away", [0.0, 0.1])
def test_an_answer_that_ends_its_hosts_costs_no_other_answer_its_score(away: float) -> None:
    """They are lost together twice. The last time each one has its host to itself."""
    desk, hosts = VerifierClient(10.0), list[Mortal]()

    async def all_of_them() -> list[Verdict]:
        said = [asyncio.ensure_future(desk.verify(TASK, Transcript(answer))) for answer in ("slow", "kill", "slow")]
        while not all(one.done() for one in said):
            if not hosts or hosts[-1].dead.is_set():
                hosts.append(Mortal(away))
                desk.set_workers({str(len(hosts)): hosts[-1].ask})
            await asyncio.sleep(0.02)
        return [one.result() for one in said]

    first, killer, last = asyncio.run(asyncio.wait_for(all_of_them(), 40))
    assert first.score == last.score == 0.1 + 0.2
    assert killer.score is None and killer.fault is Fault.INFRA and "was lost with 3 verifier workers" in killer.reason
    for one in hosts:
        one.inner.close()


def test_the_time_of_a_verdict_is_counted_by_its_host_alone() -> None:
    """Its question may wait behind those of other rollout_workers, or for a host that is started again, longer than a verification may take."""
    config = tiny_run(
        env={"name": f"{__file__}:World"},
        rollout={"sampler": {"name": "scripted", "answers": ["4"]}, "call_timeout_s": 0.4},
        cluster={"verifier_workers": 1},
    )
    collector, judge = RolloutWorker(config, WorkerSettings("float32", False, 1, uses_weights=False)), VerifierWorker(config)
    collector.load_weights(0, [])

    async def busy(task: Task, transcript: Transcript, alone: bool) -> Verdict:
        await asyncio.sleep(1.5)  # it has others to judge
        return await judge.verify(task, transcript, alone)

    later = threading.Timer(1.0, lambda: collector.verifier_client.set_workers({"a": busy}))
    later.start()
    data, _ = collector.run_task(0, [RolloutRequest(TASK, "g", 0)], SamplingParams(), 0)
    [[episode]] = decode_episodes(EncodedEpisodes.from_bytes(data))
    assert episode.verdict is not None and episode.verdict.score == 0.1 + 0.2
    later.join()
    for one in (collector, judge):
        one.close()


@pytest.mark.parametrize(
    ("answer", "score", "words"), [("77", 0.5, "x" * 1_000_000), ("88", None, "20000 components")], ids=["a reason", "components"]
)
def test_what_an_answer_makes_too_large_to_send_does_not_look_like_a_lie(answer: str, score: float | None, words: str) -> None:
    """A worker whose episodes the driver refuses is ended, with the work of all other answers that it has."""
    config = tiny_run(env={"name": f"{__file__}:World"}, rollout={"sampler": {"name": "scripted", "answers": [answer]}}, cluster={})
    with closing(RolloutWorker(config, WorkerSettings("float32", False, 1, uses_weights=False))) as collector:
        collector.load_weights(0, [])
        data, _ = collector.run_task(0, [request := RolloutRequest(TASK, "g", 0)], SamplingParams(), 0)
        [[episode]] = decode_episodes(EncodedEpisodes.from_bytes(data))
        limits = EpisodeLimits.from_mdp(collector.rollout.mdp, may_count_own_tokens=False)
        check_task_episodes("1:0", [request], [episode], policy_version=0, limits=limits)
    assert episode.verdict is not None and episode.verdict.score == score and words in episode.verdict.reason


@pytest.mark.parametrize("env", [Sums, Talk])
def test_the_episodes_of_a_collector_are_the_same_with_verifier_workers(env: type[Environment]) -> None:
    found = []
    for judges in (0, 2):
        sampler = {"name": "scripted", "answers": ["4", "7"]}
        config = tiny_run(
            env={"name": f"{Path('tests/fixtures/worlds.py')}:{env.__name__}"},
            rollout={"sampler": sampler, "prompts_per_step": 4, "num_generations": 4},
            cluster={"verifier_workers": judges},
        )
        collector, hosts = (
            RolloutWorker(config, WorkerSettings("float32", False, 1, uses_weights=False)),
            [VerifierWorker(config) for _ in range(judges)],
        )
        collector.verifier_client.set_workers({str(number): one.verify for number, one in enumerate(hosts)})
        collector.load_weights(0, [])
        unit = [RolloutRequest(collector.rollout.mdp.environment.task("train", place), "g", derive_seed(place)) for place in range(20)]
        data, _ = collector.run_task(0, unit, SamplingParams(), 3)
        found.append(decode_episodes(EncodedEpisodes.from_bytes(data)))
        collector.close()
        for one in hosts:
            one.close()
    assert found[0] == found[1] and len({episode.verdict.score for episode in found[0][0] if episode.verdict is not None}) > 1
