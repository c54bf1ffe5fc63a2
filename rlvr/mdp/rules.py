"""The token-level MDP itself: what a token does to a conversation. Pure rules, no Gymnasium, no model.

State = (task, the ids so far, which of them the policy chose). Action = one token id. A transition appends it; where it closes a turn, the
environment's own tokens follow, marked as not acted. `TokenEnv.step` and the sampling loop both drive this class and cannot drift apart.

How an episode ends:
    a stop id closes a turn, and the environment has nothing to answer   TERMINATED
    a stop id closes the last allowed turn, and it would have answered   TRUNCATED
    no token is left, by count or by window, and no stop id came         TRUNCATED
    its time is up, and the environment would have answered              TRUNCATED
    it is the last of its group (`overlong: cut`) and has enough turns   TRUNCATED
A turn of `max_turn_tokens` is cut; the environment hears it, and the conversation continues if it answers. A stop id on the very
last allowed token is a stop. Where calls of tools are plain text, the end of the first complete call closes a turn as a stop id does; the
token that a chat template ends turns with then follows, as the environment's own.
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
"""How many characters of a reply are encoded for each token of room at first, and by how many tokens a cut may change the count."""


class TokenMDP:
    """The rules, for one environment and one tokenizer.

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
                f"{environment!r:.80} cannot pose tasks; an environment derives from rlvr.Environment and sets self.verifier "
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
        """A turn of so many tokens is cut, and the environment hears it."""
        if self.max_length < 2:
            raise ConfigError(f"max_length is {self.max_length}; a prompt and an answer need at least 2 tokens")
        self._stops = tokenizer.stop_ids
        self._tools: tuple[ToolSpec, ...] | None = None
        self.worlds = type(environment).open is not Environment.open or bool(environment.tools)
        """Whether the environment has sessions of its own. What they answered is in the record, for it may never be answered again."""
        self.takes_part = self.worlds or any(_overridden(environment, name) for name in ("reply", "answer"))
        """Whether the environment is asked anything during a conversation. If not, a turn that the policy closes is its last."""
        self.pays_parts = any(_overridden(environment, name) for name in ("earned", "earned_in"))
        """Whether the environment says when a score was earned."""
        if environment.max_turns > 1:
            tokenizer.render_reply("a")  # a chat template that cannot go on is found now, and not in every single conversation

    def history_note(self) -> str:
        """How the context of a long conversation differs from what a chat server would show the model; empty where it does not."""
        note = getattr(self.tokenizer, "history_note", None)
        return str(note()) if note and self.environment.max_turns > 1 else ""

    def start(self, task: Task, *, seed: int = 0, session: Session | None = None) -> State:
        """The state before the policy's first token. A session of the environment's own is opened. Close the state if it is not judged."""
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
        """The first part of `start`: a conversation without a prompt. A session of the environment's own is opened next."""
        asked = self.takes_part or session is not None
        return State(task, [], [], lease=Lease(self.environment, task, seed=seed, session=session) if asked else None)

    def ask(self, state: State) -> None:
        """The second part: the prompt, with the tools and the opening of the session. It uses the tokenizer, as `go_on` does."""
        task, lease = state.task, state.lease
        tokens = self.calls.render((*task.prompt, *lease.opening), lease.tools) if lease else self.tokenizer.render(task.prompt)
        if not 0 < len(tokens) < self.max_length:
            raise self._prompt_error(task, len(tokens))
        state.tokens, state.acted, state.turn_start = tokens, [False] * len(tokens), len(tokens)

    def preview(self, task: Task) -> State:
        """A conversation that never begins, to look at its prompt. It has the tools of the first session, and no opening."""
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
        """How many tokens the policy may still choose."""
        whole = min(self.max_new_tokens - state.chosen, self.max_length - len(state.tokens))
        return min(whole, self.max_turn_tokens - len(state.tokens) + state.turn_start)

    def advance(self, state: State, token: int) -> None:
        """Append one token that the policy chose, and whatever follows from it."""
        if self._append(state, [token]):
            self.listen(state)
            self.go_on(state)

    def extend(self, state: State, tokens: Sequence[int]) -> None:
        """Append a whole turn: the same as stepping its tokens one by one, in one go. What follows its first call is left out."""
        if self.say(state, tokens[: self.turn_length(state, tokens)]):
            self.listen(state)
            self.go_on(state)

    def turn_end(self, state: State) -> CallEnd | None:
        """What ends the present turn besides the stop ids."""
        return self.calls.end(state.lease.tools, state.tokens, state.turn_start) if state.lease else None

    def turn_length(self, state: State, tokens: Sequence[int]) -> int:
        """How many of these tokens are the present turn: all of them, or those up to the end of its first call."""
        ends = self.turn_end(state)
        return ends.length([*state.tokens[state.turn_start :], *tokens]) - (len(state.tokens) - state.turn_start) if ends else len(tokens)

    def say(self, state: State, tokens: Sequence[int]) -> bool:
        """The first part of `extend`: append the turn; returns whether the environment is to hear it."""
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
                f"tokens follow a stop id in a turn sampled for task {state.task.id!r}; the sampler's stop set is not the task's"
            )
        if min(tokens) < 0 or max(tokens) >= self.tokenizer.vocab_size:
            return EnvError(
                f"token ids from {min(tokens)} to {max(tokens)} for task {state.task.id!r}; allowed: 0 to {self.tokenizer.vocab_size - 1}"
            )
        return EnvError(f"tokens follow the call that ends a turn sampled for task {state.task.id!r}; the sampler's `ends` was not used")

    def say_text(self, state: State, tokens: Sequence[int], *, spent: int, cut: bool, turn: Turn | None = None) -> bool:
        """The same for tokens that only write down a text; it took the endpoint `spent` tokens of its own, or more than it had."""
        state.tokens += tokens
        state.acted += [True] * len(tokens)
        state.chosen += spent
        if cut and not (state.lease and self.max_turn_tokens < self.max_new_tokens and state.chosen < self.max_new_tokens):
            state.end, state.cut = End.TRUNCATED, "tokens"
        heard = self._close_turn(state, cut=cut)
        state.turns[-1] = turn or state.turns[-1]
        return heard

    def listen(self, state: State) -> None:
        """The second part: the session hears the turn. It may take long, and runs in any thread."""
        assert state.lease is not None
        state.heard.append(state.lease.hear(state.turns[-1]))

    def go_on(self, state: State) -> None:
        """The third part: write what was heard, or end the conversation. It uses the tokenizer, so it runs in the thread that owns it."""
        if state.heard[-1].over:
            state.end, state.cut = (End.TRUNCATED, "turn") if state.turns[-1].finish == "length" else (End.TERMINATED, "")
            return
        if spent := self._spent(state):  # nothing could follow what was heard, so it is not written
            state.end, state.cut = End.TRUNCATED, spent
            return
        room = self.max_length - len(state.tokens)
        closing = [] if state.tokens[-1] in self._stops else self.calls.closing
        ids = [*closing, *self._reply(state.heard[-1].messages, room - len(closing))]
        if room <= len(ids):  # it takes from the window, not from the policy's own tokens
            state.end, state.cut = End.TRUNCATED, "window"
            return
        state.tokens += ids
        state.acted += [False] * len(ids)
        state.turn_start = len(state.tokens)

    def _reply(self, messages: Sequence[Message], room: int) -> list[int]:
        """The tokens of a reply. If its beginning alone exceeds the room, only those: a very long text is not encoded whole."""
        most = CHARACTERS_A_TOKEN * (room + MARGIN)
        if sum(len(message["content"]) for message in messages) > most:
            begun = self.calls.reply([Message(**{**message, "content": message["content"][:most]}) for message in messages], room)
            if len(begun) > room + MARGIN:
                return begun
        return self.calls.reply(messages, room)

    def _append(self, state: State, tokens: Sequence[int]) -> bool:
        """Append what the policy chose; the last token may close its turn. Returns whether the environment is to hear it."""
        state.tokens += tokens
        state.acted += [True] * len(tokens)
        state.chosen += len(tokens)
        if tokens[-1] in self._stops or (state.lease and self._calls(state)):
            return self._close_turn(state)
        if self.budget(state) > 0:
            return False
        limit = "tokens" if state.chosen >= self.max_new_tokens else "window" if len(state.tokens) >= self.max_length else "turn"
        if limit != "turn" or state.lease is None:  # a session hears a turn that was cut
            state.end, state.cut = End.TRUNCATED, limit
        return self._close_turn(state, cut=True)

    def _calls(self, state: State) -> bool:
        """Whether the present turn ends with a call, after which nothing can follow."""
        ends = self.turn_end(state)
        return ends is not None and ends(state.tokens[state.turn_start :])

    def _close_turn(self, state: State, *, cut: bool = False) -> bool:
        """End the policy's turn; returns whether the environment is to hear it. If it takes no part, the conversation ends here."""
        text = self.tokenizer.decode(state.tokens[state.turn_start :])
        turn = Turn(text, content=text, finish="length" if cut else "stop")
        tools = state.lease.tools if state.lease else ()
        state.turns.append(self.calls.turn(turn, len(state.turns), tools, state.tokens, state.turn_start) if tools else turn)
        if not cut and state.lease is None:
            state.heard.append(OVER)
            state.end = End.TERMINATED
        return state.end is None

    def _spent(self, state: State) -> str:
        """What has run out for the policy, whatever the session says."""
        if len(state.turns) >= self.environment.max_turns:
            return "turns"
        if state.chosen >= self.max_new_tokens:
            return "tokens"
        return "time" if state.late else "overlong" if 0 < state.enough_turns <= len(state.turns) else ""

    def finish(self, state: State) -> Transcript | Verdict:
        """Collect what will be judged, once, and close the session. Never raises."""
        if state.lease is not None:
            return self._collected(state, state.lease)
        return Transcript(state.turns[-1].text if state.turns else "", turns=tuple(state.turns), heard=tuple(state.heard))

    def _collected(self, state: State, lease: Lease) -> Transcript | Verdict:
        state.ending = state.ending or lease.collect(tuple(state.turns), tuple(state.heard))
        lease.close()
        return state.ending

    def judge(self, state: State) -> Verdict:
        """The verdict on a conversation that is over. Never raises: a verifier that does is the machinery's fault."""
        ending = self.finish(state)
        verdict = ending if isinstance(ending, Verdict) else judged_whole(self.environment.verifier, state.task, ending)
        return self.with_earned(state, verdict) if verdict.earned or self.pays_parts else verdict

    def with_earned(self, state: State, verdict: Verdict) -> Verdict:
        """The verdict with what the environment says of when its score was earned."""
        if not verdict.scored or verdict.fault is Fault.ANSWER:
            return verdict
        try:
            if earned := self.environment.earned_in(state.task, list(state.turns), verdict):
                verdict = replace(verdict, earned=tuple(earned))
                self.rewards(state, verdict)
        except (Exception, SystemExit) as error:
            return Verdict(None, f"{type(self.environment).__name__}.earned: {type(error).__name__}: {error}", fault=Fault.INFRA)
        return verdict

    def rewards(self, state: State, verdict: Verdict) -> list[float]:
        """What each token is paid: the whole score on the policy's last one, or each part of it on the token that completed it."""
        if verdict.earned:
            return earned_by(state, verdict, self.tokenizer)
        rewards = [0.0] * len(state.tokens)
        if verdict.score is not None:
            rewards[last_acted(state.acted)] = verdict.score
        return rewards

    def episode(self, state: State, verdict: Verdict, *, group: str, logprobs: list[float] | None = None, version: int = 0) -> Episode:
        """The record of a conversation that is over."""
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
        """What is recorded of a session: what went wrong in it, which turns have calls that could not be read, and what it answered."""
        meta: dict[str, Any] = {"trouble": lease.trouble} if lease.trouble else {}
        if malformed := [index for index, turn in enumerate(state.turns) if turn.malformed]:
            meta["malformed_turns"] = malformed
        if self.worlds:
            meta["session"] = session_record(lease, state.turns, state.heard, state.ending)
        return meta

    def answer(self, state: State) -> str:
        """The text that was judged; empty where nobody could say it, and the verdict says so."""
        ending = self.finish(state)
        return ending.answer if isinstance(ending, Transcript) else ""


def _overridden(environment: Environment, name: str) -> bool:
    """Whether an environment has a method of its own in place of the default."""
    return getattr(getattr(environment, name), "__func__", None) is not getattr(Environment, name)


def posed(task: object) -> Task:
    """The task that an environment posed, if it is one."""
    if not isinstance(task, Task):
        raise no_task(task)
    return task


def no_task(given: object) -> EnvError:
    """The error where an environment posed something else than a task."""
    return EnvError(f"the environment posed {given!r:.80}; `task` must return an rlvr.Task(id, user(text), reference=...)")
