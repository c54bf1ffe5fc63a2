"""Three servers made with the real package openenv, for `worlds.py`: run with an interpreter that has it.

python benchmarks/envs/_tasksets/openenv_servers.py guess|count|echo PORT
"""

from __future__ import annotations

import random
import sys
import time
from typing import Any

import uvicorn
from openenv.core.env_server import Action, Environment, Observation, State, create_fastapi_app


class Said(Action):
    """A text."""

    text: str


class Number(Action):
    """A number."""

    number: int


class Told(Observation):
    """A text."""

    told: str = ""


class Guess(Environment):
    """Guess a number from 1 to 9. Certain texts bring out the faults of a foreign server."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        super().__init__()
        self.secret = ""

    def reset(self, seed: int | None = None, episode_id: str | None = None, **more: Any) -> Told:
        """Draw the secret; it stands in the metadata, as some authors leave it there."""
        dice = random.Random(seed)
        self.secret = str(dice.randint(1, 9))
        return Told(told=f"Guess from 1 to 9. The day is {dice.randint(1, 10**6)}.", metadata={"secret": self.secret})

    def step(self, action: Any, timeout_s: float | None = None, **more: Any) -> Told:
        """One guess."""
        said = action.text
        if said == "fault hang":
            time.sleep(20)
        if said == "fault raise":
            raise RuntimeError("the board is gone")
        odd = {"fault large": 7.5, "fault nan": float("nan")}
        right = said == self.secret
        return Told(
            told="right" if right else "wrong",
            done=right or said in odd,
            reward=odd.get(said, float(right)),
            metadata={"secret": self.secret},
        )

    @property
    def state(self) -> State:
        """Nothing."""
        return State()


class Count(Guess):
    """Count to three."""

    def reset(self, seed: int | None = None, episode_id: str | None = None, **more: Any) -> Told:
        """From a number on."""
        self.next = random.Random(seed).randint(1, 1000)
        self.left = 3
        return Told(told=f"Count on, three numbers, one a turn: {self.next}")

    def step(self, action: Any, timeout_s: float | None = None, **more: Any) -> Told:
        """One number."""
        self.next, self.left = self.next + 1, self.left - 1
        right = action.number == self.next
        return Told(told="go on" if right else "no", done=not right or not self.left, reward=1 / 3 if right else 0.0)


class Echo(Guess):
    """Say the word once more, as in the template that the package writes."""

    def reset(self, seed: int | None = None, episode_id: str | None = None, **more: Any) -> Told:
        """A word."""
        self.secret = random.Random(seed).choice(("amber", "birch", "cedar", "delta", "ember")) + str(random.Random(seed).randint(0, 999))
        return Told(told=f"Say {self.secret}")

    def step(self, action: Any, timeout_s: float | None = None, **more: Any) -> Told:
        """The word."""
        return Told(told=action.text, done=True, reward=action.text == self.secret)


if __name__ == "__main__":
    made = {"guess": (Guess, Said), "count": (Count, Number), "echo": (Echo, Said)}[sys.argv[1]]
    uvicorn.run(
        create_fastapi_app(made[0], made[1], Told, max_concurrent_envs=8), host="127.0.0.1", port=int(sys.argv[2]), log_level="error"
    )
