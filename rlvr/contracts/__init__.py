"""The interfaces of the plugins, and the small records that they exchange.

Six kinds of plugin exist, each with one or two main methods:
    Environment   task(split, index) -> Task                        provides tasks (text only; TokenEnv handles tokens)
    Verifier      verify(task, answer) -> Verdict                   scores answers
    Sandbox       run(Program) -> ExecutionResult                   runs untrusted code
                  create_session(SandboxSpec) -> SandboxSession     a sandbox for one conversation
    Sampler       sample(requests, sampling) -> completions         generates completions
    Algorithm     compute_advantages, compute_token_losses          defines the gradient (in rlvr.contracts.algorithm)
    Tool          methods marked @tool                              can be called by a policy (in rlvr.contracts.tool)
A plugin's constructor takes keyword arguments only: its signature is its schema. The registry builds the plugins that `needs` names.
"""

from rlvr.contracts.admission import CapacityLimiter
from rlvr.contracts.environment import Environment, EnvironmentTraits, EnvironmentWrapper
from rlvr.contracts.explanation import Explanation
from rlvr.contracts.plugin import Plugin
from rlvr.contracts.sampler import ChatPrompt, Completion, Request, RequestQueue, Sampler, SamplerTraits, SamplingParams, StaticQueue
from rlvr.contracts.sandbox import CheckerProgram, ExecutionResult, ExitStatus, Limits, Program, Sandbox, SandboxSession, SandboxSpec
from rlvr.contracts.sandbox_files_session import SandboxFilesSession
from rlvr.contracts.session import Session, StepResult, Transcript
from rlvr.contracts.tokenizer import Tokenizer
from rlvr.contracts.toolsession import ToolSession
from rlvr.contracts.verifier import Verifier, VerifierExample, VerifierTraits
from rlvr.contracts.weights import LoraAdapter, Weights

__all__ = [
    "CapacityLimiter",
    "ChatPrompt",
    "CheckerProgram",
    "Completion",
    "Environment",
    "EnvironmentTraits",
    "EnvironmentWrapper",
    "ExecutionResult",
    "ExitStatus",
    "Explanation",
    "Limits",
    "LoraAdapter",
    "Plugin",
    "Program",
    "Request",
    "RequestQueue",
    "Sampler",
    "SamplerTraits",
    "SamplingParams",
    "Sandbox",
    "SandboxFilesSession",
    "SandboxSession",
    "SandboxSpec",
    "Session",
    "StaticQueue",
    "StepResult",
    "Tokenizer",
    "ToolSession",
    "Transcript",
    "Verifier",
    "VerifierExample",
    "VerifierTraits",
    "Weights",
]
