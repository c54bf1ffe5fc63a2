"""`rlvr serve`: start the worker processes and speak HTTP until SIGTERM."""

from __future__ import annotations

import asyncio
import json
import math
import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from rlvr.errors import ConfigError, MissingExtra
from rlvr.registry.plugins import load_factory

TOKEN_VARIABLE = "RLVR_SERVE_TOKEN"
MIN_TOKEN_CHARS, MAX_TOKEN_CHARS = 16, 10_000
TIME_OPTIONS = {
    "call_timeout_s": "--timeout",
    "session_timeout_s": "--lease",
    "shutdown_timeout_s": "--grace",
    "request_timeout_s": "--request-timeout",
}
"""The settings that are times, with their options."""


@dataclass(frozen=True, slots=True)
class ServeConfig:
    """The settings of `rlvr serve`: the served plugins and the limits.

    >>> ServeConfig(("numeric",)).port
    8765
    """

    verifiers: Sequence[str]
    envs: Sequence[str] = ()
    sandbox: str = ""
    host: str = "127.0.0.1"
    port: int = 8765
    workers: int = 2
    threads: int = 8
    call_timeout_s: float = 60.0
    queue: int = 10_000
    max_body: int = 16 << 20
    memory: int = 256 << 20
    sessions: int = 256
    open_wait_s: float = 5.0
    session_timeout_s: float = 300.0
    shutdown_timeout_s: float = 30.0
    request_timeout_s: float = 30.0
    token_file: Path | None = None
    token_env: str = TOKEN_VARIABLE
    json: bool = False

    def __post_init__(self) -> None:
        for name in ("workers", "threads", "queue", "max_body", "memory", "sessions"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}; it must be at least 1")
        for name, option in TIME_OPTIONS.items():
            if not 0 < getattr(self, name) < math.inf:
                raise ConfigError(f"{option} is {getattr(self, name)}; it must be a number of seconds above 0")
        if not 0 <= self.open_wait_s < math.inf:
            raise ConfigError(f"--open-wait is {self.open_wait_s}; it must be 0 or more seconds")
        if not 0 <= self.port < 1 << 16:
            raise ConfigError(f"port is {self.port}; it must be from 0 (any free one) to 65535")
        if self.memory < self.max_body:
            raise ConfigError(f"memory is {self.memory} bytes, less than one body may have ({self.max_body}); raise it")

    def build_worker_settings(self) -> dict[str, Any]:
        """Build the settings that a worker process gets: the plugins to build, the number of threads and the timeout of a verdict."""
        verifiers, envs = _parse_plugins("verifier", self.verifiers), _parse_plugins("env", self.envs)
        if not verifiers and not envs and not self.sandbox:
            raise ConfigError("there is nothing to serve; name a verifier, such as `rlvr serve symbolic`, or --env, or --sandbox")
        sandbox = _parse_plugin(self.sandbox) if self.sandbox else None
        return {
            "verifiers": verifiers,
            "envs": envs,
            "sandbox": sandbox,
            "threads": self.threads,
            "call_timeout_s": self.call_timeout_s,
        }


def serve(serve_config: ServeConfig) -> int:
    """Serve until SIGTERM or Ctrl-C; returns 0 after a graceful shutdown."""
    try:
        import starlette  # noqa: F401
        import uvicorn  # noqa: F401
    except ModuleNotFoundError as error:
        raise MissingExtra(str(error.name), "serve") from error
    token = _load_token(serve_config.token_file, serve_config.token_env, serve_config.host)
    settings = serve_config.build_worker_settings()
    for kind in ("verifier", "env"):
        for name in settings[f"{kind}s"].values():
            load_factory(kind, name["name"] if isinstance(name, Mapping) else name)  # raises for a wrong name before any process starts
    return asyncio.run(_serve(serve_config, settings, token))


async def _serve(serve_config: ServeConfig, settings: Mapping[str, Any], token: str) -> int:
    import uvicorn

    from rlvr.gateway.connection import make_protocol_class
    from rlvr.serve.app import ServiceRoutes
    from rlvr.serve.guard import RequestGuard
    from rlvr.serve.metrics import ServiceMetrics
    from rlvr.serve.pool import ServicePool
    from rlvr.serve.sessions import SessionManager

    class Server(uvicorn.Server):
        @contextmanager
        def capture_signals(self) -> Any:
            """Leave the signals to the handlers below: uvicorn would raise them again, and the worker processes would not be closed."""
            yield

    figures = ServiceMetrics()
    pool = ServicePool(settings, workers=serve_config.workers, metrics=figures, log=_log_line, hidden_variables=[serve_config.token_env])
    await pool.start()
    sessions = SessionManager(
        pool,
        max_sessions=serve_config.sessions,
        open_wait_s=serve_config.open_wait_s,
        session_timeout_s=serve_config.session_timeout_s,
        call_timeout_s=serve_config.call_timeout_s,
    )
    sweeping = asyncio.create_task(sessions.run_expiry_loop())
    router = ServiceRoutes(pool, sessions, max_rows=serve_config.queue).build_router()
    app = RequestGuard(
        router,
        token=token,
        max_body_bytes=serve_config.max_body,
        max_memory_bytes=serve_config.memory,
        metrics=figures,
        log=_log_line,
        body_timeout_s=serve_config.request_timeout_s,
    )
    config = uvicorn.Config(
        app,
        http=make_protocol_class(serve_config.request_timeout_s),
        ws="none",
        host=serve_config.host,
        port=serve_config.port,
        log_level="error",
        access_log=False,
        server_header=False,
        lifespan="off",
        backlog=2048,
        timeout_keep_alive=30,
        timeout_graceful_shutdown=max(1, round(serve_config.shutdown_timeout_s)),
    )
    server = Server(config)

    def stop() -> None:
        if server.should_exit:
            server.force_exit = True
        else:
            _log_line("stopping: running requests end, new ones are not accepted")
        server.should_exit = True

    for name in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(name, stop)
    telling = asyncio.create_task(_print_url_when_listening(server, serve_config, settings, bool(token)))
    try:
        await server.serve()
    except SystemExit:
        raise ConfigError(f"nothing can listen on {serve_config.host} port {serve_config.port}; choose another --port or --host") from None
    finally:
        for task in (sweeping, telling):
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
        await pool.close()
    return 0


async def _print_url_when_listening(server: Any, serve_config: ServeConfig, settings: Mapping[str, Any], has_token: bool) -> None:
    """Print the URL of the service as soon as it listens."""
    while not server.started:
        await asyncio.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    url = f"http://{f'[{serve_config.host}]' if ':' in serve_config.host else serve_config.host}:{port}"
    told: dict[str, Any] = {
        "url": url,
        "verifiers": list(settings["verifiers"]),
        "envs": list(settings["envs"]),
        "workers": serve_config.workers,
        "token": has_token,
    }
    if serve_config.json:
        print(json.dumps(told, ensure_ascii=False, allow_nan=False, default=str), flush=True)
        sys.stdout.flush()
    else:
        names = ", ".join([*told["verifiers"], *told["envs"], *([serve_config.sandbox] if serve_config.sandbox else [])])
        _log_line(
            f"serving {names} at {url} ({'with a token' if has_token else 'without a token, for this machine only'}); stop with Ctrl-C"
        )


def _load_token(token_file: Path | None, env_variable: str, host: str) -> str:
    """Load the bearer token from a file or an environment variable; a host that other machines can reach requires one."""
    from rlvr.serve.guard import LOCAL_HOSTS  # needs the extra

    if token_file is not None:
        try:
            with token_file.open(encoding="utf-8") as file:
                token = file.read(MAX_TOKEN_CHARS).strip()  # of a device, all would have no end
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"--token-file {token_file} cannot be read: {error}") from error
        source = str(token_file)
    else:
        token, source = os.environ.get(env_variable, "").strip(), f"the environment variable {env_variable}"
    if token and (len(token) < MIN_TOKEN_CHARS or not token.isascii() or not token.isprintable() or " " in token):
        raise ConfigError(f"the token in {source} must be at least {MIN_TOKEN_CHARS} printable ASCII characters without spaces")
    if token_file is not None and not token:
        raise ConfigError(f"--token-file {token_file} is empty")
    if not token and host not in LOCAL_HOSTS:
        raise ConfigError(
            f"host is {host!r}, which other machines can reach, and there is no token; set {env_variable} or give --token-file"
        )
    return token


def _parse_plugins(kind: str, texts: Sequence[str]) -> dict[str, Any]:
    """Parse the plugins of the command line, each a name or a YAML mapping with settings.

    >>> _parse_plugins("verifier", ["numeric", "{name: exact, ignore_case: true}"])
    {'numeric': 'numeric', 'exact': {'name': 'exact', 'ignore_case': True}}
    """
    found: dict[str, Any] = {}
    for text in texts:
        value = _parse_plugin(text)
        name = str(value["name"] if isinstance(value, Mapping) else value).rpartition(":")[2]
        if name in found:
            raise ConfigError(f"two {kind}s are called {name!r}; a service has one of each name")
        if not name.isidentifier():
            raise ConfigError(f"{text!r:.80} is not the name of a {kind}; write a name, or {{name: NAME, setting: value}}")
        found[name] = value
    return found


def _parse_plugin(text: str) -> Any:
    if not text.lstrip().startswith("{"):
        return text
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"{text!r:.80} is not YAML: {' '.join(str(error).split())}") from error
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        raise ConfigError(f"{text!r:.80} names no plugin; write {{name: NAME, setting: value}}")
    return value


def _log_line(line: str) -> None:
    """Write one line with the time on standard error."""
    print(f"{time.strftime('%H:%M:%S')} {line}", file=sys.stderr, flush=True)
