"""The folder of an evaluation: one append-only file of samples, and the plan they belong to.

    eval.yaml          the plan: suite, policy, sampling, the verifiers and their versions
    episodes.jsonl     one object for each sample, in the order of verification; the last one of a key counts
    timings.jsonl      timings; they differ from run to run
    versions.json      Python, packages, machine
    report.json        the metrics, derived from the samples alone: the same samples give the same bytes

A sample is written as a complete line as soon as it is verified. A killed process leaves a shorter file, or an incomplete last line.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TextIO

from rlvr.config.section import validate_section
from rlvr.config.yamlfile import read_yaml
from rlvr.contracts.plugin import Plugin
from rlvr.episode import StopReason
from rlvr.errors import ConfigError, MissingExtra, NotFound
from rlvr.evaluation.plan import EvalPlan, merge_plans
from rlvr.hints import Hinted
from rlvr.mdp.transcript import load_messages_after_prompt
from rlvr.plugin_files import resolve_plugin_files
from rlvr.runs.conversation_stats import ConversationStats, count_turns_and_calls
from rlvr.runs.plugin_record import record_plugins, warn_about_plugin_changes
from rlvr.runs.run_log import collect_versions, open_for_append, read_jsonl
from rlvr.task import Message, Task, check_payable

PLAN_FILE, ROWS_FILE, TIMES_FILE, REPORT_FILE, VERSIONS_FILE = (
    "eval.yaml",
    "episodes.jsonl",
    "timings.jsonl",
    "report.json",
    "versions.json",
)
Key = tuple[str, int, int]
"""The name of the environment in the suite, the index of the task, the number of the sample."""


@dataclass(frozen=True, slots=True)
class EvalSample(Hinted):
    """One sample without its tokens, from which the metrics are computed.

    >>> EvalSample(("gsm8k", 0, 0), "gsm8k/test/0", 1.0, "terminated", "4 equals 4", "#### 4", 12, 80, -0.2, "f00d").is_correct
    True
    """

    _synonyms = {
        **dict.fromkeys(("completion", "output", "response"), "text"),
        **dict.fromkeys(("reward", "total_reward"), "score"),
        "explanation": "reason",
        "target": "reference",
        **dict.fromkeys(("question", "input"), "prompt"),
        "id": "task_id",
    }
    _hints = {
        "scores": "write .score, or .verdict",
        "error": "write .reason",
        **dict.fromkeys(
            ("num_turns", "steps", "turns"), "write .conversation_stats.turns for their number, and .messages for what was said"
        ),
        "answer": "write .text, what the policy wrote, or .reference, the right answer",
    }
    key: Key
    """The name of the environment, the index of the task, and the number of the sample among those of the task."""
    task_id: str
    score: float | None
    """None: not scored, with the reason in `reason`."""
    stop_reason: str
    """How the conversation ended: `terminated`, `truncated`, or `failed` if the policy gave no answer."""
    reason: str
    """Why the score is what it is, or why there is none."""
    text: str
    """The answer of the policy, as it was verified."""
    tokens: int
    """Number of generated tokens; for an endpoint, as reported in its usage, if it was."""
    prompt_tokens: int
    mean_logprob: float
    """The mean log-probability of the policy's tokens, as they were sampled: 0 for greedy answers."""
    question_digest: str
    """A digest of the prompt and the reference."""
    verdict: Mapping[str, Any] = field(default_factory=dict)
    truncated_by: str = ""
    """Which limit was hit, if it was truncated: `turns`, `tokens` or `window`."""
    conversation_stats: ConversationStats = field(default_factory=ConversationStats)
    """Counts of turns, and of calls if there were tools."""
    prompt_messages: Sequence[Message] = field(default=(), repr=False)
    """The prompt, with a system message if there was one."""
    reference: Any = None
    """The right answer."""
    conversation: Sequence[Mapping[str, Any]] = field(default=(), repr=False)
    """The messages after the prompt, of a conversation of several turns or with tools: turns, calls, results, replies."""

    @property
    def env(self) -> str:
        """The name of the environment."""
        return self.key[0]

    @property
    def prompt(self) -> str:
        """The text of the prompt."""
        return "\n\n".join(message["content"] for message in self.prompt_messages)

    @property
    def messages(self) -> list[Mapping[str, Any]]:
        """The whole conversation, in the format of chat servers: the prompt, what the policy wrote, and what it got back. Of an agent
        these are the messages of its last call of the policy, and the turn that answers it.
        """
        return [*self.prompt_messages, *(self.conversation or [{"role": "assistant", "content": self.text}])]

    @property
    def is_correct(self) -> bool:
        """Whether the score is 1."""
        return self.score is not None and self.score >= 1.0


def parse_sample(row: Mapping[str, Any]) -> EvalSample:
    """Parse a row of `episodes.jsonl` into a sample."""
    try:
        chosen = [value for value, own in zip(row["logprobs"], row["action_mask"], strict=True) if own]
        verdict = row["verdict"] or {}
        if verdict.get("score") is not None:
            check_payable(verdict["score"], "the score")
        read, written = count_tokens(row)
        for text in (row["text"], *(message["content"] for message in row["prompt"])):
            if not isinstance(text, str):
                raise TypeError(f"{text!r:.60} stands where a text must be")
        return EvalSample(
            key=(row["env"], row["index"], row["sample"]),
            task_id=row["task_id"],
            score=None if row["finish"] == StopReason.FAILED.value else verdict.get("score"),
            stop_reason=row["finish"],
            reason=row["error"] or verdict.get("reason", ""),
            text=row["text"],
            tokens=written,
            prompt_tokens=read,
            mean_logprob=sum(chosen) / max(len(chosen), 1),
            question_digest=compute_digest(row["prompt"], row["reference"]),
            verdict=verdict,
            truncated_by=row.get("truncated", "tokens" if row["finish"] == StopReason.TRUNCATED.value else ""),
            conversation_stats=count_turns_and_calls(row["turns"], row.get("session")),
            prompt_messages=row["prompt"],
            reference=row["reference"],
            conversation=tuple(load_messages_after_prompt(row.get("session") or {}) or row.get("messages") or ()),
        )
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ConfigError(
            f"a row is not a sample of an evaluation ({type(error).__name__}: {error}); was it written by `rlvr eval`?"
        ) from error


def count_tokens(row: Mapping[str, Any]) -> tuple[int, int]:
    """Count the input and output tokens of a row; for an endpoint, as reported in its usage.

    >>> count_tokens({"action_mask": [0, 0, 1]}), count_tokens({"action_mask": [0, 0, 1], "usage": [9, 4]})
    ((2, 1), (9, 4))
    """
    written = sum(row["action_mask"])
    read, written = row.get("usage") or (len(row["action_mask"]) - written, written)
    return read, written


def compute_digest(*parts: Any) -> str:
    """Compute a short digest of plain data."""
    return hashlib.blake2b(json.dumps(parts, sort_keys=True, default=str).encode(), digest_size=8).hexdigest()


def digest_prompt_and_reference(task: Task) -> str:
    """Compute the digest of a task's prompt and reference, equal to that of a stored sample of the task."""
    return compute_digest(*json.loads(json.dumps([task.prompt, task.reference], default=str)))


class SampleStore:
    """The samples of one evaluation: loaded when it is opened, appended to while it runs. Without a folder, in memory only."""

    def __init__(self, folder: Path | None, plan: EvalPlan) -> None:
        self.folder, self.plan = folder, plan
        self.samples: dict[Key, EvalSample] = {}
        self.incomplete_line_bytes = 0
        """Bytes of an unfinished last line that were removed."""
        self._file: TextIO | None = None
        self._plugins: tuple[Plugin, ...] = ()
        self._created_paths: tuple[Path, ...] = ()
        """Files and folder created by this object, to be removed unless a sample is written."""

    @classmethod
    def open(cls, folder: Path | None, plan: EvalPlan, plugins: Iterable[Plugin] = ()) -> SampleStore:
        """Open a new folder, or one that an evaluation with the same plan has written, or a smaller one.

        `plugins` are the environments, which are recorded when the first sample is written.
        """
        file = cls(folder, plan)
        file._plugins = tuple(plugins)
        if folder is None:
            return file
        try:
            made = () if folder.exists() else (folder,)
            folder.mkdir(parents=True, exist_ok=True)
            if _has_content(folder):
                _merge_stored_plan(folder, plan)
            file._file = _lock_file(open_for_append(folder / ROWS_FILE), folder)
            if (folder / PLAN_FILE).is_file():
                file.plan = _merge_stored_plan(folder, plan)  # again: another process may have started at the same time and finished
            else:
                file._created_paths = (folder / PLAN_FILE, folder / VERSIONS_FILE, folder / ROWS_FILE, *made)
                write_atomic(folder / PLAN_FILE, plan.to_yaml())
            if not _has_rows(folder):
                write_atomic(folder / VERSIONS_FILE, json.dumps(collect_versions(), indent=2) + "\n")
            warn_about_plugin_changes(folder)
            file.incomplete_line_bytes = _drop_unfinished_line(folder / ROWS_FILE)
            _drop_unfinished_line(folder / TIMES_FILE)
        except OSError as error:
            raise ConfigError(f"the folder {folder} cannot be written: {error.strerror}; choose another --out") from error
        file.samples = load_samples(folder)
        return file

    def append(self, row: Mapping[str, Any]) -> EvalSample:
        """Write one sample immediately and completely."""
        sample = parse_sample(row)
        if self._file is not None:
            with wrap_write_errors(self.folder):
                if not self.samples and self.folder is not None:  # not earlier: an evaluation that cannot start leaves nothing
                    record_plugins(self.folder, self._plugins)
                self._file.write(json.dumps(row, ensure_ascii=False, allow_nan=False, default=str) + "\n")
                self._file.flush()
        self.samples[sample.key] = sample
        self._created_paths = ()
        return sample

    def remove_report_and_extend_plan(self) -> None:
        """Remove the report, because samples are about to be added, and write an extended plan, now that the policy is loaded."""
        if self.folder is not None:
            (self.folder / REPORT_FILE).unlink(missing_ok=True)
            with wrap_write_errors(self.folder):
                write_atomic(self.folder / PLAN_FILE, self.plan.to_yaml())

    def __enter__(self) -> SampleStore:
        return self

    def __exit__(self, *exc: object) -> None:
        for made in self._created_paths:  # the policy failed to load: leave the folder free for the next attempt
            with suppress(OSError):
                made.rmdir() if made.is_dir() else made.unlink()
        if self._file is not None:
            with suppress(OSError):  # the error of a full disk was reported already
                self._file.close()


def load_plan(folder: Path) -> EvalPlan:
    """Load the plan of an evaluation."""
    path = folder / PLAN_FILE
    if not path.is_file():
        is_training_run = (folder / "config.yaml").is_file()
        remedy = (
            "; `rlvr view A B` compares training runs"
            if is_training_run
            else "; name a folder that `rlvr eval --out` or rlvr.evaluate(..., out=) wrote"
        )
        raise NotFound(f"{folder} is {'a training run, and ' if is_training_run else ''}not an evaluation: it has no {PLAN_FILE}{remedy}")
    data = read_yaml(path)
    resolved = resolve_plugin_files(data, folder)
    if isinstance(data, dict) and "suite" in data:
        resolved["suite"] = data["suite"]  # only a label: as it was typed
    return validate_section(EvalPlan, resolved, str(path))


def load_samples(folder: Path) -> dict[Key, EvalSample]:
    """Load the samples of an evaluation; the last one of a key counts. The samples of a task share its prompt in memory."""
    prompts = dict[str, Sequence[Message]]()
    found = dict[Key, EvalSample]()
    for row in iter_rows(folder):
        try:
            sample = parse_sample(row)
        except ConfigError as error:
            raise ConfigError(f"{folder / ROWS_FILE}: {error}") from error
        found[sample.key] = replace(sample, prompt_messages=prompts.setdefault(sample.question_digest, sample.prompt_messages))
    return found


def samples_to_frame(samples: Iterable[EvalSample]) -> Any:
    """Convert samples to a data frame, one row for each."""
    try:
        import pandas
    except ModuleNotFoundError as error:
        raise MissingExtra("pandas", "train") from error
    columns = ("env", "task_id", "sample", "score", "reason", "text", "prompt", "reference", "stop_reason", "tokens", "prompt_tokens")
    rows = [[sample.key[2] if name == "sample" else getattr(sample, name) for name in columns] for sample in samples]
    return pandas.DataFrame(
        [[replace_surrogates(value) if isinstance(value, str) else value for value in row] for row in rows], columns=columns
    )


def replace_surrogates(text: str) -> str:
    """Replace lone surrogates, which are not valid UTF-8, by question marks."""
    return text.encode("utf-8", "replace").decode()


def iter_rows(folder: Path) -> Iterator[dict[str, Any]]:
    """Yield the rows in the order in which they were written, without an incomplete last line."""
    return iter(read_jsonl(folder / ROWS_FILE))


@contextmanager
def wrap_write_errors(folder: Path | None) -> Iterator[None]:
    """Context manager that reports write errors, such as a full disk, as a `ConfigError`."""
    try:
        yield
    except OSError as error:
        raise ConfigError(
            f"{folder} cannot be written: {error.strerror or error}; the stored samples are kept; "
            f"free some space, then run the same command again to resume"
        ) from error


def write_atomic(path: Path, text: str) -> None:
    """Write a small file atomically."""
    with atomic_path(path) as partial:
        partial.write_text(text, "utf-8")


@contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """Context manager with a temporary path for a file: moved into place if the block succeeds, removed if it fails."""
    partial = path.with_name(f".{path.name}.part")
    try:
        yield partial
        partial.replace(path)
    except BaseException:
        with suppress(OSError):
            partial.unlink()
        raise


def _has_content(folder: Path) -> bool:
    """Whether a folder has more than the files of an evaluation that was killed before it had a plan."""
    return any(path.name != ROWS_FILE or path.stat().st_size for path in folder.iterdir() if not path.name.startswith("."))


def _has_rows(folder: Path) -> bool:
    """Whether a folder has an answer that was written to its end."""
    path = folder / ROWS_FILE
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.readline().endswith(b"\n")


def _merge_stored_plan(folder: Path, plan: EvalPlan) -> EvalPlan:
    if not (folder / PLAN_FILE).is_file():
        raise ConfigError(f"{folder} exists and is not an evaluation; it is not overwritten; choose another --out")
    if not _has_rows(folder):  # an evaluation that failed before its first answer
        return plan
    return merge_plans(load_plan(folder), plan, str(folder))


def _drop_unfinished_line(path: Path) -> int:
    """Remove an unfinished last line; return its length."""
    if not path.is_file():
        return 0
    with path.open("r+b") as file:
        end = file.seek(0, os.SEEK_END)
        at = end
        while at > 0:
            start = max(0, at - 65536)
            file.seek(start)
            found = file.read(at - start).rfind(b"\n")
            if found >= 0:
                at = start + found + 1
                break
            at = start
        file.truncate(at)
        return end - at


def _lock_file(file: TextIO, folder: Path) -> TextIO:
    """Lock the file; an error if another process is writing to it."""
    try:
        import fcntl

        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except ImportError:  # not every system has file locks
        pass
    except OSError as error:
        file.close()
        raise ConfigError(f"another process is writing to {folder}; wait for it, or choose another --out") from error
    return file
