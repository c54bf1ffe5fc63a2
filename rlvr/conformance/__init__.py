"""Conformance checks for plugins, run by `rlvr check`: environments, verifiers, sandboxes, samplers, tools and algorithms."""

from rlvr.conformance.check_runner import CheckResult, list_failures
from rlvr.conformance.checks import check_algorithm, check_env, check_plugin, check_sampler, check_tool, check_verifier

__all__ = ["CheckResult", "check_algorithm", "check_env", "check_plugin", "check_sampler", "check_tool", "check_verifier", "list_failures"]
