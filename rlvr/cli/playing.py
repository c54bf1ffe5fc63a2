"""`rlvr play`: a person plays a task of an environment in the terminal, and gets the verdict that a policy would get."""

from __future__ import annotations

import json as jsonlib
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.text import Text

from rlvr.cli import screen
from rlvr.cli.settings import parse_settings
from rlvr.errors import ConfigError
from rlvr.evaluation.suite import load_suite
from rlvr.serve.session_host import SessionHost

PROMPT_MARK = "> "
END_MARK = "."
HELP = "A line is a turn; <<< begins a turn of several lines, which a line with only . ends."


def play_task(env: str, *, setting_pairs: Sequence[str], split: str | None, index: int, seed: int, json: bool) -> int:
    """Play one task, reading turns from standard input; returns 1 if the verdict has no score."""
    suite = load_suite(env, parse_settings(setting_pairs))
    if len(suite.items) != 1:
        names = ", ".join(item.name for item in suite.items)
        raise ConfigError(f"{env} is a suite of {len(suite.items)} environments, and a person plays one; choose one of {names}")
    console = screen.make_stderr_console() if json else screen.make_stdout_console()

    def show(role: str, text: str) -> None:
        console.print(Text.assemble((f"{role}: ", "bold"), text), soft_wrap=True)

    host = SessionHost({"env": suite.items[0].env})
    try:
        environment = host.envs["env"]
        environment.prepare()
        where = {"env": "env", "split": split or ("test" if "test" in environment.splits else environment.splits[0]), "index": index}
        opened = _ask(host, {"what": "open", "session": "play", "seed": seed, **where})
        for message in opened["prompt"]:
            show(str(message["role"]), str(message["content"]))
        tools = opened.get("tools", [])
        for spec in tools:
            show("tool", f"{spec['name']}({', '.join(spec['parameters'].get('properties', {}))})  {spec['description']}")
        if tools:
            console.print(Text('A call is one line of JSON: {"name": "...", "arguments": {...}}', style="dim"), soft_wrap=True)
        if sys.stdin.isatty():
            console.print(Text(f"{HELP} Ctrl-D ends.", style="dim"), soft_wrap=True)
        for text in _read_turns():
            try:
                turn = _parse_line(text, has_tools=bool(tools))
            except ConfigError as error:  # a slip of a person's hand ends no game
                console.print(Text(f"error: {error}"), soft_wrap=True)
                continue
            reply = _ask(host, {"what": "step", "session": "play", **turn})
            for message in reply["messages"]:
                show(str(message.get("name") or message["role"]), str(message["content"]))
            if reply["done"]:
                break
        closed = _ask(host, {"what": "close", "session": "play"})
    finally:
        host.close()
    verdict = closed["verdict"]
    if json:
        screen.print_json({"task": opened["task_id"], "turns": closed["turns"], "verdict": verdict})
    else:
        score = "no score" if verdict["score"] is None else f"score {verdict['score']:g}"
        fault = "" if verdict["fault"] == "none" else f" (fault: {verdict['fault']})"
        console.print(Text.assemble((score, "bold"), f"{fault}: {verdict['reason']}"), soft_wrap=True)
    return 1 if verdict["score"] is None else 0


def _ask(host: SessionHost, request: Mapping[str, Any]) -> dict[str, Any]:
    reply = host.handle_request(request)
    if "error" in reply:
        raise ConfigError(str(reply["error"]))
    return reply


def _read_turns() -> Iterable[str]:
    """Yield the turns from standard input, until it ends."""
    lines: list[str] | None = None
    while True:
        if sys.stdin.isatty():
            print(PROMPT_MARK if lines is None else "", end="", flush=True)
        line = sys.stdin.readline()
        if not line:
            if lines:
                yield "\n".join(lines)
            return
        line = line.rstrip("\n")
        if lines is None and line.strip() == "<<<":
            lines = []
        elif lines is None:
            yield line
        elif line.strip() == END_MARK:
            yield "\n".join(lines)
            lines = None
        else:
            lines.append(line)


def _parse_line(text: str, *, has_tools: bool) -> dict[str, Any]:
    """Parse a turn: with tools, a JSON object with a name, or a list of them, is a call."""
    if has_tools and text.lstrip().startswith(("{", "[")):
        try:
            found = jsonlib.loads(text)
        except ValueError as error:
            raise ConfigError(
                f"the call {text!r:.80} is not JSON: {error}; write for example " + '{"name": "...", "arguments": {}}'
            ) from error
        calls = found if isinstance(found, list) else [found]
        if calls and all(isinstance(call, dict) and ("name" in call or "function" in call) for call in calls):
            return {"tool_calls": calls}
    return {"text": text}
