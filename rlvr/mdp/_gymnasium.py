"""Register the rlvr environments with Gymnasium once both packages are imported, in either order.

`import rlvr` does not import Gymnasium, because Gymnasium and numpy would dominate the time of `rlvr --help`. But
`gymnasium.make("rlvr:rlvr/Arithmetic-v0")` must work whichever of the two was imported first. For the same reason the registry of
plugins is imported when it is used.
"""

from __future__ import annotations

import importlib.machinery
import re
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rlvr.registry.plugins import PluginEntry

GYM_NAME_PATTERN = re.compile(r"[A-Za-z0-9_-]+")
"""The characters that a Gymnasium id may contain."""


def register_when_imported() -> None:
    """Register all environments now if Gymnasium is imported, otherwise when it is imported."""
    if "gymnasium" in sys.modules and hasattr(sys.modules["gymnasium"], "register"):
        register_environments()
    elif not any(isinstance(finder, _GymnasiumImportFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _GymnasiumImportFinder())


def format_gym_id(name: str) -> str:
    """Format the Gymnasium id of an environment.

    >>> format_gym_id("guess_number")
    'rlvr/GuessNumber-v0'
    """
    return f"rlvr/{''.join(part.capitalize() for part in name.replace('-', '_').split('_'))}-v0"


def register_environments() -> list[PluginEntry]:
    """Register all environments with Gymnasium from their metadata; imports neither plugins nor `rlvr.mdp.env`."""
    import gymnasium

    from rlvr.registry.plugins import list_entries

    found = []
    for entry in list_entries("env"):
        if entry.error or not GYM_NAME_PATTERN.fullmatch(entry.name):
            continue  # it cannot be made under this name; `rlvr list envs` says why
        found.append(entry)
        for name in (format_gym_id(entry.name), f"rlvr/{entry.name}-v0"):  # Gymnasium's form, and the name as it is everywhere else
            if name not in gymnasium.registry:
                gymnasium.register(
                    name,
                    entry_point="rlvr.mdp.env:make_token_env",
                    vector_entry_point="rlvr.mdp.vector:make_token_vector_env",
                    kwargs={"name": entry.name},
                )
    return found


class _GymnasiumImportFinder(MetaPathFinder):
    """An import hook that registers the environments after `import gymnasium`, and then removes itself."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != "gymnasium":
            return None
        for finder in sys.meta_path:  # find_spec may be called without importing Gymnasium, so the hook stays until it is imported
            spec = None if finder is self else finder.find_spec(fullname, path, target)
            if spec is not None and spec.loader is not None:
                spec.loader = _RegisteringLoader(spec.loader, self)
                return spec
        return None


class _RegisteringLoader(Loader):
    """A loader that registers the environments after it has executed the Gymnasium module."""

    def __init__(self, loader: Loader, watcher: _GymnasiumImportFinder) -> None:
        self.loader, self.finder = loader, watcher

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self.loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        module.__loader__ = self.loader
        if module.__spec__ is not None:
            module.__spec__.loader = self.loader
        self.loader.exec_module(module)
        if self.finder in sys.meta_path:
            sys.meta_path.remove(self.finder)
        register_environments()
