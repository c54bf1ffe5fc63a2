"""The conformance checks of an environment with tools: conversations are played against its sessions, as text, without a tokenizer."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from rlvr.chat.dialects.dialect import RawCall, validate_call
from rlvr.conformance.check_runner import CheckSkipped, Steps, format_verdict, summarize_problems
from rlvr.conformance.toolkit import iter_bad_arguments
from rlvr.contracts import Environment, StepResult
from rlvr.mdp.sessions import SessionHandle, verify_transcript_safely
from rlvr.task import Task, Verdict
from rlvr.turns import Call, ToolResult, ToolSpec, Turn

NUM_PLAYED_TASKS = 2
"""Number of tasks of each split that are played; few, because each may need a sandbox session."""
Said = str | Call | Sequence[Call]
"""A scripted turn: a text, a call, or several calls."""


@dataclass
class PlayedConversation:
    """One conversation that is played against a session."""

    environment: Environment
    task: Task
    turns: list[Turn] = field(default_factory=list)
    step_results: list[StepResult] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.session_handle = SessionHandle(self.environment, self.task, seed=0)
        try:
            self.session_handle.open()
        except BaseException:
            self.session_handle.close()
            raise

    @property
    def tool_results(self) -> list[tuple[bool, str]]:
        """Success and text of each call's result."""
        return [(result.ok, result.text) for heard in self.step_results for result in heard.tool_results]

    def step(self, turn: Said) -> Sequence[ToolResult]:
        """Take one turn, unless the conversation is done; return the results of its calls."""
        if self.step_results and self.step_results[-1].done:
            return ()
        number = len(self.turns)
        calls = [turn] if isinstance(turn, Call) else [] if isinstance(turn, str) else list(turn)
        text = turn if isinstance(turn, str) else ""
        made = tuple(replace(call, id=f"{number}.{place}") for place, call in enumerate(calls))
        self.turns.append(Turn(text, content=text, calls=made))
        self.step_results.append(self.session_handle.step(self.turns[-1]))
        return self.step_results[-1].tool_results

    def verify_and_close(self) -> Verdict:
        """Verify the conversation and close its session."""
        ending = self.session_handle.collect_transcript(tuple(self.turns), tuple(self.step_results))
        self.session_handle.close()
        return ending if isinstance(ending, Verdict) else verify_transcript_safely(self.environment.verifier, self.task, ending)


def play_conversation(
    environment: Environment, task: Task, turns: Sequence[Said], preceding_turns: Sequence[Said] = ()
) -> tuple[Verdict, PlayedConversation]:
    """Play a whole conversation, `preceding_turns` first, then `turns`; return the verdict and the conversation."""
    play = PlayedConversation(environment, task)
    try:
        for said in (*preceding_turns, *turns):
            play.step(said)
        return play.verify_and_close(), play
    finally:
        play.session_handle.close()


def has_transcript_verifier(environment: Environment) -> bool:
    """Whether the environment's verifier looks at the transcript or the artifacts, not only at the answer."""
    return environment.verifier.info.takes_transcript


def iter_conversation_checks(environment: Environment) -> Steps:
    """Yield the checks of the conversations of an environment with tools; none for an environment without tools."""
    if not environment.tools:
        return
    kit = _ConversationChecks(environment)
    yield "the script of a conversation scores 1", kit.check_oracle_turns
    yield "the same seed gives the same results", kit.check_determinism
    yield "an answer without any call scores below 1", kit.check_calls_required
    yield "two conversations side by side do not see each other", kit.check_isolation
    yield "wrong arguments are refused and change nothing", kit.check_bad_arguments
    yield "the opening and the tools do not contain the answer", kit.check_answer_leak


class _ConversationChecks:
    """The checks of the conversations of one environment with tools."""

    def __init__(self, environment: Environment) -> None:
        self.env = environment
        self._played = dict[str, tuple[Verdict, PlayedConversation]]()

    def play_oracle_turns_cached(self, task: Task, oracle_turns: Sequence[Said]) -> tuple[Verdict, PlayedConversation]:
        """Play the oracle turns once per task (cached), as the baseline of every check."""
        if task.id not in self._played:
            self._played[task.id] = play_conversation(self.env, task, oracle_turns)
        return self._played[task.id]

    def check_oracle_turns(self) -> str:
        def looked(task: Task, script: Sequence[Said]) -> str:
            verdict, _ = self.play_oracle_turns_cached(task, script)
            return "" if verdict.score == 1.0 else f"{task.id}: {format_verdict(verdict)}"

        return self._check_each_task(looked)

    def check_determinism(self) -> str:
        def looked(task: Task, script: Sequence[Said]) -> str:
            once, again = self.play_oracle_turns_cached(task, script)[1], play_conversation(self.env, task, script)[1]
            if (once.session_handle.initial_messages, once.session_handle.tools) != (
                again.session_handle.initial_messages,
                again.session_handle.tools,
            ):
                return f"{task.id}: the opening or the tools differ"
            return _describe_difference(task, once, again)

        return self._check_each_task(looked)

    def check_calls_required(self) -> str:
        if not self.env.requires_tool_call:
            raise CheckSkipped("it says that an answer without calls may be right (must_call is False)")

        def looked(task: Task, script: Sequence[Said]) -> str:
            last = next((said for said in reversed(script) if isinstance(said, str)), "")
            for answer in {last, self.env.gold(task) or "", str(task.reference)}:
                verdict, _ = play_conversation(self.env, task, [answer])
                if verdict.score is None or verdict.score >= 1.0:
                    return f"{task.id}: {answer!r:.80} without a call {format_verdict(verdict)}"
            return ""

        return self._check_each_task(looked)

    def check_isolation(self) -> str:
        def looked(task: Task, script: Sequence[Said]) -> str:
            alone = self.play_oracle_turns_cached(task, script)[1]
            one, other = PlayedConversation(self.env, task), PlayedConversation(self.env, task)
            try:
                for said in script:
                    one.step(said)
                for said in script:
                    other.step(said)
                verdicts = one.verify_and_close(), other.verify_and_close()
            finally:
                one.session_handle.close()
                other.session_handle.close()
            if wrong := _describe_difference(task, alone, one) or _describe_difference(task, alone, other):
                return wrong
            return summarize_problems(
                "" if verdict.score == 1.0 else f"{task.id}: with another one open it {format_verdict(verdict)}" for verdict in verdicts
            )

        return self._check_each_task(looked)

    def check_bad_arguments(self) -> str:
        def looked(task: Task, script: Sequence[Said]) -> str:
            clean = self.play_oracle_turns_cached(task, script)[1]
            held = {spec.name: spec for spec in clean.session_handle.tools}
            wrong = [validate_call(RawCall(spec.name, bad), held, "0.0", "") for spec in held.values() for bad in iter_bad_arguments(spec)]
            if not wrong:
                return ""
            verdict, after = play_conversation(self.env, task, script, preceding_turns=[wrong])
            if any(ok for ok, _ in after.tool_results[: len(wrong)]):
                return f"{task.id}: a call with wrong arguments was run"
            after.step_results = after.step_results[1:]
            return _describe_difference(task, clean, after) or (
                "" if verdict.score == 1.0 else f"{task.id}: after wrong calls it {format_verdict(verdict)}"
            )

        return self._check_each_task(looked)

    def check_answer_leak(self) -> str:
        """Fail if prompts and tools contain the answer more often than answers of other tasks, so that a common word does not count."""
        tasks = list(self._iter_tasks(4))
        texts = [_read_initial_text(self.env, task) for task in tasks]
        answers = [str(task.reference) for task in tasks]
        own = [bool(answer) and answer in text for answer, text in zip(answers, texts, strict=True)]
        others = [bool(answer) and answer in text for answer, text in zip(answers[1:] + answers[:1], texts, strict=True)]
        if (sum(own) - sum(others)) / len(tasks) <= 0.5:
            return ""
        return f"{tasks[own.index(True)].id}: what the policy reads before its first turn contains the reference"

    def _check_each_task(self, look: Callable[[Task, Sequence[Said]], str]) -> str:
        tasks = list(self._iter_tasks(NUM_PLAYED_TASKS))
        scripts = [self.env.oracle_turns(task) for task in tasks]
        if any(script is None for script in scripts):
            raise CheckSkipped("it has no oracle turns; write `script(task)` if the turns of a right conversation can be known")
        return summarize_problems(look(task, script or ()) for task, script in zip(tasks, scripts, strict=True))

    def _iter_tasks(self, count: int) -> Iterator[Task]:
        for split in self.env.splits:
            size = self.env.num_tasks(split)
            yield from (self.env.task(split, index) for index in range(count if size is None else min(count, size)))


def _describe_difference(task: Task, one: PlayedConversation, other: PlayedConversation) -> str:
    pairs = zip(one.tool_results, other.tool_results, strict=False)
    if len(one.tool_results) == len(other.tool_results) and one.tool_results == other.tool_results:
        return ""
    a, b = next(((a, b) for a, b in pairs if a != b), (len(one.tool_results), len(other.tool_results)))
    return f"{task.id}: the results differ: {a!r:.120} and {b!r:.120}"


def _read_initial_text(environment: Environment, task: Task) -> str:
    play = PlayedConversation(environment, task)
    try:
        tools: Sequence[ToolSpec] = play.session_handle.tools
        opening = " ".join(message["content"] for message in play.session_handle.initial_messages)
        return json.dumps([tool.to_openai_format() for tool in tools]) + opening
    finally:
        play.session_handle.close()
