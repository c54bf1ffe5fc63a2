"""What users of TRL, Gymnasium, verifiers and inspect type first, and the call that does it here: the table of error messages for them.

A name that this library has is not in the table, and nothing here makes a call work: it only makes the error say the right call.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")
C = TypeVar("C")

PLUGIN_WORDS: Mapping[str, str] = {
    "env": "env",
    "envs": "env",
    "environment": "env",
    "environments": "env",
    "verifier": "verifier",
    "verifiers": "verifier",
    "reward": "verifier",
    "rewards": "verifier",
    "rubric": "verifier",
    "scorer": "verifier",
    "scorers": "verifier",
    "tool": "tool",
    "tools": "tool",
    "sandbox": "sandbox",
    "sandboxes": "sandbox",
    "sampler": "sampler",
    "samplers": "sampler",
    "algorithm": "algorithm",
    "algorithms": "algorithm",
    "algo": "algorithm",
}
NAMES: Mapping[str, str] = {
    "TrainerCallback": "subclass rlvr.Callback and pass callbacks=[...] to rlvr.train or rlvr.Trainer",
    "Rubric": "rlvr.make_verifier({'symbolic': 0.8, 'format': 0.2}) is a weighted mix of verifiers",
    "Dataset": "a list of dicts, a file or a `datasets.Dataset` is an environment: rlvr.make_env(data, verifier='symbolic')",
    "Model": "rlvr.load_model(folder) returns a transformers model and its tokenizer",
    "Policy": "a policy is a text such as 'hf:DIR', a model, or a function from a prompt to a completion: rlvr.evaluate(env, policy=...)",
    "Config": "settings are keywords: rlvr.train(model=..., env=..., steps=10, learning_rate=1e-6)",
    "Group": "a group is a list of episodes: rlvr.Rollout(env, tokenizer, sampler).sample(task, n=8)",
    "LLM": "rlvr.make_sampler('vllm', model=folder)",
    "verify_batch": "rlvr.verify_many(verifier, answers, references)",
    "score": "rlvr.verify(verifier, answer, reference).score",
    "sample": "rlvr.Rollout(env, tokenizer, sampler).sample(tasks, n=8)",
    "generate": "rlvr.Rollout(env, tokenizer, sampler).sample(tasks, n=8)",
    "rollout": "rlvr.Rollout(env, tokenizer, sampler).sample(tasks, n=8)",
    "eval": "rlvr.evaluate(env, policy=...)",
    "resume": "rlvr.train(recipe, out='runs/a', resume=True)",
    "help": "help(rlvr.verify), or `rlvr show verifier symbolic` in a shell",
}
"""Names in the module that do not exist."""
NAME_PATTERNS: tuple[tuple[str, str], ...] = (
    (r"(?:GRPO|PPO|RLOO|DPO|SFT)Trainer", "rlvr.Trainer(model=..., env=..., algorithm='grpo') or rlvr.train(...)"),
    (r"\w*(?:Config|Args|Arguments)", NAMES["Config"]),
    (r"\w+Env|\w*Environment", "subclass rlvr.Environment, or give data: rlvr.make_env([{'question': ..., 'answer': ...}])"),
    (r"(?:list|available|all)_(\w+)", "rlvr.list({kind!r})"),
    (r"(?:register|add)_?\w*", "nothing is registered: pass the class, the object or the function itself, such as verifier=function"),
    (r"(?:load|get|create|build)_(\w+)", "rlvr.make_{kind}(name, **settings)"),
)
"""Patterns of such names; {kind} is the kind of plugin that the name speaks of."""
PLUGINS: Mapping[str, str] = {
    "math": "symbolic",
    "math_verify": "symbolic",
    "sympy": "symbolic",
    "exact_match": "exact",
    "equality": "exact",
    "code": "unit_tests",
    "python_tests": "unit_tests",
    "judge": "llm_judge",
    "transformers": "hf",
    "huggingface": "hf",
    "subprocess": "process",
    "local": "process",
}
"""Names of plugins in other libraries, and the plugin here."""
KEYWORDS: Mapping[str, str] = {
    "algo": "algorithm=",
    "answer": "reference=, the right answer; the answer of the policy is given when it is verified",
    "kl_coef": "beta=",
    "num_tasks": "tasks=, the number of tasks",
    "timeout": "the limit with the call: sandbox.run(code, timeout=5); in rlvr.Limits: wall_s=5",
    "args": "keywords, such as steps=10, learning_rate=1e-6",
    "batch_size": "prompts_per_step=, the number of prompts of one training step",
    "config": "settings={'train.steps': 10}, or keywords such as steps=10",
    "dataset": "data=",
    "environment": "env=",
    "epochs": "steps=",
    "group_size": "num_generations=",
    "gamma": "algorithm={'name': 'ppo', 'gamma': ...}",
    "beta": "algorithm={'name': 'grpo', 'beta': ...}",
    "epsilon": "algorithm={'name': 'grpo', 'epsilon': ...}",
    "k": "n=, the number of answers for each task; pass@k is reported for every k up to n",
    "limit": "tasks=, the number of tasks",
    "log_dir": "out=",
    "lr": "learning_rate=",
    "max_steps": "steps=",
    "max_tokens": "max_new_tokens=",
    "max_completion_length": "max_new_tokens=",
    "num_examples": "tasks=, the number of tasks",
    "num_samples": "n=, the number of answers for each task",
    "num_steps": "steps=",
    "output_dir": "out=",
    "policy_model": "policy=",
    "resume_from": "out='runs/a', resume=True",
    "resume_from_checkpoint": "out='runs/a', resume=True",
    "reward_fn": "verifier=",
    "reward_func": "verifier=",
    "reward_funcs": "verifier=",
    "rollouts_per_example": "n=, the number of answers for each task",
    "rubric": "verifier=",
    "scorer": "verifier=",
    "train_dataset": "data=",
    "weights": "one mapping: {'symbolic': 0.8, 'format': 0.2}",
}
"""Keywords of other libraries, and how they are written here."""


def explain_name(name: str) -> str:
    """Return the call that does here what a name promises elsewhere, or "".

    >>> explain_name("list_verifiers")
    "write rlvr.list('verifier')"
    """
    if found := NAMES.get(name):
        return f"write {found}" if found.startswith("rlvr.") else found
    for pattern, call in NAME_PATTERNS:
        if match := re.fullmatch(pattern, name):
            kind = PLUGIN_WORDS.get(match.group(1).rpartition("_")[2], "") if match.groups() else ""
            if "{kind" in call and not kind:
                continue
            call = call.format(kind=kind) if kind else call
            return f"write {call}" if call.startswith("rlvr.") else call
    return ""


def explain_keyword(name: str) -> str:
    """Return how a keyword of another library is written here, or "".

    >>> explain_keyword("group_size")
    'write num_generations='
    """
    return f"write {KEYWORDS[name]}" if name in KEYWORDS else ""


def explain_plugin_setting(kind: str, name: str, known: Iterable[str]) -> str:
    """Return how a setting of a plugin is written here, or "": a keyword of a training run is no help for a tool that lacks it.

    >>> explain_plugin_setting("algorithm", "kl_coef", ["beta"]), explain_plugin_setting("tool", "limit", ["size"])
    ('write beta=', '')
    """
    target = KEYWORDS.get(name, "").partition("=")[0]
    applies = target in known or (kind, name) in (("sandbox", "timeout"), ("env", "max_tokens"))
    return explain_keyword(name) if applies else ""


def find_plugin(wanted: str, names: Iterable[str]) -> str:
    """Return the plugin among `names` that another library calls `wanted`, or "".

    >>> find_plugin("math", ["numeric", "symbolic"])
    'symbolic'
    """
    found = PLUGINS.get(wanted, "")
    return found if found in names else ""


def explain_call(function: Callable[P, R]) -> Callable[P, R]:
    """Make a call with wrong arguments say how the function is called. For functions of the front door.

    >>> explain_call(explain_name)(nme="x")
    Traceback (most recent call last):
    TypeError: rlvr.explain_name: missing a required argument: 'name'; the call is rlvr.explain_name(name)
    """
    signature = inspect.signature(function)
    own = f"rlvr.{function.__qualname__.removesuffix('.__init__')}"

    def explain(error: TypeError, kwargs: Mapping[str, Any]) -> TypeError:
        wrong = next((key for key in kwargs if f"'{key}'" in str(error)), "")
        hint = f" {explain_keyword(wrong)};" if explain_keyword(wrong) else ""
        shown = [p.replace(annotation=p.empty) for p in signature.parameters.values() if p.name != "self"]
        return TypeError(f"{own}: {error};{hint} the call is {own}{inspect.Signature(shown)}")

    @functools.wraps(function)
    def called(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except TypeError:  # the arguments are only looked at again after an error: the call itself costs nothing
            try:
                signature.bind(*args, **kwargs)
            except TypeError as error:
                raise explain(error, kwargs) from None
            raise

    return called


def explain_constructor(made: type[C]) -> type[C]:
    """Do the same for the constructor of a class, as its decorator."""
    vars_of: Any = made
    vars_of.__init__ = explain_call(vars_of.__init__)
    return made


class Hinted:
    """A class whose objects say the right call when an attribute of other libraries is asked for, from its table `_hints`."""

    __slots__ = ()
    _hints: ClassVar[Mapping[str, str]] = {}

    if not TYPE_CHECKING:  # a type checker must still report attributes that do not exist

        def __getattr__(self, name: str) -> Any:
            """Raise the error of a missing attribute, with the right call if the table has it."""
            if hasattr(type(self), name):
                return object.__getattribute__(self, name)  # a property that raised AttributeError: raise its own error again
            hint = type(self)._hints.get(name)
            raise AttributeError(
                f"{type(self).__name__!r} object has no attribute {name!r}" + (f"; {hint}" if hint else ""), name=name, obj=self
            )
