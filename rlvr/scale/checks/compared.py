"""Two samplings of the same draw: whether they are the same answer, and which units of a run are sampled twice to compare them."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from rlvr.episode import Episode
from rlvr.rollout.parts import CUT
from rlvr.scale.units import Unit

AGAIN = " again"
TIMED = ("time", "overlong")
"""Why an answer was cut where time decided."""
ROUNDING = 0.01
"""How far apart two log-probabilities of a token may be: machines of other kinds have other last bits."""


class Answer(NamedTuple):
    """What is compared of an answer.

    >>> Answer([5, 6], [False, True], [0.0, -0.5]).tokens
    [5, 6]
    """

    tokens: Sequence[int]
    acted: Sequence[bool]
    logprobs: Sequence[float]
    goes_on: bool = False
    """Whether it was cut here, and continues in a later step."""


def answer_of(episode: Episode) -> Answer:
    """What is compared of an episode."""
    return Answer(episode.tokens, episode.acted, episode.logprobs, episode.error == CUT)


def comparable(one: Episode, other: Episode) -> bool:
    """Whether two samplings must be the same: not where one has failed, or was cut where time decided."""
    return not any(episode.error not in ("", CUT) or episode.meta.get("cut") in TIMED for episode in (one, other))


def difference(one: Answer, other: Answer) -> str:
    """What differs between two samplings, in words; "" if nothing does.

    >>> difference(Answer([5, 6], [False, True], [0.0, -0.5]), Answer([5, 7], [False, True], [0.0, -0.5]))
    'token 1 is 6 in one and 7 in the other'
    """
    for name, (first, second) in {"token": (one.tokens, other.tokens), "the mask of token": (one.acted, other.acted)}.items():
        if (at := next((at for at, pair in enumerate(zip(first, second, strict=False)) if pair[0] != pair[1]), None)) is not None:
            return f"{name} {at} is {first[at]} in one and {second[at]} in the other"
    for name, mine, theirs in zip(
        ("tokens", "places in its mask", "log-probabilities"), map(len, one[:3]), map(len, other[:3]), strict=True
    ):
        if mine != theirs:
            return f"one has {mine} {name} and the other {theirs}"
    for at, (first_p, second_p) in enumerate(zip(one.logprobs, other.logprobs, strict=True)):
        if not abs(first_p - second_p) <= ROUNDING:
            return f"the log-probability of token {at} is {first_p:.4f} in one and {second_p:.4f} in the other"
    if one.goes_on != other.goes_on:
        return "one ends where the other goes on in the next step"
    return ""


def twice(units: Mapping[str, Unit], share: float) -> dict[str, Unit]:
    """The units that are sampled a second time, under names of their own: the same ones for any number of collectors."""
    return {again(name): unit for name, unit in units.items() if unit and zlib.crc32(unit[0].group.encode()) < share * (1 << 32)}


def again(name: str) -> str:
    """The name of the second sampling of a unit."""
    return f"{name}{AGAIN}"


def is_again(name: str) -> bool:
    """Whether this is the name of a second sampling.

    >>> is_again(again("3:7")), is_again("3:7")
    (True, False)
    """
    return name.endswith(AGAIN)
