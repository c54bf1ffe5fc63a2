"""The main program of a worker that matches patterns and schemas: one line of JSON for each request and each reply.

It runs as a separate file under `python -I`. Python's own `re` may need exponential time, so it runs here, with a limit on processor
time that the kernel enforces, and never in the process that trains.
"""

from __future__ import annotations

import json
import os
import re
import resource
import signal
import sys
import time
from typing import Any


class OutOfTime(BaseException):
    """The processor time of a request is used up."""


def _ring(signum: int, frame: object) -> None:
    raise OutOfTime


def matched(pattern: str, flags: int, text: str, *, search: bool) -> bool:
    """Whether the whole text matches, or with `search` a part of it.

    >>> matched("a|ab", 0, "ab", search=False)
    True
    """
    made = re.compile(pattern, flags)
    return bool(made.search(text) if search else made.fullmatch(text))


def problem(schema: Any, value: Any, *, formats: bool) -> str:
    """The first way in which a JSON value violates a schema; empty if it is valid."""
    import jsonschema
    import jsonschema.validators

    kind = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
    checker = kind.FORMAT_CHECKER if formats else None
    for error in kind(schema, format_checker=checker).iter_errors(value):
        return f"{error.json_path}: {error.message}"[:300]
    return ""


def flaw(schema: Any) -> str:
    """What is wrong with a schema itself; empty if nothing is."""
    import jsonschema
    import jsonschema.validators

    kind = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
    try:
        kind.check_schema(schema)
    except jsonschema.SchemaError as error:
        return f"{error.json_path}: {error.message}"[:300]
    return ""


def reply(question: dict[str, Any]) -> dict[str, Any]:
    """What one request asks for."""
    if question["do"] == "match":
        return {"same": matched(question["pattern"], question["flags"], question["text"], search=question["search"])}
    if question["do"] == "schema":
        return {"flaw": flaw(question["schema"])}
    return {"problem": problem(question["schema"], question["value"], formats=question["formats"])}


def main() -> None:
    """Serve until the input ends."""
    memory_mb, paths = int(sys.argv[1]), json.loads(sys.argv[2])
    known = [os.path.realpath(p) for p in sys.path]
    sys.path.extend(p for p in paths if os.path.realpath(p) not in known)
    limit = memory_mb * 2**20
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGPROF, _ring)
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    _say({"pid": os.getpid()})
    for line in sys.stdin.buffer:
        question = json.loads(line)
        start, cpu_s = time.process_time(), float(question["cpu_s"])
        resource.setrlimit(resource.RLIMIT_CPU, (int(start + cpu_s) + 2, hard))  # for a call that no signal handler interrupts
        said: dict[str, Any] = {}
        try:
            signal.setitimer(signal.ITIMER_PROF, cpu_s)
            said = reply(question)
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
        said["cpu"] = round(time.process_time() - start, 4)
        _say(said)


def _say(said: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(said) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
