"""A connection to an MCP server, for use in normal threads: the SDK runs in an event loop in another thread."""

from __future__ import annotations

import asyncio
import tempfile
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import Any

from rlvr.chat.dialects.dialect import TOOL_NAME_PATTERN
from rlvr.contracts.schema import inline_schema_references
from rlvr.errors import ConfigError, MissingExtra, ToolError, ToolInfrastructureError, format_install_command
from rlvr.turns import ToolSpec

SDK_GRACE_S = 5.0
"""Additional time for the SDK to react after a timeout."""
MAX_TOOLS = 128
MAX_PAGES = 64


class McpConnection:
    """Start, call and stop an MCP server, each with a timeout."""

    def __init__(self, target: Sequence[str] | str, env: Mapping[str, str], cwd: str, call_timeout_s: float) -> None:
        self.target, self.env, self.cwd, self.call_timeout_s = target, dict(env), cwd, call_timeout_s
        self.loop: asyncio.AbstractEventLoop | None = None
        self.stop_event: asyncio.Event | None = None
        self.client: Any = None
        self.thread: threading.Thread | None = None
        self.stderr = tempfile.TemporaryFile(mode="w+", encoding="utf-8", errors="replace")  # noqa: SIM115 (closed in stop)

    def start(self, timeout_s: float) -> list[ToolSpec]:
        """Connect, and return the tools of the server. ToolInfrastructureError if it does not start."""
        sdk = _import_sdk()
        ready: Future[list[ToolSpec]] = Future()
        self.thread = threading.Thread(target=self._run_loop, args=(sdk, ready), name="rlvr-mcp", daemon=True)
        self.thread.start()
        try:
            return ready.result(timeout_s)
        except TimeoutError as error:
            raise ToolInfrastructureError(
                f"the MCP server {self._describe_server()} did not answer within {timeout_s:g} s{self._read_last_error_line()}"
            ) from error
        except ConfigError:
            raise
        except Exception as error:
            raise ToolInfrastructureError(
                f"the MCP server {self._describe_server()} did not start: {_format_error(error)}{self._read_last_error_line()}"
            ) from error

    def call(self, name: str, arguments: Mapping[str, Any]) -> str:
        """Call a tool and return the text of its result. ToolError for an error of the tool and for a timeout."""
        if self.loop is None or self.thread is None or not self.thread.is_alive():
            raise ToolInfrastructureError(f"the MCP server {self._describe_server()} exited{self._read_last_error_line()}")
        asked = asyncio.run_coroutine_threadsafe(self._call_tool(name, dict(arguments)), self.loop)
        late = f"the call took longer than {self.call_timeout_s:g} s and was cancelled"
        try:
            found = asked.result(self.call_timeout_s + SDK_GRACE_S)
        except TimeoutError as error:
            asked.cancel()
            raise ToolError(late) from error
        except Exception as error:
            raise ToolInfrastructureError(
                f"the MCP server {self._describe_server()} failed: {_format_error(error)}{self._read_last_error_line()}"
            ) from error
        text = "\n".join(block.text if block.type == "text" else f"[{block.type} is not shown]" for block in found.content)
        if found.is_error:
            raise ToolError(text or "the server gave no reason")
        return text or "[no output]"

    def stop(self) -> None:
        """Disconnect, and wait shortly for the server to exit. May be called repeatedly."""
        if self.loop is not None and self.stop_event is not None:
            with suppress(RuntimeError):  # the loop is closed already
                self.loop.call_soon_threadsafe(self.stop_event.set)
        if self.thread is not None:
            self.thread.join(SDK_GRACE_S + 5)
        self.stderr.close()

    # ---- in the event loop thread

    def _run_loop(self, sdk: Any, ready: Future[list[ToolSpec]]) -> None:
        try:
            asyncio.run(self._serve_until_stopped(sdk, ready))
        except BaseException as error:
            if not ready.done():
                ready.set_exception(error if isinstance(error, Exception) else RuntimeError(repr(error)))

    async def _serve_until_stopped(self, sdk: Any, ready: Future[list[ToolSpec]]) -> None:
        self.loop, self.stop_event = asyncio.get_running_loop(), asyncio.Event()
        connecting = asyncio.ensure_future(self._connect(sdk, ready))
        ended = asyncio.ensure_future(self.stop_event.wait())
        await asyncio.wait({connecting, ended}, return_when=asyncio.FIRST_COMPLETED)
        if not connecting.done() and not ready.done():  # stopped before it was ready
            connecting.cancel()
        try:
            await connecting
        finally:
            ended.cancel()

    async def _connect(self, sdk: Any, ready: Future[list[ToolSpec]]) -> None:
        assert self.stop_event is not None
        where = self.target
        if not isinstance(where, str):
            params = sdk.StdioServerParameters(command=where[0], args=list(where[1:]), env=self.env or None, cwd=self.cwd or None)
            where = sdk.stdio_client(params, errlog=self.stderr)
        async with sdk.Client(where) as client:
            self.client = client
            ready.set_result(await _list_tools(client))
            await self.stop_event.wait()

    async def _call_tool(self, name: str, arguments: dict[str, Any]) -> Any:
        return await asyncio.wait_for(self.client.call_tool(name, arguments), self.call_timeout_s)

    # ---- error messages

    def _describe_server(self) -> str:
        return self.target if isinstance(self.target, str) else " ".join(self.target)[:80]

    def _read_last_error_line(self) -> str:
        """Return the last line that the server wrote to its standard error."""
        try:
            self.stderr.seek(0)
            lines = self.stderr.read(100_000).strip().splitlines()
        except (OSError, ValueError):
            return ""
        return f"; its last line of stderr: {lines[-1][:200]}" if lines else ""


def _import_sdk() -> Any:
    try:
        import mcp
        from mcp.client.stdio import stdio_client
    except ModuleNotFoundError as error:
        raise MissingExtra("mcp", "mcp") from error
    if not hasattr(mcp, "Client"):
        raise ConfigError(f"the installed mcp is older than 2; `{format_install_command('mcp')}`")
    import types

    return types.SimpleNamespace(Client=mcp.Client, StdioServerParameters=mcp.StdioServerParameters, stdio_client=stdio_client)


async def _list_tools(client: Any) -> list[ToolSpec]:
    found: list[ToolSpec] = []
    cursor = None
    for _ in range(MAX_PAGES):
        page = await client.list_tools(cursor=cursor)
        for one in page.tools:
            if not TOOL_NAME_PATTERN.fullmatch(one.name):
                raise ConfigError(
                    f"the MCP server offers a tool {one.name!r:.80}; a name has letters, digits, _ - . and at most 128 of them"
                )
            found.append(ToolSpec(one.name, (one.description or one.title or one.name).strip(), inline_schema_references(one.input_schema)))
        cursor = page.next_cursor
        if not cursor:
            break
    if len(found) > MAX_TOOLS:
        raise ConfigError(f"the MCP server offers {len(found)} tools, at most {MAX_TOOLS} are put into a prompt; select some with `only`")
    return sorted(found, key=lambda spec: spec.name)


def _format_error(error: BaseException) -> str:
    """Format the innermost error, since the SDK wraps errors in groups."""
    while isinstance(error, BaseExceptionGroup) and error.exceptions:
        error = error.exceptions[0]
    return f"{type(error).__name__}: {error}"
