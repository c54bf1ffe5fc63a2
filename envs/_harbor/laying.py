"""Lay what a conversation left into a fresh box: what is judged, and nothing of it in the place of what judges.

Commands and modules that the tests use are those of the image: a file of the answer that would be found in their place is removed, or
replaced by the one of the image. A file that the task asks for by its name is an answer, and stays.
"""

from __future__ import annotations

import posixpath
import re
import shlex
import sys
from collections.abc import Iterator

from rlvr.contracts import Box, Stop
from rlvr.envs._harbor.boxes import PATH, SETUP_S, judged
from rlvr.envs._harbor.folders import Folder
from rlvr.envs._harbor.images import Image
from rlvr.errors import ToolCrash

REPLACING = ("pytest", "_pytest", "pluggy", "iniconfig", "sitecustomize", "usercustomize", *sorted(sys.stdlib_module_names))
"""Modules that judge, or that those import: a file of this name in the working folder would be imported in their place."""
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
[ -d {inner} ] || {{ rm -rf {inner}; mkdir -p {inner}; }}
for here in {imported}; do
  for one in {planted}; do
    for made in "$here"/$one.py "$here"/$one.pyc "$here"/$one.so "$here"/$one.*.so "$here"/$one/__init__.*; do
      [ -e "$made" ] || [ -L "$made" ] || continue
      [ -e "/opt/rlvr/seed${{made#/tmp}}" ] || rm -rf "$made"
    done
  done
done
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
    imported = dict.fromkeys([inner, *(f"/tmp{place}" for place in searched(image, folder, "PYTHONPATH"))])
    script = UNPACK.format(
        path=PATH, cleared=cleared, wanted=" ".join(judged(image, folder)), inner=inner, imported=" ".join(map(shlex.quote, imported)),
        planted=" ".join(name for name in REPLACING if not _asked_for(name, folder)), guarded="".join(guards(image, folder)),
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
        others = [PATH, *(one for one in image.variables.get("PATH", "").split(":") if one and _absolute(one, image) not in places)]
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


def _asked_for(module: str, folder: Folder) -> bool:
    """Whether the task is about a file of this name: then it is an answer, and in nobody's place."""
    said = [folder.instruction.encode(), *folder.tests.values(), *folder.solution.values()]
    return any(f"{module}.py".encode() in text or f"{module}/__init__".encode() in text for text in said)
