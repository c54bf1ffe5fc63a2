"""One rule for own zeros: a failure that only this answer causes is its 0; a failure that a control shares is no score."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

import rlvr
from rlvr.contracts import Environment, SamplingParams, Session, StepResult, ToolSession, Transcript, Verifier
from rlvr.contracts.fault_rule import CONTROL_ROUNDS, AnswerAtFault, aretry_and_attribute_failure, retry_and_attribute_failure
from rlvr.contracts.tool import Tool, ToolExample, tool
from rlvr.errors import SandboxOutage
from rlvr.integrations.texts import FinalTextVerifier
from rlvr.mdp.answer_faults import FAILURE
from rlvr.mdp.env import TokenEnv
from rlvr.mdp.sessions import ReplayedSession
from rlvr.mdp.token_mdp import TokenMDP
from rlvr.mdp.tokenizers import load_tokenizer
from rlvr.rollout.rollout import Rollout, RolloutRequest
from rlvr.samplers.scripted import ScriptedSampler
from rlvr.task import Fault, StepReward, Task, Verdict
from rlvr.turns import Turn

TOK = load_tokenizer("bytes")
Happens = Callable[[str, Sequence[str]], None]


class World(Session):
    """Writes down what it hears; `happens` may raise."""

    def __init__(self, happens: Happens) -> None:
        self.happens, self.heard = happens, list[str]()

    def step(self, turn: Turn) -> StepResult | None:
        self.heard.append(turn.text)
        self.happens("step", self.heard)
        return None if turn.text == "end" else StepResult(({"role": "user", "content": "go on"},))

    def select_answer(self, turns: Sequence[Turn]) -> str:
        self.happens("answer", self.heard)
        return super().select_answer(turns)

    def artifacts(self) -> Mapping[str, Any]:
        self.happens("artifacts", self.heard)
        return {"heard": list(self.heard)}


class Heard(Verifier):
    """1 for a world that heard "win"."""

    def __init__(self, happens: Happens) -> None:
        self.happens = happens

    def verify(self, task: Task, answer: str) -> Verdict:
        return Verdict(0.0, "words")

    def verify_transcript(self, task: Task, transcript: Transcript) -> Verdict:
        self.happens("verify", transcript.artifacts["heard"])
        return Verdict(float("win" in transcript.artifacts["heard"]), "listened")


class Worlds(Environment):
    """Say win, then end."""

    max_turns, max_prompt_tokens, max_new_tokens = 4, 40, 60

    def __init__(self, happens: Happens = lambda what, heard: None, *, known: bool = True) -> None:
        self.happens, self.known, self.num_opened = happens, known, 0
        self.verifier = Heard(happens)

    def task(self, split: str, index: int) -> Task:
        return Task("speak", "win", id=f"worlds/{split}/{index}")

    def oracle_turns(self, task: Task) -> Sequence[str] | None:
        return ["win", "end"] if self.known else None

    def new_session(self, task: Task, *, seed: int) -> Session:
        self.num_opened += 1
        return World(self.happens)


def play(environment: Environment, *turns: str) -> Verdict:
    mdp = TokenMDP(environment, TOK)
    state = mdp.start_conversation(environment.task("train", 0), seed=3)
    for text in turns:
        if state.stop_reason is None:
            mdp.step_turn(state, [*TOK.encode(text), TOK.eos_id])
    return mdp.verify(state)


def breaks_on(where: str, when: Callable[[Sequence[str]], bool]) -> Happens:
    def happens(what: str, heard: Sequence[str]) -> None:
        if what == where and when(heard):
            raise KeyError(heard[-1] if heard else "nothing")

    return happens


PLACES = ["step", "answer", "artifacts", "verify"]


@pytest.mark.parametrize("where", PLACES)
@pytest.mark.parametrize("known", [True, False])
def test_what_only_this_answer_breaks_is_its_own_0(where: str, known: bool) -> None:
    environment = Worlds(breaks_on(where, lambda heard: "boom" in heard), known=known)
    verdict = play(environment, "boom", "end")
    assert (verdict.score, verdict.fault) == (0.0, Fault.ANSWER), verdict
    assert "raised KeyError" in verdict.reason and verdict.detail[FAILURE] in verdict.reason
    assert play(environment, "win", "end").score == 1.0


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise TypeError("no text")


@pytest.mark.parametrize("where", PLACES)
def test_an_exception_whose_text_raises_is_an_own_0_like_any_other(where: str) -> None:
    def happens(what: str, heard: Sequence[str]) -> None:
        if what == where and "boom" in heard:
            raise Unspeakable

    verdict = play(Worlds(happens), "boom", "end")
    assert (verdict.score, verdict.fault) == (0.0, Fault.ANSWER) and "Unspeakable: (its text cannot be shown)" in verdict.reason


@pytest.mark.parametrize("where", PLACES)
@pytest.mark.parametrize("known", [True, False])
def test_what_is_broken_for_everybody_is_no_score(where: str, known: bool) -> None:
    verdict = play(Worlds(breaks_on(where, lambda heard: True), known=known), "boom", "end")
    assert (verdict.score, verdict.fault) == (None, Fault.INFRA) and "raised KeyError" in verdict.reason


@pytest.mark.parametrize("where", PLACES)
def test_an_outage_that_ends_is_no_0(where: str) -> None:
    asked = list[str]()

    def happens(what: str, heard: Sequence[str]) -> None:
        if what == where and "boom" in heard:
            asked.append(what)
            if len(asked) == 1:
                raise OSError("the line is down")

    verdict = play(Worlds(happens), "boom", "end")
    assert verdict.fault is not Fault.ANSWER and verdict.score == (0.0 if where == "verify" else None)


@pytest.mark.parametrize("where", ["step", "verify"])
def test_a_sandbox_that_stays_away_stops_a_run(where: str) -> None:
    def happens(what: str, heard: Sequence[str]) -> None:
        if what == where:
            raise SandboxOutage("no engine")

    with pytest.raises(SandboxOutage):
        play(Worlds(happens), "boom", "end")


def test_a_rollout_and_the_gymnasium_environment_follow_the_rule() -> None:
    environment = Worlds(breaks_on("step", lambda heard: "boom" in heard))
    sampler = ScriptedSampler(answers=["win", "boom"])
    sampler.setup(environment, TOK)
    mdp = TokenMDP(environment, TOK)
    with Rollout(mdp, sampler=sampler) as rollout:
        (episode,) = rollout.collect([RolloutRequest(environment.task("train", 0), "g", 0)], SamplingParams(stop_ids=TOK.stop_ids))
    assert episode.is_scored and episode.reward == 0.0 and episode.verdict is not None and episode.verdict.fault is Fault.ANSWER
    record = episode.meta["session"]
    assert record["verdict"]["score"] == 0.0, "a replay needs no new experiment"
    before = environment.num_opened
    again = mdp.start_conversation(environment.task("train", 0), session=ReplayedSession(record))
    for text in ("win", "boom"):
        mdp.step_turn(again, [*TOK.encode(text), TOK.eos_id])
    assert mdp.verify(again) == Verdict(0.0, episode.verdict.reason, fault=Fault.ANSWER) and environment.num_opened == before
    env = TokenEnv(env=environment, tokenizer="bytes")
    env.reset(seed=0)
    _, reward, terminated, truncated, info = env.step("boom")
    assert (reward, terminated, truncated, info["fault"]) == (0.0, True, False, "answer")


class ByTurns(Worlds):
    """Pays for a turn with a number, and trips over others."""

    def __init__(self, *, always: bool = False) -> None:
        super().__init__()
        self.always = always

    def step_rewards_for_turns(self, task: Task, turns: Sequence[Turn], verdict: Verdict) -> Sequence[StepReward]:
        if self.always or any(turn.text == "boom" for turn in turns):
            raise IndexError("no such turn")
        return [StepReward(verdict.score or 0.0)]


def test_step_rewards_follow_the_rule() -> None:
    assert play(ByTurns(), "win", "end").score == 1.0
    assert play(ByTurns(), "boom", "win", "end").fault is Fault.ANSWER
    assert play(ByTurns(always=True), "win", "end").fault is Fault.INFRA


class Awaited(Verifier):
    """Its verdict is awaited, and it trips over a text."""

    def verify(self, task: Task, answer: str) -> Verdict:
        if answer == "boom" or task.reference == "broken":
            raise KeyError(answer)
        return Verdict(1.0, "fine")

    async def averify(self, task: Task, answer: str) -> Verdict:
        await asyncio.sleep(0)
        return self.verify(task, answer)


class Questions(Environment):
    """One turn."""

    def __init__(self) -> None:
        self.verifier = Awaited()

    def task(self, split: str, index: int) -> Task:
        return Task("say it", "broken" if index else "fine", id=f"questions/{index}")


@pytest.mark.parametrize(("index", "score"), [(0, 0.0), (1, None)])
def test_an_awaited_verdict_follows_the_rule(index: int, score: float | None) -> None:
    environment, sampler = Questions(), ScriptedSampler(answers=["boom"])
    sampler.setup(environment, TOK)
    with Rollout(TokenMDP(environment, TOK), sampler=sampler) as rollout:
        (episode,) = rollout.collect([RolloutRequest(environment.task("train", index), "g", 0)], SamplingParams(stop_ids=TOK.stop_ids))
    assert episode.verdict is not None and episode.verdict.score == score


class Shelf(Tool):
    """Items by their name."""

    examples = (ToolExample("look", {"item": "lamp"}, "1"),)
    down = False

    @tool
    def look(self, item: str) -> str:
        """Look an item up.

        Args:
            item: its name.
        """
        if self.down:
            raise ConnectionError("the shop is closed")
        return {"lamp": "1"}[item]


class Shop(Environment):
    """Look something up, and answer."""

    max_turns, max_prompt_tokens, max_new_tokens = 3, 400, 200

    def __init__(self, shelf: Shelf) -> None:
        self.tools, self.verifier = [shelf], Awaited()

    def task(self, split: str, index: int) -> Task:
        return Task("look", "fine", id="shop")

    def new_session(self, task: Task, *, seed: int) -> Session:
        return ToolSession(task, self.tools)


def test_a_tool_that_one_call_breaks_is_an_own_0_and_an_outage_of_it_is_none() -> None:
    shelf = Shelf()
    shop = Shop(shelf)
    assert play(shop, '!look {"item": "lamp"}', "done").score == 1.0
    verdict = play(shop, '!look {"item": "dragon"}', "done")
    assert (verdict.score, verdict.fault) == (0.0, Fault.ANSWER) and "dragon" in verdict.reason
    shelf.down = True
    assert play(shop, '!look {"item": "lamp"}', "done").score is None, "its own example fails too"


def test_the_rule_itself() -> None:
    done = list[str]()

    def control() -> None:
        done.append("control")

    def again() -> int:
        done.append("again")
        raise ValueError("again")

    with pytest.raises(AnswerAtFault, match="first"):
        retry_and_attribute_failure(ValueError("first"), control, again)
    assert done == ["control", "again"] * CONTROL_ROUNDS
    with pytest.raises(AnswerAtFault, match="first"):
        retry_and_attribute_failure(ValueError("first"), control, None)
    with pytest.raises(ValueError, match="first"):
        retry_and_attribute_failure(ValueError("first"), again, again)

    async def later(work: Callable[[], Any]) -> Any:
        await asyncio.sleep(0)
        return work()

    with pytest.raises(AnswerAtFault):
        asyncio.run(aretry_and_attribute_failure(ValueError("first"), lambda: later(control), lambda: later(again)))
    with pytest.raises(ValueError, match="first"):
        asyncio.run(aretry_and_attribute_failure(ValueError("first"), lambda: later(again), None))
    assert asyncio.run(aretry_and_attribute_failure(ValueError("first"), lambda: later(control), lambda: later(lambda: 4))) == 4


@pytest.mark.parametrize("mixed", [False, True])
@pytest.mark.parametrize("text", ["four", "", "nan", "1e999", "-50", "∞"])
def test_what_a_plain_reward_function_makes_of_an_odd_answer_is_the_answers_own_zero(text: str, mixed: bool) -> None:
    def whole(answer: str, reference: str) -> float:  # raises for every text that is no integer, "" and "-" included
        return float(int(answer) == int(reference))

    def near(answer: str, reference: str) -> Any:  # nan, -inf or a complex number
        return 1 - abs(float(answer) - float(reference)) ** 1.5 if answer.strip("-") else 0.0

    def root(answer: str, reference: str) -> Any:
        return (float(answer) / float(reference)) ** 0.5 if answer.strip("-") else 0.0

    for function in (whole, near, root):
        verifier: Any = {function: 0.5, "exact": 0.5} if mixed else function
        report = rlvr.evaluate([{"question": "2+2=", "answer": "4"}], lambda prompt: text, verifier=verifier)
        [sample] = report.samples
        assert sample.score is not None and sample.score <= 1 and (sample.score <= 0 or function is root), (function, sample)


@pytest.mark.parametrize("value", [1e300, -1e300, 2e15, 10**5000, Decimal("sNaN")], ids=["1e300", "-1e300", "2e15", "10**5000", "sNaN"])
@pytest.mark.parametrize("kind", ["function", "score", "component", "step reward"])
def test_a_reward_that_no_mean_can_hold_is_the_answers_own_zero(kind: str, value: Any) -> None:
    class Odd(Verifier):
        has_bounded_score = False

        def verify(self, task: Task, answer: str) -> Verdict:
            if answer != "odd":
                return Verdict(float(answer == task.reference), "")
            if kind == "component":
                return Verdict(0.0, "", components={"part": value})
            return Verdict(value, "") if kind == "score" else Verdict(0.0, "", step_rewards=[StepReward(value), StepReward(-value)])

    def odd(answer: str, reference: str) -> Any:
        return value if answer == "odd" else answer == reference

    rows = [{"question": f"{n}+0=", "answer": str(n)} for n in range(4)]
    policy = lambda prompt: "odd" if prompt.startswith("3") else prompt[0]  # noqa: E731
    report = rlvr.evaluate(rows, policy, verifier=odd if kind == "function" else Odd())
    assert sorted(str(sample.score) for sample in report.samples) == ["0.0", "1.0", "1.0", "1.0"]
    if kind == "function":
        assert rlvr.verify_many(odd, ["odd", "1"], ["1", "1"])[1].score == 1.0


class Panic(BaseException):
    """What a library in Rust raises when it panics."""


PANICS = [Panic, KeyboardInterrupt, SystemExit, GeneratorExit, StopIteration, StopAsyncIteration, asyncio.CancelledError]
AWAITED = {"coroutine", "awaited task", "part"}


@pytest.mark.parametrize("error", PANICS)
@pytest.mark.parametrize("where", ["verify", "step", "assistant", "answer", "artifacts", "close", "step rewards", *sorted(AWAITED)])
def test_a_panic_that_only_one_answer_causes_is_its_own_zero(where: str, error: type[BaseException]) -> None:
    def panics(at: str, text: str) -> None:
        if at == where and "odd" in text:
            raise error("index out of range")

    class Checked(Verifier):
        def verify(self, task: Task, answer: str) -> Verdict:
            panics("verify", answer)
            return Verdict(float(answer == task.reference), "")

    class Awaited(Checked):
        async def averify(self, task: Task, answer: str) -> Verdict:
            panics("coroutine", answer)
            panics("part", answer)

            async def wait() -> None:
                panics("awaited task", answer)

            await asyncio.gather(wait(), asyncio.sleep(0))
            return self.verify(task, answer)

    class Told(Session):
        said = ""

        def step(self, turn: Turn) -> StepResult | None:
            self.said = turn.text
            panics("step", self.said)
            said: Any = {"role": "assistant", "content": "I am the policy"}
            return StepResult((said,)) if where == "assistant" and "odd" in turn.text else None

        def select_answer(self, turns: Sequence[Turn]) -> str:
            panics("answer", self.said)
            return super().select_answer(turns)

        def artifacts(self) -> Mapping[str, Any]:
            panics("artifacts", self.said)
            return {}

        def close(self) -> None:
            panics("close", self.said)

    class Asked(Environment):
        max_turns = 2

        def __init__(self) -> None:
            checked = Awaited() if where in AWAITED else Checked()
            self.verifier = rlvr.make_verifier([checked, "exact"]) if where == "part" else checked

        def task(self, split: str, index: int) -> Task:
            return Task(f"{index}+0=", str(index), id=f"asked/{split}/{index}")

        def gold(self, task: Task) -> str:
            return str(task.reference)

        def new_session(self, task: Task, *, seed: int) -> Session:
            return Told()

        def step_rewards(self, task: Task, completions: Sequence[str], verdict: Verdict) -> Sequence[StepReward]:
            panics("step rewards", completions[-1])
            return ()

    policy = lambda messages: "odd" if messages[-1]["content"].startswith("1") else messages[-1]["content"][0]  # noqa: E731
    report = rlvr.evaluate(Asked(), policy, tasks=3)
    assert sorted(str(sample.score) for sample in report.samples) == ["0.0", "1.0", "1.0"]


@pytest.mark.parametrize("error", PANICS)
@pytest.mark.parametrize("where", ["select_answer", "verify"])
def test_a_panic_in_a_thread_of_a_trainer_is_the_zero_of_its_row(where: str, error: type[BaseException]) -> None:
    class Checked(Verifier):
        def verify(self, task: Task, answer: str) -> Verdict:
            if where == "verify" and "odd" in answer:
                raise error("index out of range")
            return Verdict(float(answer == task.reference), "")

    class Asked(Environment):
        verifier = Checked()

        def task(self, split: str, index: int) -> Task:
            return Task("2+2=", "4")

        def select_answer(self, task: Task, completions: Sequence[str]) -> str:
            if where == "select_answer" and "odd" in completions[-1]:
                raise error("index out of range")
            return completions[-1]

    scorer = FinalTextVerifier(Asked())
    verdicts = scorer.verify_all([Task("2+2=", "4")] * 3, ["4", "odd", "4"])
    scorer.close()
    assert [verdict.score for verdict in verdicts] == [1.0, 0.0, 1.0], verdicts


def test_a_detail_with_a_huge_integer_ends_no_evaluation(tmp_path: Path) -> None:
    class Product(Verifier):
        def verify(self, task: Task, answer: str) -> Verdict:
            return Verdict(0.0, "not it", detail={"product": int("9" * 3000) ** 2})

    report = rlvr.evaluate([rlvr.Task("2+2=", "4")], lambda prompt: "4", verifier=Product(), out=tmp_path / "run")
    assert report.samples[0].verdict["detail"] == {"product": "an integer of 19932 bits"}


def test_a_call_without_an_id_of_a_function_policy_is_no_answer() -> None:
    report = rlvr.evaluate([rlvr.Task("2+2=", "4")], lambda prompt: rlvr.Call("", "price", ["pen"]), verifier="exact")  # type: ignore[arg-type]
    assert report.samples[0].stop_reason == "failed" and "the function returned" in report.samples[0].reason
