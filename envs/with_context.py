"""Any environment of many turns, in a context window that it does not fit: `{name: with_context, env: shell, policy: summarise, at: 0.8}`.

Shorter, as a setting of the environment itself: `{name: shell, context: {policy: summarise, at: 0.8}}`.

Once a conversation has used the share `at` of its window, its history is rewritten: old results are dropped, or the policy writes a summary
and goes on from there. The rewritten history is a new branch of the episode. What was sampled before stays in its own branch, so each token
is trained in the context in which it was sampled, the summary like any other turn. Nothing changes while a conversation fits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

from rlvr.contracts import Environment, EnvironmentTraits, EnvironmentWrapper, Session
from rlvr.contracts.chat_request import ChatRequest, build_assistant_message
from rlvr.contracts.session import StepResult
from rlvr.errors import ConfigError
from rlvr.task import Message, Task
from rlvr.turns import ToolSpec, Turn

SUMMARY_PROMPT = (
    "The conversation has become too long, and all of it but the task will be removed. Write down now, without a call, all that you need to "
    "go on: what you have done, what you have learned, and what is left to do."
)
SUMMARY_HEADING = "Your notes from the work so far:"
DROPPED_RESULT = "[dropped]"
MAX_TOKENS_PER_CHARACTER = 2.0
POLICIES = ("none", "drop_old_results", "summarise")


class WithContext(EnvironmentWrapper):
    """The tasks, the tools and the verifier of another environment; a conversation that fills its window loses old results, or goes on from
    a summary that the policy writes.

    >>> import rlvr
    >>> env = rlvr.make_env("search_qa", context={"policy": "summarise", "at": 0.5})
    >>> type(env).__name__, env.max_turns > env.env.max_turns
    ('WithContext', True)
    """

    needs = {"env": ""}

    def __init__(
        self,
        *,
        env: Environment,
        policy: Literal["none", "drop_old_results", "summarise"] = "summarise",
        at: float = 0.8,
        keep_results: int = 2,
        summary_prompt: str = SUMMARY_PROMPT,
        summary_heading: str = SUMMARY_HEADING,
        train_summaries: bool = True,
        max_turns: int | None = None,
        max_new_tokens: int | None = None,
    ) -> None:
        """Set the environment, and when and how its conversations are shortened.

        Args:
            env: the environment; it must have conversations of several turns.
            policy: what is done: drop_old_results replaces old results by a mark; summarise lets the policy write a summary, with which it goes
                on after the task; none does nothing.
            at: the share of the window (`rollout.max_length`) that a conversation may use before that. The rest of the window must have room
                for the reply that crosses this share, and for the summary.
            keep_results: how many of the last results drop_old_results keeps.
            summary_prompt: what the policy is told before it writes the summary.
            summary_heading: what stands between the task and the summary, in the history that goes on from them.
            train_summaries: whether the tokens of the summary are trained; otherwise they are masked.
            max_turns: how many turns the policy has, summaries included; by default twice as many as the environment has.
            max_new_tokens: how many tokens the policy may write in all turns together; by default twice as many as in the environment.
        """
        if env.max_turns < 2:
            raise ConfigError(
                f"{env.label or type(env).__name__} has one turn, and nothing to shorten; leave `context` out, or give it tools"
            )
        if env.traits.plays_agent:
            raise ConfigError("an agent manages its own context; leave `context` out")
        if env.traits.has_step_rewards:
            raise ConfigError(
                f"{env.label or type(env).__name__} has rewards for its turns, which cannot be given in a history that is rewritten"
            )
        if policy not in POLICIES:
            raise ConfigError(f"policy is {policy!r}; allowed: {', '.join(POLICIES)}")
        if isinstance(at, bool) or not isinstance(at, int | float) or not 0 < at <= 1:
            raise ConfigError(f"at is {at!r}; it must be a share of the window, above 0 and at most 1")
        if keep_results < 0:
            raise ConfigError(f"keep_results is {keep_results}; it must be at least 0")
        super().__init__(env)
        self.tools, self.requires_tool_call = env.tools, env.requires_tool_call
        self.label = f"{env.label or type(env).__name__} with context"
        self.policy, self.at, self.keep_results = policy, at, keep_results
        self.summary_prompt, self.summary_heading, self.train_summaries = summary_prompt, summary_heading, train_summaries
        self.max_turns = 2 * env.max_turns if max_turns is None else max_turns
        self.max_new_tokens = 2 * env.max_new_tokens if max_new_tokens is None else max_new_tokens

    @property
    def traits(self) -> EnvironmentTraits:
        """Each conversation has a session, which has that of the other environment."""
        return EnvironmentTraits(has_sessions=True, rewrites_context=self.policy != "none")

    def oracle_turns(self, task: Task) -> Any:
        """Return the turns of the other environment that solve a task."""
        return self.env.oracle_turns(task)

    def new_session(self, task: Task, *, seed: int) -> Session:
        """Open a session of the other environment, whose history is shortened."""
        return ContextSession(task, self.env.new_session(task, seed=seed), self)


class ContextSession(Session):
    """A conversation of another session, whose history is rewritten when it fills the window."""

    def __init__(self, task: Task, inner: Session, env: WithContext) -> None:
        self.inner, self.env, self.context_window = inner, env, 0
        self.max_artifact_bytes = inner.max_artifact_bytes  # type: ignore[misc]  # of this session, as the files are the other's
        self._opening: list[Mapping[str, Any]] = [dict(message) for message in task.prompt]
        self._messages: list[Mapping[str, Any]] = []
        """What follows the opening: turns, and what the environment replied."""
        self._tools: tuple[ToolSpec, ...] = ()
        self._turns: list[Turn] = []
        self._summary_turns: list[int] = []
        self._is_summary_next = self._is_rewritten = False
        self._notes: str | None = None
        """The policy's last notes, which stand for all that was before them."""
        self._tokens_per_character = 0.0
        self._unmeasured: tuple[int, int] | None = None
        """The characters of the last reply, and how many tokens came before it."""

    def start_tools(self) -> Sequence[ToolSpec]:
        """Return the tools of the other session."""
        self._tools = tuple(self.inner.start_tools())
        return self._tools

    def initial_messages(self) -> Sequence[Message]:
        """Return the initial messages of the other session."""
        messages = self.inner.initial_messages()
        self._opening += messages
        return messages

    def step(self, turn: Turn) -> StepResult | None:
        """Let the other session reply; if the reply fills the window, rewrite the history, or ask for notes. Notes it does not see."""
        number = len(self._turns)
        self._turns.append(turn)
        if self._is_summary_next:
            self._is_summary_next = False
            self._summary_turns.append(number)
            return self._replace_by_notes(turn.content.strip() or turn.text.strip())
        reply = self.inner.step(turn)
        if reply is None or reply.done:
            return reply
        self._messages.append(build_assistant_message(turn, ChatRequest((), self._tools), f"call_{number}"))
        self._messages += [_name_call(message, number) for message in reply.messages]
        if not self._is_full(turn, reply.messages):
            return self._go_on(reply)
        if self.env.policy == "drop_old_results":
            return self._drop_old_results(reply)
        self._is_summary_next = True
        asked: Message = {"role": "user", "content": self.env.summary_prompt}
        self._messages.append(asked)
        return self._go_on(replace(reply, messages=(*reply.messages, asked)))

    def _is_full(self, turn: Turn, reply: Sequence[Message]) -> bool:
        """Whether the conversation with this reply uses its share of the window. The reply's tokens are estimated from those that a character
        of the reply before had, and at first from the turn.
        """
        if not self.context_window or self.env.policy == "none":
            return False
        if self._unmeasured is not None:
            characters, before = self._unmeasured
            self._tokens_per_character = (turn.usage[0] - before) / max(1, characters)
        elif not self._tokens_per_character:
            own = turn.usage[1] - (turn.finish_reason == "stop")
            self._tokens_per_character = min(own / max(1, len(turn.text)), MAX_TOKENS_PER_CHARACTER)
        characters = sum(len(message["content"]) for message in reply)
        self._unmeasured = (characters, sum(turn.usage))
        return sum(turn.usage) + self._tokens_per_character * characters > self.env.at * self.context_window

    def _drop_old_results(self, reply: StepResult) -> StepResult:
        results = [place for place, message in enumerate(self._messages) if message["role"] != "assistant"]
        num_kept = max(self.env.keep_results, len(reply.messages))  # the policy has not seen those of this reply
        old = [place for place in results[: len(results) - num_kept] if self._messages[place]["content"] != DROPPED_RESULT]
        for place in old:
            self._messages[place] = {**self._messages[place], "content": DROPPED_RESULT}
        return self._rewrite(reply, f"{len(old)} old results were dropped") if old else self._go_on(reply)

    def _replace_by_notes(self, notes: str) -> StepResult:
        self._notes, self._messages = notes, []
        return self._rewrite(StepResult(done=True), "the conversation was replaced by the policy's notes")

    def _rewrite(self, reply: StepResult, note: str) -> StepResult:
        """Go on from the history that has been rewritten, which the record says."""
        self._is_rewritten, self._unmeasured = True, None
        noted: Message = {"role": "system", "content": note}
        return self._go_on(StepResult((*reply.messages, noted), tool_results=reply.tool_results, reward=reply.reward))

    def _go_on(self, reply: StepResult) -> StepResult:
        """Return a reply; after a history has been rewritten, with the whole conversation."""
        if not self._is_rewritten:
            return reply
        *before, last = self._opening
        if self._notes is not None:
            last = {**last, "content": f"{last['content']}\n\n{self.env.summary_heading}\n{self._notes}"}
        return replace(reply, request=ChatRequest((*before, last, *self._messages), self._tools))

    def select_answer(self, turns: Sequence[Turn]) -> str:
        """Return the answer that the other session selects from the turns that are no notes."""
        return self.inner.select_answer([turn for number, turn in enumerate(turns) if number not in self._list_summary_turns()])

    def artifacts(self) -> Mapping[str, Any]:
        """Return the artifacts of the other session."""
        left = self.inner.artifacts()
        self.warning = self.inner.warning
        self.masked_turns = () if self.env.train_summaries else self._list_summary_turns()
        return left

    def _list_summary_turns(self) -> tuple[int, ...]:
        """Return the turns with notes, also notes at which the episode was truncated: `step` does not get such a turn."""
        return (*self._summary_turns, *((len(self._turns),) if self._is_summary_next else ()))

    def close(self) -> None:
        """Close the other session."""
        self.inner.close()


def _name_call(message: Mapping[str, Any], number: int) -> Mapping[str, Any]:
    """Name the call of a result as the message of its turn does."""
    if "tool_call_id" not in message:
        return message
    return {**message, "tool_call_id": f"call_{number}_{str(message['tool_call_id']).replace('.', '_')}"}


make = WithContext
