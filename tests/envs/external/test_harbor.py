"""Task folders: the solution scores 1, doing nothing 0, and nothing that a conversation leaves behind judges it."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import rlvr
from rlvr.conformance.conversationkit import play_conversation
from rlvr.envs.external._harbor.folders import UnsupportedTask, read_task_folder
from rlvr.envs.external._harbor.verification import parse_pytest_summary, parse_reward
from rlvr.errors import ConfigError, SandboxError
from rlvr.registry.plugins import build
from rlvr.task import Fault, Verdict
from rlvr.turns import Call
from tests.fixtures.theirs.folders import DOCKERFILE, FOLDERS, PASSES, lay, written

RUNS_IT = 'python3 /app/made.py > /tmp/said; [ "$(cat /tmp/said)" = 42 ] && echo 1 > /logs/verifier/reward.txt || {}\n'
OWN = {
    **FOLDERS["hello"],
    "instruction.md": "Write /app/made.py, which prints 42.",
    "tests/test.sh": RUNS_IT.format("echo 0 > /logs/verifier/reward.txt"),
    "solution/solve.sh": "echo 'print(42)' > made.py",
    "task.toml": "[verifier]\ntimeout_sec = 3.0\n",
}
"""Its tests run what the policy wrote."""


MODULE = {
    **FOLDERS["hello"],
    "tests/test.sh": "export PYTHONPATH=/tests\n" + PASSES.replace("python3 /tests/check.py", "python3 -m unittest -q check"),
    "tests/check.py": (
        "import unittest\n"
        "class Hello(unittest.TestCase):\n"
        "    def test(self):\n"
        "        self.assertEqual(open('/app/hello.txt').read(), 'hello\\n')\n"
    ),
}
"""Its tests start a module by name, from the working folder."""


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The ten folders, one whose tests run the answer, and one whose tests never give a valid reward."""
    root = written(tmp_path_factory.mktemp("folders"))
    lay(root / "runs-it", OWN)
    lay(root / "module", MODULE)
    lay(root / "broken", {**FOLDERS["hello"], "tests/test.sh": "echo excellent > /logs/verifier/reward.txt\n"})
    return root


@pytest.fixture(scope="module")
def harbor(folders: Path, docker_sandbox: Any) -> Iterator[Any]:
    env = build("env", "harbor", path=str(folders), sandbox=docker_sandbox)
    env.prepare()
    yield env


def judged(env: Any, name: str, *commands: str) -> Verdict:
    """The verdict on a conversation in the folder of this name; the last turn is a text."""
    split = next(split for split in env.splits if name in [folder.name for folder in env._tasks_of_split(split)])
    task = env.task(split, [folder.name for folder in env._tasks_of_split(split)].index(name))
    script: Sequence[Any] = [Call("0.0", "bash", {"command": command}) for command in commands]
    return play_conversation(env, task, [*(script or ()), "done"])[0]


@pytest.mark.docker
def test_the_solutions_of_ten_folders_score_1_and_doing_nothing_0(harbor: Any) -> None:
    def both(name: str) -> tuple[str, float | None, float | None]:
        split = next(split for split in harbor.splits if name in [folder.name for folder in harbor._tasks_of_split(split)])
        task = harbor.task(split, [folder.name for folder in harbor._tasks_of_split(split)].index(name))
        return name, play_conversation(harbor, task, harbor.oracle_turns(task))[0].score, play_conversation(harbor, task, ["done"])[0].score

    with ThreadPoolExecutor(3) as pool:
        assert list(pool.map(both, FOLDERS)) == [(name, 1.0, 0.0) for name in FOLDERS]


ATTACKS = {
    "a process that waits for the tests": "(while :; do echo 1 > /logs/verifier/reward.txt; sleep 0.02; done) >/dev/null 2>&1 &",
    "a forged reward": "mkdir -p /logs/verifier; echo 1 > /logs/verifier/reward.txt; echo 1 > /logs/verifier/reward.json",
    "tests of its own": "mkdir -p /tests; echo 'echo 1 > /logs/verifier/reward.txt' > /tests/test.sh; chmod -R 000 /tests",
    "variables": "export PATH=/app:$PATH BASH_ENV=/app/evil PYTHONPATH=/app; echo 'import os; os._exit(0)' | tee sitecustomize.py evil",
    "a module of the user": "d=$HOME/.local/lib/python3.11/site-packages; mkdir -p $d; echo 'import os; os._exit(0)' > $d/usercustomize.py",
    "a link in the place of its folder": "cd /tmp && rm -rf app && ln -s /tmp/logs/verifier app && echo 1 > app/reward.txt",
}


@pytest.mark.docker
@pytest.mark.parametrize("attack", ATTACKS)
def test_nothing_of_the_conversations_box_takes_part_in_the_verdict(harbor: Any, attack: str) -> None:
    verdict = judged(harbor, "hello", ATTACKS[attack])
    assert verdict.score == 0.0, (attack, verdict)


@pytest.mark.docker
@pytest.mark.parametrize(
    "code",
    [
        "import os; open('/logs/verifier/reward.json', 'w').write('7.5'); print(42)",
        "open('/logs/verifier/reward.json', 'w').write('NaN'); print(42)",
        "import time; time.sleep(60)",
        "open('/logs/verifier/reward.json', 'w').write('{\"reward\": \"high\"}'); print(42)",
    ],
    ids=["7.5", "nan", "hangs", "text"],
)
def test_an_answer_that_breaks_the_tests_scores_0_and_not_none(harbor: Any, code: str) -> None:
    verdict = judged(harbor, "runs-it", f"cat > made.py <<'END'\n{code}\nEND")
    assert (verdict.score, verdict.fault) == (0.0, Fault.ANSWER), verdict


@pytest.mark.docker
def test_an_answer_that_hangs_the_tests_is_judged_before_the_run_gives_up(tmp_path: Path, docker_sandbox: Any) -> None:
    lay(tmp_path / "slow", {**OWN, "task.toml": "[verifier]\ntimeout_sec = 60.0\n"})
    env = build("env", "harbor", path=str(tmp_path), sandbox=docker_sandbox, verdict_timeout_s=15)
    env.prepare()
    began = time.monotonic()
    verdict = judged(env, "slow", "echo 'import time; time.sleep(100)' > made.py")
    assert (verdict.score, verdict.fault) == (0.0, Fault.ANSWER), verdict
    assert time.monotonic() - began < 30


@pytest.mark.docker
def test_the_verdict_on_one_folder_waits_for_no_solution_of_another(tmp_path: Path, docker_sandbox: Any) -> None:
    lay(
        tmp_path / "slow",
        {**OWN, "solution/solve.sh": "sleep 12; echo 'print(42)' > made.py", "task.toml": "[verifier]\ntimeout_sec = 60.0\n"},
    )
    lay(tmp_path / "fast", OWN)
    env = build("env", "harbor", path=str(tmp_path), sandbox=docker_sandbox)
    env.prepare()
    hangs = "echo 'import os; os.kill(os.getppid(), 9)' > made.py"
    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(judged, env, "slow", hangs)
        time.sleep(4)
        began = time.monotonic()
        assert judged(env, "fast", hangs).score == 0.0
        assert time.monotonic() - began < 7 and not other.done()
        assert other.result().score == 0.0


@pytest.mark.docker
def test_a_file_in_the_place_of_the_module_that_judges_is_removed(harbor: Any) -> None:
    assert judged(harbor, "module", "echo hello > hello.txt").score == 1.0
    for planted in ("echo 'import os; os._exit(0)' > unittest.py", "mkdir unittest; echo 'import os; os._exit(0)' > unittest/__init__.py"):
        assert judged(harbor, "module", planted).score == 0.0


@pytest.mark.docker
def test_files_without_end_are_the_answers_fault_and_none_of_the_task(harbor: Any) -> None:
    filled = judged(harbor, "hello", "echo hello > hello.txt; head -c 200000000 /dev/zero > zeros")
    assert (filled.score, filled.fault) == (0.0, Fault.ANSWER), filled
    noise = judged(harbor, "hello", "echo hello > hello.txt; head -c 20000000 /dev/urandom > noise")
    assert (noise.score, noise.fault) == (0.0, Fault.ANSWER) and "more than 4 MB" in noise.reason


@pytest.mark.docker
def test_tests_that_give_no_valid_reward_to_the_solution_either_are_the_tasks_fault(harbor: Any) -> None:
    verdict = judged(harbor, "broken", "echo hello > hello.txt")
    assert (verdict.score, verdict.fault) == (None, Fault.TASK) and "its solution gets none either" in verdict.reason


@pytest.mark.docker
def test_partial_rewards_count_only_where_that_is_set(folders: Path, harbor: Any, docker_sandbox: Any) -> None:
    assert judged(harbor, "parts", "echo a > a").score == 0.0
    generous = build("env", "harbor", path=str(folders), sandbox=docker_sandbox, partial=True)
    verdict = judged(generous, "parts", "echo a > a")
    assert verdict.score == 0.5 and verdict.detail["rewards"] == {"reward": 0.5, "first": 1.0}


@pytest.mark.docker
def test_an_image_that_cannot_be_built_is_one_sentence(tmp_path: Path, docker_sandbox: Any) -> None:
    dockerfile = f"{DOCKERFILE}RUN echo no such mirror && false\n"
    lay(tmp_path / "one", {**FOLDERS["hello"], "environment/Dockerfile": dockerfile})
    env = build("env", "harbor", path=str(tmp_path), sandbox=docker_sandbox)
    with pytest.raises(ConfigError, match="the image of the task 'one' cannot be built here: no such mirror") as caught:
        env.prepare()
    assert "\n" not in str(caught.value)


def test_without_an_engine_it_says_so(folders: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    env = build("env", "harbor", path=str(folders))
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere/docker.sock")
    with pytest.raises(SandboxError, match="no Docker Engine"):
        env.prepare()


# ---- reading


@pytest.mark.parametrize(
    ("files", "told"),
    [
        ({"task.toml": "[[steps]]\nname = 'a'\n"}, "several steps"),
        ({"task.toml": "[environment]\ngpus = 1\n"}, "GPU"),
        ({"task.toml": "[environment]\nos = 'windows'\n"}, "'windows'"),
        ({"environment/docker-compose.yaml": "services: {}\n"}, "several containers"),
        ({"task.toml": "[environment]\nnetwork_mode = 'allowlist'\n"}, "boxes have no network"),
        ({"task.toml": "[environment.healthcheck]\ncommand = 'x'\n"}, "healthcheck"),
        ({"task.toml": "[[environment.mcp_servers]]\nname = 'x'\n"}, "MCP"),
        ({"task.toml": "[verifier]\nenvironment_mode = 'both'\n"}, "'both'; it must be 'shared' or 'separate'"),
        ({"task.toml": "[verifier.env]\nKEY = '${HOME}'\n"}, "takes the variable HOME"),
        ({"task.toml": "[verifier]\ntimeout_sec = nan\n"}, "timeout_sec is nan"),
        ({"task.toml": "artifacts = ['/app/../etc']\n"}, "no plain absolute path"),
        ({"task.toml": "[environment]\nworkdir = '/a b; rm'\n"}, "no plain absolute path"),
        ({"task.toml": "= 1"}, "cannot be read: TOMLDecodeError"),
        ({"tests/test.sh": None}, "no tests/test.sh"),
        ({"instruction.md": None}, "no instruction.md"),
        ({"environment/Dockerfile": None}, "neither environment/Dockerfile nor"),
    ],
)
def test_what_cannot_be_played_is_refused_in_one_sentence(tmp_path: Path, files: dict[str, str | None], told: str) -> None:
    folder = lay(tmp_path / "one", {**FOLDERS["hello"], **{path: text or "" for path, text in files.items()}})
    for path in (path for path, text in files.items() if text is None):
        (folder / path).unlink()
    with pytest.raises(UnsupportedTask, match=told) as caught:
        read_task_folder(folder)
    assert "\n" not in str(caught.value)


def test_refused_folders_are_an_error_or_left_out(tmp_path: Path) -> None:
    written(tmp_path, "hello", "sorted")
    lay(tmp_path / "steps", {**FOLDERS["hello"], "task.toml": "[[steps]]\nname = 'a'\n"})
    with pytest.raises(ConfigError, match=r"1 of the task folders .* skip_unsupported=true:\n  steps: it has several steps"):
        build("env", "harbor", path=str(tmp_path))
    env = build("env", "harbor", path=str(tmp_path), skip_unsupported=True)
    assert sum(env.num_tasks(split) for split in env.splits) == 2 and "left out" in env.warnings[0]


def test_a_link_that_leads_out_of_a_folder_is_refused(tmp_path: Path) -> None:
    folder = lay(tmp_path / "one", FOLDERS["hello"])
    (folder / "tests" / "secret").symlink_to("/etc/passwd")
    with pytest.raises(UnsupportedTask, match="secret is a link"):
        read_task_folder(folder)


@pytest.mark.parametrize("settings", [{}, {"path": "/nowhere"}, {"turns": 1}, {"disk_mb": 0}, {"verdict_timeout_s": 0}])
def test_wrong_settings_are_refused(folders: Path, settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        build("env", "harbor", **({"path": str(folders), **settings} if settings else {}))


def test_a_task_is_in_one_split(folders: Path, tmp_path: Path) -> None:
    env = build("env", "harbor", path=str(folders))
    names = [folder.name for split in env.splits for folder in env._tasks_of_split(split)]
    assert sorted(names) == sorted({*FOLDERS, "runs-it", "module", "broken"}) and set(env.splits) == {"train", "test"}
    written(tmp_path, "hello")
    with pytest.raises(ConfigError, match="'hello' is in path and in test"):
        build("env", "harbor", path=str(folders), test=str(tmp_path))


@pytest.mark.parametrize(
    "text", ["7.5", "-0.1", "NaN", "Infinity", '"1"', "true", "null", "[1]", "{}", '{"a": 1, "b": 1}', '{"reward": 2}', "x"]
)
def test_a_reward_that_is_no_number_from_0_to_1_is_none(text: str) -> None:
    assert parse_reward(text, is_json=True).reward is None and parse_reward(text, is_json=True).problem
    if text not in ("true", '"1"', "[1]") and not text.startswith("{"):
        assert parse_reward(text, is_json=False).reward is None


@pytest.mark.parametrize(
    ("text", "status", "reward"),
    [
        ("==== 3 passed in 0.1s ====", 0, 1.0),
        ("==== 3 passed, 1 warning in 65.10s (0:01:05) ====", 0, 1.0),
        ("==== 3 passed in 0.1s ====", 1, 0.0),
        ("==== 1 failed, 3 passed in 0.1s ====", 0, 0.0),
        ("==== 3 passed, 1 skipped in 0.1s ====", 0, 0.0),
        ("==== 3 passed in 0.1s ====\n==== 1 error in 0.1s ====", 0, 0.0),
        ("==== no tests ran in 0.1s ====", 0, 0.0),
        ("3 passed", 0, None),
    ],
)
def test_the_summary_of_pytest_decides(text: str, status: int, reward: float | None) -> None:
    assert parse_pytest_summary(text, status).reward == reward


def test_a_changed_folder_is_not_judged(tmp_path: Path) -> None:
    written(tmp_path, "hello")
    env = build("env", "harbor", path=str(tmp_path))
    task = env.task(env.splits[0], 0)
    lay(tmp_path / "hello", {"tests/check.py": ""})
    again = build("env", "harbor", path=str(tmp_path))
    verdict = again.verifier.verify_transcript(task, rlvr.Transcript("", {"left": b"x"}))
    assert verdict.fault is Fault.TASK and "has changed" in verdict.reason
    assert json.dumps(task.reference)
