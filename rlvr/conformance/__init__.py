"""The kits that plugin authors run: `rlvr check` for environments, verifiers and sandboxes."""

from rlvr.conformance.checks import check_env, check_plugin, check_verifier
from rlvr.conformance.steps import Check, failures

__all__ = ["Check", "check_env", "check_plugin", "check_verifier", "failures"]
