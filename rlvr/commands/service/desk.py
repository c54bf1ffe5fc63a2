"""The sessions of environments and the sandbox that a worker process holds, and the requests to them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from threading import Lock
from typing import Any, Literal

from rlvr.contracts import Environment, Heard, Limits, Program, Sandbox, Stop, Transcript
from rlvr.dialects.dialect import Dialect
from rlvr.dialects.table import get
from rlvr.errors import ConfigError, suggest
from rlvr.mdp.records import heard_row, tool_row
from rlvr.mdp.sessions import Lease, judged_whole
from rlvr.plugins.registry import from_config
from rlvr.task import Task, Verdict
from rlvr.turns import Turn

LANGUAGES: Mapping[str, Any] = {"python": "python", "cpp": "cpp", "nodejs": "javascript", "javascript": "javascript"}
MOST_S, MOST_MB = 60.0, 1024


@dataclass(slots=True)
class Open:
    """An open session of a client: its environment session, and the turns with their replies."""

    lease: Lease
    dialect: Dialect
    task: Task
    turns: list[Turn] = field(default_factory=list)
    heard: list[Heard] = field(default_factory=list)
    over: bool = False


class Desk:
    """Holds environments, their open sessions, and a sandbox; `answer` handles one request as a dictionary."""

    def __init__(self, envs: Mapping[str, Any], sandbox: Any = None) -> None:
        self.envs: dict[str, Environment] = {name: from_config("env", wanted) for name, wanted in envs.items()}
        self.sandbox: Sandbox | None = from_config("sandbox", sandbox) if sandbox else None
        self.open: dict[str, Open] = {}
        self.lock = Lock()

    def answer(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """Handle one request and return the reply; a ConfigError is the client's mistake."""
        what = asked["what"]
        if what == "task":
            return _shown(self._task(asked))
        if what == "open":
            return self._open(asked)
        if what == "run":
            return self._run(asked)
        with self.lock:
            held = self.open.get(str(asked["session"]))
            if held is not None and what != "hear":
                del self.open[str(asked["session"])]
        if held is None:
            return {"error": "there is no such session; it may have been closed", "status": 410}
        return self._hear(held, asked) if what == "hear" else self._end(held, judge=what == "close")

    def close(self) -> None:
        """Close all sessions, the environments and the sandbox."""
        for held in self.open.values():
            held.lease.close()
        for plugin in (*self.envs.values(), self.sandbox):
            if plugin is not None:
                plugin.close()

    def _env(self, asked: Mapping[str, Any]) -> Environment:
        name = asked.get("env") or next(iter(self.envs), "")
        if name not in self.envs:
            raise ConfigError(f"there is no environment {name!r} here; {suggest(str(name), self.envs)}")
        return self.envs[name]

    def _task(self, asked: Mapping[str, Any]) -> Task:
        env, split, index = self._env(asked), asked.get("split", "train"), asked.get("index", 0)
        if split not in env.splits:
            raise ConfigError(f"split is {split!r}; {suggest(str(split), env.splits)}")
        size = env.size(split)
        if isinstance(index, bool) or not isinstance(index, int) or not 0 <= index < (size or 1 << 62):
            raise ConfigError(f"index is {index!r}; it must be a whole number from 0" + (f" to {size - 1}" if size else ""))
        return env.task(split, index)

    def _open(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        env, task = self._env(asked), self._task(asked)
        dialect, seed = get(str(asked.get("dialect") or env.dialect or "fenced")), asked.get("seed", 0)
        if isinstance(seed, bool) or not isinstance(seed, int):
            raise ConfigError(f"seed is {seed!r}; it must be a whole number")
        lease = Lease(env, task, seed=seed)
        try:
            lease.open()
        except BaseException:
            lease.close()
            raise
        with self.lock:
            self.open[str(asked["session"])] = Open(lease, dialect, task)
        tools = {"tools": [tool_row(spec) for spec in lease.tools]} if lease.tools else {}
        shown = _shown(task)
        shown["prompt"] += [dict(message) for message in lease.opening]
        return {**shown, **tools, "max_turns": env.max_turns}

    def _hear(self, held: Open, asked: Mapping[str, Any]) -> dict[str, Any]:
        text = asked.get("text")
        if not isinstance(text, str):
            raise ConfigError(f"text is {text!r:.60}; it must be the policy's turn as a string")
        if held.over:
            raise ConfigError("this conversation is over; close the session to get its verdict")
        cut: Literal["length", "stop"] = "length" if asked.get("finish") == "length" else "stop"
        plain = Turn(text, text, finish=cut)
        turn = held.dialect.read(text, held.lease.tools, turn=len(held.turns), finish=cut) if held.lease.tools else plain
        held.turns.append(turn)
        if cut == "length":
            held.over = True
            return {"messages": [], "over": True}
        heard = held.lease.hear(turn)
        held.heard.append(heard)
        held.over = heard.over or len(held.turns) >= held.lease.environment.max_turns
        return {**heard_row(heard), "over": held.over}

    def _end(self, held: Open, *, judge: bool) -> dict[str, Any]:
        try:
            if not judge:
                return {"closed": True}
            ending = held.lease.collect(tuple(held.turns), tuple(held.heard))
        finally:
            held.lease.close()
        verdict = judged_whole(held.lease.environment.verifier, held.task, ending) if isinstance(ending, Transcript) else ending
        return {"closed": True, "verdict": Verdict.record(verdict), "turns": len(held.turns)}

    def _run(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """Run a program and reply in the format of verl's sandbox."""
        if self.sandbox is None:
            raise ConfigError("this service runs no programs; start it with --sandbox docker")
        language = LANGUAGES.get(str(asked.get("language", "python")))
        if language is None:
            raise ConfigError(f"language is {asked.get('language')!r}; {suggest(str(asked.get('language')), LANGUAGES)}")
        wall, memory = (
            _number(asked, name, usual, most) for name, usual, most in (("run_timeout", 10, MOST_S), ("memory_limit_MB", 256, MOST_MB))
        )
        limits = Limits(cpu_s=wall, wall_s=wall, memory_mb=int(memory))
        program = Program(str(asked.get("code", "")), str(asked.get("stdin") or "").encode("utf-8", "replace"), language, limits)
        outcome = self.sandbox.run(program)
        told = {"execution_time": outcome.wall_s, "return_code": outcome.exit_code}
        told |= {name: getattr(outcome, name).decode("utf-8", "replace") for name in ("stdout", "stderr")}
        if outcome.stop is Stop.IE:
            return {"status": "SandboxError", "message": outcome.reason, "compile_result": None, "run_result": None, "files": {}}
        ended = "TimeLimitExceeded" if outcome.stop is Stop.TLE else "Error" if outcome.stop in (Stop.CE, Stop.SV) else "Finished"
        done = {**told, "status": ended}
        ran, built = (None, done) if outcome.stop is Stop.CE else (done, None)
        well = outcome.stop is Stop.OK
        return {
            "status": "Success" if well else "Failed",
            "message": outcome.reason,
            "compile_result": built,
            "run_result": ran,
            "executor_pod_name": None,
            "files": {},
        }


def _shown(task: Task) -> dict[str, Any]:
    """Convert a task for the client, without its reference, which no client may see."""
    return {"task_id": task.id, "prompt": [dict(message) for message in task.prompt]}


def _number(asked: Mapping[str, Any], name: str, usual: float, most: float) -> float:
    value = asked.get(name, usual)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ConfigError(f"{name} is {value!r:.60}; it must be a number up to {most:g}")
    return min(float(value), most) if value > 0 else usual
