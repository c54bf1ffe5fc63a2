"""The environment `agent` with programs: what they get, what they leave, and how they end."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest

import rlvr
from rlvr.envs import agent as agent_module
from rlvr.episode import Episode, StopReason
from rlvr.errors import ConfigError
from rlvr.gateway.agents import EPISODE_VARIABLE
from rlvr.gateway.presets import AGENT_PRESETS

ASK = """
import json, os, sys, urllib.request

def ask(messages, **more):
    request = urllib.request.Request(
        os.environ["OPENAI_BASE_URL"] + "/chat/completions",
        json.dumps({"messages": messages, **more}).encode(),
        {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]},
    )
    return json.load(urllib.request.urlopen(request))["choices"][0]["message"]

def user(text):
    return {"role": "user", "content": text}
"""


MARK = f"RLVR_TEST_OF={os.getpid()}"
"""In the environment of each program that these tests start."""


def play(source: str, answers: list[str], *, env: Any = "arithmetic", num_tasks: int = 1, **settings: Any) -> list[Episode]:
    name, _, value = MARK.partition("=")
    variables = {name: value, **settings.pop("variables", {})}
    command = [sys.executable, "-c", ASK + source, "{task}"]
    made = rlvr.make_env("agent", env=env, command=command, trusted=True, variables=variables, **settings)
    with rlvr.Rollout(made, "bytes", {"name": "scripted", "answers": answers}, max_length=20_000) as rollout:
        found = [e for [e] in rollout.sample([made.task("train", index) for index in range(num_tasks)], seed=1)]
    made.close()
    return found


def find_processes() -> list[str]:
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            if MARK.encode() in (place / "environ").read_bytes():
                found.append((place / "cmdline").read_bytes().decode())
        except OSError:
            continue
    return found


def test_a_program_asks_and_its_last_answer_is_verified(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    [episode] = play("ask([user(sys.argv[1])])", ["11"])
    assert (episode.reward, episode.turns, episode.text) == (1.0, 1, "11")
    assert not find_processes()
    for _ in range(100):  # the folder is deleted once the program is gone
        if not list(tmp_path.iterdir()):
            break
        time.sleep(0.05)
    assert not list(tmp_path.iterdir())


def test_what_a_program_is_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    secrets = ("SOME_API_KEY", "TOKEN", "PGPASSWORD", "MYSQL_PWD", "DATABASE_URL", "GOOGLE_APPLICATION_CREDENTIALS", "SSH_AUTH_SOCK")
    for name in secrets:
        monkeypatch.setenv(name, "a secret of the user")
    monkeypatch.setenv("NO_PROXY", "intranet")
    monkeypatch.setenv("HARMLESS", "shown")
    source = """
from pathlib import Path
assert "a secret of the user" not in os.environ.values() and os.environ["NO_PROXY"] == "intranet,127.0.0.1,localhost"
assert os.environ["HARMLESS"] == "shown" and os.environ["MINE"] == "policy"
assert Path.home() != Path.cwd() and os.environ["PWD"] == os.getcwd()
assert (Path.home() / "conf/a.toml").read_text() == "url=" + os.environ["ANTHROPIC_BASE_URL"]
assert json.loads(Path(os.environ["TASK"]).read_text())["messages"] == [user(sys.argv[1])]
assert sys.stdin.read() == "the task: " + sys.argv[1]
ask([user(sys.argv[1])])
"""
    [episode] = play(
        source,
        ["11"],
        stdin="the task: {task}",
        variables={"MINE": "{model}", "TASK": "{task_file}"},
        files={"conf/a.toml": "url={url}"},
    )
    assert episode.reward == 1.0 and "trouble" not in episode.meta


def test_a_program_that_cannot_be_started_leaves_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    made = rlvr.make_env("agent", env="arithmetic", command=["true", "x" * 200_000], trusted=True)
    with rlvr.Rollout(made, "bytes", {"name": "scripted", "answers": ["11"]}) as rollout:
        [[episode]] = rollout.sample(made.task("train", 0), seed=1)
    made.close()
    assert not episode.is_scored and "Argument list too long" in episode.error and not list(tmp_path.iterdir())


def test_files_of_the_task_are_there_and_are_verified() -> None:
    source = """
import re
from pathlib import Path
[path] = [path for path in Path(".").rglob("*.py") if path.name == "dates.py"]
ask([user(sys.argv[1])])
path.write_text(FIXED)
"""
    env = rlvr.make_env("bugfix", kinds=["dates"])
    turns: Any = env.oracle_turns(env.task("train", 0))
    fixed = turns[0].arguments["text"]
    env.close()
    [right] = play(f"FIXED = {fixed!r}\n{source}", ["ready"], env={"name": "bugfix", "kinds": ["dates"]})
    [wrong] = play(f"FIXED = 'x = 1'\n{source}", ["ready"], env={"name": "bugfix", "kinds": ["dates"]})
    assert (right.reward, wrong.reward) == (1.0, 0.0) and right.is_scored and wrong.is_scored


@pytest.mark.parametrize(
    ("ending", "words"),
    [
        ("sys.exit(3)", "exit code 3"),
        ("os.kill(os.getpid(), 9)", "SIGKILL"),
        ("raise ValueError('no')", "exit code 1"),
    ],
)
def test_a_program_that_crashes_is_verified_and_says_how_it_ended(ending: str, words: str) -> None:
    [episode] = play(f"ask([user(sys.argv[1])]); {ending}", ["11"])
    assert episode.reward == 1.0 and words in episode.meta["trouble"]
    [silent] = play(f"print('what went wrong'); {ending}", ["11"])
    assert silent.stop_reason is StopReason.FAILED and words in silent.error and "before it called the model" in silent.error
    assert not silent.is_scored


def test_what_a_program_starts_does_not_outlive_its_episode() -> None:
    source = """
import subprocess
subprocess.Popen(["sleep", "600"], start_new_session=True)
subprocess.Popen(["sleep", "600"])
ask([user(sys.argv[1])])
"""
    began = time.monotonic()
    [episode] = play(source, ["11"])
    assert episode.reward == 1.0 and not find_processes() and time.monotonic() - began < 60


def test_a_program_that_hangs_is_ended_and_verified() -> None:
    [episode] = play("ask([user(sys.argv[1])])\nimport time; time.sleep(600)", ["11"], idle_timeout_s=1.0)
    assert episode.reward == 1.0 and "called nothing for 1 s" in episode.meta["trouble"] and not find_processes()


def test_parallel_calls_of_one_program_are_answered_one_after_the_other() -> None:
    source = """
from concurrent.futures import ThreadPoolExecutor
with ThreadPoolExecutor(8) as pool:
    texts = [m["content"] for m in pool.map(lambda n: ask([user(f"question number {n} of eight")]), range(8))]
assert len(texts) == 8
ask([user(sys.argv[1])])
"""
    episodes = play(source, ["11"], num_tasks=4)
    assert [len(e.branches) for e in episodes] == [9] * 4 and [e.turns for e in episodes] == [9] * 4
    assert all("trouble" not in e.meta for e in episodes)


def test_episodes_do_not_see_each_other() -> None:
    """Each program is told its own task, and gets answers to its own question alone."""
    source = """
for number in range(4):
    text = ask([user(f"{sys.argv[1]} again {number}")])["content"]
    assert text == f"{sys.argv[1]} again {number}", text
"""
    made = rlvr.make_env("agent", env="arithmetic", command=[sys.executable, "-c", ASK + source, "{task}"], trusted=True)
    sampler = {"name": "function", "function": lambda prompt: prompt}
    with rlvr.Rollout(made, "bytes", sampler) as rollout:
        episodes = [e for [e] in rollout.sample([made.task("train", index) for index in range(6)], seed=1)]
    made.close()
    assert all("trouble" not in e.meta and e.turns == 4 for e in episodes)


def test_what_cannot_be_started_is_said_at_once() -> None:
    for settings, words in (
        ({}, "a preset, a command or a function"),
        ({"command": ["true"], "function": print}, "exactly one"),
        ({"command": "true"}, "it must be a list of a program"),
        ({"command": ["no-such-program"], "trusted": True}, "'no-such-program' of the agent was not found"),
        ({"preset": "codexx"}, "did you mean 'codex'"),
        ({"command": ["true"], "trusted": True, "timeout_s": 0}, "timeout_s is 0"),
        ({"command": ["true", "{tsk}"], "trusted": True}, "did you mean {task}"),
        ({"function": lambda client: None}, "a function agent.client, task."),
    ):
        with pytest.raises(ConfigError, match=words):
            rlvr.make_env("agent", env="arithmetic", **settings)


def test_a_preset_that_is_not_installed_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    for name, preset in AGENT_PRESETS.items():
        with pytest.raises(ConfigError, match=preset.install.replace("-", ".")):
            rlvr.make_env("agent", env="arithmetic", preset=name, trusted=True)


def test_a_value_with_a_placeholder_in_it_is_not_replaced() -> None:
    assert (
        agent_module._fill("{task} {url}", {"task": "say {url} and {key}", "url": "http://a", "key": "k"}) == "say {url} and {key} http://a"
    )
    assert os.environ.get(EPISODE_VARIABLE) is None


def test_tasks_with_files_are_evaluated() -> None:
    """An evaluation prepares the sandboxes of an environment first; the folder of a program needs none."""
    env = rlvr.make_env(
        "agent", env={"name": "bugfix"}, command=[sys.executable, "-c", ASK + "ask([user(sys.argv[1])])", "{task}"], trusted=True
    )
    report = rlvr.evaluate(env, policy=lambda prompt: "ready", tasks=1)
    env.close()
    [sample] = report.samples
    assert sample.score == 0.0, sample
