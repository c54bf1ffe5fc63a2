"""Questions about a database: inspect it with a tool, and answer with a query that is also correct on other databases."""

from __future__ import annotations

import hashlib
import random
import sqlite3
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from rlvr.contracts import Environment, Session, ToolSession, Verifier
from rlvr.contracts.tool import Tool
from rlvr.envs._sql_databases import DOMAINS, DatabaseLayout
from rlvr.envs._sql_questions import QUESTION_KINDS, SqlQuestion
from rlvr.errors import ConfigError, format_suggestion
from rlvr.task import Task, make_user_prompt
from rlvr.turns import Call

MAX_DRAWS = 200
"""Most databases drawn to find some on which the question is unambiguous."""


class Sql(Environment):
    """A question in words about a small SQLite database. The answer is one SQL query.

    The policy reads the database with the tool `sql`. Its query is verified on other databases with the same tables and other rows, so
    that the rows of this one, written as a query, score 0. The questions count, sum, join, group, sort, and look for dates and absent rows.

    >>> import rlvr
    >>> env = rlvr.make_env("sql")
    >>> env.task("train", 0).meta["kind"] in env.kinds
    True
    """

    needs = {"verifier": "sql_rows", "tools": ["sql", "submit"]}
    max_prompt_tokens = 800
    max_new_tokens = 3_000

    def __init__(
        self,
        *,
        verifier: Verifier,
        tools: Sequence[Tool],
        kinds: Sequence[str] = tuple(QUESTION_KINDS),
        tables: Sequence[int] = (2, 3, 4),
        hidden: int = 2,
        seed: int = 0,
        max_turns: int = 8,
        dialect: str = "",
    ) -> None:
        """Set the difficulty and the limits.

        Args:
            verifier: compares the rows of the query with those of the correct one.
            tools: the tools of the policy.
            kinds: the kinds of questions: count, sum, who, group, top, dates, absent.
            tables: the possible numbers of tables of a database, out of 2, 3 and 4.
            hidden: number of other databases on which the query is verified.
            seed: another seed gives different questions.
            max_turns: the most turns of the policy, turns with tool calls included.
            dialect: how calls are written; by default as the model's chat template does.
        """
        if isinstance(kinds, str) or not kinds:
            raise ConfigError(f"kinds is {kinds!r}; it must be a list out of {', '.join(QUESTION_KINDS)}, such as [count, sum]")
        if unknown := [str(kind) for kind in kinds if kind not in QUESTION_KINDS]:
            raise ConfigError(f"kinds holds {unknown[0]!r}; {format_suggestion(unknown[0], QUESTION_KINDS)}")
        if not isinstance(tables, Sequence) or not tables or not set(tables) <= {2, 3, 4}:
            raise ConfigError(f"tables is {tables!r}; it must be a list out of 2, 3 and 4, such as [3]")
        if isinstance(hidden, bool) or not isinstance(hidden, int) or not 1 <= hidden <= 8:
            raise ConfigError(f"hidden is {hidden!r}; it must be a whole number from 1 to 8")
        self.verifier, self.tools, self.dialect, self.max_turns = verifier, tools, dialect, max_turns
        self.kinds, self.tables, self.hidden, self.seed = tuple(kinds), tuple(tables), hidden, seed

    def task(self, split: str, index: int) -> Task:
        """Return the question at `index`; one question in five is held out, for any seed."""
        rng = random.Random(f"sql/{self.seed}/{split}/{index}")
        for _ in range(MAX_DRAWS):
            layout = DatabaseLayout(rng.choice(DOMAINS), rng.choice(self.tables))
            kind = rng.choice(self.kinds)
            asked = QUESTION_KINDS[kind](layout, rng)
            held_out = hashlib.blake2b(asked.text.encode(), digest_size=4).digest()[0] % 5 == 0
            if split == ("test" if held_out else "train"):
                shown, *hidden = _draw_databases(layout, asked, self.hidden, rng.random())
                reference = {"query": asked.query, "databases": hidden, "ordered": asked.is_ordered}
                return Task(
                    make_user_prompt(_format_prompt(asked)),
                    reference,
                    id=f"sql/{split}/{self.seed}.{index}",
                    meta={"kind": kind, "script": shown},
                )
        raise ConfigError(f"there is no question of the kinds {list(self.kinds)} in {split!r}; allow more kinds")

    def gold(self, task: Task) -> str:
        """Return the correct query."""
        return str(task.reference["query"])

    def oracle_turns(self, task: Task) -> list[str | Call]:
        """Return the turns that read the schema, try the query, and submit it."""
        schema = Call("0.0", "sql", {"query": "SELECT sql FROM sqlite_schema"})
        return [schema, Call("1.0", "sql", {"query": self.gold(task)}), Call("2.0", "submit", {"answer": self.gold(task)})]

    def new_session(self, task: Task, *, seed: int) -> Session:
        """Open a session with the database of the task. It is read-only, so `seed` is ignored."""
        return SqlSession(task, self.tools, sandbox=self.sandbox, seed=seed)


class SqlSession(ToolSession):
    """Session with the database of one task."""

    def get_data_for_tools(self) -> Mapping[str, Any]:
        """Return the script of the database that the policy may read.

        That database is never one used for verification.
        """
        return {"script": self.task.meta["script"]}


def _format_prompt(asked: SqlQuestion) -> str:
    return (
        f"A SQLite database holds the answer to this question:\n{asked.text}\n\n"
        "Look at the database with the tool sql; you can only read it. Then answer with one SQL query that gives exactly the columns asked "
        "for, in that order. The query is also run on other databases with the same tables and other rows."
    )


def _draw_databases(layout: DatabaseLayout, question: SqlQuestion, num_hidden: int, seed: float) -> list[str]:
    """Draw databases on which the correct query gives different rows each time, and no wrong query gives the same rows."""
    rng = random.Random(seed)
    found: list[str] = []
    seen: list[list[Any]] = []
    for _ in range(MAX_DRAWS):
        script = layout.draw_database_script(rng)
        if (rows := _query_if_unambiguous(script, question)) and rows not in seen:
            seen.append(rows)
            found.append(script)
        if len(found) == num_hidden + 1:
            return found
    raise ConfigError(f"no {num_hidden + 1} databases distinguish the correct query of {question.text!r} from wrong ones; lower `hidden`")


@lru_cache(maxsize=1024)
def _query_if_unambiguous(script: str, question: SqlQuestion) -> list[Any]:
    """Return the rows of the correct query; none if a wrong query gives the same, the order is ambiguous, or a value is missing."""
    connection = sqlite3.connect(":memory:")
    try:
        connection.executescript(script)
        rows, *others = (connection.execute(query).fetchall() for query in (question.query, *question.wrong_queries))
        places = [row[-1] for row in connection.execute(question.tie_check_query)] if question.is_ordered else []
    finally:
        connection.close()
    same = any(sorted(map(repr, rows)) == sorted(map(repr, other)) for other in others)
    return [] if same or len(set(places)) < len(places) or any(value in (None, 0) for row in rows for value in row) else rows


make = Sql
