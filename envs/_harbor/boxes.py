"""A conversation in the sandbox of a task folder, and the files that it leaves for verification."""

from __future__ import annotations

import base64
import io
import shlex
import tarfile
from collections.abc import Mapping, Sequence
from typing import Any

from rlvr.contracts import Box, Place, Sandbox, Stop, ToolSession
from rlvr.contracts.tool import Tool
from rlvr.envs._harbor.folders import Folder
from rlvr.envs._harbor.images import Image, prepared
from rlvr.errors import ConfigError, ToolCrash
from rlvr.task import Task

LARGEST = 4 << 20
"""Most bytes of the collected files, compressed."""
SHELL = {"HOME": "/tmp/.home", "LANG": "C.UTF-8", "PYTHONNOUSERSITE": "1", "PYTHONDONTWRITEBYTECODE": "1"}
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
SETUP_S = 60.0
START = """set -e
mkdir -p /tmp/.home /tmp/logs/agent /tmp/logs/verifier /tmp/logs/artifacts /tmp/tests /tmp/solution
cp -r --preserve=mode,timestamps /opt/rlvr/seed/* /tmp/
chmod -R u+w {inner}
cd {workdir}
set +e
"""
COLLECT = "cd /tmp && /bin/tar -czf - --ignore-failed-read --exclude=./.home -- {paths} 2>/dev/null"


def place(image: Image, folder: Folder, disk_mb: int) -> Place:
    """Make the spec of a sandbox session with disk space for the files of a task."""
    memory_mb = max(min(folder.memory_mb, 4096), 2 * disk_mb + 256)
    return Place(image=image.name, memory_mb=memory_mb, processes=128, disk_mb=disk_mb, file_mb=disk_mb, output_bytes=LARGEST + 4096)


def begun(box: Box, image: Image, variables: Mapping[str, str]) -> None:
    """Copy the files of the task into a new session, and export its variables. Raises ToolFailure if that fails."""
    exported = {**SHELL, "PATH": PATH, **image.variables, **variables}
    lines = [f"export {name}={shlex.quote(value)}" for name, value in exported.items()]
    script = START.format(inner=shlex.quote(f"/tmp{image.workdir}"), workdir=shlex.quote(image.workdir))
    outcome = box.run("\n".join([*lines, script]), timeout=SETUP_S)
    if outcome.stop is not Stop.OK:
        said = outcome.stderr.decode("utf-8", "replace")[-300:]
        raise ToolCrash(f"the files of the task could not be copied into the sandbox: {outcome.reason} {said}".strip())


class FolderSession(ToolSession):
    """Session with a shell in the task's sandbox; at its end the files of the working folder, or the artifacts, are collected."""

    max_evidence_bytes = LARGEST + 4096

    def __init__(self, task: Task, folder: Folder, tools: Sequence[Tool], *, sandbox: Sandbox | None, disk_mb: int, seed: int = 0) -> None:
        super().__init__(task, tools, sandbox=sandbox, seed=seed)
        self.folder, self.disk_mb = folder, disk_mb
        self.image: Image | None = None

    def place(self) -> Place:
        """Return the spec of a session from the image of the task."""
        self.image = prepared(self.folder)
        return place(self.image, self.folder, self.disk_mb)

    def tools(self) -> Any:
        """Open the sandbox session, and copy the files before the first turn of the policy."""
        new = self.box is None
        specs = super().tools()
        if new:
            if self.box is None or self.image is None:
                raise ConfigError("a task folder needs a tool that runs in the sandbox, such as bash")
            begun(self.box, self.image, self.folder.variables)
        return specs

    def evidence(self) -> Mapping[str, Any]:
        """Return the files to verify, as an archive made in the sandbox. It is untrusted, and unpacked only in another sandbox."""
        return {} if self.box is None or self.image is None else collected(self.box, self.image, self.folder)


def collected(box: Box, image: Image, folder: Folder) -> dict[str, Any]:
    """Collect the files as `left`; or `trouble`, which says why they cannot be collected."""
    wanted = " ".join(shlex.quote(f"./{path}") for path in judged(image, folder))
    outcome = box.run(COLLECT.format(paths=wanted), timeout=SETUP_S)
    if outcome.stop is Stop.IE:
        raise ToolCrash(f"the sandbox failed: {outcome.reason}")
    if outcome.stop is Stop.OLE or outcome.cut or len(outcome.stdout) > LARGEST:
        return {"trouble": f"the files it left are more than {LARGEST >> 20} MB, compressed"}
    if outcome.stop not in (Stop.OK, Stop.RE) or not outcome.stdout:
        return {"trouble": f"its files cannot be collected from the sandbox ({outcome.stop.value}: {outcome.reason})"[:400]}
    return {"left": outcome.stdout}


def judged(image: Image, folder: Folder) -> list[str]:
    """Return the paths to collect, relative to the writable folder.

    >>> judged(Image("i", "/app", {}), Folder("hello", "Write hello.txt.", "harbor"))
    ['app', 'logs/artifacts']
    """
    wanted = [image.home] if folder.mode == "shared" else [_below(path) for path in folder.artifacts]
    return [*wanted, *(["logs/artifacts"] if "logs/artifacts" not in wanted else [])]


def _below(path: str) -> str:
    """Make a path relative to the one writable folder."""
    for prefix in ("/tmp/", "/"):
        if path.startswith(prefix):
            return path.removeprefix(prefix)
    return path


def solving(folder: Folder) -> str:
    """Build a command that unpacks the solution into /solution and runs it."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for name, data in sorted(folder.solution.items()):
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(data), 0o755
            archive.addfile(member, io.BytesIO(data))
    exported = "".join(f"{name}={shlex.quote(value)} " for name, value in folder.solution_variables.items())
    text = base64.b64encode(packed.getvalue()).decode()
    return f"echo {text} | base64 -d | tar -xzf - -C /tmp/solution && {exported}bash /solution/{shlex.quote(folder.solver)}"
