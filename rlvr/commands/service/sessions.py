"""The server's table of environment sessions: each lives in one worker process, and expires some time after its last call."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rlvr.commands.service.guard import Refused
from rlvr.commands.service.pool import Hand, Pool

CALLS = 4
"""The maximum of waiting calls in a process, per thread."""


@dataclass(slots=True)
class Held:
    """An open session: its worker process, and the time when it expires."""

    hand: Hand
    until: float
    busy: bool = False


class Sessions:
    """Opens sessions in the least loaded worker process, and closes expired ones."""

    def __init__(self, pool: Pool, *, most: int, lease_s: float, deadline_s: float) -> None:
        self.pool, self.most, self.lease_s, self.deadline_s = pool, most, lease_s, deadline_s
        self.held: dict[str, Held] = {}

    async def open(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Open a session; the reply has its id, its prompt and its tools."""
        if len(self.held) >= self.most:
            self.pool.figures.count("refused", reason="sessions")
            raise Refused(429, f"{len(self.held)} sessions are open, which is the maximum; try again later", **{"Retry-After": "5"})
        session, hand = secrets.token_urlsafe(16), self._freest()
        self._admit(hand)
        self.held[session] = Held(hand, time.monotonic() + self.deadline_s + self.lease_s, busy=True)
        said = await self._call(hand, {**body, "what": "open", "session": session})
        if "error" in said:
            self._forget(session, hand)
            return said
        self.held[session].until, self.held[session].busy = time.monotonic() + self.lease_s, False
        return {"session": session, "lease_s": self.lease_s, **said}

    async def hear(self, session: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Step a session with a turn of the policy."""
        held = self._at(session)
        self._admit(held.hand)
        held.busy = True
        said = await self._call(held.hand, {**body, "what": "hear", "session": session})
        held.busy, held.until = False, time.monotonic() + self.lease_s
        if said.get("status") in (410, 500, 504):  # the process died, or the session's state is unknown
            self._forget(session, held.hand)
        return said

    async def close(self, session: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Close a session, and verify it unless `judge` is false."""
        held = self._at(session)
        self._admit(held.hand)
        del self.held[session]
        what = "drop" if body.get("judge") is False else "close"
        return await self._call(held.hand, {"what": what, "session": session})

    async def anywhere(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Run a call that needs no session, in the least loaded worker process."""
        hand = self._freest()
        self._admit(hand)
        return await self._call(hand, body)

    async def sweep(self) -> None:
        """Close expired sessions periodically, as long as the service runs."""
        while True:
            await asyncio.sleep(min(1.0, self.lease_s / 4))
            now = time.monotonic()
            for session, held in [(s, h) for s, h in self.held.items() if not h.busy and h.until < now]:
                self.pool.figures.count("leases_ended")
                self._forget(session, held.hand)

    def _at(self, session: str) -> Held:
        held = self.held.get(session)
        if held is None:
            raise Refused(410, "there is no such session; it may have expired")
        if held.busy:
            raise Refused(409, "this session is busy with another call")
        return held

    def _freest(self) -> Hand:
        ready = [hand for hand in self.pool.hands if hand.ready] or self.pool.hands
        held = [session.hand for session in self.held.values()]
        return min(ready, key=lambda hand: (held.count(hand), len(hand.calls)))

    def _forget(self, session: str, hand: Hand) -> None:
        self.held.pop(session, None)
        self.pool.numbers += 1
        hand.call(self.pool.numbers, {"what": "drop", "session": session})

    def _admit(self, hand: Hand) -> None:
        """Reject a call before it changes anything, if too many are waiting."""
        if len(hand.calls) >= CALLS * self.pool.threads:
            self.pool.figures.count("refused", reason="calls")
            raise Refused(429, "too many calls wait; try again later", **{"Retry-After": "1"})

    async def _call(self, hand: Hand, body: Mapping[str, Any]) -> dict[str, Any]:
        return await self.pool.call(hand, body, self.deadline_s)
