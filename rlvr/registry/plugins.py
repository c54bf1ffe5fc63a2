"""Find and build plugins by name: `build("verifier", "numeric", tolerance=0.01)`.

A name is resolved, in this order, as
  1. `path/to/file.py:Object`                      an object in a user's file
  2. a file of that name in a folder of the kind     `verifiers/numeric.py`; environments also in `envs/external`
  3. a plugin that this process registered          `register("verifier", "mine", Mine)`
  4. an entry point of that name in `rlvr.verifiers`  an installed package
A name that several packages define is written with the package: `acme-judges:numeric`, or `rlvr:numeric`.
Listing plugins reads only metadata; building one imports only that one. The constructor's signature is the configuration schema; the
plugins that `needs` names are built here.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import importlib
import importlib.util
import inspect
import re
import sys
from collections.abc import Callable, Mapping
from contextlib import redirect_stdout
from dataclasses import dataclass, field, replace
from importlib.metadata import EntryPoint
from pathlib import Path
from types import ModuleType
from typing import Any

import rlvr
from rlvr.contracts import Environment, Plugin, Sampler, Sandbox, Verifier
from rlvr.contracts.plugin import CONTRACT_VERSION, describe_missing_methods, describe_smallest, read_signature
from rlvr.contracts.tool import Tool
from rlvr.errors import ConfigError, MissingExtra, NotFound, PluginLoadError, RlvrError, format_suggestion
from rlvr.hints import explain_plugin_setting, translate_plugin_name
from rlvr.plugin_files import find_plugin_file, resolve_plugin_files
from rlvr.registry import third_party as foreign
from rlvr.registry.dependencies import build_dependencies, build_with_context_settings, build_with_tools_settings, wrap_verifier_with_audit
from rlvr.synonyms import VERIFIERS

PACKAGE_FOLDER = Path(__file__).parents[1]
FUNCTION_KINDS = ("verifier", "tool")
"""The kinds of plugin that a plain function can be."""
NO_HINTS: Mapping[str, str] = {}
MAX_PLUGINS_SHOWN = 3
"""How many plugins a message names that have a setting which another one lacks."""
FILE_MODULE_PREFIX = "_rlvr_plugin_"
"""The prefix of the module name of a user's file."""


@dataclass(frozen=True, slots=True)
class PluginKind:
    """One kind of plugin: its name in messages, its folders, its entry-point group.

    >>> PLUGIN_KINDS["env"].entry_point_group
    'rlvr.envs'
    """

    name: str
    plural: str
    folders: tuple[str, ...]
    contract: type | None = None
    """The base class of every plugin of the kind."""

    @property
    def entry_point_group(self) -> str:
        """The entry-point group for third-party packages."""
        return f"rlvr.{self.plural}"


PLUGIN_KINDS: Mapping[str, PluginKind] = {
    kind.name: kind
    for kind in (
        PluginKind("env", "envs", ("envs", "envs/external"), contract=Environment),
        PluginKind("verifier", "verifiers", ("verifiers",), contract=Verifier),
        PluginKind("sandbox", "sandboxes", ("sandbox",), contract=Sandbox),
        PluginKind("sampler", "samplers", ("samplers",), contract=Sampler),
        PluginKind("tool", "tools", ("tools",), contract=Tool),
        PluginKind("algorithm", "algorithms", ("algorithms",)),
    )
}


@dataclass(frozen=True, slots=True)
class PluginEntry:
    """An entry in the list of plugins: what is known of a plugin without importing it.

    >>> PluginEntry("numeric", "verifier", "rlvr", "Compare two numbers.").name
    'numeric'
    """

    name: str
    kind: str
    source: str
    """`rlvr`, the distribution that provides it, or the file that contains it."""
    summary: str = ""
    error: str = ""
    entry_point: EntryPoint | None = None
    factory: Callable[..., Any] | None = None
    """The class or the function, of a plugin that this process registered."""


@dataclass(frozen=True, slots=True)
class PluginSpec:
    """The data from which another process can build the same plugin.

    >>> PluginSpec("verifier", "numeric", {"tolerance": 0.01}).settings
    {'tolerance': 0.01}
    """

    kind: str
    name: str
    settings: Mapping[str, Any] = field(default_factory=dict)

    def build(self) -> Any:
        """Build the plugin."""
        return build(self.kind, self.name, **self.settings)


def get_kind(name: str) -> PluginKind:
    """Return the kind for a word such as `env` or `envs`; raise NotFound for others."""
    for kind in PLUGIN_KINDS.values():
        if name in (kind.name, kind.plural):
            return kind
    raise NotFound(f"there is no kind of plugin {name!r}; {format_suggestion(name, [k.plural for k in PLUGIN_KINDS.values()])}")


_registered: dict[tuple[str, str], PluginEntry] = {}
"""The plugins that this process registered, by kind and name."""


def register(kind: str, name: str, factory: Callable[..., Any]) -> None:
    """Register a class or a function under a name, for this process. A second registration of the name replaces the first."""
    k = get_kind(kind)
    if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z_][\w-]*", name):
        raise ConfigError(f"the name of a registered plugin is {name!r}; write letters, digits, - and _, such as 'my_env'")
    if (known := _find_entry(kind, name)) is not None and known.factory is None:
        raise ConfigError(f"there is a {k.name} {name!r} already, from {known.source}; register yours under another name")
    if isinstance(factory, Plugin) or not callable(factory):
        raise ConfigError(f"{name!r} is registered as {factory!r:.80}; give a class or a function, which is built with settings")
    if problem := _find_factory_problem(factory, k):
        raise PluginLoadError(f"{k.name} {name!r} {problem}")
    _registered[k.name, name] = PluginEntry(name, k.name, "this process", _first_line(factory.__doc__), factory=factory)


def is_registered_here(kind: str, name: str) -> bool:
    """Return whether a name stands for a plugin that only this process knows, by `register`."""
    return (get_kind(kind).name, name) in _registered


def list_entries(kind: str) -> list[PluginEntry]:
    """List all plugins of one kind, sorted by name, without importing them."""
    k = get_kind(kind)
    found = {path.stem: PluginEntry(path.stem, k.name, "rlvr", _read_summary(path)) for path in _list_builtin_files(k)}
    found |= {entry.name: entry for (own, _), entry in _registered.items() if own == k.name}
    for name, points in foreign.find_entry_points(k.entry_point_group).items():
        by_owner = {foreign.get_package_name(point.dist): point for point in points}
        entries = {owner: PluginEntry(name, k.name, owner, f"from {point.value}", entry_point=point) for owner, point in by_owner.items()}
        if name not in found and len(entries) == 1:
            (found[name],) = entries.values()
            continue
        found |= {f"{owner}:{name}": replace(entry, name=f"{owner}:{name}") for owner, entry in entries.items()}
        if name not in found:  # rlvr's own keeps its name, so that no package can replace a built-in plugin
            owners = sorted(entries)
            choice = " or ".join(f"{owner}:{name}" for owner in owners)
            clash = f"{' and '.join(owners)} both define the {k.name} {name!r}; write {choice}, or uninstall one"
            found[name] = PluginEntry(name, k.name, " + ".join(owners), error=clash)
    return sorted(found.values(), key=lambda entry: entry.name)


def list_entries_with_import_errors(kind: str) -> list[PluginEntry]:
    """List the plugins of one kind, and import those of other packages, so that a broken one shows its error."""
    rows = []
    for entry in list_entries(kind):
        if entry.entry_point and not entry.error:
            try:
                loaded = load_factory(kind, entry.name)
                entry = PluginEntry(entry.name, entry.kind, entry.source, _first_line(loaded.__doc__), entry_point=entry.entry_point)
            except RlvrError as error:
                entry = PluginEntry(entry.name, entry.kind, entry.source, entry.summary, str(error), entry.entry_point)
        rows.append(entry)
    return rows


def load_factory(kind: str, name: str | Plugin | Callable[..., Any]) -> Callable[..., Any]:
    """Import one plugin and return its factory (usually its class). A class or a function is its own factory."""
    k = get_kind(kind)
    if isinstance(name, Plugin):
        raise ConfigError(f"the {k.name} is built already, a {type(name).__name__}; give its settings when you build it, and then it alone")
    if callable(name):
        return name
    if not isinstance(name, str) or not name:
        raise ConfigError(f"the {k.name} needs a name, got {name!r}; `rlvr list {k.plural}` shows all")
    entry = _find_entry(kind, name)
    if entry is None and "-" in name:  # as names are written in shells and in other registries
        entry = _find_entry(kind, name.replace("-", "_"))
    if entry is None and ":" in name:
        return _load_from_file(k, name)
    if entry is None:
        names = [e.name for e in list_entries(kind)]
        known = translate_plugin_name(name, names)
        hint = f"did you mean {known!r}?" if known else f"{format_suggestion(name, names)}."
        if k.name == "env" and (name in VERIFIERS or _find_entry("verifier", name)):
            hint += f" {name!r} is a verifier: rlvr.make_env(data, verifier={name!r}) is an environment of questions of your own."
        if known == "process":  # by its name alone it would be refused
            hint = "for code that you trust, write sandbox={'name': 'process', 'trusted': True}; isolated is sandbox='auto'."
        raise NotFound(f"no {k.name} is called {name!r}; {hint} `rlvr list {k.plural}` shows all")
    if entry.error:
        raise PluginLoadError(entry.error)
    if entry.factory is not None:
        return entry.factory
    if entry.entry_point is None:
        module = _import_module(_get_builtin_module_name(k, entry.name), k, entry.name)
        return _get_factory(module, "make", k, entry.name)
    try:
        with redirect_stdout(sys.stderr):  # what a package prints must not stand in the output of a command
            factory = entry.entry_point.load()
    except MissingExtra:
        raise
    except (Exception, SystemExit) as error:
        raise PluginLoadError(
            f"{k.name} {name!r} of {entry.source} cannot be imported: {type(error).__name__}: {error}; fix or uninstall that package"
        ) from error
    checked = _require_callable(factory, k, name)
    if problem := _find_factory_problem(checked, k):
        raise PluginLoadError(f"{k.name} {name!r} of {entry.source} {problem}")
    return checked


def _find_entry(kind: str, name: str) -> PluginEntry | None:
    """Find a listed plugin by its name, or by `package:name`."""
    k = get_kind(kind)
    for path in _list_builtin_files(k):
        if path.stem == name:  # no package can replace it, so the installed packages need not be searched
            return PluginEntry(name, k.name, "rlvr", _read_summary(path))
    entries = list_entries(kind)
    package, _, plain = name.rpartition(":")
    return next(
        (e for e in entries if e.name == name),
        next((e for e in entries if package and e.name == plain and e.source == package and not e.error), None),
    )


def _find_factory_problem(factory: Callable[..., Any], kind: PluginKind) -> str:
    """Say what is wrong with a factory, as far as its signature shows it; "" if nothing is."""
    if kind.contract is None:
        return ""
    if isinstance(factory, type):
        derived = issubclass(factory, kind.contract)
        return "" if derived else f"is the class {factory.__name__}, not an rlvr.{kind.contract.__name__}; derive it from that one"
    needed = [p for p, spec in get_parameters(factory).items() if spec.default is spec.empty and p not in getattr(factory, "needs", {})]
    if inspect.isfunction(factory) and needed and not is_function_plugin(factory, kind.name):
        return (
            f"is the function {factory.__name__}, which needs {', '.join(map(repr, needed))}; a plugin is a class derived from "
            f"rlvr.{kind.contract.__name__}, or a function of keyword arguments with defaults that returns one"
        )
    return ""


def is_function_plugin(factory: Any, kind: str) -> bool:
    """Return whether a plain function is itself a verifier or a tool: `f(answer, reference)`; a function without arguments makes one."""
    if kind not in FUNCTION_KINDS or not inspect.isfunction(factory) or hasattr(factory, "needs"):
        return False
    positional = [spec for spec in get_parameters(factory).values() if spec.kind is not spec.KEYWORD_ONLY]
    return any(spec.default is spec.empty for spec in positional) or (
        kind == "tool" and factory.__annotations__.get("return") in (str, "str")
    )


def load_function_from_file(target: str, what: str) -> Callable[..., Any]:
    """Load a function of the user from `path/to/file.py:function`; `what` says in messages what it is for."""
    return _load_from_file(PluginKind(what, what, ()), target)


def is_gymnasium_class(value: Any) -> bool:
    """Return whether a value is a class with Gymnasium's `reset` and `step`, and no plugin."""
    return (
        isinstance(value, type)
        and not issubclass(value, Plugin)
        and all(callable(getattr(value, name, None)) for name in ("reset", "step"))
    )


def split_text_env_settings(env_class: Any, settings: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Split settings into those of `text_env` and those of the class with `reset` and `step` in it, which `kwargs` may hold, too.

    A setting that both have, such as `max_turns`, is one of both.
    """
    known, takes = get_parameters(load_factory("env", "text_env")), get_parameters(env_class)
    of_env, of_class = {name: value for name, value in settings.items() if name in known}, dict[str, Any]()
    if "kwargs" not in takes:
        given = of_env.pop("kwargs", None)
        if given is not None and not isinstance(given, Mapping):
            raise ConfigError(f"kwargs is {given!r:.60}; it must be a mapping of the settings of the class")
        of_class = dict(given or {})
    inner = of_class
    of_class = {**{name: value for name, value in settings.items() if (name not in known or name in takes)}, **inner}
    try:
        takes_all = any(one.kind is one.VAR_KEYWORD for one in read_signature(env_class).parameters.values())
    except (TypeError, ValueError):
        takes_all = True
    if not takes_all and (unknown := [name for name in of_class if name not in takes]):
        allowed = takes if unknown[0] in inner else {**takes, **known}
        hint = format_suggestion(unknown[0], allowed) if allowed else "it has none"
        raise ConfigError(f"{getattr(env_class, '__name__', type(env_class).__name__)} has no setting {unknown[0]!r}; {hint}")
    return of_env, of_class


def build(kind: str, plugin: str | Callable[..., Any], /, **kwargs: Any) -> Any:
    """Build a plugin, by its name or its class, together with the plugins that it needs.

    >>> build("verifier", "numeric", tolerance=0.01).tolerance
    Fraction(1, 100)
    """
    k = get_kind(kind)
    factory = load_factory(kind, plugin)
    if isinstance(plugin, str) and is_function_plugin(factory, k.name):
        return build(k.name, "function", function=factory, **kwargs)
    if k.name == "env" and isinstance(plugin, str) and is_gymnasium_class(factory):
        of_env, of_class = split_text_env_settings(factory, kwargs)
        around = build("env", "text_env", env_class=factory, kwargs=of_class, **of_env)
        if not re.search(r"\.py(:|$)", plugin):  # the ids of tasks begin with the name that the class has here
            around.label = plugin
        return around
    _reject_other_contract_version(factory, k.name, plugin)
    name = get_plugin_label(plugin)
    if isinstance(factory, type):
        _check_class(factory, k, name)
    given = dict(kwargs)
    fields = get_parameters(factory)
    if k.name == "env" and (around := build_with_context_settings(plugin, fields, given)):
        return build("env", "with_context", **around)
    if k.name == "env" and (around := build_with_tools_settings(plugin, fields, given)):
        return build("env", "with_tools", **around)
    if k.name == "env":
        wrap_verifier_with_audit(name, fields, get_needed_plugins(factory), given)
    if not getattr(factory, "validates_settings", False):  # a factory that checks its settings itself
        check_settings(k.name, name, fields, given, getattr(factory, "setting_hints", NO_HINTS))
    built: list[Any] = []
    try:
        build_dependencies(
            {other: default for other, default in get_needed_plugins(factory).items() if other in fields}, given, build_from_config, built
        )
        missing = [p for p, spec in fields.items() if spec.default is spec.empty and p not in given]
        if missing:
            wrong = f"{k.name} {name!r} needs {', '.join(map(repr, missing))}"
            if stray := [other for other in get_needed_plugins(factory) if other not in fields]:
                raise ConfigError(f"{wrong}; its `needs` has {stray[0]!r}, which its constructor does not take; write {missing[0]!r} there")
            raise ConfigError(f"{wrong}; `rlvr show {k.name} {name}` explains it")
        made = factory(**given)
        _check_class(type(made), k, name)
        return made
    except (Exception, SystemExit) as error:  # a constructor that calls sys.exit must not exit successfully
        for dependency in built:
            dependency.close()
        if isinstance(error, RlvrError):
            raise
        if isinstance(error, TypeError | ValueError):
            raise ConfigError(f"{k.name} {name!r} rejects its settings {_format_settings(kwargs)}: {error}") from error
        raise PluginLoadError(f"{k.name} {name!r} cannot be built: {type(error).__name__}: {error}") from error


def _check_class(plugin: type, kind: PluginKind, name: str) -> None:
    """Raise PluginLoadError if a class is not derived from the contract of its kind, or lacks a method of it."""
    if kind.contract is not None and not issubclass(plugin, kind.contract):
        contract = kind.contract.__name__
        wrong = f"{kind.name} {name!r} is a {plugin.__name__}, not an rlvr.{contract}; derive its class from that one"
        raise PluginLoadError(wrong + describe_smallest(contract))
    if missing := describe_missing_methods(plugin):
        raise PluginLoadError(missing)


def _reject_other_contract_version(factory: Any, kind: str, name: Any) -> None:
    """Raise PluginLoadError if a plugin states another version of the contract than this one."""
    stated = getattr(factory, "contract_version", None)
    if stated is None or stated == CONTRACT_VERSION:
        return
    if isinstance(stated, bool) or not isinstance(stated, int) or stated < 1:
        raise PluginLoadError(f"{kind} {name!r} has contract_version {stated!r:.40}; it must be a whole number, such as {CONTRACT_VERSION}")
    fix = "install a newer rlvr" if stated > CONTRACT_VERSION else "port it (CHANGELOG.md says what has changed), or install an older rlvr"
    raise PluginLoadError(f"{kind} {name!r} is written for version {stated} of the contracts, and this rlvr has {CONTRACT_VERSION}; {fix}")


def build_from_config(kind: str, config: Any) -> Any:
    """Build a plugin from a configuration: a name, a mapping with a `name`, or the plugin itself."""
    if isinstance(config, str):
        return build(kind, config)
    if isinstance(config, Mapping):
        if kind == "verifier" and _is_verifier_mix(config):
            return build("verifier", "composite", components=config)  # {symbolic: 0.9, format: 0.1}
        named: Any = config.get("name")
        if not named or not (isinstance(named, str | Plugin) or callable(named)):
            raise ConfigError(f"a {kind} needs a 'name'; got {dict(config)!r}; write {{name: ..., setting: value}}")
        return build(kind, config["name"], **{key: value for key, value in config.items() if key != "name"})
    if kind in FUNCTION_KINDS and callable(config) and not isinstance(config, type | Plugin):
        return build(kind, "function", function=config)
    if isinstance(config, type):
        return build(kind, config)
    if kind == "env" and isinstance(config, list | tuple):
        raise ConfigError("an env is a list here; an environment of data is rlvr.make_env(rows, verifier='symbolic')")
    if kind == "verifier" and isinstance(config, list | tuple) and config:
        parts = [repr(part) if isinstance(part, str) else get_plugin_label(part) for part in config]
        weights = ", ".join(f"{part}: {1 / len(parts):.2g}" for part in parts)
        raise ConfigError(f"a mix of verifiers is a mapping with their weights; write rlvr.make_verifier({{{weights}}})")
    if config is None or isinstance(config, bool | int | float | list | tuple):
        raise ConfigError(
            f"the {kind} is {config!r:.80}; give a name or a mapping with a 'name'; `rlvr list {get_kind(kind).plural}` shows all"
        )
    return config


def _is_verifier_mix(config: Mapping[Any, Any]) -> bool:
    """Return whether a mapping gives weights of verifiers, in contrast to settings without a `name`."""
    if any(not isinstance(key, str) for key in config):  # functions, classes, verifiers: no setting has such a name
        return True
    known = {entry.name for entry in list_entries("verifier")}
    return any(name in known or ":" in name for name in config) and all(type(weight) in (int, float) for weight in config.values())


def get_plugin_label(plugin: Any) -> str:
    """Return the name by which its user knows a plugin that is given as a name, a function, a class or an object.

    >>> get_plugin_label("numeric"), get_plugin_label(get_plugin_label), get_plugin_label(lambda answer: 1)
    ('numeric', 'get_plugin_label', 'lambda')
    """
    if isinstance(plugin, str):
        return plugin
    while isinstance(plugin, functools.partial):
        plugin = plugin.func
    named = getattr(plugin, "__name__", None) or getattr(plugin, "name", None)
    return named.strip("<>") if isinstance(named, str) else type(plugin).__name__


def get_parameters(factory: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """Return the settings of a plugin: its constructor's keyword arguments."""
    try:
        signature = read_signature(factory)
    except (TypeError, ValueError):
        return {}
    skip = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    return {name: p for name, p in signature.parameters.items() if p.kind not in skip and name != "self"}


def check_settings(
    kind: str, name: str, known_settings: Mapping[str, inspect.Parameter], settings: Mapping[str, Any], hints: Mapping[str, str] = NO_HINTS
) -> None:
    """Raise one ConfigError for all unknown settings, each with how it is written here (the plugin's `setting_hints`), or the nearest
    known one, or the plugins of the kind that have it; and one for a text in the place of a `bool`, which would count as true.
    """
    for key, value in settings.items():
        if key in known_settings and known_settings[key].annotation in ("bool", bool) and isinstance(value, str):
            raise ConfigError(f"{kind} {name!r}: {key} is {value!r}; it must be true or false")
    found = []
    for key in (key for key in settings if key not in known_settings):
        hint = hints.get(key) or explain_plugin_setting(kind, key, known_settings) or format_suggestion(key, known_settings)
        others = [] if "did you mean" in hint else [f"`{other}`" for other in _find_plugins_with_setting(kind, key)]
        if len(others) > MAX_PLUGINS_SHOWN:
            others[MAX_PLUGINS_SHOWN:] = [f"{len(others) - MAX_PLUGINS_SHOWN} more"]
        if others:
            named = " and ".join(filter(None, (", ".join(others[:-1]), others[-1])))
            hint += f"; {named} {'has' if len(others) == 1 else 'have'} it"
        if kind == "env" and "verifier" in known_settings and (verifiers := _find_plugins_with_setting("verifier", key)):
            hint += f"; a setting of a verifier is written verifier={{name: {verifiers[0]}, {key}: {settings[key]}}}"
        found.append(f"{key!r}; {hint}")
    if found:
        raise ConfigError(f"{kind} {name!r} has no setting {'; and no '.join(found)}")


def _find_plugins_with_setting(kind: str, setting: str) -> list[str]:
    """Find the built-in plugins whose constructor names a setting, without importing them.

    >>> _find_plugins_with_setting("verifier", "tolerance")
    ['numeric', 'quantity', 'table']
    """
    return [path.stem for path in _list_builtin_files(get_kind(kind)) if setting in _read_settings(path)]


@functools.lru_cache(maxsize=256)
def _read_settings(path: Path) -> frozenset[str]:
    """Read the names of a plugin's settings from its file, as far as its class has a constructor of its own."""
    try:
        tree = ast.parse(path.read_text("utf-8"))
    except (OSError, SyntaxError, ValueError):
        return frozenset()
    made = {
        node.value.id
        for node in tree.body
        if isinstance(node, ast.Assign)
        and isinstance(node.value, ast.Name)
        and any(isinstance(target, ast.Name) and target.id == "make" for target in node.targets)
    }
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name in made]
    makers = [node for one in classes for node in one.body if isinstance(node, ast.FunctionDef) and node.name == "__init__"]
    return frozenset(argument.arg for maker in makers for argument in maker.args.kwonlyargs)


def _split_target(target: str) -> tuple[Path, str]:
    """Split `path/to/file.py:Object` and check that the file exists."""
    where, _, attribute = target.rpartition(":")
    if not where.endswith(".py") or not attribute:
        if target.startswith("object:"):
            raise NotFound(
                f"{target!r} was an object of the Python program that made this run, which only that program has: call it again there, with "
                "resume=True to go on; a run that the command line can rebuild names path/to/file.py:Object instead"
            )
        raise NotFound(f"{target!r} is not the name of a plugin; write path/to/file.py:Object")
    path = find_plugin_file(where)
    if path is None:
        raise NotFound(
            f"there is no file {where!r} (in {target!r}); give an absolute path, or one relative to the file that names it or to the "
            "current folder"
        )
    return path, attribute


def get_user_plugin_file(factory: Any) -> Path | None:
    """Return the user's file that defines a plugin's class or function; None for a plugin of a package."""
    module = sys.modules.get(str(getattr(factory, "__module__", "")))
    if module is None or not module.__name__.startswith(FILE_MODULE_PREFIX):
        return None
    return Path(str(module.__file__))


def get_needed_plugins(factory: Any) -> dict[str, Any]:
    """Return the plugins that a plugin needs, by the setting that takes each.

    The names of files are resolved relative to the file that defines the plugin.
    """
    needs, file = dict(getattr(factory, "needs", {})), get_user_plugin_file(factory)
    if isinstance(factory, type) and issubclass(factory, Environment):
        taken = read_signature(factory).parameters.get("verifier")
        if taken is not None and not isinstance(taken.default, str | Mapping):  # with such a default the constructor builds it itself
            needs = {"verifier": "", **needs}
    found: dict[str, Any] = needs if file is None else resolve_plugin_files(needs, file.parent)
    return found


def _list_builtin_files(kind: PluginKind) -> list[Path]:
    """List the files of the built-in plugins of one kind, in the order of its folders."""
    return [path for folder in kind.folders for path in _list_plugin_files(folder)]


def _list_plugin_files(folder: str) -> list[Path]:
    found = next((place for parent in rlvr.__path__ if (place := Path(parent) / folder).is_dir()), PACKAGE_FOLDER / folder)
    return [path for path in sorted(found.glob("*.py")) if not path.name.startswith("_")]


def _get_builtin_module_name(kind: PluginKind, name: str) -> str:
    folder = next(folder for folder in kind.folders for path in _list_plugin_files(folder) if path.stem == name)
    return ".".join(("rlvr", *folder.split("/"), name))


@functools.lru_cache(maxsize=256)
def _read_summary(path: Path) -> str:
    """Read the first line of a file's docstring, without executing the file."""
    try:
        return _first_line(ast.get_docstring(ast.parse(path.read_text("utf-8"))))
    except (OSError, SyntaxError, ValueError):
        return ""


def _first_line(text: str | None) -> str:
    return (text or "").strip().split("\n", 1)[0]


def _load_from_file(kind: PluginKind, target: str) -> Callable[..., Any]:
    path, attribute = _split_target(target)
    # each file is imported once; files with the same name become different modules
    alias = f"{FILE_MODULE_PREFIX}{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:12]}"
    if alias not in sys.modules:
        spec = importlib.util.spec_from_file_location(alias, path)
        if spec is None or spec.loader is None:
            raise PluginLoadError(f"{path} cannot be imported")
        module = importlib.util.module_from_spec(spec)
        sys.modules[alias] = module
        try:
            with redirect_stdout(sys.stderr):  # what a file prints must not stand in the output of a command
                spec.loader.exec_module(module)
        except (Exception, SystemExit) as error:
            del sys.modules[alias]
            hint = "install it, or, if it is a file next to this one, make a package of both (`rlvr new`)"
            fix = hint if isinstance(error, ImportError) else "fix that file"
            raise PluginLoadError(f"{path} cannot be imported: {type(error).__name__}: {error}; {fix}") from error
    return _get_factory(sys.modules[alias], attribute, kind, target)


def _import_module(dotted: str, kind: PluginKind, name: str) -> ModuleType:
    try:
        return importlib.import_module(dotted)
    except RlvrError:
        raise
    except ModuleNotFoundError as error:
        extra = EXTRA_BY_PACKAGE.get((error.name or "").split(".")[0])
        if extra:
            raise MissingExtra((error.name or "").split(".")[0], extra) from error
        raise PluginLoadError(f"{kind.name} {name!r} cannot be imported: {error}") from error
    except Exception as error:
        raise PluginLoadError(f"{kind.name} {name!r} cannot be imported: {type(error).__name__}: {error}") from error


EXTRA_BY_PACKAGE: Mapping[str, str] = {
    "torch": "train",
    "transformers": "train",
    "accelerate": "train",
    "datasets": "train",
    "matplotlib": "train",
    "peft": "lora",
    "vllm": "vllm",
    "bm25s": "search",
    "mcp": "mcp",
}


def _get_factory(module: ModuleType, attribute: str, kind: PluginKind, name: str) -> Callable[..., Any]:
    if not hasattr(module, attribute):
        public = [n for n, value in vars(module).items() if not n.startswith("_") and not isinstance(value, ModuleType)]
        where = Path(str(module.__file__)).name if module.__name__.startswith(FILE_MODULE_PREFIX) else module.__name__
        raise PluginLoadError(f"{kind.name} {name!r}: {where} has no {attribute!r}; {format_suggestion(attribute, public)}")
    return _require_callable(getattr(module, attribute), kind, name)


def _require_callable(factory: Any, kind: PluginKind, name: str) -> Callable[..., Any]:
    if not callable(factory):
        raise PluginLoadError(f"{kind.name} {name!r} is {factory!r}; a plugin is a class or a function that takes keyword arguments")
    plugin: Callable[..., Any] = factory
    return plugin


def _format_settings(kwargs: Mapping[str, Any]) -> str:
    text = ", ".join(f"{key}={value!r}" for key, value in kwargs.items())
    return f"({text[:200]}{'...' if len(text) > 200 else ''})"
