"""The tools of an MCP server, which is started as a process or reached over HTTP; one connection per conversation."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from rlvr.contracts.tool import Tool
from rlvr.errors import ConfigError, ToolInfrastructureError
from rlvr.tools._mcp_connection import McpConnection
from rlvr.tools._sandbox_run import validate_timeout_setting
from rlvr.turns import ToolSpec


class Mcp(Tool):
    """All tools of an MCP server, sorted by name. They stay the same during a conversation, which begins with their list.

    A run needs the list before its first conversation, for the size of the prompts, so a server is started once for it.
    With `command`, a server process is started for each conversation, so its state belongs to the conversation. It runs as this user,
    outside any sandbox: only start servers that you trust. The policy sees errors of the server and timeouts; if the server exits, the
    conversation ends: with score 0 if only its own calls end a server, without a score if a new one does not start either.
    """

    def __init__(
        self,
        *,
        command: Sequence[str] = (),
        url: str = "",
        env: Mapping[str, str] | None = None,
        cwd: str = "",
        prefix: str = "",
        only: Sequence[str] = (),
        call_timeout_s: float = 30.0,
        start_timeout_s: float = 60.0,
    ) -> None:
        """Keyword arguments are the settings.

        Args:
            command: the program and its arguments, for example [python, server.py].
            url: the address of a server over streamable HTTP, instead of a command.
            env: environment variables of the program, in addition to a few standard ones.
            cwd: the working folder of the program.
            prefix: prefix of the name of each tool, for servers with equal tool names.
            only: the names of the tools that are used; empty means all.
            call_timeout_s: timeout of one call, in seconds.
            start_timeout_s: timeout of the start, in seconds.
        """
        if bool(command) == bool(url):
            raise ValueError("give either command or url")
        if isinstance(command, str):
            raise ValueError(f"command is {command!r}; write a list: [{', '.join(command.split())}]")
        if cwd and not os.path.isdir(cwd):
            raise ValueError(f"cwd is {cwd!r}; there is no such folder")
        self.command, self.url, self.env, self.cwd = tuple(command), url, dict(env or {}), cwd
        self.prefix, self.only = prefix, tuple(only)
        self.call_timeout_s, self.start_timeout_s = validate_timeout_setting(call_timeout_s), validate_timeout_setting(start_timeout_s)
        self.connection: McpConnection | None = None
        self._specs: tuple[ToolSpec, ...] = ()
        self._known_specs: list[tuple[ToolSpec, ...]] = []
        """The last list of the server's tools, shared with the copies of all conversations; empty before the first one."""

    def setup(self) -> None:
        """Start the server or connect to it, and list its tools."""
        self.connection = McpConnection(self.command or self.url, self.env, self.cwd, self.call_timeout_s)
        offered = self.connection.start(self.start_timeout_s)
        if missing := sorted(set(self.only) - {spec.name for spec in offered}):
            raise ConfigError(f"the server has no tool {missing[0]!r}; it has {', '.join(spec.name for spec in offered) or 'none'}")
        used = [spec for spec in offered if not self.only or spec.name in self.only]
        self._specs = tuple(ToolSpec(self.prefix + spec.name, spec.description, spec.parameters) for spec in used)
        self._known_specs[:] = [self._specs]

    def teardown(self) -> None:
        """Disconnect; a server process exits."""
        if self.connection is not None:
            self.connection.stop()
            self.connection = None

    def specs(self) -> tuple[ToolSpec, ...]:
        """Return the tools of the server; outside of a conversation, as they were listed last, for which the server is started once."""
        if self.connection is not None:
            return self._specs
        if not self._known_specs:
            try:
                with self.session():
                    pass
            except ToolInfrastructureError as error:
                raise ConfigError(str(error)) from error
        return self._known_specs[-1]

    def call(self, name: str, arguments: Mapping[str, Any]) -> str:
        """Call a tool of the server."""
        if self.connection is None:
            raise ToolInfrastructureError("the MCP server is not connected")
        return self.connection.call(name.removeprefix(self.prefix), arguments)


make = Mcp
