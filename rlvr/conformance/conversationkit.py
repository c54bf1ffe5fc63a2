"""The conformance checks of conversations: they are played against the sessions of an environment, as text, without a tokenizer."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from rlvr.chat.dialects.dialect import RawCall, validate_call
from rlvr.conformance.check_runner import CheckSkipped, Steps, describe_first_problem, format_verdict
from rlvr.conformance.hostile_player import play_hostile_conversations
from rlvr.conformance.toolkit import iter_bad_arguments
from rlvr.contracts import Environment, StepResult
from rlvr.mdp.sessions import LazySession, verify_transcript_safely
from rlvr.task import Task, Verdict
from rlvr.turns import Call, ToolResult, ToolSpec, Turn

NUM_PLAYED_TASKS = 2
"""Number of tasks of each split that are played; few, because each may need a sandbox session."""
TextOrCalls = str | Call | Sequence[Call]
"""A scripted turn: a text, a call, or several calls."""


@dataclass
class PlayedConversation:
    """One conversation that is played against a session."""

    environment: Environment
    task: Task
    turns: list[Turn] = field(default_factory=list)
    step_results: list[StepResult] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.session_handle = LazySession(self.environment, self.task, seed=0)
        try:
            self.session_handle.open()
        except BaseException:
            self.session_handle.close()
            raise

    @property
    def tool_results(self) -> list[tuple[bool, str]]:
        """Success and text of each call's result."""
        return [(result.ok, result.text) for heard in self.step_results for result in heard.tool_results]

    def step(self, turn: TextOrCalls) -> Sequence[ToolResult]:
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
    environment: Environment, task: Task, turns: Sequence[TextOrCalls], preceding_turns: Sequence[TextOrCalls] = ()
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
    return environment.verifier.traits.takes_transcript


def iter_conversation_checks(environment: Environment) -> Steps:
    """Yield the checks of an environment's conversations; for one without any, only that of a hostile player."""
    kit = _ConversationChecks(environment)
    if environment.tools or environment.max_turns > 1 or environment.traits.has_sessions:
        yield "the script of a conversation scores 1", kit.check_oracle_turns
        yield "the same seed gives the same results", kit.check_determinism
        if environment.tools:
            yield "an answer without any call scores below 1", kit.check_calls_required
        yield "two conversations side by side do not see each other", kit.check_isolation
        if environment.tools:
            yield "wrong arguments are refused and change nothing", kit.check_bad_arguments
        yield "the opening and the tools do not contain the answer", kit.check_answer_leak
    yield "whatever a hostile player does gets a score", kit.check_hostile_player


class _ConversationChecks:
    """The checks of the conversations of one environment."""

    def __init__(self, environment: Environment) -> None:
        self.env = environment
        self._played = dict[str, tuple[Verdict, PlayedConversation]]()

    def play_oracle_turns_cached(self, task: Task, oracle_turns: Sequence[TextOrCalls]) -> tuple[Verdict, PlayedConversation]:
        """Play the oracle turns once per task (cached), as the baseline of every check."""
        if task.id not in self._played:
            self._played[task.id] = play_conversation(self.env, task, oracle_turns)
        return self._played[task.id]

    def check_oracle_turns(self) -> str:
        def looked(task: Task, script: Sequence[TextOrCalls]) -> str:
            verdict, play = self.play_oracle_turns_cached(task, script)
            if verdict.score != 1.0:
                return f"{task.id}: {format_verdict(verdict)}"
            return f"{task.id}: {play.session_handle.warnings}" if play.session_handle.warnings else ""

        return self._check_each_task(looked)

    def check_determinism(self) -> str:
        def looked(task: Task, script: Sequence[TextOrCalls]) -> str:
            (verdict, once), (new_verdict, again) = self.play_oracle_turns_cached(task, script), play_conversation(self.env, task, script)
            if verdict.score != new_verdict.score:
                return f"{task.id}: the same turns first {format_verdict(verdict)}, then {format_verdict(new_verdict)}"
            if (once.session_handle.initial_messages, once.session_handle.tools) != (
                again.session_handle.initial_messages,
                again.session_handle.tools,
            ):
                return f"{task.id}: the opening or the tools differ"
            return _describe_difference(task, once, again)

        return self._check_each_task(looked)

    def check_calls_required(self) -> str:
        if not self.env.requires_tool_call:
            raise CheckSkipped("it says that an answer without calls may be right (requires_tool_call is False)")

        def looked(task: Task, script: Sequence[TextOrCalls]) -> str:
            last = next((said for said in reversed(script) if isinstance(said, str)), "")
            for answer in {last, self.env.gold(task) or "", str(task.reference)}:
                verdict, _ = play_conversation(self.env, task, [answer])
                if verdict.score is None or verdict.score >= 1.0:
                    return f"{task.id}: {answer!r:.80} without a call {format_verdict(verdict)}"
            return ""

        return self._check_each_task(looked)

    def check_isolation(self) -> str:
        def looked(task: Task, script: Sequence[TextOrCalls]) -> str:
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
            return describe_first_problem(
                "" if verdict.score == 1.0 else f"{task.id}: with another one open it {format_verdict(verdict)}" for verdict in verdicts
            )

        return self._check_each_task(looked)

    def check_bad_arguments(self) -> str:
        def looked(task: Task, script: Sequence[TextOrCalls]) -> str:
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
        """Fail if the answer is in what the policy reads first more often than answers of other tasks, so that a common word does not
        count. The opening and the tools may not contain the reference, and without a gold answer that is looked for in the prompt, nothing
        may contain all texts of the oracle turns.
        """
        tasks = list(self._iter_tasks(4))
        openings = [_read_initial_text(self.env, task) for task in tasks]
        whole = [" ".join(message["content"] for message in task.prompt) + opening for task, opening in zip(tasks, openings, strict=True)]
        references = [[str(task.reference)] for task in tasks]
        if (found := self._find_leak(tasks, references, openings, is_word=False)) is None:
            found = self._find_leak(tasks, [list(map(str, _iter_leaves(task.reference))) for task in tasks], openings)
        if found is None and all(self.env.gold(task) is None for task in tasks):
            found = self._find_leak(tasks, [self._list_oracle_texts(task) for task in tasks], whole)
            if found is not None:
                return f"{found.id}: the prompt or the opening contains the turns that score 1"
        return "" if found is None else f"{found.id}: what the policy reads before its first turn contains the reference"

    def _find_leak(self, tasks: Sequence[Task], answers: Sequence[list[str]], texts: Sequence[str], *, is_word: bool = True) -> Task | None:
        """Return the first task whose text contains its answer, if texts contain their own far more often than those of other tasks."""

        def contains(parts: list[str], text: str) -> bool:
            if not is_word:
                return bool(parts[0]) and parts[0] in text
            return bool(parts) and all(re.search(rf"(?<!\w){re.escape(part)}(?!\w)", text) for part in parts)

        own = [contains(parts, text) for parts, text in zip(answers, texts, strict=True)]
        others = [contains(parts, text) for parts, text in zip([*answers[1:], *answers[:1]], texts, strict=True)]
        return tasks[own.index(True)] if (sum(own) - sum(others)) / len(tasks) > 0.5 else None

    def _list_oracle_texts(self, task: Task) -> list[str]:
        """List the texts of the oracle turns; none if there are calls, whose arguments the prompt may give."""
        turns = self.env.oracle_turns(task) or ()
        texts = [turn.strip() for turn in turns if isinstance(turn, str)]
        return texts if len(texts) == len(turns) and all(texts) else []

    def check_hostile_player(self) -> str:
        """Play turns that a policy may write to lose its score."""
        tasks = list(self._iter_tasks(1))[:1]
        return describe_first_problem(
            play.problem and f"{task.id}: {play.problem}" for task in tasks for play in play_hostile_conversations(self.env, task)
        )

    def _check_each_task(self, look: Callable[[Task, Sequence[TextOrCalls]], str]) -> str:
        tasks = list(self._iter_tasks(NUM_PLAYED_TASKS))
        scripts = [self._get_right_turns(task) for task in tasks]
        if any(script is None for script in scripts):
            raise CheckSkipped("it has no oracle turns; write `oracle_turns(task)` if the turns of a right conversation can be known")
        return describe_first_problem(look(task, script or ()) for task, script in zip(tasks, scripts, strict=True))

    def _get_right_turns(self, task: Task) -> Sequence[TextOrCalls] | None:
        """Return the oracle turns; without tools, a gold answer at the first turn will do."""
        turns = self.env.oracle_turns(task)
        gold = None if turns is not None or self.env.tools else self.env.gold(task)
        return turns if gold is None else [gold]

    def _iter_tasks(self, count: int) -> Iterator[Task]:
        for split in self.env.splits:
            size = self.env.num_tasks(split)
            yield from (self.env.task(split, index) for index in range(count if size is None else min(count, size)))


def _describe_difference(task: Task, one: PlayedConversation, other: PlayedConversation) -> str:
    first, second = _list_replies(one), _list_replies(other)
    if first == second:
        return ""
    a, b = next(((a, b) for a, b in zip(first, second, strict=False) if a != b), (len(first), len(second)))
    return f"{task.id}: the results differ: {a!r:.120} and {b!r:.120}"


def _list_replies(play: PlayedConversation) -> list[tuple[object, ...]]:
    """List the results of the calls, and what else each reply says."""
    texts = [(heard.done, *(message["content"] for message in heard.messages)) for heard in play.step_results]
    return [*play.tool_results, *texts]


def _iter_leaves(reference: object) -> Iterator[str | int | float]:
    """Yield the texts and numbers in a reference that is a text, a number or a list of them."""
    if isinstance(reference, str | int | float) and not isinstance(reference, bool):
        yield reference
    elif isinstance(reference, list | tuple):
        for part in reference:
            yield from _iter_leaves(part)


def _read_initial_text(environment: Environment, task: Task) -> str:
    play = PlayedConversation(environment, task)
    try:
        tools: Sequence[ToolSpec] = play.session_handle.tools
        opening = " ".join(message["content"] for message in play.session_handle.initial_messages)
        return json.dumps([tool.to_openai_format() for tool in tools]) + opening
    finally:
        play.session_handle.close()
