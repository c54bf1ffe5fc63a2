"""Questions from your own data: JSON lines, CSV, Parquet, a folder of those, or a data set of the Hub; no Python needed."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rlvr.contracts import Environment
from rlvr.envs._data.columns import (
    CALCULATOR_ANNOTATION,
    ColumnTemplate,
    detect_answer_mark,
    extract_reference,
    guess_column,
    is_empty,
    make_missing_column_error,
)
from rlvr.envs._data.row_verifier import PerRowSettingsVerifier, build_dataset_verifier
from rlvr.envs._data.rows import Row
from rlvr.envs._data.splits import (
    build_prompt,
    hold_out,
    load_data_source,
    make_question_key,
    row_matches,
    split_by_column,
    unnest_ground_truth,
)
from rlvr.errors import ConfigError, format_suggestion
from rlvr.task import Message, Task

COLUMN_NAME_PATTERN = re.compile(r"\w+")
"""Columns whose names can be keywords of a function."""
EXTRACT_MODES = ("auto", "whole", "hash", "boxed")
MAX_LISTED_ROWS = 5
"""Number of bad rows that a message lists."""
GOLD_FORMATS = ("{}", "\\boxed{{{}}}", "#### {}", "<answer>{}</answer>", "```python\n{}\n```")
"""Formats in which a reference is tried as an answer with the full score."""
DEFAULT_HOLDOUT = 0.1
MIN_QUESTIONS_TO_SPLIT = 10
"""With fewer questions, nothing is held out unless it is asked for: a tenth of them would be none."""


class Dataset(Environment):
    """A data set with a question and a reference in each row.

    Columns with the usual names are detected (`question`, `problem` or `prompt`; `answer`, `reference` or `solution`),
    unless several match. Rows of `test` are held out; without it a tenth of the questions is, if there are ten or more.
    Training rows with a held-out question are left out.

    >>> import rlvr
    >>> env = rlvr.make_env("dataset", path="train.jsonl", verifier="numeric")  # doctest: +SKIP
    >>> env.task("train", 0).id  # doctest: +SKIP
    'dataset/train/train.jsonl:1'
    """

    max_new_tokens = 1024

    def __init__(
        self,
        *,
        path: str = "",
        rows: Sequence[Mapping[str, Any]] | None = None,
        test: str = "",
        verifier: Any = "symbolic",
        question: str = "",
        reference: str = "",
        extract: str = "auto",
        system: str = "",
        instruction: str | None = None,
        solution: str = "",
        shots: int | Sequence[Mapping[str, str]] = 0,
        holdout: float | None = None,
        split: str = "",
        where: Mapping[str, Any] | None = None,
        max_question_chars: int | None = None,
        limit: int | None = None,
        skip_bad_rows: bool = False,
        meta: Sequence[str] = (),
    ) -> None:
        """Read the data.

        Args:
            path: a .jsonl, .json, .csv, .tsv or .parquet file, a folder of those, or hf:ORG/NAME[:CONFIG]; empty: `rows`, or only `test`.
            rows: the data itself, one mapping for each question; from Python only.
            test: the rows that are held out, in the same formats.
            verifier: verifies an answer: a name, a mapping with name and settings (a setting may be a column: tolerance: "{tol}"),
                or several with their weights: {symbolic: 0.9, format: 0.1}.
            question: the column with the question, or a template: "{context} {question}". A column may also hold a list of messages.
            reference: the column with the correct answer, or a template.
            extract: where the answer is in the reference: whole, hash (after ####), boxed, or auto: what most rows have.
            system: a template for the system prompt.
            instruction: a template for the text after each question; by default what the verifier suggests, and nothing after a column
                called `prompt`, which is shown as it is.
            solution: a column or template with a full answer, for supervised training; by default the column `solution`.
            shots: solved examples before each question: how many rows of the training data, or a list of {question, answer}.
            holdout: without `test`, the fraction of questions that is held out: by default 0.1, and 0 of fewer than 10 questions.
            split: a column with the split of each row, train or test.
            where: rows to keep, by column: a value, a list of values, or {min: ..., max: ...}.
            max_question_chars: leave out rows whose question has more characters.
            limit: use at most this many rows of each split, the first ones.
            skip_bad_rows: leave rows out that have no question or no reference; by default they are an error.
            meta: columns that go into the tasks' meta, for a curriculum or a verifier that reads them.
        """
        self._rows = None if rows is None else [Row(f"row {number}", dict(row)) for number, row in enumerate(rows, 1)]
        _check_settings(path or ("rows" if self._rows else ""), test, extract, holdout, shots, limit, max_question_chars)
        self._column_settings = {"question": question, "reference": reference, "solution": solution}
        self._prompt_settings, self._extract, self._meta = {"system": system, "instruction": instruction}, extract, tuple(meta)
        self._where, self._max_question_chars, self._skip_bad_rows = dict(where or {}), max_question_chars, skip_bad_rows
        self._warnings: list[str] = []
        self.guessed_columns: dict[str, str] = {}
        self.verifier, self._verifier_columns = build_dataset_verifier(verifier)
        try:
            self._load(path, test, split, holdout, shots, limit)
        except Exception:
            self.verifier.close()
            raise
        vars(self)["splits"] = tuple(self._tasks)
        self.warnings = tuple(self._warnings)

    def task(self, split: str, index: int) -> Task:
        """Return the row at `index`, in the order of the data."""
        tasks = self._tasks_of_split(split)
        if not 0 <= index < len(tasks):
            raise ConfigError(f"dataset has no {split} task {index}; it has 0 to {len(tasks) - 1}")
        task = tasks[index]
        if not self._shots:
            return task
        system = [message for message in task.prompt if message["role"] == "system"]
        return Task((*system, *self._shots, *task.prompt[len(system) :]), task.reference, id=task.id, meta=task.meta)

    has_loaded_tasks = True

    def num_tasks(self, split: str) -> int:
        """Return the number of rows in the split."""
        return len(self._tasks_of_split(split))

    def gold(self, task: Task) -> str | None:
        """Return the row's solution or its reference, in the first format that the verifier accepts; None if no format is accepted."""
        own, right = str(task.meta.get("solution", "")), task.reference
        forms = [own] if own else []
        if isinstance(right, str):
            forms += [f"{own}\n\\boxed{{{right}}}"] if own else [form.format(right) for form in GOLD_FORMATS]
            forms += [f"<think>{own or '...'}</think><answer>{right}</answer>"]
        return next((text for text in forms if self.verifier.verify(task, text).passed), None)

    def prepare(self) -> None:
        """Check that the verifier works here."""
        self.verifier.prepare()

    def _load(
        self,
        path: str,
        test_path: str,
        split_column: str,
        holdout: float | None,
        shots: int | Sequence[Mapping[str, str]],
        limit: int | None,
    ) -> None:
        """Load the data, and set tasks, few-shot examples and limits."""
        self._tasks = self._load_splits(path, test_path, split_column, holdout)
        self._shots = self._build_shots(shots)
        self._tasks = {name: tasks[:limit] for name, tasks in self._tasks.items()}
        if empty := [name for name, tasks in self._tasks.items() if not tasks]:
            told = "; ".join(self._warnings)
            raise ConfigError(f"no rows are left for {' and '.join(empty)}; check where, max_question_chars, holdout and split: {told}")
        if isinstance(self.verifier, PerRowSettingsVerifier):
            self.verifier.build_verifiers(task.meta["settings"] for tasks in self._tasks.values() for task in tasks)
        looked_at = [task.prompt for tasks in self._tasks.values() for task in tasks[:10_000]]
        self.max_prompt_tokens = max(map(_count_bytes, looked_at)) + _count_bytes(self._shots) + 512  # 512 for a chat template

    def _tasks_of_split(self, split: str) -> list[Task]:
        if split not in self._tasks:
            raise ConfigError(f"dataset has no split {split!r}; {format_suggestion(split, self._tasks)}")
        return self._tasks[split]

    def _load_splits(self, path: str, test_path: str, split_column: str, holdout: float | None) -> dict[str, list[Task]]:
        """Load the tasks of each split, without overlap."""
        given = load_data_source(path) if path else {"": self._rows} if self._rows else {}
        if test_path:
            other = load_data_source(test_path)
            given = {"train": given["train"] if "train" in given else given.get("", [])} if given else {}
            given["test"] = other.get("test", other.get("", other.get("train", [])))
        if split_column:
            given = split_by_column([row for rows in given.values() for row in rows], split_column)
        made = {name: self._make_tasks(rows, path if name != "test" or not test_path else test_path) for name, rows in given.items()}
        if set(made) <= {"", "train"} and made:
            rows = next(iter(made.values()))
            share = DEFAULT_HOLDOUT if holdout is None else holdout
            if holdout is None and len({make_question_key(task) for task in rows}) < MIN_QUESTIONS_TO_SPLIT:
                share = 0.0
            made = hold_out(rows, share)
            if "test" in made:
                self._warnings.append(
                    f"{len(made['test'])} of {len(rows)} rows are held out (holdout={share:g}), and an evaluation takes these alone"
                )
            elif holdout is None:
                self._warnings.append(
                    f"no row of {len(rows)} is held out, as there are few; holdout={DEFAULT_HOLDOUT:g} holds out at least one"
                )
        return self._finalize_splits(made)

    def _make_tasks(self, rows: Sequence[Row], source_name: str) -> list[Task]:
        """Make the tasks of one source."""
        rows = [unnest_ground_truth(row) for row in rows]
        kept = [
            row
            for row in rows
            if all(row_matches(row, column, wanted, source_name or "the data") for column, wanted in self._where.items())
        ]
        columns = list(dict.fromkeys(column for row in rows for column in row.values))
        templates = self._build_templates(columns, source_name or "the data")
        mark = self._extract
        if mark == "auto":
            column = templates["reference"].columns[0] if "reference" in templates else ""
            mark = detect_answer_mark([row.values.get(column) for row in kept])
        tasks, bad, long = [], [], 0
        for row in kept:
            try:
                task = self._make_task(row, templates, mark)
            except ValueError as error:
                bad.append(f"{row.location}: {error}")
                continue
            if self._max_question_chars is not None and len(task.question) > self._max_question_chars:
                long += 1
            else:
                tasks.append(task)
        if bad and not self._skip_bad_rows:
            more = f"\n  and {len(bad) - MAX_LISTED_ROWS} more" if len(bad) > MAX_LISTED_ROWS else ""
            raise ConfigError(
                f"{len(bad)} of {len(kept)} rows of {source_name or 'the data'} cannot be used; correct them, or leave them out with the setting "
                "skip_bad_rows=true (`rlvr eval` takes --set skip_bad_rows=true, `rlvr train` takes env.skip_bad_rows=true):\n  "
                + "\n  ".join(bad[:MAX_LISTED_ROWS])
                + more
            )
        self._add_source_note(source_name, rows, kept, templates, mark, bad, long)
        return tasks

    def _build_templates(self, columns: list[str], source_name: str) -> dict[str, ColumnTemplate]:
        """Build the templates that are filled for each row; columns that were not named are guessed."""
        wanted: dict[str, str] = {name: text for name, text in self._column_settings.items() if text}
        wanted |= {name: text for name, text in self._prompt_settings.items() if text}
        for name in ("question", "reference"):
            wanted.setdefault(name, guess_column(columns, name, source_name))
            if not wanted[name] and (name == "question" or self.verifier.needs_reference):
                raise make_missing_column_error(columns, name, source_name)
        solution = next((column for column in columns if column.lower() == "solution"), "")
        if solution and wanted["reference"] != solution:
            wanted.setdefault("solution", solution)
        is_whole_prompt = ColumnTemplate.parse(wanted["question"], columns, "question").text == "{prompt}"
        if self._prompt_settings["instruction"] is None and self.verifier.instruction and not is_whole_prompt:
            wanted["instruction"] = self.verifier.instruction.replace("{", "{{").replace("}", "}}")
        made = {name: ColumnTemplate.parse(text, columns, name) for name, text in wanted.items() if text}
        own = {name: template.text for name, template in made.items() if not {**self._column_settings, **self._prompt_settings}.get(name)}
        self.guessed_columns = {name: text for name, text in own.items() if not self._warnings or self.guessed_columns.get(name) == text}
        made |= {f"verifier.{key}": ColumnTemplate.parse(text, columns, f"verifier.{key}") for key, text in self._verifier_columns.items()}
        read = columns if "*" in self.verifier.columns else [name for name in self.verifier.columns if name in columns]
        shown = {column for name in ("question", "reference") if name in made for column in made[name].columns}
        meta = dict.fromkeys((*self._meta, *(name for name in read if name not in shown and COLUMN_NAME_PATTERN.fullmatch(name))))
        made |= {f"meta.{name}": ColumnTemplate.parse(f"{{{name}}}", columns, "meta") for name in meta}
        seen = {column for name in ("question", "system", "instruction") if name in made for column in made[name].columns}
        if "reference" in made and seen.issuperset(secret := made["reference"].columns):
            raise ConfigError(
                f"the prompt would show the column {secret[0]!r}, which is the reference; remove it from question and the like"
            )
        return made

    def _make_task(self, row: Row, templates: Mapping[str, ColumnTemplate], extract: str) -> Task:
        """Make the task of one row; ValueError says what is missing."""
        filled = {name: template.fill(row.values) for name, template in templates.items() if name not in ("solution", "reference")}
        prompt = build_prompt(filled["question"], str(filled.get("system", "")), str(filled.get("instruction", "")))
        reference, meta = None, {name.removeprefix("meta."): value for name, value in filled.items() if name.startswith("meta.")}
        if "reference" in templates:
            whole = templates["reference"].fill(row.values)
            reference = extract_reference(whole, extract)
            if isinstance(whole, str) and extract != "whole":
                meta["solution"] = CALCULATOR_ANNOTATION.sub("", whole).strip()
        own = templates.get("solution")
        if own and not any(is_empty(row.values.get(column)) for column in own.columns):
            meta["solution"] = str(own.fill(row.values)).strip()
        if self._verifier_columns:
            meta["settings"] = {key: filled[f"verifier.{key}"] for key in self._verifier_columns}
        return Task(prompt, reference, id=row.location, meta=meta)

    def _add_source_note(
        self,
        source_name: str,
        rows: Sequence[Row],
        kept: Sequence[Row],
        templates: Mapping[str, ColumnTemplate],
        extract: str,
        bad_row_messages: list[str],
        num_too_long: int,
    ) -> None:
        """Add the message about one source that is printed before a run."""
        used = [f"{name} = {templates[name].text}" for name in ("question", "reference") if name in templates]
        used[-1] += {"hash": " (the part after ####)", "boxed": " (the box)"}.get(extract, "") if "reference" in templates else ""
        if "instruction" in templates and self._prompt_settings["instruction"] is None:
            used.append(f"after each question {self.verifier.instruction!r} (instruction='': nothing)")
        out = [
            (len(rows) - len(kept), "by where"),
            (num_too_long, f"longer than {self._max_question_chars} characters"),
            (len(bad_row_messages), "as unusable"),
        ]
        less = "".join(f"; {count} left out {why}" for count, why in out if count)
        files = list(dict.fromkeys(row.location.rpartition(":")[0] for row in rows))
        names = (
            f" of {', '.join(Path(file).name for file in files[:MAX_LISTED_ROWS])}{', ...' * (len(files) > MAX_LISTED_ROWS)}"
            if files != [source_name]
            else ""
        )
        self._warnings.append(f"{source_name or 'the data'}: {len(rows)} rows{names}, {', '.join(used)}{less}")

    def _finalize_splits(self, made: dict[str, list[Task]]) -> dict[str, list[Task]]:
        """Give each task its final id, remove training rows whose question is held out, and add warnings about duplicates."""
        held = {make_question_key(task) for task in made.get("test", ())}
        shared = [task for task in made.get("train", ()) if make_question_key(task) in held]
        if shared:
            self._warnings.append(f"{len(shared)} training rows ask a held-out question and are left out, such as {shared[0].id}")
            made["train"] = [task for task in made["train"] if make_question_key(task) not in held]
        for name, tasks in made.items():
            first: dict[str, Task] = {}
            again = [(first.setdefault(make_question_key(task), task), task) for task in tasks]
            twice = [(one, other) for one, other in again if one is not other]
            if twice:
                self._warnings.append(f"{len(twice)} rows of {name} repeat a question, such as {twice[0][1].id} that of {twice[0][0].id}")
            if clash := next(((a, b) for a, b in twice if a.reference != b.reference), None):
                self._warnings.append(f"{clash[0].id} and {clash[1].id} ask the same and have different references")
            short = [task.id.rpartition("/")[2] for task in tasks]
            ids = short if len(set(short)) == len(short) else [task.id for task in tasks]
            made[name] = [Task(t.prompt, t.reference, id=f"dataset/{name}/{own}", meta=t.meta) for own, t in zip(ids, tasks, strict=True)]
        return {name: made[name] for name in ("train", "test") if name in made}

    def _build_shots(self, shots: int | Sequence[Mapping[str, str]]) -> tuple[Message, ...]:
        """Build the few-shot examples before each question; rows used as examples are not trained on."""
        if not isinstance(shots, int):
            pairs = [(str(shot["question"]), str(shot["answer"])) for shot in shots]
        else:
            rows = self._tasks.get("train", [])[:shots]
            if len(rows) < shots:
                raise ConfigError(
                    f"shots is {shots}, and there are {len(rows)} training rows to take them from; give a list of {{question, answer}}"
                )
            golds = [(task.question, self.gold(task)) for task in rows]
            pairs = [(question, gold) for question, gold in golds if gold is not None]
            if len(pairs) < shots:
                raise ConfigError("shots: a row has no answer that the verifier accepts; set `solution`, or give shots as a list")
            if shots:
                self._tasks["train"] = self._tasks["train"][shots:]
        roles = ("user", "assistant")
        return tuple({"role": role, "content": text} for pair in pairs for role, text in zip(roles, pair, strict=True))


def _check_settings(
    path: str, test: str, extract: str, holdout: float | None, shots: Any, limit: int | None, max_question_chars: int | None
) -> None:
    """Raise ConfigError for invalid settings."""
    if not path and not test:
        raise ConfigError("dataset has no data; set path (a file, a folder or hf:ORG/NAME), rows, or test")
    if extract not in EXTRACT_MODES:
        raise ConfigError(f"extract is {extract!r}; {format_suggestion(extract, EXTRACT_MODES)}")
    if holdout is not None and (isinstance(holdout, bool) or not isinstance(holdout, int | float) or not 0 <= holdout < 1):
        raise ConfigError(f"holdout is {holdout!r}; it must be a number from 0 to below 1, such as 0.1")
    for name, value in (("limit", limit), ("max_question_chars", max_question_chars)):
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
            raise ConfigError(f"{name} is {value!r}; it must be a whole number of at least 1")
    if isinstance(shots, int):
        good = not isinstance(shots, bool) and shots >= 0
    else:
        good = isinstance(shots, list | tuple) and all(isinstance(s, Mapping) and {"question", "answer"} <= s.keys() for s in shots)
    if not good:
        raise ConfigError(f"shots is {shots!r:.120}; it must be a number of rows, or a list of {{question: ..., answer: ...}}")


def _count_bytes(messages: Sequence[Message]) -> int:
    return sum(len(message["content"].encode("utf-8", "surrogatepass")) for message in messages)


make = Dataset
