"""The doors: what each kind of plugin promises, and the small records that pass through.

Five kinds of plugin exist, each with one or two methods that matter:
    Environment   task(split, index) -> Task           what is asked (text only; tokens are TokenEnv's business)
    Verifier      verify(task, answer) -> Verdict      what is judged
    Sandbox       run(Program) -> Outcome              where foreign code runs
    Sampler       sample(prompts, ...) -> Completions  who answers
    Algorithm     credit(groups), losses(inputs)       what is learned from it (in rlvr.contracts.algorithm)
A plugin's constructor takes keyword arguments only: its signature is its schema. The registry fills in the plugins that `needs` names.
"""

from rlvr.contracts.environment import Environment
from rlvr.contracts.plugin import Plugin
from rlvr.contracts.sampler import Completion, Feed, Listed, Request, Sampler, Sampling
from rlvr.contracts.sandbox import Judge, Limits, Outcome, Program, Sandbox, Stop
from rlvr.contracts.session import Heard, Session, Transcript
from rlvr.contracts.tokenizer import Tokenizer
from rlvr.contracts.verifier import Example, Verifier

__all__ = [
    "Completion",
    "Environment",
    "Example",
    "Feed",
    "Heard",
    "Judge",
    "Limits",
    "Listed",
    "Outcome",
    "Plugin",
    "Program",
    "Request",
    "Sampler",
    "Sampling",
    "Sandbox",
    "Session",
    "Stop",
    "Tokenizer",
    "Transcript",
    "Verifier",
]
