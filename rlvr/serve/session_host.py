"""The sessions of environments and the sandbox that a worker process holds, and the requests to them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from threading import Lock
from typing import Any, Literal, get_args

from rlvr.chat.dialects.dialect import Dialect
from rlvr.chat.dialects.table import get_dialect
from rlvr.chat.openai_calls import build_turn_with_calls
from rlvr.contracts import Environment, ExitStatus, Limits, Program, Sandbox, StepResult, Transcript
from rlvr.contracts.admission import request_permit
from rlvr.contracts.sandbox import Language
from rlvr.errors import ConfigError, SandboxOutage, format_suggestion
from rlvr.mdp.answer_faults import verify_conversation
from rlvr.mdp.records import step_result_to_json, tool_spec_to_json
from rlvr.mdp.sessions import LazySession, build_unscored_verdict
from rlvr.registry.plugins import build_from_config
from rlvr.serve.openapi import FINISH_REASONS
from rlvr.task import Fault, Task, Verdict
from rlvr.turns import Turn

LANGUAGES: Mapping[str, Any] = {name: name for name in get_args(Language)} | {"nodejs": "javascript", "R": "r"}
"""The languages of programs, by the names that clients of verl's sandbox send."""
MAX_RUN_S, MAX_RUN_MEMORY_MB = 60.0, 1024


@dataclass(slots=True)
class WorkerSession:
    """A worker's record of an open session: its environment session, and the turns with their replies."""

    session_handle: LazySession
    dialect: Dialect
    task: Task
    turns: list[Turn] = field(default_factory=list)
    step_results: list[StepResult] = field(default_factory=list)
    done: bool = False
    failure: Verdict | None = None
    """What the session raised on a turn; whose fault that is, is decided at the end."""


class SessionHost:
    """Holds, in a worker process, the served environments, their open sessions and a sandbox; `handle_request` handles one request as a
    dictionary.
    """

    def __init__(self, envs: Mapping[str, Any], sandbox: Any = None) -> None:
        self.envs: dict[str, Environment] = {name: build_from_config("env", wanted) for name, wanted in envs.items()}
        if agents := [name for name, env in self.envs.items() if env.traits.plays_agent]:
            raise ConfigError(
                f"{agents[0]} is played by an agent, which sends whole conversations; serve the environment of its tasks instead"
            )
        if rewriting := [name for name, env in self.envs.items() if env.traits.rewrites_context]:
            raise ConfigError(f"{rewriting[0]} rewrites histories, which only a rollout of rlvr can do; serve it without `context`")
        self.sandbox: Sandbox | None = build_from_config("sandbox", sandbox) if sandbox else None
        self.sessions: dict[str, WorkerSession] = {}
        self.lock = Lock()

    def handle_request(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Handle one request and return the reply; a ConfigError is the client's mistake."""
        what = request["what"]
        if what == "task":
            _parse_opening(self._get_env(request), request)  # what opens no session asks for no task
            return _task_to_public_json(self._get_task(request))
        if what == "open":
            return self._open_session(request)
        if what == "run":
            return self._run_program(request)
        with self.lock:
            held = self.sessions.get(str(request["session"]))
            if held is not None and what != "step":
                del self.sessions[str(request["session"])]
        if held is None:
            return {"error": "there is no such session; it may have been closed", "status": 410}
        return self._step(held, request) if what == "step" else self._close_session(held, with_verdict=what == "close")

    def close(self) -> None:
        """Close all sessions, the environments and the sandbox."""
        for held in self.sessions.values():
            held.session_handle.close()
        for plugin in (*self.envs.values(), self.sandbox):
            if plugin is not None:
                plugin.close()

    def _get_env(self, request: Mapping[str, Any]) -> Environment:
        name = request.get("env") or next(iter(self.envs), "")
        if not isinstance(name, str) or name not in self.envs:
            raise ConfigError(f"there is no environment {name!r} here; {format_suggestion(str(name), self.envs)}")
        return self.envs[name]

    def _get_task(self, request: Mapping[str, Any]) -> Task:
        env, split, index = self._get_env(request), request.get("split", "train"), request.get("index", 0)
        if split not in env.splits:
            raise ConfigError(f"split is {split!r}; {format_suggestion(str(split), env.splits)}")
        size = env.num_tasks(split)
        if isinstance(index, bool) or not isinstance(index, int) or not 0 <= index < (size or 1 << 62):
            raise ConfigError(f"index is {index!r:.60}; it must be a whole number from 0" + (f" to {size - 1}" if size else ""))
        return env.task(split, index)

    def _open_session(self, request: Mapping[str, Any]) -> dict[str, Any]:
        env, task = self._get_env(request), self._get_task(request)
        dialect, seed = _parse_opening(env, request)
        session_handle = LazySession(env, task, seed=seed)
        limiters = session_handle.get_limiters()
        admission = request_permit(limiters)
        if admission.cancel():  # not granted; this thread must not wait, because the open sessions need it to go on
            full = next((limiter for limiter in limiters if limiter.is_full), limiters[0])
            return {"error": f"all {full.capacity} {full.name}s are open; try again later", "status": 429}
        try:
            session_handle.open(admission.result())
        except BaseException:
            session_handle.close()
            raise
        with self.lock:
            self.sessions[str(request["session"])] = WorkerSession(session_handle, dialect, task)
        tools = {"tools": [tool_spec_to_json(spec) for spec in session_handle.tools]} if session_handle.tools else {}
        shown = _task_to_public_json(task)
        shown["prompt"] += [dict(message) for message in session_handle.initial_messages]
        return {**shown, **tools, "max_turns": env.max_turns}

    def _step(self, held: WorkerSession, request: Mapping[str, Any]) -> dict[str, Any]:
        if held.done:
            raise ConfigError("this conversation is over; close the session to get its verdict")
        turn = _parse_turn(held, request)
        cut = turn.finish_reason
        held.turns.append(turn)
        if cut == "length":
            held.done = True
            return {"messages": [], "done": True}
        try:
            heard = held.session_handle.step(turn)
        except SandboxOutage:
            raise
        except (Exception, SystemExit) as error:
            held.failure, held.done = build_unscored_verdict(held.session_handle.current_method, error), True
            return {"messages": [], "done": True}
        held.step_results.append(heard)
        held.done = heard.done or len(held.turns) >= held.session_handle.environment.max_turns
        return {**step_result_to_json(heard), "done": held.done}

    def _close_session(self, held: WorkerSession, *, with_verdict: bool) -> dict[str, Any]:
        handle = held.session_handle
        try:
            if not with_verdict:
                return {"closed": True}
            ending: Transcript | Verdict = (
                handle.collect_transcript(tuple(held.turns), tuple(held.step_results)) if held.failure is None else held.failure
            )
        finally:
            handle.close()
        num_steps = len(held.step_results) + (held.failure is not None)
        try:
            verdict = verify_conversation(handle.environment, held.task, ending, held.turns, num_steps, seed=handle.seed)
        except SandboxOutage as error:
            verdict = Verdict(None, str(error), fault=Fault.INFRA)
        return {"closed": True, "verdict": Verdict.to_dict(verdict), "turns": len(held.turns)}

    def _run_program(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Run a program and reply in the format of verl's sandbox."""
        if self.sandbox is None:
            raise ConfigError("this service runs no programs; start it with --sandbox docker")
        language = LANGUAGES.get(str(request.get("language", "python")))
        if language is None:
            raise ConfigError(f"language is {request.get('language')!r}; {format_suggestion(str(request.get('language')), LANGUAGES)}")
        wall, memory = (
            _read_number(request, name, usual, most)
            for name, usual, most in (("run_timeout", 10, MAX_RUN_S), ("memory_limit_MB", 256, MAX_RUN_MEMORY_MB))
        )
        limits = Limits(cpu_s=wall, wall_s=wall, memory_mb=int(memory))
        program = Program(str(request.get("code", "")), str(request.get("stdin") or "").encode("utf-8", "replace"), language, limits)
        outcome = self.sandbox.run(program)
        told = {
            "execution_time": outcome.wall_s,
            "return_code": outcome.exit_code,
            "stdout": outcome.stdout,
            "stderr": outcome.stderr,
        }
        if outcome.status is ExitStatus.INTERNAL_ERROR:
            return {"status": "SandboxError", "message": outcome.reason, "compile_result": None, "run_result": None, "files": {}}
        ended = (
            "TimeLimitExceeded"
            if outcome.status is ExitStatus.TIMEOUT
            else "Error"
            if outcome.status in (ExitStatus.COMPILE_ERROR, ExitStatus.SANDBOX_VIOLATION)
            else "Finished"
        )
        done = {**told, "status": ended}
        ran, built = (None, done) if outcome.status is ExitStatus.COMPILE_ERROR else (done, None)
        well = outcome.status is ExitStatus.OK
        return {
            "status": "Success" if well else "Failed",
            "message": outcome.reason,
            "compile_result": built,
            "run_result": ran,
            "executor_pod_name": None,
            "files": {},
        }


def _parse_opening(env: Environment, request: Mapping[str, Any]) -> tuple[Dialect, int]:
    """Parse the dialect and the seed of a session."""
    dialect, seed = get_dialect(str(request.get("dialect") or env.dialect or "fenced")), request.get("seed", 0)
    if isinstance(seed, bool) or not isinstance(seed, int):
        raise ConfigError(f"seed is {seed!r:.60}; it must be a whole number")
    return dialect, seed


def _parse_turn(held: WorkerSession, request: Mapping[str, Any]) -> Turn:
    """Parse the turn of a request: a text, in which calls are written in the session's dialect, or calls in OpenAI's format."""
    message = request.get("message", request)
    if not isinstance(message, Mapping):
        raise ConfigError(f"message is {message!r:.60}; it must be an object such as {{'content': '...', 'tool_calls': [...]}}")
    names = [name for name in ("calls", "tool_calls") if message.get(name)]
    text = message.get("text", message.get("content"))
    if text is None and names:
        text = ""
    if not isinstance(text, str):
        raise ConfigError(f"text is {text!r:.60}; it must be the policy's turn as a string, or the body must have 'tool_calls'")
    why = request.get("finish_reason") or "stop"
    if why not in FINISH_REASONS:
        raise ConfigError(f"finish_reason is {why!r:.60}; {format_suggestion(str(why)[:60], FINISH_REASONS)}")
    cut: Literal["length", "stop"] = "length" if why == "length" else "stop"
    tools = held.session_handle.tools
    if len(names) == 2:
        raise ConfigError("the body has 'calls' and 'tool_calls', which are the same; give one of them")
    if not names:
        return (
            held.dialect.parse_turn(text, tools, turn=len(held.turns), finish_reason=cut) if tools else Turn(text, text, finish_reason=cut)
        )
    if not tools:
        raise ConfigError(f"the body has {names[0]!r}, but this environment has no tools; give the turn as 'text'")
    try:
        return build_turn_with_calls(text, message[names[0]], tools, len(held.turns), truncated=cut == "length")
    except TypeError as error:
        example = '[{"function": {"name": "...", "arguments": {}}}]'
        raise ConfigError(f"{names[0]} is {message[names[0]]!r:.80} ({error}); it must be a list such as {example}") from error


def _task_to_public_json(task: Task) -> dict[str, Any]:
    """Convert a task for the client, without its reference, which no client may see."""
    return {"task_id": task.id, "prompt": [dict(message) for message in task.prompt]}


def _read_number(request: Mapping[str, Any], name: str, default: float, maximum: float) -> float:
    value = request.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ConfigError(f"{name} is {value!r:.60}; it must be a number up to {maximum:g}")
    return min(float(value), maximum) if value > 0 else default
