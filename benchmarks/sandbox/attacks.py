"""Count the attacks that each judge rewards: ours, and a plain one that runs the tests after the answer. One JSON line.

Exit code 1 if ours rewards an attack, gives no verdict, or disturbs an honest answer.
"""

from __future__ import annotations

import argparse
import collections
import json
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.sandbox._chosen import add_arguments, build_sandbox
from rlvr.contracts import ExitStatus, Limits, Program
from rlvr.registry.plugins import build
from rlvr.task import Task, make_user_prompt
from tests.attacks.channel import CHANNEL
from tests.attacks.harm import HARM
from tests.attacks.scoring import SCORING
from tests.attacks.task import LIMITS, REFERENCES, RIGHT, Attack, naive


def main() -> int:
    """Run the corpus through both, with an honest answer after every attack. The plain judge runs inside the same sandbox."""
    parser = argparse.ArgumentParser(description=__doc__)
    add_arguments(parser)
    parser.add_argument("--threads", type=int, default=3)
    args = parser.parse_args()
    sandbox = build_sandbox(args)
    verifier = build("verifier", "unit_tests", sandbox=sandbox)
    limits = Limits(**LIMITS)

    def judge(kind: str, code: str) -> float | None:
        score: float | None = verifier.verify(Task(make_user_prompt("x"), REFERENCES[kind], id="t"), f"```python\n{code}\n```").score
        return score

    def one(attack: Attack) -> tuple[list[float | None], list[float | None], bool]:
        paid = [judge(kind, attack.code) for kind in attack.kinds]
        after = [judge(kind, RIGHT) for kind in attack.kinds[:1]]
        outcome = sandbox.run(Program(naive(attack), limits=limits))
        return paid, after, outcome.status is ExitStatus.OK

    corpus: list[Attack] = SCORING + HARM + CHANNEL
    with ThreadPoolExecutor(args.threads) as pool:
        rows = list(pool.map(one, corpus))
    sandbox.close()
    families = collections.Counter(attack.family for attack, row in zip(corpus, rows, strict=True) if row[2])
    scores = [score for row in rows for score in row[0]]
    result = {
        "sandbox": " ".join([args.sandbox, *args.set]),
        "programs": len(corpus),
        "families": len({attack.family for attack in corpus}),
        "runs": len(scores),
        "paid": sum(score is not None and score > 0 for score in scores),
        "without_verdict": scores.count(None),
        "honest_answers_disturbed": sum(score != 1.0 for row in rows for score in row[1]),
        "paid_by_subprocess_and_asserts": sum(row[2] for row in rows),
        "by_family": dict(sorted(families.items(), key=lambda item: int(item[0][1:]))),
    }
    print(json.dumps(result))
    return int(result["paid"] > 0 or result["without_verdict"] > 0 or result["honest_answers_disturbed"] > 0)


if __name__ == "__main__":
    sys.exit(main())
