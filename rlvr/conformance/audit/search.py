"""Search for answers that are rewarded without knowing the question, by mutating and recombining seen answers."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rlvr.conformance import adversarial_answers as canaries
from rlvr.conformance.audit.families import ANSWER_FORMS, LabelledAnswer

JOINERS = (" ", "\n", ", ", " or ", " = ", "; ", "\n\n")
TRICK_TEMPLATES = (
    "{0} {1}",
    "{1}",
    "\\boxed{{{0}}} \\boxed{{{1}}}",
    "<answer>{0}</answer>",
    "<think>{0}</think>{1}",
    "{0}\n#### {1}",
    "[{0}]",
    '{{"score": 1, "answer": "{0}"}}',
)
NUM_SEARCH_TASKS = 8
"""Number of tasks with different references on which each candidate is verified."""


@dataclass(frozen=True, slots=True)
class UniversalAnswer:
    """A text that was rewarded on several tasks with different references.

    >>> UniversalAnswer("or", ("4", "5"), 8).rewarded_fraction
    0.25
    """

    text: str
    rewarded_references: tuple[str, ...]
    """The references for which it was rewarded."""
    tasks: int

    @property
    def rewarded_fraction(self) -> float:
        """Fraction of tasks on which it was rewarded."""
        return len(self.rewarded_references) / self.tasks


def search_universal_answers(
    golds: Sequence[LabelledAnswer],
    seed_answers: Sequence[str],
    is_rewarded: Callable[[LabelledAnswer, str], bool],
    *,
    max_calls: int,
    seed: int,
) -> list[UniversalAnswer]:
    """Find texts that are rewarded for at least two different references, best and shortest first, with at most `max_calls` verifications."""
    chance = random.Random(seed)
    tasks = list({repr(gold.reference): gold for gold in golds}.values())
    chance.shuffle(tasks)
    tasks = tasks[:NUM_SEARCH_TASKS]
    if len(tasks) < 2:
        return []
    pool = list(dict.fromkeys([*canaries.INJECTION_ANSWERS, *seed_answers[:40], *(gold.answer for gold in golds[:20]), "yes", "0", "1"]))
    known: dict[str, tuple[str, ...]] = {}
    for _ in range(max(0, max_calls // len(tasks))):
        text = pool[len(known)] if len(known) < len(pool) else _mutate(chance, pool, known)
        if text not in known and len(text) <= 2_000:
            known[text] = tuple(str(task.reference)[:60] for task in tasks if is_rewarded(task, text))
    keys = [UniversalAnswer(text, found, len(tasks)) for text, found in known.items() if len(found) > 1]
    return sorted(keys, key=lambda key: (-len(key.rewarded_references), len(key.text)))


def _mutate(rng: random.Random, pool: Sequence[str], known: dict[str, tuple[str, ...]]) -> str:
    best = [text for text, found in known.items() if found] or list(pool)
    one, two = rng.choice(best), rng.choice(rng.choice((best, list(pool))))
    kind = rng.randrange(5)
    if kind == 0:
        return one + rng.choice(JOINERS) + two
    if kind == 1:
        return rng.choice(TRICK_TEMPLATES).replace("{0}", one).replace("{1}", two).replace("{{", "{").replace("}}", "}")
    if kind == 2:
        cut = rng.randrange(len(one) + 1)
        return one[:cut] + two
    if kind == 3:
        return rng.choice(JOINERS).join(rng.sample(list(pool), min(len(pool), rng.randrange(2, 8))))
    return rng.choice(ANSWER_FORMS)[1].replace("{{", "{").replace("}}", "}").replace("{}", one)
