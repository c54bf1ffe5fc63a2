"""Worker class of `gymnasium`: one Gymnasium environment with text observations and words as actions."""

from __future__ import annotations

import importlib
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

TAXI_STOPS = ("red (0,0)", "green (0,4)", "yellow (4,0)", "blue (4,3)")
TAXI_INTRODUCTION = (
    "Drive a taxi on a 5 x 5 grid of (row,column), with (0,0) at the top left. Walls stand between columns 1 and 2 in rows 0 and 1, "
    "and in rows 3 and 4 between columns 0 and 1 and between columns 2 and 3. Fetch the passenger, and drop them at the destination."
)
ACTION_WORDS: Mapping[str, tuple[str, ...]] = {
    "FrozenLake": ("left", "down", "right", "up"),
    "CliffWalking": ("up", "right", "down", "left"),
    "Taxi": ("south", "north", "east", "west", "pickup", "dropoff"),
    "Blackjack": ("stick", "hit"),
    "MiniGrid": ("left", "right", "forward", "pickup", "drop", "toggle", "done"),
}
"""Action words by prefix of the environment id, in Gymnasium's order. Other environments use the action numbers."""
MAX_NUMBERS = 64


class GymnasiumInstance:
    """Worker class of `gymnasium`: one Gymnasium environment, in a forked process.

    >>> instance = GymnasiumInstance(id="FrozenLake-v1", kwargs={})
    >>> instance.reset(seed=3).splitlines()[-1], instance.list_action_words()
    ('Say one move: left, down, right or up.', ['left', 'down', 'right', 'up'])
    """

    def __init__(self, *, id: str, kwargs: Mapping[str, Any]) -> None:
        self.gymnasium = importlib.import_module("gymnasium")
        self.id, self.name, self.kwargs = id, id.rpartition(":")[2].rpartition("/")[2].split("-")[0], dict(kwargs)
        if self.name == "MiniGrid":
            importlib.import_module("minigrid")
        self._make_env(seed=0)
        space = self.env.action_space
        if not isinstance(space, self.gymnasium.spaces.Discrete) or int(space.n) > MAX_NUMBERS:
            raise TypeError(f"the actions of {id} are {space}; only a few discrete actions can be said as words")
        self.first_action = int(space.start)
        known = ACTION_WORDS.get(self.name, ())
        self._words = list(known) if len(known) == space.n else [str(self.first_action + number) for number in range(int(space.n))]

    @staticmethod
    def import_and_describe_package() -> Any:
        """Import Gymnasium and return its version."""
        return {"version": importlib.import_module("gymnasium").__version__}

    def list_action_words(self) -> list[str]:
        """Return the actions as words."""
        return self._words

    def reset(self, seed: int) -> str:
        """Reset with a seed; FrozenLake also gets a map drawn from the seed."""
        if self.name == "FrozenLake" and not self.kwargs.keys() & {"desc", "map_name"}:
            self._make_env(seed)
        observation, _ = self.env.reset(seed=seed)
        head = INTRODUCTIONS.get(self.name, f"Play {self.env.spec.id if self.env.spec else self.name}.")
        *others, last = self._words
        return f"{head}\n{self._describe(observation)}\nSay one move: {', '.join(others)} or {last}."

    def step(self, move: str) -> dict[str, Any]:
        """Take one step."""
        observation, reward, terminated, truncated, _ = self.env.step(self.first_action + self._words.index(move))
        over = bool(terminated) or bool(truncated)
        value = reward.item() if isinstance(reward, np.generic | np.ndarray) and np.size(reward) == 1 else reward
        plain = value if isinstance(value, int | float | str | None) else repr(value)
        return {"text": self._describe(observation), "rewards": [plain], "over": over, "cut": over and not terminated}

    def find_winning_moves(self, seed: int) -> list[str] | None:
        """Return the shortest moves to the goal if the environment has a deterministic transition table, else None."""
        self.reset(seed)
        inner: Any = self.env.unwrapped
        table = getattr(inner, "P", None)
        if table is None or not hasattr(inner, "s"):
            return None
        begin = int(inner.s)
        best = max(row[2] for moves in table.values() for rows in moves.values() for row in rows)
        queue, before = deque([begin]), {begin: (begin, "")}
        while queue:
            state = queue.popleft()
            for action, rows in table[state].items():
                if len(rows) != 1:
                    return None  # random transitions
                _, following, reward, over = rows[0]
                if over and reward == best:
                    before[-1] = (state, self._words[action])
                    return _trace_path(before, begin)
                if not over and int(following) not in before:
                    before[int(following)] = (state, self._words[action])
                    queue.append(int(following))
        return None

    def _make_env(self, seed: int) -> None:
        given = dict(self.kwargs)
        if self.name == "FrozenLake" and not given.keys() & {"desc", "map_name"}:
            maps = importlib.import_module("gymnasium.envs.toy_text.frozen_lake")
            given = {"is_slippery": False, "desc": maps.generate_random_map(size=given.pop("size", 4), seed=seed), **given}
        self.env = self.gymnasium.make(self.id, **given)

    def _describe(self, observation: Any) -> str:
        if self.name in DESCRIBERS:
            return DESCRIBERS[self.name](self.env.unwrapped, observation)
        return _format_observation(observation)


def _trace_path(before: dict[int, tuple[int, str]], begin: int) -> list[str]:
    state, words = -1, []
    while state != begin:
        state, word = before[state]
        words.append(word)
    return words[::-1]


def _format_observation(observation: Any) -> str:
    """Format a small observation: texts, numbers, and mappings and tuples of them."""
    if isinstance(observation, str):
        return observation
    if isinstance(observation, Mapping):
        return "\n".join(f"{key}: {_format_observation(value)}" for key, value in observation.items())
    if isinstance(observation, tuple):
        return ", ".join(_format_observation(value) for value in observation)
    array = np.asarray(observation)
    if array.size > MAX_NUMBERS or array.dtype.kind not in "biuf":
        raise TypeError(f"an observation of {array.size} numbers of type {array.dtype} is not written as text; at most {MAX_NUMBERS} are")
    return f"state {array.item()}" if array.ndim == 0 else " ".join(f"{number:g}" for number in array.ravel())


def _draw_grid(rows: list[list[str]], at: int) -> str:
    row, column = divmod(at, len(rows[0]))
    return "\n".join("".join("A" if (y, x) == (row, column) else cell for x, cell in enumerate(line)) for y, line in enumerate(rows))


def _describe_lake(env: Any, observation: Any) -> str:
    return _draw_grid([[cell.decode() for cell in line] for line in env.desc], int(observation))


def _describe_cliff(env: Any, observation: Any) -> str:
    height, width = env.shape
    rows = [["."] * width for _ in range(height)]
    rows[-1] = ["S", *["C"] * (width - 2), "G"]
    return _draw_grid(rows, int(observation))


def _describe_taxi(env: Any, observation: Any) -> str:
    row, column, passenger, destination = env.decode(int(observation))
    where = "in the taxi" if passenger == 4 else f"at {TAXI_STOPS[passenger]}"
    return f"The taxi is at ({row},{column}). The passenger is {where}. The destination is {TAXI_STOPS[destination]}."


def _describe_blackjack(env: Any, observation: Any) -> str:
    total, dealer, ace = (int(part) for part in observation)
    shown = "an ace" if dealer == 1 else str(dealer)
    return f"Your cards make {total}{', with an ace as 11' if ace else ''}. The dealer shows {shown}."


def _describe_minigrid(env: Any, observation: Any) -> str:
    """Describe the visible objects relative to the player; MiniGrid's own tables decode the numbers of its image."""
    names = importlib.import_module("minigrid.core.constants")
    image, seen = observation["image"], list[str]()
    width, depth = image.shape[:2]
    for x, y in np.ndindex(width, depth):
        kind, colour, state = (int(number) for number in image[x, y])
        name = names.IDX_TO_OBJECT[kind]
        if name in ("unseen", "empty", "floor", "agent"):
            continue
        how = {number: word for word, number in names.STATE_TO_IDX.items()}[state] + " " if name == "door" else ""
        paint = "" if name in ("wall", "lava", "goal") else f"{names.IDX_TO_COLOR[colour]} "
        ahead, side = depth - 1 - y, x - width // 2
        if (ahead, side) == (0, 0):
            seen.append(f"you carry a {paint}{name}")
        elif name != "wall" or side == 0:
            across = f", {abs(side)} to the {'left' if side < 0 else 'right'}" if side else ""
            seen.append(f"{how}{paint}{name} {ahead} ahead{across}")
    facing = ("right", "down", "left", "up")[int(observation["direction"])]
    return f"Mission: {observation['mission']}.\nYou face {facing}. In view: {'; '.join(seen) or 'nothing'}."


DESCRIBERS: Mapping[str, Callable[[Any, Any], str]] = {
    "FrozenLake": _describe_lake,
    "CliffWalking": _describe_cliff,
    "Taxi": _describe_taxi,
    "Blackjack": _describe_blackjack,
    "MiniGrid": _describe_minigrid,
}
INTRODUCTIONS: Mapping[str, str] = {
    "FrozenLake": "Walk over a frozen lake from the start S to the goal G. A is you, F is ice, H is a hole that ends the game.",
    "CliffWalking": "Walk from S to G. A is you. C is a cliff: who steps on it is back at S.",
    "Taxi": TAXI_INTRODUCTION,
    "Blackjack": "Play a hand of blackjack against a dealer who draws to 17. Cards of 10 and pictures count 10.",
    "MiniGrid": "Find your way through rooms of which you see a part.",
}
