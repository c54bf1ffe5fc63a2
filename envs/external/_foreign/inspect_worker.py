"""Worker class of `inspect_task`: one sample of an Inspect task. Its solver runs in a thread; its model calls become our turns."""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import math
import queue
import threading
from contextlib import suppress
from itertools import islice
from typing import Any

from rlvr.envs.external._foreign_worker import SharedObjectInstance, find_version

REQUEST_TIMEOUT_S = 120.0
JOIN_TIMEOUT_S = 5.0
SCORE_VALUES = {"C": 1.0, "I": 0.0, "N": 0.0, "P": 0.5}


class InspectInstance(SharedObjectInstance):
    """Worker class of `inspect_task`: the samples of an Inspect task by number, in a forked process."""

    def __init__(self, *, task: str, settings: dict[str, Any], strict: bool) -> None:
        self.inspect, self.strict = importlib.import_module("inspect_ai"), strict
        self.solver_module, self.dataset = importlib.import_module("inspect_ai.solver"), importlib.import_module("inspect_ai.dataset")
        self.task = self.get_shared(task=task, settings=settings)
        self.solver_thread: threading.Thread | None = None
        if not isinstance(self.task, self.inspect.Task):
            raise TypeError(f"{task} made {self.task!r:.80}; it must be a Task of inspect_ai")
        if self.task.sandbox or self.task.setup:
            raise ValueError(f"{task} has a sandbox or a setup of its own")
        if not self.task.scorer:
            raise ValueError(f"{task} has no scorer")
        solver = self.task.solver
        self.solver = self.solver_module.chain(solver) if isinstance(solver, list) else solver

    @classmethod
    def import_and_describe_package(cls, *, task: str, settings: dict[str, Any], strict: bool) -> Any:
        """Import the package, load the task, and return the version of the package."""
        about = {"version": find_version("inspect-ai", importlib.import_module("inspect_ai"))}
        cls.load_shared(task=task, settings=settings)
        return about

    @staticmethod
    def load(*, task: str, settings: dict[str, Any]) -> Any:
        """Call the task's function, and return its Task."""
        module, _, name = task.rpartition(":")
        return getattr(_import_module(module), name)(**settings)

    def list_questions(self, limit: int) -> list[str]:
        """Return the question of each sample."""
        return [one.input if isinstance(one.input, str) else str(one.input[-1].text) for one in islice(iter(self.task.dataset), limit)]

    def get_prompt_messages(self, number: int) -> list[dict[str, str]]:
        """Return the messages of the solver's first request."""
        self.reset(number)
        return self.messages

    def reset(self, seed: int) -> str:
        """Start the solver of the sample whose number is `seed`, up to its first request; return its last message."""
        sample = next(islice(iter(self.task.dataset), seed, None))
        if sample.sandbox or sample.files or sample.setup:
            raise ValueError(f"sample {sample.id or seed} has files or a sandbox of its own")
        self._stop_solver()
        self.requests: queue.Queue[Any] = queue.Queue()
        self.replies: queue.Queue[str | None] = queue.Queue()
        self.solver_thread = threading.Thread(target=self._run_solver, args=(sample, seed, self.requests, self.replies), daemon=True)
        self.solver_thread.start()
        found = self._wait_for_request()
        if not isinstance(found, list):
            raise RuntimeError("its solver never asked for an answer")
        self.messages = found
        return str(found[-1]["content"])

    def step(self, move: str) -> dict[str, Any]:
        """Pass an answer to the solver; return its next request, or the score."""
        before = self.messages
        self.replies.put(move)
        found = self._wait_for_request()
        if isinstance(found, list):
            if found[: len(before)] != before or found[len(before) : len(before) + 1] != [{"role": "assistant", "content": move}]:
                raise RuntimeError("its solver changes what was said before, which is not translated")
            self.messages = found
            return {"text": "\n".join(one["content"] for one in found[len(before) + 1 :]), "rewards": [], "over": False}
        right = not self.strict or _normalize_last_line(move) in {_normalize_last_line(one) for one in self.target} - {""}
        return {"text": "", "rewards": [min(found["values"]) if right else 0.0], "over": True}

    def find_gold_answer(self, number: int) -> str | None:
        """Return the first target, plain or as `ANSWER: ...`, if the scorers give that the full score; None otherwise."""
        for form in ("{}", "ANSWER: {}"):
            self.reset(number)
            said = form.format(self.target[0]) if self.target else ""
            with suppress(Exception):  # if the scorers fail, no answer is known to be correct
                if said and self.step(said)["rewards"] == [1.0]:
                    return said
        return None

    def _stop_solver(self) -> None:
        """Stop a running solver, whose threads would live as long as the process."""
        if self.solver_thread is not None and self.solver_thread.is_alive():
            self.replies.put(None)
            self.solver_thread.join(JOIN_TIMEOUT_S)

    def _wait_for_request(self) -> Any:
        found = self.requests.get(timeout=REQUEST_TIMEOUT_S)
        if isinstance(found, BaseException):
            raise found
        return found

    def _run_solver(self, sample: Any, number: int, asked: queue.Queue[Any], told: queue.Queue[str | None]) -> None:
        try:
            asked.put({"values": asyncio.run(self._solve(sample, number, asked, told))})
        except BaseException as error:
            asked.put(error)

    async def _solve(self, sample: Any, number: int, asked: queue.Queue[Any], told: queue.Queue[str | None]) -> list[float]:
        from inspect_ai.model import ChatMessageUser, ModelName, ModelOutput
        from inspect_ai.scorer import Target

        async def generate(state: Any, *_: Any, **__: Any) -> Any:
            if state.tools:
                raise ValueError("its solver gives the model tools, which are not translated")
            asked.put([{"role": one.role, "content": _get_text(one)} for one in state.messages])
            said = await asyncio.to_thread(told.get)
            if said is None:
                told.put(None)  # the solver may make another request
                raise RuntimeError("the conversation was left")
            state.output = ModelOutput.from_content("policy", said)
            state.messages.append(state.output.message)
            return state

        target = Target(sample.target)
        self.target = list(target)
        messages = [ChatMessageUser(content=sample.input)] if isinstance(sample.input, str) else list(sample.input)
        state = self.solver_module.TaskState(
            model=ModelName("policy/policy"),
            sample_id=sample.id if sample.id is not None else number,
            epoch=1,
            input=sample.input,
            messages=messages,
            target=target,
            choices=sample.choices,
            metadata=dict(sample.metadata or {}),
        )
        state = await self.solver(state, generate)
        scorers = self.task.scorer if isinstance(self.task.scorer, list) else [self.task.scorer]
        return [_convert_score(await scorer(state, target)) for scorer in scorers]


def _convert_score(score: Any) -> float:
    """Parse the value of a score as a number from 0 to 1; ValueError for anything else."""
    value = getattr(score, "value", None)
    found = SCORE_VALUES.get(value) if isinstance(value, str) else value
    if isinstance(found, bool):
        return float(found)
    if not isinstance(found, int | float) or not math.isfinite(found) or not 0 <= found <= 1:
        raise ValueError(f"a scorer gave {value!r:.80}; it must be C, I, P or N, true or false, or a number from 0 to 1")
    return float(found)


def _normalize_last_line(text: str) -> str:
    r"""Normalize the last line of a text, without a leading `ANSWER:`.

    >>> _normalize_last_line("I think so.\nANSWER: Paris.")
    'paris'
    """
    lines = [line for line in text.splitlines() if line.strip()]
    last = " ".join(lines[-1].split()).casefold() if lines else ""
    return last.removeprefix("answer:").strip().strip("*`").removesuffix(".")


def _import_module(name: str) -> Any:
    if not name.endswith(".py"):
        return importlib.import_module(name)
    spec = importlib.util.spec_from_file_location("rlvr_inspect_task", name)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _get_text(message: Any) -> str:
    if not isinstance(message.content, str) and any(getattr(part, "type", "") != "text" for part in message.content):
        raise ValueError("a message holds more than text")
    return str(message.text)
