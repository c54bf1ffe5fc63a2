"""The state of one conversation, and the positions of the policy's tokens."""

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
"""The step result of an environment that is not interactive."""


@dataclass(slots=True)
class State:
    """The state of one conversation."""

    task: Task
    tokens: list[int]
    acted: list[bool]
    turns: list[Turn] = field(default_factory=list)
    """The policy's decoded turns so far."""
    heard: list[Heard] = field(default_factory=list)
    """The session's reply to each completed turn."""
    lease: Lease | None = field(default=None, compare=False)
    """The handle of the conversation's session; None if the environment is not interactive."""
    ending: Transcript | Verdict | None = None
    """The transcript to verify, collected before the session is closed; a verdict if it could not be collected."""
    turn_start: int = 0
    """The position in `tokens` where the policy's current turn begins."""
    chosen: int = 0
    """The number of tokens that the policy has generated."""
    end: End | None = None
    cut: str = ""
    """The limit that ended the conversation: `turns`, `tokens` (of the policy), `turn` (the tokens of one turn), `window`, `time` or
    `overlong` (the rest of its group is done, and it has as many turns as the longest of them)."""
    enough_turns: int = 0
    """The turn limit of the last conversation of a group, once the others are done; 0 if there is none."""
    late: bool = False
    """True if the episode timeout has passed; the conversation then ends before the policy's next turn."""

    @property
    def said(self) -> list[str]:
        """The text of each turn so far."""
        return [turn.text for turn in self.turns]

    def close(self) -> None:
        """Close the session. May be called more than once."""
        if self.lease is not None:
            self.lease.close()


def turns_of(state: State, stops: frozenset[int]) -> list[list[int]]:
    """Return the token positions of each policy turn."""
    turns: list[list[int]] = [[]]
    for place in (place for place, own in enumerate(state.acted) if own):
        if turns[-1] and (state.tokens[turns[-1][-1]] in stops or place > turns[-1][-1] + 1):
            turns.append([])
        turns[-1].append(place)
    return turns


def earned_by(state: State, verdict: Verdict, tokenizer: Tokenizer) -> list[float]:
    """Compute the reward of each token from step rewards: each amount is paid on the token that completes its position."""
    rewards, turns = [0.0] * len(state.tokens), turns_of(state, tokenizer.stop_ids)
    for part in verdict.earned:
        if not -len(turns) <= part.turn < len(turns):
            raise ValueError(f"a step reward is for turn {part.turn}, and there were {len(turns)}")
        places = turns[part.turn]
        said = [state.tokens[place] for place in places]
        if part.characters is None:
            at = len(said)
        else:
            at = bisect_left(range(1, len(said) + 1), part.characters, key=lambda n: len(tokenizer.decode(said[:n]))) + 1
        rewards[places[min(at, len(said)) - 1]] += part.amount
    return rewards


def last_acted(acted: Sequence[bool]) -> int:
    """Return the position of the policy's last token, where a terminal reward is paid."""
    return len(acted) - 1 - list(reversed(acted)).index(True)
