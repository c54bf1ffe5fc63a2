"""inspect_ai, lm-evaluation-harness and verifiers on rlvr's environments: real runs with a scripted model.

    python benchmarks/adapters/evaluators.py --framework inspect|lm-eval|verifiers [--tasks 20]

It needs the framework next to rlvr. The model answers right, wrong, and (where there are tools) with the answer only in a tool's output.
Bars: every score is that of rlvr's verifier for the same text; the tool's output earns nothing; what could not be judged has no score.
Exit code 1 if a score differs.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import json
import math
import sys
import tempfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from types import ModuleType
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import rlvr
from rlvr import Fault, Task, Verdict, Verifier
from rlvr.integrations.exporting import export_env
from rlvr.turns import Call

KINDS = ("right", "wrong", "hedged")


class Away(Verifier):
    """A verifier whose machinery is down."""

    def verify(self, task: Task, answer: str) -> Verdict:
        """No score."""
        return Verdict(None, "the engine is away", fault=Fault.INFRA)


def answers(env: Any, split: str, count: int) -> dict[str, tuple[Task, str]]:
    """By question: the task, and what the model says. Two tasks may ask the same."""
    found = {}
    for index in range(count):
        task = env.task(split, index)
        gold = str(env.gold(task) or (env.oracle_turns(task) or [""])[-1])
        found[task.question] = (task, {"right": gold, "wrong": gold + "1", "hedged": f"{gold} or {gold}1"}[KINDS[index % 3]])
    return found


def expected(env: Any, split: str, count: int, said: dict[str, tuple[Task, str]]) -> dict[str, float | None]:
    """The score of each task, as rlvr's verifier gives it."""
    tasks = [env.task(split, index) for index in range(count)]
    return {task.id: env.verifier.verify(task, said[task.question][1]).score for task in tasks}


def differ(found: dict[str, float | None], wanted: dict[str, float | None]) -> int:
    """How many scores differ."""
    assert found.keys() == wanted.keys(), (found, wanted)
    return sum(found[name] != wanted[name] for name in wanted)


# ---- inspect_ai


def inspect(count: int) -> dict[str, Any]:
    """Environments of one turn, with tools, and one without scores."""
    from inspect_ai import eval as run
    from inspect_ai.model import ModelAPI, ModelOutput, modelapi

    from rlvr.integrations.inspect_task import make_inspect_task

    script: dict[str, Any] = {}

    class Scripted(ModelAPI):
        """Answers from the script."""

        async def generate(self, input: Any, tools: Any, tool_choice: Any, config: Any) -> Any:
            """A call first, if the script has one; then the text."""
            question = next(message.text for message in input if message.role == "user")
            turns = script[question]
            turn = turns[sum(message.role == "assistant" for message in input)]
            if isinstance(turn, Call):
                return ModelOutput.for_tool_call(self.model_name, turn.name, dict(turn.arguments or {}))
            return ModelOutput.from_content(self.model_name, turn)

        async def count_text_tokens(self, text: str) -> int:
            """Without the download of a tokenizer."""
            return len(text)

    @modelapi(name="scripted")
    def scripted() -> Any:
        return Scripted

    def scores(env: Any, indices: Any) -> dict[str, float | None]:
        with tempfile.TemporaryDirectory() as folder:
            (log,) = run(make_inspect_task(env, "test", indices), model="scripted/x", log_dir=folder, display="none")
            assert log.status == "success", log.error
            return {str(sample.id): next(iter(sample.scores.values())).value for sample in log.samples}

    single = rlvr.make_env("arithmetic")
    said = answers(single, "test", count)
    script.update({question: [text] for question, (_, text) in said.items()})
    figures: dict[str, Any] = {
        "one_turn": count,
        "one_turn_differ": differ(scores(single, range(count)), expected(single, "test", count, said)),
    }
    tools = rlvr.make_env("calculator_sums")
    said = answers(tools, "test", count)
    script.update({question: [*list(tools.oracle_turns(task))[:-1], text] for question, (task, text) in said.items()})
    figures |= {"with_tools": count, "with_tools_differ": differ(scores(tools, range(count)), expected(tools, "test", count, said))}
    script.update({question: [*list(tools.oracle_turns(task))[:-1], "no idea"] for question, (task, _) in said.items()})
    figures["paid_for_a_tools_output"] = sum(bool(score) for score in scores(tools, range(count)).values())
    away = rlvr.make_env("arithmetic", verifier=Away())
    found = scores(away, range(3))
    figures["unscored_as_nan"] = sum(isinstance(score, float) and math.isnan(score) for score in found.values())
    figures["missed"] = figures["one_turn_differ"] + figures["with_tools_differ"] + figures["paid_for_a_tools_output"]
    figures["missed"] += figures["unscored_as_nan"] != 3
    return figures


# ---- lm-evaluation-harness


def lm_eval(count: int) -> dict[str, Any]:
    """The exported folder, loaded by the harness itself."""
    import lm_eval as harness
    from lm_eval.api.model import LM
    from lm_eval.tasks import TaskManager

    env = rlvr.make_env("arithmetic")
    said = answers(env, "test", count)

    class Scripted(LM):
        """Answers from the script."""

        def generate_until(self, requests: Any, disable_tqdm: bool = False) -> list[str]:
            """The text for each question."""
            return [said[request.args[0]][1] for request in requests]

        def loglikelihood(self, requests: Any, disable_tqdm: bool = False) -> Any:
            """Not asked."""
            raise NotImplementedError

        loglikelihood_rolling = loglikelihood

    with tempfile.TemporaryDirectory() as folder:
        export_env("arithmetic", "lm-eval", Path(folder) / "out", split="test", count=count)
        manager = TaskManager(include_path=str(Path(folder) / "out"), include_defaults=False)
        done = harness.simple_evaluate(
            model=Scripted(), tasks=["rlvr_arithmetic"], task_manager=manager, log_samples=True, bootstrap_iters=0
        )
    rows = done["samples"]["rlvr_arithmetic"]
    wanted = expected(env, "test", count, said)
    found = {row["doc"]["task_id"]: row["score"] for row in rows}
    results = {name: value for name, value in done["results"]["rlvr_arithmetic"].items() if name.startswith(("score", "unscored"))}
    mean = sum(score or 0.0 for score in wanted.values()) / len(wanted)
    missed = differ(found, wanted) + (abs(results["score,none"] - mean) > 1e-9)
    return {"tasks": len(rows), "differ": differ(found, wanted), **results, "missed": missed}


# ---- verifiers


def endpoint(said: dict[str, tuple[Task, str]]) -> ThreadingHTTPServer:
    """A chat server that answers from the script."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            question = next(message["content"] for message in body["messages"] if message["role"] == "user")
            text = question if isinstance(question, str) else question[0]["text"]
            choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": said[text][1]}}
            usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
            reply = {"id": "1", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice], "usage": usage}
            data = json.dumps(reply).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    Thread(target=server.serve_forever, daemon=True).start()
    return server


def verifiers(count: int) -> dict[str, Any]:
    """The exported package, loaded by verifiers and played by its own agent through a harness without subprocess."""
    vf = importlib.import_module("verifiers.v1")
    env = rlvr.make_env("arithmetic")
    said = answers(env, "train", count)
    with tempfile.TemporaryDirectory() as folder:
        export_env("arithmetic", "verifiers", Path(folder) / "out", count=count)
        sys.path.insert(0, str(Path(folder) / "out"))
        module = importlib.import_module("rlvr_arithmetic")
        taskset = vf.load_taskset(module.RlvrConfig(id="rlvr-arithmetic", count=count))
        tasks = list(taskset.take(count))
    server = endpoint(said)
    try:
        traces = asyncio.run(_played(vf, tasks, f"http://127.0.0.1:{server.server_port}/v1"))
    finally:
        server.shutdown()
        server.server_close()
    wanted = expected(env, "train", count, said)
    found = {task.data.name: trace.reward for task, trace in zip(tasks, traces, strict=True)}
    module.rewards.scorer.environment.verifier = Away()
    away = asyncio.run(_scored(vf, tasks[0], "4"))
    missed = differ(found, wanted) + bool(away["rewards"])
    return {
        "tasks": len(tasks),
        "differ": differ(found, wanted),
        "ok": sum(trace.ok for trace in traces),
        "away": away,
        "missed": missed,
    } | ({"errors": [str(error)[:300] for error in traces[0].errors]} if missed else {})


async def _scored(vf: Any, task: Any, text: str) -> dict[str, Any]:
    """A trace by hand, scored: what became of its reward."""
    about = vf.TraceTask(type=type(task).__name__, data=task.data, key=task.key, hash=task.hash)
    trace = vf.Trace(task=about, agent=vf.AgentInfo(config=vf.AgentConfig()))
    trace.nodes += [
        vf.MessageNode(message=vf.UserMessage(content="?")),
        vf.MessageNode(parent=0, message=vf.AssistantMessage(content=text), sampled=True),
    ]
    try:
        await task.score(trace)
        error = ""
    except Exception as raised:
        error = f"{type(raised).__name__}: {raised}"
    return {"error": error[:120], "rewards": [reward.score for reward in trace.rewards.values() if reward is not None]}


async def _played(vf: Any, tasks: list[Any], url: str) -> list[Any]:
    """Each task once, by verifiers' own agent."""
    import os
    import urllib.request

    os.environ["STUB_KEY"] = "none"

    class LoopConfig(vf.HarnessConfig):  # type: ignore[misc, name-defined]
        """No settings."""

    class Loop(vf.Harness[LoopConfig]):  # type: ignore[misc, name-defined]
        """One question, one answer, through the endpoint that it is handed."""

        EXECUTES_CODE = False
        NEEDS_CONTAINER = False

        async def launch(
            self, ctx: Any, trace: Any, runtime: Any, endpoint: str, secret: str, mcp_urls: Any, data: Any, **more: Any
        ) -> Any:
            """Ask once."""
            messages = [{"role": "user", "content": data.prompt_text}]
            body = json.dumps({"model": "m", "messages": messages}).encode()
            head = {"Content-Type": "application/json", "Authorization": f"Bearer {secret}"}
            asked = urllib.request.Request(endpoint.rstrip("/") + "/chat/completions", body, head)
            text = await asyncio.to_thread(lambda: urllib.request.urlopen(asked, timeout=30).read())
            return vf.ProgramResult(0, text.decode(), "")

    package = ModuleType("rlvr_loop")  # verifiers finds a harness by the name of an importable package
    vars(package).update(Loop=Loop, __all__=["Loop"])
    Loop.__module__ = "rlvr_loop"
    sys.modules["rlvr_loop"] = package
    client = vf.EvalClientConfig(base_url=url, api_key_var="STUB_KEY")
    config = vf.AgentConfig(harness=LoopConfig(id="rlvr-loop"), runtime=vf.SubprocessConfig(), model="m", client=client)
    async with vf.Agent(config) as agent:
        return [await agent.run(task) for task in tasks]


def main() -> int:
    """Print the figures; 1 if a bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--framework", choices=("inspect", "lm-eval", "verifiers"), required=True)
    parser.add_argument("--tasks", type=int, default=20)
    arguments = parser.parse_args()
    figures = {"inspect": inspect, "lm-eval": lm_eval, "verifiers": verifiers}[arguments.framework](arguments.tasks)
    print(json.dumps({"framework": arguments.framework, **figures}, default=float))
    return int(bool(figures["missed"]))


if __name__ == "__main__":
    sys.exit(main())
