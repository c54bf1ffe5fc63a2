"""The front door: what `import rlvr` offers as functions. Each is a short call into the package that does the work.

    verify             score one answer; verify_many: score several
    make, make_vec     a Gymnasium environment by name, or several of them as one
    make_env, ...      build a plugin from a name, a mapping, a class, or an object of yours
    register           give a class or a function of yours a name
    run_code           run a program in a sandbox
    load_model         a Hugging Face model with its tokenizer
    generate           what a policy answers to prompts
    train, evaluate    whole runs
    load_run           a run folder as data frames; load_evaluation: the report of an evaluation

Everything here accepts names and objects alike. Heavy packages (torch, transformers) are imported when a function needs them.
"""

from __future__ import annotations

import builtins
import difflib
import functools
import inspect
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, overload

from rlvr.config.hub import is_model_folder
from rlvr.contracts import Environment, ExecutionResult, Program, Sampler, Sandbox, Tokenizer, Verifier
from rlvr.contracts.algorithm import Algorithm
from rlvr.contracts.plugin import read_signature
from rlvr.contracts.reward_function import RewardSignature
from rlvr.contracts.sandbox import Language
from rlvr.contracts.tokenizer import LoadedModel
from rlvr.contracts.tool import TOOL_MARKER_ATTRIBUTE, Tool
from rlvr.errors import ConfigError, NotFound, RlvrError, format_suggestion
from rlvr.hints import (
    ANSWER_COLUMNS,
    MEMORY_WORDS,
    NETWORK_WORDS,
    PLUGIN_WORDS,
    PLUGINS,
    REFERENCE_COLUMNS,
    SOLUTION_COLUMNS,
    VERIFIER_WORDS,
    add_usage_to_errors,
    explain_keyword,
    explain_plugin_setting,
)
from rlvr.mdp._gymnasium import register_when_imported
from rlvr.mdp.answer_faults import smoke_test_user_functions
from rlvr.mdp.sessions import verify_batch_safely
from rlvr.mdp.task_data import (
    describe_text_env,
    is_rows,
    is_task_data,
    is_task_list,
    list_data_settings,
    make_data_env,
    names_data_source,
    to_verifier,
    unwrap_environment,
    wrap_verifier_functions,
)
from rlvr.registry.plugins import (
    PLUGIN_KINDS,
    build,
    build_from_config,
    check_settings,
    get_parameters,
    get_plugin_label,
    is_function_plugin,
    is_registered_here,
    list_entries,
    load_factory,
)
from rlvr.registry.plugins import register as register_plugin
from rlvr.synonyms import SYNONYMS, VERIFIERS, accept_synonyms, translate_env_name, translate_keywords
from rlvr.task import Message, Task, Verdict

if TYPE_CHECKING:
    from rlvr.evaluation.report import EvalReport
    from rlvr.mdp.env import TokenEnv
    from rlvr.mdp.vector import TokenVectorEnv
    from rlvr.runs.run import Run
    from rlvr.training.train_report import TrainReport

Rows = Iterable[Mapping[str, Any]] | Sequence[Task]
AnyVerifier = str | Mapping[Any, Any] | Sequence[Any] | type | Verifier | Callable[..., Any]
DEFAULT_VERIFIER = "symbolic"
"""What `verify` takes for an answer and a reference without a verifier."""
VERIFY_CALL = "rlvr.verify('symbolic', answer=..., reference=...)"
VERIFY_MANY_CALL = "rlvr.verify_many(verifier, answers=[...], references=[...])"
P = TypeVar("P")


# ---- plugins ----------------------------------------------------------------------------------------------------------


@overload
def list(kind: str) -> builtins.list[str]: ...
@overload
def list() -> dict[str, builtins.list[str]]: ...
@add_usage_to_errors
def list(kind: str | None = None) -> Any:
    """List the names of all plugins of a kind: "env", "verifier", "sandbox", "sampler", "tool" or "algorithm"; None: of every kind.

    >>> "numeric" in list("verifier")
    True
    """
    if kind is None:
        return {name: list(name) for name in PLUGIN_KINDS}
    return [entry.name for entry in list_entries(PLUGIN_WORDS.get(kind, kind))]


@add_usage_to_errors
def make(env: str | Mapping[str, Any] | Environment | Rows | Path | None = None, /, *, tokenizer: Any = None, **settings: Any) -> TokenEnv:
    """Make the Gymnasium environment of an environment: with texts, or with the tokens of a tokenizer.

    Args:
        env: the environment, as in `make_env`.
        tokenizer: None: observations and actions are texts, whole turns. `chars`, a folder or a Hub id, or a tokenizer of transformers:
            observations are token ids; an action is one of them, or a text.
        settings: those of `TokenEnv`, such as max_new_tokens and obs; `seed`, with which the tasks of `reset` without a seed repeat; all
            others are settings of the environment.

    >>> env = make("arithmetic", levels=["1+1"])
    >>> question, info = env.reset(seed=0)
    >>> env.step("17")[1]
    0.0
    >>> make("arithmetic", tokenizer="chars").action_space
    Discrete(100)
    """
    from gymnasium.utils import seeding

    from rlvr.mdp.env import TokenEnv

    env, settings = _take_environment("make", env, settings)
    seed = _take_seed(env, settings)
    own, rest = _split_token_env_settings(tokenizer, translate_keywords("make", settings, keep=_list_parameters("env", env)))
    made = TokenEnv(make_env(env, **rest), **own)
    if seed is not None:
        made.np_random = seeding.np_random(seed)[0]
    return made


def _take_environment(call: str, env: Any, settings: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Return the environment of a call, also where it is given by a keyword, and the other settings."""
    words = [word for word in ("env", "environment", "dataset", "data") if env is None and word in settings]
    if env is None and len(words) != 1:
        found = f"{' and '.join(words)} are both given" if words else "no environment is given"
        verifier = "..." if settings.keys() & {"verifier", *VERIFIER_WORDS} else "'exact'"
        raise TypeError(f"rlvr.{call}: {found}; the call is rlvr.{call}(name, **settings), or rlvr.{call}(data, verifier={verifier})")
    wanted = translate_env_name(settings[words[0]] if words else env)
    rest = {name: value for name, value in settings.items() if name not in words}
    described = describe_text_env(wanted, rest)
    return (wanted, rest) if described is None else (described, {})


def _take_seed(env: Any, settings: dict[str, Any]) -> int | None:
    """Return the seed among the settings, and take it out of them if the environment has no such setting of its own."""
    seed = settings.get("seed")
    if not isinstance(seed, Integral) or isinstance(seed, bool):
        return None
    if "seed" not in _list_parameters("env", env):
        del settings["seed"]
    return int(seed)


def _list_parameters(kind: str, wanted: Any) -> builtins.list[str]:
    """List the settings of a plugin that is a name, a mapping with a name, a class or a function; none of anything else."""
    if isinstance(wanted, Mapping):
        wanted = wanted.get("name")
    if isinstance(wanted, str):
        try:
            return [*get_parameters(load_factory(kind, VERIFIERS.get(wanted, wanted)))]
        except RlvrError:
            return []
    return [*read_signature(wanted).parameters] if inspect.isclass(wanted) or inspect.isfunction(wanted) else []


@add_usage_to_errors
def make_vec(
    env: str | Mapping[str, Any] | Environment | Rows | Path | None = None, /, num_envs: int = 1, *, tokenizer: Any = None, **settings: Any
) -> TokenVectorEnv:
    """Make several Gymnasium environments that are stepped as one, and whose answers are verified in parallel.

    Args:
        env: the environment, as in `make_env`.
        num_envs: their number.
        tokenizer: as in `make`.
        settings: as in `make`, and those of `TokenVectorEnv`: autoreset_mode, workers, verify_timeout_s.

    >>> envs = make_vec("arithmetic", 3)
    >>> questions, infos = envs.reset(seed=0)
    >>> envs.step(["1", "2", "3"])[2].tolist()
    [True, True, True]
    """
    from gymnasium.utils import seeding

    from rlvr.mdp.vector import TokenVectorEnv

    env, settings = _take_environment("make_vec", env, settings)
    settings = translate_keywords("make", settings, keep=_list_parameters("env", env))
    seed = _take_seed(env, settings)
    vector = {name: settings.pop(name) for name in ("autoreset_mode", "workers", "verify_timeout_s") if name in settings}
    own, rest = _split_token_env_settings(tokenizer, settings)
    made = TokenVectorEnv(num_envs, env=make_env(env, **rest), **vector, **own)
    for place, one in enumerate(made.token_envs if seed is not None else ()):
        one.np_random = seeding.np_random((seed or 0) + place)[0]
    return made


def _split_token_env_settings(tokenizer: Any, settings: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Split settings into those of TokenEnv and those of the wrapped environment; without a tokenizer, observations are texts."""
    from rlvr.mdp.env import split_token_env_settings

    own, rest = split_token_env_settings(settings)
    return {**({"obs": "text"} if tokenizer is None else {}), "tokenizer": tokenizer, **own}, rest


@add_usage_to_errors
def make_env(env: str | Mapping[str, Any] | type | Environment | Rows | Path | None = None, /, **settings: Any) -> Environment:
    """Build an environment.

    Args:
        env: a name (`rlvr.list("env")`), a mapping with a name and settings, a class, an environment, or data: a file, a list of dicts
            or of `rlvr.Task`, a data frame, or a `datasets.Dataset`.
            Also as `dataset=`, `data=` or `env=`.
        settings: the settings of the environment, such as `levels=["2+2"]`; of data, such as `verifier="numeric"`. `system` is a system
            message before each question. The verifier's own instruction about the form of the answer follows the question all the same:
            a system message need not name the form. `instruction=""` leaves it out, where yours does. `name` of data is its name in
            reports.

    >>> make_env("arithmetic", levels=["1+1"]).task("train", 0).reference.isdigit()
    True
    >>> make_env([{"question": "2+2=", "answer": "4"}], verifier="numeric", holdout=0).task("train", 0).reference
    '4'
    """
    env, settings = _take_environment("make_env", env, settings)
    settings = translate_keywords("make_env", settings, keep=() if is_task_data(env) else _list_parameters("env", env))
    if is_task_data(env):
        label = settings.pop("name", "")
        made = _check_made(Environment, make_data_env(env, **settings))
        made.label = str(label or "")
        return made
    if "verifier" in settings:
        settings["verifier"] = wrap_verifier_functions(settings["verifier"])
    return _check_made(Environment, _make("env", str(env) if isinstance(env, Path) else env, settings))


@accept_synonyms
@add_usage_to_errors
def make_verifier(verifier: AnyVerifier, /, **settings: Any) -> Verifier:
    """Build a verifier.

    Args:
        verifier: a name (`rlvr.list("verifier")`), a mapping with a name and settings or with weights ({"symbolic": 0.9, "format": 0.1}),
            a list (equal weights, or `weights=[1.0, 0.2]`), a class, a verifier, or a function: `f(answer, reference)`, or TRL's
            `f(prompts, completions, **columns)`. The score of several is their weighted mean.
        settings: the settings of the verifier, such as `tolerance=0.01`; of a function, its own keywords.

    >>> make_verifier("numeric", tolerance=0.1).verify(Task("?", "3"), "3.05").score
    1.0
    """
    if isinstance(verifier, Environment | Tool | Sampler | Sandbox):
        return _check_made(Verifier, verifier)
    try:
        return _check_made(Verifier, to_verifier(verifier, settings))
    except NotFound as error:
        if not isinstance(verifier, str) or not verifier.isidentifier():
            raise
        raise NotFound(f"{error}; @rlvr.register({verifier!r}) gives a function of yours this name") from None


@add_usage_to_errors
def make_sampler(sampler: str | Path | Mapping[str, Any] | type | Sampler, /, *, model: Any = None, **settings: Any) -> Sampler:
    """Build a sampler.

    Args:
        sampler: a name (`rlvr.list("sampler")`), a mapping, a class, a sampler, or a model or its folder, for `hf`.
        model: the model to sample from: a folder or a Hub id, or a loaded model.
        settings: the settings of the sampler, such as `batch_size=64`.
    """
    if hasattr(sampler, "forward") or isinstance(sampler, LoadedModel):
        sampler, model = "hf", sampler
    elif isinstance(sampler, str | Path) and is_model_folder(sampler):
        sampler, model = "hf", str(sampler) if model is None else model
    if sampler == "hf" and "tokenizer" in settings:
        raise ConfigError(
            "a sampler has no tokenizer; it works on token ids. For texts write rlvr.generate(model, prompts, tokenizer='chars'), for episodes "
            "rlvr.Rollout(env, tokenizer, model).sample(tasks, n=8)"
        )
    if isinstance(model, LoadedModel):
        model = model.model
    if model is None or isinstance(model, str | Path):
        named = {} if model is None else {"model": str(model)}
        return _check_made(Sampler, _make("sampler", sampler, {**named, **settings}))
    from rlvr.models.plain_weights import PlainWeights

    made = _check_made(Sampler, _make("sampler", sampler, settings))
    made.update_weights(PlainWeights(model), 0)
    return made


@add_usage_to_errors
def make_algorithm(algorithm: str | Mapping[str, Any] | type | Algorithm, /, **settings: Any) -> Algorithm:
    """Build an algorithm: a name (`rlvr.list("algorithm")`), a mapping, a class, or an algorithm; settings such as `epsilon=0.1`.

    >>> make_algorithm("grpo", beta=0.0).beta
    0.0
    """
    settings = translate_keywords("make_algorithm", settings, keep=_list_parameters("algorithm", algorithm))
    return _check_made(Algorithm, _make("algorithm", algorithm, settings))


@add_usage_to_errors
def make_tool(tool: str | Mapping[str, Any] | type | Tool | Callable[..., Any], /, **settings: Any) -> Tool:
    """Build a tool: a name (`rlvr.list("tool")`), a mapping, a class, a tool, or a function with type hints and a docstring.

    >>> make_tool("calculator")(expression="7 * 8")
    '56'
    """
    return _check_made(Tool, _make("tool", tool, settings))


@add_usage_to_errors
def make_sandbox(sandbox: str | Mapping[str, Any] | type | Sandbox = "auto", /, **settings: Any) -> Sandbox:
    """Build a sandbox: `docker`, `bubblewrap`, or `auto`, which takes the one that works here; `process`, which does not isolate, with
    `trusted=True`.

    Args:
        sandbox: a name, a mapping, a class, or a sandbox.
        settings: the settings of the sandbox, such as `memory_mb=512`, the most that a program may use. No program in a sandbox has a
            network.
    """
    settings = _translate_sandbox_settings(sandbox, settings)
    if isinstance(sandbox, Mapping):
        sandbox = _translate_sandbox_settings(sandbox.get("name"), sandbox)
    if isinstance(sandbox, str) and (wrong := _find_sandbox_faults(sandbox, settings)):
        raise ConfigError(wrong)
    return _check_made(Sandbox, _make("sandbox", sandbox, settings))


@accept_synonyms
@add_usage_to_errors
def register(name: str, plugin: Any = None, *, kind: str | None = None, **settings: Any) -> Any:
    """Register a plugin under a name, by which every call and configuration in this process then knows it; returns the plugin.

    Args:
        name: a name that no plugin of this kind has yet.
        plugin: a class derived from `rlvr.Environment`, `rlvr.Verifier`, `rlvr.Tool`, `rlvr.Sampler`, `rlvr.Sandbox` or
            `rlvr.Algorithm`; a function of settings that returns an object of one; or a function `f(answer, reference)`, which is a
            verifier, and with `@rlvr.tool` a tool. None: returns a decorator.
        kind: the kind of plugin, where a function makes one; as in `rlvr.list`.
        settings: the settings to build it with, as in `make_env(plugin, **settings)`; or `kwargs={...}`, as in Gymnasium.

    Other processes know a plugin by its file instead, `my_envs.py:Echo`, or by the entry point of a package.

    >>> @register("last_digit")
    ... def last_digit(answer: str, reference: str) -> float:
    ...     return float(answer[-1:] == reference[-1:])
    >>> verify("last_digit", answer="it is 14", reference="4").score
    1.0
    """
    if plugin is None:
        return functools.partial(register, name, kind=kind, **settings)
    if kind in (None, "env") and describe_text_env(plugin) is not None:
        given = {**(settings.pop("kwargs", None) or {}), **settings}

        def build_text_env(**more: Any) -> Environment:
            made = make_env(plugin, **{**given, **more})
            made.label = name  # the ids of its tasks begin with it
            return made

        build_text_env.__doc__ = plugin.__doc__
        build_text_env.validates_settings = True  # type: ignore[attr-defined]
        register(name, build_text_env, kind="env")
        return plugin
    if kind is None:
        contracts = {"env": Environment, "verifier": Verifier, "tool": Tool, "sampler": Sampler, "sandbox": Sandbox, "algorithm": Algorithm}
        found = [word for word, contract in contracts.items() if isinstance(plugin, type) and issubclass(plugin, contract)]
        if not found and (made := next((word for word, contract in contracts.items() if isinstance(plugin, contract)), "")):
            raise ConfigError(
                f"{name!r} is registered as an object, {plugin!r:.80}; register its class with its settings, "
                f"rlvr.register({name!r}, MyClass, setting=...), or a function that makes it: lambda: rlvr.make_{made}(...)"
            )
        if not found and not inspect.isfunction(plugin):
            raise ConfigError(
                f"{name!r} is registered as {plugin!r:.80}; give a class derived from one such as rlvr.Environment, a function that returns "
                "an object of one, or a function f(answer, reference), which is a verifier"
            )
        if not found and all(p.default is not p.empty or p.kind is p.VAR_KEYWORD for p in inspect.signature(plugin).parameters.values()):
            made = plugin()  # it needs no arguments, so it makes a plugin: which kind only the plugin says
            found = [word for word, contract in contracts.items() if isinstance(made, contract)]
            if not found:
                raise ConfigError(f"{name!r} is registered as a function without arguments that returned {made!r:.80}; return a plugin")
            made.close()
        kind = found[0] if found else "tool" if hasattr(plugin, TOOL_MARKER_ATTRIBUTE) else "verifier"
    kind = PLUGIN_WORDS.get(kind, kind)
    makers: dict[str, Callable[..., Any]] = {
        "env": make_env, "verifier": make_verifier, "tool": make_tool, "sampler": make_sampler, "sandbox": make_sandbox,
        "algorithm": make_algorithm,
    }  # fmt: skip
    if not isinstance(kwargs := settings.pop("kwargs", None) or {}, Mapping):
        raise ConfigError(f"kwargs is {kwargs!r:.60}; give a mapping of settings, such as kwargs={{'verifier': 'exact'}}")
    given = {**kwargs, **settings}
    factory = plugin
    if kind in makers and (given or isinstance(plugin, str)):
        factory = _fix_settings(kind, makers[kind], plugin, given)
    register_plugin(kind, name, factory)
    if kind == "env":
        register_when_imported()  # gymnasium.make knows it, too
    return plugin


def _fix_settings(kind: str, maker: Callable[..., Any], plugin: Any, given: Mapping[str, Any]) -> Callable[..., Any]:
    """Return a factory of a plugin that has some settings already; it takes the others."""
    factory = load_factory(kind, plugin)
    built = load_factory(kind, "function") if is_function_plugin(factory, kind) else factory
    known = {key: parameter for key, parameter in get_parameters(built).items() if built is factory or key != "function"}
    wrapped = {"verifier"} if kind == "env" else set()  # a verifier goes around an environment that takes none
    check_settings(kind, get_plugin_label(plugin), known, {key: value for key, value in given.items() if key not in wrapped - known.keys()})

    def build_with_settings(**more: Any) -> Any:
        return maker(plugin, **{**given, **more})

    build_with_settings.__doc__ = factory.__doc__
    left = [p.replace(kind=p.KEYWORD_ONLY) for key, p in known.items() if key not in given]
    build_with_settings.__signature__ = inspect.Signature(left)  # type: ignore[attr-defined]
    return build_with_settings


@add_usage_to_errors
def run_code(
    code: str,
    language: Language = "python",
    *,
    stdin: str | bytes = b"",
    timeout: float | None = None,
    files: Mapping[str, str | bytes] | None = None,
    sandbox: str | Mapping[str, Any] | type | Sandbox = "auto",
    **settings: Any,
) -> ExecutionResult:
    r"""Run one program in a sandbox and return its output: `.stdout`, `.stderr`, `.exit_code`, `.timed_out`.

    Args:
        code: the program.
        language: one of those that the sandbox has; `rlvr doctor` lists them.
        stdin: its standard input.
        timeout: the time limit in seconds; None: that of `rlvr.Limits`.
        files: files in its working folder, by name.
        sandbox: as in `make_sandbox`. For many programs, build it once and pass the object, or call its `run`.
        settings: the settings of the sandbox, such as `memory_mb=512`.

    >>> run_code("print(6 * 7)", sandbox={"name": "process", "trusted": True}).stdout
    '42\n'
    """
    if not isinstance(code, str):
        raise TypeError(f"the code is a {type(code).__name__}; give the text of a program")
    made = make_sandbox(sandbox, **settings)
    limits = made.build_limits(timeout)
    given = {name: data.encode() if isinstance(data, str) else data for name, data in (files or {}).items()}
    try:
        return made.run(Program(code, stdin.encode() if isinstance(stdin, str) else stdin, language, limits, given))
    finally:
        if made is not sandbox:
            made.close()


def _find_sandbox_faults(name: str, settings: Mapping[str, Any]) -> str:
    """Say everything that is wrong with a call of `make_sandbox`, and the call that is meant; "" if nothing is, or the name is unknown."""
    own = PLUGINS.get(name, name)
    known = _list_parameters("sandbox", own)
    if not known:
        return ""
    wrong = [key for key in settings if key not in known]
    faults = [f"no sandbox is called {name!r}"] if own != name else []
    if wrong:
        told = (f"{key!r}; {explain_plugin_setting('sandbox', key, known) or format_suggestion(key, known)}" for key in wrong)
        faults.append(f"sandbox {own!r} has no setting {'; and no '.join(told)}")
    needs_trust = own == "process" and settings.get("trusted") is not True
    if needs_trust and not faults:
        faults.append("the process sandbox does not protect this machine's files, so it must be told that the code is trusted")
    if not faults:
        return ""
    kept = {key: value for key, value in settings.items() if key in known and key != "trusted"}
    sizes = [size for key in wrong if key in MEMORY_WORDS and (size := _parse_megabytes(settings[key]))]
    kept |= {"memory_mb": sizes[0]} if sizes else {}
    given = "".join(f", {key}={value!r}" for key, value in kept.items())
    if own != "process":
        return f"{'; '.join(faults)}; write rlvr.make_sandbox({own!r}{given})"
    return (
        f"{'; '.join(faults)}; write rlvr.make_sandbox('process', trusted=True{given}) for code of your own, which it does not keep from "
        "this machine's files, or rlvr.make_sandbox() for code that a model wrote"
    )


def _translate_sandbox_settings(sandbox: Any, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a sandbox without the words of Docker that say what is so in any case, and with its sizes as numbers."""
    known = _list_parameters("sandbox", PLUGINS.get(sandbox, sandbox)) if isinstance(sandbox, str) else settings
    kept = {key: value for key, value in settings.items() if key in known or not _is_network_off(key, value)}
    words = [key for key in MEMORY_WORDS if key in kept and key not in known and _parse_megabytes(kept[key])]
    if len(words) == 1 and "memory_mb" not in kept:
        kept["memory_mb"] = _parse_megabytes(kept.pop(words[0]))
    return kept


def _is_network_off(key: str, value: Any) -> bool:
    """Whether a setting forbids the network, as every sandbox does.

    >>> _is_network_off("network", False), _is_network_off("network_mode", "none"), _is_network_off("network", True)
    (True, True, False)
    """
    if key == "network_disabled":
        return value is True
    return key in NETWORK_WORDS and value in (False, None, "none")


def _parse_megabytes(value: Any) -> int:
    """Return a size as Docker writes it, such as "256m" or a number of bytes, in MB; 0 if it is none.

    >>> _parse_megabytes("1g"), _parse_megabytes(268435456), _parse_megabytes("much")
    (1024, 256, 0)
    """
    found = re.fullmatch(r"(\d+)\s*([kmg]?)i?b?", str(value).lower())
    return int(found[1]) * {"": 1, "k": 2**10, "m": 2**20, "g": 2**30}[found[2]] // 2**20 if found else 0


def _make(kind: str, wanted: Any, settings: Mapping[str, Any]) -> Any:
    if isinstance(wanted, str):
        return build(kind, wanted, **settings)
    if isinstance(wanted, Mapping):
        return build_from_config(kind, {**wanted, **settings})
    if isinstance(wanted, type) or (callable(wanted) and settings):
        return build(kind, wanted, **settings)
    if settings:
        key = next(iter(settings))
        raise ConfigError(f"{key} is given for a {kind} that is built already ({type(wanted).__name__}); set it when you build the object")
    return build_from_config(kind, wanted)


def _check_made(contract: Callable[..., P], made: Any) -> P:
    kind: Any = contract
    if not isinstance(made, kind):
        raise ConfigError(f"{made!r:.80} is a {type(made).__name__}, not an rlvr.{kind.__name__}; derive its class from that one")
    checked: P = made
    return checked


# ---- one answer -------------------------------------------------------------------------------------------------------


@overload
def verify(verifier: AnyVerifier, /, answer: str, reference: Any = None, **settings: Any) -> Verdict: ...
@overload
def verify(answer: str, reference: Any = None, /, *, verifier: AnyVerifier = "symbolic", **settings: Any) -> Verdict: ...
@overload
def verify(*, answer: str, reference: Any, verifier: AnyVerifier = "symbolic", **settings: Any) -> Verdict: ...
@add_usage_to_errors
def verify(
    *given: Any,
    verifier: Any = None,
    answer: Any = None,
    reference: Any = None,
    prompt: str | Sequence[Message] = "?",
    meta: Mapping[str, Any] | None = None,
    **settings: Any,
) -> Verdict:
    r"""Score one answer; returns a verdict with `score` (None: not scored) and `reason`.

    Args:
        given: the verifier, the answer and the reference, in this order, without those that are given by keyword.
        verifier: the verifier, as in `make_verifier`; without one, an answer and a reference are compared as mathematics (`symbolic`).
        answer: the completion of the policy, with the answer in it.
        reference: the right answer; or an `rlvr.Task`, which has it.
        prompt: the question, for verifiers that read it.
        meta: further columns of the task.
        settings: the settings of the verifier.

    >>> verify("symbolic", answer=r"\boxed{0.5}", reference=r"\frac12").score
    1.0
    >>> verify("it is 4", "4", verifier="numeric").score
    1.0
    >>> verify("it is 0.50", "1/2").score  # an answer and a reference alone: as mathematics
    1.0
    """
    words = [word for word in settings if word.removesuffix("s") in ("answer", *ANSWER_COLUMNS) and word.endswith("s")]
    if lists := [word for word in words if _is_list(settings[word])]:
        raise TypeError(f"{lists[0]} is a list, and rlvr.verify scores one answer; for several write {VERIFY_MANY_CALL}")
    target = verifier if verifier is not None or not given else given[0]
    words = [word for word in ANSWER_COLUMNS if word in settings and word not in _list_parameters("verifier", target)]
    if words and answer is not None and reference is None:  # the words of verifiers: completion=what the policy wrote, answer=the gold
        answer, reference = settings.pop(words[0]), answer
    is_function = callable(target) and not isinstance(target, Verifier | type)
    if is_function and reference is None and (word := RewardSignature.read(target).reference) in settings:
        reference = settings.pop(word)  # the function's own word for the reference
    for word, own in SYNONYMS["verify"].items():
        if word in settings and word not in _list_parameters("verifier", target):
            if own == "verifier" and verifier is None:
                verifier = settings.pop(word)
            elif own == "answer" and answer is None:
                answer = settings.pop(word)
            elif own == "reference" and reference is None and len(given) < 3 - (verifier is not None):
                reference = settings.pop(word)
            elif own == "prompt" and prompt == "?":
                prompt = settings.pop(word)
    if answer is not None and reference is None and len(given) == 2 - (verifier is not None) and not isinstance(given[-1], Task):
        answer, reference = None, answer  # the text stands in order, so `answer` is the gold, as in rows of data
    elif answer is not None and reference is None and len(given) == 1 and verifier is None and _is_no_verifier_name(given[0]):
        answer, reference = None, answer  # and no verifier is given
    names = ["answer", "reference"] if verifier is not None else ["verifier", "answer", "reference"]
    values = {"verifier": verifier, "answer": answer, "reference": reference}
    if _are_answer_and_reference(given, values) or (not given and verifier is None and None not in (answer, reference)):
        names, values["verifier"] = ["answer", "reference"], DEFAULT_VERIFIER
    if len(given) == 3 and verifier is None and not isinstance(given[2], str) and (callable(given[2]) or isinstance(given[2], Verifier)):
        raise TypeError("rlvr.verify takes the verifier first: rlvr.verify(verifier, answer, reference)")
    for name, value in zip(names, given, strict=False):
        if values[name] is not None:
            raise TypeError(
                f"rlvr.verify got the {name} twice; `answer` is what the policy wrote and `reference` the right answer: {VERIFY_CALL}"
            )
        values[name] = value
    if len(given) > len(names):
        raise TypeError(f"rlvr.verify got {len(given)} arguments in order, and takes {', '.join(names)}; the call is {VERIFY_CALL}")
    if missing := [name for name in ("verifier", "answer") if values[name] is None]:
        raise TypeError(f"rlvr.verify got no {missing[0]}; the call is {VERIFY_CALL}")
    wanted: Any = values["verifier"]
    text: Any = values["answer"]
    if _is_list(text) and not all(isinstance(part, Mapping) for part in text):
        raise TypeError(f"the answer is a list, and rlvr.verify scores one; for several write {VERIFY_MANY_CALL}")
    if settings and isinstance(wanted, Verifier):
        raise TypeError(
            f"rlvr.verify has no argument {next(iter(settings))!r}, and a setting of the verifier is given when it is made; the call is "
            "rlvr.verify(verifier, answer=..., reference=...)"
        )
    try:
        made = make_verifier(wanted, **settings)
    except NotFound as error:
        two_texts = "two texts alone are compared by rlvr.verify(answer=..., reference=...)"
        raise NotFound(f"{error}; the call is {VERIFY_CALL}; {two_texts}" if "no verifier" in str(error) else str(error)) from None
    except ConfigError as error:
        typos = [key for key in settings if difflib.get_close_matches(key, ("answer", "reference", "verifier", "prompt", "meta"), 1, 0.75)]
        if not typos:
            raise
        raise TypeError(f"rlvr.verify has no argument {typos[0]!r}; the call is {VERIFY_CALL}") from error
    task = values["reference"]
    if not isinstance(task, Task):
        task = Task(prompt, reference=task, meta=meta or {})
    try:
        return made.verify(task, text)
    finally:
        if made is not wanted:
            made.close()


def _are_answer_and_reference(given: Sequence[Any], values: Mapping[str, Any]) -> bool:
    """Whether an answer and a reference are given and no verifier: the first argument is not even close to the name of one."""
    named = [name for name, value in values.items() if value is not None]
    if [len(given), *named] not in ([2], [1, "reference"]) or not all(isinstance(text, str) for text in given):
        return False
    return _is_no_verifier_name(given[0])


def _is_no_verifier_name(text: Any) -> bool:
    """Whether a text is not even close to the name of a verifier, such as the completion of a policy."""
    if not isinstance(text, str) or re.search(r"\.py(:|$)", text):
        return False
    is_name = re.fullmatch(r"[\w:.-]+", text) is not None
    return not (is_name and difflib.get_close_matches(text, [*list("verifier"), *VERIFIERS, *PLUGINS], 1, 0.6))


def _is_list(values: Any) -> bool:
    """Whether something is a list, an array or a column, and not one text."""
    return isinstance(values, Iterable) and not isinstance(values, str | bytes | Mapping)


def _to_list(name: str, values: Any) -> builtins.list[Any]:
    """Return a list, an array or a column as a list of plain values.

    >>> import numpy
    >>> _to_list("references", numpy.array([4, 5])), _to_list("answers", iter("ab"))
    ([4, 5], ['a', 'b'])
    """
    if isinstance(values, str | bytes | Mapping | set | frozenset) or not isinstance(values, Iterable):
        raise TypeError(f"{name} is {values!r:.60}; it must be a list, with a value for each answer")
    to_plain: Any = getattr(values, "tolist", None)
    return [*values] if to_plain is None else to_plain()


@overload
def verify_many(
    verifier: AnyVerifier,
    /,
    answers: Sequence[str],
    references: Sequence[Any],
    *,
    prompts: Sequence[Any] | None = None,
    columns: Mapping[str, Sequence[Any]] | None = None,
    **settings: Any,
) -> builtins.list[Verdict]: ...
@overload
def verify_many(
    answers: Sequence[str],
    references: Sequence[Any],
    /,
    *,
    verifier: AnyVerifier,
    prompts: Sequence[Any] | None = None,
    columns: Mapping[str, Sequence[Any]] | None = None,
    **settings: Any,
) -> builtins.list[Verdict]: ...
@add_usage_to_errors
def verify_many(
    *given: Any,
    verifier: Any = None,
    answers: Any = None,
    references: Any = None,
    prompts: Sequence[Any] | None = None,
    columns: Mapping[str, Sequence[Any]] | None = None,
    **settings: Any,
) -> builtins.list[Verdict]:
    """Score several answers, in parallel where the verifier can; returns their verdicts in order. A failure of the verifier at one answer
    is a verdict without a score.

    Args:
        given: the verifier, the answers and the references, in this order, without those that are given by keyword.
        verifier: the verifier, as in `make_verifier`.
        answers: the completions.
        references: the right answer of each.
        prompts: the question of each, for verifiers that read it.
        columns: lists of further values of the tasks, for verifiers that read them.
        settings: the settings of the verifier.

    >>> [verdict.score for verdict in verify_many("numeric", ["4", "5"], ["4", "4"])]
    [1.0, 0.0]
    """
    for name in [name for name, value in settings.items() if isinstance(value, Sequence) and not isinstance(value, str)]:  # as in data
        if answers is None and name.removesuffix("s") in ANSWER_COLUMNS:
            answers = settings.pop(name)
        elif references is None and name.removesuffix("s") in (*REFERENCE_COLUMNS, *SOLUTION_COLUMNS):
            references = settings.pop(name)
    names = ["answers", "references"] if verifier is not None else ["verifier", "answers", "references"]
    values = {"verifier": verifier, "answers": answers, "references": references}
    for name, value in zip(names, given, strict=False):
        if values[name] is not None:
            raise TypeError(f"rlvr.verify_many got the {name} twice; the call is {VERIFY_MANY_CALL}")
        values[name] = value
    if len(given) > len(names) or any(value is None for value in values.values()):
        missing = ", ".join(name for name, value in values.items() if value is None) or "nothing"
        raise TypeError(f"rlvr.verify_many lacks {missing}; the call is {VERIFY_MANY_CALL}")
    for name in ("answers", "references"):
        if isinstance(values[name], str):
            raise TypeError(f"{name} is the text {values[name]!r:.60}; rlvr.verify_many takes a list of them, and rlvr.verify one")
    verifier, answers, references = values["verifier"], _to_list("answers", values["answers"]), _to_list("references", values["references"])
    prompts = ["?"] * len(answers) if prompts is None else _to_list("prompts", prompts)
    if not isinstance(columns, Mapping | None):
        raise TypeError(f"columns is {columns!r:.60}; it must be a mapping from names to lists, such as {{'unit': ['m', 'kg']}}")
    columns = {name: _to_list(name, column) for name, column in (columns or {}).items()}
    if short := next((name for name, column in columns.items() if len(column) != len(answers)), None):
        raise ConfigError(f"the column {short!r} has {len(columns[short])} values for {len(answers)} answers; give as many of each")
    if not len(answers) == len(references) == len(prompts):
        raise ConfigError(
            f"there are {len(answers)} answers, {len(references)} references and {len(prompts)} prompts; give as many of each"
        )
    made = make_verifier(verifier, **settings)
    try:
        tasks = [
            Task(prompt, reference=reference, meta={name: column[place] for name, column in columns.items()})
            for place, (prompt, reference) in enumerate(zip(prompts, references, strict=True))
        ]
        return verify_batch_safely(made, tasks, answers)
    finally:
        if made is not verifier:
            made.close()


# ---- models -----------------------------------------------------------------------------------------------------------


@add_usage_to_errors
def load_tokenizer(tokenizer: str | Path | Tokenizer | Any) -> Tokenizer:
    """Load a tokenizer: `chars`, `chars:ALPHABET`, `bytes`, a folder or a Hub id, or a tokenizer object of transformers.

    >>> load_tokenizer("chars:01").vocab_size
    6
    """
    from rlvr.mdp import tokenizers

    return tokenizers.load_tokenizer(tokenizer)


@add_usage_to_errors
def load_model(model: str | Path | Any, tokenizer: str | Tokenizer | Any = None, *, dtype: str = "float32") -> LoadedModel:
    """Load a causal language model and its tokenizer.

    Args:
        model: a folder, also that of a training run, an id of the Hugging Face Hub such as Qwen/Qwen2.5-0.5B-Instruct, or a model that is
            loaded already.
        tokenizer: its tokenizer; None: the one in the model's folder.
        dtype: float32 or bfloat16, of a model that is loaded here.

    Returns:
        The model, on the accelerator if there is one, and the tokenizer.
    """
    from rlvr.config.config import ModelConfig
    from rlvr.mdp import tokenizers
    from rlvr.models.device import resolve_device
    from rlvr.models.model_loading import load_model as load

    if isinstance(model, str | Path):
        if not is_model_folder(model) and is_model_folder(Path(model) / "checkpoints" / "last"):
            model = Path(model) / "checkpoints" / "last"
        config = ModelConfig.model_validate({"path": str(model), "dtype": dtype})
        return LoadedModel(load(config).to(resolve_device()), load_tokenizer(str(model) if tokenizer is None else tokenizer))
    if tokenizer is None:
        name = getattr(getattr(model, "config", None), "_name_or_path", "")
        if not name:
            raise ConfigError("the model is an object and no tokenizer is given; write load_model(model, tokenizer)")
        tokenizer = name
    return LoadedModel(model, tokenizers.load_tokenizer(tokenizer, model_vocab_size=tokenizers.get_model_vocab_size(model)))


# ---- runs -------------------------------------------------------------------------------------------------------------


@accept_synonyms
@add_usage_to_errors
def train(
    recipe: Any = None,
    settings: Any = None,
    verifier: Any = None,
    *,
    model: Any = None,
    tokenizer: Any = None,
    env: Any = None,
    data: Any = None,
    algorithm: Any = None,
    callbacks: Sequence[Any] = (),
    batch_source: Any = None,
    out: str | Path | None = None,
    resume: bool = False,
    **sections: Any,
) -> TrainReport:
    """Train a policy and return the report of the run (`accuracy_before`, `accuracy_after`, `run`).

    Args:
        recipe: the name of a recipe (`rlvr list recipes`), a YAML file, or a mapping; None: everything comes from the keywords. Or the
            name of an environment; or the model, as in `evaluate`.
        settings: what replaces the recipe's values, by dotted key: {"train.steps": 5}. After a model: the environment, or data.
        verifier: with `data`, or an environment by name: how answers are scored, as in `make_verifier`.
        model: a folder, a Hub id, or a model object.
        tokenizer: the tokenizer of a model object.
        env: an environment, as in `make_env`.
        data: questions with answers instead of an environment: a file, a list of dicts, a data frame, a `datasets.Dataset`.
        algorithm: an algorithm, as in `make_algorithm`.
        callbacks: objects with methods such as `on_step_end`; see `rlvr.Callback`.
        batch_source: the class of a batch source of your own, another schedule of sampling; as in `rlvr.Trainer`.
        out: the run folder; it must not exist yet.
        resume: whether to resume the run in `out`.
        sections: keys of the sections `train` and `rollout`, such as `steps=5, learning_rate=1e-5, num_generations=4`; and whole sections,
            such as `eval={"tasks": 100}`.
    """
    from rlvr.training.run_inputs import check_setting_names, resolve_positional_arguments

    recipe, settings, model, env, data = resolve_positional_arguments(recipe, settings, model, env, data)
    check_setting_names(algorithm, sections, on_data=data is not None, on_env=env is not None)  # before the slow imports
    from rlvr.training.trainer import Trainer

    if not isinstance(resume, bool):
        raise ConfigError(f"resume is {resume!r}; it must be True or False, and the run to resume is named by out=")
    with Trainer(
        recipe,
        settings,
        model=model,
        tokenizer=tokenizer,
        env=env,
        data=data,
        verifier=verifier,
        algorithm=algorithm,
        callbacks=callbacks,
        batch_source=batch_source,
        out=out,
        resume=resume,
        **sections,
    ) as trainer:
        try:
            return trainer.fit()
        except KeyboardInterrupt as stop:
            if trainer.is_interrupted:  # it ended after its step, and said where the run stands
                vars(stop)["says_everything"] = True
            raise


@accept_synonyms
@add_usage_to_errors
def generate(
    policy: Any,
    prompts: str | Sequence[str | Sequence[Message]],
    *,
    n: int | None = None,
    tokenizer: Any = None,
    max_new_tokens: int = 256,
    temperature: float = 1.0,
    top_p: float = 1.0,
    top_k: int = 0,
    seed: int = 0,
    system: str | None = None,
    sampler: Mapping[str, Any] | None = None,
) -> Any:
    """Return what a policy answers to prompts: a text for each, or with `n` a list of so many texts for each.

    Args:
        policy: as in `evaluate`: the folder of a model, `hf:DIR`, `vllm:DIR`, `openai:URL#MODEL`, a model object, or a function.
        prompts: a text, which is one user message; a list of messages; or a list of several of either.
        n: the number of answers to each prompt; None: one, not in a list.
        tokenizer: the tokenizer of a model object.
        max_new_tokens: the largest number of tokens of an answer.
        temperature: 0 is greedy.
        top_p: sample from the likeliest tokens of this total probability.
        top_k: sample from so many of the likeliest tokens; 0: all.
        seed: the seed of all randomness; the same call returns the same texts.
        system: a system message before each prompt, in place of its own; None leaves prompts as they are.
        sampler: settings of the policy's sampler.

    >>> generate(lambda prompt: prompt.upper(), ["one", "two"])
    ['ONE', 'TWO']
    >>> generate(lambda prompt: prompt.upper(), "one", n=2)
    ['ONE', 'ONE']
    """
    is_single = isinstance(prompts, str) or (len(prompts) > 0 and isinstance(prompts[0], Mapping))  # one conversation
    asked: Any = [prompts] if is_single else prompts
    tasks = [Task(prompt, id=str(number)) for number, prompt in enumerate(asked)]
    if not tasks:
        return []
    report = evaluate(
        tasks,
        policy,
        tokenizer=tokenizer,
        verifier=_accept_any_text,
        n=1 if n is None else n,
        seed=seed,
        sampler=sampler,
        console=None,
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        top_p=top_p,
        top_k=top_k,
        system=system,
    )
    answers: builtins.list[builtins.list[str]] = [[] for _ in tasks]
    for sample in sorted(report.samples, key=lambda sample: sample.key):
        if sample.score is None:
            raise RlvrError(f"there is no answer to the prompt {sample.task_id}: {sample.reason}")
        answers[sample.key[1]].append(sample.text)
    texts = [found[0] for found in answers] if n is None else answers
    return texts[0] if is_single else texts


def _accept_any_text(completion: str) -> float:
    """Return the full score: what is only read needs no verifier."""
    return 1.0


@accept_synonyms
@add_usage_to_errors
def evaluate(env: Any, policy: Any, *, tokenizer: Any = None, verifier: Any = None, **settings: Any) -> EvalReport:
    """Measure a policy on a suite or an environment.

    Args:
        env: a suite or an environment by name, a list of environments or a mapping that names each, a YAML file, an environment object
            (also as a Gymnasium environment), or data as in `make_env`.
        policy: such as `hf:DIR`, `vllm:DIR` or `scripted:gold`; the folder of a model, which is sampled with `hf`; a model object; or a
            function from the text of a prompt, or from `messages` and `tools`, to a turn. The policy may also come first.
        tokenizer: the tokenizer of a model object.
        verifier: with data, or an environment by name: how answers are scored, as in `make_verifier`.
        settings: `n` answers for each task, `tasks` or `limit` (their number), `k` of pass@k, `temperature`, `system`, `out`, ...,
            see `rlvr.evaluation.evaluate.evaluate`; and with data those of its environment, such as tools=[...], max_turns=4.

    Returns:
        The report: `.accuracy`, `.samples`, `.table()`, `.to_pandas()`, `.compare(other)`.

    >>> evaluate("arithmetic", "scripted:gold", tasks=4).envs["arithmetic"].mean_score.value
    1.0
    """
    from rlvr.evaluation.evaluate import evaluate as run
    from rlvr.evaluation.evaluate import find_only_split
    from rlvr.evaluation.suite import SuiteItem
    from rlvr.runs.tables import EscapingConsole

    if (sampling := settings.pop("sampling_args", None)) is not None:
        if not isinstance(sampling, Mapping):
            raise ConfigError(f"sampling_args is a {type(sampling).__name__}; give a mapping such as {{'max_tokens': 64}}, or keywords")
        settings = {**translate_keywords("evaluate", sampling), **settings}
    batch_size, metrics, shown_ks = settings.pop("batch_size", None), settings.pop("metrics", ()), settings.pop("pass_at_k", ())
    unknown_metrics = [name for name in ([metrics] if isinstance(metrics, str) else metrics) if not _is_reported_metric(name)]
    if unknown_metrics:
        raise ConfigError(
            f"metrics has {unknown_metrics[0]!r}; a report always has the accuracy, its standard error and pass@k, and no other metric: a score "
            "of your own is a verifier, verifier=function"
        )
    env, policy = ([env] if isinstance(env, Task) else unwrap_environment(env)), unwrap_environment(policy)
    if _is_policy(env) and not _is_policy(policy):
        env, policy = policy, env
    if isinstance(policy, str | Path) and is_model_folder(policy):
        policy = f"hf:{policy}"
    elif isinstance(policy, str | Path) and is_model_folder(Path(policy) / "checkpoints" / "last"):
        policy = f"hf:{Path(policy) / 'checkpoints' / 'last'}"
    elif isinstance(policy, Path):
        policy = str(policy)
    if batch_size is not None and isinstance(policy, str) and "batch_size" in _list_parameters("sampler", policy.partition(":")[0]):
        settings["sampler"] = {"batch_size": batch_size, **(settings.get("sampler") or {})}  # for other policies there are no batches
    if describe_text_env(env) is not None:
        own = {name: settings.pop(name) for name in get_parameters(load_factory("env", "text_env")) if name in settings and name != "seed"}
        env = make_env(env, **own)
        settings.setdefault("name", env.label)
    of_caller, has_own_verifier = env, isinstance(verifier, Verifier)
    if isinstance(env, Mapping) and "env" in env and not _names_environment(env.get("name")):  # one entry of a suite
        env = [env]
    elif isinstance(env, Mapping) and "name" not in env and not is_task_data(env):
        if not env:
            raise ConfigError("the mapping of environments is empty")
        env = {name: unwrap_environment(one) for name, one in env.items()}
        for name, one in env.items():
            is_env = isinstance(one, str | Environment) or (isinstance(one, Mapping) and ("name" in one or "env" in one))
            if not is_env or not isinstance(name, str) or names_data_source(one):
                raise ConfigError(
                    f"{name!r:.60} is {one!r:.60}, which is no environment with a name; in a mapping each value is a name "
                    "(`rlvr list envs`), a mapping such as {'name': 'arithmetic', 'levels': ['2+2']}, or an object: rlvr.make_env(...)"
                )
        env = [{**_make_suite_entry(entry), "name": name} for name, entry in env.items()]
    if _is_suite(env):
        env = [str(entry) if isinstance(entry, str | Path) else _make_suite_entry(entry) for entry in env]
    elif is_task_data(env) and not (names_data_source(env) and verifier is None):  # data to measure on: nothing is held out
        held = {} if is_task_list(env) else {"holdout": 0}
        own = {name: settings.pop(name) for name in list_data_settings_for_evaluate() if name in settings}
        env = make_data_env(env, verifier=verifier, **held, **own)
        settings, verifier = {"split": env.splits[0], "tasks": env.num_tasks(env.splits[0]), **settings}, None
    elif isinstance(env, type) or ((verifier is not None or "tools" in settings) and _names_environment(env)):
        own = {name: settings.pop(name) for name in ("tools", "max_turns", "dialect") if name in settings}
        own |= {} if verifier is None else {"verifier": wrap_verifier_functions(verifier)}
        settings["settings"] = {**(settings.get("settings") or {}), **own}
        if isinstance(env, type) or "tools" in own or isinstance(own["verifier"], Verifier):  # else the plan of the evaluation names it
            if isinstance(env, str):
                settings.setdefault("name", env.rpartition(":")[2])
            env = make_env(env, **settings.pop("settings"))
        verifier = None
    elif isinstance(env, str) and is_registered_here("env", env):
        settings.setdefault("name", env)
        env = make_env(env, **(settings.pop("settings", None) or {}))
    if isinstance(env, Environment) and "split" not in settings and (only := find_only_split(env)):
        settings["split"] = only  # the report names it
    if isinstance(env, Environment) and (split := settings.get("split", "test")) in env.splits and env.num_tasks(split) != 0:
        from rlvr.rollout.hang_watchdog import abort_on_blocked_interpreter
        from rlvr.rollout.rollout import DEFAULT_CALL_TIMEOUT_S

        with abort_on_blocked_interpreter(settings.get("call_timeout_s") or DEFAULT_CALL_TIMEOUT_S):
            smoke_test_user_functions(env, split)
    asked = [name for name in inspect.signature(run).parameters if name not in ("suite", "item_settings")]
    known = [*asked, *SuiteItem.model_fields, *list_data_settings_for_evaluate()]
    if unknown := [key for key in settings if key not in known]:
        wrong = (f"{key!r}: {explain_keyword(key, 'evaluate') or format_suggestion(key, known)}" for key in unknown)
        raise ConfigError(f"rlvr.evaluate has no setting {'; and no '.join(wrong)}")
    if verifier is not None:
        if _is_suite(env):
            raise ConfigError(
                f"env is {env!r:.60}, which is read as names of environments; questions are rows: "
                "rlvr.evaluate([{'question': '2+2=', 'answer': '4'}], policy=..., verifier=...)"
            )
        raise ConfigError(
            "verifier goes with data, or with the name of an environment, and env is neither; set it on the environment: "
            "rlvr.make_env(name, verifier=...)"
        )
    if of_data := [name for name in list_data_settings_for_evaluate() if name in settings]:
        if names_data_source(env):
            raise ConfigError(f"{of_data[0]} needs a verifier beside the data file {str(env)!r}; give verifier='symbolic', or another")
        raise ConfigError(
            f"{of_data[0]} is a setting of data, and env is no data; the settings of an environment are given when it is made: "
            "rlvr.make_env(name, ...), and tools also here: tools=[...], max_turns=4"
        )
    try:
        report: EvalReport = run(env, policy, tokenizer=tokenizer, **{"console": EscapingConsole(stderr=True), **settings})
        return replace(report, shown_ks=tuple(shown_ks))
    finally:
        if isinstance(env, Environment) and env is not of_caller and not has_own_verifier:  # all of it was made here
            env.close()


def list_data_settings_for_evaluate() -> builtins.list[str]:
    """List the settings of an environment of data that `evaluate` takes: all except those that it has itself, or that hold rows back."""
    return [name for name in list_data_settings() if name not in ("system", "split", "limit", "holdout", "test")]


def _is_reported_metric(name: Any) -> bool:
    """Whether a metric, as other libraries name it, is one that every report has."""
    return isinstance(name, str) and bool(re.fullmatch(r"acc(uracy)?|mean(_reward)?|reward|score|std(err)?|pass(@|_at_)\d+", name))


def _names_environment(value: Any) -> bool:
    """Whether a value is the name of an environment, `path/to/file.py:Object`, or a mapping with one."""
    if isinstance(value, Mapping):
        return "name" in value
    return isinstance(value, str) and (value in list("env") or bool(re.search(r"\.py:\w+$", value)))


def _is_suite(value: Any) -> bool:
    """Whether a value is a list of environments: names, objects, and entries such as {"env": "gsm8k", "tasks": 200} or {"name": "gsm8k"}."""
    if not isinstance(value, Sequence) or isinstance(value, str) or not value:
        return False
    envs = list("env")
    return all(
        isinstance(item, str | Path | Environment) or (isinstance(item, Mapping) and ("env" in item or item.get("name") in envs))
        for item in value
    )


def _make_suite_entry(entry: str | Path | Environment | Mapping[str, Any]) -> dict[str, Any]:
    """Return an entry of a suite as a mapping.

    >>> _make_suite_entry("gsm8k"), _make_suite_entry({"name": "gsm8k", "path": "data"})
    ({'env': 'gsm8k'}, {'env': {'name': 'gsm8k', 'path': 'data'}})
    """
    if isinstance(entry, Mapping) and "env" in entry:
        return dict(entry)
    return {"env": str(entry) if isinstance(entry, Path) else dict(entry) if isinstance(entry, Mapping) else entry}


def _is_policy(value: Any) -> bool:
    """Whether a value can only be a policy: a function, a model, a sampler, SAMPLER:WHAT, or the folder of a model."""
    if isinstance(value, str) and value.partition(":")[0] in list("sampler") and ":" in value:
        return True
    if isinstance(value, type | Environment | Verifier) or is_rows(value):
        return False
    return callable(value) or isinstance(value, Sampler | LoadedModel) or is_model_folder(value)


@add_usage_to_errors
def load_run(folder: str | Path) -> Run:
    """Open the folder of a training run: `.metrics` and `.episodes` as data frames, `.config`, `.report`, `.plot()`."""
    from rlvr.runs.run import Run

    return Run(folder)


@add_usage_to_errors
def load_evaluation(folder: str | Path) -> EvalReport:
    """Load the report of an evaluation from its folder, written with `out=`: what `rlvr.evaluate` returned. One that was stopped is loaded, too."""
    from rlvr.evaluation.report import load_report

    return load_report(Path(folder).parent if Path(folder).is_file() else Path(folder))  # one of its files names it, too
