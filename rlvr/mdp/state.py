"""The state of one conversation, and where in it the policy acted."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field

from rlvr.contracts import Heard, Tokenizer, Transcript
from rlvr.episode import End
from rlvr.mdp.sessions import Lease
from rlvr.task import Task, Verdict
from rlvr.turns import Turn

OVER = Heard(over=True)
"""What is heard of an environment that takes no part in conversations."""


@dataclass(slots=True)
class State:
    """One conversation under way.

    >>> State(Task("t", user("2+2=")), tokens=[1, 6, 2], acted=[False, False, False]).end is None  # doctest: +SKIP
    True
    """

    task: Task
    tokens: list[int]
    acted: list[bool]
    turns: list[Turn] = field(default_factory=list)
    """The policy's turns so far, decoded once each."""
    heard: list[Heard] = field(default_factory=list)
    """What the session answered to each of them that was closed."""
    lease: Lease | None = field(default=None, compare=False)
    """The conversation's hold on its session; None where the environment takes no part in it."""
    ending: Transcript | Verdict | None = None
    """What is judged, once the session has been closed; a verdict where that could not be collected."""
    turn_start: int = 0
    """Where in `tokens` the policy's present turn begins."""
    chosen: int = 0
    """How many tokens the policy has chosen."""
    end: End | None = None
    cut: str = ""
    """What ran out, where that was the end: `turns`, `tokens` (of the policy's own), `turn` (those of a turn), `window` or `time`."""
    late: bool = False
    """Whether its time is up: it ends where the policy would have another turn."""

    @property
    def said(self) -> list[str]:
        """The text of each turn so far."""
        return [turn.text for turn in self.turns]

    def close(self) -> None:
        """Close the session of a conversation that is over or abandoned. Any number of times."""
        if self.lease is not None:
            self.lease.close()


def turns_of(state: State, stops: frozenset[int]) -> list[list[int]]:
    """Where the tokens of each of the policy's turns stand.

    >>> turns_of(State(Task("t", user("2+2=")), [1, 9, 0, 2, 8], [False, True, True, False, True]), frozenset({0}))  # doctest: +SKIP
    [[1, 2], [4]]
    """
    turns: list[list[int]] = [[]]
    for place in (place for place, own in enumerate(state.acted) if own):
        if turns[-1] and (state.tokens[turns[-1][-1]] in stops or place > turns[-1][-1] + 1):
            turns.append([])
        turns[-1].append(place)
    return turns


def earned_by(state: State, verdict: Verdict, tokenizer: Tokenizer) -> list[float]:
    """What each token is paid if a score was earned in parts: each part on the token that completed it.

    >>> earned_by(state, Verdict(1.0, earned=(Earned(0, 0.25), Earned(-1, 0.75))), tokenizer)                   # doctest: +SKIP
    [0.0, 0.25, 0.75]
    """
    rewards, turns = [0.0] * len(state.tokens), turns_of(state, tokenizer.stop_ids)
    for part in verdict.earned:
        if not -len(turns) <= part.turn < len(turns):
            raise ValueError(f"something was earned in turn {part.turn}, and there were {len(turns)}")
        places = turns[part.turn]
        said = [state.tokens[place] for place in places]
        if part.characters is None:
            at = len(said)
        else:
            at = bisect_left(range(1, len(said) + 1), part.characters, key=lambda n: len(tokenizer.decode(said[:n]))) + 1
        rewards[places[min(at, len(said)) - 1]] += part.amount
    return rewards


def last_acted(acted: Sequence[bool]) -> int:
    """The position of the policy's last token, where a terminal reward is paid."""
    return len(acted) - 1 - list(reversed(acted)).index(True)
