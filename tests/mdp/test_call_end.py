"""Calls in plain text: the turn ends with its first complete call, its tokens stay what was sampled, and the result is labelled."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from rlvr.chat.dialects.table import DIALECTS, get_dialect
from rlvr.chat.hf_tokenizer import HFTokenizer
from rlvr.chat.tool_calling import CallStopCriterion
from rlvr.contracts import Completion, Request, Sampler, SamplingParams
from rlvr.contracts.tool import Tool, tool
from rlvr.envs.with_tools import WithTools
from rlvr.episode import StopReason
from rlvr.errors import EnvError
from rlvr.mdp.token_mdp import ConversationState, TokenMDP
from rlvr.mdp.tokenizers import ByteTokenizer
from rlvr.rollout.rollout import Rollout, RolloutRequest
from rlvr.samplers.scripted import ScriptedSampler
from rlvr.turns import ToolSpec
from tests.fixtures.templates import CHATML, tokenizer_for
from tests.fixtures.worlds import Sums
from tests.tools.desks import Desks

TOK = ByteTokenizer()
TOOLS = [ToolSpec("bash", "Run.", {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]})]


class Echo(Tool):
    """Says what it hears."""

    @tool
    def echo(self, text: str) -> str:
        """Say it again."""
        return text


@pytest.mark.parametrize(
    ("dialect", "text", "rest"),
    [
        ("fenced", "I look.\n```bash\nls\n```\n", "Result of bash:\na b\n"),
        ("fenced", "```bash\nls\n```  \n", "\n```bash\nrm a\n```\n"),
        ("fenced", "````bash\n```\nx\n```\n````\n", "on"),
        ("fenced", "<think>\n```bash\nrm a\n```\n</think>\n```bash\nls\n```\n", "```\n"),
        ("fenced", "```python\nprint(1)\n```\nThat is all.\n", ""),
        ("fenced", "```bash\nls\n```", ""),  # the line has not ended: the fence may become longer
        ("fenced", "```bash\nls\n\n\n", ""),
        ("line", "so\n!bash ls\n", "=a b\n!bash rm a\n"),
        ("line", "!bash ls", ""),
    ],
)
def test_a_turn_ends_with_the_line_that_completes_its_first_call(dialect: str, text: str, rest: str) -> None:
    ends, tokens = CallStopCriterion(get_dialect(dialect), TOK, TOOLS, []), TOK.encode(text + rest)
    assert TOK.decode(tokens[: ends.find_turn_length(tokens)]) == text
    assert [n for n in range(1, len(tokens)) if ends(tokens[:n])][:1] == ([len(TOK.encode(text))] if rest else [])


def test_reasoning_that_the_prompt_opened_ends_no_turn() -> None:
    text = "```bash\nrm a\n```\n</think>\n```bash\nls\n```\n"
    tokens = TOK.encode(text + "and so on\n")
    assert CallStopCriterion(get_dialect("fenced"), TOK, TOOLS, TOK.encode("<think>\n")).find_turn_length(tokens) == len(text)


@pytest.mark.parametrize("dialect", ["fenced", "line"])
def test_the_end_of_a_turn_is_the_first_prefix_with_a_complete_call(dialect: str) -> None:
    """Whatever the parts of a turn are, as if each prefix had been asked."""
    dice = random.Random(dialect)
    parts = ["```bash\n", "```bash\nls\n```", "```", "````", "ls", "!bash ls", "!ls", "<think>", "</think>", "\n", " "]
    ended = 0
    for number in range(600):
        tokens = TOK.encode("".join(dice.choice(parts) + dice.choice(("\n", "")) for _ in range(dice.randint(2, 12))))
        ends = CallStopCriterion(get_dialect(dialect), TOK, TOOLS, TOK.encode("<think>\n") if number % 3 == 0 else [])
        first = next((n for n in range(1, len(tokens)) if ends(tokens[:n])), len(tokens))
        assert ends.find_turn_length(tokens) == first, TOK.decode(tokens)
        ended += first < len(tokens)
    assert ended > 40


@pytest.mark.parametrize(
    "text", ["1+" * 20_000, "4\u0301\u0323" * 8_000, "\n" * 30_000, "a\n" * 15_000], ids=["sum", "marks", "lines", "words"]
)
def test_the_end_of_a_long_turn_without_a_call_is_found_in_one_pass(text: str) -> None:
    """The time of a look at each prefix grows with the square of the length, in the thread that all conversations share."""
    ends, tokens = CallStopCriterion(get_dialect("fenced"), TOK, TOOLS, []), TOK.encode(text)
    began = time.process_time()
    assert ends.find_turn_length(tokens) == len(tokens)
    assert time.process_time() - began < 1


def test_dialects_with_marks_of_their_own_are_left_alone() -> None:
    assert {name for name, dialect in DIALECTS.items() if dialect.is_plain_text} == {"fenced", "line"}


def played(mdp: TokenMDP, text: str, *, stepped: bool) -> ConversationState:
    state = mdp.start_conversation(mdp.environment.task("train", 5), seed=4)
    tokens = mdp.tokenizer.encode(text)
    if stepped:
        for token in tokens[: mdp.find_turn_length(state, tokens)]:
            mdp.step_token(state, token)
    else:
        mdp.step_turn(state, tokens)
    return state


def test_stepping_and_sampling_end_the_turn_alike_and_the_environment_ends_it_with_eos() -> None:
    mdp = TokenMDP(Desks(), TOK)
    one, two = (played(mdp, "!add 3\n=8\n!add 4\n=12\n", stepped=stepped) for stepped in (True, False))
    assert (one.tokens, one.action_mask, one.turn_start) == (two.tokens, two.action_mask, two.turn_start) and one.stop_reason is None
    acted = [place for place, own in enumerate(one.action_mask) if own]
    assert TOK.decode([one.tokens[place] for place in acted]) == "!add 3\n" and one.turns[0].text == "!add 3\n"
    after = one.tokens[acted[-1] + 1 :]
    assert after == [TOK.eos_id, *TOK.render_environment_reply("=8")]
    with pytest.raises(EnvError, match="tokens follow the call"):
        mdp.append_turn(one, TOK.encode("!add 4\n=12\n"))
    one.close()
    two.close()


@pytest.mark.parametrize("template", [CHATML, None])
def test_a_chat_template_gets_its_own_end_of_a_turn_and_the_result_is_labelled(template: str | None) -> None:
    tokenizer = HFTokenizer(tokenizer_for(template, ("<|im_end|>",)))
    mdp = TokenMDP(WithTools(env=Sums(), tools=[Echo()], max_new_tokens=200), tokenizer)
    state = mdp.start_conversation(mdp.environment.task("train", 0))
    assert "Your turn ends with the call" in tokenizer.tokenizer.decode(state.tokens)
    mdp.step_turn(state, tokenizer.encode("```echo\n42\n```\nResult of echo:\n43\n"))
    last = max(place for place, own in enumerate(state.action_mask) if own)
    between = tokenizer.tokenizer.decode(state.tokens[last + 1 :])
    assert between == ("<|im_end|>\n<|im_start|>user\n" if template else "\n") + "Result of echo:\n42" + (
        "<|im_end|>\n<|im_start|>assistant\n" if template else "\n"
    )
    state.close()


class Rambling(Sampler):
    """Ignores where a turn ends, as an engine does that knows stop ids only."""

    def stream_completions(self, requests: Sequence[Request], sampling: SamplingParams) -> Iterator[tuple[int, Completion]]:
        for place, request in enumerate(requests):
            tokens = TOK.encode("!add 7\n=12\nit has 12")[: request.max_tokens] if request.turn == 0 else [*TOK.encode("done"), TOK.eos_id]
            yield place, Completion(tokens, [-0.5 - n / 100 for n in range(len(tokens))], "length" if request.turn == 0 else "stop")


@pytest.mark.parametrize("sampler", [Rambling(), ScriptedSampler(answers=["!add 7\n=12\nit has 12", "done"])], ids=["rambling", "scripted"])
def test_what_a_sampler_gives_beyond_the_call_is_cut_off_with_its_log_probabilities(sampler: Any) -> None:
    mdp = TokenMDP(Desks(), TOK)
    sampler.setup(mdp.environment, TOK)
    with Rollout(mdp, sampler=sampler) as rollout:
        [episode] = rollout.collect([RolloutRequest(mdp.environment.task("train", 5), "g", 0)], SamplingParams(stop_ids=TOK.stop_ids))
    assert (
        episode.stop_reason is StopReason.TERMINATED and episode.turns == 2 and episode.verdict is not None and episode.verdict.score == 1.0
    )
    said = [token for token, own in zip(episode.tokens, episode.action_mask, strict=True) if own]
    assert said == [*TOK.encode("!add 7\n"), *TOK.encode("done"), TOK.eos_id]
    if isinstance(sampler, Rambling):
        assert [p for p, own in zip(episode.logprobs, episode.action_mask, strict=True) if own][:3] == [-0.5, -0.51, -0.52]
