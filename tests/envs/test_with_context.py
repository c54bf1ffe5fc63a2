"""A context that is managed: what does not fit the window is dropped or summarised, in a branch, and nothing changes while it fits."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest

import rlvr
from rlvr.contracts import Session, StepResult
from rlvr.episode import Episode
from rlvr.errors import ConfigError
from rlvr.mdp.token_mdp import TokenMDP
from rlvr.mdp.tokenizers import load_tokenizer
from rlvr.serve.session_host import SessionHost
from rlvr.task import Task
from rlvr.training.task_sampling.offline_dataset import tokenize_gold
from rlvr.turns import Turn

PAGES = 6
FILLER = "nothing of interest stands on this page. " * 4


class Pages(rlvr.Environment):
    """Pages are read one after the other, each with a letter; the answer is the letters of all of them."""

    needs = {"verifier": "exact"}
    max_turns, max_prompt_tokens, max_new_tokens = 12, 200, 400
    word = "next"

    def __init__(self, *, verifier: Any) -> None:
        self.verifier = verifier

    def task(self, split: str, index: int) -> Task:
        letters = "".join("abcd"[(index + 3 * page) % 4] for page in range(PAGES))
        return Task("Say next until there are no pages, then say the letters.", reference=letters, id=f"pages/{split}/{index}")

    def new_session(self, task: Task, *, seed: int) -> Session:
        return PageSession(task, self.word)


class PageSession(Session):
    def __init__(self, task: Task, word: str) -> None:
        self.letters, self.word, self.page = str(task.reference), word, 0

    def step(self, turn: Turn) -> StepResult | None:
        if turn.text != self.word:
            return None
        self.page += 1
        text = f"{FILLER}page {self.page}: letter {self.letters[self.page - 1]}" if self.page <= PAGES else "the end"
        return StepResult(({"role": "user", "content": text},))


def find_letters(messages: Sequence[Any]) -> str:
    """The letters that a policy can know: of its notes, and of the pages after them."""
    notes = next((str(m["content"]).rpartition("so far:\n")[2] for m in messages if "so far:" in str(m["content"])), "")
    pages = [
        str(m["content"]) for m in messages if "letter " in str(m["content"]) and m["role"] == "user" and "Say next" not in m["content"]
    ]
    return notes + "".join(page.rpartition("letter ")[2] for page in pages)


def read_pages(messages: Any, tools: Any) -> str:
    last = str(messages[-1]["content"])
    if "Write down now" in last or last == "the end":
        return find_letters(messages)
    return "next"


def play(context: dict[str, Any] | None, max_length: int = 900, num_tasks: int = 2) -> list[Episode]:
    settings = {} if context is None else {"context": context}
    env = rlvr.make_env(Pages, **settings)
    tasks = [env.task("train", index) for index in range(num_tasks)]
    with rlvr.Rollout(env, "bytes", read_pages, max_length=max_length, max_new_tokens=400) as rollout:
        episodes = [episode for [episode] in rollout.sample(tasks, seed=1)]
    env.close()
    return episodes


def test_only_notes_carry_a_conversation_through_a_window_that_it_does_not_fit() -> None:
    for context, reward in (
        (None, 0.0),
        ({"policy": "none"}, 0.0),
        ({"policy": "drop_old_results", "at": 0.6}, 0.0),
        ({"policy": "summarise", "at": 0.6}, 1.0),
    ):
        for episode in play(context):
            assert episode.is_scored and episode.reward == reward, (context, episode.text, episode.error)
            assert all(sum(end - start for start, end in branch) <= 900 for branch in episode.branches)


def test_a_conversation_that_fits_is_not_changed() -> None:
    [plain, _], [managed, _] = play(None, 5000), play({"policy": "summarise"}, 5000)
    assert (plain.tokens, plain.action_mask, plain.logprobs, plain.reward) == (
        managed.tokens,
        managed.action_mask,
        managed.logprobs,
        1.0,
    )
    assert len(managed.branches) == 1 and not managed.segments


def test_notes_are_a_turn_of_the_branch_that_was_full_and_the_next_branch_begins_with_the_task_and_them() -> None:
    [episode, _] = play({"policy": "summarise", "at": 0.6})
    tokenizer = load_tokenizer("bytes")
    turns = [tokenizer.decode(episode.tokens[start:end]) for start, end in episode.turn_spans]
    first, second, *_ = (tokenizer.decode([token for s, e in branch for token in episode.tokens[s:e]]) for branch in episode.branches)
    assert "Write down now" in first and "Your notes from the work so far:" in second and "page 1:" not in second
    notes = next(turn for turn in turns if turn != "next")
    assert second.partition("so far:\n")[2].startswith(notes) and notes and episode.text.startswith(notes)
    assert episode.num_policy_tokens == sum(end - start for start, end in episode.turn_spans) and "tokens/masked" not in episode.meta


def test_notes_are_masked_if_they_are_not_to_be_trained() -> None:
    [trained, _], [masked, _] = (play({"policy": "summarise", "at": 0.6, "train_summaries": on}) for on in (True, False))
    assert trained.reward == masked.reward == 1.0 and trained.tokens == masked.tokens
    assert not trained.masked_turn_spans
    notes = [load_tokenizer("bytes").decode(masked.tokens[start:end]) for start, end in masked.masked_turn_spans]
    assert notes == ["adc", "adcbad"]


def test_tokens_of_a_reply_are_estimated_from_those_of_the_replies_before() -> None:
    """A turn of one letter has two tokens, with its stop token; the pages have one for each character, so that three of them fit."""

    class BriefPages(Pages):
        word = "n"

    env = rlvr.make_env(BriefPages, context={"at": 0.55, "summary_prompt": "#", "summary_heading": "known:"})
    task = env.task("train", 0)
    with rlvr.Rollout(env, "bytes", lambda messages, tools: "n", max_length=1000, max_new_tokens=400) as rollout:
        [[episode]] = rollout.sample([task], seed=1)
    said = [result["messages"][-1]["content"] for result in episode.meta["session"]["step_results"]]
    assert said.index("#") == 2 and "page 3:" in episode.meta["session"]["step_results"][2]["messages"][0]["content"]
    second = load_tokenizer("bytes").decode([token for s, e in episode.branches[1] for token in episode.tokens[s:e]])
    assert f"{task.question}\n\nknown:\nn" in second


def test_dropped_results_leave_a_mark_and_the_last_ones() -> None:
    [episode, _] = play({"policy": "drop_old_results", "at": 0.6, "keep_results": 1})
    last = load_tokenizer("bytes").decode([token for s, e in episode.branches[-1] for token in episode.tokens[s:e]])
    assert last.count("[dropped]") >= 2 and "letter" in last and len(episode.branches) > 1


def test_what_cannot_be_shortened_is_refused() -> None:
    for env, context, words in (
        ("arithmetic", {}, "has one turn, and nothing to shorten"),
        ("shell", {"at": 0}, "at is 0; it must be a share"),
        ("shell", {"policy": "forget"}, "policy is 'forget'"),
        ("shell", {"keep_results": -1}, "keep_results is -1"),
        ("shell", "summarise", "context is 'summarise'; it must be a mapping"),
    ):
        with pytest.raises(ConfigError, match=words):
            rlvr.make_env(env, context=context)
    with pytest.raises(ConfigError, match="an agent manages its own context"):
        rlvr.make_env("agent", env="arithmetic", function=lambda client, task: None, context={})


def test_the_tools_and_all_else_that_the_environment_says_of_itself_hold_with_a_context() -> None:
    plain, managed = rlvr.make_env("search_qa"), rlvr.make_env("search_qa", context={})
    rooms = [TokenMDP(env, load_tokenizer("bytes"), max_new_tokens=100).max_length for env in (plain, managed)]
    assert managed.tools and rooms[0] == rooms[1]
    for name in ("requires_tool_call", "warnings", "sub_environments"):
        assert getattr(managed, name) == getattr(plain, name), name


def test_a_gymnasium_environment_shows_the_branch_that_the_policy_sees() -> None:
    [episode, _] = play({"policy": "summarise", "at": 0.6})
    env = rlvr.make_env(Pages, context={"policy": "summarise", "at": 0.6})
    gym = rlvr.TokenEnv(env, tokenizer="bytes", max_length=900, max_new_tokens=400)
    shown, _ = gym.reset(options={"index": 0})
    lengths, reward, done = [int(shown["length"][0])], 0.0, False
    for token, acted in zip(episode.tokens, episode.action_mask, strict=True):
        if acted and not done:
            shown, reward, terminated, truncated, _ = gym.step(token)
            done = terminated or truncated
            lengths.append(int(shown["length"][0]))
    assert done and reward == 1.0
    branch = [place for start, end in episode.branches[-1] for place in range(start, end)]
    assert list(shown["input_ids"][: lengths[-1]]) == [episode.tokens[place] for place in branch]
    assert list(shown["loss_mask"][: lengths[-1]]) == [int(episode.action_mask[place]) for place in branch]
    assert shown["attention_mask"].sum() == lengths[-1] == len(branch) and any(b < a for a, b in pairwise(lengths))
    gym.close()


def test_a_gold_conversation_that_would_be_rewritten_is_not_imitated() -> None:
    env = rlvr.make_env(Pages, context={"policy": "summarise", "at": 0.6})
    oracle: Any = ["next"] * PAGES
    env.env.oracle_turns = lambda task: [*oracle, str(task.reference)]  # type: ignore[attr-defined]
    task = env.task("train", 0)
    assert tokenize_gold(TokenMDP(env, load_tokenizer("bytes"), max_length=5000, max_new_tokens=400), task)[0]
    with pytest.raises(ConfigError, match="does not fit the context, so that its history is rewritten"):
        tokenize_gold(TokenMDP(env, load_tokenizer("bytes"), max_length=900, max_new_tokens=400), task)
    env.close()


def test_results_that_the_policy_has_not_seen_are_not_dropped() -> None:
    env = rlvr.make_env(Pages, context={"policy": "drop_old_results", "keep_results": 0})
    session = env.new_session(env.task("train", 0), seed=0)
    session.start_tools()
    session.initial_messages()
    session.context_window = 100
    replies = [session.step(Turn("next", content="next", usage=(prompt, 40))) for prompt in (50, 150)]
    assert replies[0] is not None and replies[0].request is None
    assert replies[1] is not None and replies[1].request is not None
    contents = [str(message["content"]) for message in replies[1].request.messages]
    assert contents[2] == "[dropped]" and "page 2: letter" in contents[-1]
    session.close()
    env.close()


def test_notes_at_which_an_episode_is_truncated_are_no_answer() -> None:
    env = rlvr.make_env(Pages, context={"policy": "summarise", "train_summaries": False})
    session = env.new_session(env.task("train", 0), seed=0)
    session.start_tools()
    session.initial_messages()
    session.context_window = 10
    asked = session.step(Turn("next", content="next", usage=(50, 4)))
    assert asked is not None and "Write down now" in asked.messages[-1]["content"]
    assert session.select_answer([Turn("next"), Turn("notes that are cut")]) == "next"
    session.artifacts()
    assert tuple(session.masked_turns) == (1,)
    session.close()
    env.close()


def test_what_cannot_rewrite_histories_says_so() -> None:
    context = {"policy": "summarise"}
    with pytest.raises(ConfigError, match="an agent manages its own context; leave `context` out of env"):
        rlvr.make_env("agent", env={"name": "shell", "context": context}, function=lambda client, task: None)
    with pytest.raises(ConfigError, match="rewrites histories, which only a rollout of rlvr can do"):
        SessionHost({"one": {"name": "search_qa", "context": context}})
