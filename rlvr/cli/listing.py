"""`rlvr list` and `rlvr show`: list plugins, and print the documentation and settings of one."""

from __future__ import annotations

import inspect
import shlex
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rich.text import Text

from rlvr.cli import screen
from rlvr.cli.similar import find_similar
from rlvr.config.config import RunConfig
from rlvr.config.key_reference import iter_sections, list_keys
from rlvr.errors import ConfigError, NotFound, format_suggestion
from rlvr.hints import translate_plugin_name
from rlvr.plugin_files import FILE_PLUGIN_PATTERN
from rlvr.registry.plugins import (
    PACKAGE_FOLDER,
    PLUGIN_KINDS,
    PluginEntry,
    get_kind,
    get_needed_plugins,
    get_parameters,
    list_entries,
    list_entries_with_import_errors,
    load_factory,
    load_function_from_file,
)
from rlvr.runs.tables import make_table
from rlvr.task import to_plain_json

YAML_KINDS = {"recipes": "recipe", "suites": "suite"}
"""Kinds that are YAML files instead of plugins: plural and singular."""
CONFIG_KIND = "config"
"""The kind that `rlvr show` uses for the settings of a run."""
YAML_FOLDERS = {"recipes": PACKAGE_FOLDER / "config" / "recipes", "suites": PACKAGE_FOLDER / "evaluation" / "suites"}
"""The folders of those files."""


def list_plugins(kind_name: str | None, *, json: bool) -> None:
    """Print the registered plugins of one kind with what they are for, or the names of every kind on one screen."""
    kinds = [_to_plural_kind(kind_name)] if kind_name else [*(kind.plural for kind in PLUGIN_KINDS.values()), *YAML_KINDS]
    found = {plural: list_rows(plural) for plural in kinds}
    if json:
        screen.print_json([row if kind_name else {"kind": plural, **row} for plural, rows in found.items() for row in rows])
        return
    console = screen.make_stdout_console()
    if kind_name:
        [(plural, rows)] = found.items()
        console.print(
            make_table(("name", "source", "summary"), [_make_table_row(row) for row in rows], title=plural) if rows else f"no {plural}"
        )
        return
    console.print(make_table(("kind", "number", "names"), [(plural, str(len(rows)), _join_names(rows)) for plural, rows in found.items()]))
    console.print()
    for plural in [plural for plural, rows in found.items() if any("error" in row for row in rows)]:
        console.print(Text(f"`rlvr list {plural}` says why some are broken", style="red"))
    console.print(Text("`rlvr list KIND` says what those of a kind are for; `rlvr show NAME` explains one"))


def list_catalog(kind_name: str | None, name: str, *, json: bool) -> None:
    """Print the catalog of an environment: the names it can build, and the reasons why it cannot build the others."""
    if kind_name is None or _to_plural_kind(kind_name) != "envs":
        raise ConfigError(f"--catalog {name} lists the catalog of an environment; write `rlvr list envs --catalog {name}`")
    offered = getattr(load_factory("env", name), "list_support_status", tuple)
    rows = [dict(row) for row in offered()]
    if not rows:
        raise ConfigError(f"env {name!r} is one environment, not a catalog; `rlvr show env {name}` explains it")
    if json:
        screen.print_json(rows)
        return
    lines = [(row["name"], row["offered"], row["why"]) for row in rows]
    screen.make_stdout_console().print(make_table(("name", "offered", "how, or why not"), lines, title=f"envs of {name}"))


def list_rows(plural_kind: str) -> list[dict[str, str]]:
    """List the rows of a kind: one for each plugin, recipe or suite."""
    if plural_kind in YAML_KINDS:
        paths = sorted(YAML_FOLDERS[plural_kind].glob("*.yaml"))
        return [{"name": path.stem, "source": "rlvr", "summary": _read_first_comment(path)} for path in paths]
    return [_make_entry_row(entry) for entry in list_entries_with_import_errors(plural_kind)]


def show_plugin(kind_name: str, name: str, *, json: bool) -> None:
    """Print the docstring of one plugin, and its settings with their defaults."""
    if kind_name == CONFIG_KIND:
        _show_config(name, json=json)
        return
    if not name:
        kind_name, name = find_kind("show", kind_name), kind_name
    if (plural := _to_plural_kind(kind_name)) in YAML_KINDS:
        _show_yaml(plural, name, json=json)
        return
    about = describe_plugin(kind_name, name)
    if json:
        screen.print_json({key: value for key, value in about.items() if key != "idle"})
        return
    kind, idle, settings = get_kind(kind_name), about["idle"], about["settings"]
    console = screen.make_stdout_console()
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
    console.print(make_table(columns, cells) if cells else "It has no settings.")
    if idle:
        console.print(Text(f"\nUsed only together with other settings: {', '.join(idle)}", style="dim"))


def find_kind(command: str, name: str) -> str:
    """Find the kind of what is named without its kind, for `rlvr show NAME` and `rlvr check NAME`; ConfigError unless one kind has the name.

    >>> find_kind("show", "gsm8k"), find_kind("show", "quickstart")
    ('env', 'recipe')
    """
    one = next((one for one, plural in _list_kind_words().items() if name in (one, plural)), "")
    if one:
        plural = _list_kind_words()[one]
        raise ConfigError(f"{command} takes a KIND and a NAME: such as `rlvr {command} {one} NAME`; `rlvr list {plural}` shows the names")
    if FILE_PLUGIN_PATTERN.fullmatch(name):
        loaded: Any = load_function_from_file(name, "plugin")
        found = [
            kind.name for kind in PLUGIN_KINDS.values() if kind.contract and isinstance(loaded, type) and issubclass(loaded, kind.contract)
        ]
        if not found:
            raise ConfigError(
                f"{name} does not show which kind of plugin it is; write `rlvr {command} KIND {name}`, such as verifier or tool"
            )
        return found[0]
    from rlvr.viewer.index import is_run

    if command == "show" and is_run(Path(name)):
        raise NotFound(f"{name} is the folder of a run; `rlvr view {shlex.quote(name)}` writes it as a page")
    names = {kind.name: [entry.name for entry in list_entries(kind.name)] for kind in PLUGIN_KINDS.values()}
    names |= {one: [path.stem for path in sorted(YAML_FOLDERS[plural].glob("*.yaml"))] for plural, one in YAML_KINDS.items()}
    kinds = [kind for kind, of_kind in names.items() if name in of_kind]
    if len(kinds) == 1:
        return kinds[0]
    if kinds:
        meant = " or ".join(f"`rlvr {command} {kind} {name}`" for kind in kinds)
        raise ConfigError(f"{name!r} is the name of {len(kinds)} plugins of different kinds; write {meant}")
    known = {word for of_kind in names.values() for word in of_kind} | {*_list_kind_words(), CONFIG_KIND}
    near = translate_plugin_name(name, known) or find_similar(name, known)
    hint = f"did you mean {near!r}?" if near else f"the kinds are {', '.join([*_list_kind_words(), CONFIG_KIND])};"
    raise NotFound(f"there is neither a kind nor a plugin {name!r}; {hint} `rlvr list` shows all")


def _show_config(section: str, *, json: bool) -> None:
    """Print the settings of a run: all of them, those of one section, or one key."""
    found = {f"{path}.{key.name}".strip("."): key for path, kind in iter_sections(RunConfig) for key in list_keys(kind)}
    kept = {path: key for path, key in found.items() if f"{path}.".startswith(f"{section}." if section else "")}
    if not kept:
        raise NotFound(f"a run has no setting {section!r}; {format_suggestion(section, found)}. `rlvr show {CONFIG_KIND}` shows all")
    if json:
        screen.print_json(
            [
                {"key": path, "type": key.type_text, "default": key.default_text, "about": key.description, "limits": key.limits}
                for path, key in kept.items()
            ]
        )
        return
    lines = [(path, key.default_text, f"{key.description} {f'({key.limits})' if key.limits else ''}".strip()) for path, key in kept.items()]
    screen.make_stdout_console().print(make_table(("key", "default", "about"), lines))


def describe_plugin(kind_name: str, name: str) -> dict[str, Any]:
    """Describe one plugin: its docstring, its needs, and its settings with their defaults."""
    kind = get_kind(kind_name)
    factory = load_factory(kind.name, name)
    document = inspect.cleandoc(getattr(factory, "__doc__", None) or "")  # its own docstring, not the one of its base class
    notes = _parse_args_section(getattr(factory, "__init__", factory)) | dict(getattr(factory, "setting_descriptions", {}))
    needs = get_needed_plugins(factory)
    settings = [
        {
            "name": key,
            "type": _format_type(parameter),
            "default": needs.get(key, None if parameter.default is parameter.empty else _to_plain(parameter.default)),
            "required": parameter.default is parameter.empty and needs.get(key, "") == "",
            "about": notes.get(key, f"a {key}: its name, or {{name: ..., setting: value}}" if key in needs else ""),
        }
        for key, parameter in get_parameters(factory).items()
    ]
    version = str(getattr(factory, "version", ""))
    told = {"kind": kind.name, "name": name, "about": document, "needs": needs, "settings": settings, "version": version}
    return told | {"idle": [key for key in get_parameters(factory) if key in getattr(factory, "settings_inactive_by_default", ())]}


def _show_yaml(plural: str, name: str, *, json: bool) -> None:
    path = YAML_FOLDERS[plural] / f"{name}.yaml"
    if not path.is_file():
        names = [row["name"] for row in list_rows(plural)]
        raise NotFound(f"there is no {YAML_KINDS[plural]} {name!r}; {format_suggestion(name, names)}. `rlvr list {plural}` shows all")
    text = path.read_text("utf-8")
    if json:
        screen.print_json({"kind": YAML_KINDS[plural], "name": name, "text": text})
    else:
        screen.make_stdout_console().print(Text(text.rstrip()))


def _list_kind_words() -> dict[str, str]:
    """Return the plural of each kind, by its singular."""
    return {one: plural for plural, one in YAML_KINDS.items()} | {kind.name: kind.plural for kind in PLUGIN_KINDS.values()}


def _to_plural_kind(word: str) -> str:
    words = _list_kind_words()
    if word not in (known := {*words, *words.values()}):
        meant = {"environment": "env", "environments": "envs"}.get(word)
        raise NotFound(
            f"there is no kind {word!r}; {f'did you mean {meant!r}? ' if meant else ''}{format_suggestion(word, known, max_names=99)}"
        )
    return words.get(word, word)


def _make_entry_row(entry: PluginEntry) -> dict[str, str]:
    row = {"name": entry.name, "source": entry.source, "summary": entry.summary}
    return row | ({"error": entry.error} if entry.error else {})


def _make_table_row(row: dict[str, str]) -> tuple[str, str, str | Text]:
    error = row.get("error")
    return row["name"], row["source"], Text(f"broken: {error}", style="red") if error else row["summary"]


def _join_names(rows: Iterable[dict[str, str]]) -> Text:
    return Text(", ").join(Text(f"{row['name']} (broken)", style="red") if "error" in row else Text(row["name"]) for row in rows)


def _read_first_comment(path: Path) -> str:
    return _first_nonempty(line.lstrip("# ").rstrip() for line in path.read_text("utf-8").splitlines() if line.startswith("#"))


def _first_nonempty(lines: Iterable[str]) -> str:
    return next((line for line in lines if line), "")


def _format_type(parameter: inspect.Parameter) -> str:
    hint = parameter.annotation
    return "" if hint is parameter.empty else hint if isinstance(hint, str) else getattr(hint, "__name__", str(hint))


def _to_plain(value: Any) -> Any:
    if isinstance(value, tuple | frozenset | set):
        return [_to_plain(item) for item in value]
    if inspect.isroutine(value):
        return value.__qualname__
    return to_plain_json(value)


def _parse_args_section(function: Any) -> dict[str, str]:
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
