"""Find and build plugins by name: `build("verifier", "numeric", tolerance=0.01)`.

A name is resolved, in this order, as
  1. `path/to/file.py:Object`                      an object in a user's file
  2. a file of that name in the folder of the kind   `verifiers/numeric.py`
  3. an entry point of that name in `rlvr.verifiers`  an installed package
Listing plugins reads only metadata; building one imports only that one.
The constructor's signature is the configuration schema; the plugins that `needs` names are built here.
"""

from __future__ import annotations

import ast
import hashlib
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from importlib.metadata import EntryPoint
from pathlib import Path
from types import ModuleType
from typing import Any

from rlvr.contracts import Environment, Sampler, Sandbox, Verifier
from rlvr.contracts.tool import Tool
from rlvr.errors import ConfigError, MissingExtra, NotFound, PluginError, RlvrError, suggest
from rlvr.plugins import foreign
from rlvr.plugins.needs import fill, with_shadow, with_tools

PACKAGE = Path(__file__).parents[1]
FILE_MODULE = "_rlvr_plugin_"
"""The prefix of the module name of a user's file."""


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of plugin: its name in messages, its folder, its entry-point group.

    >>> KINDS["env"].group
    'rlvr.envs'
    """

    name: str
    plural: str
    folder: str
    contract: type | None = None
    """The base class of every plugin of the kind."""

    @property
    def group(self) -> str:
        """The entry-point group for third-party packages."""
        return f"rlvr.{self.plural}"


KINDS: Mapping[str, Kind] = {
    kind.name: kind
    for kind in (
        Kind("env", "envs", "envs", contract=Environment),
        Kind("verifier", "verifiers", "verifiers", contract=Verifier),
        Kind("sandbox", "sandboxes", "sandbox", contract=Sandbox),
        Kind("sampler", "samplers", "samplers", contract=Sampler),
        Kind("tool", "tools", "tools", contract=Tool),
        Kind("algorithm", "algorithms", "algos"),
    )
}


@dataclass(frozen=True, slots=True)
class Entry:
    """A listed plugin, known from metadata and not imported.

    >>> Entry("numeric", "verifier", "rlvr", "Compare two numbers.").name
    'numeric'
    """

    name: str
    kind: str
    source: str
    """`rlvr`, the distribution that provides it, or the file that contains it."""
    summary: str = ""
    error: str = ""
    point: EntryPoint | None = None


@dataclass(frozen=True, slots=True)
class Spec:
    """The data from which another process can build the same plugin.

    >>> Spec("verifier", "numeric", {"tolerance": 0.01}).kwargs
    {'tolerance': 0.01}
    """

    kind: str
    name: str
    kwargs: Mapping[str, Any] = field(default_factory=dict)

    def build(self) -> Any:
        """Build the plugin."""
        return build(self.kind, self.name, **self.kwargs)


def kind_of(word: str) -> Kind:
    """Return the kind for a word such as `env` or `envs`; raise NotFound for others."""
    for kind in KINDS.values():
        if word in (kind.name, kind.plural):
            return kind
    raise NotFound(f"there is no kind of plugin {word!r}; {suggest(word, [k.plural for k in KINDS.values()])}")


def entries(kind: str) -> list[Entry]:
    """List all registered plugins of one kind, sorted by name, without importing them."""
    k = kind_of(kind)
    found = {name: Entry(name, k.name, "rlvr", summary) for name, summary in _ours(k).items()}
    for name, points in foreign.points(k.group).items():
        owners = sorted({foreign.owner(point.dist) for point in points} | ({"rlvr"} if name in found else set()))
        if len(owners) > 1:
            clash = f"{' and '.join(owners)} both define the {k.name} {name!r}; uninstall one, or write path/to/file.py:Object"
            found[name] = Entry(name, k.name, " + ".join(owners), error=clash)
        else:
            found[name] = Entry(name, k.name, owners[0], f"from {points[0].value}", point=points[0])
    return sorted(found.values(), key=lambda entry: entry.name)


def examined(kind: str) -> list[Entry]:
    """List the plugins of one kind, and import those of other packages, so that a broken one shows its error."""
    rows = []
    for entry in entries(kind):
        if entry.point and not entry.error:
            try:
                loaded = load(kind, entry.name)
                entry = Entry(entry.name, entry.kind, entry.source, _first_line(loaded.__doc__), point=entry.point)
            except RlvrError as error:
                entry = Entry(entry.name, entry.kind, entry.source, entry.summary, str(error), entry.point)
        rows.append(entry)
    return rows


def load(kind: str, name: str) -> Callable[..., Any]:
    """Import one plugin and return its factory (usually its class)."""
    k = kind_of(kind)
    if not isinstance(name, str) or not name:
        raise ConfigError(f"a {k.name} needs a name, got {name!r}; `rlvr list {k.plural}` shows all")
    if ":" in name:
        return _from_file(k, name)
    entry = next((e for e in entries(kind) if e.name == name), None)
    if entry is None:
        names = [e.name for e in entries(kind)]
        raise NotFound(f"no {k.name} is called {name!r}; {suggest(name, names)}. `rlvr list {k.plural}` shows all")
    if entry.error:
        raise PluginError(entry.error)
    if entry.point is None:
        module = _import(f"rlvr.{k.folder}.{name}", k, name)
        return _factory(module, "make", k, name)
    try:
        factory = entry.point.load()
    except MissingExtra:
        raise
    except (Exception, SystemExit) as error:
        raise PluginError(
            f"{k.name} {name!r} of {entry.source} cannot be imported: {type(error).__name__}: {error}; fix or uninstall that package"
        ) from error
    return _callable(factory, k, name)


def build(kind: str, name: str, /, **kwargs: Any) -> Any:
    """Build a plugin by name, together with the plugins that it needs.

    >>> build("verifier", "numeric", tolerance=0.01)        # doctest: +SKIP
    """
    k = kind_of(kind)
    factory = load(kind, name)
    given = dict(kwargs)
    fields = parameters(factory)
    if k.name == "env" and (around := with_tools(name, fields, given)):
        return build("env", "with_tools", **around)
    if k.name == "env":
        with_shadow(name, fields, getattr(factory, "needs", {}), given)
    if not getattr(factory, "checks", False):  # a factory that checks its settings itself
        check_arguments(k.name, name, fields, given)
    built: list[Any] = []
    try:
        fill({other: default for other, default in getattr(factory, "needs", {}).items() if other in fields}, given, from_config, built)
        missing = [p for p, spec in fields.items() if spec.default is spec.empty and p not in given]
        if missing:
            raise ConfigError(f"{k.name} {name!r} needs {', '.join(map(repr, missing))}; `rlvr show {k.name} {name}` explains it")
        made = factory(**given)
        if k.contract is not None and not isinstance(made, k.contract):
            raise PluginError(
                f"{k.name} {name!r} is a {type(made).__name__}, not an rlvr.{k.contract.__name__}; derive its class from that one"
            )
        return made
    except (Exception, SystemExit) as error:  # a constructor that calls sys.exit must not exit successfully
        for plugin in built:
            plugin.close()
        if isinstance(error, RlvrError):
            raise
        if isinstance(error, TypeError | ValueError):
            raise ConfigError(f"{k.name} {name!r} rejects its settings {_short(kwargs)}: {error}") from error
        raise PluginError(f"{k.name} {name!r} cannot be built: {type(error).__name__}: {error}") from error


def from_config(kind: str, wanted: Any) -> Any:
    """Build a plugin from a configuration: a name, a mapping with a `name`, or the plugin itself."""
    if isinstance(wanted, str):
        return build(kind, wanted)
    if isinstance(wanted, Mapping):
        if kind == "verifier" and _weighs(wanted):
            return build("verifier", "composite", parts=wanted)  # {symbolic: 0.9, format: 0.1}
        if not isinstance(wanted.get("name"), str) or not wanted["name"]:
            raise ConfigError(f"a {kind} needs a 'name'; got {dict(wanted)!r}; write {{name: ..., setting: value}}")
        return build(kind, wanted["name"], **{key: value for key, value in wanted.items() if key != "name"})
    if wanted is None or isinstance(wanted, bool | int | float | list | tuple):
        raise ConfigError(f"a {kind} is a name or a mapping with a 'name', got {wanted!r}; `rlvr list {kind_of(kind).plural}` shows all")
    return wanted


def _weighs(wanted: Mapping[str, Any]) -> bool:
    """Return whether a mapping gives weights of verifiers, in contrast to settings without a `name`."""
    known = {entry.name for entry in entries("verifier")}
    return any(name in known or ":" in name for name in wanted) and all(type(weight) in (int, float) for weight in wanted.values())


def parameters(factory: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """Return the settings of a plugin: its constructor's keyword arguments."""
    try:
        signature = inspect.signature(factory)
    except (TypeError, ValueError):
        return {}
    skip = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    return {name: p for name, p in signature.parameters.items() if p.kind not in skip and name != "self"}


def check_arguments(kind: str, name: str, fields: Mapping[str, inspect.Parameter], given: Mapping[str, Any]) -> None:
    """Raise ConfigError for an unknown setting, with the nearest known one."""
    for key in given:
        if key not in fields:
            raise ConfigError(f"{kind} {name!r} has no setting {key!r}; {suggest(key, fields)}")


def module_of(target: str) -> tuple[Path, str]:
    """Split `path/to/file.py:Object` and check that the file exists."""
    where, _, attribute = target.rpartition(":")
    path = Path(where).expanduser()
    if not where.endswith(".py") or not attribute:
        raise NotFound(f"{target!r} is not the name of a plugin; write path/to/file.py:Object")
    if not path.is_file():
        raise NotFound(f"there is no file {where!r} (in {target!r}); give an absolute path, or one relative to the current folder")
    return path.resolve(), attribute


def _ours(kind: Kind) -> dict[str, str]:
    """List the built-in plugins, with their summaries."""
    folder = PACKAGE / kind.folder
    return {path.stem: _summary(path) for path in sorted(folder.glob("*.py")) if not path.name.startswith("_")}


@lru_cache(maxsize=256)
def _summary(path: Path) -> str:
    """Read the first line of a file's docstring, without executing the file."""
    try:
        return _first_line(ast.get_docstring(ast.parse(path.read_text("utf-8"))))
    except (OSError, SyntaxError, ValueError):
        return ""


def _first_line(text: str | None) -> str:
    return (text or "").strip().split("\n", 1)[0]


def _from_file(kind: Kind, target: str) -> Callable[..., Any]:
    path, attribute = module_of(target)
    # each file is imported once; files with the same name become different modules
    alias = f"{FILE_MODULE}{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:12]}"
    if alias not in sys.modules:
        spec = importlib.util.spec_from_file_location(alias, path)
        if spec is None or spec.loader is None:
            raise PluginError(f"{path} cannot be imported")
        module = importlib.util.module_from_spec(spec)
        sys.modules[alias] = module
        try:
            spec.loader.exec_module(module)
        except (Exception, SystemExit) as error:
            del sys.modules[alias]
            hint = "install it, or, if it is a file next to this one, make a package of both (`rlvr new`)"
            fix = hint if isinstance(error, ImportError) else "fix that file"
            raise PluginError(f"{path} cannot be imported: {type(error).__name__}: {error}; {fix}") from error
    return _factory(sys.modules[alias], attribute, kind, target)


def _import(dotted: str, kind: Kind, name: str) -> ModuleType:
    try:
        return importlib.import_module(dotted)
    except RlvrError:
        raise
    except ModuleNotFoundError as error:
        extra = EXTRAS.get((error.name or "").split(".")[0])
        if extra:
            raise MissingExtra((error.name or "").split(".")[0], extra) from error
        raise PluginError(f"{kind.name} {name!r} cannot be imported: {error}") from error
    except Exception as error:
        raise PluginError(f"{kind.name} {name!r} cannot be imported: {type(error).__name__}: {error}") from error


EXTRAS: Mapping[str, str] = {
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


def _factory(module: ModuleType, attribute: str, kind: Kind, name: str) -> Callable[..., Any]:
    if not hasattr(module, attribute):
        public = [n for n in vars(module) if not n.startswith("_")]
        raise PluginError(f"{kind.name} {name!r}: {module.__name__} has no {attribute!r}; {suggest(attribute, public)}")
    return _callable(getattr(module, attribute), kind, name)


def _callable(factory: Any, kind: Kind, name: str) -> Callable[..., Any]:
    if not callable(factory):
        raise PluginError(f"{kind.name} {name!r} is {factory!r}; a plugin is a class or a function that takes keyword arguments")
    plugin: Callable[..., Any] = factory
    return plugin


def _short(kwargs: Mapping[str, Any]) -> str:
    text = ", ".join(f"{key}={value!r}" for key, value in kwargs.items())
    return f"({text[:200]}{'...' if len(text) > 200 else ''})"
