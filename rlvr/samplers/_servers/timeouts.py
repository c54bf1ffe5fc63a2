"""Timeouts for engines in other processes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Timeouts in seconds.

    >>> Timeouts(heartbeat_timeout_s=5.0).completion_timeout_s
    600.0
    """

    completion_timeout_s: float = 600.0
    """For an engine or a server to generate its next token, and for loading new weights."""
    heartbeat_timeout_s: float = 10.0
    """After this time without a completion, the server's health is checked; the check has the same timeout."""
    start_timeout_s: float = 120.0
    """For a server to start."""
