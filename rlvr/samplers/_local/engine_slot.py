"""The slot of one engine: its current process and its state."""

from __future__ import annotations

from typing import Any

from rlvr.samplers._local.engine_process import EngineProcess
from rlvr.samplers._local.load_balancer import EngineLoad

NAME_FORMAT = "the vLLM engine {} beside the trainer"


class EngineSlot:
    """State of one engine, which persists across restarts of its process.

    >>> EngineSlot(0, EngineLoad(64)).state
    'starting'
    """

    def __init__(self, number: int, load: EngineLoad) -> None:
        self.number, self.load, self.name = number, load, NAME_FORMAT.format(number)
        self.state = "starting"
        """starting, loading, checking (after a restart), or ready."""
        self.process: EngineProcess | None = None
        self.deadline = 0.0
        """Time at which the engine counts as hung, unless it sends a message."""
        self.num_tokens = 0
        """The tokens that its process has sampled, as it said last: more of them are progress."""
        self.num_deaths = 0
        self.last_fault = ""
        self.is_serving = False
        self.has_base_weights = False
        """Whether the engine has the base weights of the newest adapter."""
        self.reference_scores: tuple[list[int], list[float]] | None = None
        """Tokens and their scores with the newest weights, which a restarted engine must reproduce."""
        self.reply: dict[str, Any] | None = None
