"""Several gloo processes on this machine, without a launcher, so that the others live on when one is killed."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[3]


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def started(
    count: int,
    module: str,
    args: Sequence[str],
    folder: Path,
    *,
    preloaded: Path | None = None,
    errors_apart: bool = False,
    **environment: str,
) -> list[subprocess.Popen[str]]:
    """Start a module in `count` processes; each writes what it says to `folder/RANK.out`, or its errors to `folder/RANK.err`.

    `preloaded` is the folder with the clients of a Python that has done the imports (see `tests.fixtures.preloaded`).
    """
    run = f"import runpy; runpy.run_module({module!r}, run_name='__main__', alter_sys=True)"
    command = [sys.executable, "-m", module] if preloaded is None else [str(preloaded / "program"), run]
    folder.mkdir(parents=True, exist_ok=True)
    port = str(free_port())
    found = []
    for rank in range(count):
        place = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(count), "LOCAL_WORLD_SIZE": str(count)}
        place |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "ACCELERATE_USE_CPU": "true", "FSDP_VERSION": "2"}
        place |= {"FSDP_AUTO_WRAP_POLICY": "TRANSFORMER_BASED_WRAP", "FSDP_RESHARD_AFTER_FORWARD": "true"}
        fixed = {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
        own = os.environ | fixed | place | environment
        with (folder / f"{rank}.out").open("w") as out, (folder / f"{rank}.err").open("w") as err:
            found.append(
                subprocess.Popen(
                    [*command, *args], cwd=ROOT, env=own, stdout=out, stderr=err if errors_apart else subprocess.STDOUT, text=True
                )
            )
    return found


def ended(processes: Sequence[subprocess.Popen[str]], timeout_s: float) -> list[int]:
    """The exit codes, after at most `timeout_s` for all; who is left then is killed."""
    try:
        return [process.wait(timeout_s) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
