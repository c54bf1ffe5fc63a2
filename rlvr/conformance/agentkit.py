"""The conformance kit of agents, `rlvr check agent NAME`: a real agent plays, and each token that was sampled for it is accounted for.

A scripted policy solves tasks of `bugfix` with the agent's own tools, and a tiny model without training answers with noise. The kit
records at the sampler what it sampled after which tokens, and compares that with the episodes; it uses nothing of the gateway for that.
"""

from __future__ import annotations

import base64
import http.client
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

from rlvr.conformance.check_runner import CheckSkipped, Steps, describe_first_problem
from rlvr.conformance.gatewaykit import RecordingClient, check_gateway
from rlvr.contracts import Completion, Environment, Request, Sampler, SamplingParams, Session
from rlvr.episode import Episode, StopReason
from rlvr.errors import ConfigError, format_suggestion
from rlvr.gateway.presets import AGENT_PRESETS
from rlvr.registry.plugins import build
from rlvr.rollout.rollout import Rollout
from rlvr.turns import Call

SHELL_TOOLS = ("bash", "Bash", "shell", "shell_command", "exec_command", "run_shell_command")
"""Names under which agents offer a shell."""
FINISH_TOOL = "final_answer"
FINISH_COMMAND = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
"""The command by which mini-swe-agent ends."""
WRITTEN = "the-file-is-written"
NUM_TASKS = 3
MAX_DIFFERENCE = 1e-4
LIMITS: Mapping[str, int] = {"max_length": 65_536, "max_new_tokens": 65_536}
NOISE_LIMITS: Mapping[str, int] = {"max_length": 65_536, "max_new_tokens": 512, "max_turn_tokens": 128}
LEAST_CHARACTERS = 8
"""A turn with a shorter text is not looked for in what the agent sends back: it may be there by chance."""


def iter_agent_checks(name: str, settings: Mapping[str, Any]) -> Steps:
    """Yield every check of an agent: a preset, or `command` in the settings, which are those of the environment `agent`."""
    if name not in AGENT_PRESETS and "command" not in settings and "function" not in settings:
        raise ConfigError(
            f"there is no agent {name!r}; {format_suggestion(name, AGENT_PRESETS)}; or set what it runs: --set 'command=[python3, agent.py]'"
        )
    given = {"env": "bugfix", "timeout_s": 240.0, "idle_timeout_s": 120.0, "max_turns": 8, **settings}
    if name in AGENT_PRESETS:
        given["preset"] = name
    checks = _AgentChecks(given)
    yield "it starts and calls the model", checks.check_start
    yield "a policy solves tasks with its tools", checks.check_solutions
    yield "each sampled token is in the episode once", lambda: describe_first_problem(checks.find_lost_tokens())
    yield "what it sends back is found again, not encoded again", lambda: describe_first_problem(checks.find_reencoded_turns())
    yield "log-probabilities are those of the model after the same tokens", checks.check_logprobs
    yield "an agent that is killed is verified", checks.check_killed_agent
    yield "a call after the end is refused", checks.check_late_call
    yield "the gateway agrees with its clients", lambda: describe_first_problem(iter(check_gateway()))


class RecordingSampler(Sampler):
    """Wraps a sampler and keeps each request with its completion."""

    def __init__(self, inner: Sampler) -> None:
        self.inner, self.traits, self.tokenizer = inner, inner.traits, inner.tokenizer
        self.samples: list[tuple[Request, Completion]] = []

    def setup(self, *given: Any, **more: Any) -> None:
        """Set up the other sampler."""
        self.inner.setup(*given, **more)

    def stream_completions(self, requests: Sequence[Request], sampling: SamplingParams) -> Iterator[tuple[int, Completion]]:
        """Yield the completions of the other sampler."""
        for place, completion in self.inner.stream_completions(requests, sampling):
            self.samples.append((requests[place], completion))
            yield place, completion

    def close(self) -> None:
        """Close the other sampler."""
        self.inner.close()


class _AgentChecks:
    """The checks of one agent; it plays as soon as the first check needs that."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self.settings = dict(settings)

    @cached_property
    def scripted(self) -> tuple[list[Episode], RecordingSampler]:
        """The episodes of the scripted policy."""
        return self._play(None, LIMITS)

    @cached_property
    def model(self) -> Any:
        """The tiny model without training."""
        return make_tiny_model(LIMITS["max_length"])

    @cached_property
    def noise(self) -> tuple[list[Episode], RecordingSampler]:
        """The episodes of the tiny model."""
        sampler = build("sampler", "hf")
        sampler.update_from_model(self.model, 0)
        return self._play(sampler, NOISE_LIMITS)

    def _play(self, sampler: Sampler | None, limits: Mapping[str, Any], **settings: Any) -> tuple[list[Episode], RecordingSampler]:
        env = build("env", "agent", **{**self.settings, **settings})
        try:
            tasks = [env.task("train", index) for index in range(NUM_TASKS)]
            recording = RecordingSampler(sampler or build("sampler", "function", function=make_scripted_policy(env.env, tasks)))
            with Rollout(env, "bytes", recording, max_open_sessions=2, **limits) as rollout:
                return [episode for [episode] in rollout.sample(tasks, seed=1)], recording
        finally:
            env.close()

    def check_start(self) -> str:
        """Check that episodes have turns and a score."""
        for episode in self.scripted[0]:
            if not episode.is_scored:
                return episode.error
            if not episode.turns:
                return f"{episode.task_id} has no turn"
        return ""

    def check_solutions(self) -> str:
        """Check that the scripted policy gets full scores."""
        episodes, recording = self.scripted
        offered = {tool.name for request, _ in recording.samples if request.chat_prompt for tool in request.chat_prompt.tools}
        if not offered & set(SHELL_TOOLS):
            raise CheckSkipped(
                f"it offers no shell that this kit knows ({', '.join(SHELL_TOOLS)}); its tools: {', '.join(sorted(offered))}"
            )
        return describe_first_problem(
            f"{episode.task_id} has the score {episode.reward:g}: {episode.meta.get('trouble') or episode.error or episode.text[-200:]}"
            for episode in episodes
            if episode.reward != 1.0
        )

    def find_lost_tokens(self) -> Iterator[str]:
        """Yield each turn that was sampled and is missing, repeated, reordered or changed in its episode, and what was never sampled."""
        for kind, (episodes, recording) in (("scripted", self.scripted), ("noise", self.noise)):
            by_task: dict[str, list[Completion]] = {}
            for request, completion in recording.samples:
                assert request.task is not None
                by_task.setdefault(request.task.id, []).append(completion)
            for episode in episodes:
                turns = [(episode.tokens[start:end], episode.logprobs[start:end]) for start, end in episode.turn_spans]
                sampled = by_task.get(episode.task_id, [])
                if len(turns) != len(sampled):
                    yield f"{kind}: {len(sampled)} turns of {episode.task_id} were sampled, and the episode has {len(turns)}"
                for number, ((tokens, logprobs), completion) in enumerate(zip(turns, sampled, strict=False)):
                    is_cut = episode.stop_reason is StopReason.TRUNCATED and number == len(turns) - 1
                    length = len(tokens) if is_cut else len(completion.tokens)
                    if (tokens, logprobs) != (completion.tokens[:length], completion.logprobs[:length]):
                        yield f"{kind}: turn {number} of {episode.task_id} is not as it was sampled"
                if sum(len(tokens) for tokens, _ in turns) != episode.num_policy_tokens:
                    yield f"{kind}: {episode.task_id} has {episode.num_policy_tokens} tokens of the policy, and its turns have others"

    def find_reencoded_turns(self) -> Iterator[str]:
        """Yield the turns that came back in a conversation, and whose tokens are not in the prompt of that call."""
        for _, recording in (self.scripted, self.noise):
            earlier: dict[str, list[Completion]] = {}
            for request, completion in recording.samples:
                assert request.task is not None and request.chat_prompt is not None
                known = earlier.setdefault(request.task.id, [])
                for message in request.chat_prompt.messages:
                    text = str(message.get("content") or "").strip()
                    if message["role"] != "assistant" or len(text) < LEAST_CHARACTERS:
                        continue
                    wrote = [past for past in known if text in _decode(past.tokens)]
                    if wrote and not any(_contains(request.prompt, past.tokens) for past in wrote):
                        yield f"a turn of {request.task.id} came back and was encoded again: {text[:80]!r}"
                known.append(completion)

    def check_logprobs(self) -> str:
        """Compare the recorded log-probabilities with those of the model, in float32, branch by branch."""
        found = [measure_difference(self.model, episode) for episode in self.noise[0] if episode.num_policy_tokens]
        if not found:
            return "the model without training was asked for no token"
        worst = max(found, key=lambda value: math.inf if math.isnan(value) else value)
        return "" if worst <= MAX_DIFFERENCE else f"a log-probability is {worst:.2g} from that of the model; at most {MAX_DIFFERENCE:g}"

    def check_killed_agent(self) -> str:
        """Check that an agent that reaches its limit of turns has a verdict."""
        episodes, _ = self._play(None, LIMITS, max_turns=1)
        return describe_first_problem(f"{e.task_id} has no score: {e.error}" for e in episodes if not e.is_scored)

    def check_late_call(self) -> str:
        """Check that the key of an episode opens nothing once that is over."""
        clients: list[RecordingClient] = []

        def watch(calls: Any, inner: Session | None) -> Any:
            clients.append(RecordingClient(f"{env._get_gateway().url}/v1", calls.secret))
            return None

        env = build("env", "agent", **self.settings)
        try:
            task = env.task("train", 0)
            session = env.new_session(task, seed=0)
            start = session._start
            session._start = lambda calls, inner: (watch(calls, inner), start(calls, inner))[1]
            session.start_tools()
            session.close()
            try:
                clients[0].ask([{"role": "user", "content": "late"}])
            except (OSError, http.client.HTTPException) as error:
                return "" if "status 401" in str(error) else f"it was refused by {error}; status 401 is needed"
            return "it got an answer"
        finally:
            env.close()


def _decode(tokens: Sequence[int]) -> str:
    from rlvr.mdp.tokenizers import ByteTokenizer

    return ByteTokenizer().decode(list(tokens))


def _contains(tokens: Sequence[int], part: Sequence[int]) -> bool:
    size, first = len(part), part[0]
    return any(tokens[at] == first and list(tokens[at : at + size]) == list(part) for at in range(len(tokens) - size + 1))


def make_scripted_policy(env: Environment, tasks: Sequence[Any]) -> Callable[..., Any]:
    """Make a policy that writes the right file of a task of `bugfix` with the agent's shell, and then says that it is ready."""
    fixes: dict[str, tuple[str, str]] = {}
    for task in tasks:
        turns = env.oracle_turns(task)
        correction = turns[0] if turns else None
        assert isinstance(correction, Call)
        arguments: Any = correction.arguments
        fixes[str(task.meta["name"])] = (arguments["path"], arguments["text"])

    def answer(messages: Any, tools: Any) -> Any:
        whole = "\n".join(str(message.get("content") or "") for message in messages)
        found = next((fix for name, fix in fixes.items() if name in whole), None)
        specs = {tool["function"]["name"]: tool["function"]["parameters"] for tool in tools}
        shell = next((name for name in SHELL_TOOLS if name in specs), None)
        if found is None or shell is None:
            return "a title"
        path, text = found
        is_written = any(WRITTEN in str(message.get("content") or "") for message in messages if message["role"] != "assistant")
        if is_written and FINISH_TOOL in specs:
            return {"content": "", "tool_calls": [{"function": {"name": FINISH_TOOL, "arguments": {"answer": "ready"}}}]}
        if is_written and "COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT" not in whole:
            return "The file is corrected, and I am ready."
        command = f"echo {base64.b64encode(text.encode()).decode()} | base64 -d > {path} && echo {WRITTEN}"
        return {
            "content": "I correct the file now.",
            "tool_calls": [
                {"function": {"name": shell, "arguments": _fill_arguments(specs[shell], FINISH_COMMAND if is_written else command)}}
            ],
        }

    return answer


def _fill_arguments(parameters: Mapping[str, Any], command: str) -> dict[str, Any]:
    """Return the arguments of a shell tool for a command, with some value for each other required one."""
    known = parameters["properties"]
    key = "command" if "command" in known else "cmd"
    arguments: dict[str, Any] = {key: ["bash", "-lc", command] if known[key].get("type") == "array" else command}
    for name in parameters.get("required", ()):
        arguments.setdefault(name, {"boolean": False, "number": 1, "integer": 1}.get(known[name].get("type"), "run it"))
    return arguments


def make_tiny_model(max_length: int) -> Any:
    """Make a model without training for the tokenizer `bytes`, the same each time."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from rlvr.mdp.tokenizers import ByteTokenizer

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=ByteTokenizer().vocab_size, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        max_position_embeddings=max_length,
    )  # fmt: skip
    return LlamaForCausalLM(config).eval()


def measure_difference(model: Any, episode: Episode) -> float:
    """Return the largest distance of a recorded log-probability from that of the model after the tokens before it in its branch."""
    import torch

    worst = 0.0
    for branch in episode.branches:
        places = [place for start, end in branch for place in range(start, end)]
        acted = [at for at, place in enumerate(places) if episode.action_mask[place]]
        if not acted:
            continue
        ids = torch.tensor([[episode.tokens[place] for place in places]])
        with torch.no_grad():
            logprobs = torch.log_softmax(model(ids).logits[0].float(), -1)
        for at in acted:
            difference = abs(float(logprobs[at - 1, ids[0, at]]) - episode.logprobs[places[at]])
            worst = difference if math.isnan(difference) else max(worst, difference)
            if math.isnan(worst):
                return worst
    return worst
