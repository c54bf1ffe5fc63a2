"""Check a plugin against its contract. Used by `rlvr check`, by the tests of plugin authors, and by the tests of rlvr.

>>> from rlvr.conformance import check_verifier, list_failures
>>> list_failures(check_verifier("numeric"))
[]
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rlvr.conformance.check_runner import CheckResult, run_checks
from rlvr.conformance.verifierkit import iter_verifier_checks
from rlvr.errors import ConfigError
from rlvr.registry.plugins import get_kind


def check_plugin(kind: str, name: str, **settings: Any) -> list[CheckResult]:
    """Run the checks of a kind on one plugin of that kind."""
    return list(iter_checks(kind, name, settings))


def check_env(name: str, **settings: Any) -> list[CheckResult]:
    """Check an environment against its contract: its tasks, its rewards, its use as a Gymnasium environment."""
    return check_plugin("env", name, **settings)


def check_verifier(name: str, **settings: Any) -> list[CheckResult]:
    """Check a verifier against its contract: right answers score 1, all others score 0, and no text breaks it."""
    return check_plugin("verifier", name, **settings)


def check_tool(name: str, **settings: Any) -> list[CheckResult]:
    """Check a tool against its contract: its schemas and examples; sessions share nothing; no argument breaks it."""
    return check_plugin("tool", name, **settings)


def check_algorithm(name: str, **settings: Any) -> list[CheckResult]:
    """Check an algorithm against its contract: signs, masks, denominators, a bandit, and resuming from a state."""
    return check_plugin("algorithm", name, **settings)


def check_sampler(name: str, **settings: Any) -> list[CheckResult]:
    """Check a sampler against its contract: limits, stop ids, seeds, log-probabilities, and new weights."""
    return check_plugin("sampler", name, **settings)


def iter_checks(kind: str, name: str, settings: dict[str, Any]) -> Iterator[CheckResult]:
    """Yield the result of each check as soon as it is done, so that progress can be shown."""
    if kind == "agent":  # no plugin kind: a program that the environment `agent` starts
        from rlvr.conformance.agentkit import iter_agent_checks

        return run_checks(iter_agent_checks(name, settings))
    wanted = get_kind(kind).name
    if not isinstance(name, str):
        made = getattr(name, "__name__", type(name).__name__)
        raise ConfigError(f"the {wanted} to check is the object {made}; give its name, or its file as in 'my_plugins.py:{made}'")
    if wanted == "env":
        from rlvr.conformance.envkit import iter_env_checks  # Gymnasium comes with it

        return run_checks(iter_env_checks(name, settings))
    if wanted == "verifier":
        return run_checks(iter_verifier_checks(name, settings))
    if wanted == "sandbox":
        from rlvr.conformance.sandbox_kit import iter_sandbox_checks

        return run_checks(iter_sandbox_checks(name, settings))
    if wanted == "tool":
        from rlvr.conformance.toolkit import iter_tool_checks

        return run_checks(iter_tool_checks(name, settings))
    if wanted == "algorithm":
        from rlvr.conformance.algorithmkit import iter_algorithm_checks

        return run_checks(iter_algorithm_checks(name, settings))
    from rlvr.conformance.samplerkit import iter_sampler_checks  # torch comes with it

    return run_checks(iter_sampler_checks(name, settings))
