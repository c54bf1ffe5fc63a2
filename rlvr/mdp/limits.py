"""Validation of the sizes and limits that an environment declares."""

from __future__ import annotations

from numbers import Integral

from rlvr.contracts import Environment
from rlvr.contracts.tool import Tool
from rlvr.errors import ConfigError, EnvError


def get_num_tasks(environment: Environment, split: str) -> int | None:
    """Return the number of tasks of a split, or None if it is endless; raise EnvError for an invalid value."""
    size = environment.num_tasks(split)
    if size is not None and (isinstance(size, bool) or not isinstance(size, Integral) or size < 0):
        raise EnvError(
            f"{type(environment).__name__}.num_tasks({split!r}) is {size!r}; it must be a whole number from 0, or None if it is endless"
        )
    return None if size is None else int(size)


def validate_environment_attributes(environment: Environment) -> None:
    """Raise ConfigError if an environment's splits, limits or tools are invalid."""
    kind = type(environment).__name__
    if isinstance(environment.splits, str) or not environment.splits:
        raise ConfigError(f"{kind}.splits is {environment.splits!r}; it must be a tuple of names, such as ('train', 'test')")
    for name in ("max_turns", "max_prompt_tokens", "max_new_tokens"):
        value = getattr(environment, name)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ConfigError(f"{kind}.{name} is {value!r}; it must be a whole number of at least 1")
    for tool in environment.tools:
        if not isinstance(tool, Tool):
            raise ConfigError(f"{kind}.tools has {tool!r:.80}; it must be a sequence of rlvr.Tool")
        if tool.needs_sandbox and environment.sandbox is None:
            raise ConfigError(
                f"{kind} has the tool {type(tool).__name__}, which needs a sandbox, and no sandbox; set one (sandbox: docker)"
            )
    if environment.tools and environment.max_turns < 2:
        raise ConfigError(f"{kind}.max_turns is 1, and a tool call takes a turn; set it to 2 or more")
