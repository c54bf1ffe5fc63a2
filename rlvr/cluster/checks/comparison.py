"""Compare two samplings of the same request, and choose the tasks of a run that are sampled twice."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from rlvr.cluster.rollout_tasks import RolloutTask
from rlvr.episode import Episode
from rlvr.rollout.partial_rollouts import CONTINUES_ERROR

AUDIT_SUFFIX = " again"
LOGPROB_TOLERANCE = 0.01
"""Tolerance of log-probabilities: different hardware gives different last bits."""


class ComparedFields(NamedTuple):
    """The fields of a completion that two samplings of the same request are compared by.

    >>> ComparedFields([5, 6], [False, True], [0.0, -0.5]).tokens
    [5, 6]
    """

    tokens: Sequence[int]
    action_mask: Sequence[bool]
    logprobs: Sequence[float]
    goes_on: bool = False
    """Whether it is a partial completion that continues in a later step."""


def get_compared_fields(episode: Episode) -> ComparedFields:
    """Extract the compared fields of an episode."""
    return ComparedFields(episode.tokens, episode.action_mask, episode.logprobs, episode.error == CONTINUES_ERROR)


def are_comparable(one: Episode, other: Episode) -> bool:
    """Whether two samplings must be equal: neither has failed or was cut by a timeout."""
    return not any(episode.error not in ("", CONTINUES_ERROR) or episode.meta.get("truncated") == "time" for episode in (one, other))


def describe_first_difference(one: ComparedFields, other: ComparedFields) -> str:
    """Describe the first difference between two samplings; "" if they are equal.

    >>> describe_first_difference(ComparedFields([5, 6], [False, True], [0.0, -0.5]), ComparedFields([5, 7], [False, True], [0.0, -0.5]))
    'token 1 is 6 in one and 7 in the other'
    """
    for name, (first, second) in {"token": (one.tokens, other.tokens), "the mask of token": (one.action_mask, other.action_mask)}.items():
        if (at := next((at for at, pair in enumerate(zip(first, second, strict=False)) if pair[0] != pair[1]), None)) is not None:
            return f"{name} {at} is {first[at]} in one and {second[at]} in the other"
    for name, mine, theirs in zip(("tokens", "mask entries", "log-probabilities"), map(len, one[:3]), map(len, other[:3]), strict=True):
        if mine != theirs:
            return f"one has {mine} {name} and the other {theirs}"
    for at, (first_p, second_p) in enumerate(zip(one.logprobs, other.logprobs, strict=True)):
        if not abs(first_p - second_p) <= LOGPROB_TOLERANCE:
            return f"the log-probability of token {at} is {first_p:.4f} in one and {second_p:.4f} in the other"
    if one.goes_on != other.goes_on:
        return "one ends where the other goes on in the next step"
    return ""


def choose_audit_tasks(tasks: Mapping[str, RolloutTask], fraction: float) -> dict[str, RolloutTask]:
    """Choose the tasks that are sampled a second time, and name them. The choice does not depend on the number of workers."""
    return {
        make_audit_name(name): unit for name, unit in tasks.items() if unit and zlib.crc32(unit[0].group.encode()) < fraction * (1 << 32)
    }


def make_audit_name(name: str) -> str:
    """Name the second sampling of a task."""
    return f"{name}{AUDIT_SUFFIX}"


def is_second_sampling_name(name: str) -> bool:
    """Whether a name belongs to a second sampling.

    >>> is_second_sampling_name(make_audit_name("3:7")), is_second_sampling_name("3:7")
    (True, False)
    """
    return name.endswith(AUDIT_SUFFIX)
