"""The state of one conversation, and the positions of the policy's tokens."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field

from rlvr.contracts import StepResult, Tokenizer, Transcript
from rlvr.contracts.chat_request import ChatRequest
from rlvr.episode import Segment, StopReason
from rlvr.mdp.branches import ChatHistory, add_branch_segments
from rlvr.mdp.sessions import LazySession
from rlvr.task import Task, Verdict
from rlvr.turns import Turn

DONE_RESULT = StepResult(done=True)
"""The step result that ends a conversation: of an environment that is not interactive, and after an error of the session."""


@dataclass(slots=True)
class ConversationState:
    """The state of one conversation."""

    task: Task
    tokens: list[int]
    action_mask: list[bool]
    turns: list[Turn] = field(default_factory=list)
    """The policy's decoded turns so far."""
    step_results: list[StepResult] = field(default_factory=list)
    """The session's reply to each completed turn."""
    session_handle: LazySession | None = field(default=None, compare=False)
    """The handle of the conversation's session; None if the environment is not interactive."""
    collected: Transcript | Verdict | None = None
    """The transcript to verify, collected before the session is closed; a verdict if it could not be collected."""
    turn_start: int = 0
    """The position in `tokens` where the policy's current turn begins."""
    num_policy_tokens: int = 0
    """The number of tokens that the policy has generated."""
    stop_reason: StopReason | None = None
    truncation_reason: str = ""
    """The limit that ended the conversation: `turns`, `tokens` (of the policy), `turn` (the tokens of one turn), `window` or `time`."""
    is_timed_out: bool = False
    """True if the episode timeout has passed; the conversation then ends before the policy's next turn."""
    logprobs: list[float] = field(default_factory=list, compare=False)
    """The log-probability of each token under the policy; 0 for the tokens that it did not choose, and for a turn that was not sampled."""
    request: ChatRequest | None = None
    """The call of an agent that the policy answers now; None in a conversation without an agent."""
    history: ChatHistory = field(default_factory=ChatHistory, compare=False)
    """What the policy has answered to the calls of an agent."""
    segments: list[Segment] = field(default_factory=list)
    """The tree of `tokens` in a conversation with an agent; empty in others."""
    branch: list[int] = field(default_factory=list, compare=False)
    """The tokens of the branch that is being sampled, if there are segments."""

    def append(self, tokens: Sequence[int], *, is_policy: bool, logprobs: Sequence[float] = ()) -> None:
        """Append tokens, with their place in the action mask and their log-probabilities: the three lists have one length."""
        self.tokens += tokens
        self.action_mask += [is_policy] * len(tokens)
        self.logprobs += logprobs or [0.0] * len(tokens)
        if self.segments:
            self.branch += tokens

    def append_request(self, request: ChatRequest, prompt: Sequence[int]) -> None:
        """Append the prompt of an agent's call: only the tokens that no branch begins with."""
        self.segments, known = add_branch_segments(self.tokens, self.segments or [Segment(0)], prompt)
        self.request, self.branch = request, list(prompt[:known])
        self.append(prompt[known:], is_policy=False)
        self.turn_start = len(self.tokens)

    @property
    def context(self) -> list[int]:
        """The tokens that the policy sees: all of them, or those of its branch."""
        return self.branch if self.segments else self.tokens

    @property
    def context_turn_start(self) -> int:
        """The position in `context` where the policy's current turn begins."""
        return len(self.context) - (len(self.tokens) - self.turn_start)

    @property
    def tree(self) -> tuple[Segment, ...]:
        """The segments for an episode: none where every token continues the one before it."""
        kept = [segment for segment in self.segments if segment.start < len(self.tokens)]  # the last one may have got no token
        return tuple(kept) if any(segment.parent != number - 1 for number, segment in enumerate(kept)) else ()

    @property
    def completions(self) -> list[str]:
        """The text of each turn so far."""
        return [turn.text for turn in self.turns]

    def close(self) -> None:
        """Close the session. May be called more than once."""
        if self.session_handle is not None:
            self.session_handle.close()


def _find_turn_positions(state: ConversationState, stop_ids: frozenset[int]) -> list[list[int]]:
    """Return the token positions of each policy turn."""
    turns: list[list[int]] = [[]]
    forks = {segment.start for number, segment in enumerate(state.segments) if segment.parent != number - 1}
    for place in (place for place, own in enumerate(state.action_mask) if own):
        if turns[-1] and (state.tokens[turns[-1][-1]] in stop_ids or place > turns[-1][-1] + 1 or place in forks):
            turns.append([])
        turns[-1].append(place)
    return turns


def place_step_rewards_on_tokens(state: ConversationState, verdict: Verdict, tokenizer: Tokenizer) -> list[float]:
    """Compute the reward of each token from step rewards: each amount is paid on the token that completes its position."""
    rewards, turns = [0.0] * len(state.tokens), _find_turn_positions(state, tokenizer.stop_ids)
    for part in verdict.step_rewards:
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


def find_last_policy_token(action_mask: Sequence[bool]) -> int:
    """Return the position of the policy's last token, where a terminal reward is paid."""
    return len(action_mask) - 1 - list(reversed(action_mask)).index(True)
