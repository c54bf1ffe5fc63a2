# ruff: noqa: E501 -- the table of defects reads better in lines
"""The kit on a conversation of texts, without tools and without a gold answer: each planted defect fails it, with its reason."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rlvr.conformance.check_runner import CheckResult, Steps, run_checks
from rlvr.conformance.envkit import iter_env_checks

WORLD = '''
"""Battleship on a 4x4 board, one ship of two cells."""
import random
from rlvr import Environment, Session, StepResult, Task, Verdict, Verifier

CELLS = [c + r for c in "abcd" for r in "1234"]


class Board(Session):
    """Hears shots."""

    def __init__(self, task):
        self.ship, self.hits, self.log = set(task.reference), set(), []

    def step(self, turn):
        shot = turn.text.strip().lower()
        if shot not in CELLS:
            self.log.append("bad")
            return StepResult(({"role": "user", "content": "say a cell, a1 to d4"},))
        self.log.append("hit" if shot in self.ship else "miss")
        self.hits |= {shot} & self.ship
        if self.hits == self.ship:
            return None
        return StepResult(({"role": "user", "content": self.log[-1]},))

    def artifacts(self):
        return {"log": self.log, "hits": sorted(self.hits)}


class Sunk(Verifier):
    """1 if the ship is sunk, else a quarter for each hit."""

    def verify(self, task, answer):
        return Verdict(0.0, "no shots")

    def verify_transcript(self, task, transcript):
        hits = transcript.artifacts["hits"]
        if set(hits) == set(task.reference):
            return Verdict(1.0, "sunk")
        return Verdict(0.25 * len(hits), "not sunk")


class Battleship(Environment):
    """Sink a ship of two cells on a 4x4 board."""

    max_turns = 6

    def __init__(self):
        self.verifier = Sunk()

    def task(self, split, index):
        ships = [(f"{a}{r}", f"{b}{r}") for a, b in zip("abc", "bcd") for r in "1234"]
        ship = ships[2 * index + (split == "test")]
        return Task("shoot", list(ship), id=f"battleship/{split}/{index}")

    def num_tasks(self, split):
        return 6

    def oracle_turns(self, task):
        return task.reference

    def new_session(self, task, *, seed):
        return Board(task)
'''
SCRIPT, SAME, HIDDEN, HOSTILE = (
    "the script of a conversation scores 1",
    "the same seed gives the same results",
    "the opening and the tools do not contain the answer",
    "whatever a hostile player does gets a score",
)
CLOSES = "    def close(self):\n        raise RuntimeError('cannot close')\n\n    def artifacts"
OPENS = "    def initial_messages(self):\n        return ({'role': 'user', 'content': f'the ship is at {sorted(self.ship)[1]} and {sorted(self.ship)[0]}'},)\n\n    def artifacts"
DEFECTS = [
    ("a wrong script", SCRIPT, "return task.reference", "return ['a1', 'a1']", "scored 0"),
    ("a state that conversations share", SAME, "self.ship, self.hits, self.log = set(task.reference), set(), []", "self.ship = set(task.reference)\n        self.hits = self.__class__.__dict__.get('shared') or set()\n        type(self).shared, self.log = self.hits, []", "the results differ"),
    ("a state that is global", SAME, 'self.hits |= {shot} & self.ship', "HITS.update({shot} & self.ship)\n        self.hits = HITS", "the results differ"),
    ("a reward by chance", SAME, 'Verdict(1.0, "sunk")', "Verdict(1.0 if next(LUCK) % 2 else 0.5, 'sunk')", "the same turns first scored 1"),
    ("artifacts that are no numbers", SCRIPT, "sorted(self.hits)}", "sorted(self.hits), 'nothing': float('nan')}", "cannot be stored"),
    ("a prompt with the answer", HIDDEN, '"shoot"', 'f"shoot {ship}"', "contains the turns that score 1"),
    ("an opening with the answer", HIDDEN, "    def artifacts", OPENS, "contains the reference"),
    ("a session that cannot be closed", SCRIPT, "    def artifacts", CLOSES, "close raised RuntimeError: cannot close"),
    ("a step that raises at the win", SCRIPT, "            return None\n", "            raise RuntimeError('won')\n", "raised RuntimeError: won"),
    ("a script that is not worth all", SCRIPT, "Verdict(1.0,", "Verdict(0.9,", "scored 0.9"),
    ("a step that trips over an odd turn", HOSTILE, "if shot not in CELLS:", "if shot[0] not in 'abcd' or shot not in CELLS:", "raised IndexError"),
    ("a verifier that trips over the arguments of a call", HOSTILE, 'hits = transcript.artifacts["hits"]', 'hits = transcript.artifacts["hits"]\n        [call.arguments.get("cell") for turn in transcript.turns for call in turn.calls]', "has no attribute 'get'"),
    ("a reply that never comes", "every split has tasks, each with its own id", "    max_turns = 6\n", "    max_turns = 1\n\n    def reply(self, task, completions):\n        return 'again'\n", "it defines `reply`, and max_turns is 1"),
]  # fmt: skip


def find_check(steps: Steps, wanted: str) -> CheckResult:
    """Run one check of a kit and leave out the others."""

    def chosen() -> Iterator[object]:
        yield from ((name, look) for name, look in steps if name == wanted)

    return list(run_checks(chosen()))[-1]  # type: ignore[arg-type]


def write(folder: Path, text: str) -> str:
    path = folder / "world.py"
    path.write_text(f"import itertools\nHITS = set()\nLUCK = itertools.count(1)\n{text}", "utf-8")
    return f"{path}:Battleship"


@pytest.mark.parametrize(("wanted", "old", "new", "words"), [row[1:] for row in DEFECTS], ids=[row[0] for row in DEFECTS])
def test_the_kit_finds(wanted: str, old: str, new: str, words: str, tmp_path: Path) -> None:
    assert old in WORLD
    steps = iter_env_checks(write(tmp_path, WORLD.replace(old, new)), {})
    kept = (step for step in steps if step[0] in (SCRIPT, wanted)) if wanted == SAME else steps
    check = find_check(kept, wanted)
    assert not check.ok and words in check.detail, check


@pytest.mark.parametrize("wanted", sorted({row[1] for row in DEFECTS}))
def test_the_sound_world_passes(wanted: str, tmp_path: Path) -> None:
    check = find_check(iter_env_checks(write(tmp_path, WORLD), {}), wanted)
    assert check.ok and not check.skipped, check
