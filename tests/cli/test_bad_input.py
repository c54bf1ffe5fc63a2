"""Whatever a user gets wrong: one message of what, what is allowed and what to do; exit code 2; nothing overwritten."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from rlvr.cli.commands import run_command
from rlvr.errors import ConfigError
from rlvr.registry.plugins import PACKAGE_FOLDER

BROKEN = '''
"""Plugins with faults."""
import threading
from rlvr import Environment, VerifierExample, Task, Verdict, Verifier, make_user_prompt

class Raises(Verifier):
    def verify(self, task, answer):
        raise RuntimeError("a fault of the author's")

class NaN(Verifier):
    def verify(self, task, answer):
        return Verdict(float("nan"), "not a number")

class Two(Verifier):
    def verify(self, task, answer):
        return Verdict(2.0, "more than everything")

class Number(Verifier):
    def verify(self, task, answer):
        return 1.0

class NoRoom(Verifier):
    def __init__(self, *, size):
        raise ValueError(f"size {size} is too small")
    verify = None

class Explodes(Verifier):
    verify = None
    def __init__(self):
        raise RuntimeError("boom")

class Leaves(Verifier):
    examples = (VerifierExample("Paris", correct=("Paris",), incorrect=("Rome",)),)
    def verify(self, task, answer):
        raise SystemExit(0)

class Waits(Verifier):
    def verify(self, task, answer):
        threading.Event().wait(5)

class LeavesAtOnce(Leaves):
    def __init__(self):
        raise SystemExit(0)

class Empty(Environment):
    needs = {"verifier": "exact"}
    def __init__(self, *, verifier):
        self.verifier = verifier
    def num_tasks(self, split):
        return 0
    def task(self, split, index):
        raise IndexError(index)

class Lost(Empty):
    def num_tasks(self, split):
        return None

class Left(Lost):
    def task(self, split, index):
        raise SystemExit(0)

class Unclosable(Lost):
    def task(self, split, index):
        return Task(make_user_prompt("why?"), "because", id=f"{split}/{index}")
    def close(self):
        raise RuntimeError("no way to close")

class Texts(Lost):
    def task(self, split, index):
        return "2+2="

class Numbers(Lost):
    def task(self, split, index):
        return Task(make_user_prompt("why?"), "7", id=f"{split}/{index}")
    def gold(self, task):
        return 7

class NoJudge(Numbers):
    needs = {}
    def __init__(self):
        pass

class Long(Empty):
    def num_tasks(self, split):
        return None
    def task(self, split, index):
        return Task(make_user_prompt("why? " * 400), "because", id=f"long/{split}/{index}")

NOT_CALLABLE = 7
'''

FILES = {
    "broken.py": BROKEN,
    "raises.py": "raise OSError('the disk of the plugin is gone')",
    "syntax.py": "def broken(:",
    "needs_vllm.py": "import a_package_that_nobody_has",
    "text.txt": "hello",
    "not_json.jsonl": '{"id": 1, "reference": "4", "answer": "4"}\n{"id": 2, "reference": \n',
    "list.jsonl": "[1, 2]\n",
    "no_answer.jsonl": '{"id": 1, "reference": "4"}\n',
    "number.jsonl": '{"id": 1, "reference": "4", "answer": 4}\n',
    "meta.jsonl": '{"id": 1, "reference": "4", "answer": "4", "meta": [1]}\n',
    "empty.jsonl": "\n\n",
    "bad/train.jsonl": '{"question": "1?", "answer": "#### 1"}\n{"question": "2?"}\n',
    "bad/test.jsonl": '{"question": "1?", "answer": "no number"}\n',
    "hollow/train.jsonl": "",
    "hollow/test.jsonl": "",
    "no_yaml.yaml": "a: [1, 2\nb: }",
    "list.yaml": "- 1\n- 2\n",
    "no_env.yaml": "seed: 1\nmodel: {path: there}\n",
    "run/config.yaml": "seed: one\n",
    "taken/keep.txt": "mine",
    "a_file": "x",
}

Case = tuple[str, list[str], list[str]]
VERIFY = ["--reference", "4", "--answer", "4"]
# what goes wrong; the command; words that the message must hold
CASES: list[Case] = [
    ("no such command", ["trian", "quickstart"], ["there is no command 'trian'; did you mean 'train'? see `rlvr --help`"]),
    ("no such option", ["list", "--jsno"], ["has no option '--jsno'; did you mean '--json'? write `rlvr list --json`"]),
    ("no such option at all", ["list", "--colour"], ["has no option '--colour'; see `rlvr list --help`"]),
    ("no such option before the command", ["--versoin"], ["did you mean '--version'? see `rlvr --help`"]),
    (
        "a setting of a run as an option",
        ["train", "quickstart", "--epochs", "5"],
        ["'--epochs'", "write `rlvr train quickstart train.steps=5`"],
    ),
    ("a missing argument", ["show", "env"], ["KIND and a NAME", "`rlvr show env NAME`"]),
    ("a name without its kind", ["show", "countdown"], ["`rlvr show env countdown` or `rlvr show verifier countdown`"]),
    ("no such setting of a run", ["show", "config", "train.step"], ["no setting 'train.step'", "train.steps", "rlvr show config"]),
    ("an evaluation of nobody", ["eval", "quick"], ["--policy is missing", "rlvr eval quick --policy hf:DIR"]),
    (
        "a word where a number belongs",
        ["eval", "arithmetic", "--policy", "scripted:gold", "-n", "two"],
        ["-n", "integer", "rlvr eval --help"],
    ),
    ("no such kind", ["list", "verifers"], ["'verifers'", "did you mean 'verifiers'"]),
    ("no such kind to show", ["show", "model", "x"], ["'model'", "allowed", "recipe", "suites"]),
    ("a kind in full", ["show", "environment", "gsm8k"], ["did you mean 'env'?"]),
    ("no such plugin", ["show", "env", "arithmetik"], ["did you mean 'arithmetic'", "rlvr list envs"]),
    ("no such recipe to show", ["show", "recipe", "quikstart"], ["did you mean 'quickstart'", "rlvr list recipes"]),
    ("no such file", ["show", "env", "nowhere.py:Mine"], ["nowhere.py", "current folder"]),
    ("a file that is no Python", ["show", "env", "text.txt:Mine"], ["path/to/file.py:Object"]),
    ("no such object", ["show", "verifier", "broken.py:Raise"], ["'Raise'", "did you mean 'Raises'"]),
    ("a plugin that is no class", ["show", "verifier", "broken.py:NOT_CALLABLE"], ["7", "a class or a function"]),
    ("a plugin that raises on import", ["show", "env", "raises.py:Mine"], ["OSError", "the disk of the plugin is gone", "fix that file"]),
    ("a plugin that does not parse", ["show", "env", "syntax.py:Mine"], ["SyntaxError", "fix that file"]),
    ("a plugin that misses a package", ["show", "env", "needs_vllm.py:Mine"], ["a_package_that_nobody_has"]),
    ("no such verifier", ["verify", "symbolik", *VERIFY], ["'symbolik'", "Allowed"]),
    ("no such setting", ["verify", "numeric", *VERIFY, "--set", "tolerence=1"], ["did you mean 'tolerance'"]),
    ("a setting without a value", ["verify", "numeric", *VERIFY, "--set", "tolerance"], ["key=value"]),
    ("a setting that is no YAML", ["verify", "numeric", *VERIFY, "--set", "tolerance=[1"], ["not YAML"]),
    ("a setting given twice", ["verify", "numeric", *VERIFY, "--set", "tolerance=1", "--set", "tolerance=2"], ["twice"]),
    ("a negative tolerance", ["verify", "numeric", *VERIFY, "--set", "tolerance=-1"], ["-1", "of at least 0"]),
    ("a tolerance that is a word", ["verify", "numeric", *VERIFY, "--set", "tolerance=small"], ["'small'", "a number"]),
    ("a channel that is none", ["verify", "exact", *VERIFY, "--set", "extractor=box"], ["'box'", "boxed"]),
    ("a composite of nothing", ["verify", "composite", *VERIFY, "--set", "components={}"], ["at least one"]),
    (
        "a weight below 0",
        ["verify", "composite", *VERIFY, "--set", "components={a: {verifier: exact, weight: -1}}"],
        ["-1", "of at least 0"],
    ),
    ("a part that is no verifier", ["verify", "composite", *VERIFY, "--set", "components={a: {verifier: exat}}"], ["did you mean 'exact'"]),
    ("a judged section that is none", ["verify", "structure", *VERIFY, "--set", "answer_section=result"], ["'result'", "think, answer"]),
    ("a constructor that refuses", ["verify", "broken.py:NoRoom", *VERIFY, "--set", "size=1"], ["size 1 is too small"]),
    ("a constructor without its setting", ["verify", "broken.py:NoRoom", *VERIFY], ["needs 'size'"]),
    ("a constructor that breaks", ["verify", "broken.py:Explodes", *VERIFY], ["RuntimeError", "boom"]),
    ("half of a question", ["verify", "numeric", "--reference", "4"], ["--answer"]),
    ("a file and an answer", ["verify", "numeric", *VERIFY, "--file", "empty.jsonl"], ["not both"]),
    ("a meta that is no object", ["verify", "numeric", *VERIFY, "--meta", "[1]"], ["object"]),
    ("a meta that is no JSON", ["verify", "numeric", *VERIFY, "--meta", "{x"], ["not JSON"]),
    ("a missing file", ["verify", "numeric", "--file", "nowhere.jsonl"], ["nowhere.jsonl", "standard input"]),
    ("a folder for a file", ["verify", "numeric", "--file", "taken"], ["taken"]),
    ("a malformed line", ["verify", "numeric", "--file", "not_json.jsonl", "--json"], ["not_json.jsonl:2", "not JSON"]),
    ("a line that is a list", ["verify", "numeric", "--file", "list.jsonl"], ["list.jsonl:1", "not an object"]),
    ("a line without an answer", ["verify", "numeric", "--file", "no_answer.jsonl"], ["'answer' is missing"]),
    ("an answer that is a number", ["verify", "numeric", "--file", "number.jsonl"], ["must be a string"]),
    ("a line with a strange meta", ["verify", "numeric", "--file", "meta.jsonl"], ["meta"]),
    ("a file without a line", ["verify", "numeric", "--file", "empty.jsonl"], ["has no lines"]),
    ("a file that is no text", ["verify", "numeric", "--file", "latin.jsonl"], ["latin.jsonl:1", "UTF-8"]),
    ("no workers", ["verify", "numeric", "--file", "number.jsonl", "--workers", "0"], ["at least 1"]),
    ("a kind that is not there", ["check", "recipe", "quickstart"], ["no kind of plugin 'recipe'"]),
    ("a name that no distribution may have", ["new", "verifier", "chess_"], ["'chess_'", "chess_mate"]),
    ("a name that is no name", ["new", "env", "Chess-Mate"], ["'Chess-Mate'", "chess_mate"]),
    ("a name that Python keeps", ["new", "env", "class"], ["'class'"]),
    ("a name that is taken", ["new", "verifier", "numeric"], ["exists already", "rlvr"]),
    ("a template that is not there", ["new", "sandbox", "mine"], ["no template for a sandbox"]),
    ("a folder that exists", ["new", "env", "mine", "--out", "taken"], ["taken exists", "--out"]),
    ("a folder that cannot be made", ["new", "env", "mine", "--out", "a_file/mine"], ["cannot be written"]),
    ("no such environment", ["eval", "arithmetics", "--policy", "scripted:gold"], ["did you mean 'arithmetic'"]),
    ("a level that is none", ["eval", "arithmetic", "--policy", "scripted:gold", "--set", "levels=[2/2]"], ["'2/2'", "'2+2'"]),
    ("no level at all", ["eval", "arithmetic", "--policy", "scripted:gold", "--set", "levels=[]"], ["empty"]),
    ("no such policy", ["eval", "arithmetic", "--policy", "gold"], ["'gold'", "scripted:gold"]),
    ("no such script", ["eval", "arithmetic", "--policy", "scripted:godl"], ["did you mean 'gold'"]),
    ("a model that is not there", ["eval", "arithmetic", "--policy", "hf:nowhere"], ["nowhere"]),
    ("no tasks", ["eval", "arithmetic", "--policy", "scripted:gold", "--tasks", "0"], ["at least 1"]),
    ("no such split", ["eval", "arithmetic", "--policy", "scripted:gold", "--split", "tset"], ["did you mean 'test'"]),
    ("no room for an answer", ["eval", "arithmetic", "--policy", "scripted:gold", "--max-new-tokens", "0"], ["at least 1"]),
    (
        "results that exist",
        ["eval", "arithmetic", "--policy", "scripted:gold", "--out", "taken"],
        ["taken exists", "not overwritten", "--out"],
    ),
    ("results that cannot be written", ["eval", "arithmetic", "--policy", "scripted:gold", "--out", "a_file/x"], ["cannot be written"]),
    ("an environment without tasks", ["eval", "broken.py:Empty", "--policy", "scripted:noop"], ["no task in its split"]),
    ("a prompt longer than the window", ["eval", "broken.py:Long", "--policy", "scripted:noop"], ["max_length", "tokens"]),
    ("data that are not there", ["eval", "gsm8k", "--policy", "scripted:gold", "--set", "path=nowhere"], ["'nowhere'", "train.jsonl"]),
    ("data with a malformed line", ["eval", "gsm8k", "--policy", "scripted:gold", "--set", "path=bad"], ["test.jsonl:1", "####"]),
    (
        "data of a broken second line",
        ["eval", "gsm8k", "--policy", "scripted:gold", "--set", "path=bad", "--split", "train"],
        ["train.jsonl:2"],
    ),
    ("an empty data set", ["eval", "gsm8k", "--policy", "scripted:gold", "--set", "path=hollow"], ["has no rows"]),
    ("a run that is none", ["replay", "nowhere"], ["is not a run folder"]),
    ("a run whose configuration is broken", ["replay", "run"], ["seed"]),
    ("no such recipe", ["train", "quikstart"], ["did you mean 'quickstart'"]),
    ("a recipe that is no YAML", ["train", "no_yaml.yaml"], ["no_yaml.yaml", "not valid YAML"]),
    ("a recipe that is a list", ["train", "list.yaml"], ["not a mapping"]),
    ("a recipe without an environment", ["train", "no_env.yaml"], ["'env' is missing"]),
    ("an unknown key", ["train", "quickstart", "train.step=5"], ["train.step", "did you mean 'train.steps'"]),
    ("an unknown section", ["train", "quickstart", "trian.steps=5"], ["did you mean 'train'"]),
    ("a wrong type", ["train", "quickstart", "train.steps=many"], ["train.steps", "many"]),
    ("a group of 1", ["train", "quickstart", "rollout.num_generations=1"], ["num_generations", "1"]),
    ("an override that is none", ["train", "quickstart", "fast"], ["key=value"]),
    ("a run that exists", ["train", "quickstart", "--out", "taken"], ["taken", "is not overwritten"]),
    ("a run in a place that cannot be", ["train", "quickstart", "--out", "a_file/run"], ["a_file/run", "cannot be written"]),
    ("to resume nothing", ["train", "quickstart", "--resume"], ["--out"]),
    ("to resume what is no run", ["train", "quickstart", "--resume", "--out", "taken"], ["taken"]),
    ("an algorithm that is none", ["train", "quickstart", "algorithm=grppo"], ["did you mean 'grpo'"]),
    ("an algorithm's setting that is none", ["train", "quickstart", "algorithm={name: grpo, epsilom: 0.1}"], ["did you mean 'epsilon'"]),
    ("an environment that is none", ["train", "quickstart", "env=arithmetc"], ["did you mean 'arithmetic'"]),
    ("a sampler that is none", ["train", "quickstart", "rollout.sampler=vlm"], ["'vlm'"]),
    ("a model that is nowhere", ["train", "quickstart", "model={path: nowhere}"], ["nowhere"]),
]


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, "utf-8")
    (tmp_path / "latin.jsonl").write_bytes('{"id": 1, "reference": "é", "answer": "é"}'.encode("latin-1"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def contents(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts
    }


@pytest.mark.parametrize(("arguments", "words"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_one_message_and_exit_code_2(arguments: list[str], words: list[str], desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = contents(desk)
    code = run_command(arguments)
    said = capsys.readouterr()
    assert code == 2, said
    assert said.err.startswith("error: ") and len(said.err.strip().splitlines()) == 1 and len(said.err) < 900, said.err
    assert [word for word in words if word not in said.err] == [], said.err
    assert "Traceback" not in said.err + said.out and said.out == "", said.out
    assert contents(desk) == before


def test_there_are_enough_cases() -> None:
    assert len(CASES) >= 40 and len({case[0] for case in CASES}) == len(CASES)


@pytest.mark.parametrize(
    ("name", "words"),
    [("Raises", "a fault of the author's"), ("NaN", "nan"), ("Two", "the score 2"), ("Number", "not a Verdict"), ("Leaves", "SystemExit")],
)
def test_a_broken_verifier_gives_no_score(name: str, words: str, desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["verify", f"broken.py:{name}", *VERIFY, "--json"]) == 1
    said = capsys.readouterr().out
    assert '"score": null' in said and '"fault": "infra"' in said and words in said


@pytest.mark.parametrize("what", [VERIFY, ["--file", "pair.jsonl"]], ids=["one answer", "a file"])
def test_a_verifier_that_waits_for_ever_is_not_waited_for(
    what: list[str], desk: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("rlvr.cli.verifying.VERIFY_TIMEOUT_S", 0.3)
    (desk / "pair.jsonl").write_text('{"id": 1, "reference": "4", "answer": "4"}\n', "utf-8")
    assert run_command(["verify", "broken.py:Waits", *what, "--json"]) == 1
    assert '"score": null, "reason": "the verifier gave no verdict within 0.3 s", "fault": "infra"' in capsys.readouterr().out


def test_a_broken_verifier_is_not_a_zero_in_an_evaluation(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        run_command(["eval", "digit_sum", "--policy", "scripted:gold", "--set", "verifier=broken.py:Raises", "--tasks", "3", "--json"]) == 1
    )
    said = capsys.readouterr().out
    assert '"mean_score": null' in said and '"unscored": 3' in said


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["eval", "broken.py:Lost", "--policy", "scripted:noop"], ["IndexError: 0", "broken.py:", "in task"]),
        (["eval", "broken.py:Left", "--policy", "scripted:noop"], ["SystemExit: 0", "in task"]),
        (["eval", "broken.py:Unclosable", "--policy", "scripted:noop"], ["no way to close", "in close"]),
        (["eval", "broken.py:Texts", "--policy", "scripted:noop"], ["returned '2+2='", "rlvr.Task"]),
        (["eval", "broken.py:Numbers", "--policy", "scripted:gold"], ["Numbers.gold returned 7", "must be a string"]),
        (["eval", "broken.py:NoJudge", "--policy", "scripted:noop"], ["verifier is None", "rlvr.Verifier"]),
        (["verify", "broken.py:LeavesAtOnce", *VERIFY], ["cannot be built: SystemExit"]),
    ],
)
def test_a_plugin_that_raises_is_told_where_and_is_no_success(
    arguments: list[str], words: list[str], desk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(arguments) == 2
    said = capsys.readouterr().err
    assert [word for word in words if word not in said] == [] and "bug in rlvr" not in said and said.startswith("error: "), said


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("verifier", "LeavesAtOnce"),
        pytest.param("verifier", "Leaves", marks=pytest.mark.slow),
        pytest.param("env", "Left", marks=pytest.mark.slow),
        pytest.param("env", "Unclosable", marks=pytest.mark.slow),
    ],
)
def test_what_leaves_has_failed_its_kit(kind: str, name: str, desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["check", kind, f"broken.py:{name}"]) == 1
    assert ("in close" if name == "Unclosable" else "SystemExit: 0") in capsys.readouterr().out


def test_a_run_is_not_resumed_under_another_configuration(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from rlvr.config.config import load_config
    from rlvr.runs.run_log import RunLog

    RunLog.create(desk / "begun", load_config("quickstart")).close()
    before = contents(desk)
    with pytest.raises(ConfigError, match="seed"):
        RunLog.reopen(desk / "begun", load_config("quickstart", ["seed=5"]))
    assert run_command(["train", "quickstart", "seed=5", "--resume", "--out", "begun"]) == 2  # and there is nothing to resume from
    said = capsys.readouterr().err
    assert "begun" in said and "--out" in said and "Traceback" not in said and contents(desk) == before


@pytest.mark.slow
@pytest.mark.parametrize(
    ("package", "arguments", "words"),
    [
        ("torch", ["train", "quickstart"], "[train]'`"),
        ("transformers", ["eval", "arithmetic", "--policy", "hf:taken"], "[train]'`"),
        ("datasets", ["eval", "gsm8k", "--policy", "scripted:gold"], "[train]'`"),
    ],
)
def test_a_missing_extra_is_named(package: str, arguments: list[str], words: str, desk: Path) -> None:
    code = f"import sys; sys.modules[{package!r}] = None; from rlvr.cli.commands import run_command; sys.exit(run_command({arguments!r}))"
    env = os.environ | {"PYTHONPATH": str(PACKAGE_FOLDER.parent)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, cwd=desk, env=env)
    assert done.returncode == 2 and words in done.stderr and "Traceback" not in done.stderr, done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_an_internal_error_is_one_line_and_says_how_to_see_more(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from rlvr.cli import listing

    def fault(*_: object, **__: object) -> None:
        raise KeyError("our own mistake")

    monkeypatch.setattr(listing, "list_plugins", fault)
    assert run_command(["list"]) == 3
    said = capsys.readouterr().err
    assert "our own mistake" in said and "RLVR_TRACEBACK=1" in said and "Traceback" not in said
    monkeypatch.setenv("RLVR_TRACEBACK", "1")
    with pytest.raises(KeyError):
        run_command(["list"])


def test_a_full_disk_is_no_fault_of_ours(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    from rlvr.cli import listing

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "runs/a/metrics.jsonl")

    monkeypatch.setattr(listing, "list_plugins", full)
    assert run_command(["list"]) == 3
    said = capsys.readouterr().err
    assert "the disk is full (writing runs/a/metrics.jsonl)" in said and "bug in rlvr" not in said


def test_the_table_of_files_is_what_it_says() -> None:
    with pytest.raises(yaml.YAMLError):
        yaml.safe_load(FILES["no_yaml.yaml"])
