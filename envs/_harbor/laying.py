"""Lay what a conversation left into a fresh box: what is judged, and nothing of it in the place of what judges.

Commands and modules that the tests use are those of the image: a file of the answer that would be found in their place is removed, or
replaced by the one of the image. A file that the task asks for by its name is an answer, and stays.
"""

from __future__ import annotations

import json
import posixpath
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

from rlvr.contracts import Box, Stop
from rlvr.envs._harbor.boxes import PATH, SETUP_S, judged
from rlvr.envs._harbor.folders import Folder
from rlvr.envs._harbor.images import Image
from rlvr.errors import ToolCrash

CLEANING = Path(__file__).with_name("cleaning.py").read_text("utf-8")
"""Removes what an answer left in the place of what judges, in the box."""
REPLACING = ("pytest", "_pytest", "pluggy", "iniconfig", "sitecustomize", "usercustomize", *sorted(sys.stdlib_module_names))
"""Modules that judge, or that those import: a file of this name in the working folder would be imported in their place."""
SETTINGS = ("conftest.py", "pytest.ini", ".pytest.ini")
"""Files that pytest runs or obeys without being told to."""
NAMED = re.compile(rb"(?<![A-Za-z0-9_])([A-Za-z0-9_]+)(?:\.py(?![A-Za-z0-9_])|/__init__)")
"""A module that is named as a file."""
PLACE = re.compile(rb"/[A-Za-z0-9._/-]*[A-Za-z0-9_/-]")
"""A place that is named: a link to it may be the answer."""
UNPACK = """(
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
"""The archive is the policy's word: of it, only what is judged is taken. Paths are plain (see `folders.PATH`), so they need no quotes."""
RESTORED = """here={here} seed={seed}
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
"""A folder of commands is that of the image again, with the files that the task asks for."""
UNCOVERED = """here={here} seed={seed}
for made in "$here"/*; do
  name=${{made##*/}}
  case " {asked} " in *" $name "*) continue;; esac
  [ -n "$(PATH={others}; type -P -- "$name")" ] || continue
  rm -rf "$made"
  [ ! -e "$seed/$name" ] || cp -r --preserve=mode,timestamps "$seed/$name" "$made"
done
"""
"""A folder that is itself the answer, and searched for commands: nothing in it has the name of a command of the image."""
ENVIRONMENTS = """here={here} seed={seed}
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
"""The virtual environments of the image are those of the image again; where the working folder is one, its commands and modules."""


def lay(box: Box, image: Image, folder: Folder, left: bytes) -> str:
    """The files that were left first, and the tests after them, so that nothing of an answer is in the place of a test. Why not, or ''."""
    inner = f"/tmp{image.workdir}"
    cleared = f"find {inner} -mindepth 1 -delete" if folder.mode == "shared" else ":"
    script = UNPACK.format(
        path=PATH, cleared=cleared, wanted=" ".join(judged(image, folder)), inner=inner,
        others=shlex.quote(":".join(_others(image, folder))), cleaning=shlex.quote(CLEANING),
        given=shlex.quote(json.dumps(_refused(image, folder))), guarded="".join(guards(image, folder)),
    )  # fmt: skip
    try:
        box.put(".left.tgz", left)
        outcome = box.run(script, timeout=SETUP_S)
        if outcome.stop is Stop.IE:
            raise ToolCrash(f"the sandbox failed: {outcome.reason}")
        if outcome.stop is not Stop.OK:
            said = outcome.stderr.decode("utf-8", "replace").strip()[-200:]
            return f"the files that were left cannot be laid into a fresh box: {said or outcome.reason}"
        for name, data in folder.tests.items():
            box.put(f"tests/{name}", data)
    except OSError as error:
        return f"the files that were left have no room beside the tests: {error.strerror}"
    return ""


def guards(image: Image, folder: Folder) -> Iterator[str]:
    """Lines of shell, for each place that is searched for commands or libraries and that the answer could change."""
    if folder.mode == "shared":
        yield ENVIRONMENTS.format(**_quoted(image.workdir))
    roots = [f"/{path}" for path in judged(image, folder)]
    for variable in ("PATH", "LD_LIBRARY_PATH"):
        places = searched(image, folder, variable)
        others = _others(image, folder)
        for place in places:
            lines = UNCOVERED if place in roots else RESTORED
            asked = " ".join(sorted(set(_named(place, image, folder))))
            yield lines.format(asked=asked, others=shlex.quote(":".join(others)), **_quoted(place))


def searched(image: Image, folder: Folder, variable: str) -> list[str]:
    """The folders of a search path that hold files of the answer, as paths of the image.

    >>> image = Image("i", "/app", {"PATH": "/app/bin:.:/usr/bin"})
    >>> searched(image, Folder("hello", "Write hello.txt.", "harbor"), "PATH")
    ['/app/bin', '/app']
    """
    roots = [f"/{path}" for path in judged(image, folder)]
    paths = [given[variable] for given in (image.variables, folder.variables, folder.test_variables) if given.get(variable)]
    places = [_absolute(one, image) for path in paths for one in path.split(":")]
    return list(dict.fromkeys(place for place in places if any(place == root or place.startswith(f"{root}/") for root in roots)))


def _absolute(one: str, image: Image) -> str:
    """An entry of a search path; one that is relative is looked for in the working folder."""
    return posixpath.normpath(posixpath.join(image.workdir, one)).removeprefix("/tmp")


def _quoted(place: str) -> dict[str, str]:
    return {"here": shlex.quote(f"/tmp{place}"), "seed": shlex.quote(f"/opt/rlvr/seed{place}")}


def _named(place: str, image: Image, folder: Folder) -> Iterator[str]:
    """The files of a folder that the task asks for: named with their folder in the question, the tests or the solution."""
    below = place.removeprefix(image.workdir).strip("/")
    ways = [re.escape(f"{place}/"), re.escape(f"./{below}/" if below else "./"), *([re.escape(f"{below}/")] if below else [])]
    form = re.compile(rf"(?<![\w./-])(?:{'|'.join(ways)})([A-Za-z0-9_][A-Za-z0-9._-]*)")
    for text in (folder.instruction.encode(), *folder.tests.values(), *folder.solution.values()):
        yield from (name.rstrip(".") for name in form.findall(text.decode("utf-8", "replace")))


def _others(image: Image, folder: Folder) -> list[str]:
    """The search path for commands, without the folders that hold files of the answer."""
    places = searched(image, folder, "PATH")
    return [PATH, *(one for one in image.variables.get("PATH", "").split(":") if one and _absolute(one, image) not in places)]


def _refused(image: Image, folder: Folder) -> dict[str, list[str]]:
    """What `cleaning` is given: where the answer is, and which names it may not have."""
    question = [folder.instruction.encode(), *folder.solution.values()]
    said = [*question, *folder.tests.values()]
    asked, mine = ({name.decode() for text in texts for name in NAMED.findall(text)} for texts in (said, question))
    others = (*SETTINGS, "/dev/stdin", "/dev/stdout", "/dev/stderr")
    asked |= {name for name in others if any(name.encode() in text for text in said)}
    asked |= {path.decode() for text in question for path in PLACE.findall(text)}
    asked |= {kind for kind in ("dist-info", "egg-info", "egg") if any(f".{kind}".encode() in text for text in said)}
    judging = {path.partition("/")[0].partition(".")[0] for path in folder.tests if path.endswith((".py", ".so"))} - mine
    return {
        "roots": [f"/tmp/{path}" for path in judged(image, folder)],
        "imported": [f"/tmp{place}" for place in dict.fromkeys([image.workdir, *searched(image, folder, "PYTHONPATH")])],
        "planted": sorted(judging | (set(REPLACING) - asked)),
        "settings": list(SETTINGS),
        "asked": sorted(asked),
        "paths": [path for path in ":".join(_others(image, folder)).split(":") if path.startswith("/")],
    }
