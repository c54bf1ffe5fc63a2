"""Verifiers made of others: where an inner one waits for its verdict, none of them holds a thread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rlvr.contracts import Environment, SamplingParams, Transcript, Verifier
from rlvr.envs.mixture import MixtureVerifier
from rlvr.mdp.sessions import averify_transcript_safely, verify_transcript_safely
from rlvr.mdp.token_mdp import TokenMDP
from rlvr.mdp.tokenizers import CharTokenizer
from rlvr.registry.plugins import build
from rlvr.rollout.rollout import Rollout, RolloutRequest
from rlvr.samplers.scripted import ScriptedSampler
from rlvr.task import Fault, Task, Verdict, make_user_prompt
from tests.fixtures.worlds import DIGITS, Sums

WAITS = '''
import asyncio
from rlvr import VerifierExample, Task, Verdict
from rlvr.contracts import Verifier


class Waits(Verifier):
    """Has a verdict after a while; `verify` would wait in a thread, so it is not to be called."""

    examples = (VerifierExample("4", correct=("4",), incorrect=("5",)),)

    def verify(self, task: Task, answer: str) -> Verdict:
        return Verdict(None, "a thread waited")

    async def averify(self, task: Task, answer: str) -> Verdict:
        await asyncio.sleep(0.02)
        if answer == "broken":
            raise RuntimeError("broken")
        return Verdict(float(answer == task.reference), "compared")
'''
TASK = Task(make_user_prompt("2+2="), "4", id="t", meta={"member": "sums"})


@pytest.fixture(scope="module")
def waits(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("verifiers") / "waits.py"
    path.write_text(WAITS, "utf-8")
    return f"{path}:Waits"


def composite(name: str) -> Verifier:
    parts = {"far": {"verifier": name, "weight": 1}, "near": {"verifier": "numeric", "weight": 3}}
    return build("verifier", "composite", components=parts)


def audited_by(name: str) -> Verifier:
    return build("verifier", "with_audit", verifier="numeric", audit_with=name, fraction=1.0)


def audited(name: str) -> Verifier:
    return build("verifier", "with_audit", verifier=name, audit_with="numeric", fraction=1.0)


def mixture(name: str) -> Verifier:
    return MixtureVerifier({"sums": build("verifier", name)})


def structure(name: str) -> Verifier:
    return build("verifier", "structure", verifier=name, sections=["answer"])


def verdict_of(verifier: Verifier, answer: str) -> Verdict:
    assert verifier.traits.is_async, "it would not wait"
    return awaited(verifier, answer)


def awaited(verifier: Verifier, answer: str) -> Verdict:
    return asyncio.run(averify_transcript_safely(verifier, TASK, Transcript(answer)))


@pytest.mark.parametrize("made", [composite, audited_by, audited, mixture, structure])
def test_what_waits_inside_is_awaited(made: Callable[[str], Verifier], waits: str) -> None:
    frame = "<answer>{}</answer>" if made is structure else "{}"
    with made(waits) as verifier:
        assert verdict_of(verifier, frame.format("4")).score == 1.0
        assert verdict_of(verifier, frame.format("5")).score == 0.0
        assert asyncio.run(verifier.averify(TASK, frame.format("4"))).score == 1.0


def test_a_part_that_fails_while_it_is_awaited_gives_no_score(waits: str) -> None:
    for made in (composite, audited, mixture):
        with made(waits) as verifier:
            verdict = verdict_of(verifier, "broken")
            assert verdict.score is None and verdict.fault is Fault.INFRA
    with audited_by(waits) as verifier:  # a second verifier changes no score
        assert verdict_of(verifier, "broken").score == 0.0


def test_the_parts_and_the_reason_are_those_of_judging_in_a_thread(waits: str) -> None:
    parts = {"value": {"verifier": "numeric", "weight": 3}, "text": {"verifier": "exact", "weight": 1}}
    with build("verifier", "composite", components=parts) as verifier:
        assert awaited(verifier, "4.0") == verify_transcript_safely(verifier, TASK, Transcript("4.0"))
    with build("verifier", "structure", sections=["answer"], malformed_factor=0.5) as verifier:
        for answer in ("4", "<answer>4</answer>", "<answer>5</answer>", ""):
            assert awaited(verifier, answer) == verifier.verify(TASK, answer)
    with composite(waits) as verifier:
        assert verdict_of(verifier, "4").components == {"far": 1.0, "near": 1.0}
        assert verdict_of(verifier, "lots").components == {"far": 0.0, "near": 0.0}
    assert not MixtureVerifier({}).traits.is_async and awaited(MixtureVerifier({}), "4").fault is Fault.TASK


def test_a_rollout_waits_for_a_composite_without_its_threads(waits: str, tmp_path: Path) -> None:
    with composite(waits) as verifier:
        environment: Environment = Sums(verifier=verifier)
        sampler, tokenizer = ScriptedSampler(answer="gold"), CharTokenizer(DIGITS)
        sampler.setup(environment, tokenizer)
        with Rollout(TokenMDP(environment, tokenizer), sampler=sampler, max_concurrent_calls=1) as rollout:
            drawn: list[Any] = [RolloutRequest(environment.task("train", i), "g", i) for i in range(20)]
            episodes = rollout.collect(drawn, SamplingParams())
    assert [episode.reward for episode in episodes] == [1.0] * 20
