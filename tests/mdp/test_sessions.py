"""Sessions: the world of one conversation, opened once, driven by one thread at a time, closed exactly once whatever happens."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from rlvr.contracts import Environment, Session, StepResult, Transcript, Verifier
from rlvr.episode import StopReason
from rlvr.errors import EnvError
from rlvr.mdp.env import TokenEnv
from rlvr.mdp.sessions import LazySession, build_session_record, copy_plain_artifacts, load_recorded_transcript
from rlvr.mdp.token_mdp import ConversationState, TokenMDP
from rlvr.mdp.tokenizers import CharTokenizer
from rlvr.mdp.vector import TokenVectorEnv
from rlvr.task import Fault, Task, Verdict
from rlvr.turns import Turn
from tests.fixtures.boards import Board, Boards
from tests.fixtures.worlds import DIGITS, TOKENS, Match, Talk

TOK = CharTokenizer(DIGITS)
EOS = TOK.eos_id


def say(mdp: TokenMDP, state: ConversationState, *turns: str) -> ConversationState:
    for text in turns:
        mdp.step_turn(state, [*TOK.encode(text), EOS])
    return state


def test_a_session_keeps_its_state_and_its_evidence_is_judged() -> None:
    boards = Boards()
    mdp = TokenMDP(boards, TOK)
    state = say(mdp, mdp.start_conversation(boards.task("train", 10), seed=5), "1", "2", "7")
    assert [heard.messages[0]["content"] for heard in state.step_results[:2]] == ["1", "3"] and state.stop_reason is StopReason.TERMINATED
    verdict = mdp.verify(state)
    assert (verdict.score, verdict.reason) == (1.0, "the board says 10")
    assert boards.opened[0].opened_with == 5 and boards.settled
    ending = state.collected
    assert isinstance(ending, Transcript) and (ending.answer, ending.artifacts) == ("7", {"total": 10, "log": b"x" * 10})
    assert [turn.text for turn in ending.turns] == ["1", "2", "7"] and len(ending.step_results) == 3
    assert mdp.verify(state) == verdict and mdp.build_episode(state, verdict, group="g").text == "7" and len(boards.closed) == 1


def test_the_last_turn_that_is_allowed_is_heard_and_its_effect_counts() -> None:
    boards = Boards(turns=2)
    mdp = TokenMDP(boards, TOK)
    state = say(mdp, mdp.start_conversation(boards.task("train", 4)), "1", "3")
    assert (state.stop_reason, state.truncation_reason) == (StopReason.TRUNCATED, "turns") and mdp.verify(state).score == 1.0
    assert state.step_results[-1].messages[0]["content"] == "4" and TOK.decode(state.tokens[-2:]) == "3"  # recorded, not written


def test_a_turn_that_was_cut_off_is_not_heard_and_may_be_the_answer() -> None:
    boards = Boards()
    mdp = TokenMDP(boards, TOK, max_new_tokens=3)
    state = mdp.start_conversation(boards.task("train", 1))
    mdp.step_turn(state, [*TOK.encode("1"), EOS])
    mdp.step_turn(state, TOK.encode("5"))
    assert (
        state.stop_reason is StopReason.TRUNCATED
        and boards.opened[0].total == 1
        and [turn.finish_reason for turn in state.turns] == ["stop", "length"]
    )
    assert mdp.verify(state).score == 1.0 and mdp.get_verified_answer(state) == "5" and boards.settled


def test_a_conversation_that_was_cut_off_at_once_is_judged_by_an_untouched_world() -> None:
    boards = Boards()
    mdp = TokenMDP(boards, TOK, max_new_tokens=1)
    state = mdp.start_conversation(boards.task("train", 0))
    mdp.step_turn(state, TOK.encode("5"))
    assert boards.opened[0].count == 0 and mdp.verify(state).score == 1.0 and boards.settled and len(boards.opened) == 1


@pytest.mark.parametrize(("what", "method"), [("answer", "select_answer"), ("artifacts", "artifacts")])
def test_what_cannot_be_collected_is_no_score_and_the_session_is_closed(what: str, method: str) -> None:
    def happens(step: str, task: Task, turn: int) -> None:
        if step == what:
            raise RuntimeError("the disk is gone")

    boards = Boards(happens=happens)
    mdp = TokenMDP(boards, TOK)
    verdict = mdp.verify(say(mdp, mdp.start_conversation(boards.task("train", 7)), "7"))
    assert verdict.fault is Fault.INFRA and f"the session's {method}() raised RuntimeError: the disk is gone" in verdict.reason
    assert boards.settled


def test_a_session_that_cannot_be_opened_at_the_end_is_no_score() -> None:
    def happens(step: str, task: Task, turn: int) -> None:
        raise OSError("no room for a box")

    boards = Boards(happens=happens)
    mdp = TokenMDP(boards, TOK, max_new_tokens=1)
    with pytest.raises(OSError, match="no room for a box"):
        mdp.start_conversation(boards.task("train", 7))
    state = mdp.create_state_without_prompt(boards.task("train", 7))
    mdp.render_prompt(state)
    mdp.step_turn(state, TOK.encode("7"))
    verdict = mdp.verify(state)
    assert verdict.fault is Fault.INFRA and "Boards.new_session raised OSError: no room for a box" in verdict.reason


def test_what_goes_wrong_while_a_session_is_closed_leaves_the_verdict_alone() -> None:
    def happens(step: str, task: Task, turn: int) -> None:
        if step == "close":
            raise RuntimeError("it does not go away")

    boards = Boards(happens=happens)
    mdp = TokenMDP(boards, TOK)
    state = say(mdp, mdp.start_conversation(boards.task("train", 7)), "7")
    verdict = mdp.verify(state)
    state.close()
    assert verdict.score == 1.0 and len(boards.closed) == 1
    trouble = mdp.build_episode(state, verdict, group="g").meta["trouble"]
    assert trouble == "Board.close raised RuntimeError: it does not go away"


class Hoards(Boards):
    """A world whose files are as large as the policy makes them."""

    def new_session(self, task: Task, *, seed: int) -> Session:
        board = super().new_session(task, seed=seed)
        board.max_artifact_bytes = 28  # type: ignore[misc]
        return board


def test_evidence_that_is_too_large_is_the_answer_s_fault() -> None:
    boards = Hoards()
    mdp = TokenMDP(boards, TOK)
    fits = mdp.verify(say(mdp, mdp.start_conversation(boards.task("train", 14)), "77"))
    large = mdp.verify(say(mdp, mdp.start_conversation(boards.task("train", 21)), "777"))
    assert fits.score == 1.0
    assert (large.score, large.fault) == (0.0, Fault.ANSWER) and "left 31 bytes of artifacts; at most 28 are allowed" in large.reason
    assert boards.settled


@pytest.mark.parametrize("evidence", [["a"], {1: "a"}, {"a": {1, 2}}, {"a": float("nan")}, {"a": [b"bytes"]}, None])
def test_evidence_is_names_with_json_and_bytes(evidence: Any) -> None:
    with pytest.raises((TypeError, ValueError)):
        copy_plain_artifacts(evidence)


def test_evidence_is_a_copy_that_nobody_can_change() -> None:
    moves, raw = [1, [2]], bytearray(b"ab")
    kept = copy_plain_artifacts({"moves": moves, "raw": raw})
    moves.append(3)
    raw[0] = 0
    assert kept == {"moves": [1, [2]], "raw": b"ab"} and json.dumps(kept["moves"])


class Wrong(Boards):
    """Opens what is no session, or one that hears what is no answer."""

    def __init__(self, opened: Any) -> None:
        super().__init__()
        self.made = opened

    def new_session(self, task: Task, *, seed: int) -> Session:
        made: Session = self.made
        return made


class Mumbler(Session):
    def step(self, turn: Turn) -> StepResult | None:
        said: Any = "higher"
        return said


@pytest.mark.parametrize(
    ("opened", "told"), [("box", "new_session returned 'box'; it must be an rlvr.Session"), (Mumbler(), "step returned 'higher'")]
)
def test_what_is_no_session_or_no_answer_is_refused(opened: Any, told: str) -> None:
    environment = Wrong(opened)
    mdp = TokenMDP(environment, TOK)
    if opened == "box":
        with pytest.raises(TypeError, match=told):
            mdp.start_conversation(environment.task("train", 1))
        return
    verdict = mdp.verify(say(mdp, mdp.start_conversation(environment.task("train", 1)), "1"))
    assert verdict.fault is Fault.INFRA and told in verdict.reason


def test_an_answer_of_the_world_that_says_nothing_must_end_the_conversation() -> None:
    assert StepResult(done=True).messages == ()
    with pytest.raises(ValueError, match="does not end the conversation"):
        StepResult()


@pytest.mark.parametrize(
    "message", ["hi", {"role": "user"}, {"role": "", "content": "hi"}, {"role": "user", "content": 7}, {"content": "hi"}]
)
def test_a_message_of_a_session_has_a_role_and_a_text(message: Any) -> None:
    with pytest.raises(ValueError, match="a message of a session is"):
        StepResult((message,))


class Says(Talk):
    """Replies with a fixed text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = text

    def reply(self, task: Task, completions: Sequence[str]) -> str | None:
        return self.text


def test_lone_surrogates_in_a_reply_are_replaced_and_recorded() -> None:
    environment = Says("1\ud8002")
    mdp = TokenMDP(environment, TOK)
    state = say(mdp, mdp.start_conversation(environment.task("train", 1)), "1")
    assert state.step_results[0].messages[0]["content"] == "1\ufffd2" and state.stop_reason is None
    trouble = mdp.build_episode(say(mdp, state, "1", "7"), Verdict(1.0, "fine"), group="g").meta["trouble"]
    assert "lone surrogates" in trouble and trouble.isascii()


def test_of_a_reply_that_cannot_fit_only_the_beginning_is_encoded(monkeypatch: pytest.MonkeyPatch) -> None:
    encoded, encode = list[int](), TOK.encode

    def spied(text: str) -> list[int]:
        encoded.append(len(text))
        return encode(text)

    monkeypatch.setattr(TOK, "encode", spied)
    environment = Says("1" * 3_000_000)
    mdp = TokenMDP(environment, TOK)
    state = say(mdp, mdp.start_conversation(environment.task("train", 1)), "1")
    assert (state.stop_reason, state.truncation_reason) == (StopReason.TRUNCATED, "window") and max(encoded) < 5_000


def test_a_session_that_is_closed_while_a_thread_is_in_it_is_closed_when_the_thread_comes_back() -> None:
    inside, go = threading.Event(), threading.Event()

    def happens(step: str, task: Task, turn: int) -> None:
        if step == "step":
            inside.set()
            assert go.wait(20)

    boards = Boards(happens=happens)
    lease = LazySession(boards, boards.task("train", 1), seed=0)
    thread = threading.Thread(target=lease.step, args=(Turn("1"),))
    thread.start()
    assert inside.wait(20)
    with pytest.raises(EnvError, match="in use by another thread"):
        lease.open()
    lease.close()
    lease.close()
    assert not boards.closed
    with pytest.raises(EnvError, match="is closed"):
        lease.open()
    go.set()
    thread.join(20)
    assert boards.settled and len(boards.closed) == 1


def test_a_session_that_is_closed_while_it_is_opened_is_closed_too() -> None:
    inside, go = threading.Event(), threading.Event()

    def happens(step: str, task: Task, turn: int) -> None:
        if step == "new_session":
            inside.set()
            assert go.wait(20)

    boards = Boards(happens=happens)
    lease = LazySession(boards, boards.task("train", 1), seed=0)
    thread = threading.Thread(target=lease.open)
    thread.start()
    assert inside.wait(20)
    lease.close()
    go.set()
    thread.join(20)
    assert boards.settled and len(boards.closed) == 1


def test_ctrl_c_in_a_session_leaves_it_to_be_closed_once() -> None:
    def happens(step: str, task: Task, turn: int) -> None:
        if step == "step":
            raise KeyboardInterrupt

    boards = Boards(happens=happens)
    env = TokenEnv(env=boards, tokenizer=TOKENS)
    env.reset(options={"index": 1})
    with pytest.raises(KeyboardInterrupt):
        env.step(EOS)
    env.close()
    env.close()
    assert boards.settled and len(boards.closed) == 1


def test_an_environment_of_tokens_opens_at_reset_and_closes_at_the_end_at_reset_and_at_close() -> None:
    boards = Boards()
    env = TokenEnv(env=boards, tokenizer=TOKENS)
    env.reset(options={"index": 8})
    assert len(boards.opened) == 1 and not boards.closed
    for token in [*TOK.encode("1"), EOS, *TOK.encode("7")]:
        env.step(token)
    _, reward, terminated, _, info = env.step(EOS)
    assert (reward, terminated, info["text"]) == (1.0, True, "7") and boards.settled
    env.reset(options={"index": 8})
    env.step(TOK.encode("1")[0])
    env.reset(options={"index": 9})
    assert len(boards.opened) == 3 and len(boards.closed) == 2
    env.close()
    assert boards.settled and len(boards.closed) == 3


def test_vector_environments_close_the_sessions_of_all() -> None:
    boards = Boards()
    envs = TokenVectorEnv(3, env=boards, tokenizer=TOKENS, obs="ids")
    envs.reset(seed=1)
    one = TOK.encode("1")[0]
    envs.step([EOS, one, one])
    envs.step([one, EOS, one])
    envs.close()
    assert boards.settled and len(boards.opened) == 4


def test_render_shows_what_the_session_answered() -> None:
    env = TokenEnv(env=Boards(), tokenizer=TOKENS, render_mode="ansi")
    env.reset(options={"index": 8})
    for token in [*TOK.encode("1"), EOS]:
        env.step(token)
    assert str(env.render()).splitlines()[:3] == ["user: 8=", "policy: 1", "env: 1"]


class Listens(Match):
    """Looks at what was said in all turns."""

    def verify_transcript(self, task: Task, transcript: Transcript) -> Verdict:
        return self.verify(task, "".join(turn.text for turn in transcript.turns))


@pytest.mark.parametrize(("verifier", "score"), [(Match(), 1.0), (Listens(), 1.0)])
def test_an_environment_without_a_world_needs_nothing_new(verifier: Verifier, score: float) -> None:
    environment: Environment = Talk(verifier=verifier)
    mdp = TokenMDP(environment, TOK)
    state = say(mdp, mdp.start_conversation(environment.task("train", 17)), "1", "7")
    assert mdp.verify(state).score == score and [bool(heard.done) for heard in state.step_results] == [False, True]


class Counted(Verifier):
    """Shows what it was given."""

    def __init__(self) -> None:
        self.seen = list[Mapping[str, Any]]()

    def verify(self, task: Task, answer: str) -> Verdict:
        return Verdict(0.0, answer)

    def verify_transcript(self, task: Task, transcript: Transcript) -> Verdict:
        self.seen.append(transcript.artifacts)
        return Verdict(1.0, transcript.answer)


def test_parts_of_a_composite_see_the_evidence() -> None:
    from rlvr.registry.plugins import build

    composite = build("verifier", "composite")
    part = Counted()
    composite.components = {"part": part}
    composite.weights = {"part": 1.0}
    verdict = composite.verify_transcript(Task(({"role": "user", "content": "?"},), "4", id="t"), Transcript("4", {"total": 4}))
    assert verdict.score == 1.0 and part.seen == [{"total": 4}]


def test_the_sessions_of_one_environment_do_not_see_each_other() -> None:
    boards = Boards()
    mdp = TokenMDP(boards, TOK)
    states = [mdp.start_conversation(boards.task("train", index)) for index in (8, 9)]
    for text in ("1", "7"):
        for state in states:
            say(mdp, state, text)
    scores: Sequence[float | None] = [mdp.verify(state).score for state in states]
    assert scores == [1.0, 0.0] and boards.settled


@pytest.mark.parametrize("value", [float("nan"), 10**5000], ids=["nan", "long"])
@pytest.mark.parametrize("always", [True, False])
def test_artifacts_that_cannot_be_stored_are_a_fault_of_the_world_unless_only_this_answer_leaves_them(value: Any, always: bool) -> None:
    class OddBoard(Board):
        def artifacts(self) -> Mapping[str, Any]:
            return {**super().artifacts(), "value": value if always or self.total == 6 else 0}

    class OddBoards(Boards):
        def new_session(self, task: Task, *, seed: int) -> Session:
            return OddBoard(self, task, seed)

    boards = OddBoards()
    mdp = TokenMDP(boards, TOK)
    verdict = mdp.verify(say(mdp, mdp.start_conversation(boards.task("train", 13)), "6", "+"))
    assert (verdict.score, verdict.fault) == ((None, Fault.INFRA) if always else (0.0, Fault.ANSWER))
    assert "artifacts() cannot be stored" in verdict.reason


def test_a_recorded_session_is_judged_with_its_evidence() -> None:
    boards = Boards()
    lease = LazySession(boards, boards.task("train", 1), seed=7)
    ending = load_recorded_transcript(
        build_session_record(lease, [Turn("4", content="4")], [StepResult(done=True)], Transcript("4", {"log": b"x", "n": 3}))
    )
    assert isinstance(ending, Transcript) and (ending.answer, ending.artifacts) == ("4", {"log": b"x", "n": 3})
