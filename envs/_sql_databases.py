"""Small databases for the environment `sql`: the domains, the layouts of their tables, and rows drawn by a seed."""

from __future__ import annotations

import random
from dataclasses import dataclass
from datetime import date, timedelta

FIRST_NAMES = "Ada Ben Cora Dan Eva Finn Gina Hugo Iris Jon Kira Leo Mara Nils Olga Paul Rosa Sam Tess Uwe Vera Will".split()  # noqa: SIM905
LAST_NAMES = "Abel Brandt Castro Dietz Ekman Farr Grant Hale Ivers Jansen Kovac Lund Moreau Novak Okoye Petrov Quist Rossi".split()  # noqa: SIM905
TOWNS = "Arden Brixby Corvale Dunmore Eastwick Farhaven Glenrock Holmby Inverley Jarrow".split()  # noqa: SIM905
FIRST_DAY, NUM_DAYS = date(2023, 1, 1), 730


@dataclass(frozen=True, slots=True)
class BusinessDomain:
    """The vocabulary of one business domain: people, things, and the events that connect them.

    >>> BusinessDomain("member", "book", ("crime", "poetry"), "pages", "loan", "weeks", ("late", "lost"), "lent_on", ("Tides", "Embers")).event
    'loan'
    """

    person: str
    thing: str
    categories: tuple[str, ...]
    """The categories of things."""
    thing_column: str
    """The number column of things."""
    event: str
    amount_column: str
    """The whole-number column of events."""
    states: tuple[str, ...]
    date_column: str
    """The column with the date of an event."""
    thing_names: tuple[str, ...]
    """The names of things."""


DOMAINS = (
    BusinessDomain(
        person="customer",
        thing="product",
        categories=("toys", "books", "tools", "garden"),
        thing_column="price",
        event="order",
        amount_column="quantity",
        states=("paid", "open", "returned"),
        date_column="ordered_on",
        thing_names=("Lamp", "Kite", "Hammer", "Atlas", "Puzzle", "Rake", "Drill", "Novel", "Spade", "Robot", "Chisel", "Diary"),
    ),
    BusinessDomain(
        person="member",
        thing="book",
        categories=("history", "science", "crime", "poetry"),
        thing_column="pages",
        event="loan",
        amount_column="weeks",
        states=("returned", "late", "lost"),
        date_column="lent_on",
        thing_names=(
            "Tides",
            "Embers",
            "Orchard",
            "Signals",
            "Harbour",
            "Granite",
            "Meridian",
            "Sparrows",
            "Winterlight",
            "Quarry",
            "Lanterns",
            "Cipher",
        ),
    ),
    BusinessDomain(
        person="patient",
        thing="treatment",
        categories=("dental", "eyes", "skin", "heart"),
        thing_column="fee",
        event="visit",
        amount_column="minutes",
        states=("done", "missed", "cancelled"),
        date_column="visited_on",
        thing_names=(
            "Cleaning",
            "Filling",
            "Eye test",
            "Laser",
            "Biopsy",
            "Ultrasound",
            "Stress test",
            "Crown",
            "Peeling",
            "Lens fitting",
            "ECG",
            "Allergy test",
        ),
    ),
    BusinessDomain(
        person="student",
        thing="course",
        categories=("language", "maths", "music", "sport"),
        thing_column="credits",
        event="enrolment",
        amount_column="points",
        states=("passed", "failed", "running"),
        date_column="enrolled_on",
        thing_names=(
            "Latin",
            "Algebra",
            "Violin",
            "Rowing",
            "Greek",
            "Topology",
            "Choir",
            "Fencing",
            "Norse",
            "Statistics",
            "Organ",
            "Judo",
        ),
    ),
    BusinessDomain(
        person="driver",
        thing="vehicle",
        categories=("van", "truck", "car", "bus"),
        thing_column="mileage",
        event="trip",
        amount_column="distance",
        states=("finished", "planned", "aborted"),
        date_column="started_on",
        thing_names=(
            "Atlas 4",
            "Bison 2",
            "Comet 7",
            "Dingo 1",
            "Eagle 9",
            "Falcon 3",
            "Gecko 5",
            "Hornet 8",
            "Ibex 6",
            "Jackal 2",
            "Koala 4",
            "Lynx 9",
        ),
    ),
)


@dataclass(frozen=True, slots=True)
class DatabaseLayout:
    """The table layout of one domain.

    >>> DatabaseLayout(DOMAINS[0], 4).joined_from_clause
    'orders AS e JOIN customers AS w ON w.id = e.customer_id JOIN products AS t ON t.id = e.product_id JOIN towns AS p ON p.id = w.town_id'
    """

    domain: BusinessDomain
    num_tables: int
    """2: people and events; 3: things as well; 4: towns as well."""

    @property
    def joined_from_clause(self) -> str:
        """All tables joined, for a FROM clause."""
        d = self.domain
        text = f"{d.event}s AS e JOIN {d.person}s AS w ON w.id = e.{d.person}_id"
        text += f" JOIN {d.thing}s AS t ON t.id = e.{d.thing}_id" if self.num_tables > 2 else ""
        return text + (" JOIN towns AS p ON p.id = w.town_id" if self.num_tables > 3 else "")

    @property
    def people_and_towns_from_clause(self) -> str:
        """The people table, joined with towns if there is such a table."""
        return f"{self.domain.person}s AS w" + (" JOIN towns AS p ON p.id = w.town_id" if self.num_tables > 3 else "")

    @property
    def town_expression(self) -> str:
        """The SQL expression of the column with the name of a person's town."""
        return "p.name" if self.num_tables > 3 else "w.town"

    @property
    def category_expression(self) -> str:
        """The SQL expression of the column with the category of the thing that an event is about."""
        return "t.category" if self.num_tables > 2 else "e.category"

    def build_schema(self) -> list[str]:
        """Return the statements that create the tables."""
        d = self.domain
        towns = ["CREATE TABLE towns (id INTEGER PRIMARY KEY, name TEXT NOT NULL)"] if self.num_tables > 3 else []
        home = "town_id INTEGER NOT NULL REFERENCES towns(id)" if self.num_tables > 3 else "town TEXT NOT NULL"
        things = f"CREATE TABLE {d.thing}s (id INTEGER PRIMARY KEY, name TEXT NOT NULL, category TEXT NOT NULL, {d.thing_column} INTEGER NOT NULL)"
        what = f"{d.thing}_id INTEGER NOT NULL REFERENCES {d.thing}s(id)" if self.num_tables > 2 else "category TEXT NOT NULL"
        return [
            *towns,
            f"CREATE TABLE {d.person}s (id INTEGER PRIMARY KEY, name TEXT NOT NULL, {home})",
            *([things] if self.num_tables > 2 else []),
            f"CREATE TABLE {d.event}s (id INTEGER PRIMARY KEY, {d.person}_id INTEGER NOT NULL REFERENCES {d.person}s(id), {what}, "
            f"{d.amount_column} INTEGER NOT NULL, state TEXT NOT NULL, {d.date_column} TEXT NOT NULL)",
        ]

    def draw_database_script(self, rng: random.Random) -> str:
        """Draw a database of this layout as an SQL script. Some people have no event."""
        d = self.domain
        people = [f"{first} {last}" for first, last in zip(rng.sample(FIRST_NAMES, 14), rng.sample(LAST_NAMES, 14), strict=True)]
        towns = rng.sample(TOWNS, len(TOWNS))
        lines = [f"{statement};" for statement in self.build_schema()]
        if self.num_tables > 3:
            lines += [f"INSERT INTO towns VALUES ({n}, '{town}');" for n, town in enumerate(towns, start=1)]
        for n, name in enumerate(people, start=1):
            place = rng.randrange(len(towns))
            lines.append(f"INSERT INTO {d.person}s VALUES ({n}, '{name}', {place + 1 if self.num_tables > 3 else repr(towns[place])});")
        things = rng.sample(d.thing_names, len(d.thing_names))
        if self.num_tables > 2:
            prices = rng.sample(range(5, 400), len(things))
            lines += [
                f"INSERT INTO {d.thing}s VALUES ({n}, '{name}', '{rng.choice(d.categories)}', {price});"
                for n, (name, price) in enumerate(zip(things, prices, strict=True), start=1)
            ]
        active = rng.sample(range(1, len(people) + 1), 11)
        for n in range(1, rng.randint(70, 90)):
            what = rng.randrange(len(things)) + 1 if self.num_tables > 2 else repr(rng.choice(d.categories))
            day = FIRST_DAY + timedelta(days=rng.randrange(NUM_DAYS))
            values = f"{n}, {rng.choice(active)}, {what}, {rng.randint(1, 40)}, '{rng.choice(d.states)}', '{day}'"
            lines.append(f"INSERT INTO {d.event}s VALUES ({values});")
        return "\n".join(lines)
