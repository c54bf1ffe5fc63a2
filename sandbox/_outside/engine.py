"""Helpers for the Docker Engine: connect to it, provide our image, and remove containers that a killed run left."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import shutil
import socket
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import docker
import docker.errors
import requests.exceptions

from rlvr.errors import SandboxError, SandboxOutage
from rlvr.runs.folder_owner import is_owner_dead
from rlvr.sandbox._inside.frames import ConnectionBroken

logger = logging.getLogger(__name__)

IMAGE = "rlvr-sandbox:1"
LABEL = "rlvr.sandbox"
OUTAGE_TIMEOUT_S = 60.0
"""How long a run waits for an engine that has gone away; then it stops."""
OUTAGE_POLL_INTERVAL_S, RETRY_INTERVAL_S = 0.5, 5.0
"""How often it is asked meanwhile; and for how long after the timeout nobody asks again."""
MIN_API_VERSION = "1.40"
BUILD_FOLDER = Path(__file__).parents[1]
BUBBLEWRAP = "bwrap"
"""The program of the package bubblewrap, with which the sandbox of that name isolates without an engine."""
IMAGE_HINT = f"build it with `docker build -t {IMAGE} {BUILD_FOLDER}`"


def get_engine_hint() -> str:
    """Return what to do where no engine replies: start one, or use a sandbox that needs none."""
    first = "" if shutil.which(BUBBLEWRAP) else "install the package bubblewrap (`apt install bubblewrap`), and "
    return (
        "start Docker (`systemctl start docker`, or Docker Desktop), or set DOCKER_HOST to the address of one; to isolate without an engine, "
        f"{first}use sandbox=bubblewrap; for code that you trust, sandbox={{'name': 'process', 'trusted': True}} works, too; docs/sandbox.md "
        "has the other ways"
    )


def connect(timeout_s: float = 60.0) -> docker.DockerClient:
    """Return a client of the engine at DOCKER_HOST (or the default socket); raises SandboxError if none replies."""
    try:
        check_reachable(timeout_s)
        # create the client without a request, then ask for the version: a client that fails in its constructor leaks its socket
        asking = docker.from_env(timeout=int(timeout_s), version=MIN_API_VERSION)
        try:
            version = asking.api.version(api_version=False)["ApiVersion"]
        finally:
            asking.close()
        return docker.from_env(timeout=int(timeout_s), version=version)
    except (docker.errors.DockerException, requests.exceptions.RequestException, OSError) as error:
        raise SandboxError(f"no Docker Engine replies at {_get_engine_address()} ({_format_error(error)}); {get_engine_hint()}") from error


def is_podman(client: docker.DockerClient) -> bool:
    """Return whether the engine is Podman's service, which speaks Docker's API with a few differences."""
    with wrap_engine_errors():
        return any(part.get("Name") == "Podman Engine" for part in client.api.version().get("Components") or ())


class OutageGuard:
    """Holds everybody who needs the engine while it is away, for example because it is restarted, up to `timeout_s`.

    It begins with the first failure after the engine has replied once: a machine without an engine is told at once.
    """

    def __init__(self, timeout_s: float = OUTAGE_TIMEOUT_S) -> None:
        self.timeout_s = timeout_s
        self._lock = threading.Lock()
        self._has_replied = False
        self._away_since, self._returned_at, self._gave_up_at = 0.0, -math.inf, -math.inf

    def mark_reachable(self) -> None:
        """Note that the engine has replied."""
        self._has_replied = True

    def wait_out_outage(self, since: float) -> bool:
        """Wait until the engine replies; return whether it was away at some time since then. Raises SandboxOutage after the timeout."""
        if not self._has_replied:
            return False
        with self._lock:  # one thread asks, the others wait with it
            if time.monotonic() - self._gave_up_at < RETRY_INTERVAL_S:
                raise self._make_error()
            while not _is_reachable():
                if not self._away_since:
                    self._away_since = time.monotonic()
                    logger.warning("no Docker Engine replies at %s; waiting up to %g s for it", _get_engine_address(), self.timeout_s)
                if time.monotonic() - self._away_since > self.timeout_s:
                    self._gave_up_at = time.monotonic()
                    raise self._make_error()
                time.sleep(OUTAGE_POLL_INTERVAL_S)
            if self._away_since:
                logger.warning("the Docker Engine replies again, after %.1f s", time.monotonic() - self._away_since)
                self._away_since, self._returned_at = 0.0, time.monotonic()
            return self._returned_at >= since

    def _make_error(self) -> SandboxOutage:
        return SandboxOutage(
            f"no Docker Engine has replied at {_get_engine_address()} for {self.timeout_s:g} s. The run stops, so that no answer is left "
            "without a score because of it; start the engine, then continue: rlvr train with --resume, or the same rlvr eval"
        )


def _is_reachable() -> bool:
    try:
        connect(10).close()
    except SandboxError:
        return False
    return True


def is_connection_error(error: BaseException | None) -> bool:
    """Return whether an error was caused by a connection to the engine that broke or could not be opened."""
    lost = (requests.exceptions.ConnectionError, ConnectionBroken, ConnectionError, FileNotFoundError)
    return error is not None and (isinstance(error, lost) or is_connection_error(error.__cause__))


def check_reachable(timeout_s: float) -> None:
    """Raise OSError if nothing listens; tests the socket directly, because the SDK leaks sockets that it cannot connect."""
    where = _get_engine_address()
    if where.startswith("unix://"):
        with socket.socket(socket.AF_UNIX) as door:
            door.settimeout(timeout_s)
            door.connect(where.removeprefix("unix://"))


def _get_engine_address() -> str:
    return os.environ.get("DOCKER_HOST") or "unix:///var/run/docker.sock"


@contextlib.contextmanager
def wrap_engine_errors() -> Iterator[None]:
    """Turn every failure of the engine into one SandboxError."""
    try:
        yield
    except (docker.errors.DockerException, requests.exceptions.RequestException, OSError) as error:
        raise SandboxError(f"the Docker Engine failed: {_format_error(error)}") from error


def ensure_image(client: docker.DockerClient, image: str) -> None:
    """Make sure that the image exists: ours is built, others are pulled.

    Building and pulling show progress.
    """
    if has_image(client, image):
        return
    try:
        if image == IMAGE:
            stream = client.api.build(path=str(BUILD_FOLDER), tag=image, rm=True, decode=True)
        else:
            stream = client.api.pull(image, stream=True, decode=True)
        _show_progress(f"sandbox image {image}", stream)
        client.images.get(image)
    except (docker.errors.DockerException, requests.exceptions.RequestException, OSError, SandboxError) as error:
        hint = IMAGE_HINT if image == IMAGE else f"check that `docker pull {image}` works"
        raise SandboxError(f"the image {image!r} was not found and could not be built ({_format_error(error)}); {hint}") from error


def has_image(client: docker.DockerClient, image: str) -> bool:
    """Return whether the engine already has this image."""
    with wrap_engine_errors():
        try:
            client.images.get(image)
        except docker.errors.ImageNotFound:
            return False
        return True


def _show_progress(title: str, stream: Any) -> None:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn

    console = Console(file=sys.stderr)
    with Progress(TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[line]}"), console=console, transient=True) as bar:
        row = bar.add_task(title, total=None, line="")
        for event in stream:
            if "error" in event:
                raise SandboxError(str(event["error"]).strip())
            detail = event.get("progressDetail") or {}
            line = (event.get("stream") or event.get("status") or "").strip()
            bar.update(row, line=line[:80], total=detail.get("total"), completed=detail.get("current", 0))


def remove_orphaned_containers(client: docker.DockerClient) -> int:
    """Remove the containers of killed runs on this machine. Returns how many there were."""
    removed = 0
    with wrap_engine_errors():
        for container in client.containers.list(all=True, filters={"label": LABEL}, ignore_removed=True):
            if is_owner_dead(container.labels.get(LABEL) or ""):
                remove_container(client, str(container.id))
                removed += 1
    return removed


def remove_container(client: docker.DockerClient, container: str) -> None:
    """Remove a container, running or not; one that is already being removed is fine."""
    try:
        client.api.remove_container(container, force=True, v=True)
    except docker.errors.APIError as error:
        if error.status_code not in (404, 409):  # 409: its removal is already in progress
            raise


def _format_error(error: BaseException) -> str:
    text = " ".join(str(getattr(error, "explanation", None) or error).split())
    return f"{type(error).__name__}: {text}"[:300]
