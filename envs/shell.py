"""Work with files in a shell: find, count, sum, extract, sort, deduplicate, rename, change, delete.

Every task has a generated folder of logs, tables, settings or notes. The final content of the files is verified, or the answer.
"""

from __future__ import annotations

import random
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from rlvr.contracts import SandboxFilesSession, Session
from rlvr.envs._sandbox_env import NAME_STEMS, SandboxEnvironment, draw_name_for_split
from rlvr.task import Task, make_user_prompt
from rlvr.turns import Call

REGIONS = ("east", "west", "south", "north")
LEVELS = ("INFO", "WARN", "ERROR", "DEBUG")
FINAL_INSTRUCTION = "Change nothing else. When you have finished, say so."
READY_ANSWER = "ready"
"""Placeholder answer where only the files are verified."""


@dataclass(frozen=True)
class ShellTask:
    r"""One task: the question, the initial files, the expected result, and a command that achieves it.

    >>> ShellTask("How many lines has a.txt?", {"a.txt": "1\n"}, "wc -l < a.txt", answers=("1",)).expected_files
    {}
    """

    question: str
    files: Mapping[str, str]
    command: str
    """A bash command that solves the task; if there is an answer, it is the last line of the output."""
    answers: tuple[str, ...] = ()
    expected_files: Mapping[str, str | None] = field(default_factory=dict)
    """The expected final content of files; None if the file must not exist."""
    executable: tuple[str, ...] = ()


def _make_count_log_lines_task(rng: random.Random, root: str) -> ShellTask:
    """How many lines of all logs have a level."""
    files, level = _draw_logs(rng, root), rng.choice(LEVELS)
    total = sum(line.split()[1] == level for text in files.values() for line in text.splitlines())
    question = f"How many lines have the level {level} (the second word), in all .log files below {root} together? Answer with the number."
    other = {f"{root}/old/notes.txt": f"09:00:00 {level} this is not a log\n"}
    command = f"find {root} -name '*.log' -exec cat {{}} + | awk '$2 == \"{level}\"' | wc -l"
    return ShellTask(question, files | other, command, (str(total),))


def _make_find_word_task(rng: random.Random, root: str) -> ShellTask:
    """Which file contains a word."""
    files = _draw_logs(rng, root)
    token, path = f"req-{rng.randrange(16**6):06x}", rng.choice(sorted(files))
    lines = files[path].splitlines()
    lines.insert(rng.randrange(len(lines)), f"12:00:00 INFO request {token} was slow")
    files[path] = "\n".join(lines) + "\n"
    question = f"Which file below {root} mentions {token}? Answer with its path, which begins with {root}/."
    return ShellTask(question, files, f"grep -rl {token} {root}", (path, f"./{path}"))


def _make_sum_column_task(rng: random.Random, root: str) -> ShellTask:
    """The sum of a column over some rows."""
    rows, region = _draw_sales(rng), rng.choice(REGIONS)
    answer = sum(amount for _, where, amount in rows if where == region)
    question = f"What is the sum of the column amount in {root}/sales.csv, over the rows of the region {region}? Answer with the number."
    command = f"awk -F, '$2 == \"{region}\" {{s += $3}} END {{print s + 0}}' {root}/sales.csv"
    return ShellTask(question, {f"{root}/sales.csv": _format_table(rows)}, command, (str(answer),))


def _make_list_executables_task(rng: random.Random, root: str) -> ShellTask:
    """Which files may be executed."""
    paths = [f"{root}/bin/{name}{rng.randrange(10)}.sh" for name in rng.sample(NAME_STEMS, 8)]
    some = sorted(rng.sample(paths, rng.randint(2, 6)))
    files = {path: f"#!/bin/sh\necho {position}\n" for position, path in enumerate(paths)}
    question = (
        f"Write the paths of all files below {root}/bin that are executable to {root}/list.txt, one on a line, sorted. {FINAL_INSTRUCTION}"
    )
    command = f"find {root}/bin -type f -perm -u+x | LC_ALL=C sort > {root}/list.txt"
    return ShellTask(question, files, command, expected_files={**files, f"{root}/list.txt": _join_lines(some)}, executable=tuple(some))


def _make_extract_addresses_task(rng: random.Random, root: str) -> ShellTask:
    """All addresses in a file, each once."""
    people = [f"{rng.choice(NAME_STEMS)}{rng.randrange(100)}@{rng.choice(NAME_STEMS)}.example" for _ in range(9)]
    said = [f"From {rng.choice(people)} to {rng.choice(people)}: message {n} at {rng.randrange(24):02d}h" for n in range(20)]
    found = sorted({word.rstrip(":") for line in said for word in line.split() if "@" in word})
    question = f"Write all e-mail addresses in {root}/mail.log to {root}/people.txt: one on a line, each once, sorted. {FINAL_INSTRUCTION}"
    command = f"grep -oE '[a-z0-9]+@[a-z]+[.]example' {root}/mail.log | LC_ALL=C sort -u > {root}/people.txt"
    return ShellTask(
        question,
        {f"{root}/mail.log": _join_lines(said)},
        command,
        expected_files={f"{root}/mail.log": _join_lines(said), f"{root}/people.txt": _join_lines(found)},
    )


def _make_sort_rows_task(rng: random.Random, root: str) -> ShellTask:
    """A table with its rows in another order."""
    rows = _draw_sales(rng)
    question = (
        f"Write {root}/sales.csv to {root}/sorted.csv with its rows in descending order of amount; the header stays first. "
        f"All amounts are different. {FINAL_INSTRUCTION}"
    )
    command = f"(head -n 1 {root}/sales.csv; tail -n +2 {root}/sales.csv | sort -t, -k3,3nr) > {root}/sorted.csv"
    ordered = _format_table(sorted(rows, key=lambda row: -row[2]))
    files = {f"{root}/sales.csv": _format_table(rows)}
    return ShellTask(question, files, command, expected_files={**files, f"{root}/sorted.csv": ordered})


def _make_remove_repeats_task(rng: random.Random, root: str) -> ShellTask:
    """A list without its repeated lines."""
    some = [f"{rng.choice(NAME_STEMS)}-{rng.randrange(4)}" for _ in range(30)]
    question = (
        f"Remove the repeated lines from {root}/items.txt: of equal lines only the first stays, and the order stays. {FINAL_INSTRUCTION}"
    )
    command = f"awk '!seen[$0]++' {root}/items.txt > tmp.$$ && mv tmp.$$ {root}/items.txt"
    return ShellTask(
        question,
        {f"{root}/items.txt": _join_lines(some)},
        command,
        expected_files={f"{root}/items.txt": _join_lines(list(dict.fromkeys(some)))},
    )


def _make_rename_files_task(rng: random.Random, root: str) -> ShellTask:
    """Another ending for some files."""
    paths = [f"{root}/{folder}{name}" for name in rng.sample(NAME_STEMS, 6) for folder in [rng.choice(("", "a/", "b/c/"))]]
    files = {path + rng.choice((".txt", ".txt", ".rst")): f"Notes on {path}: {rng.randrange(1000)}\n" for path in paths}
    files[f"{root}/first.txt"] = f"first {rng.randrange(1000)}\n"
    wanted: dict[str, str | None] = {path: None if path.endswith(".txt") else text for path, text in files.items()}
    wanted |= {path.removesuffix(".txt") + ".md": text for path, text in files.items() if path.endswith(".txt")}
    question = f"Rename every .txt file below {root}, in all folders, so that it ends with .md instead. {FINAL_INSTRUCTION}"
    command = f'find {root} -name "*.txt" | while read -r f; do mv "$f" "${{f%.txt}}.md"; done'
    return ShellTask(question, files, command, expected_files=wanted)


def _make_change_setting_task(rng: random.Random, root: str) -> ShellTask:
    """Another value of a setting in several files."""
    old, new = rng.sample(range(1024, 9999), 2)
    names = [f"{root}/{folder}{name}.conf" for name in rng.sample(NAME_STEMS, 4) for folder in [rng.choice(("", "site/"))]]
    files, wanted = {}, {}
    for position, path in enumerate(names):
        port = old if position == 0 else rng.choice((old, old + 1))
        text = f"# port = {old}\nname = {rng.choice(NAME_STEMS)}\nport = {{}}\nreport = {old}\nsize = {old}\n"
        files[path], wanted[path] = text.format(port), text.format(new if port == old else port)
    question = f"In every .conf file below {root}, change the setting port from {old} to {new}, in lines that are exactly `port = {old}`. {FINAL_INSTRUCTION}"
    command = f"find {root} -name '*.conf' -exec sed -i 's/^port = {old}$/port = {new}/' {{}} +"
    return ShellTask(question, files, command, expected_files=wanted)


def _make_delete_files_task(rng: random.Random, root: str) -> ShellTask:
    """Some files are deleted, the others stay."""
    names = [f"{root}/{folder}{name}" for name in rng.sample(NAME_STEMS, 8) for folder in [rng.choice(("", "cache/", "cache/deep/"))]]
    files = {path + rng.choice((".tmp", ".dat")): rng.choice(("", f"{rng.randrange(1000)}\n")) for path in names}
    files |= {f"{root}/empty.tmp": "", f"{root}/full.tmp": "kept\n", f"{root}/empty.dat": ""}
    wanted = {path: None if path.endswith(".tmp") and not text else text for path, text in files.items()}
    question = f"Delete every empty file below {root} whose name ends with .tmp, in all folders. {FINAL_INSTRUCTION}"
    return ShellTask(question, files, f"find {root} -name '*.tmp' -empty -delete", expected_files=wanted)


KINDS: Mapping[str, Callable[[random.Random, str], ShellTask]] = {
    "count": _make_count_log_lines_task,
    "find": _make_find_word_task,
    "total": _make_sum_column_task,
    "executable": _make_list_executables_task,
    "extract": _make_extract_addresses_task,
    "order": _make_sort_rows_task,
    "once": _make_remove_repeats_task,
    "rename": _make_rename_files_task,
    "change": _make_change_setting_task,
    "delete": _make_delete_files_task,
}


class Shell(SandboxEnvironment):
    """Tasks on files in a sandbox, with bash and file tools. The final files are verified, or the answer to a question.

    Files are read from outside when the conversation ends, and compared with the expected content. No program in the sandbox affects
    the score.

    >>> import rlvr
    >>> env = rlvr.make_env("shell", kinds=["once"], sandbox={"name": "process", "trusted": True})
    >>> env.task("train", 0).question.split(":")[0]
    'Remove the repeated lines from ember-f909/items.txt'
    >>> env.close()
    """

    needs = {"verifier": "final_state", "tools": ["bash", "files", "submit"], "sandbox": "auto"}
    all_kinds = tuple(KINDS)
    max_turns = 12
    max_prompt_tokens = 512
    max_new_tokens = 1024

    def task(self, split: str, index: int) -> Task:
        """Return the task at `index`. One folder name in five is held out, so that no question is in two splits."""
        rng = random.Random(f"shell/{self.seed}/{split}/{index}")
        kind = rng.choice(self.kinds)
        root = draw_name_for_split(rng, split, lambda: f"{rng.choice(NAME_STEMS)}-{rng.randrange(16**4):04x}")
        posed = self._build_task(kind, root)
        reference = ({"answer": list(posed.answers)} if posed.answers else {}) | (
            {"files": dict(posed.expected_files)} if posed.expected_files else {}
        )
        meta = {"kind": kind, "folder": root}
        return Task(
            make_user_prompt(posed.question, system=self.instruction), reference, id=f"shell/{split}/{self.seed}.{index}", meta=meta
        )

    def gold(self, task: Task) -> str:
        """Return the answer to a question; a placeholder if the files are verified."""
        return str(task.reference.get("answer", [READY_ANSWER])[0])

    def oracle_turns(self, task: Task) -> list[str | Call]:
        """Return one command that solves the task, then the answer."""
        command = self._build_task(**_get_kind_and_root(task)).command
        return [Call("0.0", "bash", {"command": command}), self.gold(task)]

    def new_session(self, task: Task, *, seed: int) -> Session:
        """Open a sandbox session with the files of the task."""
        posed = self._build_task(**_get_kind_and_root(task))
        files = {path: text.encode() for path, text in posed.files.items()}
        return SandboxFilesSession(
            task, self.tools, sandbox=self.sandbox, seed=seed, files=files, artifact_paths=posed.expected_files, executable=posed.executable
        )

    def _build_task(self, kind: str, root: str) -> ShellTask:
        return KINDS[kind](random.Random(f"shell/{self.seed}/{kind}/{root}"), shlex.quote(root))


def _get_kind_and_root(task: Task) -> dict[str, str]:
    return {"kind": task.meta["kind"], "root": task.meta["folder"]}


def _draw_logs(rng: random.Random, root: str) -> dict[str, str]:
    """Draw log files in nested folders."""
    paths = [f"{root}/{folder}{name}.log" for name in rng.sample(NAME_STEMS, 4) for folder in [rng.choice(("", "app/", "app/old/"))]]
    return {path: _join_lines([_draw_event(rng) for _ in range(rng.randint(15, 30))]) for path in paths}


def _draw_event(rng: random.Random) -> str:
    time = f"{rng.randrange(24):02d}:{rng.randrange(60):02d}:{rng.randrange(60):02d}"
    return f"{time} {rng.choice(LEVELS)} {rng.choice(NAME_STEMS)} reported {rng.choice(LEVELS)} {rng.randrange(100)}"


def _draw_sales(rng: random.Random) -> list[tuple[str, str, int]]:
    amounts = rng.sample(range(1, 2000), 25)
    return [(rng.choice(NAME_STEMS), rng.choice(REGIONS), amount) for amount in amounts]


def _format_table(rows: Sequence[tuple[str, str, int]]) -> str:
    return _join_lines(["item,region,amount", *(f"{item},{region},{amount}" for item, region, amount in rows)])


def _join_lines(some: Sequence[str]) -> str:
    return "".join(f"{line}\n" for line in some)


make = Shell
