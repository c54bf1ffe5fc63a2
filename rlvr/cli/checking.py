"""`rlvr check`: run the conformance kit on a plugin, or on every environment of a catalog, and print the checks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich.text import Text

from rlvr.cli import screen
from rlvr.cli.settings import parse_settings
from rlvr.conformance.check_runner import CheckResult
from rlvr.conformance.checks import iter_checks
from rlvr.errors import ConfigError, RlvrError
from rlvr.registry.plugins import get_kind, load_factory


def check_plugin(kind: str, name: str, *, setting_pairs: Sequence[str], json: bool) -> int:
    """Run the conformance checks of one plugin and print each; returns 1 if one fails."""
    console = screen.make_stdout_console()
    checks = []
    for check in iter_checks(kind, name, parse_settings(setting_pairs)):
        checks.append(check)
        if not json:
            sign = Text("–", style="yellow") if check.skipped else screen.make_status_mark(check.ok)
            detail = Text(f"\n    {check.detail}", style="yellow" if check.ok else "red") if check.detail else Text("")
            console.print(Text.assemble(sign, " ", check.name, detail))
    bad = [check for check in checks if not check.ok]
    skipped = sum(check.skipped for check in checks)
    if json:
        screen.print_json({"kind": kind, "name": name, "ok": not bad, "checks": [asdict(check) for check in checks]})
    else:
        note = f", {skipped} skipped" if skipped else ""
        console.print(Text(f"\n{kind} {name}: {len(checks) - len(bad) - skipped} checks passed{note}, {len(bad)} failed", style="bold"))
    return 1 if bad else 0


def check_catalog(kind: str, name: str, *, setting_pairs: Sequence[str], json: bool) -> int:
    """Run the conformance checks on each environment of a catalog, and print a line for each; returns 1 if one fails."""
    loaded: Any = load_factory("env", name) if get_kind(kind).name == "env" else None
    choice = getattr(loaded, "choice", "")
    if not choice:
        raise ConfigError(f"--catalog needs a catalog of environments, and {kind} {name!r} is not one; leave it out, and use --set")
    settings = parse_settings(setting_pairs)
    if choice in settings:
        raise ConfigError(f"--catalog sets {choice} itself; leave out --set {choice}={settings[choice]}, or --catalog")
    names = [row["name"] for row in loaded.list_support_status() if row["offered"] in ("yes", "no gold")]
    console, rows = screen.make_stdout_console(), []
    for one in names:
        checks = _run_kit(kind, name, {**settings, choice: one})
        bad = [check for check in checks if not check.ok]
        skipped = sum(check.skipped for check in checks)
        rows.append({"name": one, "ok": not bad, "checks": [asdict(check) for check in checks]})
        if not json:
            console.print(
                Text.assemble(screen.make_status_mark(not bad), f" {one}: {len(checks) - len(bad) - skipped} passed, {skipped} skipped")
            )
            for check in bad:
                console.print(Text(f"    {check.name}\n    {check.detail}", style="red"))
    failed = [row["name"] for row in rows if not row["ok"]]
    if json:
        screen.print_json({"kind": kind, "name": name, "ok": not failed, "offered": rows})
    else:
        console.print(Text(f"\n{kind} {name}: {len(rows) - len(failed)} of {len(rows)} passed", style="bold"))
    return 1 if failed else 0


def find_kind_to_check(name: str) -> str:
    """Find the kind of a plugin that is named without it; ConfigError unless one kind has the name."""
    from rlvr.cli.listing import YAML_KINDS, find_kind

    kind = find_kind("check", name)
    if kind in YAML_KINDS.values():
        read = f"rlvr doctor --plan {name}" if kind == "recipe" else f"rlvr eval {name} --policy scripted:gold"
        raise ConfigError(f"{name!r} is a {kind}, and plugins are checked; `{read}` reads it")
    return kind


def _run_kit(kind: str, name: str, settings: dict[str, Any]) -> list[CheckResult]:
    """Run the checks of one environment; an error in building it is a failed check, so the other environments are still checked."""
    found: list[CheckResult] = []
    try:
        found.extend(iter_checks(kind, name, settings))
    except RlvrError as error:
        found.append(CheckResult("it can be built", False, str(error)))
    return found
