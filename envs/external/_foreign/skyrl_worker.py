"""Worker class of `skyrl_gym`: one row of a data set in one environment of the package."""

from __future__ import annotations

import copy
import importlib
import json
from collections.abc import Iterator
from itertools import islice
from typing import Any

from rlvr.envs.external._foreign_worker import find_version


class SkyRLInstance:
    """Worker class of `skyrl_gym`: the rows of a data file by number; each is played in a new environment of skyrl-gym."""

    def __init__(self, *, id: str, path: str, config: dict[str, Any], imports: str) -> None:
        self.gym = importlib.import_module("skyrl_gym")
        if imports:
            importlib.import_module(imports)
        self.id, self.path = id, path
        self.config = importlib.import_module("omegaconf").OmegaConf.create(config)

    @staticmethod
    def import_and_describe_package() -> Any:
        """Import the package and return its version."""
        return {"version": find_version("skyrl-gym", importlib.import_module("skyrl_gym"))}

    def list_questions(self, limit: int) -> list[str]:
        """Return the last message of each prompt."""
        return [str(json.loads(line)["prompt"][-1]["content"]) for line in islice(self._iter_lines(), limit)]

    def get_prompt_messages(self, number: int) -> list[dict[str, str]]:
        """Return the prompt that the environment makes from the row."""
        self._start(number)
        return [{"role": one["role"], "content": one["content"]} for one in self.messages]

    def find_gold_answer(self, number: int) -> str | None:
        """Return the gold answer if the row has one where the package expects it; else None."""
        row = self._read_row(number)
        found = {**(row.get("reward_model") or {}), **(row.get("reward_spec") or {})}.get("ground_truth")
        return found if isinstance(found, str) else None

    def reset(self, seed: int) -> str:
        """Create an environment for the row of this number; return its question."""
        self._start(seed)
        return str(self.messages[-1]["content"])

    def step(self, move: str) -> dict[str, Any]:
        """Take one step; return the text of the new messages and the reward of the turn."""
        found = self.env.step(move)
        over, reward = found["done"], found["reward"]
        if not isinstance(over, bool):
            raise TypeError(f"done is {over!r}; it must be true or false")
        text = "\n".join(str(one["content"]) for one in found["observations"])
        return {"text": "" if over else text, "rewards": [_to_plain_number(reward)], "over": over}

    def _start(self, number: int) -> None:
        row = self._read_row(number)
        self.env = self.gym.make(self.id, env_config=self.config, extras=row)
        self.messages, _ = self.env.init(copy.deepcopy(row["prompt"]))

    def _read_row(self, number: int) -> dict[str, Any]:
        row: dict[str, Any] = json.loads(next(islice(self._iter_lines(), number, None)))
        return row

    def _iter_lines(self) -> Iterator[str]:
        """Yield the non-empty lines of the file lazily."""
        with open(self.path, encoding="utf-8") as file:
            yield from (line for line in file if line.strip())


def _to_plain_number(reward: Any) -> Any:
    """Convert a number, including a NumPy one, to a plain number; anything else to its repr, which is rejected later."""
    if hasattr(reward, "item"):
        reward = reward.item()
    return reward if isinstance(reward, int | float) else json.loads(json.dumps(repr(reward)))
