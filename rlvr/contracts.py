"""The doors: what each kind of plugin promises, and the small records that pass through.

Five kinds of plugin exist, each with one or two methods that matter:
    Environment   task(split, index) -> Task           what is asked (text only; tokens are TokenEnv's business)
    Verifier      verify(task, answer) -> Verdict      what is judged
    Sandbox       run(Program) -> Outcome              where foreign code runs
    Sampler       sample(prompts, ...) -> Completions  who answers
    Algorithm     credit(groups), losses(inputs)       what is learned from it (in rlvr.algorithm)
A plugin's constructor takes keyword arguments only: its signature is its schema. The registry fills in the plugins that `needs` names.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, ClassVar, Literal, Protocol, runtime_checkable

from rlvr.errors import ConfigError, SandboxError, TextOnly
from rlvr.task import Earned, Message, Task, Verdict


@runtime_checkable
class Tokenizer(Protocol):
    """Where text meets tokens. Only `rlvr.mdp.env` and the samplers' edges ever call it."""

    @property
    def vocab_size(self) -> int:
        """How many token ids there are: the size of the action space."""
        ...

    @property
    def stop_ids(self) -> frozenset[int]:
        """Every id that ends a turn (EOS and its friends)."""
        ...

    @property
    def eos_id(self) -> int:
        """The stop id written where one has to be written."""
        ...

    def encode(self, text: str) -> list[int]:
        """Text to ids, with no special tokens added."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """Ids to text, stop ids left out. Never raises on ids inside the vocabulary."""
        ...

    def render(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] = ()) -> list[int]:
        """A conversation to ids, ready for the policy's turn. Contents are data: no text in them becomes a control token."""
        ...

    def render_reply(self, said: str | Sequence[Message]) -> list[int]:
        """What stands between the policy's closing stop id and its next turn. A text is one message of the user."""
        ...


class Plugin:
    """What every plugin shares: what it stands on, and how it is put away."""

    needs: ClassVar[Mapping[str, str]] = {}
    """Constructor arguments that are plugins themselves, with the default name of each: {"verifier": "symbolic"}."""

    def ready(self) -> None:
        """Raise an RlvrError when something it stands on does not answer here. Asked once, before long work begins."""
        for plugin in (getattr(self, name, None) for name in self.needs):
            if isinstance(plugin, Plugin):
                plugin.ready()

    def close(self) -> None:
        """Give back processes, containers and files. Called any number of times."""

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


@dataclass(frozen=True, slots=True)
class Example:
    """What a verifier says about itself: answers that deserve the full score for a reference, and answers that deserve the least.

    >>> Example(reference="95", right=("95", "95.0"), wrong=("59", "95 or 96")).right[0]
    '95'
    """

    reference: Any
    right: tuple[str, ...]
    wrong: tuple[str, ...] = ()
    meta: Mapping[str, Any] = field(default_factory=dict)
    """The task's `meta`, for verifiers that read it."""


class Verifier(TextOnly, Plugin, ABC):
    """Judges one answer. Pure, or pure given a sandbox; callable from any thread.

    `verify` gets the whole text the policy said and finds the answer in it by the declared channel. It never raises
    for what a text contains (it does for what is no text); a task it cannot judge is a verdict with fault `task`.
    """

    version: ClassVar[str] = "1"
    """Raised whenever a verdict may change; part of every cache key and of every run's record."""
    examples: ClassVar[Sequence[Example]] = ()
    """Cases that `check_verifier` holds the class to, with its default settings; at least one, with a right and a wrong answer."""

    @abstractmethod
    def verify(self, task: Task, answer: str) -> Verdict:
        """Judge `answer` against `task.reference`."""


class Environment(Plugin, ABC):
    """Poses tasks, in text. Subclass it, say what it needs, and write `task`. `reply`, `answer` and `earned` run in other threads.

    >>> class Doubling(Environment):
    ...     needs = {"verifier": "exact"}
    ...     def __init__(self, *, verifier: Verifier) -> None: self.verifier = verifier
    ...     def task(self, split: str, index: int) -> Task:
    ...         return Task(f"doubling/{split}/{index}", user(f"2 * {index} ="), reference=str(2 * index))
    """

    verifier: Verifier
    splits: ClassVar[tuple[str, ...]] = ("train", "test")
    max_turns: int = 1  # how many times the policy may speak
    max_prompt_tokens: int = 96  # room for the prompt where nobody says otherwise; what a character tokenizer needs
    max_new_tokens: int = 32  # room for the policy's tokens, all turns together, where nobody says otherwise

    @abstractmethod
    def task(self, split: str, index: int) -> Task:
        """The task at `index`: always the same one for the same (environment settings, split, index)."""

    def size(self, split: str) -> int | None:
        """How many tasks the split has; None for a procedural source that does not end."""
        return None

    def gold(self, task: Task) -> str | None:
        """A text that deserves the full score (in a multi-turn task: the first turn's), or None if none is known."""
        return None

    def reply(self, task: Task, said: Sequence[str]) -> str | None:
        """What the environment answers after the policy's turns `said`; None closes the conversation."""
        return None

    def answer(self, task: Task, said: Sequence[str]) -> str:
        """The text to be judged at the end. The default: the policy's last turn."""
        return said[-1] if said else ""

    def earned(self, task: Task, said: Sequence[str], verdict: Verdict) -> Sequence[Earned]:
        """When the score was earned; the amounts add up to it. The default: as the verifier says, which may be: all at the end."""
        return verdict.earned

    def close(self) -> None:
        """Close the verifier too; an environment that holds more closes that as well."""
        if (verifier := getattr(self, "verifier", self)) is not self:
            verifier.close()


class Stop(StrEnum):
    """The verdict of the sandbox on one run, in the words of programming contests."""

    OK = "OK"  # it ran to its end with exit status 0
    RE = "RE"  # it ended by itself with another status, or by a signal of its own making
    TLE = "TLE"
    MLE = "MLE"
    OLE = "OLE"
    CE = "CE"
    SV = "SV"  # it broke what it ran in, or did what is forbidden
    IE = "IE"  # the sandbox failed: never the program's fault, and never a score


@dataclass(frozen=True, slots=True)
class Limits:
    """What one program may use, children included.

    >>> Limits(wall_s=2.0, memory_mb=128).processes
    16
    """

    cpu_s: float = 5.0
    wall_s: float = 10.0
    memory_mb: int = 256
    output_bytes: int = 8_000_000
    file_mb: int = 16
    processes: int = 16

    def __post_init__(self) -> None:
        for name in self.__slots__:
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
                raise ValueError(f"limit {name} is {value!r}; it must be a number above 0")


@dataclass(frozen=True, slots=True)
class Judge:
    """A Python program of ours that questions a foreign one from a process of its own, across a channel that carries bytes only.

    Both start together, as different users. Each reads what the other says from descriptor 3 and answers on descriptor 4;
    what the judge alone writes to descriptor 5 is `Outcome.report`. Its standard input is `brief`.

    >>> Judge("import os; os.write(5, os.read(3, 100))").brief
    b''
    """

    source: str
    brief: bytes = b""


@dataclass(frozen=True, slots=True)
class Program:
    """A foreign program to run once, in a place of its own.

    >>> Program("print(input())", stdin=b"hello").language
    'python'
    """

    source: str
    stdin: bytes = b""
    language: Literal["python", "cpp", "javascript"] = "python"
    limits: Limits = field(default_factory=Limits)
    files: Mapping[str, bytes] = field(default_factory=dict)
    """Files that lie in the working folder; what the program does to them goes with the folder."""
    judge: Judge | None = None
    """Who questions it while it runs. The run then ends when the judge ends, and the limits hold for both together."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a program.

    >>> Outcome(Stop.OK, exit_code=0, stdout=b"hello").stop
    <Stop.OK: 'OK'>
    """

    stop: Stop
    exit_code: int | None = None
    stdout: bytes = b""
    stderr: bytes = b""
    cut: bool = False  # whether the output was cut short: a cut output is never graded
    cpu_s: float = 0.0
    wall_s: float = 0.0
    peak_mb: float = 0.0
    isolation: tuple[str, ...] = ()  # what really was applied, not what was asked for
    reason: str = ""
    report: bytes = b""
    """What came out of descriptor 5: the judge's word where there is a judge, else the program's own (and worth no more)."""


class Sandbox(Plugin, ABC):
    """Runs foreign programs where they can reach nothing of ours. Callable from any thread."""

    @abstractmethod
    def run(self, program: Program) -> Outcome:
        """Run it to its end or to its limits. A failure of the machinery is an Outcome with `Stop.IE`, not an exception."""

    def ready(self) -> None:
        """Run an empty program; SandboxError when the machinery fails even then."""
        if (outcome := self.run(Program(""))).stop is Stop.IE:
            raise SandboxError(outcome.reason)


@dataclass(frozen=True, slots=True)
class Sampling:
    """How to sample. The log-probabilities handed back are under exactly this distribution.

    >>> Sampling(temperature=1.0).top_p
    1.0
    """

    temperature: float = 1.0  # 0 is greedy
    top_p: float = 1.0
    top_k: int = 0  # 0 keeps the whole vocabulary
    stop_ids: frozenset[int] = frozenset()

    def __post_init__(self) -> None:
        if self.temperature < 0 or not 0 < self.top_p <= 1 or self.top_k < 0:
            raise ValueError(f"temperature {self.temperature} >= 0, 0 < top_p {self.top_p} <= 1 and top_k {self.top_k} >= 0 must hold")


@dataclass(frozen=True, slots=True)
class Request:
    """One turn to sample: ids in. `seed` alone decides its randomness, whatever else is sampled beside it.

    >>> Request(prompt=[1, 6, 2], max_tokens=8, seed=3).max_tokens
    8
    """

    prompt: Sequence[int]
    max_tokens: int
    seed: int = 0
    task: Task | None = None  # for samplers that read from a script; a model never sees it
    turn: int = 0

    def __post_init__(self) -> None:
        if not self.prompt or self.max_tokens < 1:
            raise ValueError(f"a request needs a prompt and room for a token, got {len(self.prompt)} and {self.max_tokens}")


@dataclass(frozen=True, slots=True)
class Completion:
    """One sampled turn: ids out, never re-tokenised. The stop id, when there is one, is the last token.

    >>> Completion(tokens=[7, 9, 0], logprobs=[-0.5, -0.1, -0.01], finish="stop").finish
    'stop'
    """

    tokens: list[int]
    logprobs: list[float]
    finish: Literal["stop", "length", "error"]
    error: str = ""
    usage: tuple[int, int] | None = None  # tokens read and written as an endpoint counts them, where `tokens` only writes down its text

    def __post_init__(self) -> None:
        if len(self.tokens) != len(self.logprobs):
            raise ValueError(f"{len(self.tokens)} tokens but {len(self.logprobs)} log-probabilities")
        if self.finish != "error" and not self.tokens:
            raise ValueError("a completion without a token is an error, and must say so")


class Sampler(Plugin, ABC):
    """Answers prompts. Several requests with the same prompt are a group, and a sampler may compute that prompt once."""

    policy_form: ClassVar[str] = ""  # how `rlvr eval --policy` addresses it, for example `hf:DIR`; empty when it cannot stand alone
    tokenizer: str | None = None  # the tokenizer that its tokens belong to, where the sampler is the one to decide
    gives_text: bool = False  # whether its tokens only write down a text: then limits hold in the tokens that `Completion.usage` counts
    holds_trainer_up: str = ""  # why it cannot sample in a thread of its own while the trainer trains; empty where it can
    company: ClassVar[int] = 0  # how many answers evaluation samples side by side where that decides their last bits; 0: it does not

    @classmethod
    def policy_settings(cls, rest: str) -> dict[str, Any]:
        """The constructor's settings for `--policy NAME:rest`."""
        raise ConfigError(f"{cls.__name__} cannot be used as a policy of its own")

    @abstractmethod
    def stream(self, requests: Sequence[Request], sampling: Sampling) -> Iterator[tuple[int, Completion]]:
        """Each request's index with its completion, in the order in which they end: verification begins at once."""

    def sample(self, requests: Sequence[Request], sampling: Sampling) -> list[Completion]:
        """All completions, in the order of the requests."""
        return [completion for _, completion in sorted(self.stream(requests, sampling), key=lambda pair: pair[0])]

    def bind(self, environment: Environment, tokenizer: Tokenizer) -> None:
        """Told once, before the first request, what the prompts are made of. Most samplers do not care."""

    def load(self, model: Any, version: int) -> None:
        """Take over the trainer's weights. Samplers without weights (the scripted one) leave this alone."""

    def rest(self) -> None:
        """Told when a step has all its answers: until the next `load` nothing is sampled, and memory may be lent to the trainer."""
