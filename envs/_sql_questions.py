"""Questions for the environment `sql`: each with its correct query, and with wrong queries that must give other rows."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, timedelta

from rlvr.envs._sql_databases import FIRST_DAY, NUM_DAYS, TOWNS, DatabaseLayout


@dataclass(frozen=True, slots=True)
class SqlQuestion:
    """A question with its correct query.

    >>> SqlQuestion("How many orders are there?", "SELECT count(*) FROM orders").is_ordered
    False
    """

    text: str
    query: str
    wrong_queries: tuple[str, ...] = ()
    """Plausible wrong queries: a database on which one of them gives the same rows is drawn again."""
    tie_check_query: str = ""
    """If the order counts: a query whose last column must have no duplicates, since ties would allow more than one order."""

    @property
    def is_ordered(self) -> bool:
        """Whether the order of the result rows counts."""
        return bool(self.tie_check_query)


def _make_count_question(layout: DatabaseLayout, rng: random.Random) -> SqlQuestion:
    """Ask how many events have two properties."""
    d, state, most = layout.domain, rng.choice(layout.domain.states), rng.randint(5, 30)
    base = f"SELECT count(*) FROM {d.event}s AS e WHERE e.state = '{state}'"
    return SqlQuestion(
        f"How many {d.event}s have the state '{state}' and a value of {d.amount_column} above {most}?",
        f"{base} AND e.{d.amount_column} > {most}",
        (base, f"{base} AND e.{d.amount_column} >= {most}", f"SELECT count(*) FROM {d.event}s AS e WHERE e.{d.amount_column} > {most}"),
    )


def _make_sum_question(layout: DatabaseLayout, rng: random.Random) -> SqlQuestion:
    """Ask for a sum over the larger events of one category."""
    d, kind, state, most = layout.domain, rng.choice(layout.domain.categories), rng.choice(layout.domain.states), rng.randint(5, 20)
    rest = f"FROM {layout.joined_from_clause} WHERE {layout.category_expression} = '{kind}'"
    left = f"AND e.state <> '{state}' AND e.{d.amount_column} > {most}"
    return SqlQuestion(
        f"Take the {d.event}s in the category '{kind}' whose state is not '{state}' and whose {d.amount_column} is above {most}. "
        f"What is the sum of their {d.amount_column}?",
        f"SELECT sum(e.{d.amount_column}) {rest} {left}",
        (
            f"SELECT sum(e.{d.amount_column}) {rest} AND e.{d.amount_column} > {most}",
            f"SELECT sum(e.{d.amount_column}) {rest} AND e.state <> '{state}'",
            f"SELECT sum(e.{d.amount_column}) {rest} AND e.state = '{state}'",
            f"SELECT count(*) {rest} {left}",
        ),
    )


def _make_names_question(layout: DatabaseLayout, rng: random.Random) -> SqlQuestion:
    """Ask for the distinct names of people with some event; it needs a join that repeats people."""
    d, kind, least = layout.domain, rng.choice(layout.domain.categories), rng.randint(20, 32)
    rest = f"FROM {layout.joined_from_clause} WHERE {layout.category_expression} = '{kind}' AND e.{d.amount_column} >= {least}"
    return SqlQuestion(
        f"Which {d.person}s have at least one {d.event} in the category '{kind}' with a value of {d.amount_column} of {least} or more? "
        "Give their names, each once.",
        f"SELECT DISTINCT w.name {rest}",
        (
            f"SELECT DISTINCT w.name FROM {layout.joined_from_clause} WHERE {layout.category_expression} = '{kind}'",
            f"SELECT DISTINCT w.id {rest}",
        ),
    )


def _make_group_question(layout: DatabaseLayout, rng: random.Random) -> SqlQuestion:
    """Ask for two numbers for each group of at least some size."""
    d, day, least = layout.domain, _draw_day(rng), rng.randint(2, 4)
    by, name, words = rng.choice(
        [
            (layout.category_expression, "category", "category"),
            (layout.town_expression, "town", f"town of the {d.person}s"),
            ("e.state", "state", "state"),
        ]
    )
    rest = f"FROM {layout.joined_from_clause} WHERE e.{d.date_column} >= '{day}' GROUP BY {by}"
    return SqlQuestion(
        f"Take the {d.event}s on or after {day} ({d.date_column}). For each {words} with at least {least} of them, "
        f"give the {name}, their number, and the average of their {d.amount_column}.",
        f"SELECT {by}, count(*), avg(e.{d.amount_column}) {rest} HAVING count(*) >= {least}",
        (
            f"SELECT {by}, count(*), avg(e.{d.amount_column}) FROM {layout.joined_from_clause} GROUP BY {by} HAVING count(*) >= {least}",
            f"SELECT {by}, count(*), sum(e.{d.amount_column}) {rest} HAVING count(*) >= {least}",
        ),
    )


def _make_top_question(layout: DatabaseLayout, rng: random.Random) -> SqlQuestion:
    """Make a question for the few people with the largest sum, in order; the reference is an ordered query."""
    d, places, state, day = layout.domain, rng.randint(2, 4), rng.choice(layout.domain.states), _draw_day(rng)
    where = f"WHERE e.state <> '{state}' AND e.{d.date_column} < '{day}'"
    base = (
        f"SELECT w.name, sum(e.{d.amount_column}) FROM {layout.joined_from_clause} {where} GROUP BY w.id ORDER BY sum(e.{d.amount_column})"
    )
    return SqlQuestion(
        f"Take the {d.event}s before {day} ({d.date_column}) whose state is not '{state}'. Which {places} {d.person}s have the largest sum of "
        f"{d.amount_column} over them? Give the name and the sum, the largest sum first.",
        f"{base} DESC LIMIT {places}",
        (
            f"{base} LIMIT {places}",
            f"{base.replace(where, '')} DESC LIMIT {places}",
            f"{base.replace('sum(', 'count(')} DESC LIMIT {places}",
        ),
        tie_check_query=f"{base} DESC LIMIT {places + 1}",
    )


def _make_date_range_question(layout: DatabaseLayout, rng: random.Random) -> SqlQuestion:
    """Ask for numbers over a range of dates."""
    d = layout.domain
    start = rng.randrange(NUM_DAYS - 200)
    first, last = (FIRST_DAY + timedelta(days=start + more) for more in (0, rng.randint(60, 200)))
    town = rng.choice(TOWNS)
    between = f"e.{d.date_column} BETWEEN '{first}' AND '{last}'"
    return SqlQuestion(
        f"How many {d.event}s of {d.person}s who do not live in {town} have a date ({d.date_column}) from {first} to {last}, both days included, "
        f"and what is the largest value of {d.amount_column} among them? Give both numbers.",
        f"SELECT count(*), max(e.{d.amount_column}) FROM {layout.joined_from_clause} WHERE {between} AND {layout.town_expression} <> '{town}'",
        (
            f"SELECT count(*), max(e.{d.amount_column}) FROM {layout.joined_from_clause} WHERE {layout.town_expression} <> '{town}'",
            f"SELECT count(*), min(e.{d.amount_column}) FROM {layout.joined_from_clause} WHERE {between} AND {layout.town_expression} <> '{town}'",
        ),
    )


def _make_absence_question(layout: DatabaseLayout, rng: random.Random) -> SqlQuestion:
    """Ask for people without some event, including those without any event."""
    d, state = layout.domain, rng.choice(layout.domain.states)
    day = _draw_day(rng)
    having = f"EXISTS (SELECT 1 FROM {d.event}s AS e WHERE e.{d.person}_id = w.id AND e.state = '{state}' AND e.{d.date_column} >= '{day}')"
    return SqlQuestion(
        f"Which {d.person}s have no {d.event} with the state '{state}' on or after {day} ({d.date_column})? "
        f"Give the names, also of {d.person}s without any {d.event}.",
        f"SELECT w.name FROM {layout.people_and_towns_from_clause} WHERE NOT {having}",
        (
            f"SELECT w.name FROM {layout.people_and_towns_from_clause} WHERE {having}",
            f"SELECT DISTINCT w.name FROM {layout.joined_from_clause} WHERE NOT {having}",
            f"SELECT w.name FROM {layout.people_and_towns_from_clause} WHERE w.id NOT IN (SELECT {d.person}_id FROM {d.event}s)",
        ),
    )


def _draw_day(rng: random.Random) -> date:
    return FIRST_DAY + timedelta(days=rng.randrange(200, NUM_DAYS - 200))


QUESTION_KINDS: dict[str, Callable[[DatabaseLayout, random.Random], SqlQuestion]] = {
    "count": _make_count_question,
    "sum": _make_sum_question,
    "who": _make_names_question,
    "group": _make_group_question,
    "top": _make_top_question,
    "dates": _make_date_range_question,
    "absent": _make_absence_question,
}
"""The kinds of questions, by name."""
