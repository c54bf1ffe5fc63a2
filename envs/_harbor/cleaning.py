"""Remove from a fresh box what an answer left in the place of what judges: links to the tests, modules, plugins and settings of pytest.

Modules count where the tests may import them in place of their own or of the image's. A file that the image has in the same place is the
image's; what the task asks for by its name is an answer.

Runs in the box, before the tests are laid, with the python3 of the image: standard library only, and nothing newer than Python 3.7.
"""

from __future__ import annotations

import glob
import json
import os
import shutil
import sys
from typing import Any

BOX, SEED = "/tmp", "/opt/rlvr/seed"
JUDGING = (BOX + "/tests", BOX + "/solution", BOX + "/logs/verifier", "/proc", "/dev/fd")
DEVICES = ("/dev/stdin", "/dev/stdout", "/dev/stderr")
METADATA = (".dist-info", ".egg-info", ".egg")
"""Where Python looks for plugins: an entry point of pytest in the working folder would be loaded by `python -m pytest`."""
COMMON = ("benchmarks", "docs", "examples", "scripts", "src", "test", "tests", "tools")
"""Names that packages leave in the place of installed modules, and that answers have, too."""
INSTALLED = ("lib*/python3*/site-packages", "lib*/python3*/dist-packages")


def main(given: dict[str, Any]) -> None:
    """Clean what was left.

    `roots` are the folders of the answer; modules are imported from `imported`; `planted` are names of modules that no answer may have;
    `settings` are names of files that pytest reads; `asked` are the names that the task mentions; `paths` has the folders of commands.
    """
    roots, asked = given["roots"], set(given["asked"])
    for root in roots:
        for path in links(root):
            if not allowed(path, roots, asked):
                os.unlink(path)
    refused = set(given["planted"]) | (importable(given["paths"], roots) - asked)
    for here in given["imported"]:
        for name in sorted(os.listdir(here)) if os.path.isdir(here) else ():
            path = os.path.join(here, name)
            if module_of(path) in refused and not os.path.lexists(seeded(path)):
                remove(path)
            elif name.endswith(METADATA) and name.rpartition(".")[2] not in asked:
                restore(path)
    for root in roots:
        for folder, _, files in os.walk(root):
            for name in set(given["settings"]).intersection(files) - asked:
                restore(os.path.join(folder, name))


def links(root: str) -> list[str]:
    """All links in a folder; the folder itself may be one."""
    if os.path.islink(root):
        return [root]
    found = []
    for folder, folders, files in os.walk(root):
        found += [path for path in (os.path.join(folder, name) for name in folders + files) if os.path.islink(path)]
    return found


def allowed(path: str, roots: list[str], asked: set[str]) -> bool:
    """Whether a link leads to where answers are, or to the image, which no answer can change."""
    target = os.readlink(path)
    if os.path.islink(seeded(path)) and os.readlink(seeded(path)) == target:
        return True
    if target in DEVICES:
        return target in asked
    real = os.path.realpath(path)
    if any(below(real, root) for root in roots):
        return True
    closed = JUDGING if target in asked else (BOX, "/proc", "/dev/fd")
    return not any(below(real, place) for place in closed)


def below(path: str, root: str) -> bool:
    """Whether a path is a folder, or in it."""
    return path == root or path.startswith(root + "/")


def importable(paths: list[str], roots: list[str]) -> set[str]:
    """The names of all modules that are installed in the image, also in its virtual environments."""
    prefixes = {"/usr", "/usr/local"} | {os.path.dirname(os.path.normpath(path)) for path in paths}
    for root in roots:
        for folder, folders, files in os.walk(seeded(root)):
            if "pyvenv.cfg" in files:
                prefixes.add(folder)
                folders.clear()
    places = {os.path.realpath(place) for prefix in prefixes for form in INSTALLED for place in glob.glob(os.path.join(prefix, form))}
    names = {module_of(os.path.join(place, name)) or name.partition(".")[0] for place in places for name in os.listdir(place)}
    return names - set(COMMON) - {""}


def module_of(path: str) -> str:
    """The module that would be imported from a path; '' if there is none."""
    name = os.path.basename(path)
    if os.path.isdir(path):  # one that cannot be listed cannot be imported
        return name if os.access(path, os.R_OK) and any(one.startswith("__init__.") for one in os.listdir(path)) else ""
    return name.partition(".")[0] if name.endswith((".py", ".pyc", ".so")) else ""


def seeded(path: str) -> str:
    """Where the image has its own file of this place."""
    return SEED + path[len(BOX) :]


def restore(path: str) -> None:
    """Put the file or folder of the image in this place; nothing if the image has none."""
    remove(path)
    if os.path.isdir(seeded(path)):
        shutil.copytree(seeded(path), path, symlinks=True)
    elif os.path.lexists(seeded(path)):
        shutil.copy2(seeded(path), path, follow_symlinks=False)


def remove(path: str) -> None:
    """Remove a file or a folder."""
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)
    else:
        os.unlink(path)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
