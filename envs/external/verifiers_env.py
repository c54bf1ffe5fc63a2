"""Tasksets written for verifiers, and environments of its older interface; their rewards run in a process of their own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rlvr.contracts import Session, StepResult
from rlvr.contracts.schema import inline_schema_references
from rlvr.contracts.tool import Tool, truncate_middle
from rlvr.envs.external._foreign.calls import MAX_RESULT_CHARS, PlaceholderTool, check_call, make_step_result
from rlvr.envs.external._foreign.task_lists import DEFAULT_LIMIT, TaskListEnvironment
from rlvr.envs.external._foreign_host import ForeignHost
from rlvr.envs.external._game_env import GameSession
from rlvr.errors import ConfigError
from rlvr.task import Message, Task
from rlvr.turns import ToolResult, ToolSpec, Turn

VERSION_PREFIXES = {"v1": "0.4.", "v0": "0.3."}
"""The versions of the package that have each interface."""
INSTANCE_CLASSES = {
    "v1": "rlvr.envs.external._foreign.verifiers_worker:TasksetInstance",
    "v0": "rlvr.envs.external._foreign.verifiers_worker:LegacyInstance",
}
SUPPORTED: Mapping[str, str] = {
    "tasksets of v1 with one turn": "id is that of the installed package; all rewards must be given, each from 0 to 1",
    "environments of v0": "interface: v0, with verifiers 0.3; text in and text out, in one turn or several",
    "ToolEnv and StatefulToolEnv of v0": "interface: v0, has_tools: true; the tools run in the process of the package",
}
UNSUPPORTED: Mapping[str, str] = {
    "sandboxes, groups and judges of v0": "sandboxes would be started outside of ours, a reward of a whole group is not one of an answer",
    "tasks with an image or a container": "the package would start it outside of the sandbox",
    "toolsets": "they are servers that the package starts; give tools of rlvr by the setting tools",
    "rewards that read a runtime": "there is none, so they give no value, and a task without all its rewards has no score",
}


class VerifiersEnv(TaskListEnvironment):
    """A taskset of verifiers, or an environment of its older interface. The score is 1 if the rewards reach their maximum, else 0.

    The package and the taskset run in a process of their own, with a timeout; the taskset is loaded there once. A reward that raises, is
    missing, or is not a number from 0 to 1 gives no score, even where the package itself counts it as 0.

    >>> import rlvr
    >>> env = rlvr.make_env("verifiers_env", id="my-taskset")  # doctest: +SKIP
    """

    max_prompt_tokens = 8192
    max_new_tokens = 2048

    def __init__(
        self,
        *,
        id: str = "",
        interface: str = "v1",
        settings: Mapping[str, Any] | None = None,
        partial: bool = False,
        python: str = "",
        limit: int = DEFAULT_LIMIT,
        max_turns: int | None = None,
        has_tools: bool = False,
        score_timeout_s: float = 60.0,
        instruction: str = "",
    ) -> None:
        """Choose the taskset.

        Args:
            id: its id; for v0 the name of the module that has `load_environment`. It must be installed already, nothing is downloaded.
            interface: v1 (verifiers 0.4) or v0 (verifiers 0.3).
            settings: the fields of its own configuration; for v0 the arguments of `load_environment`.
            partial: whether a part of the maximum is the score; false: it counts as 0.
            python: the interpreter of an environment that has verifiers and the taskset; empty: this one.
            limit: use at most this many tasks, the first ones.
            max_turns: the most turns of the policy; one for v1.
            has_tools: whether it is a ToolEnv of v0, whose tools the policy may call.
            score_timeout_s: timeout for scoring one answer.
            instruction: a system message.
        """
        super().__init__()
        if not isinstance(id, str) or not id:
            raise ConfigError(f"id is {id!r}; give the id of an installed taskset")
        if isinstance(score_timeout_s, bool) or not isinstance(score_timeout_s, int | float) or not 0 < score_timeout_s < 86_400:
            raise ConfigError(f"score_timeout_s is {score_timeout_s!r}; a number of seconds above 0 is needed")
        if interface not in INSTANCE_CLASSES:
            raise ConfigError(f"interface is {interface!r}; allowed: {', '.join(INSTANCE_CLASSES)}")
        self.max_turns = (1 if interface == "v1" else 8) if max_turns is None else max_turns
        if (
            isinstance(self.max_turns, bool)
            or not isinstance(self.max_turns, int)
            or not 1 <= self.max_turns <= (1000, 1)[interface == "v1"]
        ):
            raise ConfigError(f"max_turns is {max_turns!r}; {'a taskset of v1 has one' if interface == 'v1' else 'at least 1 is needed'}")
        if has_tools and interface != "v0":
            raise ConfigError(
                "has_tools is for a ToolEnv of interface: v0; the tools of a taskset are given by the setting tools of with_tools"
            )
        self.interface = interface
        self.tools: Sequence[Tool] = (PlaceholderTool(),) if has_tools else ()
        self._tool_specs: tuple[ToolSpec, ...] | None = None
        self.id, self.limit, self.instruction, self.id_prefix = id, limit, instruction, f"verifiers_env/{id}"
        self.instance_settings = {"id": id, "settings": dict(settings or {}), **({"has_tools": True} if has_tools else {})}
        self.reference = {"scale": [0.0, 1.0]} if partial else {"won": 1.0 - 1e-9, "most": 1.0}
        self.harmless_moves = ("0", "-")
        self.host = ForeignHost(
            INSTANCE_CLASSES[interface],
            extra="verifiers",
            call_timeout_s=float(score_timeout_s),
            python=python,
            prepare_args=self.instance_settings,
        )

    @classmethod
    def list_support_status(cls) -> list[dict[str, str]]:
        """List what is supported and what is not, and why."""
        rows = [{"name": name, "offered": "yes", "why": why} for name, why in SUPPORTED.items()]
        return rows + [{"name": name, "offered": "no", "why": why} for name, why in UNSUPPORTED.items()]

    def prepare(self) -> None:
        """Start the process, compare the version, and read the tasks."""
        about, series = self.host.ensure_started(), VERSION_PREFIXES[self.interface]
        if not str(about["version"]).startswith(series):
            raise ConfigError(
                f"verifiers {about['version']} is installed, the interface {self.interface} needs {series}x; "
                "set interface, or python, the interpreter that has it"
            )
        self.list_task_numbers("train")

    def list_tool_specs(self) -> tuple[ToolSpec, ...]:
        """Return the tools of the package's environment; empty without `has_tools`."""
        if not self.tools:
            return ()
        if self._tool_specs is None:
            rows = self.call_on_temporary_instance("list_tools")
            self._tool_specs = tuple(ToolSpec(row["name"], row["description"], inline_schema_references(row["parameters"])) for row in rows)
        return self._tool_specs

    def new_session(self, task: Task, *, seed: int) -> Session:
        """Open a rollout of the package. All members of a group have the same task, so `seed` is ignored."""
        return ToolCallSession(self, task) if self.tools else GameSession(self, task)

    def gold(self, task: Task) -> str | None:
        """Return the answer in the row of a v0 environment; None for tasksets, which have none."""
        found = self.call_on_temporary_instance("find_gold_answer", number=task.reference["seed"]) if self.interface == "v0" else None
        return found if isinstance(found, str) else None


class ToolCallSession(GameSession):
    """Session of an environment with tools. A turn without a call is its answer; calls that do not fit the tools are answered here."""

    environment: VerifiersEnv

    def start_tools(self) -> Sequence[ToolSpec]:
        """Return the tools of the package's environment."""
        return self.environment.list_tool_specs()

    def step(self, turn: Turn) -> StepResult | None:
        """Let the package run the calls of the turn; a turn without calls gives the package its text, which ends the rollout."""
        if not turn.calls_needing_result_or_error or self.done or self.failure:
            return super().step(turn)
        checked = {call.id: check_call(self.start_tools(), call) for call in turn.calls_needing_result_or_error}
        calls = [
            {"id": call.id, "name": call.name, "arguments": checked[call.id][0]}
            for call in turn.calls_needing_result_or_error
            if checked[call.id][0] is not None
        ]
        found: dict[str, Any] = {}
        if calls:
            played = self.play_move({"text": turn.content, "calls": calls})
            if played is None or self.done:  # it was the last turn that the package allows: its calls are not run
                return StepResult(done=True)
            found = played
        texts = {call_id: why for call_id, (given, why) in checked.items() if given is None} | found.get("results", {})
        results = []
        for call in turn.calls_needing_result_or_error:
            text = truncate_middle(texts.get(call.id, ""), MAX_RESULT_CHARS)
            results.append(ToolResult(call.id, text, ok=checked[call.id][0] is not None, truncated=text != texts.get(call.id, "")))
        reply = make_step_result(turn, results)
        said = found.get("text")
        return StepResult((*reply.messages, Message(role="user", content=said)), tool_results=reply.tool_results) if said else reply


make = VerifiersEnv
