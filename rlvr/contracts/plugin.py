"""The base class of all plugins."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from rlvr.errors import ConfigError
from rlvr.hints import Hinted

CONTRACT_VERSION = 1
"""The version of the contracts in `rlvr.contracts`; raised when a plugin that was written for them would no longer work."""
F = TypeVar("F", bound=Callable[..., Any])


def mark_default_implementation(method: F) -> F:
    """Mark a contract's method as its default, which a plugin may leave as it is; `is_default_implementation` tells later whether the
    plugin overrode it.
    """
    vars(method)["is_default_implementation"] = True
    return method


def is_default_implementation(method: Callable[..., Any]) -> bool:
    """Return whether a method is the contract's own, and not the plugin's.

    >>> is_default_implementation(mark_default_implementation(lambda: 0)), is_default_implementation(lambda: 0)
    (True, False)
    """
    return getattr(method, "is_default_implementation", False) is True


def reject_unused_settings(plugin: type, given: Mapping[str, Any], reason: str) -> None:
    """Raise ConfigError if settings that have no effect differ from their defaults: nothing that a user sets is ignored silently.

    Args:
        plugin: the class, whose constructor has the defaults.
        given: the values of the settings that have no effect; other names, and settings without a default, are not looked at.
        reason: goes on after "have no effect": without what, and what to do.
    """
    defaults = {name: spec.default for name, spec in inspect.signature(plugin).parameters.items() if spec.default is not spec.empty}
    plain = {name: tuple(value) if isinstance(value, list) else value for name, value in given.items()}
    changed = [name for name, default in defaults.items() if name in plain and plain[name] != default]
    if changed:
        named = " and ".join(filter(None, (", ".join(changed[:-1]), changed[-1])))
        raise ConfigError(f"{named} {'has' if len(changed) == 1 else 'have'} no effect {reason}")


class Plugin(Hinted):
    """The base class of all plugins. Declares the plugins that it needs, its availability check and its cleanup."""

    if not TYPE_CHECKING:

        def __new__(cls, *args: Any, **kwargs: Any) -> Any:
            """Refuse to build a contract itself: `rlvr.Sandbox("docker")` must say how a sandbox is built."""
            if cls.__module__.startswith("rlvr.contracts.") and (args or kwargs):  # without arguments Python names what is abstract
                maker = "make_env" if cls.__name__ == "Environment" else f"make_{cls.__name__.lower()}"
                raise TypeError(f"rlvr.{cls.__name__} is a base class; write rlvr.{maker}(name, **settings), or subclass it")
            return super().__new__(cls)

    contract_version: ClassVar[int | None] = None
    """The version of the contracts that the plugin is written for, `rlvr.contracts.plugin.CONTRACT_VERSION` of that time; None: not stated.
    A plugin that is written for another version is refused, with the reason, instead of failing somewhere.
    """
    needs: ClassVar[Mapping[str, str | Sequence[str]]] = {}
    """Constructor arguments that are plugins themselves, with the default name of each: {"verifier": "symbolic"}.

    A list of plugins is named by the plural of its kind: {"tools": ["calculator"]}. With `tools`, a `sandbox` is built only if one of the
    tools needs it; otherwise it is None. A default of "" means that the argument is required.
    """

    setting_hints: ClassVar[Mapping[str, str]] = {}
    """What to write here for settings that the plugin does not have and users expect: {"timeout": "write limits={'wall_s': 5}"}."""

    def check_ready(self) -> None:
        """Raise an RlvrError if a dependency is not available. Called once, before long work begins."""
        for needed in (getattr(self, name, None) for name in self.needs):
            for plugin in needed if isinstance(needed, list | tuple) else [needed]:
                if isinstance(plugin, Plugin):
                    plugin.check_ready()

    def close(self) -> None:
        """Release processes, containers and files. May be called more than once."""

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
