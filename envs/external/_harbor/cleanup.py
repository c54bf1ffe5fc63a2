"""Remove files of an answer that could replace parts of the verification: links to the tests, modules, plugins and settings of pytest.

A module is removed if the tests might import it instead of their own or the image's. A file that the image has at the same path is
restored from the image; a file that the task asks for by name is an answer, and stays.

Runs in the sandbox before the tests are copied there, with the python3 of the image: standard library only, nothing newer than Python 3.7.
"""

from __future__ import annotations

import glob
import json
import os
import shutil
import sys
from typing import Any

BOX_FOLDER, SEED_FOLDER = "/tmp", "/opt/rlvr/seed"
PROTECTED_PATHS = (BOX_FOLDER + "/tests", BOX_FOLDER + "/solution", BOX_FOLDER + "/logs/verifier", "/proc", "/dev/fd")
DEVICES = ("/dev/stdin", "/dev/stdout", "/dev/stderr")
METADATA_SUFFIXES = (".dist-info", ".egg-info", ".egg")
"""Package metadata: `python -m pytest` would load a pytest entry point from the working folder."""
COMMON_NAMES = ("benchmarks", "docs", "examples", "scripts", "src", "test", "tests", "tools")
"""Top-level names that packages install by accident, and that answers commonly have, too."""
PACKAGE_FOLDERS = ("lib*/python3*/site-packages", "lib*/python3*/dist-packages")


def main(request: dict[str, Any]) -> None:
    """Remove or restore the files of an answer that could replace parts of the verification.

    `roots` are the folders of the answer; `imported` are folders that modules are imported from; `planted` are module names that no answer
    may have; `settings` are names of files that pytest reads; `asked` are names that the task mentions; `paths` are folders of commands.
    """
    roots, asked = request["roots"], set(request["asked"])
    for root in roots:
        for path in _list_links(root):
            if not _is_allowed_link(path, roots, asked):
                os.unlink(path)
    refused = set(request["planted"]) | (_list_image_modules(request["paths"], roots) - asked)
    for here in request["imported"]:
        for name in sorted(os.listdir(here)) if os.path.isdir(here) else ():
            path = os.path.join(here, name)
            if _get_module_name(path) in refused and not os.path.lexists(_get_original_path(path)):
                remove(path)
            elif name.endswith(METADATA_SUFFIXES) and name.rpartition(".")[2] not in asked:
                _restore_from_image(path)
    for root in roots:
        for folder, _, files in os.walk(root):
            for name in set(request["settings"]).intersection(files) - asked:
                _restore_from_image(os.path.join(folder, name))


def _list_links(root: str) -> list[str]:
    """Return all links in a folder; the folder itself may be one."""
    if os.path.islink(root):
        return [root]
    found = []
    for folder, folders, files in os.walk(root):
        found += [path for path in (os.path.join(folder, name) for name in folders + files) if os.path.islink(path)]
    return found


def _is_allowed_link(path: str, answer_folders: list[str], mentioned_names: set[str]) -> bool:
    """Return whether a link leads to a folder of the answer, or to the image, which no answer can change."""
    target = os.readlink(path)
    if os.path.islink(_get_original_path(path)) and os.readlink(_get_original_path(path)) == target:
        return True
    if target in DEVICES:
        return target in mentioned_names
    real = os.path.realpath(path)
    if any(_is_within(real, root) for root in answer_folders):
        return True
    closed = PROTECTED_PATHS if target in mentioned_names else (BOX_FOLDER, "/proc", "/dev/fd")
    return not any(_is_within(real, place) for place in closed)


def _is_within(path: str, root: str) -> bool:
    """Return whether a path is `root` or inside it."""
    return path == root or path.startswith(root + "/")


def _list_image_modules(command_folders: list[str], answer_folders: list[str]) -> set[str]:
    """Return the names of all modules installed in the image, including its virtual environments."""
    prefixes = {"/usr", "/usr/local"} | {os.path.dirname(os.path.normpath(path)) for path in command_folders}
    for root in answer_folders:
        for folder, folders, files in os.walk(_get_original_path(root)):
            if "pyvenv.cfg" in files:
                prefixes.add(folder)
                folders.clear()
    places = {os.path.realpath(place) for prefix in prefixes for form in PACKAGE_FOLDERS for place in glob.glob(os.path.join(prefix, form))}
    names = {_get_module_name(os.path.join(place, name)) or name.partition(".")[0] for place in places for name in os.listdir(place)}
    return names - set(COMMON_NAMES) - {""}


def _get_module_name(path: str) -> str:
    """Return the name of the module that would be imported from a path; '' if there is none."""
    name = os.path.basename(path)
    if os.path.isdir(path):  # one that cannot be listed cannot be imported
        return name if os.access(path, os.R_OK) and any(one.startswith("__init__.") for one in os.listdir(path)) else ""
    return name.partition(".")[0] if name.endswith((".py", ".pyc", ".so")) else ""


def _get_original_path(path: str) -> str:
    """Return the path of the image's original of a file."""
    return SEED_FOLDER + path[len(BOX_FOLDER) :]


def _restore_from_image(path: str) -> None:
    """Replace a file or folder by the image's original; just remove it if there is none."""
    remove(path)
    if os.path.isdir(_get_original_path(path)):
        shutil.copytree(_get_original_path(path), path, symlinks=True)
    elif os.path.lexists(_get_original_path(path)):
        shutil.copy2(_get_original_path(path), path, follow_symlinks=False)


def remove(path: str) -> None:
    """Remove a file or a folder."""
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)
    else:
        os.unlink(path)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
