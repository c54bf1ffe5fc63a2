"""Agents that are known to run unmodified: how each is started, so that its calls reach the gateway.

Versions are those that were tried. An agent is not installed by rlvr: each entry says how.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

CODEX_SETTINGS = """\
model_provider = "rlvr"
[model_providers.rlvr]
name = "rlvr"
base_url = "{url}/v1"
env_key = "OPENAI_API_KEY"
wire_api = "responses"
"""
OPENCODE_SETTINGS = {
    "provider": {
        "rlvr": {
            "npm": "@ai-sdk/openai-compatible",
            "options": {"baseURL": "{url}/v1", "apiKey": "{key}"},
            "models": {"{model}": {"name": "{model}"}},
        }
    },
    "permission": "allow",
    "autoupdate": False,
    "share": "disabled",
}
PI_SETTINGS = {
    "providers": {
        "rlvr": {"baseUrl": "{url}/v1", "apiKey": "OPENAI_API_KEY", "api": "openai-completions", "models": [{"id": "{model}"}]},
    }
}


@dataclass(frozen=True, slots=True)
class AgentPreset:
    """How an agent is started: its command, variables and the files of its home, with the placeholders of the environment `agent`.

    >>> AGENT_PRESETS["codex"].command[0]
    'codex'
    """

    command: tuple[str, ...]
    version: str
    """The version that was tried."""
    install: str
    """How it is installed."""
    variables: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)


AGENT_PRESETS: Mapping[str, AgentPreset] = {
    "claude_code": AgentPreset(
        ("claude", "-p", "{task}", "--dangerously-skip-permissions", "--model", "{model}"),
        "2.1.332",
        "npm install -g @anthropic-ai/claude-code",
        # IS_SANDBOX: as root it starts only where it is told that something else isolates it
        {"IS_SANDBOX": "1", "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1", "DISABLE_AUTOUPDATER": "1", "DISABLE_TELEMETRY": "1"},
    ),
    "codex": AgentPreset(
        ("codex", "exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox", "-m", "{model}", "{task}"),
        "0.171.0",
        "npm install -g @openai/codex",
        files={".codex/config.toml": CODEX_SETTINGS},
    ),
    "mini_swe_agent": AgentPreset(
        ("mini", "-t", "{task}", "-y", "--exit-immediately", "-m", "openai/{model}"),
        "2.4.6",
        "pip install mini-swe-agent",
        {"MSWEA_CONFIGURED": "true", "MSWEA_COST_TRACKING": "ignore_errors", "MSWEA_SILENT_STARTUP": "1"},
    ),
    "opencode": AgentPreset(
        ("opencode", "run", "-m", "rlvr/{model}", "{task}"),
        "1.18.33",
        "npm install -g opencode-ai",
        files={".config/opencode/opencode.json": json.dumps(OPENCODE_SETTINGS)},
    ),
    "pi": AgentPreset(
        ("pi", "-p", "--provider", "rlvr", "--model", "{model}", "{task}"),
        "0.73.1",
        "npm install -g @mariozechner/pi-coding-agent",
        files={".pi/agent/models.json": json.dumps(PI_SETTINGS)},
    ),
    "qwen_code": AgentPreset(("qwen", "-y", "-p", "{task}"), "0.24.4", "npm install -g @qwen-code/qwen-code", {"OPENAI_MODEL": "{model}"}),
}
