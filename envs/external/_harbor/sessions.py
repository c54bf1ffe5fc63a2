"""A conversation in the sandbox of a task folder, and the files that it leaves for verification."""

from __future__ import annotations

import base64
import io
import shlex
import tarfile
from collections.abc import Mapping, Sequence
from typing import Any

from rlvr.contracts import ExitStatus, Sandbox, SandboxSession, SandboxSpec, ToolSession
from rlvr.contracts.tool import Tool
from rlvr.envs.external._harbor.folders import TaskFolder
from rlvr.envs.external._harbor.images import TaskImage, get_or_build_image
from rlvr.errors import ConfigError, ToolInfrastructureError
from rlvr.task import Task

MAX_ARCHIVE_BYTES = 4 << 20
"""Most bytes of the collected files, compressed."""
SHELL_VARIABLES = {"HOME": "/tmp/.home", "LANG": "C.UTF-8", "PYTHONNOUSERSITE": "1", "PYTHONDONTWRITEBYTECODE": "1"}
SEARCH_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
SETUP_TIMEOUT_S = 60.0
START_SCRIPT = """set -e
mkdir -p /tmp/.home /tmp/logs/agent /tmp/logs/verifier /tmp/logs/artifacts /tmp/tests /tmp/solution
cp -r --preserve=mode,timestamps /opt/rlvr/seed/* /tmp/
chmod -R u+w {inner}
cd {workdir}
set +e
"""
COLLECT_COMMAND = "cd /tmp && /bin/tar -czf - --ignore-failed-read --exclude=./.home -- {paths} 2>/dev/null"


def make_sandbox_spec(image: TaskImage, folder: TaskFolder, disk_mb: int) -> SandboxSpec:
    """Make the spec of a sandbox session with disk space for the files of a task."""
    memory_mb = max(min(folder.memory_mb, 4096), 2 * disk_mb + 256)
    return SandboxSpec(
        image=image.name, memory_mb=memory_mb, processes=128, disk_mb=disk_mb, file_mb=disk_mb, output_bytes=MAX_ARCHIVE_BYTES + 4096
    )


def copy_files_and_export_variables(sandbox_session: SandboxSession, image: TaskImage, variables: Mapping[str, str]) -> None:
    """Copy the files of the task into a new session, and export its variables. Raises ToolInfrastructureError if that fails."""
    exported = {**SHELL_VARIABLES, "PATH": SEARCH_PATH, **image.variables, **variables}
    lines = [f"export {name}={shlex.quote(value)}" for name, value in exported.items()]
    script = START_SCRIPT.format(inner=shlex.quote(f"/tmp{image.workdir}"), workdir=shlex.quote(image.workdir))
    outcome = sandbox_session.run("\n".join([*lines, script]), timeout=SETUP_TIMEOUT_S)
    if outcome.status is not ExitStatus.OK:
        said = outcome.stderr_bytes.decode("utf-8", "replace")[-300:]
        raise ToolInfrastructureError(f"the files of the task could not be copied into the sandbox: {outcome.reason} {said}".strip())


class TaskFolderSession(ToolSession):
    """Session with a shell in the task's sandbox; at its end the files of the working folder, or the artifacts, are collected."""

    max_artifact_bytes = MAX_ARCHIVE_BYTES + 4096

    def __init__(
        self, task: Task, folder: TaskFolder, tools: Sequence[Tool], *, sandbox: Sandbox | None, disk_mb: int, seed: int = 0
    ) -> None:
        super().__init__(task, tools, sandbox=sandbox, seed=seed)
        self.folder, self.disk_mb = folder, disk_mb
        self.image: TaskImage | None = None

    def sandbox_spec(self) -> SandboxSpec:
        """Return the spec of a session from the image of the task."""
        self.image = get_or_build_image(self.folder)
        return make_sandbox_spec(self.image, self.folder, self.disk_mb)

    def start_tools(self) -> Any:
        """Open the sandbox session, and copy the files before the first turn of the policy."""
        new = self.sandbox_session is None
        specs = super().start_tools()
        if new:
            if self.sandbox_session is None or self.image is None:
                raise ConfigError("a task folder needs a tool that runs in the sandbox, such as bash")
            copy_files_and_export_variables(self.sandbox_session, self.image, self.folder.variables)
        return specs

    def artifacts(self) -> Mapping[str, Any]:
        """Return the files to verify, as an archive made in the sandbox. It is untrusted, and unpacked only in another sandbox."""
        return (
            {}
            if self.sandbox_session is None or self.image is None
            else archive_answer_files(self.sandbox_session, self.image, self.folder)
        )


def archive_answer_files(sandbox_session: SandboxSession, image: TaskImage, folder: TaskFolder) -> dict[str, Any]:
    """Archive the answer's files in the sandbox: returns {'left': archive}, or {'trouble': reason} if they cannot be collected."""
    wanted = " ".join(shlex.quote(f"./{path}") for path in list_artifact_paths(image, folder))
    outcome = sandbox_session.run(COLLECT_COMMAND.format(paths=wanted), timeout=SETUP_TIMEOUT_S)
    if outcome.status is ExitStatus.INTERNAL_ERROR:
        raise ToolInfrastructureError(f"the sandbox failed: {outcome.reason}")
    if outcome.status is ExitStatus.OUTPUT_LIMIT or outcome.truncated or len(outcome.stdout_bytes) > MAX_ARCHIVE_BYTES:
        return {"trouble": f"the files it left are more than {MAX_ARCHIVE_BYTES >> 20} MB, compressed"}
    if outcome.status not in (ExitStatus.OK, ExitStatus.RUNTIME_ERROR) or not outcome.stdout_bytes:
        return {"trouble": f"its files cannot be collected from the sandbox ({outcome.status.value}: {outcome.reason})"[:400]}
    return {"left": outcome.stdout_bytes}


def list_artifact_paths(image: TaskImage, folder: TaskFolder) -> list[str]:
    """Return the paths to collect, relative to the writable folder.

    >>> list_artifact_paths(TaskImage("i", "/app", {}), TaskFolder("hello", "Write hello.txt.", "harbor"))
    ['app', 'logs/artifacts']
    """
    wanted = [image.workdir_in_writable_folder] if folder.artifact_mode == "shared" else [_make_relative(path) for path in folder.artifacts]
    return [*wanted, *(["logs/artifacts"] if "logs/artifacts" not in wanted else [])]


def _make_relative(path: str) -> str:
    """Make a path relative to the one writable folder."""
    for prefix in ("/tmp/", "/"):
        if path.startswith(prefix):
            return path.removeprefix(prefix)
    return path


def build_solution_command(folder: TaskFolder) -> str:
    """Build a command that unpacks the solution into /solution and runs it."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for name, data in sorted(folder.solution.items()):
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(data), 0o755
            archive.addfile(member, io.BytesIO(data))
    exported = "".join(f"{name}={shlex.quote(value)} " for name, value in folder.solution_variables.items())
    text = base64.b64encode(packed.getvalue()).decode()
    return f"echo {text} | base64 -d | tar -xzf - -C /tmp/solution && {exported}bash /solution/{shlex.quote(folder.solution_script)}"
