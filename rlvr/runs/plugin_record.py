"""Which plugins from outside of rlvr a run used: `plugins.json`, with the digest of each file and the version of each package.

The files are copied into the folder `plugins/` of the run, so that it can be read and repeated after they have changed or gone.
"""

from __future__ import annotations

import hashlib
import json
import logging
import shutil
from collections.abc import Iterable, Iterator, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rlvr.contracts.plugin import Plugin
from rlvr.plugin_files import COPIES_FOLDER
from rlvr.registry.plugins import PLUGIN_KINDS, get_user_plugin_file
from rlvr.registry.third_party import find_entry_points, get_package_name

RECORD_FILE = "plugins.json"
logger = logging.getLogger(__name__)


def record_plugins(folder: Path, plugins: Iterable[Any]) -> None:
    """Record these plugins and all that they hold: write `plugins.json` and copies of their files; nothing if all are rlvr's own."""
    used = list(_iter_definitions(plugins))
    files = sorted({file for definition in used if (file := get_user_plugin_file(definition)) is not None})
    packages = _find_packages({str(getattr(definition, "__module__", "")).partition(".")[0] for definition in used})
    if not files and not packages:
        return
    record: dict[str, Any] = {"files": [], "packages": packages}
    for file in files:
        digest = compute_file_digest(file)
        taken = {row["copy"] for row in record["files"]}
        copy = f"{COPIES_FOLDER}/{file.name}"
        copy = f"{COPIES_FOLDER}/{file.stem}-{digest[:8]}.py" if copy in taken else copy
        (folder / COPIES_FOLDER).mkdir(exist_ok=True)
        shutil.copyfile(file, folder / copy)
        record["files"].append({"path": str(file), "sha256": digest, "copy": copy})
    (folder / RECORD_FILE).write_text(json.dumps(record, indent=2, ensure_ascii=False) + "\n", "utf-8")


def find_plugin_changes(folder: Path) -> list[str]:
    """Say of each plugin that a run used whether it has changed or gone since, one sentence each."""
    path = folder / RECORD_FILE
    if not path.is_file():
        return []
    found = []
    try:
        record = json.loads(path.read_text("utf-8"))
        for row in record["files"]:
            file, copy = Path(row["path"]), folder / row["copy"]
            if not file.is_file():
                found.append(f"{file} is gone; its copy from when {folder} was written is {copy}")
            elif compute_file_digest(file) != row["sha256"]:
                found.append(f"{file} has changed since {folder} was written; the file as it was then is {copy}")
        for name, recorded in record["packages"].items():
            if (now := _get_version(name)) != recorded:
                found.append(f"the package {name} was {recorded} when {folder} was written, and is {now or 'not installed'} now")
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        return [f"{path} cannot be read ({type(error).__name__}: {error}), so changes of plugins are not noticed"]
    return found


def warn_about_plugin_changes(folder: Path) -> None:
    """Log a warning for each plugin that has changed or gone since a run was written."""
    for line in find_plugin_changes(folder):
        logger.warning("%s", line)


def compute_file_digest(path: Path) -> str:
    """Compute the SHA-256 of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _iter_definitions(plugins: Iterable[Any]) -> Iterator[Any]:
    """Yield the class or function of each plugin, and of the plugins and functions that it holds."""
    todo, seen = [], set[int]()
    for plugin in plugins:
        todo.append(plugin)
        todo.extend(getattr(plugin, "__dict__", {}).values())  # an algorithm holds its functions, and has no base class
    while todo:
        held = todo.pop()
        if id(held) in seen:
            continue
        seen.add(id(held))
        if isinstance(held, Mapping):
            todo.extend(held.values())
        elif isinstance(held, list | tuple | set | frozenset):
            todo.extend(held)
        elif isinstance(held, type) or hasattr(held, "__code__"):
            yield held
        elif isinstance(held, Plugin) or get_user_plugin_file(type(held)) is not None:
            yield from type(held).__mro__
            todo.extend(getattr(held, "__dict__", {}).values())


def _find_packages(modules: set[str]) -> dict[str, str]:
    """Return the version of each distribution whose entry points name one of these top-level modules."""
    points = [point for kind in PLUGIN_KINDS.values() for same in find_entry_points(kind.entry_point_group).values() for point in same]
    names = {get_package_name(point.dist) for point in points if point.value.split(":")[0].partition(".")[0].strip() in modules}
    return {name: found for name in sorted(names - {"rlvr", "?"}) if (found := _get_version(name))}


def _get_version(name: str) -> str:
    try:
        return version(name)
    except Exception:  # a package may be damaged or gone
        return ""
