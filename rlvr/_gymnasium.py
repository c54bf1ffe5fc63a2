"""Tells Gymnasium about our environments the moment both are imported, in either order.

Importing Gymnasium (and numpy with it) takes most of the time that `rlvr --help` may take, so `import rlvr` does not do
it; but `gymnasium.make("rlvr:rlvr/Arithmetic-v0")` must work whichever of the two was imported first.
"""

from __future__ import annotations

import importlib.machinery
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from types import ModuleType


def announce() -> None:
    """Register every environment now if Gymnasium is here, and otherwise as soon as it comes."""
    if "gymnasium" in sys.modules and hasattr(sys.modules["gymnasium"], "register"):
        _register()
    elif not any(isinstance(finder, _Watcher) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Watcher())


def _register() -> None:
    from rlvr.env import register_all

    register_all()


class _Watcher(MetaPathFinder):
    """Waits for `import gymnasium`, lets it happen as always, registers, and is gone."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != "gymnasium":
            return None
        sys.meta_path.remove(self)
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _ThenRegister(spec.loader)
        return spec


class _ThenRegister(Loader):
    def __init__(self, loader: Loader) -> None:
        self.loader = loader

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self.loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        if module.__spec__ is not None:
            module.__spec__.loader = self.loader
        self.loader.exec_module(module)
        _register()
