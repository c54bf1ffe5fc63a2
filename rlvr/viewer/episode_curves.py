"""Curves computed from the episodes: the share of solved groups at each step, and the mean of each reward component."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

MAX_CURVE_POINTS = 200
"""The maximum of points in a curve; a longer curve is averaged in blocks."""
MAX_COMPONENTS = 6
"""The maximum of reward components that are drawn."""
BANDS = ("all right", "most right", "some right", "none right")
SOLVED_TITLE, COMPONENTS_TITLE = "groups by share of right answers", "reward by part"


class GroupAndComponentCurves:
    """Collects episodes one by one, and builds curves by step: the share of groups by right answers, and the mean of each reward component.

    >>> curves = GroupAndComponentCurves()
    >>> for score in (1.0, 0.0):
    ...     curves.add_episode({"step": 1, "group": "1:0", "verdict": {"score": score}})
    >>> curves.build_panels()[0]["lines"]["most right"]
    [1.0]
    """

    def __init__(self) -> None:
        self._groups: dict[int, dict[str, list[int]]] = defaultdict(dict)
        self._components: dict[int, dict[str, list[float]]] = defaultdict(dict)

    def add_episode(self, row: Mapping[str, Any]) -> None:
        """Count an episode, if it has a score."""
        verdict = row["verdict"] or {}
        score = verdict.get("score")
        if score is None:
            return
        counts = self._groups[row["step"]].setdefault(str(row["group"]), [0, 0])
        counts[0] += score >= 1
        counts[1] += 1
        for name, value in (verdict.get("components") or {}).items():
            if isinstance(value, int | float):
                sums = self._components[row["step"]].setdefault(str(name), [0.0, 0.0])
                sums[0] += value
                sums[1] += 1

    def build_panels(self) -> list[dict[str, Any]]:
        """Build the panels, in the format of `rlvr.runs.curves`; `stacked` marks lines that add up to 1."""
        found = []
        if any(count > 1 for groups in self._groups.values() for _, count in groups.values()):
            steps, blocks = _split_steps(sorted(self._groups))
            shares = [_compute_band_fractions([counts for step in block for counts in self._groups[step].values()]) for block in blocks]
            found.append(
                {
                    "title": SOLVED_TITLE,
                    "steps": steps,
                    "stacked": True,
                    "lines": dict(zip(BANDS, map(list, zip(*shares, strict=True)), strict=True)),
                }
            )
        names = list(dict.fromkeys(name for parts in self._components.values() for name in parts))[:MAX_COMPONENTS]
        if names:
            steps, blocks = _split_steps(sorted(self._components))
            found.append(
                {
                    "title": COMPONENTS_TITLE,
                    "steps": steps,
                    "lines": {name: [self._mean_component(name, block) for block in blocks] for name in names},
                }
            )
        return found

    def _mean_component(self, name: str, block: list[int]) -> float | None:
        sums = [self._components[step][name] for step in block if name in self._components[step]]
        return sum(total for total, _ in sums) / sum(count for _, count in sums) if sums else None


def _split_steps(steps: list[int]) -> tuple[list[int], list[list[int]]]:
    """Split the steps into blocks, at most as many as a curve has points; return the last step of each block, and the blocks."""
    size = -(-len(steps) // MAX_CURVE_POINTS)
    blocks = [steps[at : at + size] for at in range(0, len(steps), size)]
    return [block[-1] for block in blocks], blocks


def _compute_band_fractions(groups: list[list[int]]) -> list[float]:
    """Compute the share of the groups in each band, from counts of right answers and answers."""
    found = [0, 0, 0, 0]
    for right, count in groups:
        found[0 if right == count else 3 if not right else 1 if 2 * right >= count else 2] += 1
    return [number / len(groups) for number in found]
