"""rlvr: environments and verifiers for reinforcement learning from verifiable rewards.

The face of the package. It is light: no torch, transformers, vllm, sympy or docker is imported here.

>>> import rlvr
>>> verifier = rlvr.make("verifier", "numeric")
>>> verifier.verify(rlvr.Task(rlvr.user("2+2="), "4", id="t"), "4").score
1.0
"""

from rlvr.contracts import (
    Completion,
    Environment,
    Example,
    ExecutionResult,
    ExitStatus,
    Limits,
    Program,
    Request,
    Sampler,
    Sampling,
    Sandbox,
    SandboxSession,
    SandboxSpec,
    Session,
    StepResult,
    Tokenizer,
    Transcript,
    Verifier,
)
from rlvr.contracts.algorithm import Algorithm
from rlvr.contracts.tool import Tool, ToolExample, tool
from rlvr.episode import Episode, StopReason
from rlvr.errors import RlvrError, ToolError
from rlvr.mdp._gymnasium import register_when_imported as _announce
from rlvr.registry.plugins import build as make
from rlvr.task import Fault, Message, StepReward, Task, Verdict, user
from rlvr.turns import Turn

__version__ = "0.1.0"

_announce()

__all__ = [
    "Algorithm",
    "Completion",
    "Environment",
    "Episode",
    "Example",
    "ExecutionResult",
    "ExitStatus",
    "Fault",
    "Limits",
    "Message",
    "Program",
    "Request",
    "RlvrError",
    "Sampler",
    "Sampling",
    "Sandbox",
    "SandboxSession",
    "SandboxSpec",
    "Session",
    "StepResult",
    "StepReward",
    "StopReason",
    "Task",
    "Tokenizer",
    "Tool",
    "ToolError",
    "ToolExample",
    "Transcript",
    "Turn",
    "Verdict",
    "Verifier",
    "make",
    "tool",
    "user",
]
