"""What an agent's calls become: branches of one episode, in which each sampled token stands once, after what the policy saw."""

from __future__ import annotations

import asyncio
import json
import random
import re
from collections.abc import Callable, Mapping
from typing import Any

import pytest

import rlvr
from rlvr.chat.dialects.table import get_dialect
from rlvr.chat.hf_tokenizer import HFTokenizer
from rlvr.chat.tool_calling import StopTexts
from rlvr.contracts.chat_request import ChatRequest
from rlvr.episode import Episode, Segment, StopReason
from rlvr.gateway.agents import AgentClient
from rlvr.gateway.calls import GatewayError
from rlvr.gateway.formats import AnthropicMessages
from rlvr.integrations.tokens import make_token_row
from rlvr.mdp.branches import add_branch_segments, find_longest_path, get_path_tokens
from rlvr.rollout.replay import find_mismatch
from rlvr.task import Task
from rlvr.training.update.step_data import StepData
from rlvr.turns import Call, ToolSpec
from tests.fixtures.templates import STYLES, tokenizer_for

ADD = ToolSpec("add", "Adds.", {"type": "object", "properties": {"a": {"type": "integer"}}})
LONG = "a question of more than sixteen characters"


def play(agent: Callable[..., Any], answers: list[str], *, tokenizer: str = "bytes", **settings: Any) -> Episode:
    env = rlvr.make_env("agent", env="arithmetic", function=agent, **settings)
    with rlvr.Rollout(env, tokenizer, {"name": "scripted", "answers": answers}) as rollout:
        [[episode]] = rollout.sample(env.task("train", 0), n=1, seed=1)
        check_that_it_replays(rollout, episode)
    env.close()
    return episode


def check_that_it_replays(rollout: rlvr.Rollout, episode: Episode) -> None:
    """Stepping the policy's tokens again through `TokenEnv.step` gives the same tokens, mask and tree."""
    if episode.stop_reason is StopReason.FAILED:
        return
    env = rlvr.TokenEnv(rollout.mdp.environment, tokenizer=rollout.mdp.tokenizer, obs="ids", max_new_tokens=rollout.mdp.max_new_tokens)
    record = json.loads(json.dumps(episode.meta["session"]))
    found = find_mismatch(env, "train", 0, episode.tokens, episode.action_mask, episode.stop_reason.value, episode.reward, session=record)
    assert found == "" and env.state is not None and env.state.tree == episode.segments


def texts(episode: Episode) -> list[str]:
    """Each branch as text, with the marks of roles as spaces."""
    tokenizer = rlvr.load_tokenizer("bytes")
    return [
        tokenizer.decode([token for a, b in branch for token in episode.tokens[a:b]]).replace("\ufffd", " ").strip()
        for branch in episode.branches
    ]


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def test_a_conversation_that_goes_on_is_one_branch() -> None:
    async def agent(client: AgentClient, task: Task) -> None:
        messages: list[Any] = [user(task.question)]
        for text in ("sure?", "really?"):
            messages += [await client.chat(messages), user(text)]
        await client.chat(messages)

    episode = play(agent, ["4", "yes", "11"])
    assert texts(episode) == ["3+8= 4 sure? yes really? 11"]
    assert episode.segments == () and episode.turns == 3 and episode.text == "11" and episode.reward == 1.0
    assert episode.num_policy_tokens == len("4") + len("yes") + len("11") + 3  # each turn has its end


def test_a_rewritten_history_and_a_second_conversation_are_branches() -> None:
    async def agent(client: AgentClient, task: Task) -> None:
        first = [user(LONG)]
        reply = await client.chat(first)
        await client.chat([*first, {**reply, "content": "a summary"}, user("go on")])  # rewritten
        await client.chat([user("another one that has nothing in common")])
        await client.chat([*first, reply, user("go on")])  # the first branch goes on

    episode = play(agent, ["a long answer", "b", "c", "11"])
    assert sorted(texts(episode)) == sorted(
        [f"{LONG} a summary go on b", "another one that has nothing in common c", f"{LONG} a long answer go on 11"]
    )
    assert episode.num_policy_tokens == len("a long answer") + 1 + 2 + 2 + 3 and len(episode.turn_spans) == episode.turns == 4
    assert len(episode.tokens) < sum(map(len, texts(episode)))  # what the branches share is there once


def test_the_same_question_twice_gives_two_samples_after_one_prompt() -> None:
    async def agent(client: AgentClient, task: Task) -> str:
        for _ in range(3):
            await client.chat([user(LONG)])
        return "11"

    episode = play(agent, ["one", "two", "three"])
    assert texts(episode) == [f"{LONG} one", f"{LONG} two", f"{LONG} three"]
    assert [b - a for a, b in episode.turn_spans] == [4, 4, 6] and episode.tokens.count(ord("q") + 4) == 1
    assert episode.text == "11" and episode.reward == 1.0  # what the function returned is verified


def test_ids_and_spaces_that_an_agent_writes_otherwise_change_no_branch() -> None:
    tools = [
        {
            "type": "function",
            "function": {"name": "add", "description": "Adds.", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}},
        }
    ]

    async def agent(client: AgentClient, task: Task) -> None:
        messages: list[Any] = [user(task.question)]
        reply = await client.chat(messages, tools=tools)
        [call] = reply["tool_calls"]
        assert call["function"]["name"] == "add" and json.loads(call["function"]["arguments"]) == {"a": 3}
        renamed = {"id": "mine", "type": "function", "function": {"name": "add", "arguments": '{ "a":3 }'}}
        messages += [
            {"role": "assistant", "content": None, "tool_calls": [renamed]},
            {"role": "tool", "tool_call_id": "mine", "content": "11"},
        ]
        await client.chat(messages, tools=tools)

    episode = play(agent, [get_dialect("line").format_calls([Call("0.0", "add", {"a": 3})]), "11"])
    assert episode.error == "" and episode.segments == () and episode.turns == 2 and episode.reward == 1.0


def test_agents_that_end_badly_are_data_with_a_reason() -> None:
    async def silent(client: AgentClient, task: Task) -> None:
        raise RuntimeError("no idea")

    async def broken(client: AgentClient, task: Task) -> None:
        await client.chat([user(task.question)])
        raise RuntimeError("after a call")

    failed = play(silent, ["11"])
    assert failed.stop_reason is StopReason.FAILED and not failed.is_scored
    assert "the agent ended before it called the model: the agent raised RuntimeError: no idea (test_branches.py:" in failed.error
    late = play(broken, ["11"])
    assert late.reward == 1.0 and "the agent raised RuntimeError: after a call (" in late.meta["trouble"]  # what it had done is verified


def test_an_agent_that_calls_nothing_any_more_is_ended() -> None:
    async def hangs(client: AgentClient, task: Task) -> None:
        await client.chat([user(task.question)])
        await asyncio.sleep(3600)

    episode = play(hangs, ["11"], idle_timeout_s=0.3)
    assert episode.stop_reason is StopReason.TERMINATED and episode.reward == 1.0


def test_limits_end_the_episode_and_refuse_the_agent() -> None:
    errors = []

    async def talks(client: AgentClient, task: Task) -> None:
        try:
            for number in range(100):
                await client.chat([user(f"{number} {LONG}")])
        except GatewayError as error:
            errors.append(error)

    episode = play(talks, ["11"], max_turns=3)
    assert episode.stop_reason is StopReason.TRUNCATED and episode.meta["truncated"] == "turns" and episode.turns == 3
    assert len(texts(episode)) == 3


def test_stop_texts_and_limits_of_a_call_end_the_turn() -> None:
    replies = []

    async def agent(client: AgentClient, task: Task) -> None:
        from rlvr.gateway.formats import ChatCompletions

        for body in ({"stop": ["END"]}, {"max_tokens": 3}):
            call = client._calls.submit(ChatCompletions().parse({"messages": [user(LONG)], **body}, {}), str(body).encode())
            replies.append(await asyncio.wrap_future(call.reply))

    episode = play(agent, ["one END two"])
    assert [(reply.message["content"], reply.finish_reason) for reply in replies] == [("one ", "stop"), ("one", "length")]
    assert texts(episode) == [f"{LONG} one END", f"{LONG} one"]
    assert [reply.stop_text for reply in replies] == ["END", ""]
    assert [AnthropicMessages().format_reply({}, reply, "1")["stop_reason"] for reply in replies] == ["stop_sequence", "max_tokens"]
    assert [reply.completion_tokens for reply in replies] == [7, 3] and replies[0].prompt_tokens == len(LONG) + 2


@pytest.mark.parametrize("seed", range(30))
def test_forks_keep_every_path(seed: int) -> None:
    """Prompts of random histories: each is on its path afterwards, and no token that they share is there twice."""
    dice = random.Random(seed)
    tokens, segments, prompts = list[int](), list[Segment](), list[list[int]]()
    for number in range(12):
        if not prompts or dice.random() < 0.2:
            prompt = [1000 + number, *(dice.randrange(3) for _ in range(dice.randint(20, 40)))]
        else:
            old = dice.choice(prompts)
            prompt = [*old[: dice.randint(1, len(old))], *(dice.randrange(3) for _ in range(dice.randint(1, 40)))]
        segments, known = add_branch_segments(tokens, segments or [Segment(0)], prompt)
        before = len(tokens)
        tokens += [*prompt[known:], 2000 + number]  # and a sampled token
        prompts.append([*prompt, 2000 + number])
        assert known == 0 or known >= 16 or known == len(prompt) or before == 0
        for at, token in enumerate(tokens):
            if token >= 2000:
                assert get_path_tokens(tokens, segments, at + 1) == prompts[token - 2000]
        Episode(
            "t",
            "g",
            list(tokens),
            [token >= 2000 for token in tokens],
            [0.0] * len(tokens),
            [0.0] * len(tokens),
            StopReason.TERMINATED,
            segments=tuple(segments),
        )
    longest = max(range(len(prompts)), key=lambda n: len(prompts[n]))
    assert find_longest_path(tokens, segments, prompts[longest])[0] == len(prompts[longest])


def test_of_turns_with_one_visible_text_the_ids_of_calls_and_the_reasoning_decide() -> None:
    from rlvr.mdp.branches import ChatHistory
    from rlvr.turns import Turn

    history, first = ChatHistory(), ChatRequest((user("2+2="),), (ADD,))
    for end, reasoning in ((10, "A"), (20, "B")):
        history.add_turn(first, Turn("x", content="4", reasoning=reasoning), end)
    for number, end in ((2, 30), (3, 40)):
        history.add_turn(first, Turn("x", calls=(Call("0.0", "add", {"a": 3}),)), end, number)

    def find(**message: Any) -> Any:
        said = {"role": "assistant", "content": "", **message}
        return history.find_continued_turn(ChatRequest((*first.messages, said, user("?")), first.tools))

    assert [find(content="4", reasoning_content=text)[0] for text in ("A", "B", "C")] == [10, 20, 20] and find(content="4")[0] == 20
    function = {"name": "add", "arguments": '{"a": 3}'}
    calls = [[{"id": name, "type": "function", "function": function}] for name in ("call_2_0_0", "call_3_0_0", "mine")]
    assert [find(tool_calls=own)[0] for own in calls] == [30, 40, 40]


def test_a_request_of_other_tools_is_another_conversation() -> None:
    from rlvr.mdp.branches import ChatHistory
    from rlvr.turns import ToolSpec, Turn

    history, first = ChatHistory(), ChatRequest((user("2+2="),))
    history.add_turn(first, Turn("4", content="4"), 9)
    later: tuple[Mapping[str, Any], ...] = (*first.messages, {"role": "assistant", "content": " 4\n"}, user("sure?"))
    assert history.find_continued_turn(ChatRequest(later)) == (9, (user("sure?"),))
    assert history.find_continued_turn(ChatRequest(later, (ToolSpec("now", "The time."),))) is None
    assert history.find_continued_turn(ChatRequest((user("3+3="), *later[1:]))) is None
    assert history.find_continued_turn(ChatRequest((*later, {"role": "assistant", "content": "x"}, user("?")))) is None


def test_a_turn_that_no_client_received_is_masked() -> None:
    async def agent(client: AgentClient, task: Task) -> None:
        call = client._submit([user(LONG)], (), None, ())
        await asyncio.wrap_future(call.reply)
        client._calls.leave(call, is_delivered=False)  # it went away before it could read the reply
        await client.chat([user(task.question)])

    env = rlvr.make_env("agent", env="arithmetic", function=agent)
    with rlvr.Rollout(env, "bytes", {"name": "scripted", "answers": ["never seen", "11"]}) as rollout:
        [[episode]] = rollout.sample(env.task("train", 0), n=1, seed=1)
    env.close()
    assert episode.meta["masked_turns"] == [0] and episode.reward == 1.0
    step = StepData([[episode]], rlvr.make_algorithm("grpo"))
    [(start, end)] = episode.masked_turn_spans
    assert end - start == len("never seen") + 1 and step.rows.num_policy_tokens == 3
    step.set_advantages([[[1.0] * len(episode.tokens)]], keep_zero_advantage=False)
    counts = step.count_tokens()
    assert (counts["tokens/sampled"], counts["tokens/to_train"], counts["tokens/masked"]) == (14, 3, 11)


def test_another_trainer_gets_the_last_branch() -> None:
    async def agent(client: AgentClient, task: Task) -> None:
        await client.chat([user(LONG)])
        await client.chat([user(task.question)])

    row = make_token_row(play(agent, ["first", "11"]), pad_id=0)
    tokenizer = rlvr.load_tokenizer("bytes")
    assert tokenizer.decode(row.response_ids) == "11" and "3+8=" in tokenizer.decode(row.prompt_ids)


@pytest.mark.parametrize("style", STYLES)
def test_a_system_prompt_and_a_call_are_rendered_by_every_style_of_template(style: str) -> None:
    """Also by one that has no system messages, and by one that renders no tools. What was sampled stands in the context as it is."""
    template, stops, _ = STYLES[style]
    made = tokenizer_for(template, stops)
    tokenizer = HFTokenizer(made, [int(made.convert_tokens_to_ids(stop)) for stop in stops])
    thought = "so</think>" if style == "wide bars" else ""  # its prompt has opened the reasoning
    call = thought + get_dialect(tokenizer.dialect).format_calls([Call("0.0", "add", {"a": 3})], [ADD])
    seen = []

    async def agent(client: AgentClient, task: Task) -> None:
        messages: list[Any] = [{"role": "system", "content": "Be brief."}, user(task.question)]
        reply = await client.chat(messages, tools=[ADD.to_openai_format()])
        messages += [reply, {"role": "tool", "tool_call_id": reply["tool_calls"][0]["id"], "content": "11"}]
        seen.append((await client.chat(messages, tools=[ADD.to_openai_format()]))["content"])

    env = rlvr.make_env("agent", env="arithmetic", function=agent)
    with rlvr.Rollout(env, tokenizer, {"name": "scripted", "answers": [call, f"{thought}so 11"]}, max_length=4000) as rollout:
        [[episode]] = rollout.sample(env.task("train", 0), seed=1)
    env.close()
    assert (episode.error, episode.meta.get("trouble"), seen, len(episode.branches)) == ("", None, ["so 11"], 1)
    text = tokenizer.decode(episode.tokens)
    assert text.index("Be brief.") < text.index("3+8=") < text.rindex("so 11")


ALTERNATING = (
    "{{ bos_token }}{% set ns = namespace(user=true) %}{% for m in messages %}{% if m.role == 'tool' %}[TOOL_RESULTS]{{ m.content }}[/TOOL_RESULTS]"
    "{% elif m.role == 'assistant' and m.tool_calls %}[TOOL_CALLS]{{ m.tool_calls | tojson }}{{ eos_token }}"
    "{% else %}{% if (m.role == 'user') != ns.user %}{{ raise_exception('roles must alternate') }}{% endif %}{% set ns.user = not ns.user %}"
    "{% if m.role == 'user' %}[INST]{{ m.content }}[/INST]{% else %}{{ m.content }}{{ eos_token }}{% endif %}{% endif %}{% endfor %}"
)
"""As of Mistral: users and assistants take turns, and there is no system message."""


def test_a_template_that_wants_turns_to_alternate_gets_them() -> None:
    made = tokenizer_for(ALTERNATING, ["</s>"], more=["[TOOL_CALLS]", "[TOOL_RESULTS]", "[/TOOL_RESULTS]"])
    tokenizer = HFTokenizer(made, [])
    prompts = []

    async def agent(client: AgentClient, task: Task) -> None:
        messages: list[Any] = [{"role": "system", "content": "Be brief."}, user("who you are"), user(task.question)]
        reply = await client.chat(messages)
        prompts.append([*messages, reply, user("one"), user("two")])
        await client.chat(prompts[-1])

    env = rlvr.make_env("agent", env="arithmetic", function=agent)
    with rlvr.Rollout(env, tokenizer, {"name": "scripted", "answers": ["7", "11"]}, max_length=4000) as rollout:
        [[episode]] = rollout.sample(env.task("train", 0), seed=1)
    env.close()
    assert (episode.error, episode.meta.get("trouble"), episode.turns, len(episode.branches)) == ("", None, 2, 1)
    text = tokenizer.decode(episode.tokens)
    assert re.sub(r"\s", "", text) == "<s>[INST]Bebrief.whoyouare3+8=[/INST]7[INST]onetwo[/INST]11"


def test_a_stop_text_late_in_a_turn_is_found_fast() -> None:
    tokenizer, decoded = rlvr.load_tokenizer("bytes"), []

    class Counting:
        def decode(self, tokens: Any) -> str:
            decoded.append(len(tokens))
            return tokenizer.decode(tokens)

    tokens = tokenizer.encode("x" * 4000 + "END" + "y" * 50)
    assert StopTexts(["END"], Counting()).find_turn_length(tokens) == 4003 and len(decoded) < 20  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("returned", "answer", "words"),
    [
        ("11", "11", ""),
        (11, "11", ""),
        ({"role": "assistant", "content": "11"}, "11", ""),
        (None, "7", ""),
        (("11", 1.0), "7", "the agent returned a tuple; it must be a text"),
        ({"answer": "11"}, "7", "the agent returned a dict"),
    ],
)
def test_what_a_function_may_return(returned: Any, answer: str, words: str) -> None:
    """A function that is no coroutine function gets a client whose calls wait."""

    def agent(client: Any, task: Task) -> Any:
        assert client.chat("7", temperature=0.5, tools=[])["content"] == "7" and task.reference is None
        return returned

    episode = play(agent, ["7"])
    assert episode.text == answer and words in episode.meta.get("trouble", "")


def test_a_limit_that_the_agent_set_does_not_truncate_the_episode() -> None:
    async def agent(client: AgentClient, task: Task) -> None:
        await client.chat(task.question, max_tokens=2)

    episode = play(agent, ["1122"])
    assert episode.stop_reason is StopReason.TERMINATED and episode.text == "11" and episode.reward == 1.0


def test_the_environment_of_the_tasks_selects_the_answer() -> None:
    class LastWord(rlvr.Environment):
        needs = {"verifier": "exact"}

        def __init__(self, *, verifier: rlvr.Verifier) -> None:
            self.verifier = verifier

        def task(self, split: str, index: int) -> Task:
            return Task("2+2=", reference="4", id=f"words/{split}/{index}")

        def select_answer(self, task: Task, completions: Any) -> str:
            return str(completions[-1].split()[-1])

    async def agent(client: AgentClient, task: Task) -> None:
        await client.chat(task.question)

    env = rlvr.make_env("agent", env=rlvr.make_env(LastWord), function=agent)
    with rlvr.Rollout(env, "bytes", {"name": "scripted", "answers": ["it is 4"]}) as rollout:
        [[episode]] = rollout.sample(env.task("train", 0), seed=1)
    env.close()
    assert (episode.text, episode.reward) == ("4", 1.0)
