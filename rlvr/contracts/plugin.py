"""The base class of all plugins."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from rlvr.errors import ConfigError
from rlvr.hints import ANSWER_COLUMNS, VERIFIER_WORDS, Hinted

CONTRACT_VERSION = 1
"""The version of the contracts in `rlvr.contracts`; raised when a plugin that was written for them would no longer work."""
F = TypeVar("F", bound=Callable[..., Any])


def mark_default_implementation(method: F) -> F:
    """Mark a contract's method as its default, which a plugin may leave as it is; `is_default_implementation` tells later whether the
    plugin overrode it.
    """
    vars(method)["is_default_implementation"] = True
    return method


def is_default_implementation(method: Callable[..., Any]) -> bool:
    """Return whether a method is the contract's own, and not the plugin's.

    >>> is_default_implementation(mark_default_implementation(lambda: 0)), is_default_implementation(lambda: 0)
    (True, False)
    """
    return getattr(method, "is_default_implementation", False) is True


def read_signature(factory: Callable[..., Any]) -> inspect.Signature:
    """Return the signature of a function, or of the constructor of a class.

    Before Python 3.11.4 `inspect.signature` shows the `__new__` of a base class, such as that of `Plugin`, instead of `__init__`.

    >>> class Half:
    ...     def __new__(cls, *args, **kwargs): return super().__new__(cls)
    >>> class Whole(Half):
    ...     def __init__(self, size=1): ...
    >>> read_signature(Whole)
    <Signature (size=1)>
    """
    if isinstance(factory, type) and factory.__init__ is not object.__init__ and not hasattr(factory, "__signature__"):  # type: ignore[misc]
        whole = inspect.signature(factory.__init__)  # type: ignore[misc]
        return whole.replace(parameters=[*whole.parameters.values()][1:], return_annotation=inspect.Signature.empty)
    return inspect.signature(factory)


def reject_unused_settings(plugin: type, given: Mapping[str, Any], reason: str) -> None:
    """Raise ConfigError if settings that have no effect differ from their defaults: nothing that a user sets is ignored silently.

    Args:
        plugin: the class, whose constructor has the defaults.
        given: the values of the settings that have no effect; other names, and settings without a default, are not looked at.
        reason: goes on after "have no effect": without what, and what to do.
    """
    defaults = {name: spec.default for name, spec in read_signature(plugin).parameters.items() if spec.default is not spec.empty}
    plain = {name: tuple(value) if isinstance(value, list) else value for name, value in given.items()}
    changed = [name for name, default in defaults.items() if name in plain and plain[name] != default]
    if changed:
        named = " and ".join(filter(None, (", ".join(changed[:-1]), changed[-1])))
        raise ConfigError(f"{named} {'has' if len(changed) == 1 else 'have'} no effect {reason}")


@dataclass(frozen=True, slots=True)
class SmallestPlugin:
    """A plugin of one kind that works, as short as it can be: what a message about an incomplete class shows.

    >>> SMALLEST_PLUGINS["Verifier"].kind
    'verifier'
    """

    kind: str
    code: str
    has_template: bool = True
    """Whether `rlvr new` writes a package with one."""


SMALLEST_PLUGINS: Mapping[str, SmallestPlugin] = {
    "Environment": SmallestPlugin(
        "env",
        """\
class MyEnv(rlvr.Environment):
    needs = {"verifier": "numeric"}

    def task(self, split, index):
        return rlvr.Task(f"{index} + 1 =", reference=str(index + 1))""",
    ),
    "Verifier": SmallestPlugin(
        "verifier",
        """\
class MyVerifier(rlvr.Verifier):
    def verify(self, task, answer):
        return rlvr.Verdict(float(answer.strip() == task.reference), f"compared with {task.reference!r}")""",
    ),
    "Sandbox": SmallestPlugin(
        "sandbox",
        """\
class MySandbox(rlvr.Sandbox):
    def run_program(self, program):
        return rlvr.ExecutionResult(rlvr.ExitStatus.OK, exit_code=0, stdout_bytes=b"")""",
        has_template=False,
    ),
    "Sampler": SmallestPlugin(
        "sampler",
        """\
class MySampler(rlvr.Sampler):
    def stream_completions(self, requests, sampling):
        for index, request in enumerate(requests):
            yield index, rlvr.Completion(tokens=[0], logprobs=[0.0], finish_reason="stop")""",
    ),
    "Tool": SmallestPlugin(
        "tool",
        """\
class MyTool(rlvr.Tool):
    @rlvr.tool
    def double(self, number: int) -> str:
        "Double a number."
        return str(2 * number)""",
    ),
    "Algorithm": SmallestPlugin(
        "algorithm",
        """\
def advantage(answers):
    return [[reward or 0.0 for reward in group] for group in answers.rewards]

algorithm = rlvr.make_algorithm("grpo", advantage=advantage)""",
    ),
}
"""The smallest plugin of each kind, by the name of its contract."""


SMALLEST_CONVERSATION = SmallestPlugin(
    "env",
    """\
class MyEnv(rlvr.Environment):
    needs = {"verifier": "numeric"}
    max_turns = 2

    def task(self, split, index):
        return rlvr.Task(f"{index} + 1 =", reference=str(index + 1))

    def reply(self, task, completions):
        return "Are you sure?" if len(completions) < 2 else None  # None ends the conversation""",
)
"""The smallest environment that answers the policy."""
METHODS_ELSEWHERE: Mapping[str, str] = {
    **dict.fromkeys(("env_response", "is_completed", "setup_state"), "what it answers to a turn is returned by `reply`, or by a `Session`"),
    **dict.fromkeys(
        ("reset", "step"),
        "`reset` and `step` are those of its Gymnasium environment rlvr.make(MyEnv), what it answers to a turn is returned by `reply`, and "
        "a verifier gives the reward",
    ),
    **dict.fromkeys(
        ("compute_reward", "evaluate", "grade", "reward", "reward_fn", "score", "verify"),
        "a verifier gives the reward, and a function f(completion, answer) is one: rlvr.make_env(MyEnv, verifier=f)",
    ),
}
"""Methods of environments of other libraries, and what there is instead."""


def describe_smallest(contract: str) -> str:
    """Return the end of a message about a class that is no complete plugin: the smallest one that is, as code."""
    smallest = SMALLEST_PLUGINS[contract]
    more = f"\n\n`rlvr new {smallest.kind} NAME` writes a package with one and its test" if smallest.has_template else ""
    if contract == "Environment":
        more += "; rlvr.make_env(MyEnv) builds it with its verifier, and rlvr.train(model=..., env=MyEnv) trains on it"
    return f"; the smallest {smallest.kind} that works:\n\n{smallest.code}{more}"


def describe_missing_methods(plugin: type) -> str:
    """Say which methods of its contract a class lacks or has with other arguments, with the smallest class that has them; "" if none.

    >>> describe_missing_methods(Plugin)
    ''
    """
    if told := _describe_wrong_verify(plugin) or _describe_wrong_arguments(plugin) or _describe_idle_methods(plugin):
        return told
    missing = [f"`{name}`" for name in sorted(getattr(plugin, "__abstractmethods__", ()))]
    contract = next((base for base in plugin.__mro__ if _is_contract(base)), None) if missing else None
    if contract is None:
        return ""
    kind = SMALLEST_PLUGINS[contract.__name__].kind
    elsewhere = dict.fromkeys(METHODS_ELSEWHERE[name] for name in vars(plugin) if kind == "env" and name in METHODS_ELSEWHERE)
    about = "; ".join([f"{kind} {plugin.__name__!r} lacks the method{'s' * (len(missing) > 1)} {', '.join(missing)}", *elsewhere])
    if {"env_response", "reset", "step"} & vars(plugin).keys():
        return (
            f"{about}; the smallest conversation that works:\n\n{SMALLEST_CONVERSATION.code}\n\nrlvr.make_env(MyEnv) builds it with its verifier; "
            "a class whose `step` pays its own rewards derives from rlvr.Env"
        )
    return about + describe_smallest(contract.__name__)


def _describe_idle_methods(plugin: type) -> str:
    """Say that methods of environments of another library would never be called in a class that is complete; "" otherwise."""
    idle = [name for name in ("env_response", "is_completed") if name in vars(plugin)]
    is_env = any(base.__name__ == "Environment" and _is_contract(base) for base in plugin.__mro__)
    if not idle or not is_env or bool(getattr(plugin, "__abstractmethods__", False)):
        return ""
    return (
        f"env {plugin.__name__!r} has {' and '.join(idle)}, which nothing calls; {METHODS_ELSEWHERE['env_response']}; the smallest conversation "
        f"that works:\n\n{SMALLEST_CONVERSATION.code}"
    )


def _describe_wrong_verify(plugin: type) -> str:
    """Say that a verifier's `verify` takes the answer where it gets the task, as scorers of other libraries do; "" otherwise."""
    verify = vars(plugin).get("verify")
    names = [*inspect.signature(verify).parameters][1:] if inspect.isfunction(verify) else []
    if len(names) < 2 or names[0] not in (*ANSWER_COLUMNS, "answer", "text"):
        return ""
    return (
        f"{plugin.__name__}.verify takes ({', '.join(names)}), and is called with the task first: write verify(self, task, answer), where "
        f"task.reference is the right answer; or leave the class out: a function f({', '.join(names[:2])}) is a verifier too"
    )


def _describe_wrong_arguments(plugin: type) -> str:
    """Say that a method of an environment takes other arguments than it is called with; "" otherwise."""
    if not any(_is_contract(base) and base.__name__ == "Environment" for base in plugin.__mro__):
        return ""
    for name, given in (("task", ("split", "index")), ("reply", ("task", "completions"))):
        method = vars(plugin).get(name)
        if inspect.isfunction(method):
            try:
                inspect.signature(method).bind(None, *given)
                if [*inspect.signature(method).parameters][1:2] == ["messages"]:
                    raise TypeError
            except TypeError:
                taken = ", ".join([*inspect.signature(method).parameters][1:])
                return f"{plugin.__name__}.{name} takes ({taken}), and is called as {name}({', '.join(given)})" + (
                    describe_smallest("Environment")
                    if name == "task"
                    else f"; the smallest conversation that works:\n\n{SMALLEST_CONVERSATION.code}"
                )
    return ""


def _is_contract(plugin: type) -> bool:
    """Return whether a class is the contract of a kind of plugin itself."""
    return plugin.__module__.startswith("rlvr.contracts.") and plugin.__name__ in SMALLEST_PLUGINS


def is_stepped_class(plugin: type) -> bool:
    """Return whether a class derives from `Environment` and has Gymnasium's `reset` and `step` instead of `task`."""
    missing: frozenset[str] = getattr(plugin, "__abstractmethods__", frozenset())
    has_both = all(callable(getattr(plugin, name, None)) and name not in missing for name in ("reset", "step"))
    return has_both and "task" in missing and any(base.__name__ == "Environment" and _is_contract(base) for base in plugin.__mro__)


def make_stepped_factory(plugin: type, *args: Any, **kwargs: Any) -> Callable[..., Any]:
    """Return a function that builds an object of such a class, for its `reset` and `step` alone; it takes further settings."""

    def build(**more: Any) -> Any:
        concrete = type(plugin)(plugin.__name__, (plugin,), {"task": lambda self, split, index: None, "needs": {}})
        return concrete(*args, **{**kwargs, **more})

    build.__name__ = plugin.__name__
    build.reward_range = getattr(plugin, "reward_range", None)  # type: ignore[attr-defined]
    return build


class Plugin(Hinted):
    """The base class of all plugins. Declares the plugins that it needs, its availability check and its cleanup."""

    if not TYPE_CHECKING:

        def __new__(cls, *args: Any, **kwargs: Any) -> Any:
            """Refuse to build a contract itself, or a class that lacks a method: the message says how one is built, and which is complete."""
            if is_stepped_class(cls):
                import rlvr

                return rlvr.make_env("text_env", env_class=make_stepped_factory(cls, *args, **kwargs))
            missing = describe_missing_methods(cls)
            if _is_contract(cls) and (args or kwargs or missing):
                maker = f"make_{SMALLEST_PLUGINS[cls.__name__].kind}"
                verifier = "..." if kwargs.keys() & {"verifier", *VERIFIER_WORDS} else "'exact'"
                about = f"rlvr.{cls.__name__} is a base class; write rlvr.{maker}(name, **settings), or subclass it"
                if cls.__name__ == "Sandbox":
                    about = "rlvr.Sandbox is a base class; write rlvr.make_sandbox().run(code, timeout=5), whose .stdout is the output"
                if cls.__name__ == "Environment" and kwargs.keys() & {"data", "dataset", "rows", "eval_dataset"}:
                    raise TypeError(
                        f"rlvr.Environment is a base class; for questions with answers write rlvr.make_env(data, verifier={verifier}), where "
                        "name=, system=, question= and reference= are its name, the system message and the columns"
                    )
                if cls.__name__ == "Environment":
                    about += f"; for questions with answers write rlvr.make_env(data, verifier={verifier})"
                raise TypeError(about + describe_smallest(cls.__name__))
            if missing:
                raise TypeError(missing)
            is_plain = cls.__init__ is object.__init__ or getattr(cls.__init__, "__qualname__", "") == "Environment.__init__"
            unknown = kwargs.keys() - (set() if cls.__init__ is object.__init__ else {"verifier"})
            if (args or unknown) and is_plain:  # Python ignores them where `__new__` takes them
                lost = min(unknown, default="positional arguments")
                raise TypeError(f"{cls.__name__} has no `__init__`, so {lost} would be ignored; write one that takes it, or leave it out")
            required = [name for name, spec in read_signature(cls).parameters.items() if spec.default is spec.empty] if cls.needs else []
            if lost := [name for name in required if name in cls.needs and name not in kwargs and not args]:
                kind = next((SMALLEST_PLUGINS[base.__name__].kind for base in cls.__mro__ if _is_contract(base)), "plugin")
                raise TypeError(
                    f"{cls.__name__}() needs {' and '.join(lost)}; write rlvr.make_{kind}({cls.__name__}), which builds what the class needs, "
                    f"or {cls.__name__}({', '.join(f'{name}=...' for name in lost)}) with objects"
                )
            return super().__new__(cls)

    contract_version: ClassVar[int | None] = None
    """The version of the contracts that the plugin is written for, `rlvr.contracts.plugin.CONTRACT_VERSION` of that time; None: not stated.
    A plugin that is written for another version is refused, with the reason, instead of failing somewhere.
    """
    needs: ClassVar[Mapping[str, str | Sequence[str]]] = {}
    """Constructor arguments that are plugins themselves, with the default name of each: {"verifier": "symbolic"}.

    A list of plugins is named by the plural of its kind: {"tools": ["calculator"]}. With `tools`, a `sandbox` is built only if one of the
    tools needs it; otherwise it is None. A default of "" means that the argument is required.
    """

    setting_hints: ClassVar[Mapping[str, str]] = {}
    """What to write here for settings that the plugin does not have and users expect: {"timeout": "write limits={'wall_s': 5}"}."""

    def prepare(self) -> None:
        """Check, before long work begins, that all dependencies are available; raise an RlvrError if one is not."""
        for needed in (getattr(self, name, None) for name in self.needs):
            for plugin in needed if isinstance(needed, list | tuple) else [needed]:
                if isinstance(plugin, Plugin):
                    plugin.prepare()

    def close(self) -> None:
        """Release processes, containers and files. May be called more than once."""

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
