"""Worker classes of `verifiers_env`: a taskset of verifiers (interface v1), or an environment of the older interface v0."""

from __future__ import annotations

import asyncio
import functools
import importlib
import inspect
import json
import math
import queue
import threading
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from typing import Any

from rlvr.envs.external._foreign_worker import SharedObjectInstance, find_version

PACKAGE = "verifiers"
"""The foreign package, which has the same name as one of our folders."""
STEP_TIMEOUT_S = 120.0
JOIN_TIMEOUT_S = 5.0
UNTRANSLATED_KINDS = frozenset({"SandboxEnv", "SandboxMixin", "EnvGroup", "MCPEnv", "BrowserEnv"})
"""Environments of v0 that start containers, servers or programs of their own, or that hold several others."""


class TasksetInstance(SharedObjectInstance):
    """Worker class of `verifiers_env` for tasksets of verifiers v1. An answer is scored like a trace of the package, and every reward
    must have a value.
    """

    def __init__(self, *, id: str, settings: dict[str, Any]) -> None:
        self.v1 = importlib.import_module(f"{PACKAGE}.v1")
        self.tasks = self.get_shared(id=id, settings=settings)

    @classmethod
    def import_and_describe_package(cls, *, id: str, settings: dict[str, Any]) -> Any:
        """Import the package, load the taskset, and return the version of the package."""
        importlib.import_module(f"{PACKAGE}.v1")
        cls.load_shared(id=id, settings=settings)
        return {"version": find_version("verifiers", importlib.import_module(PACKAGE))}

    @staticmethod
    def load(*, id: str, settings: dict[str, Any]) -> Any:
        """Load the taskset."""
        v1 = importlib.import_module(f"{PACKAGE}.v1")
        return v1.load_taskset(v1.taskset_config_type(id)(**{**settings, "id": id}))

    def list_questions(self, limit: int) -> list[str]:
        """Return the last message of each prompt; raise ValueError for an unsupported task."""
        found = []
        for task in islice(iter(self.tasks), limit):
            self._check_supported(task)
            found.append(self._build_messages(task)[-1]["content"])
        return found

    def get_prompt_messages(self, number: int) -> list[dict[str, str]]:
        """Return the messages of a task."""
        return self._build_messages(self._get_task(number))

    def reset(self, seed: int) -> str:
        """Select the task whose number is `seed` (the game protocol fixes the keyword); return its question."""
        self.task = self._get_task(seed)
        return self._build_messages(self.task)[-1]["content"]

    def step(self, move: str) -> dict[str, Any]:
        """Score the answer given as `move` (the game protocol fixes the keyword): the weighted sum divided by its maximum."""
        v1, task = self.v1, self.task
        told = v1.TraceTask(type=type(task).__name__, data=task.data, key=task.key, hash=task.hash)
        trace = v1.Trace(task=told, agent=v1.AgentInfo(config=v1.AgentConfig()))
        kinds = {"system": v1.SystemMessage, "user": v1.UserMessage, "assistant": v1.AssistantMessage}
        for place, one in enumerate(self._build_messages(task)):
            trace.nodes.append(v1.MessageNode(parent=place - 1 if place else None, message=kinds[one["role"]](content=one["content"])))
        trace.nodes.append(v1.MessageNode(parent=len(trace.nodes) - 1, message=v1.AssistantMessage(content=move), sampled=True))
        asyncio.run(asyncio.wait_for(task.score(trace), STEP_TIMEOUT_S))
        if trace.errors or not trace.rewards:
            raise RuntimeError(
                f"it was not scored: {[str(error) for error in trace.errors] or 'it has no reward that needs no runtime'}"[:500]
            )
        if missing := [name for name, reward in trace.rewards.items() if reward is None]:
            raise RuntimeError(f"the rewards {', '.join(missing)} did not run")
        return {
            "text": "",
            "rewards": [_compute_normalized_reward({name: (one.score, one.weight) for name, one in trace.rewards.items()})],
            "over": True,
        }

    def _get_task(self, number: int) -> Any:
        return next(islice(iter(self.tasks), number, None))

    def _check_supported(self, task: Any) -> None:
        if task.NEEDS_CONTAINER or getattr(task.data, "image", None):
            raise ValueError(f"task {task.key} needs a container of its own")
        needing = [one.__name__ for one in task.hooks("reward") if _needs_runtime(one)]
        needing += [name for name in ("setup", "finalize") if getattr(type(task), name) is not getattr(self.v1.Task, name)]
        if needing:  # the package would skip such a reward, and score the others alone
            raise ValueError(f"task {task.key} needs a runtime for {', '.join(needing)}")
        if task.plugged_judges():
            raise ValueError(f"task {task.key} uses a model as a judge")
        if type(task).toolsets(task.config) or type(self.tasks).toolsets(self.tasks.config):
            raise ValueError(f"task {task.key} has toolsets, which are servers of their own")

    def _build_messages(self, task: Any) -> list[dict[str, str]]:
        data = task.data
        head = [{"role": "system", "content": data.system_prompt}] if data.system_prompt else []
        if isinstance(data.prompt, str):
            return [*head, {"role": "user", "content": data.prompt}]
        said = [{"role": _get_field(one, "role"), "content": _get_field(one, "content")} for one in data.prompt or ()]
        if not said or not all(isinstance(one["content"], str) for one in said):
            raise ValueError(f"task {task.key} has a prompt that is not only text")
        return [*head, *said]


class LegacyInstance(SharedObjectInstance):
    """Worker class of `verifiers_env` for verifiers v0. The package's own rollout runs in a thread; its model calls become turns of the
    policy.

    The package counts a reward that raises as 0; here the error is recorded, and the rollout has no score.
    """

    def __init__(self, *, id: str, settings: dict[str, Any], has_tools: bool = False) -> None:
        self.types = importlib.import_module(f"{PACKAGE}.legacy.types")
        self.env, self.rows = self.get_shared(id=id, settings=settings)
        kinds = {kind.__name__ for kind in type(self.env).__mro__}
        if unfit := UNTRANSLATED_KINDS & kinds:
            raise ValueError(f"{id} is a {', '.join(sorted(unfit))}, which is not translated")
        self.tools = list(getattr(self.env, "tool_defs", None) or ())
        if self.tools and "ToolEnv" not in kinds:
            raise ValueError(f"{id} has tools and is no ToolEnv, which is not translated")
        if bool(self.tools) != has_tools:
            raise ValueError(f"{id} has tools; set has_tools: true" if self.tools else f"{id} has no tools; leave has_tools out")
        self.rollout_thread: threading.Thread | None = None
        self.rewards: dict[str, tuple[float, float]] = {}
        self.reward_errors: list[str] = []
        for rubric in _iter_rubrics(self.env.rubric):
            self._wrap_rubric_rewards(rubric, id)
        self.env.get_model_response = self._wait_for_policy_turn

    @classmethod
    def import_and_describe_package(cls, *, id: str, settings: dict[str, Any], has_tools: bool = False) -> Any:
        """Import the package, load the environment, and return the version of the package."""
        importlib.import_module(f"{PACKAGE}.legacy")
        cls.load_shared(id=id, settings=settings)
        return {"version": find_version("verifiers", importlib.import_module(PACKAGE))}

    @staticmethod
    def load(*, id: str, settings: dict[str, Any]) -> Any:
        """Load the environment and its rows."""
        env = importlib.import_module(f"{PACKAGE}.legacy").load_environment(id, **settings)
        return env, env.get_eval_dataset() if getattr(env, "dataset", None) is None else env.get_dataset()

    def list_tools(self) -> list[dict[str, Any]]:
        """Return the name, the description and the JSON Schema of each tool."""
        return [{name: getattr(one, name) for name in ("name", "description", "parameters")} for one in self.tools]

    def list_questions(self, limit: int) -> list[str]:
        """Return the last message of each prompt."""
        return [self.get_prompt_messages(number)[-1]["content"] for number in range(min(limit, len(self.rows)))]

    def get_prompt_messages(self, number: int) -> list[dict[str, Any]]:
        """Return the messages of a row."""
        found = self.rows[number]["prompt"]
        return [_convert_message(one) for one in ([{"role": "text", "content": found}] if isinstance(found, str) else found)]

    def find_gold_answer(self, number: int) -> str | None:
        """Return the answer in the row, if it gets the full reward; else None."""
        found = self.rows[number].get("answer")
        if not isinstance(found, str) or not found:
            return None
        with suppress(Exception):  # if the rewards fail, no answer is known to be correct
            self.reset(number)
            if self.step(found)["rewards"] == [1.0]:
                return found
        return None

    def reset(self, seed: int) -> str:
        """Start the rollout of a row; return its question."""
        self._stop_rollout()
        self.requests: queue.Queue[Any] = queue.Queue()
        self.replies: queue.Queue[Any] = queue.Queue()
        self.rewards, self.reward_errors, row = {}, [], dict(self.rows[seed])
        self.rollout_thread = threading.Thread(target=self._run_rollout, args=(row, self.requests), daemon=True)
        self.rollout_thread.start()
        self.messages = self._wait_for_request()
        if not isinstance(self.messages, list):
            raise RuntimeError(f"the rollout ended before the policy had a turn: {self.messages!r:.200}")
        return str(self.messages[-1]["content"])

    def step(self, move: Any) -> dict[str, Any]:
        """Take one turn of the policy, a text or {"text", "calls"}; return the environment's reply, or the reward."""
        self.replies.put(move)
        found, before = self._wait_for_request(), self.messages
        if isinstance(found, list):
            if found[: len(before)] != before or found[len(before)]["role"] != "assistant":
                raise RuntimeError("it changes what was said before, which is not translated")
            self.messages, replies = found, found[len(before) + 1 :]
            results = {one["tool_call_id"]: one["content"] for one in replies if one["role"] == "tool"}
            text = "\n".join(one["content"] for one in replies if one["role"] != "tool")
            return {"text": text, "results": results, "rewards": [], "over": False}
        if self.reward_errors or found["error"] or not self.rewards:
            raise RuntimeError(f"it was not scored: {self.reward_errors or found['error'] or 'no reward was computed'}"[:500])
        total = sum(score * weight for score, weight in self.rewards.values())
        if found["reward"] is None or abs(total - found["reward"]) > 1e-6:
            raise RuntimeError(
                f"its reward is {found['reward']!r:.80}, and its functions give {total:g}: it adds one that is not seen here"
            )
        return {"text": "", "rewards": [_compute_normalized_reward(self.rewards)], "over": True}

    def _stop_rollout(self) -> None:
        """Stop a running rollout, whose threads would live as long as the process."""
        if self.rollout_thread is not None and self.rollout_thread.is_alive():
            self.replies.put(None)
            self.rollout_thread.join(JOIN_TIMEOUT_S)

    def _wrap_rubric_rewards(self, rubric: Any, id: str) -> None:
        """Wrap the reward functions of a rubric to record their values; those without a weight are only logged, and stay unchanged."""
        if type(rubric).__name__ == "JudgeRubric":
            raise ValueError(f"{id} uses a model as a judge")
        for place, (reward, weight) in enumerate(zip(list(rubric.funcs), rubric.weights, strict=True)):
            if weight and rubric._is_group_func(reward):
                raise ValueError(f"{id} has the reward {reward.__name__} of a whole group, and here each answer is verified alone")
            if weight:
                rubric.funcs[place] = self._wrap_reward(reward, float(weight))

    def _wrap_reward(self, reward: Any, weight: float) -> Any:
        @functools.wraps(reward)
        async def watched(*places: Any, **given: Any) -> Any:
            try:
                found = reward(*places, **given)
                found = await found if inspect.isawaitable(found) else found
                if isinstance(found, str | bytes):
                    raise TypeError(f"it gave the text {found!r:.80}; it must be a number from 0 to 1")
                found = float(found)
            except Exception as error:
                self.reward_errors.append(f"{reward.__name__}: {type(error).__name__}: {error}")
                raise
            self.rewards[reward.__name__] = (found, weight)
            return found

        return watched

    async def _wait_for_policy_turn(self, state: Any, prompt: Any, *_: Any, **__: Any) -> Any:
        """Replace the package's model call: wait for the policy's turn."""
        if [one.name for one in state.get("tool_defs") or ()] != [one.name for one in self.tools]:
            raise RuntimeError("it gives the model other tools in this row, which is not translated")
        told = self.replies
        self.requests.put([_convert_message(one) for one in prompt])
        said = await asyncio.to_thread(told.get)
        if said is None:
            told.put(None)  # the package may make another request
            raise RuntimeError("the conversation was left")
        text, calls = (said, []) if isinstance(said, str) else (said["text"], said["calls"])
        made = [self.types.ToolCall(id=one["id"], name=one["name"], arguments=json.dumps(one["arguments"])) for one in calls]
        finish = "tool_calls" if made else "stop"
        message = self.types.ResponseMessage(
            role="assistant", content=text, tool_calls=made or None, finish_reason=finish, is_truncated=False
        )
        return self.types.Response(id="0", created=0, model="policy", message=message)

    def _wait_for_request(self) -> Any:
        found = self.requests.get(timeout=STEP_TIMEOUT_S)
        if isinstance(found, BaseException):
            raise found
        return found

    def _run_rollout(self, row: dict[str, Any], asked: queue.Queue[Any]) -> None:
        async def rolled() -> Any:
            base = importlib.import_module(f"{PACKAGE}.legacy.clients").Client
            policy = type("Policy", (base,), {"__init__": lambda self: None})
            policy.__abstractmethods__ = frozenset()  # type: ignore[attr-defined]  # it is never called: `get_model_response` is replaced
            return await self.env.run_rollout(row, policy(), "policy", {})

        try:
            out = asyncio.run(rolled())
            asked.put({"reward": out["reward"], "error": str(out.get("error") or "")})
        except BaseException as error:
            asked.put(error)


def _iter_rubrics(rubric: Any) -> Iterator[Any]:
    """Yield a rubric, or all rubrics of a group."""
    inner = getattr(rubric, "rubrics", None)
    if inner is None:
        yield rubric
    for one in inner or ():
        yield from _iter_rubrics(one)


def _convert_message(one: Any) -> dict[str, Any]:
    role, content, calls = (_get_field(one, name) for name in ("role", "content", "tool_calls"))
    if isinstance(content, list) and all(_get_field(part, "type") == "text" for part in content):
        content = "\n".join(_get_field(part, "text") for part in content)
    if content is None and calls:
        content = ""
    if not isinstance(content, str):
        raise ValueError(f"a message of the {role} holds more than text")
    found: dict[str, Any] = {"role": "user" if role == "text" else str(role), "content": content}  # "text": a prompt that is one text
    if calls:
        found["tool_calls"] = [[_get_field(call, name) for name in ("id", "name", "arguments")] for call in calls]
    return found | ({"tool_call_id": call_id} if (call_id := _get_field(one, "tool_call_id")) else {})


def _needs_runtime(reward: Any) -> bool:
    runtime = inspect.signature(reward).parameters.get("runtime")
    return runtime is not None and runtime.default is inspect.Parameter.empty


def _compute_normalized_reward(rewards: dict[str, tuple[float, float]]) -> float:
    """Compute the weighted sum of rewards, divided by its maximum. Each reward must be from 0 to 1. A sum below 0 counts as 0.

    >>> _compute_normalized_reward({"right": (1.0, 1.0), "form": (0.5, 0.2)})
    0.9166666666666667
    >>> _compute_normalized_reward({"right": (0.0, 1.0), "length penalty": (1.0, -0.5)})
    0.0
    """
    for name, (score, _) in rewards.items():
        if not isinstance(score, int | float) or not math.isfinite(score) or not 0 <= score <= 1:
            raise ValueError(f"the reward {name} is {score!r:.80}; it must be a number from 0 to 1")
    most = sum(weight for _, weight in rewards.values() if weight > 0)
    if most <= 0:
        raise ValueError("no reward has a weight above 0")
    return max(0.0, float(sum(score * weight for score, weight in rewards.values()) / most))


def _get_field(one: Any, name: str) -> Any:
    return one.get(name) if isinstance(one, dict) else getattr(one, name, None)
