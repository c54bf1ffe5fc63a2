"""The main program of a worker: reads requests, one line of JSON each, and replies until its input ends.

It runs as a separate file under `python -I`. Its arguments are the memory limit, the import paths of rlvr and its dependencies, and the
file whose `reply` handles the requests (it is loaded as a file, because importing rlvr would take longer than matching a pattern). It sets
its own limits before the first request: memory permanently, CPU time again for every request.
"""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import sys
import time
from typing import Any, TextIO

_replies: TextIO = sys.stdout


class OutOfTime(BaseException):
    """Raised by a signal handler when the CPU time of a request is used up."""


def _raise_out_of_time(signum: int, frame: object) -> None:
    raise OutOfTime


def main() -> None:
    """Main loop of a worker process: read a request from stdin, handle it within its CPU time, write the reply to stdout."""
    memory_mb, paths, file = int(sys.argv[1]), json.loads(sys.argv[2]), sys.argv[3]
    known = [os.path.realpath(p) for p in sys.path]
    sys.path.extend(p for p in paths if os.path.realpath(p) not in known)
    import resource

    global _replies  # what the code in here prints is no reply, and what it reads no request
    _replies, requests = os.fdopen(os.dup(1), "w", encoding="utf-8"), os.fdopen(os.dup(0), "rb")
    os.dup2(2, 1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    answering = _load_module(file)
    answering.preload()
    limit = memory_mb * 2**20
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGPROF, _raise_out_of_time)
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    _write_reply({"pid": os.getpid()})
    own_pid = os.getpid()
    for line in requests:
        question = json.loads(line)
        start, cpu_s = time.process_time(), float(question["cpu_s"])
        # second limit, enforced by the kernel, because a long C call delays Python's signal handlers
        resource.setrlimit(resource.RLIMIT_CPU, (int(start + cpu_s) + 2, hard))
        said: dict[str, Any] = {}
        try:
            signal.setitimer(signal.ITIMER_PROF, cpu_s)
            said = answering.handle_request(question)
        except OutOfTime:
            said = {"over": f"it needs more than {cpu_s:.2g} s of processor time"}
        except (MemoryError, RecursionError) as error:
            said = {"over": f"it reached a limit: {type(error).__name__}"}
        except ImportError as error:
            said = {"missing": str(error)[:200]}
        except Exception as error:
            said = {"failed": f"{type(error).__name__}: {error}"[:200]}
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
        if os.getpid() != own_pid:
            os._exit(0)  # a fork that the request made, and that came back
        _write_reply(said | {"cpu": round(time.process_time() - start, 4), "id": question.get("id")})


def _load_module(file: str) -> Any:
    spec = importlib.util.spec_from_file_location("answering", file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _write_reply(said: dict[str, Any]) -> None:
    _replies.write(json.dumps(said) + "\n")
    _replies.flush()


if __name__ == "__main__":
    main()
