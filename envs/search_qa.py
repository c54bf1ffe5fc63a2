"""Questions of two or three hops about invented entities, whose passages are found with a search tool."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from rlvr.contracts import Environment, Session, ToolSession, Verifier
from rlvr.contracts.environment import ReplySession
from rlvr.contracts.tool import Tool
from rlvr.errors import ConfigError
from rlvr.extraction import extract_answer
from rlvr.task import Task, make_user_prompt
from rlvr.turns import Call

ONSETS, VOWELS, WORD_ENDS = "b br c d dr f g gl h k l m n p r s st t tr v w z".split(), "aeiou", "l m n r s th x nd rk".split()  # noqa: SIM905
JOBS = ("botanist", "bookbinder", "surveyor", "cellist", "chemist", "printer", "pilot", "potter")
WORK_FORMS = ("novel", "play", "song cycle", "long poem", "travel report")
TRADES = ("builds clocks", "makes paper", "ships grain", "prints maps", "repairs bridges", "weaves sails")
PASSAGE_TEMPLATES = {
    "work": "{name} is a {form}. It was written by {author}. A critic compared it to {other}.",
    "person": "{name} is a {job}. {name} was born in {home}, moved to {moved} as a child, and works for {employer}. A cousin is {other}.",
    "company": "{name} {trade}. It was founded by {founder}, has its head office in {seat}, and employs {employees}. It buys from {other}.",
    "town": "{name} has {population} inhabitants. The river {river} flows through it. Its mayor is {mayor}. A road leads to {other}.",
}  # fmt: skip
"""Passage template for each kind of entity. `other` and `moved` are distractors."""
RELATIONS = {
    "author": ("work", "person", "the author of {}", ""),
    "home": ("person", "town", "the town where {} was born", "In which town was {} born?"),
    "employer": ("person", "company", "the company that {} works for", "For which company does {} work?"),
    "founder": ("company", "person", "the founder of {}", "Who founded {}?"),
    "seat": ("company", "town", "the town where {} has its head office", "In which town does {} have its head office?"),
    "employees": ("company", "", "", "How many people does {} employ?"),
    "population": ("town", "", "", "How many inhabitants has {}?"),
    "river": ("town", "", "", "Which river flows through {}?"),
    "mayor": ("town", "", "", "Who is the mayor of {}?"),
}
"""Per relation: source kind, target kind, phrase inside a question, and the final question."""
MAX_DRAWS = 500


@dataclass(frozen=True, slots=True)
class Entity:
    """An entity with its passage; it has the fields of the passages of the tool `search`.

    >>> Entity("3", "town", "Brelnal", "Brelnal has 5310 inhabitants.", {"population": "5310"}).title
    'Brelnal'
    """

    id: str
    kind: str
    title: str
    text: str
    facts: Mapping[str, str]

    def __hash__(self) -> int:
        return hash((self.id, self.title, self.text))


class SearchQa(Environment):
    """A question about invented people, towns, companies and works, as "Who is the mayor of the town where the author of ... was born?"

    Each task has its own passages, one for each entity; no passage has both the question's entity and the answer.

    >>> import rlvr
    >>> env = rlvr.make_env("search_qa")
    >>> env.task("train", 0).meta["hops"] in env.hops
    True
    """

    needs = {"verifier": "exact", "tools": ["search", "submit"]}
    max_prompt_tokens = 600
    max_new_tokens = 1_500

    def __init__(
        self,
        *,
        verifier: Verifier,
        tools: Sequence[Tool],
        hops: Sequence[int] = (2, 3),
        num_entities: int = 60,
        seed: int = 0,
        max_turns: int = 8,
        dialect: str = "",
    ) -> None:
        """Set the difficulty and the limits.

        Args:
            verifier: compares the answer with the correct name or number.
            tools: the tools of the policy.
            hops: the possible numbers of passages that lead to the answer: 2, 3 or both.
            num_entities: number of passages of a task, from 40 to 400.
            seed: another seed gives different entities.
            max_turns: the most turns of the policy, turns with tool calls included.
            dialect: how calls are written; by default as the model's chat template does.
        """
        if not isinstance(hops, Sequence) or not hops or not set(hops) <= {2, 3}:
            raise ConfigError(f"hops is {hops!r}; it must be a list out of 2 and 3, such as [2]")
        if isinstance(num_entities, bool) or not isinstance(num_entities, int) or not 40 <= num_entities <= 400:
            raise ConfigError(f"num_entities is {num_entities!r}; it must be a whole number from 40 to 400")
        self.verifier, self.tools, self.dialect, self.max_turns = verifier, tools, dialect, max_turns
        self.hops, self.num_entities, self.seed = tuple(hops), num_entities, seed

    def task(self, split: str, index: int) -> Task:
        """Return the question at `index`; one question in five is held out, for any seed."""
        name = f"{split}/{self.seed}.{index}"
        rng = random.Random(f"search_qa/{name}")
        named = build_entities(name, self.num_entities)
        for _ in range(MAX_DRAWS):
            hops = rng.choice(self.hops)
            walk = _draw_question(named, hops, rng)
            if walk is None:
                continue
            question, path, answer = walk
            held_out = hashlib.blake2b(question.encode(), digest_size=4).digest()[0] % 5 == 0
            if split == ("test" if held_out else "train"):
                return Task(
                    make_user_prompt(_format_prompt(question)),
                    answer,
                    id=f"search_qa/{name}",
                    meta={"hops": hops, "path": path, "world": name},
                )
        raise ConfigError(f"no question of {list(self.hops)} hops was found in {split!r}; raise `num_entities`")

    def gold(self, task: Task) -> str:
        """Return the name or the number."""
        return str(task.reference[0])

    def oracle_turns(self, task: Task) -> list[str | Call]:
        """Return the searches for each entity on the path, and the submission of the answer."""
        looks = [Call(f"{turn}.0", "search", {"query": title}) for turn, title in enumerate(task.meta["path"])]
        return [*looks, Call(f"{len(looks)}.0", "submit", {"answer": self.gold(task)})]

    def new_session(self, task: Task, *, seed: int) -> Session:
        """Open a session with the passages of the task. They never change, so `seed` is ignored."""
        return SearchSession(
            task, self.tools, sandbox=self.sandbox, seed=seed, num_entities=self.num_entities, inner=ReplySession(self, task)
        )

    def select_answer(self, task: Task, completions: Sequence[str]) -> str:
        """Return the answer that the last turn declares, without Markdown emphasis; the whole turn if it declares none."""
        last = completions[-1] if completions else ""
        return (extract_answer(last).text or last).strip(" \n*_`")


class SearchSession(ToolSession):
    """Session with the passages of one task."""

    def __init__(self, task: Task, tools: Sequence[Tool], *, num_entities: int, **more: Any) -> None:
        super().__init__(task, tools, **more)
        self.num_entities = num_entities

    def get_data_for_tools(self) -> Mapping[str, Any]:
        """Return the passages for the search tool."""
        return {"passages": tuple(build_entities(str(self.task.meta["world"]), self.num_entities).values())}


@lru_cache(maxsize=256)
def build_entities(seed_name: str, count: int) -> dict[str, Entity]:
    """Build all entities of one task, by name.

    >>> sorted({entity.kind for entity in build_entities("train/0.0", 60).values()})
    ['company', 'person', 'town', 'work']
    """
    rng = random.Random(f"world/{seed_name}")
    used: set[str] = set()

    def word() -> str:
        while True:
            made = "".join(rng.choice(ONSETS) + rng.choice(VOWELS) for _ in range(2)) + rng.choice(WORD_ENDS)
            if made not in used:
                used.add(made)
                return made.capitalize()

    shares = {"work": count // 3, "person": count // 3, "company": count // 6}
    shares["town"] = count - sum(shares.values())
    forms = {"work": lambda: f"The {word()} of {word()}", "person": lambda: f"{word()} {word()}", "company": lambda: f"{word()} & {word()}"}
    names = {kind: [forms.get(kind, word)() for _ in range(share)] for kind, share in shares.items()}
    things = []
    for kind, titles in names.items():
        for title in titles:
            others = {of: rng.choice([other for other in names[of] if other != title]) for of in names}
            facts = {of: others[to] for of, (start, to, _, _) in RELATIONS.items() if start == kind and to}
            facts |= {"river": word(), "mayor": f"{word()} {word()}"} if kind == "town" else {}
            facts |= {of: str(rng.randint(1_001, 99_999)) for of in ("population", "employees") if RELATIONS[of][0] == kind}
            words = {"form": rng.choice(WORK_FORMS), "job": rng.choice(JOBS), "trade": rng.choice(TRADES)}
            moved = rng.choice([town for town in names["town"] if town != facts.get("home")])
            text = PASSAGE_TEMPLATES[kind].format(name=title, other=others[kind], moved=moved, **words, **facts)
            things.append(Entity("", kind, title, text, facts))
    rng.shuffle(things)
    return {thing.title: Entity(str(n), thing.kind, thing.title, thing.text, thing.facts) for n, thing in enumerate(things)}


def _draw_question(entities: Mapping[str, Entity], num_hops: int, rng: random.Random) -> tuple[str, list[str], list[str]] | None:
    """Draw a question, the path of entities to its answer, and the accepted answers; None if the path has a loop."""
    kind = rng.choice(["work", "person", "company"])
    thing = rng.choice([thing for thing in entities.values() if thing.kind == kind])
    path, phrase = [thing.title], thing.title
    for hop in range(num_hops):
        last = hop == num_hops - 1
        choices = [of for of, (start, to, _, _) in RELATIONS.items() if start == thing.kind and (to or last)]
        if not choices:
            return None
        relation = rng.choice(choices)
        found = thing.facts[relation]
        if found in path:
            return None
        if last:
            seen = any(found in passage.text and path[0] in passage.text for passage in entities.values())
            return None if seen else (RELATIONS[relation][3].format(phrase), path, _list_accepted_answers(relation, found))
        phrase = RELATIONS[relation][2].format(phrase)
        thing = entities[found]
        path.append(found)
    return None


def _list_accepted_answers(relation: str, answer: str) -> list[str]:
    """Return the accepted spellings of an answer."""
    if answer.isdigit():
        return [answer, f"{int(answer):,}"]
    return (
        [f"{before}{answer}" for before in ("", "the ", "The ", "the river ", "The river ", "River ")] if relation == "river" else [answer]
    )


def _format_prompt(question: str) -> str:
    return (
        f"{question}\n\nThe passages that say it are found with the tool search; no other source knows. "
        "Answer with the name or the number alone; write a number in digits."
    )


make = SearchQa
