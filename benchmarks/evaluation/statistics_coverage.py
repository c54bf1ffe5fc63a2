"""Simulate the coverage of the confidence intervals and the false-alarm rate of the paired test.

Tasks are drawn from populations of many kinds: easy and hard, similar and mixed, and some in which half of the tasks are hopeless. For
each, an evaluation is simulated many times and its interval compared with the population's true figure. Prints the tables, then
one JSON line. First the estimators themselves are compared with a count of all possible draws.
Exit code 1 if a coverage is farther from 95 % than 1.5 points, or an enumeration is not exact.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from rlvr.evaluation.paired import compute_mcnemar_p, compute_sign_flip_p
from rlvr.evaluation.statistics import bootstrap_interval, majority_at_k, pass_all_k, pass_at_k, wilson_interval

Floats = NDArray[np.float64]
TASKS = (20, 100, 500)
SAMPLES = (1, 2, 4, 8, 16)
WRONG = np.array([0.4, 0.25, 0.15, 0.1, 0.1])
"""How often each of five wrong answers is given, among wrong answers."""


@dataclass(frozen=True)
class Population:
    """The distribution of the chance that a random task is answered rightly.

    >>> Population(0.5, 2.0, is_permanent=0.5).is_permanent
    0.5
    """

    centre: float
    alike: float
    """Large if all tasks are equally hard, below 1 if most are either easy or hard."""
    hopeless: float = 0.0

    def draw(self, dice: np.random.Generator, tasks: int) -> Floats:
        """The chance of a right answer for so many tasks."""
        chances = dice.beta(self.centre * self.alike, (1 - self.centre) * self.alike, size=tasks)
        return np.where(dice.random(tasks) < self.hopeless, 0.0, chances)


POPULATIONS = [Population(c, a) for c in (0.08, 0.25, 0.4, 0.6, 0.85) for a in (0.6, 3.0, 12.0)]
POPULATIONS += [Population(0.5, 2.0, hopeless=0.5), Population(0.8, 5.0, hopeless=0.3)]


def answers(dice: np.random.Generator, chances: Floats, samples: int) -> NDArray[np.int64]:
    """The class of each answer: 0 is right, 1 to 5 are wrong ones. One row for each task."""
    right = dice.random((len(chances), samples)) < chances[:, None]
    return np.where(right, 0, 1 + dice.choice(len(WRONG), p=WRONG, size=right.shape))


def figure(name: str, k: int) -> Callable[[NDArray[np.int64]], list[float]]:
    """One value for each task from its answers."""

    def values(classes: NDArray[np.int64]) -> list[float]:
        m = classes.shape[1]
        counts = (classes == 0).sum(axis=1).tolist()
        if name == "avg":
            return [count / m for count in counts]
        if name == "pass":
            table = [pass_at_k(c, m, k) or 0.0 for c in range(m + 1)]
            return [table[count] for count in counts]
        return [_majority(tuple(row), k) for row in np.sort(classes, axis=1).tolist()]

    return values


@lru_cache(maxsize=1_000_000)
def _majority(classes: tuple[int, ...], k: int) -> float:
    return majority_at_k(classes, [float(c == 0) for c in classes], k) or 0.0


def truth(population: Population, name: str, k: int, dice: np.random.Generator) -> float:
    """The population's own figure: in closed form, or for a majority over fifty thousand tasks, each asked k times."""
    if name == "maj":
        return float(np.mean(figure(name, k)(answers(dice, population.draw(dice, 50_000), k))))
    wrong = (1 - population.centre) * population.alike
    none_right = math.prod((wrong + j) / (population.alike + j) for j in range(k if name == "pass" else 1))
    return (1 - population.hopeless) * (1 - none_right)


def coverage(
    tasks: int, samples: int, name: str, k: int, rounds: int, *, by: Callable[[Sequence[float]], tuple[float, float]]
) -> list[float]:
    """For each population, the percentage of simulated evaluations whose interval contains the truth."""
    found = []
    for place, population in enumerate(POPULATIONS):
        dice = np.random.default_rng([tasks, samples, k, place])
        true = truth(population, name, k, dice)
        hits = 0
        for _ in range(rounds):
            low, high = by(figure(name, k)(answers(dice, population.draw(dice, tasks), samples)))
            hits += low - 1e-9 <= true <= high + 1e-9
        found.append(100 * hits / rounds)
    return found


def intervals(rounds: int) -> list[dict[str, object]]:
    """Coverage of the printed interval, for every figure; and of the plain bootstrap where it is an alternative."""
    print(f"\n95 % intervals: % that contain the truth, mean (lowest) over {len(POPULATIONS)} populations, {rounds} evaluations each")
    print(f"{'tasks':>6} {'samples':>8}  {'figure':<8} {'printed':>16} {'bootstrap':>16}")
    rows: list[dict[str, object]] = []
    for tasks in TASKS:
        for samples in SAMPLES:
            for name, k in [("avg", 1)] + ([("pass", samples // 2 or 1), ("maj", samples // 2 or 1)] if samples in (4, 16) else []):
                label = name if name == "avg" else f"{name}@{k}"
                shown = coverage(tasks, samples, name, k, rounds, by=wilson_interval)
                other = (
                    coverage(tasks, samples, name, k, 60, by=lambda values: bootstrap_interval(values, num_resamples=1000))
                    if samples == 16
                    else []
                )
                said = f"{np.mean(other):.1f} ({min(other):.1f})" if other else ""
                print(f"{tasks:>6} {samples:>8}  {label:<8} {np.mean(shown):>8.1f} ({min(shown):.1f}) {said:>16}", flush=True)
                rows.append({"tasks": tasks, "samples": samples, "figure": label, "mean": float(np.mean(shown)), "lowest": min(shown)})
    return rows


def tests(rounds: int) -> list[dict[str, object]]:
    """The rate of false alarms of the paired test at 5 %, and of detections of a policy that is 10 points better."""
    print(f"\nPaired test at 5 %: percentage of {rounds} comparisons that report a difference, without one and with one of 10 points")
    print(f"{'tasks':>6} {'samples':>8} {'test':>12} {'false alarms':>14} {'found':>8}")
    rows: list[dict[str, object]] = []
    population = Population(0.45, 2.0)
    for tasks in TASKS:
        for samples in (1, 4, 16):
            dice = np.random.default_rng([tasks, samples])
            alarms = {"sign flips": [0, 0], "mcnemar": [0, 0]}
            for _ in range(rounds):
                chances = population.draw(dice, tasks)
                base = (answers(dice, chances, samples) == 0).mean(axis=1)
                for place, better in enumerate((0.0, 0.1)):
                    lifted = chances + better / 0.55 * (1 - chances)
                    differences = ((answers(dice, lifted, samples) == 0).mean(axis=1) - base).tolist()
                    alarms["sign flips"][place] += compute_sign_flip_p(differences, num_resamples=2000) <= 0.05
                    alarms["mcnemar"][place] += compute_mcnemar_p(sum(d > 0 for d in differences), sum(d < 0 for d in differences)) <= 0.05
            for name in ("sign flips", "mcnemar") if samples == 1 else ("sign flips",):
                size, power = (100 * count / rounds for count in alarms[name])
                print(f"{tasks:>6} {samples:>8} {name:>12} {size:>14.1f} {power:>8.1f}", flush=True)
                rows.append({"tasks": tasks, "samples": samples, "test": name, "size": size, "power": power})
    return rows


def enumeration() -> float:
    """The largest distance of pass@k, pass^k and maj@k from a count of all draws, over random tasks of up to 9 samples."""
    dice = np.random.default_rng(0)
    worst = 0.0
    for _ in range(300):
        m = int(dice.integers(1, 10))
        classes = answers(dice, np.array([dice.random()]), m)[0].tolist()
        k = int(dice.integers(1, m + 1))
        draws = [[classes[i] for i in at] for at in combinations(range(m), k)]
        right = classes.count(0)
        votes = [[vote.count(c) for c in range(6)] for vote in draws]
        counted = (
            math.fsum(0 in draw for draw in draws) / len(draws),
            math.fsum(set(draw) == {0} for draw in draws) / len(draws),
            math.fsum((vote[0] == max(vote)) / vote.count(max(vote)) for vote in votes) / len(draws),
        )
        ours = (pass_at_k(right, m, k), pass_all_k(right, m, k), majority_at_k(classes, [float(c == 0) for c in classes], k))
        worst = max(worst, *(abs((a or 0.0) - b) for a, b in zip(ours, counted, strict=True)))
    return worst


def main() -> None:
    """Print the tables and one JSON line; fail if a mean coverage is more than 1.5 points off."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--rounds", type=int, default=500, help="simulated evaluations for each population")
    given = arguments.parse_args()
    worst = enumeration()
    print(f"pass@k, pass^k and maj@k against all possible draws: largest distance {worst:.1e}")
    rows, paired = intervals(given.rounds), tests(given.rounds)
    off = max(abs(float(str(row["mean"])) - 95) for row in rows)
    print(json.dumps({"enumeration": worst, "farthest_from_95": round(off, 2), "coverage": rows, "paired": paired}))
    raise SystemExit(worst > 1e-12 or off > 1.5)


if __name__ == "__main__":
    main()
