"""The process of one engine, from the trainer's side: start it, send orders, receive messages, kill it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import rlvr
from rlvr.samplers._local.message_socket import MessageSocket
from rlvr.samplers._local.process_group import kill_process_group

MessageCallback = Callable[["EngineProcess", dict[str, Any] | None], None]
WORKER_MODULE = "rlvr.samplers._local.engine_worker"
LAUNCHER_VARIABLES = (
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "GROUP_RANK",
    "MASTER_ADDR",
    "MASTER_PORT",
    "TORCHELASTIC_RUN_ID",
)
"""Variables that a launcher sets for the trainer's processes; an engine must not see them."""
KILL_TIMEOUT_S, MAX_LOG_BYTES = 5.0, 1500
"""Timeout for a killed process to end, and the number of bytes of its log in messages."""


class EngineProcess:
    """The trainer's side of a process with one engine. A thread passes the messages of the process to `on_message`, and None when it
    has ended.
    """

    def __init__(
        self,
        start: Mapping[str, Any],
        on_message: MessageCallback,
        *,
        log: Path,
        gpus: Sequence[str] | None,
        home: str,
        send_timeout_s: float,
    ) -> None:
        """Start the process. `gpus`: the visible devices, None: the trainer's; `home`: the folder it removes if the trainer dies."""
        self.log = log
        ours, theirs = socket.socketpair()
        with theirs, log.open("ab") as file:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", WORKER_MODULE, str(theirs.fileno()), str(os.getpid()), home],
                stdin=subprocess.DEVNULL, stdout=file, stderr=file, pass_fds=[theirs.fileno()], start_new_session=True,
                env=build_engine_variables(os.environ, gpus),
            )  # fmt: skip
        self.pid, self._wire = self.process.pid, MessageSocket(ours, send_timeout_s=send_timeout_s)
        self._thread = threading.Thread(target=self._listen, args=(on_message,), name="vllm engine", daemon=True)
        self._thread.start()
        self.send(start)

    def send(self, message: Mapping[str, Any]) -> None:
        """Send an order. A process that is gone or does not read is killed; the callback then gets None."""
        try:
            self._wire.send(dict(message))
        except OSError:
            self.kill()

    def kill(self) -> None:
        """Kill the process and its children, and wait for the listening thread."""
        if self.process.returncode is None:  # not reaped yet, so the pid is still its own
            kill_process_group(self.pid, timeout_s=KILL_TIMEOUT_S)
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)  # where there is no /proc
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(KILL_TIMEOUT_S)
        self._wire.close()
        if threading.current_thread() is not self._thread:
            self._thread.join(KILL_TIMEOUT_S)

    def describe_exit(self) -> str:
        """Describe how the process ended, with the end of its log."""
        code = self.process.poll()
        how = f"signal {-code}" if code is not None and code < 0 else f"exit code {code}"
        try:
            said = " ".join(self.log.read_bytes()[-MAX_LOG_BYTES:].decode("utf-8", "replace").split())
        except OSError:
            said = ""
        return f"{how}; its log ends with: {said or '(nothing)'}"

    def _listen(self, on_message: MessageCallback) -> None:
        message: dict[str, Any] | None = {}
        while message is not None:
            message = self._wire.receive()
            on_message(self, message)


def build_engine_variables(trainer_variables: Mapping[str, str], gpus: Sequence[str] | None) -> dict[str, str]:
    """Build the environment variables of an engine's process: this rlvr, its own devices, no launcher variables.

    >>> build_engine_variables({"RANK": "1"}, ["3"])["CUDA_VISIBLE_DEVICES"]
    '3'
    """
    made = {
        name: value for name, value in trainer_variables.items() if name not in LAUNCHER_VARIABLES and not name.startswith("ACCELERATE_")
    }
    made["PYTHONPATH"] = os.pathsep.join(filter(None, [str(Path(rlvr.__file__).parents[1]), trainer_variables.get("PYTHONPATH", "")]))
    made.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")  # on a CPU each engine would bind itself to all cores
    return made | ({} if gpus is None else {"CUDA_VISIBLE_DEVICES": ",".join(gpus)})
