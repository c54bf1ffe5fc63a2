"""rlvr: environments and verifiers for reinforcement learning from verifiable rewards.

Everything a user of the library needs is here, and is loaded when it is first used: `import rlvr` imports no torch, transformers, vllm,
sympy or docker. `docs/library.md` is the tour.

>>> import rlvr
>>> rlvr.verify("numeric", answer="4", reference="4").score
1.0
"""

from __future__ import annotations

import importlib
import os
import sys
from typing import TYPE_CHECKING, Any

from rlvr.mdp._gymnasium import register_when_imported as _register_when_imported

if not os.path.isdir(os.path.join(__path__[0], "envs")) and os.path.isfile(os.path.join(__path__[0], "..", "envs", "arithmetic.py")):
    # a checkout without symbolic links, such as a downloaded archive: envs/, verifiers/ and sandbox/ are found beside rlvr/
    __path__.append(os.path.dirname(__path__[0]))

if TYPE_CHECKING:
    from rlvr.api import (
        evaluate,
        generate,
        list,
        load_evaluation,
        load_model,
        load_run,
        load_tokenizer,
        make,
        make_algorithm,
        make_env,
        make_sampler,
        make_sandbox,
        make_tool,
        make_vec,
        make_verifier,
        register,
        run_code,
        train,
        verify,
        verify_many,
    )
    from rlvr.contracts import (
        CheckerProgram,
        Completion,
        Environment,
        ExecutionResult,
        ExitStatus,
        Limits,
        Program,
        Request,
        Sampler,
        SamplingParams,
        Sandbox,
        SandboxFilesSession,
        SandboxSession,
        SandboxSpec,
        Session,
        StepResult,
        Tokenizer,
        ToolSession,
        Transcript,
        Verifier,
        VerifierExample,
    )
    from rlvr.contracts.algorithm import Algorithm
    from rlvr.contracts.tokenizer import LoadedModel
    from rlvr.contracts.tool import Tool, ToolExample, tool
    from rlvr.episode import Episode, StopReason
    from rlvr.errors import RlvrError, ToolError
    from rlvr.mdp.env import TokenEnv
    from rlvr.rollout.rollout import Rollout
    from rlvr.runs.run import Run
    from rlvr.task import Fault, Message, StepReward, Task, Verdict, make_user_prompt
    from rlvr.training.callbacks import BestCheckpoint, Callback
    from rlvr.training.trainer import Trainer
    from rlvr.training.update.learner import Learner
    from rlvr.turns import Call, Turn

__version__ = "0.1.0"

_SOURCES = {
    "rlvr.api": (
        *(
            "evaluate",
            "generate",
            "list",
            "load_evaluation",
            "load_model",
            "load_run",
            "load_tokenizer",
            "make",
            "make_algorithm",
            "make_env",
            "make_sampler",
        ),
        *("make_sandbox", "make_tool", "make_vec", "make_verifier", "register", "run_code", "train", "verify", "verify_many"),
    ),
    "rlvr.contracts": (
        *(
            "CheckerProgram",
            "Completion",
            "Environment",
            "VerifierExample",
            "ExecutionResult",
            "ExitStatus",
            "Limits",
            "Program",
            "Request",
            "Sampler",
        ),
        *("SamplingParams", "Sandbox", "SandboxFilesSession", "SandboxSession", "SandboxSpec", "Session", "StepResult"),
        *("Tokenizer", "ToolSession", "Transcript", "Verifier"),
    ),
    "rlvr.contracts.algorithm": ("Algorithm",),
    "rlvr.contracts.tokenizer": ("LoadedModel",),
    "rlvr.contracts.tool": ("Tool", "ToolExample", "tool"),
    "rlvr.episode": ("Episode", "StopReason"),
    "rlvr.errors": ("RlvrError", "ToolError"),
    "rlvr.mdp.env": ("TokenEnv",),
    "rlvr.rollout.rollout": ("Rollout",),
    "rlvr.runs.run": ("Run",),
    "rlvr.task": ("Fault", "Message", "StepReward", "Task", "Verdict", "make_user_prompt"),
    "rlvr.training.callbacks": ("BestCheckpoint", "Callback"),
    "rlvr.training.trainer": ("Trainer",),
    "rlvr.training.update.learner": ("Learner",),
    "rlvr.turns": ("Call", "Turn"),
}
_MODULE_OF = {name: module for module, names in _SOURCES.items() for name in names}
_EXTRA_OF = {"torch": "train", "transformers": "train", "accelerate": "train"}

__all__ = [
    "Algorithm",
    "BestCheckpoint",
    "Call",
    "Callback",
    "CheckerProgram",
    "Completion",
    "Environment",
    "Episode",
    "ExecutionResult",
    "ExitStatus",
    "Fault",
    "Learner",
    "Limits",
    "LoadedModel",
    "Message",
    "Program",
    "Request",
    "RlvrError",
    "Rollout",
    "Run",
    "Sampler",
    "SamplingParams",
    "Sandbox",
    "SandboxFilesSession",
    "SandboxSession",
    "SandboxSpec",
    "Session",
    "StepResult",
    "StepReward",
    "StopReason",
    "Task",
    "TokenEnv",
    "Tokenizer",
    "Tool",
    "ToolError",
    "ToolExample",
    "ToolSession",
    "Trainer",
    "Transcript",
    "Turn",
    "Verdict",
    "Verifier",
    "VerifierExample",
    "evaluate",
    "generate",
    "list",
    "load_evaluation",
    "load_model",
    "load_run",
    "load_tokenizer",
    "make",
    "make_algorithm",
    "make_env",
    "make_sampler",
    "make_sandbox",
    "make_tool",
    "make_user_prompt",
    "make_vec",
    "make_verifier",
    "register",
    "run_code",
    "tool",
    "train",
    "verify",
    "verify_many",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """Load a public name when it is first used."""
    if (module := _MODULE_OF.get(name)) is None:
        from rlvr.hints import is_import_from, suggest_name, suggest_rlvr_call
        from rlvr.synonyms import find_function

        if (function := find_function(name)) is not None:
            return function
        plugins = {} if name.startswith("_") else __getattr__("list")()
        made = next((f"write rlvr.make_{kind}({name!r})" for kind, names in plugins.items() if name in names), "")
        message = f"rlvr has no {name!r}; {suggest_rlvr_call(name) or made or suggest_name(name, __all__)}"
        # `from rlvr import name` turns an AttributeError into a message of its own; a module of that name is found all the same
        if is_import_from(sys._getframe(1)) and f"rlvr.{name}" not in sys.modules:
            raise ImportError(message, name="rlvr", path=__file__)
        raise AttributeError(message, name=name, obj=None)
    try:
        value = getattr(importlib.import_module(module), name)
    except ModuleNotFoundError as error:
        if (package := (error.name or "").partition(".")[0]) in _EXTRA_OF:
            from rlvr.errors import MissingExtra

            raise MissingExtra(package, _EXTRA_OF[package]) from error
        raise
    globals()[name] = value
    return value


class _MissingModules:
    """The last finder of modules: it says that the public names are here, if a module of rlvr is imported that does not exist."""

    @staticmethod
    def find_spec(fullname: str, path: object = None, target: object = None) -> None:
        package, _, name = fullname.partition(".")
        if package != "rlvr" or "." in name:
            return
        from rlvr.hints import suggest_name, suggest_rlvr_call

        hint = suggest_rlvr_call(name) or suggest_name(name, __all__)
        raise ModuleNotFoundError(f"rlvr has no module {name!r}: its public names are in rlvr itself; {hint}", name=fullname)


def __dir__() -> Any:
    """All public names, for completion in a notebook."""
    return sorted(["__version__", *_MODULE_OF])


_register_when_imported()
sys.meta_path.append(_MissingModules)
