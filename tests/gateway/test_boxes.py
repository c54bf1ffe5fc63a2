"""Agents in boxes: they reach the gateway and nothing else, and how they end is data, unless the box failed."""

from __future__ import annotations

import os
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import rlvr
from rlvr.contracts import ExecutionResult, ExitStatus, ToolSession
from rlvr.episode import Episode
from rlvr.errors import ConfigError
from rlvr.gateway import server as gateway_server
from rlvr.gateway.boxes import BoxAgent, get_place_in_box, prepare_command
from rlvr.gateway.server import Gateway
from rlvr.sandbox._outside.sessions import PooledSandboxSession
from tests.gateway.test_agent_env import ASK

BOXES = [
    pytest.param("docker", marks=pytest.mark.docker),
    pytest.param("bubblewrap", marks=pytest.mark.bubblewrap),
]
FIX = """
from pathlib import Path
[path] = [path for path in Path(".").rglob("*.py") if path.name == "dates.py"]
ask([user(sys.argv[1])])
path.write_text(FIXED)
"""


def play(
    source: str, answers: Any, sandbox: Any, *, env: Any = "arithmetic", num_tasks: int = 1, seed: int = 1, **settings: Any
) -> list[Episode]:
    command = settings.pop("command", None) or ["python3", "-c", ASK + source, "{task}"]
    made = rlvr.make_env("agent", env=env, command=command, sandbox=sandbox, **settings)
    sampler = answers if callable(answers) else {"name": "scripted", "answers": answers}
    with rlvr.Rollout(made, "bytes", sampler, max_length=20_000) as rollout:
        found = [e for [e] in rollout.sample([made.task("train", index) for index in range(num_tasks)], seed=seed)]
    made.close()
    return found


def read_fix() -> str:
    env = rlvr.make_env("bugfix", kinds=["dates"])
    turns: Any = env.oracle_turns(env.task("train", 0))
    env.close()
    return str(turns[0].arguments["text"])


@pytest.mark.parametrize("sandbox", BOXES)
def test_an_agent_in_a_box_asks_and_its_files_are_verified(sandbox: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        monkeypatch.setattr(gateway_server, "FOLDERS", folder)
        [episode] = play("ask([user(sys.argv[1])])", ["11"], sandbox)
        assert (episode.reward, episode.turns, episode.text) == (1.0, 1, "11")
        assert os.listdir(folder) == []
        monkeypatch.undo()
    files = {"name": "bugfix", "kinds": ["dates"]}
    [right] = play(f"FIXED = {read_fix()!r}\n{FIX}", ["ready"], sandbox, env=files)
    [wrong] = play(f"FIXED = 'x = 1'\n{FIX}", ["ready"], sandbox, env=files)
    assert (right.reward, wrong.reward) == (1.0, 0.0) and right.is_scored and wrong.is_scored


@pytest.mark.parametrize("sandbox", BOXES)
def test_what_an_agent_in_a_box_has(sandbox: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_VARIABLE", "of the user")
    source = """
import socket
from pathlib import Path
assert "of the user" not in os.environ.values() and os.environ["MINE"] == "policy"
assert Path.home() != Path.cwd() and os.listdir(".") == []
assert (Path.home() / "conf/a.toml").read_text() == "url=" + os.environ["ANTHROPIC_BASE_URL"]
assert json.loads(Path(os.environ["TASK"]).read_text())["messages"] == [user(sys.argv[1])]
assert sys.stdin.read() == "the task: " + sys.argv[1]
assert os.listdir("/rlvr-gateway") == ["socket"] and not os.access("/rlvr-gateway", os.W_OK)
for port in (22, 80, int(sys.argv[2])):
    try:
        socket.create_connection(("127.0.0.1", port), 5)
        raise SystemExit("a port of the machine is open in the box")
    except ConnectionRefusedError:
        pass
assert sys.argv[3][1:] and not Path(sys.argv[3][1:]).exists()
ask([user(sys.argv[1])])
"""
    with Gateway() as other:
        [episode] = play(
            source,
            ["11"],
            sandbox,
            command=["python3", "-c", ASK + source, "{task}", other.url.rpartition(":")[2], "@" + str(tmp_path)],
            stdin="the task: {task}",
            variables={"MINE": "{model}", "TASK": "{task_file}"},
            files={"conf/a.toml": "url={url}"},
        )
    assert episode.reward == 1.0 and "trouble" not in episode.meta, (episode.error, episode.meta)


@pytest.mark.parametrize("sandbox", BOXES)
@pytest.mark.parametrize(
    ("ending", "words"),
    [
        ("sys.exit(3)", "exit code 3"),
        ("os.kill(os.getpid(), 9)", "ended"),
        ("os.kill(os.getppid(), 9); import time; time.sleep(30)", "ended"),
        ("import time; time.sleep(1000)", "called nothing for 2 s"),
        ("x = b'x' * (900 << 20)", "more than 600 MB"),
    ],
)
def test_an_agent_that_ends_badly_is_verified_and_says_how(sandbox: str, ending: str, words: str) -> None:
    files = {"name": "bugfix", "kinds": ["dates"]}
    settings: dict[str, Any] = {"env": files, "idle_timeout_s": 2 if "1000" in ending else 100, "memory_mb": 600, "disk_mb": 64}
    [episode] = play(f"FIXED = {read_fix()!r}\n{FIX}\n{ending}", ["ready"], sandbox, **settings)
    assert episode.reward == 1.0 and words in episode.meta["trouble"]


@pytest.mark.parametrize("sandbox", BOXES)
def test_what_an_agent_starts_in_a_box_ends_with_its_episode(sandbox: str) -> None:
    source = "import subprocess; subprocess.Popen(['setsid', 'sleep', '98765']); ask([user(sys.argv[1])])"
    env = rlvr.make_env("agent", env="bugfix", command=["python3", "-c", ASK + source, "{task}"], sandbox=sandbox)
    with rlvr.Rollout(env, "bytes", {"name": "scripted", "answers": ["11"]}, max_length=20_000) as rollout:
        [[episode]] = rollout.sample(env.task("train", 0), seed=1)
        deadline = time.monotonic() + 30  # the sandbox is still open
        while time.monotonic() < deadline and any(b"98765" in _read(place) for place in Path("/proc").glob("[0-9]*/cmdline")):
            time.sleep(0.1)
        assert not any(b"98765" in _read(place) for place in Path("/proc").glob("[0-9]*/cmdline"))
    env.close()
    assert episode.is_scored


def _read(place: Path) -> bytes:
    try:
        return place.read_bytes()
    except OSError:
        return b""


@pytest.mark.bubblewrap
def test_a_box_that_fails_is_no_fault_of_the_agent(monkeypatch: pytest.MonkeyPatch) -> None:
    run = PooledSandboxSession.run

    def fail(self: Any, source: Any, **given: Any) -> ExecutionResult:
        if "open_unix_connection" in str(source):
            run(self, ["sleep", "1"])
            return ExecutionResult(ExitStatus.INTERNAL_ERROR, reason="the kernel is gone")
        return run(self, source, **given)

    monkeypatch.setattr(PooledSandboxSession, "run", fail)
    [episode] = play("ask([user(sys.argv[1])])", ["11"], "bubblewrap")
    assert not episode.is_scored and "the box of the agent failed: the kernel is gone" in episode.error


@pytest.mark.bubblewrap
def test_a_program_that_its_box_has_not_is_said() -> None:
    [episode] = play("", ["11"], "bubblewrap", command=["no_such_agent", "{task}"])
    assert not episode.is_scored and "the program 'no_such_agent' of the agent is not in its box" in episode.error
    made = rlvr.make_env("agent", env="arithmetic", preset="codex", sandbox="bubblewrap")
    assert made.describe_size("train")
    made.close()


@pytest.mark.bubblewrap
def test_many_agents_share_few_boxes() -> None:
    episodes = play("ask([user(sys.argv[1])])", ["11"] * 12, {"name": "bubblewrap", "max_sessions": 2}, num_tasks=12)
    assert all(e.is_scored for e in episodes) and episodes[0].reward == 1.0


@pytest.mark.parametrize("sandbox", BOXES)
def test_what_an_agent_left_changes_no_file_after_its_end(sandbox: str, monkeypatch: pytest.MonkeyPatch) -> None:
    source = f"""
FIXED = {read_fix()!r}
import subprocess
from pathlib import Path
[path] = [path for path in Path(".").rglob("*.py") if path.name == "dates.py"]
ask([user(sys.argv[1])])
code = "import sys, time; open('began', 'w'); time.sleep(2); open(sys.argv[1], 'w').write(sys.argv[2])"
subprocess.Popen([sys.executable, "-c", code, str(path), FIXED], start_new_session=True, stdout=subprocess.DEVNULL)
while not Path("began").exists():
    pass
"""
    plain = ToolSession.artifacts

    def take_time(self: ToolSession) -> Any:
        time.sleep(4)
        return plain(self)

    monkeypatch.setattr(ToolSession, "artifacts", take_time)
    [episode] = play(source, ["ready"], sandbox, env={"name": "bugfix", "kinds": ["dates"]})
    assert episode.is_scored and episode.reward == 0.0


@pytest.mark.bubblewrap
def test_what_an_agent_left_does_not_call_beyond_its_timeout() -> None:
    source = """
import os, socket, time

def ask_without_launcher():
    with socket.socket(socket.AF_UNIX) as channel:
        channel.connect("/rlvr-gateway/socket")
        body = json.dumps({"messages": [user(sys.argv[1])]}).encode()
        head = f"POST /v1/chat/completions HTTP/1.1\\r\\nHost: a\\r\\nAuthorization: Bearer {os.environ['OPENAI_API_KEY']}\\r\\n"
        channel.sendall(head.encode() + f"Connection: close\\r\\nContent-Length: {len(body)}\\r\\n\\r\\n".encode() + body)
        while channel.recv(4096):
            pass

for _ in range(8):  # one of their calls always waits
    if os.fork() == 0:
        os.setsid()
        while True:
            ask_without_launcher()
time.sleep(1)
os.kill(os.getppid(), 9)
time.sleep(60)
"""

    def answer_slowly(prompt: str) -> str:
        time.sleep(0.5)
        return "11"

    [episode] = play(source, answer_slowly, "bubblewrap", env="bugfix", timeout_s=4, max_turns=60)
    assert "had run for 4 s" in episode.meta["trouble"] and episode.turns < 30


@pytest.mark.parametrize("sandbox", BOXES)
def test_a_box_that_opens_connections_without_end_takes_few_descriptors_and_keeps_its_own_0(sandbox: str) -> None:
    source = """
import socket, time
kept = []
for _ in range(900):
    try:
        one = socket.socket(socket.AF_UNIX)
        one.connect("/rlvr-gateway/socket")
        kept.append(one)
    except OSError:
        break
time.sleep(1)
print(len(kept))
kept.clear()
for _ in range(20):
    try:
        ask([user(sys.argv[1])])
        break
    except OSError:
        time.sleep(0.3)
"""
    before, seen, done = len(os.listdir("/proc/self/fd")), [0], threading.Event()

    def watch() -> None:
        while not done.wait(0.02):
            seen[0] = max(seen[0], len(os.listdir("/proc/self/fd")) - before)

    watcher = threading.Thread(target=watch)
    watcher.start()
    [episode] = play(source, ["12"], sandbox)
    done.set()
    watcher.join()
    assert episode.is_scored and episode.reward == 0.0 and 20 < seen[0] < 700


def test_what_a_command_needs_is_found_by_where_its_program_is(tmp_path: Path) -> None:
    assert prepare_command(["bash", "a task"]).mounts == {} == prepare_command(["no_such_agent"]).mounts
    package = tmp_path / "npm" / "node_modules" / "agent"
    (package / "bin").mkdir(parents=True)
    script = package / "bin" / "run.js"
    script.write_text("#!/usr/bin/env node\n")
    script.chmod(0o755)
    (tmp_path / "npm" / "bin").mkdir()
    (tmp_path / "npm" / "bin" / "agent").symlink_to(script)
    found = prepare_command([str(tmp_path / "npm" / "bin" / "agent"), "x"])
    assert found.words == (get_place_in_box(str(script)), "x")
    assert found.mounts[get_place_in_box(str(tmp_path / "npm" / "node_modules"))] == str(tmp_path / "npm" / "node_modules")
    venv = Path(sys.executable).parents[1]
    other = tmp_path / "venv"
    (other / "bin").mkdir(parents=True)
    (other / "pyvenv.cfg").touch()
    (other / "bin" / "python").symlink_to(sys.executable)
    (other / "bin" / "agent").write_text("#!/usr/bin/env python3\n")
    (other / "bin" / "agent").chmod(0o755)
    (tmp_path / "agent").symlink_to(other / "bin" / "agent")  # as pipx links a program into a folder of the PATH
    found = prepare_command([str(tmp_path / "agent")])
    assert found.words == (get_place_in_box(str(other / "bin" / "agent")),) and get_place_in_box(str(other)) in found.mounts
    found = prepare_command([sys.executable])
    assert found.mounts[get_place_in_box(str(venv))] == str(venv) and found.path == (get_place_in_box(str(venv / "bin")),)


def test_the_files_that_a_command_names_are_mounted_also_from_a_temporary_folder(tmp_path: Path) -> None:
    here = Path(__file__).resolve()
    (tmp_path / "ask.py").touch()
    found = prepare_command(["bash", str(here), f"--conf={tmp_path / 'ask.py'}", "/usr/bin/env", "/no/such/file", "/", "a task"])
    place = f"/outside{tmp_path}/ask.py"
    assert found.mounts == {get_place_in_box(str(here)): str(here), place: str(tmp_path / "ask.py")}
    assert found.words == ("bash", get_place_in_box(str(here)), f"--conf={place}", "/usr/bin/env", "/no/such/file", "/", "a task")
    script = tmp_path / "agent"
    script.write_text(f"#!{tmp_path}/bin/python\n")
    script.chmod(0o755)
    with pytest.raises(ConfigError, match=f"starts {tmp_path}/bin/python, and a box has folders /tmp, /dev, /proc, /sys of its own"):
        prepare_command([str(script)])


def test_an_interpreter_behind_a_script_that_chooses_it_is_found(tmp_path: Path) -> None:
    shim = tmp_path / "python3"
    shim.write_text(f'#!/bin/bash\nexec {sys.executable} "$@"\n')
    shim.chmod(0o755)
    found = prepare_command([str(shim), "ask.py"])
    assert found.words[0] == "python3" and found.path == (get_place_in_box(f"{sys.base_prefix}/bin"),)


@pytest.mark.parametrize("sandbox", BOXES)
def test_a_script_in_a_temporary_folder_is_run_in_a_box(sandbox: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    tmp_path.chmod(0o755)  # as root, an agent is another user
    (tmp_path / "ask.py").write_text(ASK + "ask([user(sys.argv[1])]); assert __file__ == sys.argv[2] + '/ask.py'")
    [episode] = play("", ["11"], sandbox, command=["python3", "{here}/ask.py", "{task}", "{here}"])
    assert episode.reward == 1.0 and "trouble" not in episode.meta, (episode.error, episode.meta)


def test_an_agent_in_a_box_is_ended_with_its_call() -> None:
    class Box:
        """A session whose call ends when it is stopped."""

        def __init__(self) -> None:
            self.is_stopped = False

        def write_file(self, path: str, data: Any) -> None: ...

        def run(self, source: Any, *, timeout: float) -> ExecutionResult:
            while not self.is_stopped:
                time.sleep(0.01)
            return ExecutionResult(ExitStatus.TIMEOUT, reason="the call was stopped")

        def stop_call(self) -> None:
            self.is_stopped = True

        def kill_processes(self) -> None:
            ends.append(2)

    ends: list[int] = []
    box: Any = Box()
    agent = BoxAgent(box, ["x"], variables={}, files={}, path=(), stdin="", timeout_s=1, on_end=lambda: ends.append(1))
    assert agent.get_end() is None
    agent.kill()
    agent.kill()
    assert agent.get_end() == "the agent was ended: the call was stopped" and ends == [1, 2]
