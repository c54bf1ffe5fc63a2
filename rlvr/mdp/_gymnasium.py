"""Register the rlvr environments with Gymnasium once both packages are imported, in either order.

`import rlvr` does not import Gymnasium, because Gymnasium and numpy would dominate the time of `rlvr --help`. But
`gymnasium.make("rlvr:rlvr/Arithmetic-v0")` must work whichever of the two was imported first.
"""

from __future__ import annotations

import importlib.machinery
import re
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from types import ModuleType

from rlvr.plugins.registry import Entry, entries

NAME = re.compile(r"[A-Za-z0-9_-]+")
"""The characters that a Gymnasium id may contain."""


def announce() -> None:
    """Register all environments now if Gymnasium is imported, otherwise when it is imported."""
    if "gymnasium" in sys.modules and hasattr(sys.modules["gymnasium"], "register"):
        register_all()
    elif not any(isinstance(finder, _Watcher) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Watcher())


def gym_id(name: str) -> str:
    """Format the Gymnasium id of an environment.

    >>> gym_id("guess_number")
    'rlvr/GuessNumber-v0'
    """
    return f"rlvr/{''.join(part.capitalize() for part in name.replace('-', '_').split('_'))}-v0"


def register_all() -> list[Entry]:
    """Register all environments with Gymnasium from their metadata; imports neither plugins nor `rlvr.mdp.env`."""
    import gymnasium

    found = []
    for entry in entries("env"):
        if entry.error or not NAME.fullmatch(entry.name):
            continue  # it cannot be made under this name; `rlvr list envs` says why
        found.append(entry)
        if gym_id(entry.name) not in gymnasium.registry:
            gymnasium.register(
                gym_id(entry.name),
                entry_point="rlvr.mdp.env:make_token_env",
                vector_entry_point="rlvr.mdp.vector:make_token_vector_env",
                kwargs={"name": entry.name},
            )
    return found


class _Watcher(MetaPathFinder):
    """An import hook that registers the environments after `import gymnasium`, and then removes itself."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != "gymnasium":
            return None
        for finder in sys.meta_path:  # find_spec may be called without importing Gymnasium, so the hook stays until it is imported
            spec = None if finder is self else finder.find_spec(fullname, path, target)
            if spec is not None and spec.loader is not None:
                spec.loader = _ThenRegister(spec.loader, self)
                return spec
        return None


class _ThenRegister(Loader):
    """A loader that registers the environments after it has executed the Gymnasium module."""

    def __init__(self, loader: Loader, watcher: _Watcher) -> None:
        self.loader, self.watcher = loader, watcher

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self.loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        module.__loader__ = self.loader
        if module.__spec__ is not None:
            module.__spec__.loader = self.loader
        self.loader.exec_module(module)
        if self.watcher in sys.meta_path:
            sys.meta_path.remove(self.watcher)
        register_all()
