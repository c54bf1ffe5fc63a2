"""Text adventures that TextWorld generates from a seed: rooms, objects, a goal, and commands in words."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from rlvr.envs.external._foreign_host import ForeignHost
from rlvr.envs.external._game_env import GameEnvironment
from rlvr.errors import ConfigError, format_suggestion
from rlvr.extraction import extract_answer
from rlvr.task import Task

VERSION = "1.7.0"
DEFAULT_OPTIONS: Mapping[str, int] = {"nb_rooms": 3, "nb_objects": 4, "quest_length": 3}
UNSUPPORTED: Mapping[str, str] = {
    "the challenges (coin_collector, cooking, treasure_hunter)": "they take options of their own; more rooms are much the same",
    "Jericho games": "their files are under licenses of their own",
}
COMMAND_PATTERN = re.compile(r"(?:(?:command|action)\s*:\s*|>\s*)?([a-z][a-z0-9 '-]{0,80})[.!]?", re.IGNORECASE)


class TextWorld(GameEnvironment):
    """A text adventure, one command per turn. The score is 1 if the goal is reached, else 0.

    The command is alone on the last line of a turn, or is declared as the answer. Games are generated and run in a process of their own;
    each is deterministic, given the task's seed.

    >>> import rlvr
    >>> env = rlvr.make_env("textworld", options={"quest_length": 2})  # doctest: +SKIP
    >>> env.oracle_turns(env.task("train", 0))  # doctest: +SKIP
    ['open chest', 'take coin from chest']
    """

    max_prompt_tokens = 8192
    harmless_moves = ("look", "inventory")

    def __init__(
        self,
        *,
        options: Mapping[str, Any] | None = None,
        max_turns: int | None = None,
        python: str = "",
        seed: int = 0,
        instruction: str = "",
    ) -> None:
        """Choose the adventures.

        Args:
            options: nb_rooms, nb_objects and quest_length, whole numbers above 0.
            max_turns: the most commands.
            python: the interpreter of an environment that has textworld; empty: this one.
            seed: another seed gives different adventures.
            instruction: a system message.
        """
        super().__init__()
        options = {**DEFAULT_OPTIONS, **(options or {})}
        for name, value in options.items():
            if name not in DEFAULT_OPTIONS:
                raise ConfigError(f"options has {name!r}; {format_suggestion(str(name), DEFAULT_OPTIONS)}")
            if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= 50:
                raise ConfigError(f"options {name} is {value!r}; a whole number from 1 to 50 is needed")
        self.max_turns = 24 if max_turns is None else max_turns
        if isinstance(self.max_turns, bool) or not isinstance(self.max_turns, int) or self.max_turns < 1:
            raise ConfigError(f"max_turns is {max_turns!r}; at least 1 command must be allowed")
        self.seed, self.instruction, self.id_prefix = seed, instruction, "textworld"
        self.instance_settings = {"options": options}
        self.reference = {"won": 1.0, "most": 1.0}
        self.max_new_tokens = 32 * self.max_turns
        self.max_prompt_tokens += len(instruction.encode())
        self.host = ForeignHost(
            "rlvr.envs.external._foreign.textworld_worker:TextWorldInstance", extra="textworld", call_timeout_s=60.0, python=python
        )

    @classmethod
    def list_support_status(cls) -> list[dict[str, str]]:
        """List what is supported and what is not, and why."""
        made = {"name": "adventures", "offered": "yes", "why": "a new house for each task; options nb_rooms, nb_objects, quest_length"}
        return [made, *({"name": name, "offered": "no", "why": why} for name, why in UNSUPPORTED.items())]

    def prepare(self) -> None:
        """Start the process, and check that the tested version is installed."""
        about = self.host.ensure_started()
        if about["version"] != VERSION:
            raise ConfigError(f"textworld {about['version']} is installed, {VERSION} is needed: pip install textworld=={VERSION}")

    def parse_move(self, text: str) -> str | None:
        """Parse the command that is declared, or else the last line; None if there is none."""
        found = extract_answer(text)
        line = found.text if found.text is not None else text.rstrip().rpartition("\n")[2]
        form = COMMAND_PATTERN.fullmatch(line.strip().strip("*_`").strip())
        return form[1].lower().strip() if form else None

    def format_no_move_reply(self) -> str:
        """Return a message that says how to write a command."""
        return "That is no command. Write one command, such as look, alone on the last line."

    def oracle_turns(self, task: Task) -> list[str] | None:
        """Return the commands that win, if there are at most `max_turns`; else None."""
        found = self.call_on_temporary_instance("find_winning_moves", seed=task.reference["seed"])
        return list(found) if found and len(found) <= self.max_turns else None

    def gold(self, task: Task) -> str | None:
        """Return the first command of the oracle turns."""
        script = self.oracle_turns(task)
        return script[0] if script else None


make = TextWorld
