"""Environments of Gymnasium with few discrete actions, as text: FrozenLake, Taxi, CliffWalking, Blackjack, MiniGrid and others."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from rlvr.envs.external._foreign_host import ForeignHost
from rlvr.envs.external._game_env import GameEnvironment
from rlvr.errors import ConfigError
from rlvr.extraction import extract_answer
from rlvr.task import Task

KNOWN_ENVS: Mapping[str, dict[str, Any]] = {
    "FrozenLake": {"turns": 24, "won": 1.0, "about": "a new 4 x 4 map for each task; reach the goal without a hole"},
    "Taxi": {"turns": 32, "won": 20.0, "about": "fetch a passenger on a 5 x 5 grid and drop them at the destination"},
    "CliffWalking": {"turns": 24, "won": -1.0, "single": True, "about": "one task: walk along a cliff to the goal"},
    "Blackjack": {"turns": 12, "won": 1.0, "most": 1.5, "unseen": True, "about": "one hand against the dealer; a draw is not won"},
    "MiniGrid": {"turns": 64, "about": "rooms of which a part is in view; the score is MiniGrid's own, higher for fewer steps"},
}
"""How known environments are played and scored, by the prefix of their id.

`won`: the smallest last reward that wins; without it the sum of the rewards is the score. `most`: the highest possible reward, where it
differs from `won`; a higher one is a fault of the package, and gives no score. `unseen`: the first observation is partial, so the seed
alone decides the split. `single`: there is only one initial state.
"""
CATALOG_IDS = ("FrozenLake", "Taxi", "CliffWalking", "Blackjack", "MiniGrid-Empty-Random-5x5-v0", "MiniGrid-DoorKey-5x5-v0")
MOVE_PATTERN = re.compile(r"(?:(?:move|go|step|turn|action)\s*:?\s+)?([a-z0-9]+)[.!]?", re.IGNORECASE)


class GymnasiumEnvironment(GameEnvironment):
    """A Gymnasium environment, one move per turn. The move is a word or a number, alone or declared as the answer.

    The environment runs in a process of its own. A turn that is not a move gets a message and changes nothing. FrozenLake gets a new
    map for each task and no slipping, unless `kwargs` says otherwise.

    >>> import rlvr
    >>> env = rlvr.make_env("gymnasium", id="Taxi")  # doctest: +SKIP
    >>> env.oracle_turns(env.task("train", 0))  # doctest: +SKIP
    ['north', 'north', 'west', 'north', 'north', 'west', 'pickup', 'south', ..., 'dropoff']
    """

    choice = "id"
    """Name of the setting whose value is a name of the catalog."""
    max_prompt_tokens = 1024

    def __init__(
        self,
        *,
        id: str = "FrozenLake",
        kwargs: Mapping[str, Any] | None = None,
        max_turns: int | None = None,
        success_threshold: float | None = None,
        scale: Sequence[float] | None = None,
        seed: int = 0,
        instruction: str = "",
    ) -> None:
        """Choose the environment and how it is scored.

        Args:
            id: its Gymnasium id; without a version, the newest one that is installed. `package:Name-v0` imports the package first.
            kwargs: its settings, such as {"is_slippery": true}.
            max_turns: the most moves.
            success_threshold: the smallest last reward that wins: the score is 1 or 0. By default that of a known environment.
            scale: [low, high]: the sum of the rewards is mapped to 0 ... 1 instead; by default [0, 1].
            seed: another seed gives different tasks.
            instruction: a system message.
        """
        super().__init__()
        if not isinstance(id, str) or not id:
            raise ConfigError(f"id is {id!r}; write a Gymnasium id such as FrozenLake")
        if success_threshold is not None and scale is not None:
            raise ConfigError("success_threshold and scale are both set; a game is scored by one of them")
        if scale is not None and (len(scale) != 2 or not scale[0] < scale[1]):
            raise ConfigError(f"scale is {scale!r}; write [low, high], such as [-1, 1]")
        known = KNOWN_ENVS.get(id.rpartition(":")[2].split("-")[0], {})
        most = {} if success_threshold is not None or scale is not None or "won" not in known else {"most": known.get("most", known["won"])}
        if success_threshold is None and scale is None:
            success_threshold = known.get("won")
        self.id, self.seed, self.instruction, self.id_prefix = id, seed, instruction, f"gymnasium/{id}"
        self.instance_settings = {"id": id, "kwargs": dict(kwargs or {})}
        self.reference = {"won": success_threshold, **most} if success_threshold is not None else {"scale": list(scale or (0.0, 1.0))}
        self.max_turns = known.get("turns", 32) if max_turns is None else max_turns
        if not isinstance(self.max_turns, int) or self.max_turns < 1:
            raise ConfigError(f"max_turns is {max_turns!r}; at least 1 move must be allowed")
        self.max_new_tokens = 12 * self.max_turns
        self.max_prompt_tokens += len(instruction.encode())  # the instruction needs at most one token for each byte
        self.splits_by_first_text = not known.get("unseen", False)
        if success_threshold is None and scale is None and not known:
            self.warnings = (
                *self.warnings,
                f"the score of {id} is the sum of its rewards, and a game whose sum is below 0 or above 1 gets none; set scale=[low, high], "
                "or success_threshold for the last reward that wins",
            )
        if known.get("single"):
            self.splits = ("train",)
        self.host = ForeignHost(
            "rlvr.envs.external._gymnasium_worker:GymnasiumInstance",
            extra="minigrid" if id.startswith("MiniGrid") else "gymnasium",
            call_timeout_s=10.0,
        )
        self._moves: list[str] | None = None

    @classmethod
    def list_support_status(cls) -> list[dict[str, str]]:
        """List the examined environments. Others work too if their actions are few and their observations small."""
        return [{"name": name, "offered": "yes", "why": KNOWN_ENVS[name.split("-")[0]]["about"]} for name in CATALOG_IDS]

    def num_tasks(self, split: str) -> int | None:
        """Return 1 if the environment has a single initial state, else None."""
        return 1 if len(self.splits) == 1 else None

    def parse_move(self, text: str) -> str | None:
        """Parse the word of a move; None if there is none."""
        found = extract_answer(text)
        form = MOVE_PATTERN.fullmatch((found.text if found.text is not None else text).strip().strip("*_`"))
        said = form[1].lower() if form else ""
        return said if said in self.list_moves() else None

    def format_no_move_reply(self) -> str:
        """Return a message that lists the moves."""
        *others, last = self.list_moves()
        return f"That is no move. Say one move: {', '.join(others)} or {last}."

    def list_moves(self) -> list[str]:
        """Return the moves of the environment, which are cached."""
        if self._moves is None:
            self._moves = list(self.call_on_temporary_instance("list_action_words"))
        return self._moves

    def list_legal_turns(self, task: Task, completions: Sequence[str]) -> list[str]:
        """Return the moves; all of them are legal in every state."""
        return self.list_moves()

    def oracle_turns(self, task: Task) -> list[str] | None:
        """Return the shortest way to the goal if the environment has a deterministic transition table, else None."""
        found = self.call_on_temporary_instance("find_winning_moves", seed=task.reference["seed"])
        return list(found) if found and len(found) <= self.max_turns else None

    def gold(self, task: Task) -> str | None:
        """Return the first move of the oracle turns."""
        script = self.oracle_turns(task)
        return script[0] if script else None


make = GymnasiumEnvironment
