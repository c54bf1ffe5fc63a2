"""Build the plugins that another plugin needs: one of each kind, or a list named by the plural of the kind."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rlvr.contracts import Plugin
from rlvr.errors import ConfigError

LIST_KINDS: Mapping[str, str] = {"tools": "tool", "verifiers": "verifier"}
"""Names in `needs` that take a list, and the kind of the list items."""
WITH_TOOLS_SETTINGS = ("tools", "sandbox", "max_turns", "max_new_tokens", "dialect")
"""The settings of `build_with_tools_settings` other than the environment."""


def build_dependencies(
    needs: Mapping[str, Any], settings: dict[str, Any], make: Callable[[str, Any], Any], built_plugins: list[Any]
) -> None:
    """Replace the plugin names in `settings`, and the defaults of `needs`, by plugins. New plugins are also appended to `built_plugins`."""

    def one(kind: str, wanted: Any) -> Any:
        made = make(kind, wanted)
        if made is not wanted:
            built_plugins.append(made)
        return made

    for name, default in needs.items():
        wanted = settings.get(name, default)
        if name in LIST_KINDS:
            settings[name] = tuple(one(LIST_KINDS[name], member) for member in _check_list(name, wanted))
        elif name == "sandbox" and "tools" in needs and not any(tool.needs_sandbox for tool in settings.get("tools", ())):
            settings[name] = wanted if isinstance(wanted, Plugin) else None
        elif name in settings or wanted:  # a default of "" means required
            settings[name] = one(name, wanted)


def build_with_tools_settings(
    name: str | Callable[..., Any], known_settings: Mapping[str, Any], settings: Mapping[str, Any]
) -> dict[str, Any] | None:
    """Return the settings of the environment `with_tools` around this one, if tools are given to an environment that does not support
    them; else None.

    >>> build_with_tools_settings("gsm8k", {"path": None}, {"path": "data", "tools": ["python"], "max_turns": 6})
    {'tools': ['python'], 'max_turns': 6, 'env': {'name': 'gsm8k', 'path': 'data'}}
    """
    if "tools" not in settings or "tools" in known_settings:
        return None
    own = {key: value for key, value in settings.items() if key in WITH_TOOLS_SETTINGS and key not in known_settings}
    return {**own, "env": {"name": name, **{key: value for key, value in settings.items() if key not in own}}}


def build_with_context_settings(
    name: str | Callable[..., Any], known_settings: Mapping[str, Any], settings: Mapping[str, Any]
) -> dict[str, Any] | None:
    """Return the settings of the environment `with_context` around this one, if it is given `context`; else None.

    >>> build_with_context_settings("shell", {"kinds": None}, {"kinds": ["once"], "context": {"policy": "summarise"}})
    {'policy': 'summarise', 'env': {'name': 'shell', 'kinds': ['once']}}
    """
    if "context" not in settings or "context" in known_settings:
        return None
    context = settings["context"]
    if not isinstance(context, Mapping) or "env" in context:
        raise ConfigError(f"context is {context!r:.80}; it must be a mapping, such as {{policy: summarise, at: 0.8}}")
    return {**context, "env": {"name": name, **{key: value for key, value in settings.items() if key != "context"}}}


def wrap_verifier_with_audit(name: str, known_settings: Mapping[str, Any], needs: Mapping[str, Any], settings: dict[str, Any]) -> None:
    """Replace an environment's setting `audit_verifier: {verifier: NAME, fraction: 0.05}`, in place, by the verifier `with_audit`
    around its own verifier.

    >>> given = {"audit_verifier": {"verifier": "symbolic"}}
    >>> wrap_verifier_with_audit("gsm8k", {"verifier": None}, {"verifier": "numeric"}, given); given["verifier"]
    {'name': 'with_audit', 'verifier': 'numeric', 'audit_with': 'symbolic'}
    """
    if "audit_verifier" not in settings or "audit_verifier" in known_settings:
        return
    section = settings.pop("audit_verifier")
    if not isinstance(section, Mapping) or "verifier" not in section or section.keys() - {"verifier", "fraction"}:
        raise ConfigError(f"audit_verifier is {section!r:.120}; write audit_verifier: {{verifier: NAME, fraction: 0.05}}")
    if "verifier" not in known_settings:
        raise ConfigError(f"env {name!r} has no verifier of its own to set; write `audit_verifier` on the environments in it")
    fraction = {"fraction": section["fraction"]} if "fraction" in section else {}
    settings["verifier"] = {
        "name": "with_audit",
        "verifier": settings.get("verifier", needs.get("verifier")),
        "audit_with": section["verifier"],
        **fraction,
    }


def _check_list(name: str, wanted: Any) -> Sequence[Any]:
    if isinstance(wanted, str | Mapping) or not isinstance(wanted, Sequence):
        raise ConfigError(f"{name} is {wanted!r:.200}; it must be a list, such as [{wanted if isinstance(wanted, str) else '...'}]")
    return wanted
