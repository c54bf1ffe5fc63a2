"""The main program of an algebra worker: reads requests, one line of JSON each, and replies until its input ends.

It runs as a separate file under `python -I`; the paths of sympy and rlvr come as an argument. It sets its own limits
before the first request: memory permanently, processor time again for every request.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from typing import Any


class OutOfTime(BaseException):
    """The processor time of a request is used up (raised by a signal handler, while Python code can still run it)."""


def _ring(signum: int, frame: object) -> None:
    raise OutOfTime


def main() -> None:
    """Serve until the input ends."""
    memory_mb, paths = int(sys.argv[1]), json.loads(sys.argv[2])
    known = [os.path.realpath(p) for p in sys.path]
    sys.path.extend(p for p in paths if os.path.realpath(p) not in known)
    import resource

    from rlvr.verifiers._math.value.algebra import equal, warm

    sys.setrecursionlimit(5000)
    warm()
    limit = memory_mb * 2**20
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGPROF, _ring)
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    _say({"pid": os.getpid()})
    for line in sys.stdin.buffer:
        question = json.loads(line)
        start, cpu_s = time.process_time(), float(question["cpu_s"])
        # the second guard: a long C call delays Python's signal handlers, but the kernel kills the process
        resource.setrlimit(resource.RLIMIT_CPU, (int(start + cpu_s) + 2, hard))
        reply: dict[str, Any] = {}
        try:
            signal.setitimer(signal.ITIMER_PROF, cpu_s)
            reply["same"] = equal(_tree(question["a"]), _tree(question["b"]))
        except OutOfTime:
            reply["over"] = f"algebra needs more than {cpu_s:.2g} s of processor time"
        except (MemoryError, RecursionError) as error:
            reply["over"] = f"algebra reached a limit: {type(error).__name__}"
        except Exception as error:
            reply["failed"] = type(error).__name__
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
        reply["cpu"] = round(time.process_time() - start, 4)
        _say(reply)


def _tree(value: Any) -> Any:
    return tuple(_tree(item) for item in value) if isinstance(value, list) else value


def _say(reply: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(reply) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
