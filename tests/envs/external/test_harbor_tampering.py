"""Answers that reach for what the tests of a task folder read, import and write: links, modules, plugins, and the reward itself."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import rlvr
from rlvr.conformance.conversationkit import play_conversation
from rlvr.envs.external._harbor.folders import TaskFolder
from rlvr.envs.external._harbor.images import TaskImage
from rlvr.envs.external._harbor.staging import _build_cleanup_request
from rlvr.task import Fault
from rlvr.turns import Call
from tests.envs.external.test_harbor_attacks import RUN, RUNS, judged
from tests.fixtures.theirs.folders import DOCKERFILE, FOLDERS, PASSES, lay

REWARD = "/logs/verifier/reward.txt"
INSTALL = "import site; open(site.getsitepackages()[0] + '/rules.py', 'w').write('def right(n): return n == 7')"
PLUGINS = (  # what `python -m pytest` does in the working folder
    "import sys; from importlib.metadata import entry_points as e; "
    "[p.load() for p in (e(group='pytest11') if sys.version_info > (3, 10) else e().get('pytest11', ()))]"
)
CASE = "import unittest{more}\nclass T(unittest.TestCase):\n    def test(self):\n        {body}\n"
MODULE = "export PYTHONPATH=/tests\n" + PASSES.replace("python3 /tests/check.py", "python3 -m unittest -q check")
WORKS = {
    "expects": {
        **FOLDERS["hello"],
        "tests/check.py": "assert open('/app/hello.txt').read() == open('/tests/hello.txt').read()",
        "tests/hello.txt": "hello\n",
        "solution/solve.sh": "ln -s /etc/hostname host; echo hello > real; ln -s real hello.txt",
    },
    "linked": {
        **FOLDERS["hello"],
        "instruction.md": "Link /app/later to /tmp/later, and /app/log to /dev/stdout.",
        "tests/check.py": "import os; assert [os.readlink(f'/app/{name}') for name in ('later', 'log')] == ['/tmp/later', '/dev/stdout']",
        "solution/solve.sh": "ln -s /tmp/later later; ln -s /dev/stdout log; mkdir closed; chmod 000 closed",
    },
    "expects-artifact": {
        **FOLDERS["artifact"],
        "tests/check.py": "assert open('/app/out/prime.txt').read() == open('/tests/prime.txt').read()",
        "tests/prime.txt": "97\n",
    },
    "runs-it": {**FOLDERS["hello"], **RUNS, "tests/test.sh": f"{RUN}exit 0\n"},
    "runs-it-plainly": {**FOLDERS["hello"], **RUNS},
    "runs-it-first": {
        **FOLDERS["hello"],
        "tests/test.sh": "python3 /app/made.py > /tmp/said\n" + PASSES,
        "tests/check.py": "import json; assert open('/tmp/said').read() == '42\\n'",
        "solution/solve.sh": "echo 'print(42)' > made.py",
    },
    "waits": {**FOLDERS["hello"], **RUNS, "tests/test.sh": RUN.replace("said\n", "said\nsleep 0.2\n", 1) + "sleep 0.3\n"},
    "installed": {
        **FOLDERS["hello"],
        "environment/Dockerfile": f'FROM rlvr-sandbox:1\nUSER root\nRUN python3 -c "{INSTALL}"\nWORKDIR /app\n',
        "tests/test.sh": MODULE,
        "tests/check.py": CASE.format(more=", rules", body="self.assertTrue(rules.right(int(open('/app/hello.txt').read())))"),
        "solution/solve.sh": "echo 7 > hello.txt",
    },
    "pytests": {
        **FOLDERS["hello"],
        "tests/test.sh": PASSES.replace(
            "python3 /tests/check.py",
            f'{{ [ -e conf""test.py ] && python3 conf""test.py; }} || python3 -c "{PLUGINS}; exec(open(\'/tests/check.py\').read())"',
        ),
    },
}


@pytest.fixture(scope="module")
def harbor(tmp_path_factory: pytest.TempPathFactory, docker_sandbox: Any) -> Iterator[Any]:
    root = tmp_path_factory.mktemp("folders")
    for name, files in WORKS.items():
        lay(root / name, files)
    yield rlvr.make_env("harbor", path=str(root), sandbox=docker_sandbox)


def made(code: str) -> str:
    """A command that writes the program which the tests run."""
    return f"cat > made.py <<'END'\nimport os, resource, time\nR = '{REWARD}'\n{code}\nEND\n"


PAYS = "open(R, 'w').write('1'); "
PLUGIN = (
    "mkdir {0}; printf '[pytest11]\\ne = evil\\n' > {0}/entry_points.txt; printf 'Name: e\\nVersion: 1\\n' > {0}/{1}; "
    "echo 'import os; os._exit(0)' > evil.py"
)
STAYS = """if os.fork() == 0:
    os.setsid()
    open('/tmp/x', 'w').close()
    os.symlink('/tmp/x', R)
    end = time.monotonic() + 3
    while time.monotonic() < end and open(R).read().strip() != '0': pass
    open('/tmp/x', 'w').write('1')
    os.rename('/tmp/x', R)
    time.sleep(5)
time.sleep(0.1)
print(41)"""
ATTACKS = {
    "links to what the tests expect": ("expects", "ln -s ../tests/hello.txt a; ln -s a hello.txt"),
    "a link by way of a process": ("expects", "ln -s /proc/self/root/tests/hello.txt hello.txt"),
    "a link in the place of the working folder": ("expects", "rm -rf /tmp/app; ln -s /tests /tmp/app"),
    "an artifact that is a link": ("expects-artifact", "rm -rf out; ln -s /tests out"),
    "a reward that cannot be written again": ("runs-it", made(PAYS + "os.chmod(R, 0o444)")),
    "a folder that cannot be written to": ("runs-it", made("open(R[:-3] + 'json', 'w').write('1'); os.chmod('/tmp/logs/verifier', 0o555)")),
    "no room for another reward": (
        "runs-it",
        made("open(R[:-3] + 'json', 'w').write('1')\ntry:\n    for n in range(10**6): open(f'/tmp/{n}', 'w').close()\nexcept OSError: 0"),
    ),
    "the end of the tests": ("runs-it", made(PAYS + "os.kill(os.getppid(), 15)")),
    "tests that cannot open files": ("runs-it-plainly", made(PAYS + "resource.prlimit(os.getppid(), resource.RLIMIT_NOFILE, (0, 0))")),
    "tests that are changed while they run": (
        "runs-it", made("t = open('/tests/test.sh').read(); open('/tests/test.sh', 'r+').write(t.replace('echo 0', 'echo 1'))"),
    ),
    "a module beside the tests": ("runs-it-first", made("open('/tests/json.py', 'w').write('raise SystemExit')")),
    "a process that swaps the reward": ("waits", made(STAYS)),
    "a module that the image has": ("installed", "echo 0 > hello.txt; echo 'def right(n): return True' > rules.py"),
    "a package that the image has": ("installed", "echo 0 > hello.txt; mkdir rules; echo 'def right(n): return True' > rules/__init__.py"),
    "a module that the tests have": ("installed", f"cat > check.py <<'END'\n{CASE.format(more='', body='pass')}END"),
    "a plugin of pytest": ("pytests", PLUGIN.format("e-1.dist-info", "METADATA")),
    "one of an older form": ("pytests", PLUGIN.format("e.egg-info", "PKG-INFO")),
    "settings of pytest": ("pytests", "echo 'import os; os._exit(0)' > conftest.py"),
}  # fmt: skip


@pytest.mark.docker
def test_the_solutions_score_1(harbor: Any) -> None:
    for name in WORKS:
        assert judged(harbor, name).score == 1.0, name


@pytest.mark.docker
@pytest.mark.parametrize("attack", ATTACKS)
def test_what_is_tampered_with_pays_nothing(harbor: Any, attack: str) -> None:
    verdict = judged(harbor, *ATTACKS[attack])
    assert verdict.score == 0.0 and verdict.fault in (Fault.NONE, Fault.ANSWER), verdict


@pytest.mark.docker
def test_the_image_of_a_folder_holds_neither_its_solution_nor_its_tests(tmp_path: Path, docker_sandbox: Any) -> None:
    files = {**FOLDERS["bench-first"], "Dockerfile": f"{DOCKERFILE}COPY . /app/\n", "solution.sh": "head -n 1 /app/words.txt > first"}
    lay(tmp_path / "copied", files)
    env = rlvr.make_env("harbor", path=str(tmp_path), sandbox=docker_sandbox)
    assert judged(env, "copied").score == 1.0
    task = env.task(env.splits[0], 0)
    _, play = play_conversation(env, task, [Call("0.0", "bash", {"command": "find /app/ -type f"}), "done"])
    read = play.step_results[0].messages[0]["content"]
    assert "words.txt" in read and not any(name in read for name in ("solution", "run-tests", "test_outputs", "task.yaml")), read


def test_what_the_task_names_is_an_answer() -> None:
    tests = {"check.py": b"import helper, conftest; assert score.py", "helper.py": b""}
    folder = TaskFolder("f", "Write /app/calendar.py and conftest.py.", "harbor", tests=tests)
    given = _build_cleanup_request(TaskImage("i", "/app", {"PATH": "/app/bin:/opt/venv/bin"}), folder)
    planted = set(given["planted"])
    assert {"check", "helper", "json", "pytest", "re"} <= planted and "calendar" not in planted, "score.py does not name re.py"
    assert {"calendar", "conftest", "conftest.py"} <= set(given["asked"])
    assert "/opt/venv/bin" in given["paths"] and "/app/bin" not in given["paths"], "no command of the answer looks for modules"
