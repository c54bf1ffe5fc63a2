"""Make dataset rows for other trainers, and find the task of a row.

A row has the prompt, the split and the index, never the reference. For verification the task is made again, and its prompt must be that of
the row. So a dataset that was made with other settings raises an error instead of wrong rewards.
"""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from rlvr.contracts import Environment
from rlvr.errors import ConfigError, EnvError
from rlvr.mdp.token_mdp import check_task
from rlvr.task import Task, Verdict


def make_rows(environment: Environment, split: str = "train", count: int | None = None, *, start: int = 0) -> list[dict[str, Any]]:
    """Make rows with `prompt`, `split`, `index` and `task_id`, for `datasets.Dataset.from_list` or a JSONL file."""
    if split not in environment.splits:
        raise ConfigError(f"split is {split!r}; {type(environment).__name__} has {', '.join(environment.splits)}")
    size = environment.num_tasks(split)
    if count is None and size is None:
        raise ConfigError(f"{type(environment).__name__} generates unlimited tasks; give the number of rows (count)")
    last = size if count is None else start + count
    if start < 0 or last is None or last <= start or (size is not None and last > size):
        raise ConfigError(f"rows {start} to {last} of split {split!r}, which has {'unlimited' if size is None else size} tasks; use fewer")
    return [make_row(check_task(environment.task(split, index)), split, index) for index in range(start, last)]


def make_row(task: Task, split: str, index: int) -> dict[str, Any]:
    """Make a dataset row of one task: prompt, split, index and task id; never the reference.

    >>> make_row(Task(({"role": "user", "content": "2+2="},), "4", id="t/7"), "train", 7)["task_id"]
    't/7'
    """
    return {"prompt": [dict(message) for message in task.prompt], "split": split, "index": index, "task_id": task.id}


def find_task(environment: Environment, row: Mapping[str, Any]) -> Task:
    """Make the task that a row names by split and index. Raises ConfigError if the row names none, or if its prompt differs from that
    of the task.
    """
    split, index = row.get("split"), row.get("index")
    if not isinstance(split, str) or isinstance(index, bool) or not isinstance(index, int) or index < 0:
        raise ConfigError(f"a row with split {split!r} and index {index!r} names no task; keep both columns of the rows that rlvr wrote")
    if split not in environment.splits:
        raise ConfigError(f"a row has the split {split!r}; {type(environment).__name__} has {', '.join(environment.splits)}")
    task = check_task(environment.task(split, index))
    asked = row.get("prompt")
    if row.get("asks", known := _hash_prompt(task.prompt)) != known:
        raise ConfigError(
            f"the label of {split}/{index} belongs to another question than that of {type(environment).__name__}, {task.question!r:.80}; "
            "write the rows again with the settings of this environment"
        )
    if isinstance(asked, Sequence) and all(isinstance(message, Mapping) for message in asked):
        same = [(m.get("role"), m.get("content")) for m in asked] == [(m["role"], m["content"]) for m in task.prompt]
    else:
        same = asked is None or asked == "\n".join(message["content"] for message in task.prompt)
    if not same:
        raise ConfigError(
            f"the row of {split}/{index} asks {_shorten_prompt(asked)}, and {type(environment).__name__} asks {task.question!r:.80} there; "
            "write the rows again with the settings of this environment"
        )
    return task


def format_task_key(split: str, index: int, prompt: Sequence[Mapping[str, Any]] | None = None) -> str:
    """Make the JSON text that identifies a task (split and index) in rows of other frameworks, in place of the reference; `prompt` adds
    its fingerprint.

    >>> format_task_key("train", 7), format_task_key("train", 7, [{"role": "user", "content": "2+2="}])
    ('{"index": 7, "split": "train"}', '{"asks": "569af0794093", "index": 7, "split": "train"}')
    """
    return json.dumps({"split": split, "index": index} | ({"asks": _hash_prompt(prompt)} if prompt is not None else {}), sort_keys=True)


def _hash_prompt(prompt: Sequence[Mapping[str, Any]]) -> str:
    """Hash a prompt."""
    said = json.dumps([[message["role"], message["content"]] for message in prompt])
    return hashlib.blake2b(said.encode(), digest_size=6).hexdigest()


def parse_split_and_index(label: object) -> dict[str, Any]:
    """Parse the JSON text that identifies a task into split, index and, if there is one, the fingerprint of the prompt.

    >>> parse_split_and_index('{"index": 7, "split": "train"}')["index"]
    7
    """
    try:
        found = json.loads(label) if isinstance(label, str) else label
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, Mapping) or not {"split", "index"} <= found.keys():
        raise ConfigError(f'the label is {label!r:.80}; it must be {{"index": ..., "split": ...}}, as in the rows that rlvr wrote')
    return {key: found[key] for key in ("split", "index", "asks") if key in found}


def require_score(verdict: Verdict, framework: str) -> float:
    """Return the score, for frameworks that cannot leave an answer out; EnvError for a verdict without a score.

    >>> require_score(Verdict(0.5, "half"), "verl")
    0.5
    """
    if verdict.score is None:
        raise EnvError(
            f"no score (fault: {verdict.fault.value}): {verdict.reason}. {framework} has no way to leave an answer out, and 0 would be a "
            "wrong reward; fix the cause and resume"
        )
    return verdict.score


def write_jsonl(path: Any, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write rows as JSON lines."""
    with open(path, "w", encoding="utf-8") as file:
        file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def warn_if_untested(distribution: str, *tested_versions: str) -> None:
    """Warn if the installed version of a framework is not a tested one. The framework is not imported.

    >>> warn_if_untested("no-such-package", "1.0")
    """
    try:
        found = version(distribution)
    except PackageNotFoundError:
        return
    if found.split(".")[:2] not in [one.split(".")[:2] for one in tested_versions]:
        warnings.warn(
            f"{distribution} {found} is installed; this adapter was tested with {' and '.join(tested_versions)}", UserWarning, stacklevel=3
        )


def _shorten_prompt(asked: object) -> str:
    last = asked[-1] if isinstance(asked, Sequence) and asked and not isinstance(asked, str) else asked
    return repr(last.get("content") if isinstance(last, Mapping) else last)[:80]
