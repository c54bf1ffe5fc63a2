"""What every plugin shares."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar


class Plugin:
    """What every plugin shares: what it stands on, and how it is put away."""

    needs: ClassVar[Mapping[str, str]] = {}
    """Constructor arguments that are plugins themselves, with the default name of each: {"verifier": "symbolic"}."""

    def ready(self) -> None:
        """Raise an RlvrError when something it stands on does not answer here. Asked once, before long work begins."""
        for plugin in (getattr(self, name, None) for name in self.needs):
            if isinstance(plugin, Plugin):
                plugin.ready()

    def close(self) -> None:
        """Give back processes, containers and files. Called any number of times."""

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
