"""The conformance kits: does a plugin keep its contract? Run by `rlvr check`, by plugin authors' tests, and by our own.

>>> from rlvr.conformance import check_verifier, failures
>>> failures(check_verifier("numeric"))
[]
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rlvr.conformance.steps import Check, run
from rlvr.conformance.verifierkit import verifier_checks
from rlvr.errors import ConfigError, suggest
from rlvr.plugins.registry import kind_of


def check_plugin(kind: str, name: str, **settings: Any) -> list[Check]:
    """The kit of a kind, on one plugin of it."""
    return list(stream(kind, name, settings))


def check_env(name: str, **settings: Any) -> list[Check]:
    """Hold an environment to its contract: its tasks, its rewards, its life as a Gymnasium environment."""
    return check_plugin("env", name, **settings)


def check_verifier(name: str, **settings: Any) -> list[Check]:
    """Hold a verifier to its contract: right answers pay in full, nothing else pays, and no text breaks it."""
    return check_plugin("verifier", name, **settings)


def check_tool(name: str, **settings: Any) -> list[Check]:
    """Hold a tool to its contract: its schemas, its examples, sessions apart, and no argument that breaks it."""
    return check_plugin("tool", name, **settings)


def stream(kind: str, name: str, settings: dict[str, Any]) -> Iterator[Check]:
    """The checks one by one, as they are made, for those who watch."""
    wanted = kind_of(kind).name
    if wanted == "env":
        from rlvr.conformance.envkit import env_checks  # Gymnasium comes with it

        return run(env_checks(name, settings))
    if wanted == "verifier":
        return run(verifier_checks(name, settings))
    if wanted == "sandbox":
        from rlvr.conformance.checks_sandbox import sandbox_checks

        return run(sandbox_checks(name, settings))
    if wanted == "tool":
        from rlvr.conformance.toolkit import tool_checks

        return run(tool_checks(name, settings))
    raise ConfigError(f"there is no kit for a {wanted}; {suggest(wanted, ['env', 'verifier', 'sandbox', 'tool'])}")
