"""Measure how long one answer can stall the other threads of our process, and its cost. One JSON line for each hostile answer.

A stall is measured as processor time that our own process used between two beats of a thread that sleeps 10 ms at a time: on a
busy machine a late beat alone proves nothing. Each answer writes data to the channel of its results (about 8 MB, chosen
to be slow to read or to compare), or to standard output.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from rlvr.registry.plugins import build
from rlvr.task import Task, user

PUT = """
import itertools, os
try:
    os.fstat(5); OUT = 5
except OSError:
    OUT = 4
def put(body):
    raw = body if isinstance(body, bytes) else body.encode()
    view = memoryview(len(raw).to_bytes(4, "big") + raw)
    while view:
        view = view[os.write(OUT, view) :]
if OUT == 4:
    put(b'{"value": ["l", ["f"]]}')
"""
RESULTS = {
    "a set of 1000 long tuples, alike in hash": """
rows = []
for s in itertools.islice(itertools.product(("-1", "-2"), repeat=10), 1000):
    rows.append('["t",[' + ",".join(["0"] * 3900 + list(s)) + "]]")
put('{"case":0,"value":["s",[' + ",".join(rows) + "]]}")""",
    "a set of 200 000 huge decimals": """
put('{"case":0,"value":["s",[' + ",".join('["dec","%d.1e%d"]' % (k, 10**17) for k in range(200000)) + "]]}")""",
    "many sets of 999 alike integers": """
g = '["s",[' + ",".join('["i","%s"]' % hex(k * ((1 << 61) - 1)) for k in range(1, 1000)) + "]]"
put('{"case":0,"value":["l",[' + ",".join([g] * (7900000 // len(g))) + "]]}")""",
    "many dicts of 999 alike keys": """
g = ",".join('[["i","%s"],0]' % hex(k * ((1 << 61) - 1)) for k in range(1, 1000))
put('{"case":0,"value":["l",[' + ",".join(['["d",[' + g + "]]"] * (7900000 // len(g))) + "]]}")""",
    "tuples nested 98 deep": """
x = "0"
for k in range(98): x = '["t",[' + x + "]]"
put('{"case":0,"value":["s",[' + ",".join([x] * (7900000 // (len(x) + 1))) + "]]}")""",
    "780 000 empty tuples": """
put(b'{"case":0,"value":["l",[' + b",".join([b'["t",[]]'] * 780000) + b"]]}")""",
    "560 000 tiny messages": """
raw = b'{"case":0}'
view = memoryview((len(raw).to_bytes(4, "big") + raw) * 560000)
while view: view = view[os.write(OUT, view):]""",
    "3.9 million zeros": """
put(b'{"case":0,"value":["l",[' + b",".join([b"0"] * 3900000) + b"]]}")""",
    "a decimal of 8 million digits": """
put('{"case":0,"value":["dec","' + "7" * 7900000 + '"]}')""",
    "fractions of 64 000 bits": """
g = '["fr",[["i","0x' + "f" * 16000 + '"],["i","0x' + "e" * 15999 + '7"]]]'
put('{"case":0,"value":["l",[' + ",".join([g] * (7900000 // len(g))) + "]]}")""",
    "an exception with a message of 8 MB": """
put('{"case":0,"raised":"ValueError","message":"' + "x" * 7900000 + '"}')""",
}
OUTPUTS = {
    "4 million words": 'import sys; sys.stdout.write("1 " * 3900000)',
    "8 million line ends": 'import sys; sys.stdout.write("\\n" * 7900000 + "1")',
    "8 million spaces": 'import sys; sys.stdout.write(" " * 7900000 + "1")',
    "one word of 8 MB": 'import sys; sys.stdout.write("1" * 7900000)',
    "2 million different lines": 'import sys; sys.stdout.write("\\n".join("%x" % (k * 7919 % 1048573) for k in range(1200000)))',
}
ASSERTS = {
    "test words of 8 MB": "def f(x):\n    return {'k' * 7900000: 1}",
    "raises 8 MB": "def f(x):\n    raise ValueError('x' * 7900000)",
}


def rows() -> list[tuple[str, dict[str, Any], str]]:
    """Each hostile answer with its task."""
    calls = {"kind": "calls", "function": "f", "cases": [{"args": [1], "expected": [1]}, {"args": [2], "expected": {"__set__": [1]}}]}
    found = [(f"calls: {name}", calls, f"{PUT}{code}\nos._exit(0)") for name, code in RESULTS.items()]
    test = "def check(candidate):\n    found = candidate(1)\n    assert [][found] == 1\n    assert {}[str(found)] == 1\n"
    found += [(f"asserts: {name}", {"kind": "asserts", "entry_point": "f", "test": test}, code) for name, code in ASSERTS.items()]
    for checker in ("tokens", "lines", "unordered", "tolerance"):
        stdio = {"kind": "stdio", "checker": checker, "cases": [{"stdin": "", "stdout": "1\n" * 1000}]}
        found += [(f"stdio, {checker}: {name}", stdio, code) for name, code in OUTPUTS.items()]
    return found


def main() -> None:
    """Judge every hostile answer and print the cost."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--sandbox", default="docker")
    arguments.add_argument("--only", default="", help="only the rows whose name contains this")
    chosen = arguments.parse_args()
    settings = {"trusted": True, "processes": 1} if chosen.sandbox == "process" else {"containers": 1}
    sandbox = build("sandbox", chosen.sandbox, **settings)
    sandbox.ready()
    verifier = build("verifier", "unit_tests", sandbox=sandbox)
    for name, reference, code in rows():
        if chosen.only not in name:
            continue
        done, worst = threading.Event(), [0.0]

        def beat(done: threading.Event = done, worst: list[float] = worst) -> None:
            last = time.process_time()
            while not done.is_set():
                time.sleep(0.01)
                now = time.process_time()
                worst[0], last = max(worst[0], now - last), now

        thread = threading.Thread(target=beat)
        thread.start()
        began, used = time.monotonic(), time.process_time()
        verdict = verifier.verify(Task(user("x"), reference, id="t"), f"```python\n{code}\n```")
        wall, used = time.monotonic() - began, time.process_time() - used
        done.set()
        thread.join()
        row = {"answer": name, "score": verdict.score, "fault": verdict.fault.value, "stall_ms": round(worst[0] * 1000, 1)}
        print(json.dumps(row | {"our_cpu_s": round(used, 2), "wall_s": round(wall, 2), "reason": verdict.reason[:120]}), flush=True)
    verifier.close()


if __name__ == "__main__":
    main()
