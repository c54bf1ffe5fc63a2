"""The conformance checks of an environment with tools: conversations are played against its sessions, as text, without a tokenizer."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from rlvr.conformance.steps import CannotCheck, Steps, first, shown
from rlvr.conformance.toolkit import misfits
from rlvr.contracts import Environment, Heard, Verifier
from rlvr.dialects.dialect import Found, checked
from rlvr.mdp.sessions import Lease, judged_whole
from rlvr.task import Task, Verdict
from rlvr.turns import Call, Result, ToolSpec, Turn

PLAYED = 2
"""Number of tasks of each split that are played; few, because each may need a sandbox session."""
Said = str | Call | Sequence[Call]
"""A scripted turn: a text, a call, or several calls."""


@dataclass
class Play:
    """One conversation that is played against a session."""

    environment: Environment
    task: Task
    turns: list[Turn] = field(default_factory=list)
    heard: list[Heard] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.lease = Lease(self.environment, self.task, seed=0)
        try:
            self.lease.open()
        except BaseException:
            self.lease.close()
            raise

    @property
    def results(self) -> list[tuple[bool, str]]:
        """Success and text of each call's result."""
        return [(result.ok, result.text) for heard in self.heard for result in heard.results]

    def say(self, said: Said) -> Sequence[Result]:
        """Take one turn, unless the conversation is done; return the results of its calls."""
        if self.heard and self.heard[-1].over:
            return ()
        number = len(self.turns)
        calls = [said] if isinstance(said, Call) else [] if isinstance(said, str) else list(said)
        text = said if isinstance(said, str) else ""
        made = tuple(replace(call, id=f"{number}.{place}") for place, call in enumerate(calls))
        self.turns.append(Turn(text, content=text, calls=made))
        self.heard.append(self.lease.hear(self.turns[-1]))
        return self.heard[-1].results

    def verdict(self) -> Verdict:
        """Verify the conversation and close its session."""
        ending = self.lease.collect(tuple(self.turns), tuple(self.heard))
        self.lease.close()
        return ending if isinstance(ending, Verdict) else judged_whole(self.environment.verifier, self.task, ending)


def played(environment: Environment, task: Task, turns: Sequence[Said], before: Sequence[Said] = ()) -> tuple[Verdict, Play]:
    """Play a whole conversation, with the turns `before` first; return the verdict and the conversation."""
    play = Play(environment, task)
    try:
        for said in (*before, *turns):
            play.say(said)
        return play.verdict(), play
    finally:
        play.lease.close()


def judges_evidence(environment: Environment) -> bool:
    """Whether the environment's verifier looks at the transcript or the artifacts, not only at the answer."""
    return type(environment.verifier).judge is not Verifier.judge


def talk_checks(environment: Environment) -> Steps:
    """Yield the checks of the conversations of an environment with tools; none for an environment without tools."""
    if not environment.tools:
        return
    kit = _TalkKit(environment)
    yield "the script of a conversation scores 1", kit.script
    yield "the same seed gives the same results", kit.repeats
    yield "an answer without any call scores below 1", kit.idle
    yield "two conversations side by side do not see each other", kit.apart
    yield "wrong arguments are refused and change nothing", kit.refused
    yield "the opening and the tools do not contain the answer", kit.hidden


class _TalkKit:
    """The checks of one environment."""

    def __init__(self, environment: Environment) -> None:
        self.env = environment
        self._once = dict[str, tuple[Verdict, Play]]()

    def once(self, task: Task, script: Sequence[Said]) -> tuple[Verdict, Play]:
        """Play the oracle turns once per task (cached), as the baseline of every check."""
        if task.id not in self._once:
            self._once[task.id] = played(self.env, task, script)
        return self._once[task.id]

    def script(self) -> str:
        def looked(task: Task, script: Sequence[Said]) -> str:
            verdict, _ = self.once(task, script)
            return "" if verdict.score == 1.0 else f"{task.id}: {shown(verdict)}"

        return self._each(looked)

    def repeats(self) -> str:
        def looked(task: Task, script: Sequence[Said]) -> str:
            once, again = self.once(task, script)[1], played(self.env, task, script)[1]
            if (once.lease.opening, once.lease.tools) != (again.lease.opening, again.lease.tools):
                return f"{task.id}: the opening or the tools differ"
            return _differs(task, once, again)

        return self._each(looked)

    def idle(self) -> str:
        if not self.env.must_call:
            raise CannotCheck("it says that an answer without calls may be right (must_call is False)")

        def looked(task: Task, script: Sequence[Said]) -> str:
            last = next((said for said in reversed(script) if isinstance(said, str)), "")
            for answer in {last, self.env.gold(task) or "", str(task.reference)}:
                verdict, _ = played(self.env, task, [answer])
                if verdict.score is None or verdict.score >= 1.0:
                    return f"{task.id}: {answer!r:.80} without a call {shown(verdict)}"
            return ""

        return self._each(looked)

    def apart(self) -> str:
        def looked(task: Task, script: Sequence[Said]) -> str:
            alone = self.once(task, script)[1]
            one, other = Play(self.env, task), Play(self.env, task)
            try:
                for said in script:
                    one.say(said)
                for said in script:
                    other.say(said)
                verdicts = one.verdict(), other.verdict()
            finally:
                one.lease.close()
                other.lease.close()
            if wrong := _differs(task, alone, one) or _differs(task, alone, other):
                return wrong
            return first("" if verdict.score == 1.0 else f"{task.id}: with another one open it {shown(verdict)}" for verdict in verdicts)

        return self._each(looked)

    def refused(self) -> str:
        def looked(task: Task, script: Sequence[Said]) -> str:
            clean = self.once(task, script)[1]
            held = {spec.name: spec for spec in clean.lease.tools}
            wrong = [checked(Found(spec.name, bad), held, "0.0", "") for spec in held.values() for bad in misfits(spec)]
            if not wrong:
                return ""
            verdict, after = played(self.env, task, script, before=[wrong])
            if any(ok for ok, _ in after.results[: len(wrong)]):
                return f"{task.id}: a call with wrong arguments was run"
            after.heard = after.heard[1:]
            return _differs(task, clean, after) or ("" if verdict.score == 1.0 else f"{task.id}: after wrong calls it {shown(verdict)}")

        return self._each(looked)

    def hidden(self) -> str:
        """Fail if prompts and tools contain the answer more often than answers of other tasks, so that a common word does not count."""
        tasks = list(self._tasks(4))
        texts = [_read_first(self.env, task) for task in tasks]
        answers = [str(task.reference) for task in tasks]
        own = [bool(answer) and answer in text for answer, text in zip(answers, texts, strict=True)]
        others = [bool(answer) and answer in text for answer, text in zip(answers[1:] + answers[:1], texts, strict=True)]
        if (sum(own) - sum(others)) / len(tasks) <= 0.5:
            return ""
        return f"{tasks[own.index(True)].id}: what the policy reads before its first turn contains the reference"

    def _each(self, look: Callable[[Task, Sequence[Said]], str]) -> str:
        tasks = list(self._tasks(PLAYED))
        scripts = [self.env.script(task) for task in tasks]
        if any(script is None for script in scripts):
            raise CannotCheck("it has no oracle turns; write `script(task)` if the turns of a right conversation can be known")
        return first(look(task, script or ()) for task, script in zip(tasks, scripts, strict=True))

    def _tasks(self, count: int) -> Iterator[Task]:
        for split in self.env.splits:
            size = self.env.size(split)
            yield from (self.env.task(split, index) for index in range(count if size is None else min(count, size)))


def _differs(task: Task, one: Play, other: Play) -> str:
    pairs = zip(one.results, other.results, strict=False)
    if len(one.results) == len(other.results) and one.results == other.results:
        return ""
    a, b = next(((a, b) for a, b in pairs if a != b), (len(one.results), len(other.results)))
    return f"{task.id}: the results differ: {a!r:.120} and {b!r:.120}"


def _read_first(environment: Environment, task: Task) -> str:
    play = Play(environment, task)
    try:
        tools: Sequence[ToolSpec] = play.lease.tools
        opening = " ".join(message["content"] for message in play.lease.opening)
        return json.dumps([tool.wire() for tool in tools]) + opening
    finally:
        play.lease.close()
