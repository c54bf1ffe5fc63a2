"""Break a box in every way of the corpus, call each tool once more, and judge what is left. JSON lines; the last one counts.

    python benchmarks/sandbox/breakages.py --sandbox docker

Bar: every verdict is 0, none is without a score. The same with plain processes: `--sandbox process`.
Exit code 1 if a breakage gets a score above 0.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.sandbox._chosen import add_arguments, build_sandbox
from rlvr.errors import RlvrError
from rlvr.registry.plugins import build
from tests.attacks.own_box import BREAKAGES, judged


def main() -> None:
    """Run the corpus; exit status 1 if a verdict is not 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_arguments(parser)
    parser.add_argument("--only", default="", help="a part of a name")
    args = parser.parse_args()
    tools = [build("tool", "bash", call_timeout_s=2.0), build("tool", "python", call_timeout_s=2.0), build("tool", "files")]
    scores: list[float | None] = []
    with build_sandbox(args, max_sessions=1) as sandbox:
        for one in BREAKAGES:
            if args.only not in one.name:
                continue
            began = time.monotonic()
            try:
                verdict, told = judged(sandbox, tools, one)
                score, reason = verdict.score, verdict.reason
            except RlvrError as error:  # the tool gave up: no verdict
                score, reason, told = None, str(error), []
            scores.append(score)
            row = {"name": one.name, "score": score, "reason": reason, "seconds": round(time.monotonic() - began, 1)}
            print(json.dumps(row | {"told": [text[:200] for text in told]}), flush=True)
    wrong = sum(score != 0.0 for score in scores)
    print(
        json.dumps(
            {"sandbox": " ".join([args.sandbox, *args.set]), "breakages": len(scores), "without_score": scores.count(None), "not_0": wrong}
        )
    )
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
