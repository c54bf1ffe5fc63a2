"""The adapter of reasoning_gym, against a stand-in with the faults of the real scorers: nothing is paid by mistake, nothing is executed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import rlvr
from rlvr.contracts import ExecutionResult, ExitStatus, Limits
from rlvr.envs._algebra import evaluate_expression, is_formula, verify_formula, verify_without_package_scorer
from rlvr.envs.external import _reasoning_worker as _reasoning
from rlvr.envs.external._reasoning_catalog import (
    ANSWER_PATTERNS,
    COMPARED_BY_ALGEBRA,
    COMPARED_EXACTLY,
    DATASET_NAMES,
    RELATIVE_TOLERANCES,
    UNSUPPORTED,
    WITHOUT_GOLD,
    WORD_COUNT_CHECKED,
    is_well_formed,
)
from rlvr.envs.external.reasoning_gym import ReasoningGym
from rlvr.errors import ConfigError
from rlvr.task import Fault, Verdict

THEIRS = Path(__file__).parents[1] / "fixtures" / "theirs"
PROCESS = {"name": "process", "trusted": True}


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.syspath_prepend(str(THEIRS))
    opened = []

    def make(dataset: str, **settings: Any) -> Any:
        opened.append(rlvr.make_env("reasoning_gym", dataset=dataset, **{"sandbox": PROCESS, **settings}))
        return opened[-1]

    yield make
    for env in opened:
        env.close()


def said(env: Any, answer: str, index: int = 0) -> Verdict:
    verdict: Verdict = env.verifier.verify(env.task("train", index), f"I think <answer>{answer}</answer>")
    return verdict


def test_only_the_right_answer_is_paid(made: Any) -> None:
    env = made("chain_sum")
    env.prepare()
    task = env.task("train", 0)
    gold, other = task.reference["gold"], env.task("train", 1).reference["gold"]
    assert env.verifier.verify(task, env.gold(task)).score == 1.0
    assert said(env, f" {gold}\n").score == 1.0
    for wrong in ("", " ", f"{gold} {gold}", f"{gold} or {other}", f"it is {gold}", task.question, other, "xyzzy", "9" * 30_000, "\ud800"):
        assert (said(env, wrong).score, said(env, wrong).fault) == (0.0, Fault.NONE), wrong
    assert env.verifier.verify(task, gold).score == 0.0  # it is not declared


def test_no_question_is_in_two_splits_whatever_the_seed(made: Any) -> None:
    asked = {
        split: {made_env.task(split, index).question for made_env in envs for index in range(60)}
        for envs in [[made("chain_sum", seed=seed, config={"max_terms": 2}) for seed in (0, 1, 2)]]
        for split in ("train", "test")
    }
    assert len(asked["train"]) > 150 and not asked["train"] & asked["test"]


@pytest.mark.slow
def test_questions_from_programs_are_the_same_in_every_process(made: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the programs of the stand-in, some fail, some write files, some use the shared generator, some draw what nobody can draw again."""
    monkeypatch.chdir(tmp_path)
    one, other = ([made("codeio").task("train", index) for index in range(20)] for _ in range(2))
    assert one == other
    assert {task.question.split()[0] for task in one} == {"shared", "sound"}
    assert all(task.reference["gold"] != "{}" for task in one) and not list(tmp_path.iterdir())


def test_what_an_answer_says_is_never_executed(made: Any, tmp_path: Path) -> None:
    """The scorer of the set `gcd` of the stand-in calls eval on the answer, as nine of the real ones do."""
    env, mark = made("gcd"), tmp_path / "mark"
    for wrong in (f"__import__('pathlib').Path({str(mark)!r}).touch()", f"[open({str(mark)!r}, 'w')]", "1+1"):
        verdict = said(env, wrong)
        assert verdict.score == 0.0 and not mark.exists()
    task = env.task("train", 0)
    assert env.verifier.verify(task, env.gold(task)).score == 1.0  # a text of the question's own entry


def test_without_the_watch_the_same_answer_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The test above can fail: the scorer does execute its answer where nothing watches."""
    monkeypatch.syspath_prepend(str(THEIRS))
    questions, mark = _reasoning.ReasoningDataset(dataset="gcd", config={}), tmp_path / "mark"
    with pytest.raises(TypeError):
        questions.dataset.score_answer(f"int(__import__('pathlib').Path({str(mark)!r}).touch())", questions.get_question_and_answer(0))
    assert mark.exists()


def test_a_scorer_that_breaks_at_an_answer_is_the_answers_fault(made: Any) -> None:
    verdict = said(made("prime_factorization"), "two times three")
    assert (verdict.score, verdict.fault) == (0.0, Fault.ANSWER) and "ValueError" in verdict.reason


def test_a_scorer_that_hangs_at_an_answer_is_too_and_the_next_verdict_comes(made: Any) -> None:
    env = made("lcm")
    env.package_verifier.host.call_timeout_s = 0.5
    assert said(env, "12").fault is Fault.ANSWER
    task = env.task("train", 0)
    assert env.verifier.verify(task, env.gold(task)).score == 1.0


def test_a_scorer_that_breaks_at_every_answer_gives_no_score(made: Any) -> None:
    verdict = said(made("dice"), "12")
    assert (verdict.score, verdict.fault) == (None, Fault.INFRA) and "no answer can be scored" in verdict.reason


@pytest.mark.parametrize("answer", ["7.5", "nan", "text"])
def test_a_score_that_makes_no_sense_is_none(made: Any, answer: str) -> None:
    verdict = said(made("products"), answer)
    assert (verdict.score, verdict.fault) == (None, Fault.INFRA) and "it must be a number from 0 to 1" in verdict.reason


def test_a_sentence_around_the_moves_is_not_an_answer(made: Any) -> None:
    env = made("sokoban")
    gold = env.task("train", 0).reference["gold"]
    assert said(env, gold).score == 1.0
    assert [said(env, wrong).score for wrong in (f"The moves are {gold}", f"not {gold}", f"[{gold!r}]")] == [0.0] * 3


def test_a_set_that_pays_everything_is_compared_here(made: Any) -> None:
    env = made("game_of_life_halting")
    assert said(env, env.task("train", 0).reference["gold"]).score == 1.0
    assert said(env, "xyzzy").score == 0.0


def test_countdown_is_exact_arithmetic_of_the_given_numbers(made: Any) -> None:
    env = made("countdown", config={"min_terms": 2, "max_terms": 2})
    one, two = env.package_verifier.call_instance("get_metadata", number=env.task("train", 0).reference["number"], names=["numbers"])[
        "numbers"
    ]
    assert said(env, f"{one} + {two}").score == 1.0
    for wrong in (f"{one + two}", f"{one} + {two} + 0", f"int('{one}') + {two}", f"{one} + {two}.0", "__import__('os')", f"{one} - {two}"):
        assert said(env, wrong).score == 0.0, wrong


@pytest.mark.slow
def test_integrals_are_compared_in_the_sandbox(made: Any) -> None:
    env = made("simple_integration")
    gold = env.task("train", 0).reference["gold"]
    assert said(env, gold).score == 1.0
    assert said(env, gold.replace("sin(x)", "cos(x)")).score == 0.0


@pytest.mark.docker
def test_integrals_are_compared_in_a_container(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlvr.envs._algebra.COMPARE_LIMITS", Limits(cpu_s=4.0, wall_s=20.0, memory_mb=512))
    with rlvr.make_sandbox("docker") as sandbox:
        names = frozenset("xC")
        assert verify_formula(sandbox, "x**2/2 + C", "x", allowed_names=names, differentiate_by="x").score == 1.0
        assert verify_formula(sandbox, "x**2 + C", "x", allowed_names=names, differentiate_by="x").score == 0.0
        bomb = verify_formula(sandbox, "9**9**9**9", "x", allowed_names=names, differentiate_by="x", gold="x**2/2 + C")
        assert (bomb.score, bomb.fault) == (0.0, Fault.ANSWER)


def test_a_sandbox_that_fails_is_no_score() -> None:
    class Failing(rlvr.Sandbox):
        def run_program(self, program: Any) -> Any:
            return ExecutionResult(ExitStatus.INTERNAL_ERROR, reason="no engine")

    verdict = verify_formula(Failing(), "x", "x", allowed_names=frozenset("x"))
    assert (verdict.score, verdict.fault) == (None, Fault.INFRA)


def test_only_formulas_reach_the_algebra() -> None:
    names = frozenset("xC")
    for text in ("x**2/2 + C", "-3*x*sin(x) + exp(2*x) + log(x)", "2.5*(x - 1)**-2", "E**x + pi"):
        assert is_formula(text, names), text
    for text in (
        "sin(x, evaluate=1)",
        "__import__('os').system('id')", "x.__class__", "(lambda: x)()", "[x for x in (1,)]", "'x'", "x if x else 1", "f(x)",
        "x[0]", "x == x", "y", "x; C", "(" * 500 + "x" + ")" * 500, "x\x00", "", "x" * 5000, "True", "1j", "x := 1", "`x`", "*x",
    ):  # fmt: skip
        assert not is_formula(text, names), text
    assert [evaluate_expression(text) for text in ("2**3", "1/0", "1.5", "x", "((((", "--1 +", "")] == [None] * 7


def test_a_product_is_right_only_if_it_is_worked_out() -> None:
    """Its own question, (12*z + 43)*(7*z - 2), equals the right answer."""
    right = "84*z**2 + 277*z - 86"

    def score(said: str, gold: str = right) -> float | None:
        return verify_without_package_scorer("polynomial_multiplication", said, {"variables": ["z"]}, gold, None).score

    for text in (right, "-86 + 277*z + 84*z*z", "+84*z**2 - -277*z - 86".lstrip("+"), " 84*z**2+277*z-86"):
        assert score(text) == 1.0, text
    for text in (
        "(12*z + 43)*(7*z - 2)", "z*(84*z + 277) - 86", "12*z*7*z + 277*z - 86", "84*z**2 + 301*z - 24*z - 86", "84*z**2 + 277*z - 80 - 6",
        "84*z**2 + 277*z", "84*x**2 + 277*x - 86", "84*z**2.0 + 277*z - 86", "84*z**(1+1) + 277*z - 86", "", "z", "__import__('os')",
        f"{right} {right}", f"{right} or z", "True*z",
    ):  # fmt: skip
        assert score(text) == 0.0, text
    assert verify_without_package_scorer("polynomial_multiplication", "z", {"variables": ["z"]}, "(z + 1)*z", None).fault is Fault.TASK


def test_the_tables_agree() -> None:
    assert len(DATASET_NAMES) == 105
    assert (
        {*COMPARED_EXACTLY, *COMPARED_BY_ALGEBRA, *ANSWER_PATTERNS, *WITHOUT_GOLD, *RELATIVE_TOLERANCES} <= DATASET_NAMES
        and set(ANSWER_PATTERNS) >= WORD_COUNT_CHECKED
        and not DATASET_NAMES & set(UNSUPPORTED)
    )
    rows = ReasoningGym.list_support_status()
    assert {row["name"] for row in rows} == DATASET_NAMES | set(UNSUPPORTED) and all(row["why"] for row in rows)


@pytest.mark.parametrize(
    ("name", "right", "wrong"),
    [
        ("quantum_lock", ("A → B", "C→A"), ("A → B is it", "['A']")),
        ("kakurasu", ("1 0\n0 1",), ("The answer is 1 0",)),
        ("complex_arithmetic", ("-15.0 + 3.0i", "(2 - i)"), ("nan", "inf", "nani")),
        ("advanced_geometry", ("(14.364, -5.000)", "67.38°", "2.5"), ("(1, 2), 3", "1 or 2")),
        ("knights_knaves", ("Riley is an altruist, and Daniel is an egoist.",), ("Not so: Riley is an altruist and Daniel is an egoist.",)),
    ],
)  # fmt: skip
def test_the_form_of_an_answer(name: str, right: tuple[str, ...], wrong: tuple[str, ...]) -> None:
    assert [is_well_formed(name, text, None) for text in (*right, *wrong)] == [True] * len(right) + [False] * len(wrong)


def test_a_probability_near_zero_is_not_zero() -> None:
    assert [is_well_formed("coin_flip", text, "0.00004") for text in ("0", "0.00004", "1/25000", "0.0001", "1/0", "9e-999999999")] == [
        False, True, True, False, False, False,
    ]  # fmt: skip


def test_settings_that_make_no_sense_are_one_message_each(made: Any) -> None:
    for settings, words in (
        ({"dataset": "composite"}, "is not offered: a mixture"),
        ({"dataset": "chain_sums"}, "did you mean 'chain_sum'"),
        ({"dataset": "gcd", "config": {"seed": 3}}, "config sets seed"),
        ({"dataset": "gcd", "extractor": "nowhere"}, "nowhere"),
    ):
        with pytest.raises(ConfigError, match=words):
            made(**settings)
    for config, words in (({"terms": 3}, "unexpected keyword"), ({"min_terms": 5}, "min_terms must be <=")):
        with pytest.raises(ConfigError, match=f"cannot make chain_sum .*{words}"):
            made("chain_sum", config=config).task("train", 0)


def test_another_version_is_refused(made: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlvr.envs.external.reasoning_gym.VERSION", "9.9")
    with pytest.raises(ConfigError, match=r"reasoning_gym 0\.1\.25 is installed, 9\.9 is needed"):
        made("chain_sum").prepare()
