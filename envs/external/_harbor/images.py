"""The image of a task folder: built from its Dockerfile, then modified so that it works in a sandbox session.

A session has a read-only root and one writable folder, /tmp. So the working folder of the task is moved to /opt/rlvr/seed in the image,
and replaced by a link to a folder below /tmp, where each conversation gets a copy. /tests, /logs and /solution are such links, too.
"""

from __future__ import annotations

import hashlib
import io
import os
import shlex
import shutil
import socket
import tempfile
import time
from collections.abc import Collection
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any

from rlvr.envs.external._harbor.folders import PATH_PATTERN, TaskFolder
from rlvr.errors import ConfigError, SandboxError

LABEL = "rlvr.harbor"
SYSTEM_FOLDERS = ("/bin", "/boot", "/dev", "/etc", "/lib", "/lib64", "/opt", "/proc", "/run", "/sbin", "/sys", "/tmp", "/usr", "/var")
RESERVED_FOLDERS = ("/tests", "/logs", "/solution")
_build_lock = Lock()
"""Allows one build at a time, so that no image is built twice."""


@dataclass(frozen=True)
class TaskImage:
    """An image that a sandbox session can start from.

    >>> TaskImage("rlvr-harbor:12ab", "/app", {}).workdir_in_writable_folder
    'app'
    """

    name: str
    workdir: str
    variables: dict[str, str]
    """Environment variables of the image."""

    @property
    def workdir_in_writable_folder(self) -> str:
        """The working folder, relative to the writable folder."""
        return self.workdir.lstrip("/")


def get_or_build_image(folder: TaskFolder) -> TaskImage:
    """Return the image of a folder, built at its first use. Raises ConfigError if it cannot be built."""
    import docker.errors
    import requests.exceptions

    client = _connect_engine(int(folder.build_timeout_s) + 5)
    try:
        with _build_lock:
            return _build_or_reuse(client, folder)
    except (docker.errors.DockerException, requests.exceptions.RequestException, OSError) as error:
        why = " ".join(str(getattr(error, "explanation", None) or error).split())[-300:]
        raise ConfigError(f"the image of the task {folder.name!r} cannot be built here: {type(error).__name__}: {why}") from error
    finally:
        client.close()


def _connect_engine(timeout_s: int) -> Any:
    """Return a client of the Docker Engine. Raises SandboxError if none replies."""
    import docker
    import docker.errors
    import requests.exceptions

    where = os.environ.get("DOCKER_HOST") or "unix:///var/run/docker.sock"
    try:
        if where.startswith("unix://"):  # the SDK leaks a socket that it cannot connect
            with socket.socket(socket.AF_UNIX) as door:
                door.settimeout(10)
                door.connect(where.removeprefix("unix://"))
        asking = docker.from_env(timeout=30, version="1.40")  # created without a request, so that no socket leaks
        try:
            version = asking.api.version(api_version=False)["ApiVersion"]
        finally:
            asking.close()
        return docker.from_env(timeout=timeout_s, version=version)
    except (docker.errors.DockerException, requests.exceptions.RequestException, OSError) as error:
        raise SandboxError(f"no Docker Engine answers at {where} ({type(error).__name__}); start one, or set DOCKER_HOST") from error


def _build_or_reuse(client: Any, folder: TaskFolder) -> TaskImage:
    end = time.monotonic() + folder.build_timeout_s
    base = folder.image
    if folder.environment is not None:
        base = f"rlvr-harbor-base:{_hash_context(folder.environment, hidden := _list_excluded_files(folder))}"
        if not _has_image(client, base):
            with ExitStack() as held:
                context = str(folder.environment)
                if hidden:
                    context = held.enter_context(tempfile.TemporaryDirectory(prefix="rlvr-harbor-"))
                    leave = partial(_ignore_hidden, str(folder.environment), hidden)
                    shutil.copytree(folder.environment, context, dirs_exist_ok=True, symlinks=True, ignore=leave)
                _build_image(client, folder, end, base, path=context)
    if not _has_image(client, base):
        _follow_build(client.api.pull(base, stream=True, decode=True), folder, end)
    config = client.images.get(base).attrs["Config"] or {}
    workdir = folder.workdir or (config.get("WorkingDir") or "").rstrip("/") or "/app"
    if not PATH_PATTERN.fullmatch(workdir) or any(
        workdir == path or workdir.startswith(f"{path}/") for path in (*SYSTEM_FOLDERS, *RESERVED_FOLDERS)
    ):
        raise ConfigError(
            f"the task {folder.name!r} works in {workdir!r}, which a box cannot give it; set WORKDIR to a folder such as /app"
        )
    recipe = _make_dockerfile(base, workdir)
    name = f"rlvr-harbor:{hashlib.blake2b(f'{client.images.get(base).id} {recipe}'.encode(), digest_size=8).hexdigest()}"
    if not _has_image(client, name):
        _build_image(client, folder, end, name, fileobj=io.BytesIO(recipe.encode()))
    variables = dict(pair.partition("=")[::2] for pair in config.get("Env") or ())
    return TaskImage(name, workdir, variables)


def _make_dockerfile(base: str, workdir: str) -> str:
    where, seed, inner = (shlex.quote(f"{above}{workdir}") for above in ("", "/opt/rlvr/seed", "/tmp"))
    links = " && ".join(f"rm -rf {path} && ln -s /tmp{path} {path}" for path in RESERVED_FOLDERS)
    lines = (
        f"FROM {base}",
        "USER root",
        'SHELL ["/bin/sh", "-c"]',
        "RUN for one in python3 bash tar; do command -v $one >/dev/null || { echo the image has no $one and needs it; exit 1; }; done",
        f"RUN mkdir -p {where} {seed} && rmdir {seed} && mv {where} {seed} && ln -s {inner} {where}",
        f"RUN {links} && chmod -R a+rX /opt/rlvr",
        "WORKDIR /",
        "ENTRYPOINT []",
        f'LABEL {LABEL}="1"',
    )
    return "\n".join(lines) + "\n"


def _list_excluded_files(folder: TaskFolder) -> tuple[str, ...]:
    """Return the files that must not be in the image: a terminal-bench folder has solution and tests beside the Dockerfile.

    Files that the Dockerfile mentions are copied nevertheless.
    """
    if folder.task_format != "terminal-bench" or folder.environment is None:
        return ()
    said = (folder.environment / "Dockerfile").read_text("utf-8", "replace")
    return tuple(name for name in ("solution.sh", "solution.yaml", "run-tests.sh", "tests", "task.yaml") if name not in said)


def _ignore_hidden(root: str, hidden: Collection[str], folder: str, names: list[str]) -> list[str]:
    return [name for name in names if folder == root and name in hidden]


def _hash_context(folder: Path, excluded_files: Collection[str] = ()) -> str:
    """Return a fingerprint of a build context, and of the files left out of it."""
    said = hashlib.blake2b(repr(excluded_files).encode() if excluded_files else b"", digest_size=8)
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            said.update(f"{path.relative_to(folder)} {path.stat().st_mode} {path.stat().st_size} ".encode())
            said.update(path.read_bytes())
    return said.hexdigest()


def _has_image(client: Any, name: str) -> bool:
    import docker.errors

    try:
        client.images.get(name)
    except docker.errors.ImageNotFound:
        return False
    return True


def _build_image(client: Any, folder: TaskFolder, end: float, name: str, **context: Any) -> None:
    _follow_build(client.api.build(tag=name, rm=True, forcerm=True, decode=True, labels={LABEL: "1"}, **context), folder, end)


def _follow_build(events: Any, folder: TaskFolder, deadline: float) -> None:
    """Read the build events to the end; raise ConfigError with the last lines if the build failed or timed out."""
    last = wrong = ""
    for event in events:  # read to the end, also after an error: an unfinished stream leaks its socket
        if time.monotonic() > deadline:
            raise ConfigError(f"the image of the task {folder.name!r} was not built within {folder.build_timeout_s:g} s")
        wrong = wrong or str(event.get("error") or "")
        line = str(event.get("stream") or "").strip()
        if line and not wrong and not line.startswith(("--->", "Step ", "Removing ")):
            last = line
    if wrong:
        said = " ".join(f"{last} {wrong}".split())[-300:]
        raise ConfigError(f"the image of the task {folder.name!r} cannot be built here: {said}")
