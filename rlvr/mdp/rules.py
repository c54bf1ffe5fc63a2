"""The transition rules of the token-level MDP, without Gymnasium and without a model.

State = (task, token ids, action mask). Action = one token id. A transition appends the token; if it closes a turn, the environment's
tokens follow, with action mask False. `TokenEnv.step` and the sampling loop both use this class, so they cannot diverge.

How an episode ends:
    a stop id closes a turn, and the environment has no reply                    TERMINATED
    a stop id closes the last allowed turn, and the environment would reply      TRUNCATED
    the token limit or the context window is reached without a stop id           TRUNCATED
    the episode timeout has passed, and the environment would reply              TRUNCATED
    it is the last of its group (`straggler_policy: truncate`) with enough turns TRUNCATED
A turn of `max_turn_tokens` is truncated; the session still receives it, and the conversation continues if it replies. A stop id on the
last allowed token counts as a stop. If tool calls are plain text, the end of the first complete call closes a turn like a stop id; the
end-of-turn token of the chat template is then appended as a token of the environment.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any

from rlvr.contracts import Environment, Session, Tokenizer, Transcript, Verifier
from rlvr.episode import End, Episode
from rlvr.errors import ConfigError, EnvError
from rlvr.mdp.calls import CallEnd, Calls
from rlvr.mdp.limits import plain_limits
from rlvr.mdp.sessions import Lease, judged_whole, session_record
from rlvr.mdp.state import OVER, earned_by, last_acted
from rlvr.mdp.state import State as State
from rlvr.task import Fault, Message, Task, Verdict
from rlvr.turns import ToolSpec, Turn

CHARACTERS_A_TOKEN, MARGIN = 16, 64
"""The number of characters of a reply that are encoded per remaining token, and a margin in tokens for the cut."""


class TokenMDP:
    """The token-level MDP of one environment and one tokenizer.

    >>> mdp = TokenMDP(make("env", "arithmetic"), CharTokenizer(), max_new_tokens=8)        # doctest: +SKIP
    >>> state = mdp.start(mdp.environment.task("train", 0)); mdp.advance(state, 20)         # doctest: +SKIP
    """

    def __init__(
        self,
        environment: Environment,
        tokenizer: Tokenizer,
        *,
        max_new_tokens: int | None = None,
        max_length: int | None = None,
        max_turn_tokens: int | None = None,
    ) -> None:
        if not isinstance(environment, Environment) or not isinstance(getattr(environment, "verifier", None), Verifier):
            raise ConfigError(
                f"{environment!r:.80} is not an environment; an environment derives from rlvr.Environment and sets self.verifier "
                f"to an rlvr.Verifier"
            )
        plain_limits(environment)
        self.environment = environment
        self.tokenizer = tokenizer
        self.calls = Calls(tokenizer, environment)
        self.max_new_tokens = environment.max_new_tokens if max_new_tokens is None else max_new_tokens
        room = environment.max_prompt_tokens + self.calls.room + self.max_new_tokens * (1 if environment.max_turns == 1 else 2)
        self.max_length = room if max_length is None else max_length
        if self.max_new_tokens < 1:
            raise ConfigError(f"max_new_tokens is {self.max_new_tokens}; the policy needs at least 1 token")
        if max_turn_tokens is not None and max_turn_tokens < 1:
            raise ConfigError(f"max_turn_tokens is {max_turn_tokens}; a turn needs at least 1 token")
        self.max_turn_tokens = self.max_new_tokens if max_turn_tokens is None else max_turn_tokens
        """A turn that reaches this length is truncated and passed to the session."""
        if self.max_length < 2:
            raise ConfigError(f"max_length is {self.max_length}; a prompt and an answer need at least 2 tokens")
        self._stops = tokenizer.stop_ids
        self._tools: tuple[ToolSpec, ...] | None = None
        self.worlds = type(environment).open is not Environment.open or bool(environment.tools)
        """True if the environment has stateful sessions. Their replies are recorded, because they may not be reproducible."""
        self.takes_part = self.worlds or any(_overridden(environment, name) for name in ("reply", "answer"))
        """True if the environment takes part in the conversation. Otherwise the first completed turn ends it."""
        self.pays_parts = any(_overridden(environment, name) for name in ("earned", "earned_in"))
        """True if the environment distributes the score over turns."""
        if environment.max_turns > 1:
            tokenizer.render_reply("a")  # fails early if the chat template cannot continue a conversation

    def history_note(self) -> str:
        """Describe how the context of a conversation differs from that of a chat server; empty if it does not."""
        note = getattr(self.tokenizer, "history_note", None)
        return str(note()) if note and self.environment.max_turns > 1 else ""

    def start(self, task: Task, *, seed: int = 0, session: Session | None = None) -> State:
        """Create the state before the policy's first token, and open the session. Close the state if it is not verified."""
        state = self.pose(posed(task), seed=seed, session=session)
        try:
            if self.worlds and state.lease:
                state.lease.open()
            self.ask(state)
        except BaseException:
            state.close()
            raise
        return state

    def pose(self, task: Task, *, seed: int = 0, session: Session | None = None) -> State:
        """Create a conversation without opening its session and without a prompt."""
        asked = self.takes_part or session is not None
        return State(task, [], [], lease=Lease(self.environment, task, seed=seed, session=session) if asked else None)

    def ask(self, state: State) -> None:
        """Render the prompt, with the tools and initial messages of the session. Uses the tokenizer, so it runs in its thread."""
        task, lease = state.task, state.lease
        tokens = self.calls.render((*task.prompt, *lease.opening), lease.tools) if lease else self.tokenizer.render(task.prompt)
        if not 0 < len(tokens) < self.max_length:
            raise self._prompt_error(task, len(tokens))
        state.tokens, state.acted, state.turn_start = tokens, [False] * len(tokens), len(tokens)

    def preview(self, task: Task) -> State:
        """Render the prompt of a task without starting a conversation: with the tools of the first session, and no initial messages."""
        if self.worlds and self._tools is None:
            with closing(self.start(task)) as state:
                self._tools = state.lease.tools if state.lease else ()
        state = self.pose(posed(task))
        if state.lease:
            state.lease.tools = self._tools or ()
        self.ask(state)
        return state

    def _prompt_error(self, task: Task, length: int) -> EnvError:
        if not length:
            return EnvError(f"the prompt of task {task.id!r} renders to no token at all; give it some text")
        return EnvError(
            f"the prompt of task {task.id!r} is {length} tokens; with max_length {self.max_length} no token is left "
            f"for an answer; raise max_length (or the environment's max_prompt_tokens) or leave the task out"
        )

    def budget(self, state: State) -> int:
        """Return how many tokens the policy may still generate in this turn."""
        whole = min(self.max_new_tokens - state.chosen, self.max_length - len(state.tokens))
        return min(whole, self.max_turn_tokens - len(state.tokens) + state.turn_start)

    def advance(self, state: State, token: int) -> None:
        """Append one policy token; if it closes the turn, step the session and append its reply."""
        if self._append(state, [token]):
            self.listen(state)
            self.go_on(state)

    def extend(self, state: State, tokens: Sequence[int]) -> None:
        """Append a whole turn, equivalent to stepping its tokens one by one. Tokens after its first call are dropped."""
        if self.say(state, tokens[: self.turn_length(state, tokens)]):
            self.listen(state)
            self.go_on(state)

    def turn_end(self, state: State) -> CallEnd | None:
        """Build the stop criterion of the current turn; None if only stop ids end it."""
        return self.calls.end(state.lease.tools, state.tokens, state.turn_start) if state.lease else None

    def turn_length(self, state: State, tokens: Sequence[int]) -> int:
        """Return how many of these tokens belong to the current turn: all, or those up to the end of its first call."""
        ends = self.turn_end(state)
        return ends.length([*state.tokens[state.turn_start :], *tokens]) - (len(state.tokens) - state.turn_start) if ends else len(tokens)

    def say(self, state: State, tokens: Sequence[int]) -> bool:
        """Append a whole turn without stepping the session; return whether the session must be stepped."""
        fits = state.end is None and 0 < len(tokens) <= self.budget(state) and self._stops.isdisjoint(tokens[:-1])
        known = fits and min(tokens) >= 0 and max(tokens) < self.tokenizer.vocab_size
        if not known or (state.lease and self.turn_length(state, tokens) < len(tokens)):
            raise self._turn_error(state, tokens)
        return self._append(state, tokens)

    def _turn_error(self, state: State, tokens: Sequence[int]) -> EnvError:
        if not tokens or state.end is not None or len(tokens) > self.budget(state):
            return EnvError(f"{len(tokens)} tokens for task {state.task.id!r}, where {self.budget(state)} may follow (end: {state.end})")
        if not self._stops.isdisjoint(tokens[:-1]):
            return EnvError(
                f"tokens follow a stop id in a turn sampled for task {state.task.id!r}; the sampler's stop ids are not the tokenizer's"
            )
        if min(tokens) < 0 or max(tokens) >= self.tokenizer.vocab_size:
            return EnvError(
                f"token ids from {min(tokens)} to {max(tokens)} for task {state.task.id!r}; allowed: 0 to {self.tokenizer.vocab_size - 1}"
            )
        return EnvError(f"tokens follow the call that ends a turn sampled for task {state.task.id!r}; the sampler ignored `stop_criterion`")

    def say_text(self, state: State, tokens: Sequence[int], *, spent: int, cut: bool, turn: Turn | None = None) -> bool:
        """Append a turn whose tokens only encode a text, for which an endpoint used `spent` tokens of its own.

        `cut` is true if the endpoint reached its limit. Returns whether the session must be stepped.
        """
        state.tokens += tokens
        state.acted += [True] * len(tokens)
        state.chosen += spent
        if cut and not (state.lease and self.max_turn_tokens < self.max_new_tokens and state.chosen < self.max_new_tokens):
            state.end, state.cut = End.TRUNCATED, "tokens"
        heard = self._close_turn(state, cut=cut)
        state.turns[-1] = turn or state.turns[-1]
        return heard

    def listen(self, state: State) -> None:
        """Pass the last turn to the session and store its reply. May be slow; runs in any thread."""
        assert state.lease is not None
        state.heard.append(state.lease.hear(state.turns[-1]))

    def go_on(self, state: State) -> None:
        """Append the reply of the session, or end the conversation. Uses the tokenizer, so it runs in its thread."""
        if state.heard[-1].over:
            state.end, state.cut = (End.TRUNCATED, "turn") if state.turns[-1].finish == "length" else (End.TERMINATED, "")
            return
        if spent := self._spent(state):  # no turn can follow the reply, so it is not appended
            state.end, state.cut = End.TRUNCATED, spent
            return
        room = self.max_length - len(state.tokens)
        closing = [] if state.tokens[-1] in self._stops else self.calls.closing
        ids = [*closing, *self._reply(state.heard[-1].messages, room - len(closing))]
        if room <= len(ids):  # replies use the context window, not the policy's token limit
            state.end, state.cut = End.TRUNCATED, "window"
            return
        state.tokens += ids
        state.acted += [False] * len(ids)
        state.turn_start = len(state.tokens)

    def _reply(self, messages: Sequence[Message], room: int) -> list[int]:
        """Render a reply. A very long text is not encoded completely if its beginning already exceeds the remaining tokens."""
        most = CHARACTERS_A_TOKEN * (room + MARGIN)
        if sum(len(message["content"]) for message in messages) > most:
            begun = self.calls.reply([Message(**{**message, "content": message["content"][:most]}) for message in messages], room)
            if len(begun) > room + MARGIN:
                return begun
        return self.calls.reply(messages, room)

    def _append(self, state: State, tokens: Sequence[int]) -> bool:
        """Append policy tokens, of which the last may close the turn; return whether the session must be stepped."""
        state.tokens += tokens
        state.acted += [True] * len(tokens)
        state.chosen += len(tokens)
        if tokens[-1] in self._stops or (state.lease and self._calls(state)):
            return self._close_turn(state)
        if self.budget(state) > 0:
            return False
        limit = "tokens" if state.chosen >= self.max_new_tokens else "window" if len(state.tokens) >= self.max_length else "turn"
        if limit != "turn" or state.lease is None:  # a truncated turn is passed to the session
            state.end, state.cut = End.TRUNCATED, limit
        return self._close_turn(state, cut=True)

    def _calls(self, state: State) -> bool:
        """Return whether the current turn ends with a complete call."""
        ends = self.turn_end(state)
        return ends is not None and ends(state.tokens[state.turn_start :])

    def _close_turn(self, state: State, *, cut: bool = False) -> bool:
        """Close the policy's turn; return whether the session must be stepped. Without a session, the conversation ends."""
        text = self.tokenizer.decode(state.tokens[state.turn_start :])
        turn = Turn(text, content=text, finish="length" if cut else "stop")
        tools = state.lease.tools if state.lease else ()
        state.turns.append(self.calls.turn(turn, len(state.turns), tools, state.tokens, state.turn_start) if tools else turn)
        if not cut and state.lease is None:
            state.heard.append(OVER)
            state.end = End.TERMINATED
        return state.end is None

    def _spent(self, state: State) -> str:
        """Return the name of the limit that the policy has reached; empty if it may continue."""
        if len(state.turns) >= self.environment.max_turns:
            return "turns"
        if state.chosen >= self.max_new_tokens:
            return "tokens"
        return "time" if state.late else "overlong" if 0 < state.enough_turns <= len(state.turns) else ""

    def finish(self, state: State) -> Transcript | Verdict:
        """Collect the transcript once, and close the session. Never raises."""
        if state.lease is not None:
            return self._collected(state, state.lease)
        return Transcript(state.turns[-1].text if state.turns else "", turns=tuple(state.turns), heard=tuple(state.heard))

    def _collected(self, state: State, lease: Lease) -> Transcript | Verdict:
        state.ending = state.ending or lease.collect(tuple(state.turns), tuple(state.heard))
        lease.close()
        return state.ending

    def judge(self, state: State) -> Verdict:
        """Verify a finished conversation. Never raises: a verifier that raises gives an infrastructure fault."""
        ending = self.finish(state)
        verdict = ending if isinstance(ending, Verdict) else judged_whole(self.environment.verifier, state.task, ending)
        return self.with_earned(state, verdict) if verdict.earned or self.pays_parts else verdict

    def with_earned(self, state: State, verdict: Verdict) -> Verdict:
        """Add the environment's step rewards to a verdict."""
        if not verdict.scored or verdict.fault is Fault.ANSWER:
            return verdict
        try:
            if earned := self.environment.earned_in(state.task, list(state.turns), verdict):
                verdict = replace(verdict, earned=tuple(earned))
                self.rewards(state, verdict)
        except (Exception, SystemExit) as error:
            return Verdict(None, f"{type(self.environment).__name__}.step_rewards: {type(error).__name__}: {error}", fault=Fault.INFRA)
        return verdict

    def rewards(self, state: State, verdict: Verdict) -> list[float]:
        """Compute the reward of each token: the score on the policy's last token, or each step reward on the token that completes it."""
        if verdict.earned:
            return earned_by(state, verdict, self.tokenizer)
        rewards = [0.0] * len(state.tokens)
        if verdict.score is not None:
            rewards[last_acted(state.acted)] = verdict.score
        return rewards

    def episode(self, state: State, verdict: Verdict, *, group: str, logprobs: list[float] | None = None, version: int = 0) -> Episode:
        """Build the episode of a finished conversation."""
        if state.end is None:
            raise EnvError(f"task {state.task.id!r} is not over yet")
        return Episode(
            task_id=state.task.id,
            group=group,
            tokens=state.tokens,
            acted=state.acted,
            logprobs=[0.0] * len(state.tokens) if logprobs is None else logprobs,
            rewards=self.rewards(state, verdict),
            end=state.end if verdict.scored else End.FAILED,
            policy_version=version,
            verdict=verdict,
            text=self.answer(state),
            turns=len(state.turns),
            error="" if verdict.scored else verdict.reason,
            meta=({"cut": state.cut} if state.cut else {}) | (self._session_meta(state, state.lease) if state.lease else {}),
        )

    def _session_meta(self, state: State, lease: Lease) -> dict[str, Any]:
        """Build the metadata of a session: warnings, the turns with malformed calls, and the session record."""
        meta: dict[str, Any] = {"trouble": lease.trouble} if lease.trouble else {}
        if malformed := [index for index, turn in enumerate(state.turns) if turn.malformed]:
            meta["malformed_turns"] = malformed
        if self.worlds:
            meta["session"] = session_record(lease, state.turns, state.heard, state.ending)
        return meta

    def answer(self, state: State) -> str:
        """Return the text that was verified; empty if it could not be collected."""
        ending = self.finish(state)
        return ending.answer if isinstance(ending, Transcript) else ""


def _overridden(environment: Environment, name: str) -> bool:
    """Return whether an environment overrides a method."""
    return getattr(getattr(environment, name), "__func__", None) is not getattr(Environment, name)


def posed(task: object) -> Task:
    """Return the value if it is a Task; raise EnvError otherwise."""
    if not isinstance(task, Task):
        raise no_task(task)
    return task


def no_task(given: object) -> EnvError:
    """Build the error for an environment that returned something other than a Task."""
    return EnvError(f"the environment returned {given!r:.80}; `task` must return an rlvr.Task(id, user(text), reference=...)")
