"""The transition rules of the token-level MDP, without Gymnasium and without a model.

State = (task, token ids, action mask). Action = one token id. A transition appends the token; if it closes a turn, the environment's
tokens follow, with action mask False. `TokenEnv.step` and the sampling loop both use this class, so they cannot diverge.

How an episode ends:
    a stop id closes a turn, and the environment has no reply                    TERMINATED
    a stop id closes the last allowed turn, and the environment would reply      TRUNCATED
    the token limit or the context window is reached without a stop id           TRUNCATED
    a stop id closes a turn, and the reply, or a token after it, has no room     TRUNCATED
    the episode timeout has passed, and the environment would reply              TRUNCATED
A turn of `max_turn_tokens` is truncated; the session still receives it, and the conversation continues if it replies. A stop id on the
last allowed token closes its turn. If tool calls are plain text, the end of the first complete call closes a turn like a stop id; the
end-of-turn token of the chat template is then appended as a token of the environment.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from typing import Any

from rlvr.chat.tool_calling import StopTexts, ToolFormat, TurnStopCriterion
from rlvr.contracts import Environment, Session, Tokenizer, Transcript, Verifier
from rlvr.contracts.chat_request import ChatRequest
from rlvr.episode import Episode, StopReason
from rlvr.errors import ConfigError, EnvError, SandboxOutage, describe_exception
from rlvr.mdp.answer_faults import resolve_failed_verdict
from rlvr.mdp.branches import get_path_tokens
from rlvr.mdp.limits import validate_environment_attributes
from rlvr.mdp.sessions import LazySession, build_session_record, build_unscored_verdict, call_with_exceptions, verify_transcript_safely
from rlvr.mdp.state import DONE_RESULT, find_last_policy_token, place_step_rewards_on_tokens
from rlvr.mdp.state import ConversationState as ConversationState
from rlvr.task import Fault, Message, Task, Verdict
from rlvr.turns import ToolSpec, Turn

MAX_CHARACTERS_PER_TOKEN, TRUNCATION_MARGIN_TOKENS = 16, 64
"""The number of characters of a reply that are encoded per remaining token, and a margin in tokens for the cut."""


class TokenMDP:
    """The token-level MDP of one environment and one tokenizer.

    >>> import rlvr
    >>> mdp = TokenMDP(rlvr.make_env("arithmetic"), rlvr.load_tokenizer("chars"), max_new_tokens=8)
    >>> state = mdp.start_conversation(mdp.environment.task("train", 0))
    >>> mdp.step_token(state, 20)
    >>> state.tokens[-1], state.action_mask[-1]
    (20, True)
    """

    def __init__(
        self,
        environment: Environment,
        tokenizer: Tokenizer,
        *,
        max_new_tokens: int | None = None,
        max_length: int | None = None,
        max_turn_tokens: int | None = None,
        position_limit: int | None = None,
    ) -> None:
        """Set the limits.

        Args:
            environment: the environment, whose verifier scores the conversations.
            tokenizer: the tokenizer of the policy.
            max_new_tokens: how many tokens the policy may write in a conversation; None: the environment's limit.
            max_length: how many tokens a conversation may have, with its prompt; None: what prompt and answers need; with the
                default of `max_new_tokens` at most `position_limit`.
            max_turn_tokens: how many tokens a turn may have; None: no limit of its own.
            position_limit: how many positions the model has; None: not known.
        """
        if not isinstance(environment, Environment) or not isinstance(getattr(environment, "verifier", None), Verifier):
            if isinstance(environment, Environment):
                name, found = type(environment).__name__, getattr(environment, "verifier", None)
                raise ConfigError(
                    f"the verifier of this {name} is {found!r:.80}; it must be an rlvr.Verifier: rlvr.make_env({name}, verifier='exact') "
                    f"builds a class with one, unless its own constructor sets self.verifier"
                )
            raise ConfigError(f"{environment!r:.80} is not an environment; an environment derives from rlvr.Environment")
        validate_environment_attributes(environment)
        self.environment = environment
        self.tokenizer = tokenizer
        self.tool_format = ToolFormat(tokenizer, environment)
        self.max_new_tokens = environment.max_new_tokens if max_new_tokens is None else max_new_tokens
        room = (
            environment.max_prompt_tokens
            + self.tool_format.num_tool_prompt_tokens
            + self.max_new_tokens * (1 if environment.max_turns == 1 else 2)
        )
        self.position_limit = position_limit
        self.is_window_shortened = max_length is None and max_new_tokens is None and room > (position_limit or room)
        """Whether the default window would be longer than the model's positions. One that somebody asked for is not shortened."""
        default: int = min(room, position_limit or room) if self.is_window_shortened else room
        self.max_length = default if max_length is None else max_length
        if self.max_new_tokens < 1:
            raise ConfigError(f"max_new_tokens is {self.max_new_tokens}; the policy needs at least 1 token")
        if max_turn_tokens is not None and max_turn_tokens < 1:
            raise ConfigError(f"max_turn_tokens is {max_turn_tokens}; a turn needs at least 1 token")
        self.max_turn_tokens = self.max_new_tokens if max_turn_tokens is None else max_turn_tokens
        """A turn that reaches this length is truncated and passed to the session."""
        if self.max_length < 2:
            raise ConfigError(f"max_length is {self.max_length}; a prompt and an answer need at least 2 tokens")
        self._stop_ids = tokenizer.stop_ids
        self._preview_tools: tuple[ToolSpec, ...] | None = None
        info = environment.traits
        self.has_sessions, self.is_interactive, self.has_step_rewards = info.has_sessions, info.is_interactive, info.has_step_rewards
        if environment.max_turns > 1:
            # fails early if the chat template cannot continue a conversation; an alphabet may lack any other letter
            tokenizer.render_environment_reply(getattr(tokenizer, "alphabet", "a")[:1])

    def describe_history_difference(self) -> str:
        """Describe how the context of a conversation differs from that of a chat server; empty if it does not."""
        note = getattr(self.tokenizer, "describe_history_difference", None)
        return str(note()) if note and self.environment.max_turns > 1 else ""

    def start_conversation(self, task: Task, *, seed: int = 0, session: Session | None = None) -> ConversationState:
        """Create the state before the policy's first token, and open the session. Close the state if it is not verified."""
        state = self.create_state_without_prompt(check_task(task), seed=seed, session=session)
        try:
            if self.has_sessions and state.session_handle:
                state.session_handle.open()
            self.render_prompt(state)
        except BaseException:
            state.close()
            raise
        return state

    def create_state_without_prompt(self, task: Task, *, seed: int = 0, session: Session | None = None) -> ConversationState:
        """Create a conversation without opening its session and without a prompt."""
        asked = self.is_interactive or session is not None
        handle = LazySession(self.environment, task, seed=seed, session=session, context_window=self.max_length) if asked else None
        return ConversationState(task, [], [], session_handle=handle)

    def render_prompt(self, state: ConversationState) -> None:
        """Render the prompt, with the tools and initial messages of the session. Uses the tokenizer, so it runs in its thread."""
        task, session_handle = state.task, state.session_handle
        if session_handle and session_handle.first_request is not None:
            self._append_request(state, session_handle.first_request)
            return
        tokens = (
            self.tool_format.render_prompt((*task.prompt, *session_handle.initial_messages), session_handle.tools)
            if session_handle
            else self.tokenizer.render(task.prompt)
        )
        if not 0 < len(tokens) < self.max_length:
            raise self._build_prompt_error(task, len(tokens))
        state.append(tokens, is_policy=False)
        state.turn_start = len(tokens)

    def format_prompt_as_plain_text(self, state: ConversationState) -> str:
        """Format the opening of a conversation as plain text, without the marks of a chat template: for people, and for policies that read
        text.
        """
        handle = state.session_handle
        opening = [message["content"] for message in (*state.task.prompt, *(handle.initial_messages if handle else ()))]
        tools = handle.tools if handle else ()
        return "\n\n".join([*([self.tool_format.dialect.format_instructions(tools)] if tools else []), *opening])

    def preview_prompt(self, task: Task) -> ConversationState:
        """Render the prompt of a task, with the tools of a session, in a conversation that is not started.

        Only the first call opens and closes a session, to read the tools; the initial messages of a session are left out. Where an agent plays,
        the prompt is only what the agent is told, and no agent is started.
        """
        if self.has_sessions and self._preview_tools is None and not self.environment.traits.plays_agent:
            with closing(self.start_conversation(task)) as state:
                self._preview_tools = state.session_handle.tools if state.session_handle else ()
        state = self.create_state_without_prompt(check_task(task))
        if state.session_handle:
            state.session_handle.tools = self._preview_tools or ()
        self.render_prompt(state)
        return state

    def _build_prompt_error(self, task: Task, length: int) -> EnvError:
        if not length:
            return EnvError(f"the prompt of task {task.id!r} renders to no token at all; give it some text")
        return EnvError(
            f"the prompt of task {task.id!r} is {length} tokens; with max_length {self.max_length} no token is left "
            f"for an answer; raise max_length (or the environment's max_prompt_tokens) or leave the task out"
        )

    def count_remaining_turn_tokens(self, state: ConversationState) -> int:
        """Return how many tokens the policy may still generate in this turn."""
        whole = min(self.max_new_tokens - state.num_policy_tokens, self.max_length - len(state.context))
        asked = state.request.max_tokens if state.request is not None else None
        limit = self.max_turn_tokens if asked is None else min(asked, self.max_turn_tokens)
        return min(whole, limit - len(state.tokens) + state.turn_start)

    def step_token(self, state: ConversationState, token: int) -> None:
        """Append one policy token; if it closes the turn, step the session and append its reply."""
        if self._append_tokens(state, [token]):
            self.step_session(state)
            self.append_reply(state)

    def step_turn(self, state: ConversationState, tokens: Sequence[int]) -> None:
        """Append a whole turn, equivalent to stepping its tokens one by one. Tokens after its first call are dropped."""
        if self.append_turn(state, tokens[: self.find_turn_length(state, tokens)]):
            self.step_session(state)
            self.append_reply(state)

    def build_stop_criterion(self, state: ConversationState) -> TurnStopCriterion | None:
        """Build the stop criterion of the current turn; None if only stop ids end it."""
        if state.session_handle is None:
            return None
        call = self.tool_format.build_stop_criterion(self._get_tools(state), state.context, state.context_turn_start)
        return StopTexts(state.request.stop, self.tokenizer, call) if state.request is not None and state.request.stop else call

    def _get_tools(self, state: ConversationState) -> Sequence[ToolSpec]:
        """Return the tools of the policy's current turn."""
        if state.request is not None:
            return state.request.tools
        return state.session_handle.tools if state.session_handle else ()

    def find_turn_length(self, state: ConversationState, tokens: Sequence[int]) -> int:
        """Return how many of these tokens belong to the current turn, which ends with its first complete call.

        Without a complete call, all tokens belong to the turn.
        """
        ends = self.build_stop_criterion(state)
        return (
            ends.find_turn_length([*state.tokens[state.turn_start :], *tokens]) - (len(state.tokens) - state.turn_start)
            if ends
            else len(tokens)
        )

    def append_turn(self, state: ConversationState, tokens: Sequence[int], logprobs: Sequence[float] = ()) -> bool:
        """Append a whole turn without stepping the session; return True if the caller must step the session next."""
        fits = (
            state.stop_reason is None
            and 0 < len(tokens) <= self.count_remaining_turn_tokens(state)
            and self._stop_ids.isdisjoint(tokens[:-1])
        )
        known = fits and min(tokens) >= 0 and max(tokens) < self.tokenizer.vocab_size
        if not known or (state.session_handle and self.find_turn_length(state, tokens) < len(tokens)):
            raise self._build_turn_error(state, tokens)
        return self._append_tokens(state, tokens, logprobs)

    def _build_turn_error(self, state: ConversationState, tokens: Sequence[int]) -> EnvError:
        if not tokens or state.stop_reason is not None or len(tokens) > self.count_remaining_turn_tokens(state):
            return EnvError(
                f"{len(tokens)} tokens for task {state.task.id!r}, where {self.count_remaining_turn_tokens(state)} may follow (end: {state.stop_reason})"
            )
        if not self._stop_ids.isdisjoint(tokens[:-1]):
            return EnvError(
                f"tokens follow a stop id in a turn sampled for task {state.task.id!r}; the sampler's stop ids are not the tokenizer's"
            )
        if min(tokens) < 0 or max(tokens) >= self.tokenizer.vocab_size:
            return EnvError(
                f"token ids from {min(tokens)} to {max(tokens)} for task {state.task.id!r}; allowed: 0 to {self.tokenizer.vocab_size - 1}"
            )
        return EnvError(f"tokens follow the call that ends a turn sampled for task {state.task.id!r}; the sampler ignored `stop_criterion`")

    def append_text_turn(
        self, state: ConversationState, tokens: Sequence[int], *, num_endpoint_tokens: int, truncated: bool, turn: Turn | None = None
    ) -> bool:
        """Append a turn whose tokens only encode a text, for which an endpoint used `num_endpoint_tokens` tokens of its own.

        `truncated` is true if the endpoint reached its limit. Returns whether the session must be stepped.
        """
        state.append(tokens, is_policy=True)
        state.num_policy_tokens += num_endpoint_tokens
        if truncated and not (
            state.session_handle and self.max_turn_tokens < self.max_new_tokens and state.num_policy_tokens < self.max_new_tokens
        ):
            state.stop_reason, state.truncation_reason = StopReason.TRUNCATED, "tokens"
        heard = self._close_turn(state, truncated=truncated)
        if turn is not None:  # the endpoint has parsed its text
            state.turns[-1] = self._add_turn_to_history(state, turn, len(state.turns) - 1)
        return heard

    def step_session(self, state: ConversationState) -> None:
        """Pass the last turn to the session and store its reply, which append_reply appends. May be slow; runs in any thread.

        A session that raises ends the conversation; `verify` then decides whose fault that is.
        """
        assert state.session_handle is not None
        try:
            state.step_results.append(state.session_handle.step(state.turns[-1]))
        except (Exception, SystemExit) as error:
            if isinstance(error, SandboxOutage) or state.session_handle.is_recorded or state.session_handle.is_closed:
                raise
            state.collected = build_unscored_verdict(state.session_handle.current_method, error)
            state.step_results.append(DONE_RESULT)

    def append_reply(self, state: ConversationState) -> None:
        """Append the reply of the session, or end the conversation. Uses the tokenizer, so it runs in its thread."""
        if state.step_results[-1].done:
            is_cut = state.turns[-1].finish_reason == "length" and not self._is_cut_by_agent(state)
            state.stop_reason, state.truncation_reason = (StopReason.TRUNCATED, "turn") if is_cut else (StopReason.TERMINATED, "")
            return
        if spent := self._find_exhausted_limit(state):  # no turn can follow the reply, so it is not appended
            state.stop_reason, state.truncation_reason = StopReason.TRUNCATED, spent
            return
        if (request := state.step_results[-1].request) is not None:
            self._append_request(state, request)
            return
        room = self.max_length - len(state.context)
        closing = [] if state.tokens[-1] in self._stop_ids else self.tool_format.turn_end_tokens
        ids = [*closing, *self._render_reply(state.step_results[-1].messages, room - len(closing))]
        if room <= len(ids):  # replies use the context window, not the policy's token limit
            state.stop_reason, state.truncation_reason = StopReason.TRUNCATED, "window"
            return
        state.append(ids, is_policy=False)
        state.turn_start = len(state.tokens)

    @staticmethod
    def _is_cut_by_agent(state: ConversationState) -> bool:
        """Whether the last turn was ended by the limit that the agent had set for its call, and by none of the run's."""
        asked = state.request.max_tokens if state.request is not None else None
        return asked is not None and len(state.tokens) - state.turn_start >= asked

    def _append_request(self, state: ConversationState, request: ChatRequest) -> None:
        """Append the prompt of an agent's call, in the branch that it continues, or end the conversation if it has no room."""
        characters = sum(len(str(message.get("content") or "")) for message in request.messages)
        has_room = characters <= MAX_CHARACTERS_PER_TOKEN * self.max_length and len(request.messages) <= self.max_length
        try:
            prompt = self._render_request(state, request) if has_room else []
        except Exception as error:  # an agent wrote it: it must not end the other episodes
            if state.turns or isinstance(error, EnvError):
                raise
            raise EnvError(f"the agent's first call cannot be rendered: {describe_exception(error)}") from error
        if 0 < len(prompt) < self.max_length:
            state.append_request(request, prompt)
        elif not state.turns:
            raise self._build_prompt_error(state.task, len(prompt) or characters)
        else:
            state.stop_reason, state.truncation_reason = StopReason.TRUNCATED, "window"

    def _render_request(self, state: ConversationState, request: ChatRequest) -> list[int]:
        """Render the prompt of an agent's call: after a turn that was sampled only what follows it, else the whole conversation."""
        if found := state.history.find_continued_turn(request):
            end, rest = found
            closing = [] if state.tokens[end - 1] in self._stop_ids else self.tool_format.turn_end_tokens
            with suppress(ConfigError, EnvError):  # the template writes no such messages after a turn
                return [
                    *get_path_tokens(state.tokens, state.segments, end),
                    *closing,
                    *self.tool_format.render_messages_after_turn(request.messages, len(rest)),
                ]
        return self.tool_format.render_conversation(request.messages, request.tools)

    def _render_reply(self, messages: Sequence[Message], max_tokens: int) -> list[int]:
        """Render a reply. A very long text is not encoded completely if its beginning already exceeds the remaining tokens."""
        most = MAX_CHARACTERS_PER_TOKEN * (max_tokens + TRUNCATION_MARGIN_TOKENS)
        if sum(len(message["content"]) for message in messages) > most:
            begun = self.tool_format.render_environment_reply(
                [Message(**{**message, "content": message["content"][:most]}) for message in messages], max_tokens
            )
            if len(begun) > max_tokens + TRUNCATION_MARGIN_TOKENS:
                return begun
        return self.tool_format.render_environment_reply(messages, max_tokens)

    def _append_tokens(self, state: ConversationState, tokens: Sequence[int], logprobs: Sequence[float] = ()) -> bool:
        """Append policy tokens, of which the last may close the turn; return whether the session must be stepped."""
        state.append(tokens, is_policy=True, logprobs=logprobs)
        state.num_policy_tokens += len(tokens)
        if tokens[-1] in self._stop_ids or (state.session_handle and self._ends_with_call(state)):
            return self._close_turn(state)
        if self.count_remaining_turn_tokens(state) > 0:
            return False
        is_full = len(state.context) >= self.max_length
        limit = "tokens" if state.num_policy_tokens >= self.max_new_tokens else "window" if is_full else "turn"
        if limit != "turn" or state.session_handle is None:  # a truncated turn is passed to the session
            state.stop_reason, state.truncation_reason = StopReason.TRUNCATED, limit
        return self._close_turn(state, truncated=True)

    def _ends_with_call(self, state: ConversationState) -> bool:
        """Return whether the current turn ends with a complete call."""
        ends = self.build_stop_criterion(state)
        return ends is not None and ends(state.tokens[state.turn_start :])

    def _close_turn(self, state: ConversationState, *, truncated: bool = False) -> bool:
        """Close the policy's turn; return whether the session must be stepped. Without a session, the conversation ends."""
        text = self.tokenizer.decode(state.tokens[state.turn_start :])
        turn = Turn(text, content=text, finish_reason="length" if truncated else "stop")
        if (tools := self._get_tools(state)) or state.request is not None:
            turn = self.tool_format.parse_turn(turn, len(state.turns), tools, state.context, state.context_turn_start)
        state.turns.append(self._add_turn_to_history(state, turn, len(state.turns)))
        if not truncated and state.session_handle is None:
            state.step_results.append(DONE_RESULT)
            state.stop_reason = StopReason.TERMINATED
        return state.stop_reason is None

    @staticmethod
    def _add_turn_to_history(state: ConversationState, turn: Turn, number: int) -> Turn:
        """Note what an agent is answered, so that a later call can continue it; return the turn with its numbers of tokens, if these are
        asked for.
        """
        session = state.session_handle.session if state.session_handle else None
        if state.request is None and (session is None or session.context_window is None):
            return turn
        turn = replace(turn, usage=(state.context_turn_start, len(state.tokens) - state.turn_start))
        if state.request is not None:
            state.history.add_turn(state.request, turn, len(state.tokens), number)
        return turn

    def _find_exhausted_limit(self, state: ConversationState) -> str:
        """Return the name of the limit that the policy has reached; empty if it may continue."""
        if len(state.turns) >= self.environment.max_turns:
            return "turns"
        if state.num_policy_tokens >= self.max_new_tokens:
            return "tokens"
        return "time" if state.is_timed_out else ""

    def collect_transcript(self, state: ConversationState) -> Transcript | Verdict:
        """Close the session, and return the transcript of the conversation, or a verdict if that failed.

        Later calls return the same. Never raises.
        """
        if state.session_handle is not None:
            return self._collect_and_close(state, state.session_handle)
        return Transcript(state.turns[-1].text if state.turns else "", turns=tuple(state.turns), step_results=tuple(state.step_results))

    def _collect_and_close(self, state: ConversationState, session_handle: LazySession) -> Transcript | Verdict:
        if state.collected is None:
            state.collected = session_handle.collect_transcript(tuple(state.turns), tuple(state.step_results))
        session_handle.close()
        return state.collected

    def verify(self, state: ConversationState) -> Verdict:
        """Verify a finished conversation. What raises gives an infrastructure fault, or the answer's own 0 if only this answer makes it
        raise (`rlvr.mdp.answer_faults`); only SandboxOutage is raised.
        """
        ending = self.collect_transcript(state)
        verdict = (
            ending
            if isinstance(ending, Verdict)
            else verify_transcript_safely(self.environment.verifier, state.task, ending, raised=(SandboxOutage,))
        )
        return self.add_step_rewards_and_attribute_fault(state, verdict)

    def add_step_rewards_and_attribute_fault(self, state: ConversationState, verdict: Verdict) -> Verdict:
        """Return the verdict with the environment's step rewards and, if it has no score, with whose fault that is."""
        if verdict.score is None:
            verdict = self._decide_fault(state, verdict)
        return self.add_step_rewards(state, verdict) if verdict.step_rewards or self.has_step_rewards else verdict

    def _decide_fault(self, state: ConversationState, verdict: Verdict, again: Callable[[], Verdict] | None = None) -> Verdict:
        handle, ending = state.session_handle, self.collect_transcript(state)
        if handle is not None and handle.is_recorded and isinstance(ending, Verdict):
            return verdict  # it was decided when it was recorded
        decided = resolve_failed_verdict(
            self.environment,
            state.task,
            verdict,
            ending,
            state.turns,
            len(state.step_results),
            seed=handle.seed if handle else 0,
            context_window=self.max_length,
            retry=again,
        )
        if decided is not verdict and isinstance(ending, Verdict):
            state.collected = decided
        return decided

    def add_step_rewards(self, state: ConversationState, verdict: Verdict) -> Verdict:
        """Add the environment's step rewards to a verdict."""
        if not verdict.is_scored or verdict.fault is Fault.ANSWER:
            return verdict

        def distribute() -> Verdict:
            earned = call_with_exceptions(lambda: tuple(self.environment.step_rewards_for_turns(state.task, list(state.turns), verdict)))
            if not earned:
                return verdict
            paid = replace(verdict, step_rewards=earned)
            self.compute_token_rewards(state, paid)
            return paid

        try:
            return distribute()
        except (Exception, SystemExit) as error:
            failed = build_unscored_verdict(f"{type(self.environment).__name__}.step_rewards", error)
            return self._decide_fault(state, failed, again=distribute)

    def compute_token_rewards(self, state: ConversationState, verdict: Verdict) -> list[float]:
        """Compute the reward of each token: the score on the policy's last token, or each step reward on the token that completes it."""
        if verdict.step_rewards:
            return place_step_rewards_on_tokens(state, verdict, self.tokenizer)
        rewards = [0.0] * len(state.tokens)
        if verdict.score is not None:
            rewards[find_last_policy_token(state.action_mask)] = verdict.score
        return rewards

    def build_episode(self, state: ConversationState, verdict: Verdict, *, group: str, version: int = 0) -> Episode:
        """Build the episode of a finished conversation."""
        if state.stop_reason is None:
            raise EnvError(f"task {state.task.id!r} is not over yet")
        return Episode(
            task_id=state.task.id,
            group=group,
            tokens=state.tokens,
            action_mask=state.action_mask,
            logprobs=state.logprobs,
            rewards=self.compute_token_rewards(state, verdict),
            stop_reason=state.stop_reason if verdict.is_scored else StopReason.FAILED,
            policy_version=version,
            verdict=verdict,
            text=self.get_verified_answer(state),
            turns=len(state.turns),
            segments=state.tree,
            error="" if verdict.is_scored else verdict.reason,
            meta=({"truncated": state.truncation_reason} if state.truncation_reason else {})
            | (self._build_session_meta(state, state.session_handle) if state.session_handle else {}),
        )

    def _build_session_meta(self, state: ConversationState, session_handle: LazySession) -> dict[str, Any]:
        """Build the metadata of a session: warnings, the turns with malformed calls, and the session record."""
        meta: dict[str, Any] = {"trouble": session_handle.warnings} if session_handle.warnings else {}
        if malformed := [index for index, turn in enumerate(state.turns) if turn.has_malformed_call]:
            meta["malformed_turns"] = malformed
        if session_handle.masked_turns:
            meta["masked_turns"] = list(session_handle.masked_turns)
        if self.has_sessions:
            meta["session"] = build_session_record(session_handle, state.turns, state.step_results, state.collected)
        return meta

    def get_verified_answer(self, state: ConversationState) -> str:
        """Return the text that was verified; empty if it could not be collected."""
        ending = self.collect_transcript(state)
        return ending.answer if isinstance(ending, Transcript) else ""


def check_task(task: object) -> Task:
    """Return the value if it is a Task; raise EnvError otherwise."""
    if not isinstance(task, Task):
        raise build_task_error(task)
    return task


def build_task_error(returned_value: object) -> EnvError:
    """Build the error for an environment that returned something other than a Task."""
    return EnvError(f"the environment returned {returned_value!r:.80}; `task` must return an rlvr.Task(text, reference, id=...)")
