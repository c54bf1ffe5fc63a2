"""Watch the tasks of a run: an environment that gives other tasks for the same index than before, and questions that no longer reach the
policy.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from rlvr.contracts import Environment
from rlvr.episode import Episode
from rlvr.task import Task

NUM_TASKS = 8
"""The number of tasks that are asked for again after each step, and of groups that show whether all prompts are the same."""
MAX_STORED = 20_000
"""Tasks with more characters are not stored in a checkpoint."""
MAX_QUOTE = 60
"""How much of a question is quoted."""


class TaskChange(NamedTuple):
    """How tasks differ from earlier ones."""

    what: str
    breaks_contract: bool
    """Whether a task is another one with the same id."""
    is_renamed: bool
    """Whether all of these tasks have other ids, which the environment itself gives: it says so that they are other tasks."""


class TaskChanges:
    """Looks after each step whether the first tasks are as they were.

    >>> import rlvr
    >>> changes = TaskChanges(rlvr.make_env("arithmetic"))
    >>> changes.watch([("train", index) for index in range(8)])
    >>> changes.find() is None
    True
    """

    def __init__(self, environment: Environment) -> None:
        self.environment = environment
        self._first: dict[tuple[str, int], Task] = {}
        self._num_asked = 0
        self._had_questions = False

    def watch(self, places: Sequence[tuple[str, int]]) -> None:
        """Keep the first tasks at these places, to find out later whether they have changed.

        Tasks that an environment draws anew at each call are not kept.
        """
        chosen = list(dict.fromkeys(places))[: NUM_TASKS - self._num_asked]
        self._num_asked += len(chosen)
        for split, index in chosen:
            task = self._load(split, index)
            if task is not None and _identify(task) == _identify(self._load(split, index)):
                self._first[split, index] = task

    @property
    def is_table_full(self) -> bool:
        """Whether as many tasks were asked for as are kept."""
        return self._num_asked >= NUM_TASKS

    def to_json(self) -> list[list[Any]]:
        """Return the kept tasks for a checkpoint, but for large ones and those that are not text and numbers alone."""
        rows = []
        for (split, index), task in self._first.items():
            row = [split, index, task.id, task.prompt, task.reference]
            with suppress(TypeError, ValueError):  # no JSON
                rows += [row] if len(json.dumps(row)) <= MAX_STORED else []
        return rows

    def restore(self, rows: Sequence[Sequence[Any]]) -> TaskChange | None:
        """Return how most of the tasks differ from those in a checkpoint, if they do; then watch the present tasks."""
        self._first = {}
        with suppress(TypeError, ValueError):  # a checkpoint of another version, or a damaged one, has nothing to compare with
            self._first = {(str(split), int(index)): Task(prompt, reference, name) for split, index, name, prompt, reference in rows}
        places = [*self._first]
        change, self._first = self.find(), {}
        self.watch(places)
        return change

    def find(self) -> TaskChange | None:
        """Return what has changed if most of the watched tasks are no longer what they were at first; None otherwise."""
        pairs = [(place, task, now) for place, task in self._first.items() if (now := self._load(*place)) is not None]
        changed = [(place, task, now) for place, task, now in pairs if _identify(task) != _identify(now)]
        if not changed or len(changed) <= len(pairs) / 2:
            return None
        with_same_id = [(place, task, now) for place, task, now in changed if task.id == now.id]
        (split, index), old, new = (with_same_id or changed)[0]
        if old.prompt == new.prompt:
            part, texts = "reference", (str(old.reference), str(new.reference))
        else:
            messages = ((one["content"], other["content"]) for one, other in zip(old.prompt, new.prompt, strict=False) if one != other)
            part, texts = "prompt", next(messages, (old.question, new.question))
        was, is_now = map(_cut, texts)
        which = repr(old.id) if with_same_id else f"task {index} of the split {split!r}"
        what = f"{len(changed)} of {len(pairs)} tasks are others than at first: the {part} of {which} was {was!r} and is {is_now!r}"
        is_renamed = not with_same_id and all(_has_own_id(task) and _has_own_id(now) for _, task, now in changed)
        return TaskChange(what, bool(with_same_id), is_renamed)

    def have_lost_distinct_prompts(self, groups: Sequence[Sequence[Episode]]) -> bool:
        """Whether tasks with different references have one and the same prompt now, and had not in an earlier step."""
        first = [group[0] for group in groups if group]
        if any(_get_prompt(episode) != _get_prompt(first[0]) for episode in first[1:]):  # nearly always the second differs
            self._had_questions = True
            return False
        if len({json.dumps(episode.meta.get("reference"), default=str) for episode in first}) < NUM_TASKS:
            return False
        return self._had_questions

    def _load(self, split: str, index: int) -> Task | None:
        try:
            return self.environment.task(split, index)
        except Exception:  # it may serve each task once; if it serves none, sampling says so
            return None


def list_places(groups: Sequence[Sequence[Episode]]) -> list[tuple[str, int]]:
    """List where the tasks of these groups are in the environment: their split and index."""
    metas: list[Mapping[str, object]] = [group[0].meta for group in groups if group]
    return [(str(meta["split"]), int(str(meta["index"]))) for meta in metas if "index" in meta]


def _get_prompt(episode: Episode) -> list[int]:
    return [*episode.tokens[: episode.prompt_length]]


def _identify(task: Task | None) -> str:
    return "" if task is None else json.dumps([task.prompt, task.reference], skipkeys=True, default=str)


def _has_own_id(task: Task) -> bool:
    """Whether an environment has given the task its id, which is otherwise a digest."""
    return task.id != Task(task.prompt, task.reference).id


def _cut(text: str) -> str:
    return text if len(text) <= MAX_QUOTE else text[:MAX_QUOTE] + "..."
