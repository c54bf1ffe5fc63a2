"""Run a verifier in a worker process, with a timeout for each answer."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import rlvr
from rlvr.errors import ConfigError

START_TIMEOUT_S = 120.0
MAX_REPLY_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class VerifierReply:
    """The reply of a verifier to one answer.

    >>> VerifierReply(1.0, "12 equals 12").is_rewarded
    True
    """

    score: float | None
    reason: str = ""
    crash_message: str = ""
    """The exception that was raised, or a message about a timeout or exit."""
    duration_s: float = 0.0

    success_threshold: float = 0.5
    """The score from which on the answer counts as rewarded."""

    @property
    def is_rewarded(self) -> bool:
        """Whether the answer got at least half of the full score, or what the audit counts as rewarded."""
        return self.score is not None and self.score >= self.success_threshold


class VerifierProcess:
    """A verifier in a worker process, which is restarted when it hangs or exits.

    Once it has started, `version` is the verifier's version, or "" for a plain function.
    """

    def __init__(
        self,
        target: str,
        settings: Mapping[str, Any] | None = None,
        *,
        timeout_s: float = 10.0,
        seed: int = 0,
        success_threshold: float = 0.5,
    ) -> None:
        self.command = [sys.executable, "-m", "rlvr.conformance.audit.worker", target, json.dumps(dict(settings or {}))]
        self.timeout_s, self.success_threshold = timeout_s, success_threshold
        self.version = ""
        paths = [str(Path(rlvr.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
        self.environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths)), "PYTHONHASHSEED": str(seed)}
        self._buffer = b""
        self._process: subprocess.Popen[bytes] | None = None

    def verify_row(self, row: Mapping[str, Any]) -> VerifierReply:
        """Verify a row with `answer`, `reference` and optionally `question` and `meta`."""
        process = self._start_process()
        assert process.stdin is not None
        began = time.perf_counter()
        try:
            process.stdin.write(json.dumps(dict(row)).encode() + b"\n")
            process.stdin.flush()
            said = self._read_reply(process, self.timeout_s)
        except TimeoutError:
            self._kill()
            return VerifierReply(None, crash_message=f"no answer within {self.timeout_s:g} s", duration_s=time.perf_counter() - began)
        except (OSError, EOFError, ValueError):
            status = self._kill()
            return VerifierReply(None, crash_message=f"its process exited with status {status}", duration_s=time.perf_counter() - began)
        score = said.get("score")
        crash_message, duration_s = str(said.get("crash", "")), float(said.get("seconds", 0.0))
        return VerifierReply(score, str(said.get("reason", "")), crash_message, duration_s, self.success_threshold)

    def _start_process(self) -> subprocess.Popen[bytes]:
        if self._process is not None:
            return self._process
        self._buffer = b""
        self._process = process = subprocess.Popen(
            self.command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=self.environment,
            start_new_session=True,
        )
        try:
            said = self._read_reply(process, START_TIMEOUT_S)
        except (OSError, EOFError, TimeoutError, ValueError) as error:
            self._kill()
            raise ConfigError(f"the verifier did not start: {error}") from error
        if "broken" in said:
            self._kill()
            raise ConfigError(f"the verifier cannot be loaded: {said['broken']}")
        self.version = str(said.get("version", ""))
        return process

    def _read_reply(self, process: subprocess.Popen[bytes], timeout_s: float) -> dict[str, Any]:
        assert process.stdout is not None
        until = time.monotonic() + timeout_s
        while b"\n" not in self._buffer:
            left = until - time.monotonic()
            if left <= 0 or not select.select([process.stdout], [], [], left)[0]:
                raise TimeoutError("it did not reply in time")
            piece = os.read(process.stdout.fileno(), 65_536)
            if not piece or len(self._buffer) > MAX_REPLY_BYTES:
                raise EOFError("it exited without a reply")
            self._buffer += piece
        line, _, self._buffer = self._buffer.partition(b"\n")
        said = json.loads(line)
        if not isinstance(said, dict):
            raise ValueError("its reply is no object")
        return said

    def _kill(self) -> int | None:
        process, self._process = self._process, None
        if process is None:
            return None
        status = process.poll()
        with suppress(OSError):
            os.killpg(process.pid, 9)  # its own children too
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()
        try:
            ended = process.wait(10)
        except subprocess.TimeoutExpired:
            ended = None
        return ended if status is None else status

    def close(self) -> None:
        """Stop the worker."""
        if self._process is not None and self._process.stdin is not None:
            with suppress(OSError):
                self._process.stdin.close()  # a verifier may have workers of its own, which end with it
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(2)
        self._kill()

    def __enter__(self) -> VerifierProcess:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
