"""The published checkers of IFEval and IFBench, as the package `ifbench` of IFBench's repository has them, in their own environment.

Reads lines {"id", "kwargs", "response"} from standard input; writes a line for each: true, false, or the text of what went wrong.
"""

from __future__ import annotations

import json
import random
import sys
from typing import Any


def main() -> None:
    """Answer the lines."""
    from ifbench.instructions_registry import INSTRUCTION_DICT

    for line in sys.stdin:
        row = json.loads(line)
        random.seed(0)
        told: Any
        try:
            checker = INSTRUCTION_DICT[row["id"]](row["id"])
            checker.build_description(**{name: value for name, value in row["kwargs"].items() if value is not None})
            told = bool(row["response"].strip()) and bool(checker.check_following(row["response"]))
        except Exception as error:
            told = f"{type(error).__name__}: {error}"[:200]
        print(json.dumps(told), flush=True)


if __name__ == "__main__":
    main()
