"""Choose the engine for a request: the one with the fewest pending tokens, unless another one has the prompt in its cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from rlvr.contracts import Request

PREFIX_BONUS_REQUESTS = 8
"""An engine that has the prompt cached is preferred if its load exceeds the least busy one's by at most this many requests."""


@dataclass(slots=True)
class EngineLoad:
    """The load of one engine.

    >>> load = EngineLoad(max_requests=2); load.add(1, Request([5, 6], 8), "a"); load.tokens, load.num_free
    (10, 1)
    """

    max_requests: int
    """Most requests at a time."""
    running: dict[int, tuple[Request, str]] = field(default_factory=dict)
    """Each request with its group."""
    tokens: int = 0
    """Tokens that its requests may need, prompts and completions."""
    groups: set[str] = field(default_factory=set)
    """Groups and conversations that it has served with the current weights."""

    @property
    def num_free(self) -> int:
        """Number of further requests that the engine accepts."""
        return self.max_requests - len(self.running)

    def add(self, number: int, request: Request, group: str) -> None:
        """Add a request."""
        self.running[number] = request, group
        self.tokens += compute_max_request_tokens(request)
        self.groups.add(group)

    def remove(self, number: int) -> bool:
        """Remove a request from the engine's load; return whether the request was running there."""
        found = self.running.pop(number, None)
        self.tokens -= compute_max_request_tokens(found[0]) if found else 0
        return found is not None

    def remove_all(self) -> list[tuple[int, Request, str]]:
        """Remove all requests and return them, in the order of their numbers."""
        left = [(number, request, group) for number, (request, group) in sorted(self.running.items())]
        self.running.clear()
        self.tokens = 0
        return left


def compute_max_request_tokens(request: Request) -> int:
    """Return the most tokens that a request may need."""
    return len(request.prompt) + request.max_tokens


def make_group_key(request: Request) -> str:
    """Return the key of a request's group or conversation, whose requests share a prefix."""
    return request.task.id if request.task else repr(list(request.prompt))


def choose_engine(loads: Sequence[EngineLoad], request: Request, group: str) -> int | None:
    """Return the index of the engine for a request; None if all are full.

    >>> choose_engine([EngineLoad(4, tokens=30), EngineLoad(4, tokens=10)], Request([1], 9), "a")
    1
    """
    free = [place for place, load in enumerate(loads) if load.num_free > 0]
    if not free:
        return None
    least = min(free, key=lambda place: loads[place].tokens)
    near = loads[least].tokens + PREFIX_BONUS_REQUESTS * compute_max_request_tokens(request)
    known = [place for place in free if group in loads[place].groups and loads[place].tokens <= near]
    return min(known, key=lambda place: loads[place].tokens, default=least)
