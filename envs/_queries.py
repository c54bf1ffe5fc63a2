"""Questions for the environment `sql`: each with its correct query, and with wrong queries that must give other rows."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, timedelta

from rlvr.envs._tables import DAYS, START, TOWNS, Layout


@dataclass(frozen=True, slots=True)
class Asked:
    """A question with its correct query.

    >>> Asked("How many orders are there?", "SELECT count(*) FROM orders").ordered
    False
    """

    text: str
    query: str
    wrong: tuple[str, ...] = ()
    """Plausible wrong queries: a database on which one of them gives the same rows is drawn again."""
    untied: str = ""
    """If the order counts: a query whose last column must have no duplicates, since ties would allow more than one order."""

    @property
    def ordered(self) -> bool:
        """Whether the order of the result rows counts."""
        return bool(self.untied)


def count(layout: Layout, dice: random.Random) -> Asked:
    """Ask how many events have two properties."""
    d, state, most = layout.domain, dice.choice(layout.domain.states), dice.randint(5, 30)
    base = f"SELECT count(*) FROM {d.event}s AS e WHERE e.state = '{state}'"
    return Asked(
        f"How many {d.event}s have the state '{state}' and a value of {d.amount} above {most}?",
        f"{base} AND e.{d.amount} > {most}",
        (base, f"{base} AND e.{d.amount} >= {most}", f"SELECT count(*) FROM {d.event}s AS e WHERE e.{d.amount} > {most}"),
    )


def total(layout: Layout, dice: random.Random) -> Asked:
    """Ask for a sum over the larger events of one category."""
    d, kind, state, most = layout.domain, dice.choice(layout.domain.kinds), dice.choice(layout.domain.states), dice.randint(5, 20)
    rest = f"FROM {layout.joined} WHERE {layout.kind} = '{kind}'"
    left = f"AND e.state <> '{state}' AND e.{d.amount} > {most}"
    return Asked(
        f"Take the {d.event}s in the category '{kind}' whose state is not '{state}' and whose {d.amount} is above {most}. "
        f"What is the sum of their {d.amount}?",
        f"SELECT sum(e.{d.amount}) {rest} {left}",
        (
            f"SELECT sum(e.{d.amount}) {rest} AND e.{d.amount} > {most}",
            f"SELECT sum(e.{d.amount}) {rest} AND e.state <> '{state}'",
            f"SELECT sum(e.{d.amount}) {rest} AND e.state = '{state}'",
            f"SELECT count(*) {rest} {left}",
        ),
    )


def who(layout: Layout, dice: random.Random) -> Asked:
    """Ask for the distinct names of people with some event; it needs a join that repeats people."""
    d, kind, least = layout.domain, dice.choice(layout.domain.kinds), dice.randint(20, 32)
    rest = f"FROM {layout.joined} WHERE {layout.kind} = '{kind}' AND e.{d.amount} >= {least}"
    return Asked(
        f"Which {d.who}s have at least one {d.event} in the category '{kind}' with a value of {d.amount} of {least} or more? "
        "Give their names, each once.",
        f"SELECT DISTINCT w.name {rest}",
        (f"SELECT DISTINCT w.name FROM {layout.joined} WHERE {layout.kind} = '{kind}'", f"SELECT DISTINCT w.id {rest}"),
    )


def group(layout: Layout, dice: random.Random) -> Asked:
    """Ask for two numbers for each group of at least some size."""
    d, day, least = layout.domain, _day(dice), dice.randint(2, 4)
    by, name, words = dice.choice(
        [(layout.kind, "category", "category"), (layout.town, "town", f"town of the {d.who}s"), ("e.state", "state", "state")]
    )
    rest = f"FROM {layout.joined} WHERE e.{d.on} >= '{day}' GROUP BY {by}"
    return Asked(
        f"Take the {d.event}s on or after {day} ({d.on}). For each {words} with at least {least} of them, "
        f"give the {name}, their number, and the average of their {d.amount}.",
        f"SELECT {by}, count(*), avg(e.{d.amount}) {rest} HAVING count(*) >= {least}",
        (
            f"SELECT {by}, count(*), avg(e.{d.amount}) FROM {layout.joined} GROUP BY {by} HAVING count(*) >= {least}",
            f"SELECT {by}, count(*), sum(e.{d.amount}) {rest} HAVING count(*) >= {least}",
        ),
    )


def top(layout: Layout, dice: random.Random) -> Asked:
    """Ask for the first few of a list, in order."""
    d, places, state, day = layout.domain, dice.randint(2, 4), dice.choice(layout.domain.states), _day(dice)
    where = f"WHERE e.state <> '{state}' AND e.{d.on} < '{day}'"
    base = f"SELECT w.name, sum(e.{d.amount}) FROM {layout.joined} {where} GROUP BY w.id ORDER BY sum(e.{d.amount})"
    return Asked(
        f"Take the {d.event}s before {day} ({d.on}) whose state is not '{state}'. Which {places} {d.who}s have the largest sum of "
        f"{d.amount} over them? Give the name and the sum, the largest sum first.",
        f"{base} DESC LIMIT {places}",
        (
            f"{base} LIMIT {places}",
            f"{base.replace(where, '')} DESC LIMIT {places}",
            f"{base.replace('sum(', 'count(')} DESC LIMIT {places}",
        ),
        untied=f"{base} DESC LIMIT {places + 1}",
    )


def dates(layout: Layout, dice: random.Random) -> Asked:
    """Ask for numbers over a range of dates."""
    d = layout.domain
    start = dice.randrange(DAYS - 200)
    first, last = (START + timedelta(days=start + more) for more in (0, dice.randint(60, 200)))
    town = dice.choice(TOWNS)
    between = f"e.{d.on} BETWEEN '{first}' AND '{last}'"
    return Asked(
        f"How many {d.event}s of {d.who}s who do not live in {town} have a date ({d.on}) from {first} to {last}, both days included, "
        f"and what is the largest value of {d.amount} among them? Give both numbers.",
        f"SELECT count(*), max(e.{d.amount}) FROM {layout.joined} WHERE {between} AND {layout.town} <> '{town}'",
        (
            f"SELECT count(*), max(e.{d.amount}) FROM {layout.joined} WHERE {layout.town} <> '{town}'",
            f"SELECT count(*), min(e.{d.amount}) FROM {layout.joined} WHERE {between} AND {layout.town} <> '{town}'",
        ),
    )


def absent(layout: Layout, dice: random.Random) -> Asked:
    """Ask for people without some event, including those without any event."""
    d, state = layout.domain, dice.choice(layout.domain.states)
    day = _day(dice)
    having = f"EXISTS (SELECT 1 FROM {d.event}s AS e WHERE e.{d.who}_id = w.id AND e.state = '{state}' AND e.{d.on} >= '{day}')"
    return Asked(
        f"Which {d.who}s have no {d.event} with the state '{state}' on or after {day} ({d.on})? "
        f"Give the names, also of {d.who}s without any {d.event}.",
        f"SELECT w.name FROM {layout.people} WHERE NOT {having}",
        (
            f"SELECT w.name FROM {layout.people} WHERE {having}",
            f"SELECT DISTINCT w.name FROM {layout.joined} WHERE NOT {having}",
            f"SELECT w.name FROM {layout.people} WHERE w.id NOT IN (SELECT {d.who}_id FROM {d.event}s)",
        ),
    )


def _day(dice: random.Random) -> date:
    return START + timedelta(days=dice.randrange(200, DAYS - 200))


KINDS: dict[str, Callable[[Layout, random.Random], Asked]] = {
    "count": count, "sum": total, "who": who, "group": group, "top": top, "dates": dates, "absent": absent,
}  # fmt: skip
"""The kinds of questions, by name."""
