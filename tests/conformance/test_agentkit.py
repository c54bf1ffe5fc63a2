"""`rlvr check agent`: an agent that is sound passes, and faults that are planted in what lies between it and the policy are found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rlvr.conformance import agentkit, check_plugin, gatewaykit
from rlvr.errors import ConfigError
from rlvr.gateway import server as gateway_server
from rlvr.mdp.branches import ChatHistory
from rlvr.mdp.token_mdp import TokenMDP

AGENT = """
import json, os, subprocess, sys, urllib.request

TOOLS = [{"type": "function", "function": {"name": "bash", "parameters": {
    "type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]}}}]
messages = [{"role": "system", "content": "Work with bash."}, {"role": "user", "content": sys.argv[1]}]
for _ in range(6):
    body = json.dumps({"messages": messages, "tools": TOOLS}).encode()
    head = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]}
    request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", body, head)
    message = json.load(urllib.request.urlopen(request))["choices"][0]["message"]
    messages.append(message)
    if not message.get("tool_calls"):
        if len(messages) > 5 or "ready" in message["content"]:
            break
        messages.append({"role": "user", "content": "Go on."})
    for call in message.get("tool_calls") or ():
        try:
            command = json.loads(call["function"]["arguments"])["command"]
            done = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
            said = done.stdout + done.stderr
        except Exception as error:
            said = str(error)
        messages.append({"role": "tool", "tool_call_id": call["id"], "content": said})
"""


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    (tmp_path / "agent.py").write_text(AGENT)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(agentkit, "check_gateway", lambda: [])  # it has tests of its own
    return {"command": ["python3", "{here}/agent.py", "{task}"], "trusted": True}


def test_a_sound_agent_passes(settings: dict[str, Any]) -> None:
    checks = check_plugin("agent", "mine", **settings)
    assert [check.name for check in checks if not check.ok or check.skipped] == [], checks
    assert len(checks) == 8


def encode_again(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ChatHistory, "find_continued_turn", lambda self, request: None)


def change_episodes(change: Callable[[Any], Any]) -> Callable[[pytest.MonkeyPatch], None]:
    def apply(patch: pytest.MonkeyPatch) -> None:
        plain = TokenMDP.build_episode
        patch.setattr(TokenMDP, "build_episode", lambda self, *args, **more: change(plain(self, *args, **more)))

    return apply


def shift_logprobs(episode: Any) -> Any:
    return replace(episode, logprobs=[value - 0.001 if value else 0.0 for value in episode.logprobs])


def mask_last_token(episode: Any) -> Any:
    last = max((at for at, acted in enumerate(episode.action_mask) if acted), default=-1)
    return replace(episode, action_mask=[acted and at != last for at, acted in enumerate(episode.action_mask)])


def accept_every_key(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(gateway_server.Gateway, "unregister", lambda self, calls, reason: None)  # the episode stays open
    patch.setattr(gatewaykit, "TIMEOUT_S", 2.0)


@pytest.mark.parametrize(
    ("plant", "name"),
    [
        (encode_again, "what it sends back is found again, not encoded again"),
        (change_episodes(shift_logprobs), "log-probabilities are those of the model after the same tokens"),
        (change_episodes(shift_logprobs), "each sampled token is in the episode once"),
        (change_episodes(mask_last_token), "each sampled token is in the episode once"),
        (accept_every_key, "a call after the end is refused"),
    ],
)
def test_a_planted_fault_is_found(
    plant: Callable[[pytest.MonkeyPatch], None], name: str, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    [check] = [check for check in check_plugin("agent", "mine", **settings) if check.name == name]
    assert not check.ok and check.detail


def test_an_agent_that_cannot_work_says_why(settings: dict[str, Any]) -> None:
    broken = {**settings, "command": ["python3", "-c", "raise SystemExit('no model here')"]}
    [first, *_] = check_plugin("agent", "mine", **broken)
    assert not first.ok and "no model here" in first.detail
    with pytest.raises(ConfigError, match=r"there is no agent 'codexx'; did you mean 'codex'.*--set 'command="):
        check_plugin("agent", "codexx")
