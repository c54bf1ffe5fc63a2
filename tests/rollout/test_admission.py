"""Admission: who waits holds nothing, and whoever holds a thing can always finish. So there is no state in which all wait."""

from __future__ import annotations

import asyncio
import heapq
import math
import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest

from rlvr.contracts import CapacityLimiter, ExecutionResult, Program, Sandbox, SandboxSession, SandboxSpec, Session
from rlvr.contracts.admission import Permit, await_permit, request_permit, wait_for_permit, withdraw_request
from rlvr.errors import ConfigError, SandboxError
from rlvr.integrations.texts import TextConversationFactory
from rlvr.mdp.vector import TokenVectorEnv
from rlvr.samplers.scripted import ScriptedSampler
from rlvr.sandbox._outside.sessions import SessionPool
from rlvr.sandbox._outside.supervisor_connection import SupervisorConnection
from rlvr.task import Task
from tests.fixtures.boards import Board, Boards
from tests.rollout.test_sessions import STOPS, draws, rollout_of

# ---- a model: the real admission over virtual time


@dataclass
class Talk:
    """One conversation of the model: what it needs for its whole time, and how long each part takes."""

    number: int
    needs: list[CapacityLimiter]
    steps: list[float]
    verify_s: float = 0.0
    verifies_in: CapacityLimiter | None = None
    """The verifier opens a session of its own: it waits in its thread, and goes first."""
    given_up_at: float = math.inf
    permit: Permit | None = None
    is_done: bool = False


@dataclass
class Model:
    """A rollout in virtual time. Session calls need one of `threads`, verifications one of `verify_threads`; both are waited for with what
    the conversation holds, as in the scheduler.
    """

    threads: int
    verify_threads: int
    talks: list[Talk]
    now: float = 0.0
    events: list[tuple[float, int, Callable[[], None]]] = field(default_factory=list)
    queues: dict[str, list[Callable[[], None]]] = field(default_factory=lambda: {"session": [], "verify": []})
    count: int = 0

    def at(self, time: float, then: Callable[[], None]) -> None:
        self.count += 1
        heapq.heappush(self.events, (time, self.count, then))

    def in_thread(self, kind: str, work: Callable[[Callable[[], None]], None]) -> None:
        """Run a job in a thread of a kind; the job calls its argument at its end."""

        def start() -> None:
            work(lambda: self.free_thread(kind))

        self.queues[kind].append(start)
        self.start_jobs(kind)

    def free_thread(self, kind: str) -> None:
        if kind == "session":
            self.threads += 1
        else:
            self.verify_threads += 1
        self.start_jobs(kind)

    def start_jobs(self, kind: str) -> None:
        while self.queues[kind] and (self.threads if kind == "session" else self.verify_threads):
            if kind == "session":
                self.threads -= 1
            else:
                self.verify_threads -= 1
            self.queues[kind].pop(0)()

    def begin(self, talk: Talk) -> None:
        request = request_permit(talk.needs)
        request.add_done_callback(lambda done: None if done.cancelled() else self.at(self.now, partial(self.admitted, talk, done)))
        if talk.given_up_at < math.inf:
            self.at(talk.given_up_at, partial(self.give_up, talk, request))

    def give_up(self, talk: Talk, request: Future[Permit]) -> None:
        if talk.permit is None and not talk.is_done:
            withdraw_request(request)
            talk.is_done = True

    def admitted(self, talk: Talk, request: Future[Permit]) -> None:
        if not talk.is_done:
            talk.permit = request.result()
            self.step(talk, 0)

    def step(self, talk: Talk, number: int) -> None:
        def run(free: Callable[[], None]) -> None:
            def end() -> None:
                free()
                self.at(self.now + talk.steps[number] / 2, lambda: self.step(talk, number + 1))  # the sampler's time

            self.at(self.now + talk.steps[number], end)

        if number < len(talk.steps):
            self.in_thread("session", run)
            return
        assert talk.permit is not None
        for limiter in talk.needs[1:]:  # the session is closed before it is verified; the place among the open ones is kept
            assert talk.permit.take_granted(limiter)
            limiter.release()
        self.in_thread("verify", partial(self.verify, talk))

    def verify(self, talk: Talk, free: Callable[[], None]) -> None:
        def end(permit: Permit | None) -> None:
            if permit:
                permit.release_untaken()
            free()
            assert talk.permit is not None
            talk.permit.release_untaken()
            talk.is_done = True

        def run(permit: Permit | None) -> None:
            self.at(self.now + talk.verify_s, lambda: end(permit))

        if talk.verifies_in is None:
            run(None)
        else:
            request_permit([talk.verifies_in], first=True).add_done_callback(lambda done: run(done.result()))

    def run(self, limiters: Sequence[CapacityLimiter]) -> float:
        for talk in self.talks:
            self.begin(talk)
        while self.events:
            self.now, _, then = heapq.heappop(self.events)
            then()
            for limiter in limiters:
                assert 0 <= limiter.num_held <= limiter.capacity
        assert all(talk.is_done for talk in self.talks), "conversations wait, and nothing more happens"
        assert not any(limiter.num_held for limiter in limiters)
        return self.now


def draw_model(seed: int) -> tuple[Model, list[CapacityLimiter]]:
    dice = random.Random(seed)
    limiters = [CapacityLimiter(dice.randint(1, 6), f"thing {i}") for i in range(dice.randint(1, 4))]
    talks, hardest = [], dice.choice([1, 2, 4])
    for number in range(dice.choice([3, 8, 60])):
        needs = [limiters[0], *dice.sample(limiters[1:], min(len(limiters) - 1, dice.randrange(hardest)))]
        if limiters[0].capacity > 1 and dice.random() < 0.1:
            needs.insert(1, limiters[0])  # two of a kind
        talk = Talk(number, needs, [dice.expovariate(1.0) for _ in range(dice.randrange(4))], dice.expovariate(2.0))
        if len(limiters) > 1 and dice.random() < 0.5:
            talk.verifies_in = dice.choice(limiters[1:])
        if dice.random() < 0.1:
            talk.given_up_at = 5 * dice.random()
        talks.append(talk)
    return Model(dice.randint(1, 5), dice.randint(1, 5), talks), limiters


@pytest.mark.slow
@pytest.mark.parametrize("part", range(4))
def test_there_is_no_state_in_which_all_wait(part: int) -> None:
    for seed in range(1000 * part, 1000 * (part + 1)):
        model, limiters = draw_model(seed)
        model.run(limiters)


@pytest.mark.slow
def test_no_unit_is_idle_while_somebody_waits_for_it() -> None:
    """The bound of a schedule without idle units: all work by the number of units, and the longest conversation."""
    for seed in range(200):
        dice = random.Random(seed)
        boxes, count = dice.randint(1, 64), dice.randint(1, 300)
        limiters = [CapacityLimiter(1000, "place"), CapacityLimiter(boxes, "session")]
        talks = [Talk(number, limiters, [dice.expovariate(1.0) for _ in range(3)]) for number in range(count)]
        lengths = [1.5 * sum(talk.steps) for talk in talks]
        assert Model(1000, 1000, talks).run(limiters) <= sum(lengths) / boxes + max(lengths) + 1e-6


def test_the_model_finds_a_deadlock_where_one_thing_is_waited_for_with_another_held() -> None:
    """The model can fail: conversations that hold a unit and wait for a second one in their step never end."""
    limiter = CapacityLimiter(2, "thing")

    class Greedy(Model):
        def admitted(self, talk: Talk, request: Future[Permit]) -> None:
            talk.permit = request.result()
            request_permit([limiter]).add_done_callback(lambda more: self.go_on(talk, more))

        def go_on(self, talk: Talk, more: Future[Permit]) -> None:
            more.result().release_untaken()
            self.step(talk, 0)

    with pytest.raises(AssertionError, match="nothing more happens"):
        Greedy(4, 4, [Talk(i, [limiter], [1.0]) for i in range(2)]).run([limiter])


# ---- the pieces


def test_all_units_come_together_or_none() -> None:
    left, right = CapacityLimiter(1, "left"), CapacityLimiter(1, "right")
    holder = request_permit([right]).result()
    both, other = request_permit([left, right]), request_permit([left])
    assert not both.done() and other.done()  # who waits for both holds neither
    holder.release_untaken()
    assert not both.done()
    other.result().release_untaken()
    assert both.done() and (left.num_held, right.num_held) == (1, 1)
    both.result().release_untaken()
    with pytest.raises(ConfigError, match="2 lefts are needed at once, and there are 1"):
        request_permit([left, left])


def test_first_come_first_served_and_who_holds_a_thread_goes_first() -> None:
    limiter, order = CapacityLimiter(1, "thing"), list[str]()
    holder = request_permit([limiter]).result()

    def serve(name: str, done: Future[Permit]) -> None:
        order.append(name)
        done.result().release_untaken()

    for name in "abc":
        request_permit([limiter]).add_done_callback(partial(serve, name))
    request_permit([limiter], first=True).add_done_callback(partial(serve, "thread"))
    gone = request_permit([limiter])
    withdraw_request(gone)
    holder.release_untaken()
    assert order == ["thread", "a", "b", "c"] and limiter.num_held == 0


def test_what_is_not_taken_is_released_and_a_released_permit_gives_nothing() -> None:
    limiter = CapacityLimiter(2, "thing")
    with request_permit([limiter, limiter]).result() as permit:
        limiter.acquire()
        assert limiter.num_held == 2  # one is taken, and the permit has the other
    assert limiter.num_held == 1
    permit.release_untaken()
    with pytest.raises(SandboxError, match="ended before it had its thing"):
        permit.take_granted(limiter)
    limiter.release()
    assert limiter.num_held == 0


def test_waits_end_at_the_timeout_and_when_the_limiter_is_closed() -> None:
    limiter = CapacityLimiter(1, "thing", timeout_s=0.05, hint="raise it")
    with wait_for_permit([limiter]):
        with pytest.raises(SandboxError, match="no thing became free within 0 s; all 1 are open: raise it"):
            wait_for_permit([limiter])
        with pytest.raises(SandboxError, match="no thing became free"):
            asyncio.run(await_permit([limiter]))
        waiting = request_permit([limiter])
        limiter.close("it is closed")
        with pytest.raises(SandboxError, match="it is closed"):
            waiting.result(1)
    with pytest.raises(SandboxError, match="it is closed"):
        request_permit([limiter]).result(1)
    assert limiter.num_held == 0


# ---- rollouts with a sandbox


class FakeSupervisor(SupervisorConnection):
    """A supervisor that does nothing."""

    handshake: Mapping[str, Any] = {"isolation": ()}

    def request(self, header: Mapping[str, Any], parts: Mapping[str, bytes], deadline: float) -> tuple[dict[str, Any], dict[str, bytes]]:
        return {"fatal": "", "error": ""}, {}

    def send(self, data: bytes, deadline: float) -> None: ...

    def receive(self, buffer: memoryview, deadline: float) -> int:
        return 0

    def is_alive(self) -> bool:
        return True

    def shut_down(self) -> None: ...

    def close(self) -> None: ...


class FakeSandbox(Sandbox):
    """The real pool of sessions, over supervisors that do nothing."""

    def __init__(self, max_sessions: int, queue_timeout_s: float = 30.0) -> None:
        self.pool = SessionPool[FakeSupervisor](lambda spec: FakeSupervisor(), max_sessions, queue_timeout_s)

    def run_program(self, program: Program) -> ExecutionResult:
        raise AssertionError("no program is run")

    @property
    def session_limiter(self) -> CapacityLimiter | None:
        return self.pool.limiter

    def create_session(self, spec: SandboxSpec | None = None) -> SandboxSession:
        return self.pool.open_session(spec or SandboxSpec())


class BoxedBoard(Board):
    """A board with a sandbox session of its own."""

    box: SandboxSession | None = None

    def start_tools(self) -> Sequence[Any]:
        assert self.boards.sandbox
        self.box = self.boards.sandbox.create_session()
        return ()

    def close(self) -> None:
        super().close()
        if self.box:
            self.box.close()


class BoxedBoards(Boards):
    """Boards whose sessions hold a sandbox session each."""

    def __init__(self, sandbox: FakeSandbox, **options: Any) -> None:
        super().__init__(**options)
        self.sandbox = sandbox

    def new_session(self, task: Task, *, seed: int) -> Session:
        board = BoxedBoard(self, task, seed)
        with self.lock:
            self.opened.append(board)
        return board


@pytest.mark.parametrize(("boxes", "actors", "places"), [(2, 2, 256), (1, 1, 256), (3, 1, 2), (1, 8, 4), (8, 2, 256)])
def test_more_conversations_than_boxes_and_threads_together_all_end(boxes: int, actors: int, places: int) -> None:
    most, lock = [0], threading.Lock()
    sandbox = FakeSandbox(boxes)

    def happens(what: str, task: Task, turn: int) -> None:
        with lock:
            most[0] = max(most[0], len(sandbox.pool.list_session_ids()))

    boards, began = BoxedBoards(sandbox, happens=happens), time.monotonic()
    options = {"session_workers": actors, "max_open_sessions": places, "call_timeout_s": 3.0}
    with rollout_of(boards, ScriptedSampler(answers=["1", "2", "7"]), **options) as rollout:
        episodes = rollout.collect(draws(boards, boxes + actors + 30), STOPS)
        assert rollout.timing.max_open_sessions <= places
    assert all(episode.is_scored for episode in episodes), {episode.error for episode in episodes}
    assert most[0] <= boxes and boards.settled and time.monotonic() - began < 20
    assert sandbox.pool.limiter.num_held == 0


def test_two_rollouts_share_a_sandbox() -> None:
    sandbox, scored = FakeSandbox(2), list[bool]()

    def run() -> None:
        boards = BoxedBoards(sandbox)
        with rollout_of(boards, ScriptedSampler(answers=["1", "7"]), session_workers=1, call_timeout_s=3.0) as rollout:
            scored.extend(episode.is_scored for episode in rollout.collect(draws(boards, 20), STOPS))

    threads = [threading.Thread(target=run) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert scored == [True] * 60 and sandbox.pool.limiter.num_held == 0


@pytest.mark.parametrize("left", [0, 3, 12])
def test_a_rollout_that_is_left_early_or_fails_gives_everything_back(left: int) -> None:
    sandbox = FakeSandbox(3)

    def happens(what: str, task: Task, turn: int) -> None:
        if what == "step" and task.id.endswith(("3", "8")):
            raise RuntimeError("the board fell")

    boards = BoxedBoards(sandbox, happens=happens)
    with rollout_of(boards, ScriptedSampler(answers=["1", "7"]), session_workers=2) as rollout:
        stream = rollout.stream_episodes(draws(boards, 24), STOPS)
        for _ in range(left):
            next(stream)
        stream.close()
        episodes = rollout.collect(draws(boards, 10), STOPS)
    assert sum(episode.is_scored for episode in episodes) == 8
    until = time.monotonic() + 10
    while sandbox.pool.limiter.num_held and time.monotonic() < until:
        time.sleep(0.01)
    assert sandbox.pool.limiter.num_held == 0 and boards.settled


def test_boxes_that_others_keep_are_not_waited_for_without_end() -> None:
    sandbox = FakeSandbox(1, queue_timeout_s=0.3)
    kept = sandbox.create_session()
    boards = BoxedBoards(sandbox)
    with rollout_of(boards, ScriptedSampler(answers=["7"])) as rollout:
        episodes = rollout.collect(draws(boards, 3), STOPS)
        assert {episode.error for episode in episodes} == {
            "no session became free within 0 s; all 1 are open: close some, or raise the sandbox's setting `max_sessions`"
        }
        kept.close()
        assert all(episode.is_scored for episode in rollout.collect(draws(boards, 3), STOPS))


def test_conversations_of_other_trainers_leave_the_threads_to_the_open_ones() -> None:
    boards = BoxedBoards(FakeSandbox(2))

    async def play(world: TextConversationFactory, index: int) -> float | None:
        talk = await world.start_conversation_async(boards.task("train", index))
        while not talk.done:
            await asyncio.to_thread(talk.step_text, "7")
        return (await asyncio.to_thread(talk.finish_and_verify)).score

    async def play_all() -> list[float | None]:
        with TextConversationFactory(boards, workers=2, call_timeout_s=3.0) as world:
            return await asyncio.wait_for(asyncio.gather(*(play(world, index) for index in range(12))), 20)

    assert asyncio.run(play_all()) == [float(index == 7) for index in range(12)]


def test_a_vector_of_more_environments_than_boxes_is_refused_at_once() -> None:
    with pytest.raises(ConfigError, match="num_envs is 3, and there are 2 sessions; close some, or raise the sandbox's setting"):
        TokenVectorEnv(3, env=BoxedBoards(FakeSandbox(2)), tokenizer="bytes")
