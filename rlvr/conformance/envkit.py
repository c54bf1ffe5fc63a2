"""The conformance kit of environments: the checks of `rlvr.conformance.checks.check_env`.

First the tasks and their scores are checked, as text; then the same environment through Gymnasium, token by token. The tokenizer
is `bytes`, which encodes any text without loss.
"""

from __future__ import annotations

import json
import random
import time
import warnings
from collections.abc import Callable, Iterator
from functools import cached_property, partial
from itertools import islice
from typing import Any

import gymnasium
from gymnasium.envs.registration import EnvSpec
from gymnasium.utils.env_checker import check_env as gymnasium_check

from rlvr.conformance import adversarial_answers as canaries
from rlvr.conformance.check_runner import CheckSkipped, Steps, check_closing_twice, describe_first_problem, format_verdict
from rlvr.conformance.conversationkit import NUM_PLAYED_TASKS, has_transcript_verifier, iter_conversation_checks, play_conversation
from rlvr.conformance.gold_check import find_unreadable_references
from rlvr.conformance.hostile_player import SLOW_OPENING_S
from rlvr.conformance.subprocess_call import call_in_subprocess
from rlvr.conformance.vector_comparison import NUM_COMPARED_TASKS, digest_tasks, digest_tasks_and_compare_vector_envs, task_to_text
from rlvr.contracts import Environment
from rlvr.mdp._gymnasium import format_gym_id
from rlvr.mdp.env import OBSERVATION_KINDS, TokenEnv
from rlvr.mdp.limits import get_num_tasks, validate_environment_attributes
from rlvr.mdp.sessions import LazySession, verify_answer_safely
from rlvr.registry.plugins import build, is_registered_here
from rlvr.rollout.replay import find_mismatch
from rlvr.task import Task, Verdict

NUM_WRONG_ANSWER_TASKS = 4
"""Number of tasks of each split that get all wrong answers: few, since for code each answer is a program that runs. One task if each answer
is a whole conversation, which may need a sandbox session."""
NUM_READ_TASKS = 200
"""Number of tasks of each split that are only read."""
NUM_REPLAYED_EPISODES = 12
REFERENCES_TIMEOUT_S = 5.0


def iter_env_checks(name: str, settings: dict[str, Any]) -> Steps:
    """Yield every check of an environment, in a useful order."""
    env: Any = build("env", name, **settings)
    yield "it can be built", lambda: "" if isinstance(env, Environment) else f"it is a {type(env).__name__}, not an rlvr.Environment"
    if not isinstance(env, Environment):
        return
    try:
        kit = _EnvChecks(name, settings, env)
        yield "it says what it is for", lambda: "" if (type(env).__doc__ or "").strip() else "its class has no docstring; say what it asks"
        yield "its settings are plain", kit.check_settings
        yield "every split has tasks, each with its own id", kit.check_tasks
        yield "a task is a function of split and index", kit.check_determinism
        yield "another process gets the same tasks", kit.check_other_process
        yield "no task is in two splits", kit.check_disjoint_splits
        yield "every gold can be judged", lambda: find_unreadable_references(env, timeout_s=REFERENCES_TIMEOUT_S).describe()
        yield "the gold answer scores 1", kit.check_gold_score
        yield "an empty answer scores 0", lambda: kit.check_zero_scores(lambda task: iter(canaries.EMPTY_ANSWERS))
        yield "the question as an answer scores 0", lambda: kit.check_zero_scores(lambda task: iter([task.question]))
        yield "a hedged answer scores 0", lambda: kit.check_zero_scores(kit.iter_hedges)
        yield "a denial of the gold answer scores 0", lambda: kit.check_zero_scores(kit.iter_denials)
        yield "an injected answer scores 0", lambda: kit.check_zero_scores(lambda task: iter(canaries.INJECTION_ANSWERS))
        yield "the prompt does not contain the answer", kit.check_prompt_leak
        yield from iter_conversation_checks(env)
        for form in OBSERVATION_KINDS:
            yield f"Gymnasium's own check passes, obs={form}", partial(kit.check_gymnasium, form)
        yield "the same seed gives the same episode", kit.check_seeding
        yield "SyncVectorEnv and AsyncVectorEnv agree", kit.check_vector_envs
        yield "stepping gives the same result as sampling", kit.check_replay
    finally:
        env.close()
    yield "it can be closed twice", partial(check_closing_twice, env)


class _EnvChecks:
    """The checks of one environment."""

    def __init__(self, name: str, settings: dict[str, Any], env: Environment) -> None:
        self.name, self.settings, self.env = name, settings, env
        self._read_tasks: dict[tuple[str, int], Task] = {}

    # ---- tasks

    def check_settings(self) -> str:
        try:
            json.dumps(self.settings, allow_nan=False)
        except (TypeError, ValueError) as error:
            return f"{error}; settings are sent to other processes, so they must be numbers, strings, lists and mappings"
        return ""

    def check_tasks(self) -> str:
        seen: dict[str, str] = {}
        validate_environment_attributes(self.env)
        if self.env.traits.replies and self.env.max_turns == 1 and not self.env.sub_environments:
            return "it defines `reply`, and max_turns is 1, so that the policy never gets a reply; set max_turns to the number of its turns"
        for split in self.env.splits:
            if get_num_tasks(self.env, split) == 0:
                return f"the split {split!r} is empty"
            for index, task in self._iter_tasks(split, NUM_READ_TASKS):
                if not isinstance(task, Task):
                    return f"task({split!r}, {index}) is a {type(task).__name__}, not an rlvr.Task"
                if task.id in seen:
                    return f"{split} {index} and {seen[task.id]} share the id {task.id!r}"
                seen[task.id] = f"{split} {index}"
                json.dumps([task.reference, dict(task.meta)], allow_nan=False)
        return ""

    def check_determinism(self) -> str:
        with build("env", self.name, **self.settings) as other:
            for split in self.env.splits:
                once = [task_to_text(task) for _, task in self._iter_tasks(split, NUM_COMPARED_TASKS)]
                again = [task_to_text(self.env.task(split, index)) for index in range(len(once))]
                backwards = [task_to_text(other.task(split, index)) for index in reversed(range(len(once)))][::-1]
                for index, (a, b, c) in enumerate(zip(once, again, backwards, strict=True)):
                    if not a == b == c:
                        return f"task({split!r}, {index}) is not always the same: {a[:120]} and {(b if a != b else c)[:120]}"
        return ""

    def check_other_process(self) -> str:
        same = self.subprocess_check_results["digest"] == digest_tasks(self.name, self.settings)
        return "" if same else "its tasks differ in another process; draw from random.Random(text), never from hash() or the clock"

    def check_disjoint_splits(self) -> str:
        owner: dict[str, str] = {}
        for split in self.env.splits:
            for _, task in self._iter_tasks(split, NUM_READ_TASKS):
                key = json.dumps([task.prompt, task.reference], default=str, sort_keys=True)
                if owner.setdefault(key, split) != split:
                    return f"{task.question!r:.120} is in {owner[key]} and in {split}; held-out tasks would be trained on"
        return ""

    # ---- the scores of answers

    def check_gold_score(self) -> str:
        def looked(task: Task) -> str:
            gold = self._get_gold(task)
            script = self.env.oracle_turns(task)
            verdict = self._verify(task, gold) if script is None else play_conversation(self.env, task, script)[0]
            return "" if verdict.score == 1.0 else f"{task.id}: {canaries.shorten(gold)} {format_verdict(verdict)}"

        room = self.env.max_new_tokens
        if wrong := describe_first_problem(
            looked(task) for task in self._iter_sample_tasks(NUM_PLAYED_TASKS if self.has_sandbox_session else NUM_COMPARED_TASKS)
        ):
            return wrong
        shortest = min(len(self._get_gold(task).encode()) for task in self._iter_sample_tasks()) + 1
        return (
            f"the shortest gold answer needs {shortest} bytes with its end, max_new_tokens is {room}; raise it" if shortest > room else ""
        )

    def check_zero_scores(self, answers: Callable[[Task], Iterator[str]]) -> str:
        tasks = (
            islice(self._iter_sample_tasks(1), 1) if has_transcript_verifier(self.env) else self._iter_sample_tasks(NUM_WRONG_ANSWER_TASKS)
        )
        return describe_first_problem(self._check_zero_score(task, answer) for task in tasks for answer in answers(task))

    def iter_hedges(self, task: Task) -> Iterator[str]:
        gold = self._get_gold(task)
        others = (self._get_gold(other) for other in self._iter_sample_tasks())
        other = next((text for text in others if text != gold), None)
        if other is None:
            raise CheckSkipped("all gold answers are the same, so there is no alternative to hedge with")
        if "```" in gold:  # the code of another task is not an alternative: only code that defines the same name is
            other = canaries.remove_return_values(gold) or other
        if canaries.is_bare_answer(gold) or "\n" in gold:
            yield from canaries.iter_hedged_answers(gold, other)

    def iter_denials(self, task: Task) -> Iterator[str]:
        texts = {self._get_gold(task), str(task.reference) if isinstance(task.reference, str | int) else ""}
        for text in sorted(texts - {""}):
            if canaries.is_bare_answer(text):
                yield from canaries.iter_denials(text)

    def check_prompt_leak(self) -> str:
        """Fail if prompts contain their own answer far more often than the answer of another task."""
        tasks = [task for split in self.env.splits for _, task in self._iter_tasks(split, 40)]
        prompts = [" ".join(message["content"] for message in task.prompt) for task in tasks]
        golds = [self._get_gold(task).strip() for task in tasks]
        own = [_is_in_prompt(gold, prompt) for gold, prompt in zip(golds, prompts, strict=True)]
        others = [_is_in_prompt(gold, prompt) for gold, prompt in zip(golds[1:] + golds[:1], prompts, strict=True)]
        share, chance = sum(own) / len(own), sum(others) / len(others)
        if share - chance <= 0.5:
            return ""
        task = tasks[own.index(True)]
        return f"{share:.0%} of the prompts contain their own answer, {chance:.0%} the answer of another task: {task.question!r:.120}"

    # ---- as a Gymnasium environment

    def check_gymnasium(self, form: str) -> str:
        if self.has_sandbox_session and form != OBSERVATION_KINDS[0]:  # only the observations differ, not the conversations
            seen = TokenEnv(env=self.env, tokenizer="bytes", obs=form)
            try:
                return "" if seen.observation_space.contains(seen.reset(seed=0)[0]) else "an observation is not in its space"
            finally:
                _close_session(seen)
        wanted = format_gym_id(self.name)
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
            except AssertionError as error:
                # with texts a step is a turn, and a conversation may reach its limit of turns with the first
                if form != "text" or "truncates after 1 step" not in str(error):
                    raise
            finally:
                env.close()
        return ""

    def check_seeding(self) -> str:
        one, two = TokenEnv(env=self.env, tokenizer="bytes") if self.has_sandbox_session else self._make_token_env(), self._make_token_env()
        try:
            for seed in (1, 2, 3)[: 1 if self.has_sandbox_session else 3]:
                a, b = _run_random_steps(one, seed), _run_random_steps(two, seed)
                if a != b:
                    return f"seed {seed} gives two different episodes"
        finally:
            if self.has_sandbox_session:
                _close_session(one)
            else:
                one.close()
            two.close()
        return ""

    def check_vector_envs(self) -> str:
        return str(self.subprocess_check_results["vectors"])

    def check_replay(self) -> str:
        env = self._make_token_env(obs="ids")
        dice = random.Random(0)
        split = self.env.splits[0]
        size = env.environment.num_tasks(split)
        try:
            for k in range(NUM_REPLAYED_EPISODES // 3 if self.has_sandbox_session else NUM_REPLAYED_EPISODES):
                index = dice.randrange(10_000 if size is None else size)
                wrong = _check_gymnasium_replay(env, split, index, dice, use_gold=k % 4 == 0)
                if wrong:
                    return f"{split} {index}: {wrong}"
        finally:
            env.close()
        return ""

    # ---- helpers of the checks

    @cached_property
    def subprocess_check_results(self) -> dict[str, str]:
        """The task digest and the comparison of vector environments, both computed in another process; cached, because starting it
        takes seconds.
        """
        if is_registered_here("env", self.name):
            raise CheckSkipped("only this process knows a name of rlvr.register; check it by its file: my_envs.py:MyEnv")
        return dict(call_in_subprocess(digest_tasks_and_compare_vector_envs, self.name, self.settings))

    @property
    def has_sandbox_session(self) -> bool:
        """Whether each conversation needs a sandbox session, or takes long to open; then a check has few conversations, and shares the
        sandbox.
        """
        return any(tool.needs_sandbox for tool in self.env.tools) or self.has_slow_session

    @cached_property
    def has_slow_session(self) -> bool:
        """Whether opening a session takes long, because it starts a server, for example."""
        if not self.env.traits.has_sessions:
            return False
        began = time.monotonic()
        handle = LazySession(self.env, self.env.task(self.env.splits[0], 0), seed=0)
        try:
            handle.open()
        finally:
            handle.close()
        return time.monotonic() - began > SLOW_OPENING_S

    def _iter_tasks(self, split: str, count: int) -> Iterator[tuple[int, Task]]:
        """Yield the first tasks of a split. Each is made once: to make a task may take milliseconds, and most checks read the same ones."""
        size = self.env.num_tasks(split)
        for index in range(count if size is None else min(count, size)):
            if (split, index) not in self._read_tasks:
                self._read_tasks[split, index] = self.env.task(split, index)
            yield index, self._read_tasks[split, index]

    def _iter_sample_tasks(self, count: int = NUM_COMPARED_TASKS) -> Iterator[Task]:
        for split in self.env.splits:
            yield from (task for _, task in self._iter_tasks(split, count))

    def _get_gold(self, task: Task) -> str:
        gold = self.env.gold(task)
        if gold is None:
            raise CheckSkipped("it has no gold answer; write `gold(task)` if one can be known")
        if not isinstance(gold, str):
            raise TypeError(f"gold returned {gold!r:.80} for {task.id}; it must be a string")
        return gold

    def _verify(self, task: Task, answer: str) -> Verdict:
        if has_transcript_verifier(self.env):  # then an answer is a conversation of one turn
            return play_conversation(self.env, task, [answer])[0]
        return verify_answer_safely(self.env.verifier, task, lambda: self.env.select_answer(task, [answer]))

    def _check_zero_score(self, task: Task, answer: str) -> str:
        verdict = self._verify(task, answer)
        return "" if verdict.score == 0.0 else f"{task.id}: {canaries.shorten(answer)} {format_verdict(verdict)}"

    def _make_token_env(self, **form: Any) -> TokenEnv:
        return TokenEnv(env={"name": self.name, **self.settings}, tokenizer="bytes", render_mode="ansi", **form)


def _close_session(env: TokenEnv) -> None:
    """Close the session of the current episode, but not the environment, which is still needed."""
    if env.state is not None:
        env.state.close()


def _is_in_prompt(answer: str, prompt: str) -> bool:
    """Whether the prompt contains the answer as a separate word: 4 is not in 14."""
    start = prompt.find(answer) if answer else -1
    while start >= 0:
        around = prompt[start - 1 : start] + prompt[start + len(answer) : start + len(answer) + 1]
        if not any(char.isalnum() for char in around):
            return True
        start = prompt.find(answer, start + 1)
    return False


def _run_random_steps(env: gymnasium.Env[Any, Any], seed: int) -> list[Any]:
    observation, _ = env.reset(seed=seed)
    env.action_space.seed(seed)
    seen: list[Any] = [observation["input_ids"].tolist()]
    for _ in range(12):
        observation, reward, terminated, truncated, _ = env.step(env.action_space.sample())
        seen.append((observation["input_ids"].tolist(), reward, terminated, truncated))
        if terminated or truncated:
            break
    return seen


def _check_gymnasium_replay(env: TokenEnv, split: str, index: int, rng: random.Random, *, use_gold: bool) -> str:
    """Sample an episode of random turns on the fast path, then step it through Gymnasium, and describe a mismatch."""
    mdp, task = env.mdp, env.environment.task(split, index)
    state = mdp.start_conversation(task)
    while state.stop_reason is None:
        room = mdp.count_remaining_turn_tokens(state)
        said = mdp.tokenizer.encode((env.environment.gold(task) or "") if use_gold else chr(rng.randrange(32, 127)) * rng.randrange(6))
        mdp.step_turn(state, [*said[: room - 1], mdp.tokenizer.eos_id] if len(said) < room else said[:room])
    verdict = mdp.verify(state)
    if verdict.score is None:
        return f"its verdict is {format_verdict(verdict)}"
    session = mdp.build_episode(state, verdict, group="").meta.get("session")
    return find_mismatch(env, split, index, state.tokens, state.action_mask, state.stop_reason.value, verdict.score, session)
