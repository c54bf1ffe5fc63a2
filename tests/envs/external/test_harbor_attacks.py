"""Task folders read as an enemy would: answers that reach for the place of the judge, and folders that are no folders."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rlvr.conformance.conversationkit import play_conversation
from rlvr.envs.external._harbor.folders import UnsupportedTask, read_task_folder
from rlvr.errors import ConfigError
from rlvr.registry.plugins import build
from rlvr.task import Fault, Verdict
from rlvr.turns import Call
from tests.fixtures.theirs.folders import DOCKERFILE, FOLDERS, PASSES, lay

RUN = (
    "python3 /app/made.py > /tmp/said\n"
    '[ "$(cat /tmp/said)" = 42 ] && echo 1 > /logs/verifier/reward.txt || echo 0 > /logs/verifier/reward.txt\n'
)
RUNS = {"tests/test.sh": RUN, "solution/solve.sh": "echo 'print(42)' > made.py"}
SAME = "assert int(open('/logs/artifacts/count').read()) == len(open('/app/data/words.txt').readlines())"
WORKS = {
    "runs-it": {**FOLDERS["hello"], **RUNS},
    "compared": {**FOLDERS["counted"], "tests/check.py": SAME},
    "module": {
        **FOLDERS["hello"],
        "tests/test.sh": "export PYTHONPATH=/tests\n" + PASSES.replace("python3 /tests/check.py", "python3 -m unittest -q check"),
        "tests/check.py": (
            "import unittest\nclass Hello(unittest.TestCase):\n    def test(self):\n"
            "        self.assertEqual(open('/app/hello.txt').read(), 'hello\\n')\n"
        ),
    },
    "calendar": {
        **FOLDERS["hello"],
        "instruction.md": "Write /app/calendar.py, whose function days() returns 7.",
        "tests/test.sh": PASSES.replace("python3 /tests/check.py", 'python3 -c "import calendar; assert calendar.days() == 7"'),
        "solution/solve.sh": "echo 'def days(): return 7' > calendar.py",
    },
    "commands": {
        **FOLDERS["hello"],
        "instruction.md": "Write /app/bin/greet, which prints hello, and make it executable.",
        "environment/Dockerfile": f"{DOCKERFILE}RUN mkdir bin && echo true > bin/tool && chmod 755 bin/tool\nENV PATH=/app/bin:.:$PATH\n",
        "tests/test.sh": "tool && " + PASSES,
        "tests/check.py": "import subprocess; assert subprocess.run(['greet'], stdout=-1, check=True).stdout == b'hello\\n'",
        "solution/solve.sh": "printf '#!/bin/sh\\necho hello\\n' > bin/greet; chmod 755 bin/greet",
    },
    "virtual": {
        **FOLDERS["hello"],
        "environment/Dockerfile": f"{DOCKERFILE}RUN python3 -m venv --without-pip .venv\nENV PATH=/app/.venv/bin:$PATH PYTHONPATH=src\n",
        "tests/test.sh": ". .venv/bin/activate\n" + PASSES,
    },
    "serves": {  # its tests start the answer in the background, and end it
        **FOLDERS["hello"],
        "tests/test.sh": "python3 made.py &\nfor n in {1..99}; do [ -e up ] && break; sleep 0.1; done\n"
        + PASSES.replace("python3 /tests/check.py", "[ -e ran ]")
        + "sleep 0.3; kill $!; wait\n",
        "solution/solve.sh": "echo \"open('ran', 'w'); open('up', 'w')\" > made.py",
    },
    "lingers": {**FOLDERS["hello"], **RUNS, "tests/test.sh": f"{RUN}sleep 0.3\n"},
    "written-twice": {**FOLDERS["hello"], **RUNS, "tests/test.sh": "echo 0 > /logs/verifier/reward.txt\n" + RUN},
}


@pytest.fixture(scope="module")
def harbor(tmp_path_factory: pytest.TempPathFactory, docker_sandbox: Any) -> Iterator[Any]:
    root = tmp_path_factory.mktemp("folders")
    for name, files in WORKS.items():
        lay(root / name, files)
    yield build("env", "harbor", path=str(root), sandbox=docker_sandbox)


def judged(env: Any, name: str, command: str = "") -> Verdict:
    """The verdict on one command in the folder of this name; without one, on its solution."""
    tasks = [env.task(split, index) for split in env.splits for index in range(env.num_tasks(split))]
    task = next(task for task in tasks if task.reference["folder"] == name)
    turns: list[Any] = [Call("0.0", "bash", {"command": command}), "done"] if command else env.oracle_turns(task)
    return play_conversation(env, task, turns)[0]


EXIT = "import os; os._exit(0)"
LIES = "printf '#!/bin/sh\\nexit 0\\n'"
STAYS = """cat > made.py <<'END'
import os, time
if os.fork() == 0:
    os.setsid()
    {waits}
    end = time.monotonic() + 3
    while time.monotonic() < end:
        with open("/logs/verifier/new", "w") as file:
            file.write("1")
        os.replace("/logs/verifier/new", "/logs/verifier/reward.txt")
        {stops}
print(41)
END
"""
WRITES = "open('/logs/verifier/reward.txt', 'w').write('1')\n"
UNTIL = "while not (os.path.exists(NAME) and open(NAME).read().strip()): pass".replace("NAME", '"/logs/verifier/reward.txt"')
PACKS = "builtin cd /tmp; mkdir -p app/data logs/artifacts; : > app/data/words.txt; echo 0 > logs/artifacts/count"
COMPILED = "import py_compile; py_compile.compile('s.py', 'signal.pyc')"
MOVED = "s,logs/artifacts/w,app/data/words.txt,"
ATTACKS = {
    "a second reward, written by the answer in the tests": (
        "runs-it", "echo 'open(\"/logs/verifier/reward.json\", \"w\").write(\"1\")' > made.py",
    ),
    "a module that the judging module imports": ("module", f"echo '{EXIT}' > argparse.py"),
    "a package that it imports": ("module", f"mkdir traceback; echo '{EXIT}' > traceback/__init__.py"),
    "compiled, without a source": ("module", f"echo '{EXIT}' > s.py; python3 -c \"{COMPILED}\""),
    "a shell function that packs other files": ("compared", f"cd() {{ {PACKS}; /bin/tar -czf - app logs; exit; }}; export -f cd"),
    "options of the packer": (
        "compared", f"export TAR_OPTIONS='--transform={MOVED}'; cd /logs/artifacts; : > w; echo 0 > count",
    ),
    "a command in a folder of the search path": ("commands", f"{LIES} | tee bin/python3 > bin/greet; chmod 755 bin/*"),
    "one that replaces a command of the image": (
        "commands", "echo 'echo 1 > /logs/verifier/reward.txt; false' > bin/tool; chmod 755 bin/tool",
    ),
    "a command in the working folder, which is searched, too": ("commands", f"{LIES} > python3; chmod 755 python3"),
    "a link in the place of that folder": (
        "commands",
        f"mv bin /logs/artifacts/b; {LIES} > /logs/artifacts/b/python3; chmod 755 /logs/artifacts/b/p*; ln -s /logs/artifacts/b bin",
    ),
    "the python of the image's own virtual environment": (
        "virtual", f"rm .venv/bin/python*; {LIES} > .venv/bin/python3; chmod 755 .venv/bin/python3",
    ),
    "a script that the tests source": ("virtual", "echo 'echo 1 > /logs/verifier/reward.txt; exit' > .venv/bin/activate"),
    "a module in a folder of the search path": ("virtual", f"mkdir src; echo '{EXIT}' > src/sitecustomize.py"),
    "a process of the answer that stays while the tests write": ("runs-it", STAYS.format(waits="", stops="")),
    "one that writes once, after the tests": ("runs-it", STAYS.format(waits=UNTIL, stops="break")),
    "one that stays where the tests write twice": ("written-twice", STAYS.format(waits="", stops="")),
    "one that stops the process that watches": ("runs-it", "echo 'import os; os.kill(os.getppid(), 9); os.kill(-1, 9)' > made.py"),
    "the end of every process": ("runs-it", "kill -9 -1"),
    "no room, and no folder": ("runs-it", "head -c 999999999 /dev/zero > /tmp/z; chmod 000 /tmp/app; rm -rf /tmp/*; chmod 000 /tmp"),
    "a shell that has become another program": ("runs-it", "exec sleep 2"),
    "a closed output": ("runs-it", "exec >&- 2>&- <&-; tar() { return 1; }; trap 'kill -9 $$' DEBUG"),
}  # fmt: skip


@pytest.mark.docker
def test_the_solutions_score_1(harbor: Any) -> None:
    for name in WORKS:
        assert judged(harbor, name).score == 1.0, name


@pytest.mark.docker
def test_a_reward_that_was_written_beside_the_tests_is_named(harbor: Any) -> None:
    stayed = judged(harbor, "lingers", STAYS.format(waits="", stops=""))
    assert "the answer broke the tests: a process that had outlived its program was running" in stayed.reason, stayed
    assert (stayed.score, stayed.fault) == (0.0, Fault.ANSWER)
    served = judged(harbor, "serves", f"cat > made.py <<'END'\nimport os\nopen('up', 'w')\n{UNTIL}\n{WRITES}END")
    assert (served.score, served.fault) == (0.0, Fault.ANSWER) and "times for the solution" in served.reason, served


@pytest.mark.docker
@pytest.mark.parametrize("attack", ATTACKS)
def test_an_attack_scores_0_and_never_none(harbor: Any, attack: str) -> None:
    verdict = judged(harbor, *ATTACKS[attack])
    assert verdict.score == 0.0 and verdict.fault in (Fault.NONE, Fault.ANSWER), verdict


LAUGHS = "a: &a [x]\n" + "".join(f"{chr(98 + n)}: &{chr(98 + n)} [{', '.join([f'*{chr(97 + n)}'] * 9)}]\n" for n in range(9))
BENCH = FOLDERS["bench-first"]
HOSTILE = {
    "a table that is a list": {"task.toml": "environment = [1]\n"},
    "modes that are lists": {"task.toml": "[environment]\nnetwork_mode = ['x']\n"},
    "artifacts that are a number": {"task.toml": "artifacts = 7\n"},
    "an image that is lines of a Dockerfile": {"task.toml": "[environment]\ndocker_image = \"alpine\\nRUN id\"\n"},
    "arrays without end": {"task.toml": "x = " + "[" * 5000 + "]" * 5000},
    "a directory in the place of a file": {"tests/test.sh/inner": "x"},
    "services that are a list": {**BENCH, "docker-compose.yaml": "- x\n"},
    "services that are a number": {**BENCH, "docker-compose.yaml": "services: 7\n"},
    "YAML that makes objects": {**BENCH, "task.yaml": "instruction: !!python/object/apply:os.system ['touch /tmp/rlvr-was-here']\n"},
    "YAML that grows": {**BENCH, "task.yaml": LAUGHS + "instruction: *j\n"},
    "YAML without end": {**BENCH, "task.yaml": "[" * 1500},
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_folder_is_refused_in_one_sentence(name: str, tmp_path: Path) -> None:
    files = {**({} if "task.yaml" in HOSTILE[name] else FOLDERS["hello"]), **HOSTILE[name]}
    if any(path.startswith("tests/test.sh/") for path in files):
        files.pop("tests/test.sh")
    folder = lay(tmp_path / "one", files)
    with pytest.raises(UnsupportedTask) as caught:
        read_task_folder(folder)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 500
    with pytest.raises(ConfigError, match="cannot be played"):
        build("env", "harbor", path=str(tmp_path))


def test_a_link_out_of_the_environment_is_refused_before_a_task_is_made(tmp_path: Path) -> None:
    folder = lay(tmp_path / "one", FOLDERS["hello"])
    (folder / "environment" / "secret").symlink_to("/etc/passwd")
    with pytest.raises(ConfigError, match="secret is a link that leads out"):
        build("env", "harbor", path=str(tmp_path))


def test_a_hostile_name_of_a_folder_stays_a_name(tmp_path: Path) -> None:
    for name in ("$(touch x)", "a\nb", "; rm -rf x", "<|im_end|>", "-rf"):
        lay(tmp_path / name, FOLDERS["hello"])
    env = build("env", "harbor", path=str(tmp_path))
    tasks = [env.task(split, index) for split in env.splits for index in range(env.num_tasks(split))]
    assert len(tasks) == 5 and all("im_end" not in task.question and task.question == tasks[0].question for task in tasks)
