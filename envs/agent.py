"""Any environment, played by an agent of your own: `{name: agent, env: bugfix, preset: codex}`.

The agent is a program, or a function `agent(client, task)`, that calls a model at the address that it finds in `OPENAI_BASE_URL` or
`ANTHROPIC_BASE_URL`. Its calls become the turns of the policy: what it asks is the prompt, what the policy samples is the reply. Nothing is
encoded again, and each token is trained in the context in which it was sampled; `Episode.segments` says which. The tasks, and the verdict
on text and files, are those of the other environment, whose own tools are left out.

A program runs in a box of the sandbox, which has the files of the task, the program's installation and the gateway, and nothing else of
this machine.
"""

from __future__ import annotations

import difflib
import inspect
import json
import os
import re
import shutil
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rlvr.contracts import CapacityLimiter, Environment, EnvironmentTraits, EnvironmentWrapper, ExitStatus, Sandbox, SandboxSession, Session
from rlvr.contracts.toolsession import ToolSession
from rlvr.errors import ConfigError, SandboxError, format_suggestion
from rlvr.gateway.agents import AgentClient, BlockingAgentClient, CommandAgent, FunctionAgent, RunningAgent
from rlvr.gateway.boxes import (
    BOX_URL,
    GATEWAY_FOLDER,
    HOME,
    AgentSandbox,
    BoxAgent,
    BoxCommand,
    BoxLimits,
    get_place_in_box,
    prepare_command,
)
from rlvr.gateway.calls import AgentCalls
from rlvr.gateway.folder_session import FolderSandbox, FolderSession
from rlvr.gateway.presets import AGENT_PRESETS, AgentPreset
from rlvr.gateway.server import Gateway
from rlvr.gateway.session import AgentSession
from rlvr.registry.plugins import load_function_from_file
from rlvr.task import Task

PLACEHOLDERS = ("task", "url", "key", "model", "task_file", "home", "here")
TASK_FILE = "task.json"
MODEL = "policy"
"""The name of the model that an agent is told."""


class Agent(EnvironmentWrapper):
    """The tasks and the verifier of another environment; the turns are the calls that an agent makes.

    >>> import rlvr
    >>> async def ask(client, task):
    ...     await client.chat([{"role": "user", "content": task.question}])
    ...
    >>> env = rlvr.make_env("agent", env="arithmetic", function=ask)
    >>> env.task("train", 0).question
    '3+8='
    """

    needs = {"env": "", "sandbox": "auto"}
    max_turns = 64
    max_prompt_tokens = 16_384
    max_new_tokens = 16_384

    def __init__(
        self,
        *,
        env: Environment,
        sandbox: Sandbox,
        preset: str = "",
        command: Sequence[str] | None = None,
        function: Callable[..., Any] | str | None = None,
        stdin: str = "",
        variables: dict[str, str] | None = None,
        files: dict[str, str] | None = None,
        trusted: bool = False,
        memory_mb: int = 2048,
        disk_mb: int = 256,
        timeout_s: float = 600.0,
        idle_timeout_s: float = 240.0,
        max_turns: int | None = None,
        max_new_tokens: int | None = None,
    ) -> None:
        """Set the agent and its limits.

        Args:
            env: the environment that poses the tasks and verifies the answers.
            sandbox: creates a box for each episode, also instead of the sandbox of env. In docker, the image must have the agent's program, or
                the interpreter that it needs.
            preset: the name of an agent that is known to run: claude_code, codex, mini_swe_agent, opencode, pi, qwen_code. It must be installed.
                The settings command, variables and files replace or extend those of the preset.
            command: the program and its arguments. In them and in `stdin`, {task} is the task's text, {url} the address of the gateway, {key}
                the key of the episode, {model} the name of the model, {task_file} a file with the task's messages as JSON, {home} the folder
                that is its home, and {here} the folder in which rlvr was started.
            function: instead of a command, a function `agent(client, task)`, or its name, path/to/file.py:function. What it returns is the
                answer; None: the policy's last turn is.
            stdin: what the program reads from its standard input.
            variables: more environment variables of the program, with the same placeholders.
            files: files of the program's home, such as its settings, by path, with the same placeholders.
            trusted: whether a command runs on this machine as you, and with it what the policy lets it run, in a temporary folder that
                isolates nothing, instead of in a box.
            memory_mb: how much memory a box has at least, with all that runs in it and its files.
            disk_mb: how much space for files a box has at least.
            timeout_s: how long an agent may run.
            idle_timeout_s: how long it may run without calling the model.
            max_turns: the most calls in an episode.
            max_new_tokens: how many tokens the policy may write in all calls together.
        """
        known = _get_preset(preset) if preset else None
        if known is not None:
            command = known.command if command is None else command
            variables, files = {**known.variables, **(variables or {})}, {**known.files, **(files or {})}
        self._install_hint = f" ({known.install})" if known is not None else ""
        if (command is None) == (function is None):
            raise ConfigError("an agent is a preset, a command or a function; give exactly one of these settings")
        if command is not None:
            _check_command(command, known, is_needed_here=trusted)
        for name, value in (("timeout_s", timeout_s), ("idle_timeout_s", idle_timeout_s)):
            if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
                raise ConfigError(f"{name} is {value!r}; it must be a number of seconds above 0")
        if env.traits.rewrites_context:
            raise ConfigError("an agent manages its own context; leave `context` out of env")
        super().__init__(env)
        self.dialect = ""  # calls come and go in the agent's own format
        self.label = f"agent on {env.label or type(env).__name__}"
        self.command, self.stdin, self.variables, self.files = command, stdin, variables or {}, files or {}
        self.function = load_function_from_file(function, "agent") if isinstance(function, str) else function
        if self.function is not None:
            _check_function(self.function)
        for text in (*(command or ()), stdin, *self.variables.values(), *self.files.values()):
            _check_placeholders(text)
        self.timeout_s, self.idle_timeout_s = timeout_s, idle_timeout_s
        kind = type(self)
        self.max_prompt_tokens = kind.max_prompt_tokens
        self.max_turns = kind.max_turns if max_turns is None else max_turns
        self.max_new_tokens = kind.max_new_tokens if max_new_tokens is None else max_new_tokens
        self.sandbox, self._is_boxed = sandbox, command is not None and not trusted
        self._boxes: Sandbox = FolderSandbox() if trusted else AgentSandbox(sandbox, self._list_mounts, BoxLimits(memory_mb, disk_mb))
        if env.tools and command is not None:
            env.sandbox = self._boxes
        if self._is_boxed:
            self._prepare_command()  # what cannot run in a box is said at once
        self._is_in_box = False
        """Whether a box is known to have the program."""
        self._gateway: Gateway | None = None
        self._lock = threading.Lock()

    @property
    def traits(self) -> EnvironmentTraits:
        """An agent plays each episode in a session of its own."""
        return EnvironmentTraits(has_sessions=True, plays_agent=True)

    def gold(self, task: Task) -> str | None:
        """Return None: which replies lead an agent to the right answer is not known."""
        return None

    def get_session_limiters(self, task: Task) -> Sequence[CapacityLimiter]:
        """Return the limiters of the other environment, and that of a box, if the agent needs one of its own."""
        limiters = self.env.get_session_limiters(task)
        own = self._boxes.session_limiter if self._is_boxed else None
        return limiters if own is None or own in limiters else (*limiters, own)

    def new_session(self, task: Task, *, seed: int) -> Session:
        """Open a session in which the agent plays the task."""
        inner = self.env.new_session(task, seed=seed) if self.env.traits.is_interactive else None

        def start(calls: AgentCalls, inner: Session | None) -> RunningAgent:
            return self._start_agent(task, calls, inner)

        return AgentSession(self._get_gateway(), start, inner=inner, timeout_s=self.timeout_s, idle_timeout_s=self.idle_timeout_s)

    def _get_gateway(self) -> Gateway:
        with self._lock:
            self._gateway = self._gateway or Gateway()
            return self._gateway

    def _start_agent(self, task: Task, calls: AgentCalls, inner: Session | None) -> RunningAgent:
        if self.function is not None:
            kind = AgentClient if inspect.iscoroutinefunction(self.function) else BlockingAgentClient
            # the reference is for the verifier alone
            return FunctionAgent(self.function, kind(calls, self._get_gateway().url), replace(task, reference=None), on_end=calls.wake)
        box = inner.sandbox_session if isinstance(inner, ToolSession) else None
        own = self._boxes.create_session() if box is None else None
        place = box or own
        assert place is not None

        def on_end() -> None:
            calls.wake()
            if own is not None:
                own.close()

        try:
            if isinstance(place, FolderSession):
                return self._start_on_this_machine(task, calls, place, on_end)
            return self._start_in_box(task, calls, place, on_end)
        except BaseException:  # such as arguments that are too long for the system
            on_end()
            raise

    def _start_on_this_machine(self, task: Task, calls: AgentCalls, place: FolderSession, on_end: Callable[[], None]) -> RunningAgent:
        command, variables, files, stdin = self._fill_texts(
            task, calls, self._get_gateway().url, str(place.home), self.command or (), str(Path.cwd())
        )
        for path, content in files.items():
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            Path(path).write_text(content, "utf-8")
        variables["PWD"] = str(place.folder)
        return CommandAgent(command, folder=place.folder, variables=variables, stdin=stdin, on_end=on_end)

    def _start_in_box(self, task: Task, calls: AgentCalls, box: SandboxSession, on_end: Callable[[], None]) -> RunningAgent:
        prepared = self._prepare_command()
        here = get_place_in_box(str(Path.cwd()))
        assert self.command is not None
        command, variables, files, stdin = self._fill_texts(task, calls, BOX_URL, HOME, self.command, here)
        # a path that is elsewhere in the box has no placeholders but {here}
        command = [
            place if "{here}" not in word and place != word else filled
            for place, word, filled in zip(prepared.words, self.command, command, strict=True)
        ]
        if not self._is_in_box:
            find = 'PATH="$0:$PATH"; command -v -- "$1"'
            found = box.run(["bash", "-c", find, os.pathsep.join(prepared.path), command[0]])
            if found.status is ExitStatus.INTERNAL_ERROR:
                raise SandboxError(f"the box of the agent failed: {found.reason}")
            if not found.ok:
                raise ConfigError(
                    f"the program {command[0]!r} of the agent is not in its box: install it on this machine{self._install_hint} for the sandbox "
                    "bubblewrap, or in the image for the sandbox docker; or set trusted: true to run it on this machine as you"
                )
            self._is_in_box = True
        return BoxAgent(
            box,
            command,
            variables=variables,
            files=files,
            path=prepared.path,
            stdin=stdin,
            timeout_s=self.timeout_s,
            on_end=on_end,
        )

    def _prepare_command(self) -> BoxCommand:
        assert self.command is not None
        return prepare_command([word.replace("{here}", str(Path.cwd())) for word in self.command])

    def _list_mounts(self) -> dict[str, str]:
        """Return what a box has of this machine: the socket of the gateway, and what the command needs."""
        return {**self._prepare_command().mounts, GATEWAY_FOLDER: str(self._get_gateway().socket_folder)}

    def _fill_texts(
        self, task: Task, calls: AgentCalls, url: str, home: str, command: Sequence[str], here: str
    ) -> tuple[list[str], dict[str, str], dict[str, str], str]:
        """Return the command, the variables, the files of the home by path, and the standard input for one episode."""
        values = {
            "task": "\n\n".join(str(message["content"]) for message in task.prompt),
            "url": url,
            "key": calls.secret,
            "model": MODEL,
            "task_file": f"{home}/{TASK_FILE}",
            "home": home,
            "here": here,
        }
        files = {f"{home}/{path}": _fill(content, values) for path, content in self.files.items()}
        files[values["task_file"]] = json.dumps({"id": task.id, "messages": [dict(message) for message in task.prompt]})
        variables = {
            "HOME": home,
            "OPENAI_BASE_URL": f"{url}/v1",
            "OPENAI_API_BASE": f"{url}/v1",
            "OPENAI_API_KEY": calls.secret,
            "ANTHROPIC_BASE_URL": url,
            "ANTHROPIC_API_KEY": calls.secret,
            **{name: _fill(value, values) for name, value in self.variables.items()},
        }
        return [_fill(word, values) for word in command], variables, files, _fill(self.stdin, values)

    def close(self) -> None:
        """Stop the gateway, and close the other environment."""
        with self._lock:
            gateway, self._gateway = self._gateway, None
        if gateway is not None:
            gateway.close()
        super().close()


def _fill(text: str, values: Mapping[str, str]) -> str:
    """Replace each placeholder once; what a value contains is not replaced.

    >>> _fill("ask {task} at {url}", {"task": "{url}", "url": "http://a"})
    'ask {url} at http://a'
    """
    return re.sub("{(" + "|".join(values) + ")}", lambda found: values[found[1]], text)


def _check_function(function: Callable[..., Any]) -> None:
    try:
        inspect.signature(function).bind(None, None)
    except TypeError as error:
        raise ConfigError(f"an agent is a function agent(client, task), and this one has other parameters: {error}") from None
    except ValueError:  # it has no signature
        return


def _check_placeholders(text: str) -> None:
    """Raise ConfigError for a word in braces that is nearly a placeholder; other braces may be anything, such as JSON."""
    for word in re.findall(r"{([a-z_]+)}", text):
        if word not in PLACEHOLDERS and (near := difflib.get_close_matches(word, PLACEHOLDERS, 1)):
            raise ConfigError(f"{{{word}}} is no placeholder; did you mean {{{near[0]}}}? Allowed: {', '.join(PLACEHOLDERS)}")


def _get_preset(name: str) -> AgentPreset:
    if name not in AGENT_PRESETS:
        raise ConfigError(f"there is no preset {name!r}; {format_suggestion(name, AGENT_PRESETS)}; or give a command")
    return AGENT_PRESETS[name]


def _check_command(command: Sequence[str], preset: AgentPreset | None, *, is_needed_here: bool) -> None:
    if isinstance(command, str) or not command or not all(isinstance(word, str) for word in command):
        raise ConfigError(f"command is {command!r:.80}; it must be a list of a program and its arguments, such as [python3, agent.py]")
    program = os.path.expanduser(command[0])
    if is_needed_here and shutil.which(program) is None:
        how = f"install it ({preset.install})" if preset is not None else "install it"
        raise ConfigError(f"the program {command[0]!r} of the agent was not found; {how}, or give its path in command")


make = Agent
