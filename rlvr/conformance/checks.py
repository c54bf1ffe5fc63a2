"""Check a plugin against its contract. Used by `rlvr check`, by the tests of plugin authors, and by the tests of rlvr.

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
    """Run the checks of a kind on one plugin of that kind."""
    return list(stream(kind, name, settings))


def check_env(name: str, **settings: Any) -> list[Check]:
    """Check an environment against its contract: its tasks, its rewards, its use as a Gymnasium environment."""
    return check_plugin("env", name, **settings)


def check_verifier(name: str, **settings: Any) -> list[Check]:
    """Check a verifier against its contract: right answers score 1, all others score 0, and no text breaks it."""
    return check_plugin("verifier", name, **settings)


def check_tool(name: str, **settings: Any) -> list[Check]:
    """Check a tool against its contract: its schemas and examples; sessions share nothing; no argument breaks it."""
    return check_plugin("tool", name, **settings)


def check_algorithm(name: str, **settings: Any) -> list[Check]:
    """Check an algorithm against its contract: signs, masks, denominators, a bandit, and resuming from a state."""
    return check_plugin("algorithm", name, **settings)


def stream(kind: str, name: str, settings: dict[str, Any]) -> Iterator[Check]:
    """Yield the result of each check as soon as it is done, so that progress can be shown."""
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
    if wanted == "algorithm":
        from rlvr.conformance.algorithmkit import algorithm_checks

        return run(algorithm_checks(name, settings))
    raise ConfigError(f"there are no checks for a {wanted}; {suggest(wanted, ['env', 'verifier', 'sandbox', 'tool', 'algorithm'])}")
