"""The slot of one engine: its current process and its state."""

from __future__ import annotations

from typing import Any

from rlvr.samplers._local.balance import Load
from rlvr.samplers._local.process import EngineProcess

WHERE = "the vLLM engine {} beside the trainer"


class Slot:
    """State of one engine, which persists across restarts of its process.

    >>> Slot(0, Load(64)).state
    'starting'
    """

    def __init__(self, number: int, load: Load) -> None:
        self.number, self.load, self.where = number, load, WHERE.format(number)
        self.state = "starting"
        """starting, loading, checking (after a restart), or ready."""
        self.process: EngineProcess | None = None
        self.until = 0.0
        """Time at which the engine counts as hung, unless it sends a message."""
        self.deaths = 0
        self.fault = ""
        self.serving = False
        self.based = False
        """Whether the engine has the base weights of the newest adapter."""
        self.scored: tuple[list[int], list[float]] | None = None
        """Tokens and their scores with the newest weights, which a restarted engine must reproduce."""
        self.reply: dict[str, Any] | None = None
