"""Limits on the time and the size of a request's head.

uvicorn has neither limit, so clients without a token could hold connections and memory.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.auto import AutoHTTPProtocol

MAX_HEAD_BYTES = 1 << 16
"""The maximum size of a request's head."""
Base: Any = AutoHTTPProtocol


def make_protocol_class(head_timeout_s: float) -> Any:
    """Make uvicorn's HTTP protocol class with limits on the time and the size of a request's head, for `uvicorn.Config(http=...)`.

    >>> make_protocol_class(30.0).__name__
    'Patient'
    """

    class Patient(Base):  # type: ignore[misc]
        """A connection that is closed if no request head arrives in time, or the head is too long."""

        timer: asyncio.TimerHandle | None = None
        heard = 0

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._wait()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            if self.cycle is not None and not self.cycle.response_complete:
                self._rest()
                return
            if self.cycle is None or not self.cycle.more_body:  # otherwise the data is the rest of a rejected body, read to its end
                self.heard += len(data)
            if self.heard > MAX_HEAD_BYTES:
                self.transport.close()
            elif self.timer is None:
                self._wait()

        def connection_lost(self, exc: Exception | None) -> None:
            super().connection_lost(exc)
            self._rest()

        def _wait(self) -> None:
            self.timer = asyncio.get_running_loop().call_later(head_timeout_s, self._late)

        def _rest(self) -> None:
            self.heard = 0
            if self.timer is not None:
                self.timer.cancel()
                self.timer = None

        def _late(self) -> None:
            self.timer = None
            if self.cycle is None or self.cycle.response_complete:
                self.transport.close()

    return Patient
