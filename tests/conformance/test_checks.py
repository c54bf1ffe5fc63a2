# ruff: noqa: E501 -- the tables of defects read better in lines
"""Each check of each kit fails on a defect planted for it, and passes on the same plugin without the defect."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

import rlvr
from rlvr.conformance.check_runner import CheckResult, CheckSkipped, Steps, list_failures, run_checks
from rlvr.conformance.checks import check_plugin, check_verifier, iter_checks
from rlvr.conformance.envkit import iter_env_checks
from rlvr.conformance.verifierkit import iter_verifier_checks
from rlvr.errors import ConfigError
from rlvr.registry.plugins import PACKAGE_FOLDER

HEAD = '''\
"""A plugin with a defect in it."""
import itertools, random, threading, time
from rlvr import Environment, VerifierExample, Fault, Task, Verdict, Verifier, make_user_prompt
from rlvr.extraction import extract_answer

COUNTER = itertools.count()
'''

VERIFIER = '''
class Planted(Verifier):
    """The answer is the reference."""
    version = "1"
    examples = (VerifierExample("42", correct=("42", " 42"), incorrect=("41", "24")), VerifierExample("7", correct=("7",), incorrect=("8",)))

    def verify(self, task, answer):
        if not isinstance(task.reference, str) or not task.reference.strip():
            return Verdict(None, "no reference", fault=Fault.TASK)
        return Verdict(self.score(task.reference, answer.strip()), "compared")

    def score(self, right, said):
        return float(right == said)
'''

# the check that must fail; what of the sound verifier is replaced; by what; words of the complaint
VERIFIER_DEFECTS = [
    ("it can be built", "class Planted(Verifier):", "class Planted:", "not an rlvr.Verifier"),
    ("it says what it is for", '    """The answer is the reference."""\n', "", "no docstring"),
    ("it says what it is for", 'version = "1"', "version = 1", "version is 1"),
    ("it has examples", "examples = (", "examples = () and (", "add VerifierExample"),
    ("it has examples", 'incorrect=("41", "24")), VerifierExample("7", correct=("7",), incorrect=("8",))', "),", "add VerifierExample"),
    ("right answers score 1", "answer.strip()", "answer", "' 42'"),
    ("right answers score 1", "float(right == said)", "0.9 * (right == said)", "scored 0.9"),
    ("wrong answers score 0", "float(right == said)", "float(sorted(right) == sorted(said))", "'24'"),
    ("wrong answers score 0", "float(right == said)", "max(0.1, float(right == said))", "scored 0.1"),
    ("an empty answer scores 0", "float(right == said)", "float(said in right)", "'' for the reference"),
    ("a hedged answer scores 0", "float(right == said)", "float(right in said.split())", "'42 or 41'"),
    ("a denial of the right answer scores 0", "float(right == said)", "float(right in said)", "It is not 42"),
    ("an injected answer scores 0", "float(right == said)", "float(right == said or 'score' in said)", "must output a score"),
    ("no text breaks it", "float(right == said)", "float(right == said or int(said) < 0) if said.isdigit() else 0.0", "raised ValueError"),
    ("no text breaks it", "float(right == said)", "float(right == said.encode().decode())", "surrogates"),
    ("no turn of a conversation breaks it", "    def score", "    def verify_transcript(self, task, transcript):\n        [call.arguments.get('x') for turn in transcript.turns for call in turn.calls]\n        return self.verify(task, transcript.answer)\n\n    def score", "arguments of such a call are None"),
    ("a broken reference gives no score", "return Verdict(None, 'no reference', fault=Fault.TASK)", "return Verdict(0.0, '')", "no score"),
    ("a broken reference gives no score", "fault=Fault.TASK", "fault=Fault.INFRA", "fault infra"),
    ("the same answer gets the same verdict", "float(right == said)", "float(right == said and next(COUNTER) % 2)", "then scored"),
    ("verdicts are the same from many threads", "float(right == said)", "self.shared(right, said)", "in parallel with others"),
    ("verdicts are plain JSON", '"compared")', '"compared", detail={"x": object()})', "not JSON serializable"),
    ("it can be closed twice", "    def verify", "    def close(self):\n        self.__dict__.setdefault('n', []).append(1)\n        1 / (len(self.n) < 2)\n\n    def verify", "ZeroDivisionError"),
    ("right answers score 1", "return Verdict(self.score(task.reference, answer.strip()), 'compared')", "return 1.0", "not a Verdict"),
    ("right answers score 1", "float(right == said)", "2.0 * (right == said)", "scored 2"),
    ("right answers score 1", "float(right == said)", "float('nan')", "finite number"),
]  # fmt: skip

SHARED = """
    def shared(self, right, said):
        self.mine = right
        time.sleep(0.05)
        return float(self.mine == said)
"""

ENV = '''
class Planted(Environment):
    """Say a number backwards."""
    needs = {"verifier": "exact"}

    def __init__(self, *, verifier, extra=None):
        self.verifier = verifier

    def task(self, split, index):
        number = self.number(split, index)
        return Task(make_user_prompt(f"{number}>"), str(number)[::-1], id=f"planted/{split}/{index}")

    def number(self, split, index):
        return random.Random(f"{split}/{index}").randrange(10000, 99999, 2) * 10 + (7 if split == "test" else 8)

    def gold(self, task):
        return task.reference
'''
LENIENT = """
class Lenient(Verifier):
    def verify(self, task, answer):
        return Verdict(float(self.lenient(task, answer)), "judged")
"""


def lenient(rule: str) -> str:
    """The start of a class body whose environment judges by `comparison_rule` instead of by its verifier."""
    return f"""self.verifier = Lenient()
        Lenient.lenient = lambda self, task, answer: {rule}"""


PLAIN = "self.verifier = verifier"
ENV_DEFECTS = [
    ("it can be built", "class Planted(Environment):", "class Planted:", "not an rlvr.Environment"),
    ("it says what it is for", '    """Say a number backwards."""\n', "", "no docstring"),
    ("every split has tasks, each with its own id", "planted/{split}/{index}", "planted/{split}/{index // 2}", "share the id"),
    ("every split has tasks, each with its own id", "    def gold", "    def num_tasks(self, split):\n        return 0\n\n    def gold", "is empty"),
    ("every split has tasks, each with its own id", "str(number)[::-1],", "{1, 2},", "not JSON serializable"),
    ("every split has tasks, each with its own id", "return Task(", "return (lambda *a, **k: a)(", "not an rlvr.Task"),
    ("a task is a function of split and index", 'random.Random(f"{split}/{index}")', "random", "not always the same"),
    ("a task is a function of split and index", 'f"{split}/{index}"', 'f"{split}/{self.__dict__.setdefault(\'k\', next(COUNTER))}/{index}"', "not always the same"),
    ("another process gets the same tasks", 'f"{split}/{index}"', "hash(split) + index", "differ in another process"),
    ("no task is in two splits", 'random.Random(f"{split}/{index}").randrange(10000, 99999, 2) * 10 + (7 if split == "test" else 8)', "10000 + index", "would be trained on"),
    ("every gold can be judged", PLAIN, lenient("0") + "; Lenient.lint = 1; Lenient.verify = lambda self, task, answer: Verdict(None, 'an odd gold', fault=Fault.TASK)", "cannot be read"),
    ("the gold answer scores 1", "return task.reference", "return task.question", "scored 0"),
    ("the gold answer scores 1", "return task.reference", "return ' ' * 40 + task.reference", "max_new_tokens is 32; raise it"),
    ("the gold answer scores 1", "return task.reference", "return int(task.reference)", "it must be a string"),
    ("every split has tasks, each with its own id", "    def task", "    splits = 'train'\n    def task", "must be a tuple of names"),
    ("every split has tasks, each with its own id", "    def gold", "    def num_tasks(self, split):\n        return '7'\n\n    def gold", "num_tasks('train') is '7'"),
    ("an empty answer scores 0", PLAIN, lenient("answer.strip() in task.reference"), "''"),
    ("the question as an answer scores 0", PLAIN, lenient("task.reference in (answer, answer[:-1][::-1])"), ">'"),
    ("a hedged answer scores 0", PLAIN, lenient("task.reference in answer.split()"), " or "),
    ("a denial of the gold answer scores 0", PLAIN, lenient("task.reference in answer and ' or ' not in answer"), "It is not"),
    ("an injected answer scores 0", PLAIN, lenient("answer == task.reference or 'score' in answer"), "must output a score"),
    ("whatever a hostile player does gets a score", PLAIN, lenient("answer == task.reference or 0 * len(answer.encode('ascii'))"), "raised UnicodeEncodeError"),
    ("the prompt does not contain the answer", '{number}>"', '{number}> (it is {str(number)[::-1]})"', "contain their own answer"),
    ("Gymnasium's own check passes, obs=dict", PLAIN, PLAIN + "\n        self.max_new_tokens = 1", "at least 2"),
    ("Gymnasium's own check passes, obs=ids", "    def gold", "    max_prompt_tokens = 1\n    max_new_tokens = 2\n\n    def gold", "raise max_length"),
    ("Gymnasium's own check passes, obs=onehot_ids", 'f"{split}/{index}"', "time.perf_counter()", "determinis"),
    ("Gymnasium's own check passes, obs=text", 'f"{split}/{index}"', "time.perf_counter()", "determinis"),
    ("the same seed gives the same episode", 'random.Random(f"{split}/{index}")', "random", "two different episodes"),
    ("SyncVectorEnv and AsyncVectorEnv agree", 'f"{split}/{index}"', "hash(split) + index", "observations differ"),
    ("stepping gives the same result as sampling", PLAIN, lenient("next(COUNTER) % 2"), "the reward is"),
    ("stepping gives the same result as sampling", PLAIN, lenient("1 / 0"), "ZeroDivisionError"),
    ("it can be closed twice", "    def task", "    def close(self):\n        self.__dict__.setdefault('n', []).append(1)\n        1 / (len(self.n) < 2)\n\n    def task", "ZeroDivisionError"),
]  # fmt: skip


def only(steps: Steps, wanted: str) -> CheckResult:
    """Make one check of a kit and leave out the others."""

    def chosen() -> Iterator[Any]:
        for name, look in steps:
            if name == wanted:
                yield name, look

    made = list(run_checks(chosen()))
    return made[-1]


def planted(folder: Path, text: str, old: str, new: str) -> str:
    old = old if old in text else old.replace("'", '"')
    assert old in text, f"the sound plugin has no {old!r}"
    path = folder / "planted.py"
    path.write_text(HEAD + text.replace(old, new), "utf-8")
    return f"{path}:Planted"


@pytest.mark.parametrize(("wanted", "old", "new", "words"), VERIFIER_DEFECTS, ids=[f"{i}-{d[0]}" for i, d in enumerate(VERIFIER_DEFECTS)])
def test_the_verifier_kit_finds(wanted: str, old: str, new: str, words: str, tmp_path: Path) -> None:
    check = only(iter_verifier_checks(planted(tmp_path, VERIFIER + SHARED, old, new), {}), wanted)
    assert check.name == wanted and not check.ok and words in check.detail, check


def test_the_sound_verifier_passes(tmp_path: Path) -> None:
    checks = check_verifier(planted(tmp_path, VERIFIER, "42", "42"))
    assert list_failures(checks) == [] and {d[0] for d in VERIFIER_DEFECTS} == {check.name for check in checks}


@pytest.mark.slow
@pytest.mark.parametrize(("wanted", "old", "new", "words"), ENV_DEFECTS, ids=[f"{i}-{d[0]}" for i, d in enumerate(ENV_DEFECTS)])
def test_the_env_kit_finds(wanted: str, old: str, new: str, words: str, tmp_path: Path) -> None:
    check = only(iter_env_checks(planted(tmp_path, LENIENT + ENV, old, new), {}), wanted)
    assert check.name == wanted and not check.ok and words in check.detail, check


@pytest.mark.slow
def test_the_sound_env_passes_and_every_check_has_its_defect(tmp_path: Path) -> None:
    checks = check_plugin("env", planted(tmp_path, LENIENT + ENV, "planted/", "planted/"))
    assert list_failures(checks) == [] and not any(check.skipped for check in checks)
    assert {d[0] for d in ENV_DEFECTS} | {"its settings are plain"} == {check.name for check in checks}


def test_settings_that_cannot_travel_are_found(tmp_path: Path) -> None:
    name = planted(tmp_path, ENV, "planted/", "planted/")
    check = only(iter_env_checks(name, {"extra": {1, 2}}), "its settings are plain")
    assert not check.ok and "are sent to other processes" in check.detail


def test_what_cannot_be_built_is_one_failed_check(tmp_path: Path) -> None:
    (check,) = iter_checks("env", planted(tmp_path, ENV, "self.verifier = verifier", "1 / 0"), {})
    assert not check.ok and "ZeroDivisionError" in check.detail


def test_a_wrong_name_or_setting_is_the_callers() -> None:
    for name, settings in (("arithmetik", {}), ("arithmetic", {"levels": ["2/2"]})):
        with pytest.raises(ConfigError):
            list(iter_checks("env", name, settings))


def test_a_check_that_cannot_be_made_says_so(tmp_path: Path) -> None:
    def look() -> str:
        raise CheckSkipped("nothing to look at")

    (check,) = run_checks(iter([("a check", look)]))
    assert check == CheckResult("a check", True, "nothing to look at", skipped=True)
    none = planted(tmp_path, ENV, "return task.reference", "return None")
    assert only(iter_env_checks(none, {}), "the gold answer scores 1").skipped


@pytest.mark.slow
@pytest.mark.parametrize("wanted", ["another process gets the same tasks", "SyncVectorEnv and AsyncVectorEnv agree"])
def test_what_a_plugin_prints_is_not_taken_for_a_result(wanted: str, tmp_path: Path) -> None:
    name = planted(tmp_path, ENV, "number = self", "print('loading', flush=True); number = self")
    check = only(iter_env_checks(name, {}), wanted)
    assert check.ok, check
    name = planted(tmp_path, ENV, "number = self", "print('loading', flush=True); raise SystemExit(0); number = self")
    check = only(iter_env_checks(name, {}), wanted)
    assert not check.ok, check


@pytest.mark.parametrize(("kind", "old"), [("verifier", "return float("), ("env", "number = self")])
def test_a_plugin_that_waits_for_ever_is_not_waited_for(kind: str, old: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlvr.conformance.check_runner.CHECK_TIMEOUT_S", 0.5)
    text = VERIFIER if kind == "verifier" else ENV
    *before, last = iter_checks(kind, planted(tmp_path, text, old, f"threading.Event().wait(3); {old}"), {})
    assert list_failures(before) == [] and not last.ok and "not finished after 0.5 s" in last.detail


@pytest.mark.slow
def test_a_verifier_that_locks_itself_up_among_threads_does_not_hold_up_the_end(tmp_path: Path) -> None:
    locked = (
        "(time.sleep(0.05), self.__dict__.setdefault('lock', threading.Lock()).acquire(blocking=threading.active_count() > 3))[0] or 0.0"
    )
    name = planted(tmp_path, VERIFIER, "float(right == said)", f"float(right == said) or {locked}")
    code = f"import rlvr.conformance.checks as c, rlvr.conformance.check_runner as s; s.CHECK_TIMEOUT_S = 2; print([x.name for x in c.check_verifier({name!r}) if 'not finished' in x.detail])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, cwd=PACKAGE_FOLDER.parent)
    assert done.stdout.strip() == "['verdicts are the same from many threads']", done


@pytest.mark.slow
def test_the_kit_leaves_nothing_behind(tmp_path: Path) -> None:
    import multiprocessing

    name = planted(tmp_path, ENV, "planted/", "planted/")
    list(iter_checks("env", name, {}))
    assert multiprocessing.active_children() == []
    shutil.rmtree(tmp_path / "__pycache__", ignore_errors=True)
    assert [path.name for path in tmp_path.iterdir()] == ["planted.py"]


def test_a_name_of_this_process_is_checked_but_for_what_other_processes_see() -> None:
    class Counting(rlvr.Environment):
        """Asks for the next number."""

        needs: ClassVar = {"verifier": "exact"}

        def __init__(self, *, verifier: rlvr.Verifier) -> None:
            self.verifier = verifier

        def task(self, split: str, index: int) -> rlvr.Task:
            return rlvr.Task(f"after {split} {index}", reference=f"{split} {index + 1}", id=f"counting/{split}/{index}")

        def gold(self, task: rlvr.Task) -> str:
            return str(task.reference)

    rlvr.register("counting_here", Counting)
    found = {result.name: result for result in check_plugin("env", "counting_here")}
    assert not list_failures([*found.values()])
    for name in ("another process gets the same tasks", "SyncVectorEnv and AsyncVectorEnv agree"):
        assert found[name].skipped and "my_envs.py:MyEnv" in str(found[name])
    with pytest.raises(
        ConfigError, match=r"the env to check is the object Counting; give its name, or its file as in 'my_plugins.py:Counting'"
    ):
        check_plugin("env", Counting)  # type: ignore[arg-type]
