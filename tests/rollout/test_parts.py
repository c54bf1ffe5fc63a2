"""A sampler whose answers come in parts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest

from rlvr.contracts import Completion, Listed, Request, Sampler, Sampling
from rlvr.episode import End
from rlvr.mdp.rules import TokenMDP
from rlvr.mdp.tokenizers import tokenizer_from
from rlvr.rollout.draws import Draw, Part
from rlvr.rollout.parts import CUT, Parts, part_of, rollout_of
from tests.fixtures.worlds import TOKENS, Sums

GOAL = [7, 8, 9, 10, 0]


class Counting(Sampler):
    """Says GOAL, whatever of it is in the prompt already."""

    def __init__(self) -> None:
        self.seeds = list[int]()

    def stream(self, requests: Sequence[Request], sampling: Sampling) -> Iterator[tuple[int, Completion]]:
        for place, request in enumerate(requests):
            self.seeds.append(request.seed)
            if request.prompt[0] == 99:
                yield place, Completion([], [], "error", "the engine fell over")
                continue
            rest = GOAL[len(request.prompt) - 1 :][: request.max_tokens]
            yield place, Completion(rest, [-0.1 * token for token in rest], "stop" if rest[-1] == 0 else "length")


class Serving(Counting):
    """The same by way of `serve`."""

    def serve(self, feed: object, sampling: Sampling) -> Iterator[tuple[int, Completion] | None]:
        yield None
        while asked := feed.take(1):  # type: ignore[attr-defined]
            for number, request in asked:
                [(_, completion)] = self.stream([request], sampling)
                yield number, completion


def given(parts: Parts, *requests: Request) -> list[Completion]:
    found = dict(one for one in parts.serve(Listed(requests), Sampling()) if one is not None)
    return [found[number] for number in range(len(requests))]


@pytest.mark.parametrize("kind", [Counting, Serving])
def test_an_answer_continues_where_it_was_cut(kind: type[Counting]) -> None:
    inner = kind()
    parts, request, begun, cuts = Parts(inner, 2), Request([1], 8, seed=5), dict[int, Part](), 0
    for version in (3, 4, 5):
        with parts.cutting(begun, version) as known:
            [completion] = given(parts, request)
            part, ended = known[5]
        cuts += completion.error == CUT
        begun = {5: part}
    assert ended and cuts == 2 and completion.tokens == GOAL and completion.finish == "stop"
    assert completion.logprobs == [-0.1 * token for token in GOAL] and part.versions == [[3, 2], [4, 2], [5, 1]]
    assert len(set(inner.seeds)) == 3 and inner.seeds[0] == 5


def test_outside_nothing_is_cut() -> None:
    parts = Parts(Counting(), 2)
    assert given(parts, Request([1], 8))[0].tokens == GOAL


def test_the_limit_of_the_answer_ends_it() -> None:
    parts = Parts(Counting(), 2)
    with parts.cutting({5: Part([7, 8], [-0.7, -0.8], [[0, 2]])}, 1) as known:
        [completion] = given(parts, Request([1], 3, seed=5))
    assert completion.finish == "length" and completion.tokens == [7, 8, 9] and known[5][1]


def test_a_failure_is_no_part() -> None:
    parts = Parts(Counting(), 2)
    with parts.cutting({}, 1) as known:
        bad, good = given(parts, Request([99], 8, seed=1), Request([1], 1, seed=2))
    assert bad.error == "the engine fell over" and good.tokens == [7] and list(known) == [2]


@pytest.mark.parametrize(
    ("logprobs", "words"), [([float("nan")], "log-probability nan"), ([0.5], "log-probability 0.5"), ([-0.1], "for length after 1 tokens")]
)
def test_a_part_that_cannot_be_one_is_a_failed_answer_at_once(logprobs: list[float], words: str) -> None:
    """Kept, it would fail in a later step."""

    class Bad(Sampler):
        def stream(self, requests: Sequence[Request], sampling: Sampling) -> Iterator[tuple[int, Completion]]:
            for place, _ in enumerate(requests):
                yield place, Completion([7], logprobs, "length")

    mdp = TokenMDP(Sums(below=5), tokenizer_from(TOKENS), max_new_tokens=4)
    with rollout_of(mdp, Bad(), most=2) as rollout:
        [episode] = rollout.collect([Draw(mdp.environment.task("train", 0), "1:0", 3, part=Part())], Sampling())
    assert episode.end is End.FAILED and words in episode.error and part_of(episode) is None
