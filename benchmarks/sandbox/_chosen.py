"""The sandbox that a script measures or attacks: `--sandbox NAME --set KEY=VALUE`, as for `rlvr check sandbox`."""

from __future__ import annotations

import argparse
from typing import Any

from rlvr.cli.settings import parse_settings
from rlvr.contracts import Sandbox
from rlvr.registry.plugins import build


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add `--sandbox` and `--set`."""
    parser.add_argument("--sandbox", default="docker", metavar="NAME", help="docker, bubblewrap, process or auto")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a setting of the sandbox, such as runtime=runsc")


def build_sandbox(args: argparse.Namespace, *, at_once: int = 0, **settings: Any) -> Sandbox:
    """Build the chosen sandbox; `at_once` is how many programs it runs at a time (0: one for each processor)."""
    settings |= {"trusted": True} if args.sandbox == "process" else {}
    settings |= {"containers" if args.sandbox == "docker" else "processes": at_once} | parse_settings(args.set)
    sandbox: Sandbox = build("sandbox", args.sandbox, **settings)
    return sandbox


def get_used(sandbox: Any) -> Any:
    """The sandbox that `auto` has chosen; any other is itself."""
    return sandbox.choose() if hasattr(sandbox, "choose") else sandbox
