"""A sampler whose answers come in parts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from rlvr.contracts import Completion, Request, Sampler, SamplingParams, StaticQueue
from rlvr.episode import Episode, StopReason
from rlvr.mdp.token_mdp import TokenMDP
from rlvr.mdp.tokenizers import load_tokenizer
from rlvr.rollout.partial_rollouts import CONTINUES_ERROR, InterruptibleSampler, build_rollout, get_partial_completion, is_continuation
from rlvr.rollout.rollout_request import PartialCompletion, RolloutRequest
from tests.fixtures.worlds import TOKENS, Sums

GOAL = [7, 8, 9, 10, 0]
WORDS: Any = SimpleNamespace(stop_ids=frozenset({0}), vocab_size=100)


class Counting(Sampler):
    """Says GOAL, whatever of it is in the prompt already."""

    def __init__(self) -> None:
        self.seeds = list[int]()

    def stream_completions(self, requests: Sequence[Request], sampling: SamplingParams) -> Iterator[tuple[int, Completion]]:
        for place, request in enumerate(requests):
            self.seeds.append(request.seed)
            if request.prompt[0] == 99:
                yield place, Completion([], [], "error", "the engine fell over")
                continue
            rest = GOAL[len(request.prompt) - 1 :][: request.max_tokens]
            yield place, Completion(rest, [-0.1 * token for token in rest], "stop" if rest[-1] == 0 else "length")


class Serving(Counting):
    """The same by way of `stream_from_queue`."""

    def stream_from_queue(self, queue: object, sampling: SamplingParams) -> Iterator[tuple[int, Completion] | None]:
        yield None
        while asked := queue.pop(1):  # type: ignore[attr-defined]
            for number, request in asked:
                [(_, completion)] = self.stream_completions([request], sampling)
                yield number, completion


def given(parts: InterruptibleSampler, *requests: Request) -> list[Completion]:
    found = dict(one for one in parts.stream_from_queue(StaticQueue(requests), SamplingParams()) if one is not None)
    return [found[number] for number in range(len(requests))]


@pytest.mark.parametrize("kind", [Counting, Serving])
def test_an_answer_continues_where_it_was_cut(kind: type[Counting]) -> None:
    inner = kind()
    parts, request, begun, cuts = InterruptibleSampler(inner, 2, WORDS), Request([1], 8, seed=5), dict[int, PartialCompletion](), 0
    for version in (3, 4, 5):
        with parts.interrupt_completions(begun, version) as known:
            [completion] = given(parts, request)
            part = known[5]
        cuts += completion.error == CONTINUES_ERROR
        begun = {5: part}
    assert cuts == 2 and completion.tokens == GOAL and completion.finish_reason == "stop"
    assert completion.logprobs == [-0.1 * token for token in GOAL] and part.version_spans == [[3, 2], [4, 2], [5, 1]]
    assert len(set(inner.seeds)) == 3 and inner.seeds[0] == 5


def test_outside_nothing_is_cut() -> None:
    parts = InterruptibleSampler(Counting(), 2, WORDS)
    assert given(parts, Request([1], 8))[0].tokens == GOAL


def test_the_limit_of_the_answer_ends_it() -> None:
    parts = InterruptibleSampler(Counting(), 2, WORDS)
    with parts.interrupt_completions({5: PartialCompletion([7, 8], [-0.7, -0.8], [[0, 2]])}, 1) as known:
        [completion] = given(parts, Request([1], 3, seed=5))
    assert completion.finish_reason == "length" and completion.tokens == [7, 8, 9] == known[5].tokens


def test_a_failure_is_no_part() -> None:
    parts = InterruptibleSampler(Counting(), 2, WORDS)
    with parts.interrupt_completions({}, 1) as known:
        bad, good = given(parts, Request([99], 8, seed=1), Request([1], 1, seed=2))
    assert bad.error == "the engine fell over" and good.tokens == [7] and list(known) == [2]


STOP = min(load_tokenizer(TOKENS).stop_ids)
GIVEN: dict[str, tuple[list[int], list[float], str]] = {
    "not a number": ([7, 7], [-0.1, float("nan")], "log-probability nan"),
    "above 0": ([7, 7], [-0.1, 0.5], "log-probability 0.5"),
    "too few": ([7], [-0.1], "for length after 1 tokens"),
    "no token": ([7, 10**6], [-0.1, -0.1], "token ids from 7 to 1000000"),
    "a negative token": ([7, -1], [-0.1, -0.1], "token ids from -1 to 7"),
    "after a stop": ([STOP, 7], [-0.1, -0.1], "tokens follow a stop id"),
    "a stop": ([7, STOP], [-0.1, -0.1], ""),
}


class Once(Sampler):
    """Says one thing, and that there would be more."""

    def __init__(self, tokens: list[int], logprobs: list[float]) -> None:
        self.completion = Completion(tokens, logprobs, "length")

    def stream_completions(self, requests: Sequence[Request], sampling: SamplingParams) -> Iterator[tuple[int, Completion]]:
        yield from ((place, self.completion) for place, _ in enumerate(requests))


def asked_once(given: tuple[list[int], list[float]], part: PartialCompletion, most: int | None) -> Episode:
    mdp = TokenMDP(Sums(below=5), load_tokenizer(TOKENS), max_new_tokens=8)
    with build_rollout(mdp, Once(*given), partial_rollout_tokens=most) as rollout:
        [episode] = rollout.collect([RolloutRequest(mdp.environment.task("train", 0), "1:0", 3, partial_completion=part)], SamplingParams())
    return episode


@pytest.mark.parametrize("most", [2, None])
@pytest.mark.parametrize("name", GIVEN)
def test_a_part_that_cannot_go_on_is_looked_at_as_a_whole_answer_is(name: str, most: int | None) -> None:
    """Kept, it would fail in a later step, or end the run, since its tokens would be in a prompt."""
    tokens, logprobs, words = GIVEN[name]
    episode = asked_once((tokens, logprobs), PartialCompletion(), most)
    assert (
        episode.stop_reason is (StopReason.FAILED if words else StopReason.TERMINATED)
        and words in episode.error
        and get_partial_completion(episode) is None
    )


def test_a_part_of_an_older_checkpoint_that_cannot_go_on_fails() -> None:
    episode = asked_once(([7, 7], [-0.1, -0.1]), PartialCompletion([7, 7], [-0.1, float("nan")], [[0, 2]]), 2)
    assert episode.stop_reason is StopReason.FAILED and "log-probability nan" in episode.error


def cut(tokens: list[int], logprobs: list[float], versions: list[list[int]]) -> Episode:
    count = len(tokens)
    lists = [1, *tokens], [False, *[True] * count], [0.0, *logprobs], [0.0] * (count + 1)
    return Episode("t", "g", *lists, StopReason.FAILED, error=CONTINUES_ERROR, meta={"versions": versions})


LOGPROBS = [-0.5, -0.25, -1.0]
TWO = PartialCompletion([7, 8], LOGPROBS[:2], [[0, 1], [1, 1]])


@pytest.mark.parametrize(
    ("episode", "part"),
    [
        (cut([7, 8, 9], LOGPROBS, [[0, 1], [1, 2]]), TWO),
        (cut([7, 8, 9], LOGPROBS, [[0, 1], [1, 1], [2, 1]]), TWO),
        (cut([7, 8, 9], LOGPROBS, [[4, 3]]), PartialCompletion()),
        (replace(cut([], [], []), error="the engine fell over"), TWO),
        (
            replace(cut([7, 8, 9], LOGPROBS, []), stop_reason=StopReason.TERMINATED, error="", meta={}),
            PartialCompletion([7], [-0.5], [[0, 1]]),
        ),
    ],
)
def test_an_episode_goes_on_from_its_part(episode: Episode, part: PartialCompletion) -> None:
    assert is_continuation(episode, part)


@pytest.mark.parametrize(
    "episode",
    [
        cut([7, 7, 9], LOGPROBS, [[0, 1], [1, 2]]),
        cut([7, 8, 9], [-0.5, -0.3, -1.0], [[0, 1], [1, 2]]),
        cut([7], [-0.5], [[0, 1]]),
        cut([7, 8, 9], LOGPROBS, [[0, 2], [1, 1]]),
        cut([7, 8, 9], LOGPROBS, [[0, 1], [2, 2]]),
        cut([7, 8, 9], LOGPROBS, [[1, 3]]),
    ],
    ids=["token", "log-probability", "shorter", "count", "version", "versions"],
)
def test_an_episode_with_another_beginning_is_noticed(episode: Episode) -> None:
    assert not is_continuation(episode, TWO)
