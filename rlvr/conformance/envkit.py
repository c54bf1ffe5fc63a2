"""The conformance kit of environments: the checks of `rlvr.conformance.checks.check_env`.

First the tasks and their scores are checked, as text; then the same environment through Gymnasium, token by token. The tokenizer
is `bytes`, which encodes any text without loss.
"""

from __future__ import annotations

import json
import random
import warnings
from collections.abc import Callable, Iterator
from functools import cached_property, partial
from itertools import islice
from typing import Any

import gymnasium
from gymnasium.envs.registration import EnvSpec
from gymnasium.utils.env_checker import check_env as gymnasium_check

from rlvr.conformance import canaries
from rlvr.conformance.elsewhere import elsewhere
from rlvr.conformance.goldlint import ungradeable
from rlvr.conformance.steps import CannotCheck, Steps, closed, first, shown
from rlvr.conformance.talkkit import PLAYED, judges_evidence, played, talk_checks
from rlvr.conformance.vectors import LOOKED_AT, compared, digest, plain
from rlvr.contracts import Environment
from rlvr.mdp._gymnasium import gym_id
from rlvr.mdp.env import OBSERVATIONS, TokenEnv
from rlvr.mdp.limits import plain_limits, size_of
from rlvr.mdp.sessions import judged
from rlvr.plugins.registry import build
from rlvr.rollout.replay import mismatch
from rlvr.task import Task, Verdict

PROVOKED = 4
"""Number of tasks of each split that get all wrong answers: few, since for code each answer is a program that runs. One task if each answer
is a whole conversation, which may need a sandbox session."""
COMPARED = 200
"""Number of tasks of each split that are only read."""
REPLAYED = 12


def env_checks(name: str, settings: dict[str, Any]) -> Steps:
    """Yield every check of an environment, in a useful order."""
    env: Any = build("env", name, **settings)
    yield "it can be built", lambda: "" if isinstance(env, Environment) else f"it is a {type(env).__name__}, not an rlvr.Environment"
    if not isinstance(env, Environment):
        return
    try:
        kit = _EnvKit(name, settings, env)
        yield "it says what it is for", lambda: "" if (type(env).__doc__ or "").strip() else "its class has no docstring; say what it asks"
        yield "its settings are plain", kit.plain_settings
        yield "every split has tasks, each with its own id", kit.tasks
        yield "a task is a function of split and index", kit.pure
        yield "another process gets the same tasks", kit.other_process
        yield "no task is in two splits", kit.disjoint
        yield "every gold can be judged", partial(ungradeable, env)
        yield "the gold answer scores 1", kit.gold
        yield "an empty answer scores 0", lambda: kit.floor(lambda task: iter(canaries.EMPTY))
        yield "the question as an answer scores 0", lambda: kit.floor(lambda task: iter([task.question]))
        yield "a hedged answer scores 0", lambda: kit.floor(kit.hedges)
        yield "a denial of the gold answer scores 0", lambda: kit.floor(kit.denials)
        yield "an injected answer scores 0", lambda: kit.floor(lambda task: iter(canaries.INJECTED))
        yield "the prompt does not contain the answer", kit.hidden
        yield from talk_checks(env)
        for form in OBSERVATIONS:
            yield f"Gymnasium's own check passes, obs={form}", partial(kit.gymnasium, form)
        yield "the same seed gives the same episode", kit.seeded
        yield "SyncVectorEnv and AsyncVectorEnv agree", kit.vectors
        yield "stepping gives the same result as sampling", kit.replays
    finally:
        env.close()
    yield "it can be closed twice", partial(closed, env)


class _EnvKit:
    """The checks of one environment."""

    def __init__(self, name: str, settings: dict[str, Any], env: Environment) -> None:
        self.name, self.settings, self.env = name, settings, env

    # ---- tasks

    def plain_settings(self) -> str:
        try:
            json.dumps(self.settings, allow_nan=False)
        except (TypeError, ValueError) as error:
            return f"{error}; settings are sent to other processes, so they must be numbers, strings, lists and mappings"
        return ""

    def tasks(self) -> str:
        seen: dict[str, str] = {}
        plain_limits(self.env)
        for split in self.env.splits:
            if size_of(self.env, split) == 0:
                return f"the split {split!r} is empty"
            for index, task in self._tasks(split, COMPARED):
                if not isinstance(task, Task):
                    return f"task({split!r}, {index}) is a {type(task).__name__}, not an rlvr.Task"
                if task.id in seen:
                    return f"{split} {index} and {seen[task.id]} share the id {task.id!r}"
                seen[task.id] = f"{split} {index}"
                json.dumps([task.reference, dict(task.meta)], allow_nan=False)
        return ""

    def pure(self) -> str:
        with build("env", self.name, **self.settings) as other:
            for split in self.env.splits:
                once = [plain(task) for _, task in self._tasks(split, LOOKED_AT)]
                again = [plain(task) for _, task in self._tasks(split, LOOKED_AT)]
                backwards = [plain(other.task(split, index)) for index in reversed(range(len(once)))][::-1]
                for index, (a, b, c) in enumerate(zip(once, again, backwards, strict=True)):
                    if not a == b == c:
                        return f"task({split!r}, {index}) is not always the same: {a[:120]} and {(b if a != b else c)[:120]}"
        return ""

    def other_process(self) -> str:
        same = self.there["digest"] == digest(self.name, self.settings)
        return "" if same else "its tasks differ in another process; draw from random.Random(text), never from hash() or the clock"

    def disjoint(self) -> str:
        owner: dict[str, str] = {}
        for split in self.env.splits:
            for _, task in self._tasks(split, COMPARED):
                key = json.dumps([task.prompt, task.reference], default=str, sort_keys=True)
                if owner.setdefault(key, split) != split:
                    return f"{task.question!r:.120} is in {owner[key]} and in {split}; held-out tasks would be trained on"
        return ""

    # ---- the scores of answers

    def gold(self) -> str:
        def looked(task: Task) -> str:
            gold = self._gold(task)
            script = self.env.script(task)
            verdict = self._judge(task, gold) if script is None else played(self.env, task, script)[0]
            return "" if verdict.score == 1.0 else f"{task.id}: {canaries.short(gold)} {shown(verdict)}"

        room = self.env.max_new_tokens
        if wrong := first(looked(task) for task in self._some(PLAYED if self.boxed else LOOKED_AT)):
            return wrong
        shortest = min(len(self._gold(task).encode()) for task in self._some()) + 1
        return (
            f"the shortest gold answer needs {shortest} bytes with its end, max_new_tokens is {room}; raise it" if shortest > room else ""
        )

    def floor(self, answers: Callable[[Task], Iterator[str]]) -> str:
        tasks = islice(self._some(1), 1) if judges_evidence(self.env) else self._some(PROVOKED)
        return first(self._pays(task, answer) for task in tasks for answer in answers(task))

    def hedges(self, task: Task) -> Iterator[str]:
        gold = self._gold(task)
        others = (self._gold(other) for other in self._some())
        other = next((text for text in others if text != gold), None)
        if other is None:
            raise CannotCheck("all gold answers are the same, so there is no alternative to hedge with")
        if "```" in gold:  # the code of another task is not an alternative: only code that defines the same name is
            other = canaries.spoiled(gold) or other
        if canaries.bare(gold) or "\n" in gold:
            yield from canaries.hedged(gold, other)

    def denials(self, task: Task) -> Iterator[str]:
        texts = {self._gold(task), str(task.reference) if isinstance(task.reference, str | int) else ""}
        for text in sorted(texts - {""}):
            if canaries.bare(text):
                yield from canaries.contained(text)

    def hidden(self) -> str:
        """Fail if prompts contain their own answer far more often than the answer of another task."""
        tasks = [task for split in self.env.splits for _, task in self._tasks(split, 40)]
        prompts = [" ".join(message["content"] for message in task.prompt) for task in tasks]
        golds = [self._gold(task).strip() for task in tasks]
        own = [_stands_in(gold, prompt) for gold, prompt in zip(golds, prompts, strict=True)]
        others = [_stands_in(gold, prompt) for gold, prompt in zip(golds[1:] + golds[:1], prompts, strict=True)]
        share, chance = sum(own) / len(own), sum(others) / len(others)
        if share - chance <= 0.5:
            return ""
        task = tasks[own.index(True)]
        return f"{share:.0%} of the prompts contain their own answer, {chance:.0%} the answer of another task: {task.question!r:.120}"

    # ---- as a Gymnasium environment

    def gymnasium(self, form: str) -> str:
        if self.boxed and form != OBSERVATIONS[0]:  # only the observations differ, not the conversations
            seen = TokenEnv(env=self.env, tokenizer="bytes", obs=form)
            try:
                return "" if seen.observation_space.contains(seen.reset(seed=0)[0]) else "an observation is not in its space"
            finally:
                _left(seen)
        wanted = gym_id(self.name)
        if ":" not in self.name and wanted not in gymnasium.registry:
            return f"Gymnasium does not know {wanted}"
        settings = {"name": self.name, "tokenizer": "bytes", "obs": form, **self.settings}
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            made = EnvSpec("rlvr/Checked-v0", entry_point="rlvr.mdp.env:make_token_env", kwargs=settings).make(disable_env_checker=True)
            env: Any = made.unwrapped
            try:
                if env.mdp.max_new_tokens < 2:
                    return f"max_new_tokens is {env.mdp.max_new_tokens}; an answer and its end need at least 2"
                gymnasium_check(env)
            finally:
                env.close()
        return ""

    def seeded(self) -> str:
        one, two = TokenEnv(env=self.env, tokenizer="bytes") if self.boxed else self._token_env(), self._token_env()
        try:
            for seed in (1, 2, 3)[: 1 if self.boxed else 3]:
                a, b = _walk(one, seed), _walk(two, seed)
                if a != b:
                    return f"seed {seed} gives two different episodes"
        finally:
            if self.boxed:
                _left(one)
            else:
                one.close()
            two.close()
        return ""

    def vectors(self) -> str:
        return str(self.there["vectors"])

    def replays(self) -> str:
        env = self._token_env(obs="ids")
        dice = random.Random(0)
        split = self.env.splits[0]
        size = env.environment.size(split)
        try:
            for k in range(REPLAYED // 3 if self.boxed else REPLAYED):
                index = dice.randrange(10_000 if size is None else size)
                wrong = _replayed(env, split, index, dice, gold=k % 4 == 0)
                if wrong:
                    return f"{split} {index}: {wrong}"
        finally:
            env.close()
        return ""

    # ---- helpers of the checks

    @cached_property
    def there(self) -> dict[str, str]:
        """Results of another process, cached because starting it takes seconds."""
        return dict(elsewhere(compared, self.name, self.settings))

    @property
    def boxed(self) -> bool:
        """Whether each conversation needs a sandbox session; then a check has few conversations, and shares the sandbox."""
        return any(tool.needs_box for tool in self.env.tools)

    def _tasks(self, split: str, count: int) -> Iterator[tuple[int, Task]]:
        size = self.env.size(split)
        for index in range(count if size is None else min(count, size)):
            yield index, self.env.task(split, index)

    def _some(self, count: int = LOOKED_AT) -> Iterator[Task]:
        for split in self.env.splits:
            yield from (task for _, task in self._tasks(split, count))

    def _gold(self, task: Task) -> str:
        gold = self.env.gold(task)
        if gold is None:
            raise CannotCheck("it has no gold answer; write `gold(task)` if one can be known")
        if not isinstance(gold, str):
            raise TypeError(f"gold returned {gold!r:.80} for {task.id}; it must be a string")
        return gold

    def _judge(self, task: Task, answer: str) -> Verdict:
        if judges_evidence(self.env):  # then an answer is a conversation of one turn
            return played(self.env, task, [answer])[0]
        return judged(self.env.verifier, task, lambda: self.env.answer(task, [answer]))

    def _pays(self, task: Task, answer: str) -> str:
        verdict = self._judge(task, answer)
        return "" if verdict.score == 0.0 else f"{task.id}: {canaries.short(answer)} {shown(verdict)}"

    def _token_env(self, **form: Any) -> TokenEnv:
        return TokenEnv(env={"name": self.name, **self.settings}, tokenizer="bytes", render_mode="ansi", **form)


def _left(env: TokenEnv) -> None:
    """Close the session of the current episode, but not the environment, which is still needed."""
    if env.state is not None:
        env.state.close()


def _stands_in(answer: str, prompt: str) -> bool:
    """Whether the prompt contains the answer as a separate word: 4 is not in 14."""
    start = prompt.find(answer) if answer else -1
    while start >= 0:
        around = prompt[start - 1 : start] + prompt[start + len(answer) : start + len(answer) + 1]
        if not any(char.isalnum() for char in around):
            return True
        start = prompt.find(answer, start + 1)
    return False


def _walk(env: gymnasium.Env[Any, Any], seed: int) -> list[Any]:
    observation, _ = env.reset(seed=seed)
    env.action_space.seed(seed)
    seen: list[Any] = [observation["input_ids"].tolist()]
    for _ in range(12):
        observation, reward, terminated, truncated, _ = env.step(env.action_space.sample())
        seen.append((observation["input_ids"].tolist(), reward, terminated, truncated))
        if terminated or truncated:
            break
    return seen


def _replayed(env: TokenEnv, split: str, index: int, dice: random.Random, *, gold: bool) -> str:
    """Sample an episode of random turns on the fast path, then step it through Gymnasium, and describe a mismatch."""
    mdp, task = env.mdp, env.environment.task(split, index)
    state = mdp.start(task)
    while state.end is None:
        room = mdp.budget(state)
        said = mdp.tokenizer.encode((env.environment.gold(task) or "") if gold else chr(dice.randrange(32, 127)) * dice.randrange(6))
        mdp.extend(state, [*said[: room - 1], mdp.tokenizer.eos_id] if len(said) < room else said[:room])
    verdict = mdp.judge(state)
    if verdict.score is None:
        return f"its verdict is {shown(verdict)}"
    session = mdp.episode(state, verdict, group="").meta.get("session")
    return mismatch(env, split, index, state.tokens, state.acted, state.end.value, verdict.score, session)
