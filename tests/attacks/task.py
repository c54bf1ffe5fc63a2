"""The task that every attack is judged by, and the judge that everybody writes first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

INPUTS = (3, 10, -4, 1000)


def secret(x: int) -> int:
    """What the answer would have to compute; no attack knows it."""
    return x * 7919 + 13


RIGHT = "def f(x):\n    return x * 7919 + 13\nif __name__ == '__main__':\n    print(f(int(input())))"
LIMITS: dict[str, Any] = {"cpu_s": 1.0, "wall_s": 2.0, "memory_mb": 96, "output_bytes": 300_000, "file_mb": 4, "processes": 12}
REFERENCES = {
    "stdio": {"kind": "stdio", "limits": LIMITS, "cases": [{"stdin": str(x), "stdout": str(secret(x))} for x in INPUTS]},
    "calls": {"kind": "calls", "limits": LIMITS, "function": "f", "cases": [{"args": [x], "expected": secret(x)} for x in INPUTS]},
    "asserts": {
        "kind": "asserts",
        "limits": LIMITS,
        "entry_point": "f",
        "test": "def check(candidate):\n" + "".join(f"    assert candidate({x}) == {secret(x)}\n" for x in INPUTS),
    },
}


@dataclass(frozen=True)
class Attack:
    """One program: the family it belongs to, what it does, and against which kinds of tests it is run.

    >>> Attack("C1", "exits", "raise SystemExit(0)").kinds
    ('asserts',)
    """

    family: str
    name: str
    code: str
    kinds: tuple[str, ...] = ("asserts",)


def naive(attack: Attack) -> str:
    """The judge that everybody writes first, as one program: the tests stand behind the answer, exit status 0 is a pass."""
    if attack.kinds[0] == "stdio":
        wanted = secret(INPUTS[0])
        return (
            f"import io, sys\nexpected = '{wanted}'\nsys.stdin, sys.stdout = io.StringIO('{INPUTS[0]}'), io.StringIO()\n"
            f"exec(compile({attack.code!r}, 'answer.py', 'exec'), {{'__name__': '__main__'}})\n"
            "said, sys.stdout = sys.stdout.getvalue(), sys.__stdout__\nassert set(said.split()) >= set(expected.split())\n"
        )
    return attack.code + "\n\n" + "".join(f"assert f({x}) == {secret(x)}\n" for x in INPUTS)
