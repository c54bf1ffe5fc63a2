"""The math-verify side of `symbolic/peers.py`, in a separate Python: reads pairs as JSON lines, writes score and seconds."""

from __future__ import annotations

import json
import sys
import time
from typing import Any


def main() -> None:
    """Judge every pair of the input with math-verify's defaults: parse the gold, parse the answer, verify."""
    from math_verify import parse, verify  # type: ignore[import-not-found, unused-ignore]

    def boxed(text: str) -> str:
        declared = any(mark in text for mark in ("\\boxed", "$", "answer", "####", "Answer", "\\fbox"))
        return text if declared else f"\\boxed{{{text}}}"

    def judge(row: dict[str, Any]) -> bool:
        return bool(verify(parse(boxed(row["reference"])), parse(boxed(row["answer"]))))

    judge({"reference": "\\frac{1}{2}", "answer": "0.5"})  # warm
    for line in sys.stdin:
        row = json.loads(line)
        start = time.perf_counter()
        try:
            right: bool | None = judge(row)
        except Exception:
            right = None
        print(json.dumps({"right": right, "s": time.perf_counter() - start}), flush=True)


if __name__ == "__main__":
    main()
