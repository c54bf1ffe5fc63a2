"""The base class of sandbox environments with several kinds of generated tasks, whose final files are verified."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Sequence

from rlvr.contracts import Environment, Sandbox, Verifier
from rlvr.contracts.tool import Tool
from rlvr.errors import ConfigError, format_suggestion

NAME_STEMS = ("amber", "birch", "cedar", "delta", "ember", "flint", "grove", "heron", "iris", "jade", "kite", "lotus", "maple", "north")
"""Names of folders and packages; each gets a number appended."""


class SandboxEnvironment(Environment):
    """Base class of environments with several kinds of generated tasks in a sandbox."""

    all_kinds: Sequence[str] = ()
    """All kinds of tasks of the environment."""

    def __init__(
        self,
        *,
        verifier: Verifier,
        tools: Sequence[Tool],
        sandbox: Sandbox | None = None,
        kinds: Sequence[str] | None = None,
        max_turns: int | None = None,
        seed: int = 0,
        instruction: str = "",
    ) -> None:
        """Set the kinds of tasks, the tools and the limits.

        Args:
            verifier: verifies the final files.
            tools: the tools of the policy; at least one of them must run in the sandbox.
            sandbox: opens a session for each conversation.
            kinds: the kinds of tasks, drawn with equal probability; None: all of them.
            max_turns: the most turns of the policy, turns with tool calls included; None: the default of the environment.
            seed: another seed gives different tasks.
            instruction: a system message, for models that were not trained on these prompts.
        """
        listed = list(self.all_kinds) if kinds is None else [] if isinstance(kinds, str) else list(kinds)
        if not listed or any(kind not in self.all_kinds for kind in listed):
            wrong = str(next((kind for kind in listed if kind not in self.all_kinds), kinds))
            raise ConfigError(f"kinds has {wrong!r}; it must be a list of kinds: {format_suggestion(wrong, list(self.all_kinds))}")
        max_turns = self.max_turns if max_turns is None else max_turns
        if isinstance(max_turns, bool) or not isinstance(max_turns, int) or max_turns < 2:
            raise ConfigError(f"max_turns is {max_turns!r}; at least 2 are needed, a call and the answer")
        self.verifier, self.tools, self.sandbox, self.kinds = verifier, tuple(tools), sandbox, tuple(listed)
        self.max_turns, self.seed, self.instruction = max_turns, seed, instruction
        self.max_prompt_tokens += len(instruction.encode())


def draw_name_for_split(rng: random.Random, split: str, draw_name: Callable[[], str]) -> str:
    """Draw names until one belongs to the split: one name in five is held out, so that no question is in two splits.

    >>> rng = random.Random(0)
    >>> draw_name_for_split(rng, "train", lambda: str(rng.randrange(100)))
    '5'
    """
    while True:
        found = draw_name()
        held_out = hashlib.blake2b(found.encode(), digest_size=4).digest()[0] % 5 == 0
        if split == ("test" if held_out else "train"):
            return found
