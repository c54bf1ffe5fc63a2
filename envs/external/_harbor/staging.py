"""Copy the collected files of a conversation into a fresh sandbox, without any that could replace parts of the verification.

The tests use the commands and modules of the image: a file of the answer that would be found instead is removed, or replaced by the
image's original. A file that the task asks for by name is an answer, and stays.
"""

from __future__ import annotations

import json
import posixpath
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

from rlvr.contracts import ExitStatus, SandboxSession
from rlvr.envs.external._harbor.folders import TaskFolder
from rlvr.envs.external._harbor.images import TaskImage
from rlvr.envs.external._harbor.sessions import SEARCH_PATH, SETUP_TIMEOUT_S, list_artifact_paths
from rlvr.errors import ToolInfrastructureError

CLEANUP_SOURCE = Path(__file__).with_name("cleanup.py").read_text("utf-8")
"""Source of the cleanup program, which runs in the sandbox."""
PROTECTED_MODULES = ("pytest", "_pytest", "pluggy", "iniconfig", "sitecustomize", "usercustomize", *sorted(sys.stdlib_module_names))
"""Modules of the verification and their imports: a file of this name in the working folder would be imported instead."""
PYTEST_SETTINGS = ("conftest.py", "pytest.ini", ".pytest.ini")
"""Files that pytest loads automatically."""
MODULE_PATTERN = re.compile(rb"(?<![A-Za-z0-9_])([A-Za-z0-9_]+)(?:\.py(?![A-Za-z0-9_])|/__init__)")
"""Matches a module that is mentioned as a file."""
PATH_PATTERN = re.compile(rb"/[A-Za-z0-9._/-]*[A-Za-z0-9_/-]")
"""Matches a mentioned path: a link to it may be the answer."""
UNPACK_SCRIPT = """(
set -e
export PATH={path}
{cleared}
mkdir /tmp/.left
/bin/tar -xzf /tmp/.left.tgz -C /tmp/.left
for one in {wanted}; do
  [ -e /tmp/.left/$one ] || [ -L /tmp/.left/$one ] || continue
  rm -rf /tmp/$one && mkdir -p $(dirname /tmp/$one) && mv -T /tmp/.left/$one /tmp/$one
done
rm -rf /tmp/.left /tmp/.left.tgz /tmp/.home /tmp/tests /tmp/solution /tmp/logs/verifier /tmp/logs/agent
mkdir -p /tmp/.home /tmp/tests /tmp/logs/verifier
"$(PATH={others}; type -P python3)" -I -S -c {cleaning} {given}
[ -d {inner} ] || {{ rm -rf {inner}; mkdir -p {inner}; }}
{guarded}
)
"""
"""The archive is untrusted: only the artifact paths are taken from it. Paths are plain (see `PATH_PATTERN`), so they need no quotes."""
RESTORE_SCRIPT = """here={here} seed={seed}
mkdir /tmp/.asked
for one in {asked}; do
  [ -f "$here/$one" ] && [ ! -L "$here/$one" ] && mv "$here/$one" /tmp/.asked/$one || :
done
rm -rf "$here"
if [ -d "$seed" ]; then
  mkdir -p "${{here%/*}}" && cp -r --preserve=mode,timestamps "$seed" "$here" && chmod -R u+w "$here"
fi
for one in {asked}; do
  [ ! -f /tmp/.asked/$one ] || {{ mkdir -p "$here" && mv -T /tmp/.asked/$one "$here/$one"; }}
done
rm -rf /tmp/.asked
"""
"""Restores a folder of commands from the image, and keeps the files that the task asks for."""
REMOVE_SHADOWING_SCRIPT = """here={here} seed={seed}
for made in "$here"/*; do
  name=${{made##*/}}
  case " {asked} " in *" $name "*) continue;; esac
  [ -n "$(PATH={others}; type -P -- "$name")" ] || continue
  rm -rf "$made"
  [ ! -e "$seed/$name" ] || cp -r --preserve=mode,timestamps "$seed/$name" "$made"
done
"""
"""For an answer folder on the search path: removes files that have the name of a command of the image."""
RESTORE_VENVS_SCRIPT = """here={here} seed={seed}
find "$seed" -name pyvenv.cfg -printf '%P\\n' | while IFS= read -r made; do
  case $made in */*) parts=("${{made%/*}}");; *) parts=(bin lib lib64);; esac
  for made in "${{parts[@]}}"; do
    rm -rf "$here/$made"
    [ -e "$seed/$made" ] || continue
    mkdir -p "$(dirname "$here/$made")"
    cp -r --preserve=mode,timestamps "$seed/$made" "$here/$made" && chmod -R u+w "$here/$made"
  done
done
"""
"""Restores the image's virtual environments; if the working folder is one itself, its commands and modules."""


def stage_answer_and_tests(sandbox_session: SandboxSession, image: TaskImage, folder: TaskFolder, answer_archive: bytes) -> str:
    """Unpack the answer's files into a fresh sandbox, then copy the tests, so that no file of an answer replaces a test. Returns why
    that failed, or ''.
    """
    inner = f"/tmp{image.workdir}"
    cleared = f"find {inner} -mindepth 1 -delete" if folder.artifact_mode == "shared" else ":"
    script = UNPACK_SCRIPT.format(
        path=SEARCH_PATH, cleared=cleared, wanted=" ".join(list_artifact_paths(image, folder)), inner=inner,
        others=shlex.quote(":".join(_list_trusted_search_path(image, folder))), cleaning=shlex.quote(CLEANUP_SOURCE),
        given=shlex.quote(json.dumps(_build_cleanup_request(image, folder))), guarded="".join(_build_restore_lines(image, folder)),
    )  # fmt: skip
    try:
        sandbox_session.write_file(".left.tgz", answer_archive)
        outcome = sandbox_session.run(script, timeout=SETUP_TIMEOUT_S)
        if outcome.status is ExitStatus.INTERNAL_ERROR:
            raise ToolInfrastructureError(f"the sandbox failed: {outcome.reason}")
        if outcome.status is not ExitStatus.OK:
            said = outcome.stderr_bytes.decode("utf-8", "replace").strip()[-200:]
            return f"the files that were left cannot be copied into a fresh sandbox: {said or outcome.reason}"
        for name, data in folder.tests.items():
            sandbox_session.write_file(f"tests/{name}", data)
    except OSError as error:
        return f"the files that were left have no room beside the tests: {error.strerror}"
    return ""


def _build_restore_lines(image: TaskImage, folder: TaskFolder) -> Iterator[str]:
    """Yield shell lines for each folder on a search path for commands or libraries that the answer could change."""
    if folder.artifact_mode == "shared":
        yield RESTORE_VENVS_SCRIPT.format(**_quote_paths(image.workdir))
    roots = [f"/{path}" for path in list_artifact_paths(image, folder)]
    for variable in ("PATH", "LD_LIBRARY_PATH"):
        places = _find_search_folders_with_answer_files(image, folder, variable)
        others = _list_trusted_search_path(image, folder)
        for place in places:
            lines = REMOVE_SHADOWING_SCRIPT if place in roots else RESTORE_SCRIPT
            asked = " ".join(sorted(set(_find_mentioned_files(place, image, folder))))
            yield lines.format(asked=asked, others=shlex.quote(":".join(others)), **_quote_paths(place))


def _find_search_folders_with_answer_files(image: TaskImage, folder: TaskFolder, variable: str) -> list[str]:
    """Find the folders of a search path that have files of the answer, as paths of the image.

    >>> image = TaskImage("i", "/app", {"PATH": "/app/bin:.:/usr/bin"})
    >>> _find_search_folders_with_answer_files(image, TaskFolder("hello", "Write hello.txt.", "harbor"), "PATH")
    ['/app/bin', '/app']
    """
    roots = [f"/{path}" for path in list_artifact_paths(image, folder)]
    paths = [given[variable] for given in (image.variables, folder.variables, folder.test_variables) if given.get(variable)]
    places = [_make_absolute(one, image) for path in paths for one in path.split(":")]
    return list(dict.fromkeys(place for place in places if any(place == root or place.startswith(f"{root}/") for root in roots)))


def _make_absolute(entry: str, image: TaskImage) -> str:
    """Make an entry of a search path absolute; relative entries refer to the working folder."""
    return posixpath.normpath(posixpath.join(image.workdir, entry)).removeprefix("/tmp")


def _quote_paths(place: str) -> dict[str, str]:
    return {"here": shlex.quote(f"/tmp{place}"), "seed": shlex.quote(f"/opt/rlvr/seed{place}")}


def _find_mentioned_files(folder_path: str, image: TaskImage, folder: TaskFolder) -> Iterator[str]:
    """Yield the files of a folder that the question, the tests or the solution mention with their folder."""
    below = folder_path.removeprefix(image.workdir).strip("/")
    ways = [re.escape(f"{folder_path}/"), re.escape(f"./{below}/" if below else "./"), *([re.escape(f"{below}/")] if below else [])]
    form = re.compile(rf"(?<![\w./-])(?:{'|'.join(ways)})([A-Za-z0-9_][A-Za-z0-9._-]*)")
    for text in (folder.instruction.encode(), *folder.tests.values(), *folder.solution.values()):
        yield from (name.rstrip(".") for name in form.findall(text.decode("utf-8", "replace")))


def _list_trusted_search_path(image: TaskImage, folder: TaskFolder) -> list[str]:
    """Return the search path for commands, without folders that have files of the answer."""
    places = _find_search_folders_with_answer_files(image, folder, "PATH")
    return [SEARCH_PATH, *(one for one in image.variables.get("PATH", "").split(":") if one and _make_absolute(one, image) not in places)]


def _build_cleanup_request(image: TaskImage, folder: TaskFolder) -> dict[str, list[str]]:
    """Build the arguments of the cleanup program: the folders of the answer, and the names it may not have."""
    question = [folder.instruction.encode(), *folder.solution.values()]
    said = [*question, *folder.tests.values()]
    asked, mine = ({name.decode() for text in texts for name in MODULE_PATTERN.findall(text)} for texts in (said, question))
    others = (*PYTEST_SETTINGS, "/dev/stdin", "/dev/stdout", "/dev/stderr")
    asked |= {name for name in others if any(name.encode() in text for text in said)}
    asked |= {path.decode() for text in question for path in PATH_PATTERN.findall(text)}
    asked |= {kind for kind in ("dist-info", "egg-info", "egg") if any(f".{kind}".encode() in text for text in said)}
    judging = {path.partition("/")[0].partition(".")[0] for path in folder.tests if path.endswith((".py", ".so"))} - mine
    return {
        "roots": [f"/tmp/{path}" for path in list_artifact_paths(image, folder)],
        "imported": [
            f"/tmp{place}" for place in dict.fromkeys([image.workdir, *_find_search_folders_with_answer_files(image, folder, "PYTHONPATH")])
        ],
        "planted": sorted(judging | (set(PROTECTED_MODULES) - asked)),
        "settings": list(PYTEST_SETTINGS),
        "asked": sorted(asked),
        "paths": [path for path in ":".join(_list_trusted_search_path(image, folder)).split(":") if path.startswith("/")],
    }
