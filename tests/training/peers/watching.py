"""Three processes, of which the last is killed: `python -m tests.training.peers.watching` in each of them.

The main process computes in Python, the second hangs in a call that no error of Python ends, as one that waits for a GPU does.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time

from torch import distributed

from rlvr.errors import RlvrError
from rlvr.training.distributed import peer_monitor as watch
from rlvr.training.distributed.group import all_gather_values, init_control_group
from rlvr.training.distributed.peer_monitor import PeerMonitor


def main() -> int:
    watch.GRACE_S, watch.SHUTDOWN_TIMEOUT_S = 0.5, 2.0
    distributed.init_process_group("gloo")
    init_control_group(60.0)
    rank = distributed.get_rank()
    try:
        with PeerMonitor.connect_all() or sys.exit("nothing is watched"):
            all_gather_values(rank)
            if rank == 2:
                os.kill(os.getpid(), signal.SIGKILL)
            if rank == 1:
                ctypes.CDLL(None).sleep(300)
            while True:
                time.sleep(0.01)
    except RlvrError as error:
        print(f"error: {error}", flush=True)
        print("closed what was open", flush=True)
        return error.exit_code


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    os._exit(status)  # without torch's own waiting for a group that is gone
