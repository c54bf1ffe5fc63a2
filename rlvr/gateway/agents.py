"""Agents: a command on this machine, or a function in this process, that calls the model through the gateway."""

from __future__ import annotations

import asyncio
import inspect
import os
import signal
import subprocess
import tempfile
import threading
import traceback
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import Any

from rlvr.errors import describe_exception
from rlvr.gateway.calls import AgentCalls, GatewayError, ModelCall
from rlvr.gateway.formats import ChatCompletions
from rlvr.task import Task

EPISODE_VARIABLE = "RLVR_AGENT_EPISODE"
"""The environment variable by which the processes of an agent are found."""
KILL_TIMEOUT_S = 5.0
MAX_OUTPUT_BYTES = 64 << 10
"""So much of the end of an agent's output is kept."""
HIDDEN_VARIABLES = (
    "KEY",
    "TOKEN",
    "SECRET",
    "PASS",
    "_PWD",
    "CREDENTIAL",
    "AUTH",
    "DATABASE_URL",
    "DSN",
    "COOKIE",
    "AWS_",
    "HF_",
    "WANDB_",
)
"""Variables of this process with one of these in their names are not passed to an agent: it could read secrets of the user, or call another
model."""


class RunningAgent(ABC):
    """An agent that has been started for one episode."""

    final_answer: str | None = None
    """The text that the agent returned as its answer; None if it returned none."""

    @abstractmethod
    def get_end(self) -> str | None:
        """Return how the agent ended, empty if it ended well; None while it runs."""

    @abstractmethod
    def kill(self) -> None:
        """End the agent and all that it started. May be called more than once."""

    def read_output(self) -> str:
        """Return the end of what the agent has printed."""
        return ""

    def close(self) -> None:
        """End the agent and release what it holds. May be called more than once."""
        self.kill()


class CommandAgent(RunningAgent):
    """A program on this machine, in a process group of its own, whose output goes to a file."""

    def __init__(
        self, command: Sequence[str], *, folder: Path, variables: Mapping[str, str], stdin: str, on_end: Callable[[], None]
    ) -> None:
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 -- it is read until the end of the episode
        self._mark = f"{EPISODE_VARIABLE}={uuid.uuid4().hex}".encode()
        """What the environment of each process that the program starts has."""
        self._folder = os.path.realpath(folder)
        try:
            self._process = subprocess.Popen(
                list(command),
                cwd=folder,
                env={**_list_variables(), **variables, EPISODE_VARIABLE: self._mark.partition(b"=")[2].decode()},
                stdin=subprocess.PIPE,
                stdout=self._output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except BaseException:
            self._output.close()
            raise
        threading.Thread(target=self._feed, args=(stdin.encode("utf-8", "surrogatepass"), on_end), name="rlvr-agent", daemon=True).start()

    def _feed(self, stdin: bytes, on_end: Callable[[], None]) -> None:
        """Write the standard input, and wait for the end."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(stdin)
            self._process.stdin.close()
        except OSError:  # it has ended, or closed its input
            pass
        self._process.wait()
        on_end()

    def get_end(self) -> str | None:
        """Return how the program ended."""
        code = self._process.poll()
        if code is None:
            return None
        return (
            "" if code == 0 else f"the agent was ended by {_name_signal(-code)}" if code < 0 else f"the agent ended with exit code {code}"
        )

    def kill(self) -> None:
        """Kill the process group, and what has left it and still has the program's environment or is in its folder."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(KILL_TIMEOUT_S)
        for place in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if self._mark in (place / "environ").read_bytes().split(b"\0") or self._is_in_folder(place):
                    os.kill(int(place.name), signal.SIGKILL)

    def _is_in_folder(self, place: Path) -> bool:
        """Return whether a process has its working folder in the program's, which is made for one episode."""
        folder = os.readlink(place / "cwd").removesuffix(" (deleted)")
        return int(place.name) != os.getpid() and (folder == self._folder or folder.startswith(self._folder + os.sep))

    def read_output(self) -> str:
        """Return the end of what the program has printed."""
        if self._output.closed:
            return ""
        size = os.fstat(self._output.fileno()).st_size
        data = os.pread(self._output.fileno(), MAX_OUTPUT_BYTES, max(0, size - MAX_OUTPUT_BYTES))
        return data.decode("utf-8", "replace")

    def close(self) -> None:
        """Kill the program, and delete its output."""
        self.kill()
        self._output.close()


class AgentClient:
    """What a function that is an agent gets: the address and the key of its gateway for any client, and `chat` for a call without one.

    `openai.AsyncOpenAI(base_url=client.base_url, api_key=client.api_key)` works too.
    """

    def __init__(self, calls: AgentCalls, url: str) -> None:
        self.base_url, self.api_key, self.model = f"{url}/v1", calls.secret, "policy"
        self._calls = calls

    async def chat(
        self,
        messages: str | Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        max_tokens: int | None = None,
        stop: str | Sequence[str] = (),
        **sampling: Any,
    ) -> dict[str, Any]:
        """Return the assistant's message for a conversation.

        Args:
            messages: the whole conversation in OpenAI's format; a text is one message of a user.
            tools: the tools in OpenAI's format.
            max_tokens: the most tokens of the reply.
            stop: texts that end the reply, which does not include them.
            sampling: ignored, as in a request over HTTP: the run decides how its policy is sampled.

        Raises:
            GatewayError: the request is invalid, or the episode is over.
        """
        await asyncio.sleep(0)  # a function that is cancelled and calls again and again gets its cancellation here
        call = self._submit(messages, tools, max_tokens, stop)
        is_delivered = False
        try:
            reply = await asyncio.wrap_future(call.reply)
            is_delivered = True
            return dict(reply.message)
        finally:
            self._calls.leave(call, is_delivered=is_delivered)

    def _submit(self, messages: Any, tools: Any, max_tokens: int | None, stop: Any) -> ModelCall:
        given = [{"role": "user", "content": messages}] if isinstance(messages, str) else list(messages)
        body = {"messages": given, "tools": list(tools), "max_tokens": max_tokens, "stop": stop}
        return self._calls.submit(ChatCompletions().parse(body, {}), os.urandom(16))


class BlockingAgentClient(AgentClient):
    """What a function that is no coroutine function gets: `chat` waits for the reply."""

    def chat(self, messages: Any, *, tools: Any = (), max_tokens: int | None = None, stop: Any = (), **sampling: Any) -> Any:
        """Return the assistant's message for a conversation, as `AgentClient.chat` does."""
        call = self._submit(messages, tools, max_tokens, stop)
        is_delivered = False
        try:
            message = dict(call.reply.result().message)
            is_delivered = True
            return message
        finally:
            self._calls.leave(call, is_delivered=is_delivered)


class FunctionAgent(RunningAgent):
    """A function `agent(client, task)` in a thread of this process; it may be a coroutine function, and may return the answer to verify.

    Nothing can end a function from outside. Its calls are refused, which ends one that calls the model again.
    """

    def __init__(self, function: Callable[..., Any], client: AgentClient, task: Task, *, on_end: Callable[[], None]) -> None:
        self._end: Future[str] = Future()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._running: asyncio.Task[Any] | None = None
        self._is_killed = False
        threading.Thread(target=self._run, args=(function, client, task, on_end), name="rlvr-agent", daemon=True).start()

    def _run(self, function: Callable[..., Any], client: AgentClient, task: Task, on_end: Callable[[], None]) -> None:
        async def run() -> Any:
            self._loop, self._running = asyncio.get_running_loop(), asyncio.current_task()
            if self._is_killed:
                raise asyncio.CancelledError
            return await function(client, task)

        end = ""
        try:
            returned = asyncio.run(run()) if inspect.iscoroutinefunction(function) else function(client, task)
            self.final_answer, end = _read_answer(returned)
        except GatewayError as error:
            end = f"the agent got an error of the gateway: {error}"
        except BaseException as error:  # whatever somebody's code raises is how the agent ended
            end = f"the agent raised {describe_exception(error)}{_describe_place(error)}"
        self._end.set_result(end)
        on_end()

    def get_end(self) -> str | None:
        """Return how the function ended."""
        return self._end.result() if self._end.done() else None

    def kill(self) -> None:
        """Cancel a coroutine function."""
        self._is_killed = True
        if self._loop is not None and self._running is not None and not self._end.done():
            with suppress(RuntimeError):  # the loop has just ended
                self._loop.call_soon_threadsafe(self._running.cancel)


def _read_answer(returned: Any) -> tuple[str | None, str]:
    """Read what a function returned as its answer, and say what is wrong with it; then the policy's last turn is the answer.

    >>> _read_answer({"role": "assistant", "content": "4"})
    ('4', '')
    """
    if isinstance(returned, Mapping) and isinstance(returned.get("content"), str):
        returned = returned["content"]
    if returned is None or isinstance(returned, str | int | float):
        return (None if returned is None else str(returned)), ""
    return None, f"the agent returned a {type(returned).__name__}; it must be a text, a number, a message or None"


def _describe_place(error: BaseException) -> str:
    """Say where somebody's code raised."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not frame.filename.startswith(str(Path(__file__).parent)) and "asyncio" not in frame.filename]
    return f" ({Path(own[-1].filename).name}:{own[-1].lineno})" if own else ""


def _list_variables() -> dict[str, str]:
    """Return this process's variables without secrets. No proxy stands between an agent and the gateway."""
    shown = {name: value for name, value in os.environ.items() if not any(part in name.upper() for part in HIDDEN_VARIABLES)}
    direct = ",".join(filter(None, (os.environ.get("NO_PROXY") or os.environ.get("no_proxy", ""), "127.0.0.1,localhost")))
    return shown | {"NO_PROXY": direct, "no_proxy": direct}


def _name_signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
