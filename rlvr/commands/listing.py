"""`rlvr list` and `rlvr show`: list plugins, and print the documentation and settings of one."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rich.text import Text

from rlvr.commands import screen
from rlvr.config.config import RunConfig
from rlvr.config.described import keys_of, sections
from rlvr.errors import ConfigError, NotFound, suggest
from rlvr.plugins.registry import KINDS, PACKAGE, Entry, entries, examined, kind_of, load, parameters
from rlvr.task import plain

YAMLS = {"recipes": "recipe", "suites": "suite"}
"""Kinds that are YAML files instead of plugins: plural and singular."""
CONFIG = "config"
"""The kind that `rlvr show` uses for the settings of a run."""
FOLDERS = {"recipes": PACKAGE / "config" / "recipes", "suites": PACKAGE / "evaluation" / "suites"}
"""The folders of those files."""


def list_plugins(word: str | None, *, json: bool) -> None:
    """Print the registered plugins of one kind, or of every kind."""
    kinds = [_plural(word)] if word else [*(kind.plural for kind in KINDS.values()), *YAMLS]
    found = {plural: rows_of(plural) for plural in kinds}
    if json:
        screen.say_json([row if word else {"kind": plural, **row} for plural, rows in found.items() for row in rows])
        return
    console = screen.out()
    for plural, rows in found.items():
        console.print(screen.table(("name", "source", "summary"), [_line(row) for row in rows], title=plural) if rows else f"no {plural}")
        console.print()


def list_offered(word: str | None, name: str, *, json: bool) -> None:
    """Print the catalog of an environment: the names it can build, and the reasons why it cannot build the others."""
    if word is None or _plural(word) != "envs":
        raise ConfigError(f"--of {name} lists the catalog of an environment; write `rlvr list envs --of {name}`")
    offered = getattr(load("env", name), "offered", tuple)
    rows = [dict(row) for row in offered()]
    if not rows:
        raise ConfigError(f"env {name!r} is one environment, not a catalog; `rlvr show env {name}` explains it")
    if json:
        screen.say_json(rows)
        return
    lines = [(row["name"], row["offered"], row["why"]) for row in rows]
    screen.out().print(screen.table(("name", "offered", "how, or why not"), lines, title=f"envs of {name}"))


def rows_of(plural: str) -> list[dict[str, str]]:
    """List the rows of a kind: one for each plugin, recipe or suite."""
    if plural in YAMLS:
        paths = sorted(FOLDERS[plural].glob("*.yaml"))
        return [{"name": path.stem, "source": "rlvr", "summary": _first_comment(path)} for path in paths]
    return [_row(entry) for entry in examined(plural)]


def show_plugin(word: str, name: str, *, json: bool) -> None:
    """Print the docstring of one plugin, and its settings with their defaults."""
    if word == CONFIG:
        _show_config(name, json=json)
        return
    if not name:
        kinds = [kind.name for kind in KINDS.values() if any(entry.name == word for entry in entries(kind.name))]
        meant = " or ".join(f"`rlvr show {kind} {word}`" for kind in kinds) or f"such as `rlvr show {word.removesuffix('s')} NAME`"
        raise ConfigError(f"show takes a KIND and a NAME: {meant}")
    if (plural := _plural(word)) in YAMLS:
        _show_yaml(plural, name, json=json)
        return
    about = described(word, name)
    if json:
        screen.say_json({key: value for key, value in about.items() if key != "idle"})
        return
    kind, idle, settings = kind_of(word), about["idle"], about["settings"]
    console = screen.out()
    console.print(Text.assemble((f"{kind.name} {name}", "bold"), f"   version {about['version']}" if kind.name == "verifier" else ""))
    console.print(Text(about["about"]))
    console.print()
    lines = [
        (str(s["name"]), str(s["type"]), "required" if s["required"] else repr(s["default"]), str(s["about"]))
        for s in settings
        if s["name"] not in idle
    ]
    columns: tuple[str, ...] = ("setting", "type", "default", "about")
    cells: list[tuple[str, ...]] = list(lines)
    if not any(line[3] for line in lines):  # no setting has a description: leave the column out
        columns, cells = columns[:3], [line[:3] for line in lines]
    console.print(screen.table(columns, cells) if cells else "It has no settings.")
    if idle:
        console.print(Text(f"\nUsed only together with other settings: {', '.join(idle)}", style="dim"))


def _show_config(section: str, *, json: bool) -> None:
    """Print the settings of a run: all of them, those of one section, or one key."""
    found = {f"{path}.{key.name}".strip("."): key for path, kind in sections(RunConfig) for key in keys_of(kind)}
    kept = {path: key for path, key in found.items() if f"{path}.".startswith(f"{section}." if section else "")}
    if not kept:
        raise NotFound(f"a run has no setting {section!r}; {suggest(section, found)}. `rlvr show {CONFIG}` shows all")
    if json:
        screen.say_json([{"key": path, "default": key.default, "about": key.about, "limits": key.limits} for path, key in kept.items()])
        return
    lines = [(path, key.default, f"{key.about} {f'({key.limits})' if key.limits else ''}".strip()) for path, key in kept.items()]
    screen.out().print(screen.table(("key", "default", "about"), lines))


def described(word: str, name: str) -> dict[str, Any]:
    """Describe one plugin: its docstring, its needs, and its settings with their defaults."""
    kind = kind_of(word)
    factory = load(kind.name, name)
    document = inspect.cleandoc(getattr(factory, "__doc__", None) or "")  # its own docstring, not the one of its base class
    notes = _notes(getattr(factory, "__init__", factory)) | dict(getattr(factory, "about", {}))
    needs = dict(getattr(factory, "needs", {}))
    settings = [
        {
            "name": key,
            "type": _type(parameter),
            "default": needs.get(key, None if parameter.default is parameter.empty else _plain(parameter.default)),
            "required": parameter.default is parameter.empty and needs.get(key, "") == "",
            "about": notes.get(key, f"a {key}: its name, or {{name: ..., setting: value}}" if key in needs else ""),
        }
        for key, parameter in parameters(factory).items()
    ]
    version = str(getattr(factory, "version", ""))
    told = {"kind": kind.name, "name": name, "about": document, "needs": needs, "settings": settings, "version": version}
    return told | {"idle": [key for key in parameters(factory) if key in getattr(factory, "idle", ())]}


def _show_yaml(plural: str, name: str, *, json: bool) -> None:
    path = FOLDERS[plural] / f"{name}.yaml"
    if not path.is_file():
        names = [row["name"] for row in rows_of(plural)]
        raise NotFound(f"there is no {YAMLS[plural]} {name!r}; {suggest(name, names)}. `rlvr list {plural}` shows all")
    text = path.read_text("utf-8")
    if json:
        screen.say_json({"kind": YAMLS[plural], "name": name, "text": text})
    else:
        screen.out().print(Text(text.rstrip()))


def _plural(word: str) -> str:
    words = {one: plural for plural, one in YAMLS.items()} | {kind.name: kind.plural for kind in KINDS.values()}
    if word not in (known := {*words, *words.values()}):
        meant = {"environment": "env", "environments": "envs"}.get(word)
        raise NotFound(f"there is no kind {word!r}; {f'did you mean {meant!r}? ' if meant else ''}{suggest(word, known, limit=99)}")
    return words.get(word, word)


def _row(entry: Entry) -> dict[str, str]:
    row = {"name": entry.name, "source": entry.source, "summary": entry.summary}
    return row | ({"error": entry.error} if entry.error else {})


def _line(row: dict[str, str]) -> tuple[str, str, str | Text]:
    error = row.get("error")
    return row["name"], row["source"], Text(f"broken: {error}", style="red") if error else row["summary"]


def _first_comment(path: Path) -> str:
    return _first(line.lstrip("# ").rstrip() for line in path.read_text("utf-8").splitlines() if line.startswith("#"))


def _first(lines: Iterable[str]) -> str:
    return next((line for line in lines if line), "")


def _type(parameter: inspect.Parameter) -> str:
    hint = parameter.annotation
    return "" if hint is parameter.empty else hint if isinstance(hint, str) else getattr(hint, "__name__", str(hint))


def _plain(value: Any) -> Any:
    if isinstance(value, tuple | frozenset | set):
        return [_plain(item) for item in value]
    return plain(value)


def _notes(function: Any) -> dict[str, str]:
    """Parse the `Args:` section of a docstring into a description for each argument."""
    found: dict[str, str] = {}
    document = inspect.getdoc(function) or ""
    if "Args:\n" not in document:
        return found
    name = ""
    for line in document.split("Args:\n", 1)[1].splitlines():
        if line and not line.startswith(" "):
            break
        head, colon, rest = line.strip().partition(":")
        if colon and head.isidentifier() and line.startswith("    ") and not line.startswith("     "):
            name = head
            found[name] = rest.strip()
        elif name and line.strip():
            found[name] += " " + line.strip()
    return found
