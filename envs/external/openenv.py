"""An environment behind an OpenEnv server: one WebSocket session for each conversation."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from rlvr.contracts import Session
from rlvr.envs.external._foreign.websocket import EnvServer
from rlvr.envs.external._foreign_host import ForeignError
from rlvr.envs.external._game_env import GameEnvironment, GameSession
from rlvr.errors import ConfigError
from rlvr.extraction import extract_answer
from rlvr.task import Task

SUPPORTED: Mapping[str, str] = {
    "any server of OpenEnv 0.10": "url of one that runs, or the command that starts one; its actions are texts, numbers or JSON objects",
}
UNSUPPORTED: Mapping[str, str] = {
    "tools over MCP": "an environment whose actions are list_tools and call_tool is not translated to tools",
    "plain HTTP": "each request is an environment of its own there, so nothing is remembered: sessions need the WebSocket",
    "Docker and Hub providers": "start the server yourself, or by the setting server",
}
MAX_BRACKETS = 200
NOT_JSON = object()
"""Result of parsing a text that is not JSON; None cannot be used, because null may be an action."""
PYTHON_TYPES = {"string": str, "integer": int, "number": float, "boolean": bool, "array": list, "object": dict}


class OpenEnv(GameEnvironment):
    """An environment behind an OpenEnv server. The policy reads the fields of the observation, and never its metadata.

    A failed connection, a timed-out step or a lost server ends the conversation without a score; it is never continued in another
    session. An action that the server refuses gets a message and changes nothing.

    >>> import rlvr
    >>> env = rlvr.make_env("openenv", url="http://127.0.0.1:8000", success_threshold=1.0)  # doctest: +SKIP
    >>> env.task("train", 0).question  # doctest: +SKIP
    'Guess a number from 1 to 9.'
    """

    max_prompt_tokens = 8192
    splits_by_first_text = False

    def __init__(
        self,
        *,
        url: str = "",
        server: Sequence[str] = (),
        max_turns: int = 16,
        success_threshold: float | None = None,
        scale: Sequence[float] | None = None,
        fields: Sequence[str] = (),
        reset: Mapping[str, Any] | None = None,
        step_timeout_s: float = 30.0,
        fully_observed: bool = False,
        safe_actions: Sequence[Mapping[str, Any]] = (),
        seed: int = 0,
        instruction: str = "",
    ) -> None:
        """Choose the server and how its rewards are scored.

        Args:
            url: the address of a server that runs.
            server: or the command that starts one, as a list; `{port}` in it is replaced by a free port of this machine.
            max_turns: the most actions.
            success_threshold: the last reward that wins, which must be the highest possible one: the score is 1 or 0.
            scale: [low, high]: the sum of the rewards is mapped to 0 ... 1 instead; by default [0, 1].
            fields: the fields of the observation that are shown; by default all but done, reward and metadata.
            reset: further data to send with each reset, besides the seed.
            step_timeout_s: timeout of one reset or step.
            fully_observed: whether the first observation describes the whole initial state; then its hash decides the split.
            safe_actions: actions, as JSON objects, that a working server accepts without an error. With them, an action that fails again in
                a new session, where these do not, scores 0; without them such a step gives no score.
            seed: another seed gives different tasks.
            instruction: a system message.
        """
        super().__init__()
        if bool(url) == bool(server):
            raise ConfigError("give either url, the address of a server, or server, the command that starts one as a list")
        if url and (urlsplit(url).scheme not in ("http", "https", "ws", "wss") or not urlsplit(url).netloc):
            raise ConfigError(f"url is {url!r}; write for example http://127.0.0.1:8000")
        if server and (isinstance(server, str) or not any("{port}" in part for part in server)):
            raise ConfigError(f"server is {server!r}; write a list such as ['python', 'serve.py', '--port', '{{port}}']")
        if success_threshold is not None and scale is not None:
            raise ConfigError("success_threshold and scale are both set; a conversation is scored by one of them")
        if scale is not None and (len(scale) != 2 or not scale[0] < scale[1]):
            raise ConfigError(f"scale is {scale!r}; write [low, high], such as [-1, 1]")
        if isinstance(max_turns, bool) or not isinstance(max_turns, int) or max_turns < 1:
            raise ConfigError(f"max_turns is {max_turns!r}; at least 1 action must be allowed")
        self.seed, self.instruction, self.max_turns, self.splits_by_first_text = seed, instruction, max_turns, fully_observed
        self.id_prefix = f"openenv/{urlsplit(url).netloc or 'local'}"
        self.instance_settings: Mapping[str, Any] = {}
        self.reference = (
            {"won": success_threshold, "most": success_threshold} if success_threshold is not None else {"scale": list(scale or (0.0, 1.0))}
        )
        self.max_new_tokens = 64 * max_turns
        self.max_prompt_tokens += len(instruction.encode())
        self.host = EnvServer(url, server, fields=fields, reset=dict(reset or {}), call_timeout_s=step_timeout_s)
        self.harmless_moves = [dict(one) for one in safe_actions]

    @classmethod
    def list_support_status(cls) -> list[dict[str, str]]:
        """List what is supported and what is not, and why."""
        rows = [{"name": name, "offered": "yes", "why": why} for name, why in SUPPORTED.items()]
        return rows + [{"name": name, "offered": "no", "why": why} for name, why in UNSUPPORTED.items()]

    def call_on_temporary_instance(self, method: str, **given: Any) -> Any:
        """Call a method of a new instance that is closed afterwards, because a server may allow only few sessions."""
        with self._scout_lock:
            try:
                with self.host.new_instance() as world:
                    return world.call(method, **given)
            except ForeignError as error:
                raise ConfigError(f"{self.id_prefix} cannot be played: {error}") from error

    def new_session(self, task: Task, *, seed: int) -> Session:
        """Open a session of the server, reset with the task's seed."""
        return GameSession(self, task)

    def parse_action(self, text: str) -> dict[str, Any] | None:
        """Parse an action from a text: the value itself if the action has one field, else a JSON object."""
        fields = self.get_action_field_types()
        said = extract_answer(text).text or text.strip()
        if len(fields) == 1:
            ((name, kind),) = fields.items()
            if kind == "string":
                return {name: text.strip()} if text.strip() else None
            value: Any = _parse_json(said)
            return {name: value} if value is not NOT_JSON and _matches_kind(value, kind) else None
        value = _parse_json(said)
        if not isinstance(value, dict) or not value or not set(value) <= set(fields):
            return None
        return value if all(_matches_kind(value[name], fields[name]) for name in value) else None

    def parse_move(self, text: str) -> dict[str, Any] | None:
        """Parse the action of a turn."""
        return self.parse_action(text)

    def format_no_move_reply(self) -> str:
        """Return a message that says how to write an action."""
        fields = self.get_action_field_types()
        if len(fields) == 1:
            return f"That is no action. Write one value of the kind {next(iter(fields.values())) or 'JSON'}, and nothing else."
        kinds = ", ".join(f"{name} ({kind or 'JSON'})" for name, kind in fields.items())
        return f"That is no action. Write a JSON object with the fields {kinds}, and nothing else."

    def get_action_field_types(self) -> dict[str, str]:
        """Return the fields of an action with their types, from the server's schema."""
        action = self.host.ensure_started().get("action")
        properties = action.get("properties") if isinstance(action, dict) else None
        if not isinstance(properties, dict):
            raise ConfigError(f"the schema of {self.id_prefix} describes no action: {action!r:.200}")
        fields = {str(name): str(of.get("type", "")) for name, of in properties.items() if name != "metadata" and isinstance(of, dict)}
        if not fields or {"tool_name", "arguments"} <= set(fields):
            raise ConfigError(
                f"{self.id_prefix} takes {'tool calls' if fields else 'no action'}, which is not translated: {UNSUPPORTED['tools over MCP']}"
            )
        return fields


def _parse_json(text: str) -> Any:
    if text.count("[") + text.count("{") > MAX_BRACKETS:  # JSON that can be parsed at this depth may fail to be serialized
        return NOT_JSON
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return NOT_JSON


def _matches_kind(value: Any, kind: str) -> bool:
    wanted = PYTHON_TYPES.get(kind)
    if kind == "number":
        return isinstance(value, int | float) and not isinstance(value, bool)
    return wanted is None or (isinstance(value, wanted) and (wanted is bool or not isinstance(value, bool)))


make = OpenEnv
