"""What users of other libraries type first: it works where it is unambiguous, and gets one message with the right call where it is not."""

from __future__ import annotations

import functools
import math
from pathlib import Path
from typing import Any

import gymnasium
import pytest

import rlvr
from rlvr.config.rollout import RolloutConfig
from rlvr.errors import ConfigError
from rlvr.hints import NAMES, write_settings_as_keywords
from rlvr.mdp.tokenizers import load_tokenizer
from rlvr.synonyms import DEFAULT_NUM_GENERATIONS, FUNCTIONS, LISTS, translate_keywords
from rlvr.training.callbacks import check_callbacks
from rlvr.training.run_inputs import resolve_run_inputs
from tests.fixtures import learning
from tests.fixtures.templates import CHATML, tokenizer_for
from tests.fixtures.worlds import Sums
from tests.test_library import SMALL, TOKENIZER, tiny_model

api: Any = rlvr
"""The library without its types: a guess has wrong ones."""
ROWS = [{"question": f"{a}+1=", "answer": str(a + 1)} for a in range(20)]


def correct(completion: str, answer: str, **columns: Any) -> float:
    return float(answer in completion)


def brief(completion: str, **columns: Any) -> float:
    return float(len(completion) < 5)


def read_message(call: Any) -> str:
    """The message of the error that a call raises."""
    with pytest.raises((rlvr.RlvrError, TypeError, AttributeError)) as caught:
        call()
    return str(caught.value)


# ---- verifiers --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("word", ["reward", "rewards", "reward_fn", "reward_func", "reward_funcs", "reward_function", "reward_functions"])
def test_a_reward_function_has_its_usual_names_in_every_call(word: str) -> None:
    given: dict[str, Any] = {word: correct}
    assert api.verify("it is 4", "4", **given).score == 1.0
    assert api.make_env(ROWS, **given).verifier.name == "correct"
    assert api.evaluate(ROWS, lambda prompt: "4", **given).accuracy == 0.05
    with pytest.raises(ConfigError, match="returned nan, and a score is a finite number"):
        api.train(model="no/such-model", data=ROWS, **{word: lambda completion: math.nan})  # it is called before the model is loaded
    with pytest.raises(ConfigError, match="returned nan, and a score is a finite number"):
        api.Trainer(model="no/such-model", data=ROWS, **{word: lambda completion: math.nan})


def test_a_verifier_is_set_on_an_environment_that_is_named() -> None:
    named = resolve_run_inputs(model="m", env="arithmetic", verifier="exact")
    assert named.config.env == {"name": "arithmetic", "verifier": "exact"} and named.environment is None
    for given in ({"env": "arithmetic", "verifier": correct}, {"env": {"name": "arithmetic", "verifier": correct}}):
        made = resolve_run_inputs(None, {"env.levels": ["1+1"]}, model="m", **given).environment
        assert made is not None and made.verifier.name == "correct" and len(made.levels) == 1  # type: ignore[attr-defined]
    with pytest.raises(ConfigError, match=r"returned nan, and a score is a finite number"):
        resolve_run_inputs(model="m", env="arithmetic", verifier=lambda completion: math.nan)
    with pytest.raises(ConfigError, match=r"write|set it on the environment: env=rlvr.make_env\(name, verifier=...\)"):
        resolve_run_inputs(model="m", env=rlvr.make_env("arithmetic"), verifier="exact")


def test_an_evaluation_sets_a_verifier_on_an_environment_that_is_named() -> None:
    for verifier in (brief, {"name": "exact", "ignore_case": True}):
        report = rlvr.evaluate("arithmetic", lambda prompt: "four", verifier=verifier, tasks=2)
        assert report.accuracy == float(verifier is brief)
    report = rlvr.evaluate("arithmetic", lambda prompt: "2", verifier="exact", tasks=2, settings={"levels": ["1+1"]})
    assert list(report.envs) == ["arithmetic"] and report.plan.envs[0].env == {"name": "arithmetic", "levels": ["1+1"], "verifier": "exact"}
    with pytest.raises(ConfigError, match=r"set it on the environment: rlvr.make_env\(name, verifier=...\)"):
        rlvr.evaluate(rlvr.make_env("arithmetic"), lambda prompt: "2", verifier="exact")


def test_a_completion_beside_an_answer_is_verified_against_it() -> None:
    for word in ("completion", "response", "output"):
        assert api.verify("math", answer="4", **{word: "it is 4"}).score == 1.0
        assert api.verify(rlvr.make_verifier("math"), answer="4", **{word: "it is 5"}).score == 0.0
    assert api.verify(completion=r"\boxed{4}", answer="4").score == 1.0
    assert rlvr.make_verifier("math")(completion="it is 4", answer="4").score == 1.0
    message = read_message(lambda: api.verify(rlvr.make_verifier("math"), "4", "4", tolerance=0.1))
    assert "no argument 'tolerance'" in message and "when it is made" in message and "built already" not in message


def test_several_answers_take_the_columns_of_data() -> None:
    for columns in ({"answer": ["4", "4"]}, {"solution": ["4", "4"]}, {"ground_truth": ["4", "4"]}):
        assert [v.score for v in api.verify_many("math", ["4", "5"], **columns)] == [1.0, 0.0]
        assert [v.score for v in api.verify_many("math", completions=["4", "5"], **columns)] == [1.0, 0.0]
    assert "got the references twice" in read_message(lambda: api.verify_many("math", ["4"], ["4"], answer=["4"]))


def test_a_verifier_is_no_environment_and_a_choice_is_no_truth_value() -> None:
    assert "'symbolic' is a verifier: rlvr.make_env(data, verifier='symbolic')" in read_message(lambda: rlvr.make("symbolic"))
    assert "scale_rewards is False; allowed: batch, group, none" in read_message(lambda: rlvr.make_algorithm("grpo", scale_rewards=False))
    assert rlvr.evaluate("arithmetic", "scripted:gold", tasks=1, num_generations=2).plan.n == 2
    assert len(rlvr.evaluate("arithmetic", "scripted:gold", num_samples=2, n=1).samples) == 2
    assert len(rlvr.evaluate("arithmetic", "scripted:gold", num_samples=2).samples) == 2


def test_the_record_of_a_run_has_the_settings_of_an_algorithm_object() -> None:
    inputs = resolve_run_inputs(model="m", env="arithmetic", algorithm=rlvr.make_algorithm("dr_grpo", beta=0.04))
    assert dict(inputs.config.algorithm) == {"name": "dr_grpo", "beta": 0.04} and inputs.algorithm is not None
    changed = resolve_run_inputs(model="m", env="arithmetic", algorithm=rlvr.make_algorithm("grpo", loss="cispo"))
    assert changed.config.algorithm["name"] == "object:PolicyGradient"  # its parts are not those of the name
    assert resolve_run_inputs("quickstart", model="m", env="arithmetic").environment is None
    assert dict(resolve_run_inputs("arithmetic", model="m").config.env) == {"name": "arithmetic"}


def test_two_texts_are_an_answer_and_a_reference_though_one_looks_like_a_name() -> None:
    assert rlvr.verify("x equals 4", "x=4").score == 0.0 and rlvr.verify("exact: 4", "4").score is not None
    assert "two texts alone are compared by rlvr.verify(answer=..., reference=...)" in read_message(lambda: rlvr.verify("equal", "4"))


def test_a_list_of_verifiers_has_weights() -> None:
    for verifier in (
        rlvr.make_verifier([correct, brief], weights=[1.0, 0.25]),
        rlvr.make_verifier([{"verifier": correct, "weight": 1.0}, {"verifier": brief, "weight": 0.25}]),
        rlvr.make_verifier([correct, {"verifier": brief, "weight": 0.25}]),
    ):
        verdict = verifier("4", "5")
        assert verdict.score == 0.2 and dict(verdict.components) == {"correct": 0.0, "brief": 1.0}
    assert rlvr.make_verifier(["exact", {"name": "exact", "ignore_case": True}])("a", "A").score == 0.5
    assert rlvr.make_verifier([{"name": "numeric", "tolerance": 0.1}])("4.05", "4").score == 1.0
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"weights": [1.0]}, "there are 2 verifiers; give a list with the weight of each"),
        ({"correct": {"verifier": correct}}, "weights=[1.0, 0.2]"),
        ({"weights": [1.0, -1.0]}, "the weight of 'brief' is -1.0"),
    ]
    for settings, words in wrong:
        assert words in read_message(lambda settings=settings: rlvr.make_verifier([correct, brief], **settings))
    assert "weights=[1.0, 0.2]" in read_message(lambda: rlvr.make_verifier({correct: 1.0, brief: 0.2}, tolerance=1))


def test_the_range_of_a_reward_is_the_verifiers() -> None:
    def reward(completion: str, answer: str) -> float:
        return 2.0 if answer in completion else -1.0

    for call in (
        lambda: api.train(model="m", data=ROWS, reward_funcs=reward, score_range=(-1, 2)),
        lambda: api.evaluate("arithmetic", lambda prompt: "4", score_range=(-1, 2)),
        lambda: api.make_env(ROWS, verifier=reward, score_range=(-1, 2)),
    ):
        assert "verifier=rlvr.make_verifier(function, score_range=(-1, 2))" in read_message(call)
    verifier = rlvr.make_verifier(reward, score_range=(-1, 2))
    assert [rlvr.verify(verifier, answer, "4").score for answer in ("4", "5")] == [1.0, 0.0]


def test_a_hint_does_not_name_another_verifier_than_the_one_that_was_given() -> None:
    for call in (lambda: api.make_env(verifier=correct), lambda: api.make(reward_funcs=correct), lambda: api.Environment(verifier=correct)):
        assert "(data, verifier=...)" in (message := read_message(call)) and "exact" not in message
    assert "rlvr.make_env(rows, verifier=function)" in read_message(lambda: api.make_env(ROWS, correct))
    assert "rlvr.Rollout(rlvr.make_env(rows, verifier=function))" in read_message(lambda: api.Rollout(ROWS, verifier=correct))
    message = read_message(lambda: api.evaluate(["1+1=", "2+2="], lambda prompt: "4", verifier=correct))
    assert "env is ['1+1=', '2+2='], which is read as names of environments; questions are rows: rlvr.evaluate([{'question'" in message


# ---- training ---------------------------------------------------------------------------------------------------------


def test_a_trainer_takes_an_algorithm_that_is_built(tmp_path: Path) -> None:
    tokenizer = rlvr.load_tokenizer(TOKENIZER)
    algorithm = rlvr.make_algorithm("grpo", beta=0.0, epsilon=0.1)
    with rlvr.Trainer(
        model=tiny_model(tokenizer), tokenizer=tokenizer, env="arithmetic", algorithm=algorithm, steps=1, out=tmp_path / "a", **SMALL
    ) as trainer:
        assert trainer.algorithm is algorithm and trainer.fit().steps == 1


def test_settings_of_an_algorithm_have_their_usual_names() -> None:
    algorithm: Any = api.make_algorithm("grpo", kl_coef=0.02, clip_range=0.1)
    assert (algorithm.settings.beta, algorithm.settings.epsilon) == (0.02, 0.1)
    config = resolve_run_inputs(model="m", env="arithmetic", beta=0.02, epsilon=0.1).config
    message = read_message(lambda: api.train(model="m", env="arithmetic", kl_coef=0.02, clip_range=0.1, optim="sgd"))
    assert config.algorithm == {"name": "grpo", "beta": 0.02, "epsilon": 0.1}
    assert message.startswith("there is no setting 'optim';") and "kl_coef" not in message
    assert "got beta and kl_coef, which mean the same" in read_message(lambda: api.make_algorithm("grpo", beta=0.1, kl_coef=0.1))


def test_settings_of_a_run_that_an_algorithm_gets_are_told_in_one_message() -> None:
    message = read_message(
        lambda: api.make_algorithm("grpo", group_size=4, num_generations=4, learning_rate=1e-6, loss_type="dr_grpo", kl_coef=0.1)
    )
    for words in (
        "no setting 'group_size'; it is a setting of the run",
        "and no 'num_generations'; it is a setting of the run: rlvr.train(model=..., env=..., algorithm=..., num_gen",
        "learning_rate=1e-6",
        "rlvr.make_algorithm('dr_grpo')",
    ):
        assert words in message
    assert "kl_coef" not in message and "did you mean" not in message


def test_a_model_and_an_environment_may_stand_in_order(tmp_path: Path) -> None:
    tokenizer = rlvr.load_tokenizer("chars")
    loaded = rlvr.LoadedModel(tiny_model(tokenizer), tokenizer)
    loaded.save_pretrained(tmp_path / "m")
    folder: Any = str(tmp_path / "m")
    env: Any = "arithmetic"
    for inputs in (resolve_run_inputs(folder, env, steps=3), resolve_run_inputs(folder, env="arithmetic", steps=3)):
        assert inputs.config.model.path == folder and inputs.config.env == {"name": "arithmetic"} and inputs.config.train.steps == 3
    data: Any = ROWS
    assert isinstance(resolve_run_inputs(folder, data, verifier="numeric").environment, rlvr.Environment)
    assert resolve_run_inputs("some-org/some-model", env).config.model.path == "some-org/some-model"
    assert resolve_run_inputs(folder, {"train.steps": 4}, env="arithmetic").config.train.steps == 4
    assert resolve_run_inputs("quickstart", ["train.steps=4"]).config.train.steps == 4
    report = api.train(loaded, "arithmetic", max_steps=1, output_dir=tmp_path / "run", **SMALL)
    assert report.steps == 1
    assert "write rlvr.train(model=..., env=...)" in read_message(lambda: resolve_run_inputs("quickstart", env))
    assert "write rlvr.train(model=..., data=..., verifier=...)" in read_message(lambda: resolve_run_inputs("quickstart", data))
    assert "and env= is given too" in read_message(lambda: resolve_run_inputs(folder, env, env="countdown"))


def test_rows_are_an_environment_of_a_run_too() -> None:
    assert resolve_run_inputs(model="m", env=ROWS, verifier="exact").environment is not None
    assert resolve_run_inputs(model="m", data=ROWS, verifier="exact").environment is not None


def test_a_trainer_is_told_its_keywords() -> None:
    for call in (lambda: api.Trainer("m", correct), lambda: api.train("m", correct)):
        assert "a function that scores answers is a keyword: verifier=function, with data=rows" in read_message(call)
    assert "such as rlvr.train(model='DIR', data=rows, verifier=function" in read_message(lambda: api.Trainer("m", correct, None, ROWS))


def test_a_run_that_saved_nothing_has_no_model(tmp_path: Path) -> None:
    tokenizer = rlvr.load_tokenizer(TOKENIZER)
    given: dict[str, Any] = {"model": tiny_model(tokenizer), "tokenizer": tokenizer, "env": "arithmetic", **SMALL}
    rlvr.Trainer(steps=1, out=tmp_path / "run", **given).close()
    for call in (
        lambda: rlvr.load_run(tmp_path / "run").checkpoint,
        lambda: rlvr.load_model(tmp_path / "run"),
        lambda: rlvr.evaluate("arithmetic", str(tmp_path / "run"), tasks=1),
        lambda: rlvr.evaluate("arithmetic", f"hf:{tmp_path / 'run'}", tasks=1),
        lambda: rlvr.generate(tmp_path / "run", "1+1="),
    ):
        assert "is the folder of a run that has saved no checkpoint" in read_message(call)


# ---- verdicts and results ---------------------------------------------------------------------------------------------


def test_a_verdict_says_how_its_fields_are_called() -> None:
    message = read_message(lambda: api.Verdict(correct=1.0, info="substring"))
    assert "write score=" in message and "info: write detail=" in message and "the call is rlvr.Verdict(score, reason=''" in message


@pytest.mark.parametrize("returned", [(0.5, "half of it"), (0.5, None), (0.5, {"parsed": "4"}), {"score": 0.5, "reason": "half of it"}])
def test_a_function_may_return_a_score_with_its_reason(returned: Any) -> None:
    verdict = rlvr.verify(lambda answer, reference: returned, answer="4", reference="4")
    assert verdict.score == 0.5 and ("half of it" in verdict.reason) == ("half of it" in str(returned))
    assert "why not" in rlvr.verify(lambda answer, reference: (None, "why not"), answer="4", reference="4").reason
    assert rlvr.verify(lambda answer, reference: (1.0, 2.0), answer="4", reference="4").score is None


def test_a_word_of_the_command_line_is_told_in_python() -> None:
    assert "mean_score" in read_message(lambda: rlvr.evaluate("arithmetic", lambda prompt: "4", allow_unscored=True))


def test_a_function_may_return_a_verdict_and_keeps_its_reason() -> None:
    def includes(completion: str, target: str) -> rlvr.Verdict:
        return rlvr.Verdict(score=float(target in completion), reason="substring")

    assert rlvr.verify(includes, "it is 4", "4").reason == "substring"
    report = rlvr.evaluate(ROWS[:1], lambda prompt: "1", verifier=includes)
    assert report.samples[0].reason == "substring" and report.accuracy == 1.0

    def wrong(completion: str, target: str) -> Any:
        return api.Verdict(correct=1.0, info="substring")

    with pytest.raises(ConfigError, match=r"write score=; info: write detail="):
        rlvr.evaluate(ROWS, lambda prompt: pytest.fail("it was sampled"), verifier=wrong)


def test_the_table_of_an_evaluation_shows_the_cause_of_an_unscored_answer() -> None:
    def fails(completion: str, target: str) -> float:
        raise RuntimeError("a long way round " * 9 + "to the cause")

    report = rlvr.evaluate(ROWS[:1], lambda prompt: "1", verifier=fails)
    assert "to the cause" in " ".join(str(report).split())


def test_a_sampler_returns_tokens() -> None:
    completion: Any = rlvr.Completion([1, 2], [-1.0, -1.0], "stop")
    assert "tokenizer.decode(completion.tokens); rlvr.generate(sampler, prompts) returns texts" in read_message(lambda: completion.text)
    assert completion.finish_reason == "stop" and completion.token_ids == [1, 2]


def test_one_task_is_evaluated() -> None:
    report = api.evaluate(api.Task("1+1=", reference="2"), lambda prompt: "2", verifier="exact")
    assert report.accuracy == 1.0 and "write .score, or .verdict" in read_message(lambda: report.samples[0].scores)
    assert "write .is_complete" in read_message(lambda: report.status)


def test_a_loaded_model_says_what_its_model_has() -> None:
    tokenizer = rlvr.load_tokenizer(TOKENIZER)
    loaded: Any = rlvr.load_model(tiny_model(tokenizer), tokenizer)
    assert "write .model.config" in read_message(lambda: loaded.config) and not hasattr(loaded, "to_dict")
    assert "write .generate([{'role': 'user'" in read_message(lambda: loaded.chat("hi"))
    assert "rlvr.generate(policy, prompts, n=4, temperature=0.7" in read_message(lambda: api.GenerateConfig(temperature=0.5))


def test_a_task_and_an_endpoint_are_told_as_they_are_written() -> None:
    for given in ({"input": "2+2=", "target": "4"}, {"question": "2+2=", "answer": "4"}, {"prompt": "2+2=", "answer": "4"}):
        assert api.Task(**given) == rlvr.Task("2+2=", reference="4")
    assert "such as rlvr.Task('2+2=', reference='4')" in read_message(lambda: api.Task(question="2+2=", solution="4"))
    message = read_message(lambda: api.Task(dataset=[], solver=None, scorer=None))
    assert message.count("an rlvr.Task is one question") == 1 and "dataset, solver, scorer: " in message
    assert "write openai:URL#gpt-4o" in read_message(lambda: api.evaluate(ROWS, "openai/gpt-4o", verifier="exact"))


# ---- tools and sandboxes ----------------------------------------------------------------------------------------------


def test_a_decorated_function_has_what_a_tool_has_and_stays_a_function() -> None:
    @api.tool
    def multiply(a: int, b: int = 1) -> int:
        """Multiply two integers.

        Args:
            a: the first one.
        """
        return a * b

    spec = rlvr.make_tool(multiply).specs()[0]
    assert (multiply.name, multiply.description, multiply.parameters) == (spec.name, spec.description, spec.parameters)
    assert multiply(a=2, b=3) == 6 and spec.name == "multiply" and spec.parameters["required"] == ["a"]


def test_a_function_that_makes_a_tool_is_refused_where_it_is_decorated() -> None:
    def add() -> Any:
        async def execute(x: int, y: int) -> str:
            """Add two numbers."""
            return str(x + y)

        return execute

    message = read_message(lambda: rlvr.tool(add))
    assert "decorate the function that does the work" in message and "@rlvr.tool def add(x: int, y: int) -> str" in message

    @rlvr.tool
    def count() -> int:
        """Count to three."""

        def up(number: int) -> int:
            return number + 1

        return up(2)

    assert rlvr.make_tool(count)() == "3"


def test_a_session_names_the_calls_of_other_sandboxes_and_a_function_its_arguments() -> None:
    with api.make_sandbox("process", trusted=True) as sandbox, sandbox.create_session() as session:
        found: Any = session
        assert found.exec(["ls"]).success and found.execute("echo 1").output == "1\n"
        assert "write .write_file('a.txt', 'hello')" in read_message(lambda: found.put("a.txt"))

    def grade(sample: str, target: Any) -> float:
        return float(target["answer"] in sample)

    message = read_message(lambda: rlvr.verify("4", "4", verifier=grade))
    assert "`sample` is a text: what the policy wrote" in message and "`target` is the reference of the task" in message


@pytest.mark.parametrize(
    ("call", "literal"),
    [
        (lambda: api.make_sandbox("local"), "rlvr.make_sandbox('process', trusted=True)"),
        (lambda: api.make_sandbox("process"), "rlvr.make_sandbox('process', trusted=True)"),
        (lambda: api.make_sandbox("local", trusted=True), "rlvr.make_sandbox('process', trusted=True)"),
        (
            lambda: api.make_sandbox("local", mem_limit="256m", network_disabled=False, processes=2),
            "rlvr.make_sandbox('process', trusted=True, processes=2, memory_mb=256)",
        ),
        (lambda: api.make_sandbox("process", mem_limit="1g"), "rlvr.make_sandbox('process', trusted=True, memory_mb=1024)"),
        (lambda: api.make_sandbox("docker", mem_limit=2**28, network=True), "rlvr.make_sandbox('docker', memory_mb=256)"),
    ],
)
def test_everything_wrong_with_a_sandbox_is_told_with_the_call_that_is_meant(call: Any, literal: str) -> None:
    message = read_message(call)
    assert f"write {literal}" in message
    if "'process'" in literal:
        sandbox = eval(literal)
        sandbox.close()


def test_a_sandbox_says_how_a_command_is_run() -> None:
    message = read_message(lambda: api.make_sandbox("local", mem_limit=256, network_disabled=False))
    assert "'mem_limit'; write memory_mb=" in message and "and no 'network_disabled'; no program in a sandbox has a network" in message
    with rlvr.make_sandbox("process", trusted=True) as made:
        sandbox: Any = made
        for call in (sandbox.exec, sandbox.run):
            assert call(["sh", "-c", "echo $((1 + 1))"], timeout=5).stdout == "2\n"
        assert "a command that is a list has no stdin" in read_message(lambda: sandbox.run(["cat"], stdin="1"))
        assert "with sandbox.create_session() as session" in read_message(lambda: sandbox.run(7))
        with sandbox.create_session() as session:
            assert session.run(["ls", "-l"]).ok
        assert sandbox.run("1").returncode == 0


# ---- callbacks and records --------------------------------------------------------------------------------------------


class StopsWithFalse(rlvr.Callback):
    """A callback that stops a run as one of stable-baselines3."""

    def on_step_end(self, trainer: rlvr.Trainer, step: int, record: Any) -> bool:  # type: ignore[override]
        return step < 2


def test_a_callback_that_returns_false_stops_the_run(tmp_path: Path) -> None:
    tokenizer = rlvr.load_tokenizer(TOKENIZER)
    given: dict[str, Any] = {"model": tiny_model(tokenizer), "tokenizer": tokenizer, "env": "arithmetic", **SMALL}
    report = rlvr.train(steps=5, callback=StopsWithFalse(), out=tmp_path / "run", **given)
    assert report.status == "stopped: StopsWithFalse.on_step_end returned False" and report.steps == 2


class PrintsLogs(rlvr.Callback):
    """A callback as it is written for transformers."""

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        """Print the logs."""


class OfTransformers(rlvr.Callback):
    """A hook with the arguments of transformers."""

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # type: ignore[override]
        """Do nothing."""


class NoSubclass:
    """Has a hook and derives from nothing."""

    def on_step_end(self, trainer: Any, step: int, record: Any) -> None:
        """Do nothing."""


class OfItsOwn(rlvr.Callback):
    """Has a method that looks like a hook."""

    def on_full_moon(self) -> None:
        """Do nothing."""


@pytest.mark.parametrize(
    ("callback", "words"),
    [
        (PrintsLogs(), "has the method on_log, which nothing calls; write on_step_end(self, trainer, step, record)"),
        (OfTransformers(), "takes args, state, control, kwargs, as in transformers; write on_step_end(self, trainer, step, record)"),
        (NoSubclass(), "which is no rlvr.Callback; give an object of a subclass of rlvr.Callback"),
        (OfItsOwn, "is a class; give an object of a subclass of rlvr.Callback"),
        (OfItsOwn(), "on_full_moon, which nothing calls; allowed: on_run_begin(self, trainer), on_batch("),
    ],
)
def test_a_callback_whose_methods_would_not_be_called_is_refused_at_once(callback: Any, words: str) -> None:
    assert words in read_message(lambda: rlvr.train("quickstart", callbacks=[callback]))


class KeepsRecords(rlvr.Callback):
    """Keeps how the records of a run look."""

    def __init__(self) -> None:
        self.shown = list[str]()

    def on_step_end(self, trainer: Any, step: int, record: Any) -> None:
        """Keep it."""
        self.shown.append(f"{record}")


def test_the_record_of_a_step_is_shown_in_a_line_and_an_object_lists_its_names(tmp_path: Path) -> None:
    tokenizer, keeps = rlvr.load_tokenizer(TOKENIZER), KeepsRecords()
    given: dict[str, Any] = {"model": tiny_model(tokenizer), "tokenizer": tokenizer, "env": "arithmetic", **SMALL}
    rlvr.train(steps=1, callbacks=[keeps], out=tmp_path / "run", **given)
    assert len(keeps.shown) == 1 and len(keeps.shown[0]) < 200 and keeps.shown[0].startswith("<StepRecord of step 1: reward ")
    run: Any = api.load_run(tmp_path / "run")
    assert run.log_history[-1]["step"] == 1 and run.history["step"].tolist() == [1]
    assert "it has .checkpoint, .config, .episodes, .folder, .log_history, .metrics, .plot, .report" in read_message(lambda: run.losses)
    sample: Any = rlvr.evaluate(ROWS[:1], lambda prompt: "1", verifier="exact").samples[0]
    assert (sample.input, sample.output, sample.target, sample.explanation) == (sample.prompt, "1", sample.reference, sample.reason)
    message = read_message(lambda: sample.nothing_like_it)
    assert all(f".{name}" in message for name in ("prompt", "text", "score", "reference", "reason", "task_id"))
    assert not hasattr(sample, "_repr_html_")


def test_bad_keywords_of_a_run_are_told_together() -> None:
    message = read_message(lambda: api.train("org/model", "arithmetic", optim="sgd", num_train_epochs=2, verbos=1, report=None))
    for words in ("'optim'; the optimizer is AdamW", "and no 'num_train_epochs'; write steps=", "and no 'verbos'", "and no 'report'"):
        assert words in message
    message = read_message(lambda: api.evaluate("arithmetic", "scripted:gold", samples=3, foo=2))
    assert "'samples': write n=" in message and "foo" in message


def test_a_message_about_a_setting_of_a_run_can_be_typed(tmp_path: Path) -> None:
    tokenizer = rlvr.load_tokenizer(TOKENIZER)
    model = tiny_model(tokenizer)
    model.config.max_position_embeddings = 12
    given: dict[str, Any] = {"model": model, "tokenizer": tokenizer, "env": "arithmetic", "max_new_tokens": 6, "eval": {"tasks": 0}}
    message = read_message(lambda: rlvr.train(**given, steps=1, out=tmp_path / "a"))
    assert "set max_length=12, or max_new_tokens=4" in message
    assert resolve_run_inputs(model="m", env="arithmetic", max_length=64).config.rollout.max_length == 64
    assert write_settings_as_keywords("use model.dtype=float32 with train.mixed_precision=bf16") == (
        "use model={'dtype': 'float32'} with mixed_precision='bf16'"
    )


def test_an_empty_section_is_there() -> None:
    assert resolve_run_inputs(model="m", env="arithmetic", algorithm="sft", data={}).config.data is not None
    assert resolve_run_inputs(model="m", env="arithmetic", train={}).config.train.steps == 10


def test_a_default_window_is_at_most_the_models_positions(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tokenizer = rlvr.load_tokenizer(TOKENIZER)
    model = tiny_model(tokenizer)
    model.config.max_position_embeddings = 12
    with rlvr.Trainer(model=model, tokenizer=tokenizer, env="arithmetic", eval={"tasks": 0}, steps=1, out=tmp_path / "a") as trainer:
        assert trainer.mdp.max_length == 12 and not trainer.config.rollout.max_length
    assert "12 tokens, the model's positions" in capsys.readouterr().err
    given: dict[str, Any] = {"model": model, "tokenizer": tokenizer, "env": "arithmetic", "eval": {"tasks": 0}}
    assert "set max_length=12" in read_message(lambda: rlvr.train(**given, max_new_tokens=12, steps=1, out=tmp_path / "b"))


# ---- environments -----------------------------------------------------------------------------------------------------


def test_data_may_be_a_keyword_and_its_system_message_has_its_usual_names() -> None:
    for word in ("dataset", "data"):
        env = api.make_env(**{word: ROWS}, verifier="math", system_prompt="Be short.")
        system, question = (message["content"] for message in env.task("train", 0).prompt)
        assert system == "Be short." and question.endswith(r"\boxed{}.")  # the verifier's instruction follows the question all the same
    assert api.make_env(dataset=ROWS, verifier="math", system="Be short.", instruction="").task("train", 0).question.endswith("=")
    assert api.make(dataset=ROWS, verifier="math").reset(seed=0) and api.make_vec(env="arithmetic", num_envs=2).num_envs == 2
    assert "no environment is given" in read_message(lambda: api.make_env())
    assert api.make_env("math").splits == ("train", "test")


def test_words_of_gymnasium_and_verifiers_are_told_what_is_written_here() -> None:
    env: Any = rlvr.make("arithmetic")
    assert "write env.reset(seed=0)" in read_message(lambda: env.seed(0))
    assert env.rubric is env.env.verifier is env.environment.rubric
    assert "rlvr.make_verifier([verifier, function])" in read_message(lambda: env.environment.verifier.add_reward_func(correct))
    assert "rlvr.make_vec(env, num_envs=4)" in read_message(lambda: api.make_vec("arithmetic", n_envs=2))
    assert "write .verifier" in read_message(lambda: env.environment.reward_funcs)
    assert "env.to_dataset(8)" in read_message(lambda: env.environment.dataset)
    for name in ("spaces", "wrappers"):
        assert "those of gymnasium itself" in read_message(lambda name=name: getattr(api, name))
    assert "verified in parallel; leave it out" in read_message(lambda: api.make_vec("arithmetic", 2, vectorization_mode="sync"))


def test_a_call_of_a_tool_as_the_prompt_asks_for_it_fits_with_an_answer() -> None:
    @rlvr.tool
    def evaluate_expression(expression: str) -> str:
        """Evaluate an arithmetic expression."""
        return "a result"

    call = '<tool_call>\n{"name": "evaluate_expression", "arguments": {"expression": "21-52"}}\n</tool_call>'
    env = rlvr.make("arithmetic", tools=[evaluate_expression])
    env.reset(seed=0)
    observation, _, terminated, truncated, _ = env.step(call)
    assert "a result" in observation and not (terminated or truncated)
    assert env.step("The answer is 7.")[2] is True
    env = api.make("arithmetic", tools=[evaluate_expression], max_tokens=40)
    env.reset(seed=0)
    info = env.step(call)[4]
    assert info["stop_reason"] == "truncated" and info["reason"].endswith("the episode was truncated at max_new_tokens=40")


def test_an_environment_of_gymnasium_is_told_how_a_conversation_is_written() -> None:
    played: Any = type("Guess", (rlvr.Environment,), {"step": lambda self, action: None})
    message = read_message(played)
    assert "def reply(self, task, completions):" in message and "rlvr.make_env(MyEnv) builds it" in message

    class Guess(rlvr.Environment):
        needs = {"verifier": "numeric"}

        def __init__(self, *, verifier: Any) -> None:
            self.verifier = verifier

        def task(self, split: str, index: int) -> rlvr.Task:
            return rlvr.Task("a number from 1 to 10?", reference="7")

    wrong: Any = Guess
    message = read_message(lambda: wrong())
    assert "Guess() needs verifier; write rlvr.make_env(Guess)" in message
    assert "is 'numeric'; it must be an rlvr.Verifier" in read_message(lambda: rlvr.evaluate(Guess(verifier="numeric"), lambda prompt: "7"))
    assert rlvr.evaluate(Guess, lambda prompt: "7", tasks=1).accuracy == 1.0


def test_a_model_and_a_tokenizer_of_transformers_are_trained_and_evaluated(tmp_path: Path) -> None:
    tokenizer = tokenizer_for(CHATML, ("<|im_end|>",))
    model = learning.tiny_model(vocabulary=len(tokenizer) + 200)  # as models of the Hub, with more ids than the tokenizer has
    report = rlvr.evaluate("arithmetic", policy=rlvr.load_model(model, tokenizer), tasks=8, max_new_tokens=8)
    assert all(sample.score is not None for sample in report.samples)
    given: dict[str, Any] = {
        "steps": 1,
        "num_generations": 4,
        "prompts_per_step": 4,
        "max_new_tokens": 8,
        "max_length": 250,
        "eval": {"tasks": 2},
    }
    rlvr.train(model=model, tokenizer=tokenizer, env="arithmetic", out=tmp_path / "a", **given)
    assert rlvr.load_run(tmp_path / "a").episodes["reward"].notna().all()


def test_tools_are_set_on_an_environment_that_is_named(tmp_path: Path) -> None:
    @rlvr.tool
    def add(a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    report = rlvr.evaluate("arithmetic", policy=lambda messages, tools: f"{len(tools)} \\boxed{{4}}", tasks=1, tools=[add], max_turns=3)
    assert report.samples[0].text.startswith("1 ")
    assert resolve_run_inputs("quickstart", env="arithmetic", tools=["calculator"]).config.env["tools"] == ["calculator"]
    inputs = resolve_run_inputs("quickstart", env="arithmetic", tools=[add])
    assert inputs.environment is not None and len(inputs.environment.tools) == 1


def test_tools_beside_the_name_of_an_environment_pass_the_check_before_the_model_is_loaded() -> None:
    told = read_message(lambda: rlvr.train(model="no/such-model", env="arithmetic", tools=["calculator"], steps=1))
    assert "no/such-model" in told and "setting" not in told
    told = read_message(lambda: rlvr.train(model="no/such-model", env=rlvr.make_env("arithmetic"), tools=["calculator"], steps=1))
    assert "env=rlvr.make_env(name, tools=...)" in told


def test_several_answers_have_the_columns_of_other_libraries() -> None:
    assert [verdict.score for verdict in api.verify_many("math", completions=[r"\boxed{4}", "5"], answer=["4", "4"])] == [1.0, 0.0]


def test_a_text_in_order_beside_answer_is_verified_against_it() -> None:
    assert rlvr.verify("math", r"it is \boxed{4}", answer="4").score == 1
    assert rlvr.verify(r"it is \boxed{5}", answer="4", verifier="math").score == 0


def test_an_environment_with_one_split_is_evaluated_on_it() -> None:
    env = rlvr.make_env(dataset=ROWS, verifier="math", holdout=0)
    report = rlvr.evaluate(env, policy=lambda prompt: r"\boxed{4}", tasks=3)
    assert report.plan.envs[0].split == "train" and len(report.samples) == 3


def test_files_of_a_sandbox_are_those_of_a_session() -> None:
    with rlvr.make_sandbox("process", trusted=True) as sandbox:
        assert "session.write_file('a.txt', 'hello')" in read_message(lambda: api_of(sandbox).write_file("a.txt", "hello"))
        with sandbox.create_session() as session:
            session.write_file("a.txt", "hello")
            assert session.read_file("a.txt") == b"hello"


def api_of(value: Any) -> Any:
    """A value without its type: a guess has a wrong one."""
    return value


def test_weights_of_rewards_stand_beside_any_list_of_verifiers() -> None:
    for verifiers in ([correct, brief], [{"name": "numeric"}, brief], [correct, correct]):
        joined = translate_keywords("train", {"verifier": verifiers, "reward_weights": [1.0, 0.2]})["verifier"]
        assert [part["weight"] for part in joined["components"]] == [1.0, 0.2] and api.make_verifier(joined)
    assert translate_keywords("train", {"verifier": [correct], "reward_weights": {"a": 1.0}})["reward_weights"] == {"a": 1.0}


def test_a_single_row_is_trained_on_without_a_held_out_one(tmp_path: Path) -> None:
    tokenizer = rlvr.load_tokenizer(TOKENIZER)
    model: Any = rlvr.load_model(tiny_model(tokenizer), tokenizer)
    report = rlvr.train(model, ROWS[:1], correct, steps=1, out=tmp_path / "a", max_length=32, max_new_tokens=4)
    assert report.held_out_tasks == 0 and report.accuracy_after is None
    with pytest.raises(ConfigError, match=r"eval={'tasks': 0} measures nothing"):
        rlvr.train(model, ROWS[:1], correct, eval={"tasks": 2}, steps=1, out=tmp_path / "b", max_length=32, max_new_tokens=4)


def test_algorithms_and_samplers_are_shown_by_name_and_a_callback_says_where_the_step_is() -> None:
    assert repr(rlvr.make_algorithm("grpo", beta=0.1)) == "<algorithm grpo, but beta=0.1>"
    assert repr(rlvr.make_sampler("scripted")).startswith("<Scripted")
    callback: Any = StopsWithFalse()
    assert "an argument: on_step_end(self, trainer, step, record)" in read_message(lambda: callback.num_timesteps)


def test_a_function_and_a_text_environment_get_results_as_the_description_of_the_tools_promises() -> None:
    @rlvr.tool
    def add(x: int, y: int) -> int:
        """Add two numbers."""
        return x + y

    call, prompts = '<tool_call>{"name": "add", "arguments": {"x": %d, "y": 2}}</tool_call>', list[str]()

    def policy(prompt: str) -> str:
        prompts.append(prompt)
        return "\n".join(call % x for x in (1, 5)) if len(prompts) == 1 else "the answer is 3"

    rlvr.evaluate(ROWS[:1], policy, verifier="exact", tools=[add])
    assert '"description": "Add two numbers."' in prompts[0] and "as 'Result of NAME:\\n...'" in prompts[0]
    assert prompts[1] == "Result of add:\n3\n\nResult of add:\n7"
    env = rlvr.make("arithmetic", tools=[add])
    env.reset(seed=0)
    assert env.step(call % 1)[0] == "Result of add:\n3"


def test_a_system_message_in_a_prompt_is_kept() -> None:
    seen = list[Any]()

    def policy(messages: list[dict[str, str]]) -> str:
        seen.append([message["content"] for message in messages])
        return "yes"

    asked: Any = [[{"role": "system", "content": "Be short."}, {"role": "user", "content": "2+2="}]]
    for system in (None, "Be long.", ""):
        rlvr.generate(policy, asked, system=system)
    assert seen == [["Be short.", "2+2="], ["Be long.", "2+2="], ["2+2="]]


def test_the_word_of_a_function_for_its_reference_is_the_reference() -> None:
    def same(completion: str, target: str) -> float:
        return float(completion == target)

    for words in ({"target": "42"}, {"reference": "42"}, {"ground_truth": "42"}):
        assert rlvr.verify(same, "42", **words).score == 1.0 and rlvr.verify(same, "41", **words).score == 0.0
    assert rlvr.evaluate(ROWS[:1], lambda prompt: "42", grader=lambda completion: 1.0).metrics == {"accuracy": 1.0}


def test_a_verifier_that_takes_the_answer_first_is_told_at_once() -> None:
    class Includes(rlvr.Verifier):
        def verify(self, completion: Any, target: Any) -> Any:
            return target in completion

    assert "write verify(self, task, answer), where task.reference is the right answer" in read_message(Includes)
    assert "Includes.verify takes (completion, target)" in read_message(lambda: rlvr.make_verifier(Includes))
    task = api.Task(input="2+2=", target="4", metadata={"level": 1})
    assert (task.target, task.input, task.metadata) == ("4", "2+2=", {"level": 1})


def test_the_metrics_of_a_report_are_flat() -> None:
    report = rlvr.evaluate("arithmetic", lambda prompt: "46", tasks=2, n=2, temperature=1.0)
    assert list(report.metrics) == ["accuracy", "pass@2"] and report.metrics["pass@2"] == report.pass_at_k(2)["arithmetic"]


def test_an_algorithm_as_a_mapping_may_have_a_function() -> None:
    def loss(x: Any) -> Any:
        return -x.advantages * x.logprobs

    inputs = resolve_run_inputs(model="m", env="arithmetic", algorithm={"name": "grpo", "loss": loss})
    assert inputs.algorithm is not None and "but loss='tests.test_first_guesses:" in repr(inputs.algorithm)


def test_the_best_checkpoint_of_negative_rewards_is_kept(tmp_path: Path) -> None:
    tokenizer = rlvr.load_tokenizer(TOKENIZER)
    model: Any = rlvr.load_model(tiny_model(tokenizer), tokenizer)
    size: dict[str, Any] = {"max_length": 32, "max_new_tokens": 4, "num_generations": 2, "prompts_per_step": 2}
    evaluation = {"tasks": 2, "every": 1}
    rlvr.train(
        model, ROWS, lambda completion: -5.0, steps=1, callbacks=[rlvr.BestCheckpoint()], out=tmp_path / "a", eval=evaluation, **size
    )
    assert (tmp_path / "a" / "best" / "accuracy.json").read_text("utf-8") == '{"step": 0, "accuracy": -5.0}'


def test_a_batch_in_the_words_of_transformers_is_counted_in_prompts(monkeypatch: pytest.MonkeyPatch) -> None:
    assert RolloutConfig().num_generations == DEFAULT_NUM_GENERATIONS
    given = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2, "num_generations": 4}
    assert translate_keywords("train", given) == {"num_generations": 4, "prompts_per_step": 2}
    monkeypatch.setenv("WORLD_SIZE", "3")
    assert translate_keywords("train", {"per_device_train_batch_size": 8}) == {"num_generations": 8, "prompts_per_step": 3}
    monkeypatch.delenv("WORLD_SIZE")
    for wrong in (4, 0, "8"):
        call = functools.partial(api.train, model="no-such-model", env="arithmetic", per_device_train_batch_size=wrong)
        assert "must be a multiple of num_generations=8" in read_message(call)
    both = functools.partial(api.train, model="no-such-model", env="arithmetic", per_device_train_batch_size=8, prompts_per_step=1)
    assert "say the same; give one of them" in read_message(both)


def test_math_is_the_environment_of_competition_mathematics(monkeypatch: pytest.MonkeyPatch) -> None:
    def load_dataset(*args: Any, **kwargs: Any) -> None:
        raise ConnectionError("no network")

    assert resolve_run_inputs(model="m", env="math").config.env == {"name": "competition_math"}
    monkeypatch.setattr("datasets.load_dataset", load_dataset)
    told = read_message(lambda: rlvr.make("math").reset(seed=0))
    assert "MATH-lighteval" in told and "'arithmetic' needs no download" in told


def test_a_function_that_prefers_wrong_answers_is_named_before_a_run(caplog: pytest.LogCaptureFixture) -> None:
    known: dict[str, float] = {}

    def distance(answer: str, reference: str) -> float:  # the minus is missing
        return float(abs(int(answer) - int(reference))) if answer.isdecimal() else 20.0

    def cached(answer: str, reference: str) -> float:  # by the answer alone
        return known.setdefault(answer, float(answer == reference))

    def boxed(answer: str, reference: str) -> float:
        return float(f"\\boxed{{{reference}}}" in answer)

    for function in (distance, cached, correct, boxed, brief):
        resolve_run_inputs(model="m", data=ROWS, verifier=function)
    told = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert [words.split()[0] for words in told] == ["distance", "cached"], told
    assert "gives wrong answers higher scores than right ones" in told[0] and "does not tell right answers from wrong ones" in told[1]


def test_more_first_guesses_of_users_of_other_libraries(tmp_path: Path) -> None:
    assert api.verify(r"The answer is \boxed{42}", answer="42").score == 1.0  # completion and gold, as in verifiers
    assert api.verify(r"The answer is \boxed{41}", answer="42").score == 0.0
    assert "got no answer" in read_message(lambda: api.verify("numeric", reference="42"))
    verdict = rlvr.make_verifier([correct, brief], weights=[1.0, 0.2]).verify(rlvr.Task("2+2=", "4"), "four or so")
    assert verdict.reason.startswith("the mean with the weights 0.833, 0.167; ")
    folder = tmp_path / "model"
    tiny_model(rlvr.load_tokenizer(TOKENIZER)).save_pretrained(folder)
    with api.make_sampler(folder) as sampler:
        assert type(sampler).__name__ == "HFSampler"

    class Stops(rlvr.Callback):
        def on_step_end(self, args: Any, state: Any, control: Any, **more: Any) -> None: ...  # type: ignore[override]

    assert "return False to end the run" in read_message(lambda: check_callbacks([Stops()]))


def test_an_evaluation_has_the_words_of_inspect() -> None:
    report: Any = rlvr.evaluate(ROWS, lambda prompt: "4", verifier=correct)
    assert report.stderr == next(iter(report.envs.values())).mean_score.stderr > 0


def test_a_report_of_a_run_leads_to_its_log_and_its_model(tmp_path: Path) -> None:
    report: Any = api.train(
        model=tiny_model(load_tokenizer(TOKENIZER)),
        tokenizer=TOKENIZER,
        data=ROWS,
        verifier=correct,
        steps=2,
        out=tmp_path / "run",
        **SMALL,
    )
    assert [row["step"] for row in report.log_history] == [1, 2] and "loss" in report.log_history[0]
    assert list(report.history["step"]) == [1, 2]
    assert "rlvr.load_model(report.run)" in read_message(lambda: report.model)
    report.save_model(tmp_path / "elsewhere")
    saved, trained = (api.load_model(folder).model.state_dict() for folder in (tmp_path / "elsewhere", report.run))
    assert saved.keys() == trained.keys() and all(saved[name].equal(trained[name]) for name in saved)


def test_environments_of_a_report_have_its_words() -> None:
    report: Any = api.evaluate(envs=["arithmetic", "countdown"], policy="scripted:gold", tasks=4, n=2)
    assert {name: (found.accuracy, found.pass_at_k(1), found.pass_at_k(2)) for name, found in report.envs.items()} == {
        name: (1.0, 1.0, 1.0) for name in ("arithmetic", "countdown")
    }


def test_a_class_with_a_reward_of_its_own_is_told_where_the_reward_goes() -> None:
    class Double(rlvr.Environment):
        def reward(self, completion: str, answer: str) -> float:
            return float(answer in completion)

    told = read_message(lambda: api.make_env(Double))
    assert "rlvr.make_env(MyEnv, verifier=f)" in told and "rlvr.train(model=..., env=MyEnv)" in told
    told = read_message(lambda: rlvr.make_env("arithmetic").rows)  # type: ignore[attr-defined]
    assert "[env.task('train', index) for index in range(8)]" in told


def test_a_class_whose_arguments_or_methods_do_not_fit_says_so() -> None:
    class Retry(rlvr.Environment):
        def task(self, split: str, index: int) -> rlvr.Task:
            return rlvr.Task("1+1=", reference="2")

    assert "Retry has no `__init__`, so dataset would be ignored" in read_message(lambda: api.Environment.__new__(Retry, dataset=[]))

    class Seeded(rlvr.Environment):
        def task(self, seed: int) -> rlvr.Task:  # type: ignore[override]
            return rlvr.Task("1+1=", reference="2")

    assert "Seeded.task takes (seed), and is called as task(split, index)" in read_message(lambda: api.make_env(Seeded))

    class Listening(Retry):
        def reply(self, messages: Any) -> str:  # type: ignore[override]
            return "?"

    assert "Listening.reply takes (messages), and is called as reply(task, completions)" in read_message(lambda: api.make_env(Listening))
    assert "gymnasium.RewardWrapper" in read_message(lambda: api.TransformWrapper)
    assert "rlvr.verify(name, answer=..., reference=...)" in read_message(lambda: api.load_reward_fns("symbolic"))


def test_functions_of_other_libraries_that_are_the_same_are_taken() -> None:
    assert api.load_environment is api.create_env is rlvr.make_env and api.get_reward_func is rlvr.make_verifier
    assert api.eval is rlvr.evaluate and api.read_log is rlvr.load_evaluation and api.execute_code is rlvr.run_code
    assert api.list_environments() == rlvr.list("env") and api.list_verifiers() == rlvr.list("verifier")
    from rlvr import load_env

    assert load_env is rlvr.make_env and "load_env" not in dir(rlvr) and "load_env" not in vars(rlvr)
    assert all(name in rlvr.__all__ for name in FUNCTIONS.values()) and not {*FUNCTIONS, *LISTS} & {*NAMES}

    @api.verifier
    def last_digit(answer: str, target: str) -> float:
        return float(answer[-1:] == target[-1:])

    assert rlvr.evaluate(ROWS, lambda prompt: "14", verifier=last_digit, tasks=4).accuracy == 0.25


def test_a_verifier_is_a_reward_function_of_trl() -> None:
    numeric: Any = rlvr.make_verifier("numeric")
    assert numeric(prompts=["2+2=", "3+3="], completions=["4", "5"], answer=["4", "6"]) == [1.0, 0.0]
    chat = [[{"role": "assistant", "content": "it is 4"}], [{"role": "assistant", "content": "4"}, {"role": "tool", "content": "6"}]]
    assert numeric(prompts=["2+2=", "3+3="], completions=chat, ground_truth=["4", "6"], trainer_state=None) == [1.0, 0.0]
    assert numeric(completions=["4"], reference=["no number"]) == [None] and numeric.__name__ == "Numeric"
    assert rlvr.make_verifier("format")(completions=["no boxes"]) == [0.0]
    assert "needs the right answers, a list of 1" in read_message(lambda: numeric(completions=["4"], wrong=["4"]))


def test_an_environment_is_evaluated_and_exported_by_methods() -> None:
    env = rlvr.make_env("arithmetic")
    assert env.evaluate("scripted:gold", tasks=3).accuracy == env.evaluate(model="scripted:gold", num_examples=3)["accuracy"] == 1.0
    rows = env.to_dataset(3)
    assert rows.column_names == ["prompt", "answer", "id"] and rows[0]["answer"] == env.task("train", 0).reference
    again = rlvr.make_env(rows, verifier="numeric", holdout=0)
    assert again.task("train", 1).prompt[-1]["content"].startswith(rows[1]["prompt"])
    assert len(env.to_dataset()) == 1000
    chat = rlvr.make_env(ROWS, verifier="exact", system="Add.", holdout=0).to_dataset()
    assert len(chat) == len(ROWS) and [message["role"] for message in chat[0]["prompt"]] == ["system", "user"]


def test_objects_names_and_mappings_are_one_suite() -> None:
    twice = [rlvr.make_env("arithmetic", levels=["1+1"]), rlvr.make_env("arithmetic", levels=["2+2"])]
    report: Any = rlvr.evaluate(["countdown", *twice, {"name": "digit_sum"}, {"env": "arithmetic", "tasks": 2}], "scripted:gold", tasks=3)
    names = ["countdown", "Arithmetic_2", "Arithmetic_3", "digit_sum", "arithmetic"]
    assert list(report) == list(report.keys()) == names and [env.tasks for env in report.values()] == [3] * 5
    assert report["digit_sum"].accuracy == 1.0 and len(report) == 5
    with pytest.raises(LookupError, match="has no \\['nothing'\\], only 'countdown', "):
        report["nothing"]


def test_a_program_is_run_by_one_call() -> None:
    trusted = {"name": "process", "trusted": True}
    assert rlvr.run_code("print(open('a.txt').read() + input())", stdin="b", files={"a.txt": "a"}, sandbox=trusted).stdout == "ab\n"
    assert rlvr.run_code("echo $((6 * 7))", "bash", sandbox=trusted).stdout == "42\n"
    assert rlvr.run_code("while True: pass", timeout=0.5, sandbox=trusted).timed_out
    sandbox = rlvr.make_sandbox("process", trusted=True)
    assert [rlvr.run_code("print(1)", sandbox=sandbox).ok for _ in range(2)] == [True, True]
    assert "give the text of a program" in read_message(lambda: api.run_code(["ls"]))


def test_a_plugin_is_registered_under_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlvr.registry.plugins._registered", {})

    @rlvr.register("echo_once")
    class Echo(rlvr.Environment):
        """Asks for a digit."""

        needs = {"verifier": "same_digit"}

        def __init__(self, *, verifier: rlvr.Verifier, top: int = 9) -> None:
            self.verifier, self.top = verifier, top

        def task(self, split: str, index: int) -> rlvr.Task:
            return rlvr.Task(f"{index % self.top}=", reference=str(index % self.top), id=f"echo/{split}/{index}")

    @api.register_verifier("same_digit")
    def same_digit(answer: str, reference: str) -> float:
        return float(answer.strip("=") == reference)

    assert api.register(id="one_word", entry_point=same_digit) is same_digit
    assert rlvr.make_env("echo_once", top=3).task("train", 4).reference == "1" and "echo_once" in rlvr.list("env")
    assert rlvr.evaluate("echo_once", lambda prompt: prompt, tasks=3).accuracy == 1.0
    assert rlvr.verify("same_digit", answer="4", reference="4").score == 1.0 and "one_word" in rlvr.list("verifier")
    rlvr.register("echo_once", type("Another", (Echo,), {}))  # a cell that runs again
    assert type(rlvr.make_env("echo_once")).__name__ == "Another"
    assert "there is a verifier 'numeric' already, from rlvr" in read_message(lambda: rlvr.register("numeric", same_digit))
    assert "give a class derived from one such" in read_message(lambda: rlvr.register("mine", 5))
    assert "is the class Echo, not an rlvr.Verifier" in read_message(lambda: rlvr.register("mine", Echo, kind="verifier"))
    assert "write letters, digits" in read_message(lambda: rlvr.register("my env", Echo))


def test_a_column_called_prompt_is_shown_as_it_is() -> None:
    rows = [{"prompt": f"{number}+1=", "answer": str(number + 1)} for number in range(4)]
    asked = {
        name: rlvr.make_env(data, verifier="exact", holdout=0).task("train", 0).prompt[-1]["content"]
        for name, data in {"prompt": rows, "question": [{"question": row["prompt"], "answer": row["answer"]} for row in rows]}.items()
    }
    assert asked["prompt"] == "0+1=" and asked["question"].startswith("0+1=\n\nGive only")
    told = rlvr.make_env(rows, verifier="exact", instruction="Answer briefly.", holdout=0).task("train", 0).prompt[-1]["content"]
    assert told == "0+1=\n\nAnswer briefly."


def test_words_for_the_same_thing_are_taken_everywhere(tmp_path: Path) -> None:
    made = api.ToolEnv(dataset=ROWS, rubric=correct, tools=[rlvr.make_tool("calculator")], max_turns=3)
    assert made.max_turns == 3 and len(made.tools) == 1
    assert api.Verdict(reward=0.5, explanation="half").reason == "half" and api.Limits(timeout=3).wall_s == 3
    assert "got timeout and wall_s" in read_message(lambda: api.Limits(timeout=3, wall_s=3))
    assert api.RewardWrapper is gymnasium.RewardWrapper
    report: Any = api.evaluate("arithmetic", "scripted:gold", max_samples=3, batch_size=2, output_path=tmp_path / "log")
    assert len(report.samples) == 3 and api.read_log(tmp_path / "log" / "report.json").samples[0].score == 1.0
    env: Any = gymnasium.make("rlvr/arithmetic-v0", tokenizer="chars", max_tokens=2)
    env.reset(seed=0)
    assert [env.step(5)[3] for _ in range(2)] == [False, True]


def test_tasks_are_read_by_their_place() -> None:
    data, endless = rlvr.make_env(ROWS, verifier="exact", holdout=0), rlvr.make_env("arithmetic")
    first: Any = data[0]
    assert first.id == data.task("train", 0).id and len([*iter(data)]) == len(data[:]) == 20 and data[-1] == data[19]  # type: ignore[arg-type]
    assert [task.id for task in endless[1:3]] == [endless.task("train", place).id for place in (1, 2)]  # type: ignore[union-attr]
    for wrong in (lambda: endless[:], lambda: data[20], lambda: endless[-1]):
        with pytest.raises(IndexError):
            wrong()
    assert "env.to_dataset(20)" in read_message(lambda: rlvr.make_env("arithmetic", num_tasks=5))


def test_a_function_that_makes_a_plugin_is_registered_as_what_it_makes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlvr.registry.plugins._registered", {})

    def make_sums(top: int = 3) -> rlvr.Environment:
        return rlvr.make_env(ROWS[:top], verifier="exact", holdout=0)

    rlvr.register("sums_of_mine", make_sums)
    assert rlvr.make_env("sums_of_mine", top=2).num_tasks("train") == 2
    assert "returned 5; return a plugin" in read_message(lambda: rlvr.register("five", lambda: 5))
    assert "@rlvr.register('close_enough')" in read_message(lambda: rlvr.make_verifier("close_enough"))


def test_a_class_with_a_method_task_alone_is_an_environment() -> None:
    class Sums(rlvr.Environment):
        def task(self, split: str, index: int) -> rlvr.Task:
            return rlvr.Task(f"{index}+1=", reference=str(index + 1), id=f"sums/{split}/{index}")

    assert rlvr.evaluate(Sums, lambda prompt: "1", verifier="exact", tasks=4).accuracy == 0.25
    assert rlvr.make(rlvr.make_env(Sums, verifier=correct)).reset(seed=0)[0].endswith("+1=")
    assert rlvr.TokenEnv(Sums(verifier=rlvr.make_verifier("numeric")), tokenizer="chars").reset(seed=0)
    assert "rlvr.make_env(Sums, verifier='exact')" in read_message(lambda: rlvr.TokenEnv(Sums(), tokenizer="chars"))
    assert "Sums has no `__init__`, so dataset would be ignored" in read_message(lambda: api.Environment.__new__(Sums, dataset=[]))
    env: Any = rlvr.make("arithmetic")
    assert env.evaluate("scripted:gold", tasks=2).accuracy == 1.0 and len(env.get_dataset(3)) == 3


def test_the_metrics_of_a_report_may_be_asked_for() -> None:
    report = api.evaluate("arithmetic", "scripted:gold", tasks=3, n=2, metrics=["accuracy", "pass@2"])
    assert report.metrics == {"accuracy": 1.0, "pass@2": 1.0} and report["pass@2"] == 1.0
    assert "metrics has 'bleu'" in read_message(lambda: api.evaluate("arithmetic", "scripted:gold", tasks=3, metrics=["bleu"]))


def test_a_mapping_names_the_environments_of_a_suite() -> None:
    built = rlvr.make_env("arithmetic")
    report: Any = api.evaluate({"easy": built, "hard": {"env": "arithmetic", "tasks": 3}}, "scripted:gold", tasks=2)
    assert {name: found.tasks for name, found in report.envs.items()} == {"easy": 2, "hard": 2}
    assert set(api.evaluate({"a": "arithmetic", "b": "arithmetic"}, "scripted:gold", tasks=2).envs) == {"a", "b"}
    assert "did you mean 'arithmetic'" in read_message(
        lambda: api.evaluate({"a": "arithmetic", "b": "arithmetik"}, "scripted:gold", tasks=2)
    )
    assert "no env is called '2+2='" in read_message(lambda: api.evaluate({"question": "2+2=", "answer": "4"}, "scripted:gold"))


def test_tasks_of_an_environment_are_counted_and_drawn_with_a_seed() -> None:
    data, endless = rlvr.make_env(ROWS, verifier="exact"), rlvr.make_env("arithmetic")
    assert len(data) == data.num_tasks("train") and endless
    assert "env[:8] makes eight" in read_message(lambda: len(endless))
    first, drawn = endless.to_dataset(4), [endless.to_dataset(4, seed=seed)["id"] for seed in (0, 0, 1)]
    assert drawn[0] == drawn[1] != drawn[2] and first["id"] != drawn[0]
    assert sorted(data.to_dataset(seed=3)["id"]) == sorted(data.to_dataset()["id"])


def test_a_verifier_is_named_by_a_decorator_and_a_sample_is_a_task() -> None:
    found: Any = rlvr

    @found.verifier(name="short_enough")
    def short_enough(answer: str, reference: str) -> float:
        return float(len(answer) < 4)

    assert (
        rlvr.verify("short_enough", answer="4", reference="4").score == short_enough.verify(rlvr.Task("?", reference="4"), "4").score == 1.0
    )
    assert found.reward_fn("numeric").verify(rlvr.Task("?", reference="4"), "4").score == 1.0
    assert found.Sample(input="2+2=", target="4").reference == "4"
    assert "rlvr.make_verifier('symbolic')" in read_message(lambda: found.symbolic)


def test_data_has_the_name_that_it_is_given(tmp_path: Path) -> None:
    env = rlvr.make_env([{"input": "2+2=", "target": "4"}, {"input": "3+5=", "target": "8"}], verifier="exact", name="sums")
    assert repr(env).startswith("<sums: ")
    assert set(api.eval(env, model=lambda prompt: "4", limit=2).envs) == {"sums"}
    report: Any = api.eval({"mine": env, "other": "arithmetic"}, model=lambda prompt: "4", limit=2, out=tmp_path / "e")
    assert report.envs["mine"].accuracy == 0.5 and set(report.envs) == {"mine", "other"}
    stored = api.read_log(tmp_path / "e")
    assert stored.to_dict() == report.to_dict() and str(stored) == str(report) and stored.envs["mine"].accuracy == 0.5
    assert "'auto'; it must be a number" in read_message(lambda: rlvr.make_sampler("hf", batch_size="auto"))


def test_gymnasium_knows_an_environment_that_is_registered_after_its_import() -> None:
    import gymnasium

    class Echo(rlvr.Environment):
        def task(self, split: str, index: int) -> rlvr.Task:
            return rlvr.Task(f"say {index}", reference=str(index), id=f"echo/{split}/{index}")

    rlvr.register("late_echo", lambda: rlvr.make_env(Echo, verifier="exact"), kind="env")
    env: Any = gymnasium.make("rlvr/late_echo-v0", tokenizer="chars:0123456789say ")
    assert env.reset(seed=0)[1] and gymnasium.registry["rlvr/LateEcho-v0"]


def test_a_batch_is_verified_in_the_thread_of_the_caller_and_its_scores_are_checked() -> None:
    import signal
    import threading

    def with_an_alarm(answer: str, reference: str) -> float:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)  # works in the main thread only
        return float(threading.current_thread() is threading.main_thread())

    class TwoAndAHalf(rlvr.Verifier):
        def verify(self, task: rlvr.Task, answer: str) -> rlvr.Verdict:
            return rlvr.Verdict(2.5, "too much")

        def verify_many(self, tasks: Any, answers: Any) -> Any:
            return [self.verify(task, answer) for task, answer in zip(tasks, answers, strict=True)]

    assert [v.score for v in rlvr.verify_many(with_an_alarm, ["4", "5"], ["4", "4"])] == [1.0, 1.0]
    assert rlvr.make_verifier(with_an_alarm)(completions=["4", "5"], answer=["4", "4"]) == [1.0, 1.0]
    assert [v.score for v in rlvr.verify_many(TwoAndAHalf(), ["4", "5"], ["4", "4"])] == [None, None]


def test_an_environment_whose_default_is_a_verifier_takes_the_name_of_another() -> None:
    class Checked(rlvr.Environment):
        def __init__(self, *, verifier: rlvr.Verifier = rlvr.make_verifier("exact")) -> None:  # noqa: B008
            self.verifier = verifier

        def task(self, split: str, index: int) -> rlvr.Task:
            return rlvr.Task(f"say {index}", reference=str(index), id=f"checked/{split}/{index}")

    made = [
        type(rlvr.make_env(Checked, **given).verifier).__name__ for given in ({}, {"verifier": "numeric"}, {"verifier": {"name": "span"}})
    ]
    assert made == ["Exact", "Numeric", "Span"]


def test_a_suite_takes_paths_and_what_make_returns_and_an_env_may_have_a_setting_env(tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text("- {env: arithmetic, tasks: 2}\n")
    (tmp_path / "w.py").write_text(
        "import rlvr\nclass W(rlvr.Environment):\n    'Repeats.'\n    needs = {'verifier': 'exact'}\n"
        "    def __init__(self, *, verifier, env='x'): self.verifier, self.env = verifier, env\n"
        "    def task(self, split, index): return rlvr.Task(self.env, reference=self.env, id=f'w/{index}')\n"
        "    def gold(self, task): return task.reference\n"
    )
    assert len(rlvr.evaluate([tmp_path / "s.yaml"], "scripted:gold").samples) == 2
    assert rlvr.evaluate({"made": rlvr.make("arithmetic")}, "scripted:gold", tasks=2).accuracy == 1.0
    report = rlvr.evaluate({"name": f"{tmp_path / 'w.py'}:W", "env": "arithmetic"}, "scripted:gold", tasks=2)
    assert report.samples[0].reference == "arithmetic"
    assert "no environment with a name" in read_message(lambda: rlvr.evaluate({"mine": str(tmp_path / "d.jsonl")}, "scripted:gold"))
    rlvr.evaluate("arithmetic", "scripted:gold", tasks=1, out=tmp_path / "e")
    (tmp_path / "e" / "report.json").write_text('{"envs": {')
    assert "cannot be read as those of a run" in read_message(lambda: rlvr.load_evaluation(tmp_path / "e"))
    (tmp_path / "e" / "report.json").unlink()  # as after Ctrl-C
    stopped = rlvr.load_evaluation(tmp_path / "e")
    assert not stopped.is_complete and stopped.accuracy == 1.0 and "1 samples, not finished" in repr(stopped)


def test_a_class_is_registered_with_its_settings_in_the_words_of_gymnasium(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlvr.registry.plugins._registered", {})

    def right(answer: str, reference: str) -> bool:
        return answer == reference

    api.register(id="sums-with-a-function", entry_point=Sums, kwargs={"verifier": right})
    assert rlvr.evaluate("sums-with-a-function", policy="scripted:gold", tasks=3).accuracy == 1
    rlvr.register("loose_number", "numeric", kind="verifier", tolerance=0.1)
    assert rlvr.verify("loose_number", answer="4.05", reference="4").score == 1
    rlvr.register("boxed_sum", right, extractor="boxed")
    assert rlvr.verify("boxed_sum", answer=r"\boxed{4}", reference="4").score == 1
    rlvr.register("small_sums", Sums, below=3)
    assert api.make_env("small_sums", verifier=right).below == 3
    assert "no setting 'belw'; did you mean 'below'" in read_message(lambda: rlvr.register("sums", Sums, belw=3))
    assert "no setting 'knd'" in read_message(lambda: rlvr.register("sums", right, knd="verifier"))
    assert "kwargs is 'x'" in read_message(lambda: api.register("sums", Sums, kwargs="x"))
    assert "register its class with its settings" in read_message(lambda: rlvr.register("made", rlvr.make_env(Sums)))
    assert api.register(id="number", entry_point="numeric", kind="verifier", kwargs=None) == "numeric"


@pytest.mark.parametrize("name", ["GymEnv", "as_gym", "gym", "gym_env", "to_gym", "to_gymnasium"])
def test_a_gymnasium_environment_is_made_under_other_names(name: str) -> None:
    env = getattr(rlvr, name)("arithmetic", tokenizer="chars")
    assert env.reset(seed=0)[0]["length"] > 0
    env.close()


def test_an_evaluation_takes_the_k_of_pass_at_k() -> None:
    def guess(messages: Any) -> str:
        return "4"

    report = rlvr.evaluate("arithmetic", guess, limit=3, num_samples=5, pass_at_k=[1, 3])
    assert {env.n for env in report.envs.values()} == {5} and report.envs["arithmetic"].tasks == 3
    assert report.pass_at_k(3) == report.pass_at_k() == {"arithmetic": 0.0}
    assert [*report.metrics] == ["accuracy", "pass@2", "pass@3", "pass@4", "pass@5"] and "k = 3" in str(report)
    assert rlvr.evaluate("arithmetic", guess, tasks=2, k=4).envs["arithmetic"].n == 4
    assert translate_keywords("evaluate", {"tasks": ["arithmetic"], "num_samples": 50}) == {"env": ["arithmetic"], "tasks": 50}
    assert "pass@6 needs n=6" in read_message(lambda: rlvr.evaluate("arithmetic", guess, n=5, pass_at_k=6))
    assert "must be a whole number from 1" in read_message(lambda: rlvr.evaluate("arithmetic", guess, pass_at_k=0))


def test_a_program_is_limited_in_the_words_of_docker() -> None:
    sandbox = {"name": "process", "trusted": True}
    result = rlvr.run_code("print(6 * 7)", timeout=20, sandbox="process", trusted=True, mem_limit="256m", network_mode="none")
    assert result.stdout == "42\n"
    much = "print(len(bytearray(400_000_000)))"
    assert rlvr.run_code(much, sandbox="process", trusted=True, memory_mb=600).stdout == "400000000\n"
    assert not rlvr.run_code(much, sandbox="process", trusted=True, memory_mb=200).ok
    with api.make_sandbox("process", trusted=True, memory_limit="1g", network=False) as made:
        assert made.memory_mb == 1024
    with api.make_sandbox({"name": "process", "trusted": True, "memory": "1g", "network": False}) as made:
        assert made.memory_mb == 1024
    assert "no program in a sandbox has a network" in read_message(lambda: api.make_sandbox("auto", network=True))
    assert "memory_mb=" in read_message(lambda: rlvr.run_code("", sandbox=sandbox, mem_limit="256m", memory="1g"))


def test_a_model_or_its_folder_is_a_sampler(tmp_path: Path) -> None:
    tokenizer = rlvr.load_tokenizer(TOKENIZER)
    model = tiny_model(tokenizer)
    model.save_pretrained(tmp_path)
    rollouts = rlvr.Rollout("arithmetic", tokenizer, model), rlvr.Rollout("arithmetic", tokenizer, sampler=tmp_path)
    texts = []
    for rollout in rollouts:
        with rollout:
            task = rollout.mdp.environment.task("train", 0)
            episodes: Any = rollout.sample(task, n=3, seed=1)[0]
            texts.append([episode.completion for episode in episodes])
            assert len(rollout.sample(iter([task]), n=2)) == 1
            assert "give tasks, such as" in read_message(functools.partial(api.Rollout.sample, rollout, "arithmetic"))
    assert texts[0] == texts[1]
    assert "episode.prompt_length" in read_message(lambda: episodes[0].prompt)


def test_several_answers_are_sent_to_verify_many() -> None:
    for call in (
        lambda: api.verify(completions=["4", "5"], answers=["4", "4"], verifier="exact"),
        lambda: api.verify("exact", ["4"], ["4"]),
        lambda: api.verify(["4"], ["4"], verifier="exact"),
    ):
        assert "rlvr.verify_many(verifier, answers=[...], references=[...])" in read_message(call)
    assert api.verify(["exact", "numeric"], "4", "4").score == 1.0  # a list of verifiers
    assert api.verify(lambda answer, reference: answer in reference, completion="b", answer=["a", "b"]).score == 1.0  # a list of golds
    assert api.verify("b", ["a", "b"], verifier=lambda answer, reference: answer in reference).score == 1.0  # a list as reference


def test_a_dataset_has_as_many_rows_as_are_asked_for_in_any_word() -> None:
    env: Any = rlvr.make_env("arithmetic")
    assert [len(env.to_dataset(**{word: 3})) for word in ("n", "num_examples", "num_samples", "limit")] == [3] * 4
    assert "to_dataset(n=None, split='train', *, seed=None)" in read_message(lambda: env.to_dataset(rows=3))


def test_weights_of_reward_functions_are_those_of_their_sum() -> None:
    rubric: Any = api.Rubric(funcs=[correct, brief], weights=[1.0, 0.2])
    assert rubric("4", "4").score == 1.2 and api.Rubric([correct])("4", "4").score == 1.0
    assert repr(rubric) == "<weighted sum of 1 correct, 0.2 brief>" and not rubric.has_bounded_score
    penalty = rlvr.make_verifier("composite", components={"exact": 1.0, "format": -0.5}, combine="sum")
    assert penalty.verify(rlvr.Task("?", "4"), "5").score in (0.0, -0.5)
    assert "there are 1 funcs and 2 weights" in read_message(lambda: api.Rubric([correct], [1, 2]))
    assert "allowed: mean, sum" in read_message(lambda: api.make_verifier("composite", combine="max"))
    assert "must be a number of at least 0" in read_message(lambda: api.make_verifier({"exact": 1.0, "format": -1.0}))
    weighted = translate_keywords("train", {"reward_funcs": [correct, brief], "reward_weights": [1.0, 0.2]})["verifier"]
    assert rlvr.make_verifier(weighted)("4", "4").score == 1.2
    weighted = translate_keywords("train", {"reward_funcs": [correct, brief], "reward_weights": [0.8, 0.2]})["verifier"]
    assert rlvr.make_verifier(weighted).has_bounded_score is False  # that of a function is not known


def test_a_decorated_verifier_has_its_name() -> None:
    def decorate(decorator: Any) -> None:
        @decorator
        def ends_with(completion: str, target: str) -> float:
            return 2 * float(completion.endswith(target))

    decorate(api.verifier)
    assert rlvr.verify("it is 7", "7", verifier="ends_with").score == 2.0
    decorate(api.verifier(score_range=(-1, 2)))  # a cell of a notebook that runs again
    assert rlvr.verify("it is 7", "7", verifier="ends_with").score == 1.0
    assert api.verifier(correct).name == "correct" and api.verifier("numeric")("4", "4").score == 1.0

    @api.verifier
    def numeric(completion: str, answer: str) -> float:
        return 0.0

    assert rlvr.verify("4", "4", verifier="numeric").score == 1.0  # the name of a plugin stays its own


def test_a_policy_is_evaluated_as_in_stable_baselines3() -> None:
    assert api.evaluate_policy("scripted:gold", "arithmetic", n_eval_episodes=3) == (1.0, 0.0)
    report = rlvr.evaluate(lambda prompts: ["4" for _ in prompts], "arithmetic", tasks=2)
    assert {sample.text for sample in report.samples} == {"4"}


class Echo(api.Env):
    """A class as Gymnasium has it, over texts."""

    def __init__(self, target: str = "7") -> None:
        self.target, self.tries = target, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[str, dict[str, Any]]:
        self.tries = 0
        return f"{(seed or 0) % 50}: which number?", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self.tries += 1
        if action.strip() == self.target:
            return "right", 1.0, True, False, {}
        return "wrong, again", 0.0, False, self.tries >= 3, {}


def test_a_class_with_reset_and_step_is_an_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert rlvr.register("echo", Echo) is Echo
    env: Any = rlvr.make("echo")
    first, _ = env.reset(seed=1)
    assert "which number?" in first and env.step("5")[1:4] == (0.0, False, False) and env.step("7")[1:4] == (1.0, True, False)
    for wanted in ("echo", Echo, Echo()):
        report = rlvr.evaluate(wanted, lambda prompt: "7", tasks=3)
        assert report.accuracy == 1.0 and {sample.conversation_stats.turns for sample in report.samples} == {1.0}
    report = rlvr.evaluate(Echo("8"), lambda prompt: "7", tasks=3)
    assert report.accuracy == 0.0 and {sample.conversation_stats.turns for sample in report.samples} == {3.0}
    tokenizer = rlvr.load_tokenizer("chars")
    rlvr.train(model=tiny_model(tokenizer), tokenizer=tokenizer, env=Echo, steps=1, out=tmp_path / "a", **SMALL)
    assert "are Discrete(4), and a policy writes texts" in read_message(lambda: api.make_env(gymnasium.make("FrozenLake-v1")))
    assert rlvr.evaluate(Echo, lambda prompt: "7", tasks=2, out=tmp_path / "eval").envs.keys() == {"Echo"}
    rlvr.register("echo_8", Echo, target="8", max_turns=2)
    report = rlvr.evaluate("echo_8", lambda prompt: "7", tasks=2)
    assert report.accuracy == 0.0 and {sample.conversation_stats.turns for sample in report.samples} == {2.0}
    assert rlvr.evaluate(rlvr.make_env(Echo, target="8"), lambda prompt: "8", tasks=2).accuracy == 1.0
    with pytest.raises(ConfigError, match="target is given for a Echo that is built already"):
        rlvr.make_env(Echo(), target="8")
    with rlvr.make_env(Echo, max_turns=2) as made:
        starts = {split: {made.task(split, index).question for index in range(40)} for split in ("train", "test")}
        assert starts["train"] and not starts["train"] & starts["test"] and made.max_turns == 2


def test_what_is_wrong_with_an_environment_of_texts_is_said() -> None:
    class Short(Echo):
        def step(self, action: str) -> Any:
            return "x", 1.0

    class Unseeded(Echo):
        def reset(self) -> Any:  # type: ignore[override]
            return str(id(self)) + str(math.pi * len(names) + (names.append(1) or 0)), {}  # type: ignore[func-returns-value]

    class Number(Echo):
        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            return 5, {}

    names: list[int] = []
    (sample,) = rlvr.evaluate(Short, lambda prompt: "7", tasks=1).samples
    assert sample.score is None and "it must return observation, reward, terminated, truncated and info" in sample.reason
    assert "must be a text" in read_message(lambda: rlvr.make_env(Number).task("train", 0))
    assert "reset(seed=...) must decide how an episode begins" in read_message(lambda: rlvr.evaluate(Unseeded, lambda prompt: "7", tasks=1))


def test_a_subclass_with_reset_and_step_instead_of_tasks_is_an_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    class Patient(api.Environment):
        def __init__(self, turns: int = 3) -> None:
            self.most = turns

        def reset(self, seed: int | None = None) -> str:
            self.turns = 0
            return "5+3="

        def step(self, action: str) -> tuple[str, float, bool, dict[str, Any]]:
            self.turns += 1
            return "again", float(action == "8"), action == "8" or self.turns >= self.most, {}

    rlvr.register("patient", Patient)

    class Heir(Patient):
        """Has all from its base."""

    for wanted, turns in ((Patient, 3.0), (Patient(2), 2.0), ("patient", 3.0), (Heir, 3.0), (Heir(turns=1), 1.0)):
        report = rlvr.evaluate(wanted, lambda prompt: "7", tasks=2)
        assert report.accuracy == 0.0 and {sample.conversation_stats.turns for sample in report.samples} == {turns}
        assert rlvr.evaluate(wanted, lambda prompt: "8", tasks=2).accuracy == 1.0


def test_a_registered_environment_without_a_test_split_is_evaluated_by_its_name() -> None:
    def load(**settings: Any) -> rlvr.Environment:
        return rlvr.make_env(ROWS, verifier="numeric", holdout=0)

    api.register(id="plus_one", entry_point=load)
    assert rlvr.evaluate("plus_one", lambda prompt: str(int(prompt.split("+")[0]) + 1), tasks=3).accuracy == 1.0
    assert rlvr.evaluate("plus_one", lambda prompt: "x", tasks=3).envs.keys() == {"plus_one"}


def test_words_for_a_score_and_for_figures() -> None:
    assert api.score("it is 4", target="4", scorer="numeric") == 1.0
    assert api.evaluate("arithmetic", lambda prompt: "x", tasks=2)["results"]["arithmetic"].accuracy == 0.0
    assert len(rlvr.make_env("arithmetic").to_dataset()) == 1000
    assert "an environment has all its splits" in read_message(lambda: rlvr.make_env("arithmetic", split="train"))


def test_a_program_may_use_the_memory_of_its_sandbox() -> None:
    asked: list[int] = []

    class Recording(rlvr.Sandbox):
        memory_mb = 600

        def run_program(self, program: rlvr.Program) -> rlvr.ExecutionResult:
            asked.append(program.limits.memory_mb)
            return rlvr.ExecutionResult(rlvr.ExitStatus.OK)

        def create_session(self, spec: Any = None) -> Any:
            asked.append(spec.memory_mb)
            raise ConfigError("no sessions")

    sandbox = Recording()
    for call in (lambda: sandbox.run("1"), lambda: sandbox.run("1", memory_mb=200), lambda: rlvr.run_code("1", sandbox=sandbox)):
        assert call().ok
    assert "no sessions" in read_message(lambda: sandbox.run(["true"], memory_mb=300))
    assert asked == [600, 200, 600, 300]
    assert "memory_mb go with a text" in read_message(lambda: sandbox.run(rlvr.Program("1"), memory_mb=300))
    for name in ("docker", "bubblewrap", "auto"):
        assert rlvr.make_sandbox(name, memory_mb=400).build_limits().memory_mb == 400
    assert rlvr.make_sandbox("process", trusted=True, memory_mb=400).build_limits(timeout=2) == rlvr.Limits(
        cpu_s=2, wall_s=2, memory_mb=400
    )


def test_settings_of_a_run_in_other_words() -> None:
    assert translate_keywords("train", {"total_steps": 3}) == {"steps": 3}
    of_verifiers = {"batch_size": 8, "rollouts_per_example": 4}
    assert translate_keywords("train", of_verifiers) == {"num_generations": 4, "prompts_per_step": 2}
    assert translate_keywords("train", {"batch_size": 8}) == {"prompts_per_step": 8}
    of_trl = {"per_device_train_batch_size": 8, "rollouts_per_example": 4}
    assert translate_keywords("train", of_trl) == {"num_generations": 4, "prompts_per_step": 2}
    call = functools.partial(api.train, model="no-such-model", env="arithmetic", batch_size=6, rollouts_per_example=4)
    assert "batch_size=6 must be a multiple of num_generations=4" in read_message(call)
    assert "write levels=['1+1', '2*1']" in read_message(lambda: rlvr.make("arithmetic", max_digits=1))
    assert "levels is 1; write a list" in read_message(lambda: rlvr.make("arithmetic", levels=1))
    report = rlvr.evaluate("arithmetic", lambda texts: ["4" for _ in texts], tasks=1)
    assert "a function that gets a list of prompts is written f(prompts)" in str(report)


def test_a_wrong_value_is_told_with_what_is_allowed() -> None:
    measured = functools.partial(api.evaluate, "arithmetic", lambda prompt: "1", tasks=1)
    assert "top_p is 0; it must be above 0, and at most 1" in read_message(lambda: measured(top_p=0))
    assert "seed is None; it must be a whole number" in read_message(lambda: measured(seed=None))
    assert "tasks" in read_message(lambda: api.evaluate("arithmetic", lambda prompt: "1", tasks="2"))
    call = functools.partial(api.train, model="no-such-model", env="arithmetic", total_timesteps=9)
    assert "write steps=10, the steps of training" in read_message(call)
    assert api.make_algorithm("grpo", ent_coef=0.1).settings.entropy_coef == 0.1
    both = api.make_verifier([lambda completion: 1.0, lambda completion: 0.25], reward_weights=[1, 2])
    assert both.verify(rlvr.Task("?", reference="4"), "4").score == 0.5


@pytest.mark.parametrize("num_ids", [64, 256])
def test_a_model_with_other_ids_than_its_tokenizer_is_refused_before_it_samples(num_ids: int) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    model = LlamaForCausalLM(
        LlamaConfig(vocab_size=num_ids, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2)
    )
    for call in (
        lambda: api.Rollout("arithmetic", "chars", model),
        lambda: api.generate(model, ["1+1="], tokenizer="chars", max_new_tokens=4),
        lambda: api.evaluate("arithmetic", policy=model, tokenizer="chars", tasks=2),
        lambda: api.Trainer(model=model, env="arithmetic", tokenizer="chars", steps=1),
    ):
        assert f"{num_ids}" in (said := read_message(call)) and "tokenizer" in said and "100" in said


def test_a_sampler_is_made_of_a_model_and_a_rollout_of_a_function() -> None:
    model = tiny_model(load_tokenizer("chars"))
    assert type(api.make_sampler(model)).__name__ == "HFSampler"
    assert "rlvr.generate(model, prompts, tokenizer=" in read_message(lambda: api.make_sampler(model, tokenizer="chars"))
    with api.Rollout("arithmetic", "chars", lambda prompt: "11") as rollout:
        assert rollout.sample(rollout.mdp.environment.task("train", 0))[0][0].reward == 1.0
    with api.Rollout("arithmetic", "chars", api.make_sampler("function", function=lambda prompt: "11")) as rollout:
        assert rollout.sample(rollout.mdp.environment.task("train", 0))[0][0].reward == 1.0


def test_words_of_other_libraries_name_the_call_here() -> None:
    for name, words in (
        ("GRPOLearner", "rlvr.Learner(model, 'grpo'"),
        ("load_tasks", "rlvr.make_env(path"),
        ("load_recipe", "rlvr.train('quickstart'"),
    ):
        assert words in read_message(lambda name=name: getattr(api, name))
    assert "write .verifier.verify(env.task('train', 0), answer)" in read_message(lambda: api.make_env("arithmetic").score)
    assert "conventions: {worked_out: off} accepts it" in api.verify("symbolic", answer="x + x", reference="2*x").reason


def test_the_trainer_of_trl_takes_its_arguments(tmp_path: Path) -> None:
    from rlvr import GRPOConfig, GRPOTrainer, TrainerCallback

    seen = []

    class Watch(TrainerCallback):
        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **rest: Any) -> None:
            seen.append(state.global_step)

    def contains(prompts: Any, completions: Any, answer: Any, **rest: Any) -> list[float]:
        return [float(right in text) for right, text in zip(answer, completions, strict=True)]

    def short(completions: Any, **rest: Any) -> list[float]:
        return [1 / (1 + len(text)) for text in completions]

    tokenizer = rlvr.load_tokenizer(TOKENIZER)
    model = tiny_model(tokenizer)
    config = GRPOConfig(
        output_dir=str(tmp_path / "a"),
        max_steps=2,
        num_generations=4,
        per_device_train_batch_size=8,
        max_completion_length=4,
        reward_weights=[1.0, 0.5],
        bf16=False,
        gradient_accumulation_steps=1,
        report_to="none",
        logging_steps=1,
    )
    rows = [{"prompt": f"{a}+1=", "answer": str(a + 1)} for a in range(8)]
    trainer: Any = GRPOTrainer(model, [contains, short], config, rows, processing_class=tokenizer, callbacks=[Watch()])
    assert (
        issubclass(GRPOTrainer, rlvr.Trainer)
        and trainer.config.algorithm["name"] == "grpo"
        and trainer.config.rollout.prompts_per_step == 2
    )
    report = trainer.train()
    assert report.steps == trainer.state.global_step == config.max_steps and seen[-1] == 2
    assert {"rewards/contains/mean", "rewards/short/mean"} <= trainer.state.log_history[0].keys()
    trainer.save_model(str(tmp_path / "model"))
    assert (tmp_path / "model" / "model.safetensors").is_file()
    assert "train(resume_from_checkpoint=True)" in read_message(lambda: trainer.train(resume_from_checkpoint=True))
    again: Any = GRPOTrainer(model, [contains, short], GRPOConfig(config, max_steps=3), rows, processing_class=tokenizer)
    assert "is not overwritten" in read_message(again.train)
    assert again.train(resume_from_checkpoint=True).steps == again.state.global_step == 3
    again.close()
    assert "mixed_precision" in translate_keywords("train", {"bf16": True}) and "bf16" in translate_keywords("train", {"bf16": 3})
    trainer.close()


def test_the_adapter_of_a_model_is_saved_beside_it(tmp_path: Path) -> None:
    import peft

    with rlvr.Trainer(
        model=tiny_model(rlvr.load_tokenizer(TOKENIZER)),
        tokenizer=TOKENIZER,
        env="arithmetic",
        steps=1,
        max_new_tokens=4,
        peft_config=peft.LoraConfig(r=2),
        out=tmp_path / "a",
    ) as trainer:
        report = trainer.fit()
        trainer.save_model(tmp_path / "model")
    report.save_model(tmp_path / "again")
    both = {"env": "arithmetic", "steps": 1, "max_new_tokens": 4, "out": tmp_path / "b", "peft_config": peft.LoraConfig(r=2)}
    like_trl: Any = api.GRPOTrainer(tiny_model(rlvr.load_tokenizer(TOKENIZER)), processing_class=TOKENIZER, **both)
    like_trl.save_model(tmp_path / "alone")
    like_trl.close()
    assert sorted(path.name for path in (tmp_path / "alone").iterdir()) == ["adapter_config.json", "adapter_model.safetensors"]
    for folder in ("model", "again"):
        assert peft.PeftConfig.from_pretrained(str(tmp_path / folder / "adapter")).r == 2
        assert (tmp_path / folder / "adapter" / "adapter_model.safetensors").is_file()


def test_an_episode_is_played_and_its_conversation_read(tmp_path: Path) -> None:
    guesses = iter(["50", "25", "12", "6"])
    played = api.rollout("guess_number", lambda prompt: next(guesses, "1"), seed=0)
    roles = [message["role"] for message in played.messages]
    assert roles[:3] == ["user", "assistant", "user"] and roles[-1] == "assistant" and len(roles) == 2 * played.conversation_stats.turns
    assert [message["content"] for message in played.messages[1:4]] in (["50", "lower", "25"], ["50", "higher", "25"])
    assert api.rollout("arithmetic", "scripted:gold").messages[1:] == [
        {"role": "assistant", "content": rlvr.evaluate("arithmetic", "scripted:gold", tasks=1).samples[0].text}
    ]
    rlvr.evaluate("guess_number", lambda prompt: "50", tasks=2, out=tmp_path / "e")
    assert rlvr.load_evaluation(tmp_path / "e").samples[1].messages[1]["content"] == "50"
    called = api.rollout("calculator_sums", "scripted:gold").messages
    assert any(message["role"] == "tool" for message in called) and any("tool_calls" in message for message in called)


def test_two_reports_are_compared_by_a_function() -> None:
    right, wrong = (rlvr.evaluate("arithmetic", policy, tasks=4) for policy in ("scripted:gold", lambda prompt: "x"))
    assert api.compare(right, wrong).envs["arithmetic"].paired_test.wins == 4
    assert right.scores == [1.0] * 4
    hot = rlvr.evaluate("arithmetic", lambda prompt: "x", tasks=4, temperature=1.0)
    assert "in Python force=True" in read_message(lambda: api.compare(wrong, hot))
    assert api.compare(wrong, hot, force=True).envs


def test_the_folders_of_plugins_have_the_public_names() -> None:
    from rlvr.envs import ArithmeticEnv, Environment
    from rlvr.sandbox import run_python
    from rlvr.verifiers import MathVerifier, Verifier, numeric

    assert (Environment, Verifier) == (rlvr.Environment, rlvr.Verifier) and numeric.make.__name__ == "Numeric"
    assert ArithmeticEnv().task("train", 0).reference and MathVerifier()("so \\boxed{\\frac12}", "0.5").score == 1.0
    assert run_python("print(1 + 1)").stdout == "2\n"
    with pytest.raises(ImportError, match=r"rlvr.verifiers has no 'Rubrik'.*rlvr.make_verifier"):
        from rlvr.verifiers import Rubrik  # noqa: F401
    with pytest.raises(AttributeError, match=r"rlvr.sandbox has no 'Container'"):
        _ = rlvr.sandbox.Container


def test_a_decorated_tool_has_a_schema_and_a_rollout_takes_a_number_of_tasks() -> None:
    @rlvr.tool
    def add(a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    assert api.tool(add).schema["parameters"]["required"] == ["a", "b"] and add(2, 3) == 5
    unwrapped: Any = rlvr.make("arithmetic").unwrapped
    with rlvr.Rollout("arithmetic", "chars", {"name": "scripted"}) as rollout:
        groups = rollout.sample(2, n=3)
        assert [len(group) for group in groups] == [3, 3]
        assert "tasks is 0" in read_message(lambda: rollout.sample(0))
    assert "write .environment.task('train', 0)" in read_message(lambda: unwrapped.task)


def test_more_words_of_other_libraries_mean_what_they_say(tmp_path: Path) -> None:
    from rlvr.algorithms import Trainer
    from rlvr.tools import tool

    assert (Trainer, tool) == (rlvr.Trainer, rlvr.tool)
    assert api.grade("4", "4").score == api.verify_numeric("it is 4", "4").score == api.verify_math("0.5", r"\frac12").score == 1.0
    report = rlvr.evaluate("arithmetic", "scripted:gold", tasks=2)
    assert report[1] is report.samples[1] and "is_correct" in read_message(lambda: report.failures)  # type: ignore[attr-defined]
    env: Any = rlvr.make_env("arithmetic")
    task = env.task("train", 0)
    assert env.verify(task, task.reference).score == 1.0
    tokenizer = rlvr.load_tokenizer(TOKENIZER)
    with rlvr.Trainer(
        model=tiny_model(tokenizer), tokenizer=tokenizer, env="arithmetic", steps=1, max_new_tokens=4, out=tmp_path / "a"
    ) as trainer:
        trainer.fit()
        assert len(trainer.metrics) == len(trainer.log_history) == 1 and trainer.learner.model is trainer.learner.policy.model  # type: ignore[attr-defined]

    @api.reward
    def always(completion: str, answer: str) -> float:
        return 1.0

    assert rlvr.evaluate([{"question": "1+1=", "answer": "2"}], lambda prompt: "3", reward=always).accuracy == 1.0


def test_several_episodes_are_a_list_and_a_file_is_a_dataset(tmp_path: Path) -> None:
    env = rlvr.make("arithmetic")
    episodes = api.rollout(env=env, model=lambda prompt: "4", n=3)
    assert "no policy is given" in read_message(lambda: api.rollout(env))
    assert len({episode.task_id for episode in episodes}) == 3 and all(episode.reward in (0.0, 1.0) for episode in episodes)
    assert len(api.rollout(env, lambda prompt: "4", num_episodes=2)) == 2
    assert "are both a number of episodes" in read_message(lambda: api.rollout(env, lambda prompt: "4", n=3, tasks=2))
    (tmp_path / "qa.jsonl").write_text('{"input": "1+1=", "target": "2"}\n{"input": "2+2=", "target": "4"}\n')
    rows = api.load_dataset(str(tmp_path / "qa.jsonl"))
    assert len(rows) == 2 and rlvr.evaluate(rows, lambda prompt: "4").accuracy == 0.5
    suite = api.Suite(["arithmetic", "countdown"])
    assert [*rlvr.evaluate(suite, "scripted:gold", tasks=1)] == ["arithmetic", "countdown"]
    made: Any = rlvr.make("guess_number", max_episode_steps=2)
    made.reset(seed=0)
    assert [made.step("50")[2] or made.step("50")[3]] == [True]


def test_a_base_class_of_verifiers_and_the_score_of_a_rubric() -> None:
    class Hi(api.MultiTurnEnv):
        def reset(self, seed: int | None = None) -> str:
            return "say hi"

        def step(self, action: str) -> tuple[str, float, bool, dict[str, Any]]:
            return "thanks", float("hi" in action), True, {}

    env = rlvr.make(Hi)
    assert env.reset(seed=0)[0] == "say hi" and env.step("hi")[1] == 1.0
    assert api.Rubric(funcs=[lambda completion, answer: float(answer in completion)]).score("it is 4", "4") == 1.0


def test_words_for_an_adapter_are_one_setting() -> None:
    assert translate_keywords("train", {"use_lora": True, "lora_rank": 4, "lora_alpha": 8}) == {"lora": {"rank": 4, "alpha": 8}}
    assert (
        translate_keywords("train", {"use_peft": True}) == {"lora": {"rank": 8}} and translate_keywords("train", {"use_lora": False}) == {}
    )
    assert "say the same; give one of them" in read_message(lambda: translate_keywords("train", {"lora_r": 4, "peft_config": 1}))


def test_an_environment_is_played_as_it_is() -> None:
    env: Any = api.load_environment("guess_number")
    assert env.reset(seed=0)[0] == "Guess my number from 1 to 100." and env.step("50")[0] in ("lower", "higher")
    tools: Any = api.ToolEnv(dataset=[{"question": "1+1?", "answer": "2"}], tools=["calculator"])
    assert "1+1?" in tools.reset(seed=0)[0]
    with pytest.raises(AttributeError, match="has no attribute 'resett'"):
        env.resett()


def test_a_model_is_compared_with_a_function_that_has_no_tokens() -> None:
    tokenizer = rlvr.load_tokenizer(TOKENIZER)
    model = rlvr.evaluate("arithmetic", tiny_model(tokenizer), tokenizer=tokenizer, tasks=4, max_tokens=4)
    function = rlvr.evaluate("arithmetic", lambda prompt: "4", tasks=4)
    assert api.compare(model, function).envs["arithmetic"].num_pairs == 4
    longer = rlvr.evaluate("arithmetic", tiny_model(tokenizer), tokenizer=tokenizer, tasks=4, max_tokens=5)
    assert "max_new_tokens is 4 and 5" in read_message(lambda: api.compare(model, longer))


def test_rows_and_a_function_of_verl_mean_the_same_here() -> None:
    seen = []

    def compute_score(data_source: str, solution_str: str, ground_truth: str, extra_info: Any = None) -> float:
        seen.append((data_source, ground_truth, extra_info))
        return float(ground_truth in solution_str)

    row = {"data_source": "mine", "prompt": [{"role": "user", "content": "2+2?"}], "reward_model": {"style": "rule", "ground_truth": "4"}}
    rows: Any = [{**row, "extra_info": {"index": index}} for index in range(2)]
    assert rlvr.evaluate(rows, lambda prompt: "it is 4", verifier=compute_score).accuracy == 1.0
    assert all(source == "mine" and extra in ({"index": 0}, {"index": 1}) for source, _, extra in seen[-2:])
    assert api.make_verifier(compute_score)("it is 4", "4").score == 1.0 and seen[-1] == ("rlvr", "4", None)


def test_a_function_of_chats_gets_messages() -> None:
    def exact(completion: Any, answer: str, **columns: Any) -> float:
        return float(answer in completion[-1]["content"])

    def batch(completions: Any, answer: Any, **columns: Any) -> list[float]:
        return [float(right in messages[0]["content"]) for messages, right in zip(completions, answer, strict=True)]

    for function in (exact, batch):
        assert rlvr.make_verifier(function)("it is 4", "4").score == 1.0 and rlvr.make_verifier(function)("it is 5", "4").score == 0.0
    rows = [{"question": "2+2?", "answer": "4"}]
    env = api.SingleTurnEnv(dataset=rows, rubric=api.Rubric(funcs=[exact], weights=[1.0]))
    assert rlvr.evaluate(env, lambda prompt: "4").accuracy == 1.0

    def broken(completion: Any, answer: Any) -> float:
        return float(answer["x"])

    assert "raised TypeError" in read_message(lambda: rlvr.make_verifier(broken)("4", "4"))


def test_names_and_words_that_were_guessed() -> None:
    made: Any = rlvr.make("guess-number")
    assert made.reset(seed=0)[0].startswith("Guess")

    @api.verifier("ends_with_it")
    def ends(completion: str, answer: str) -> float:
        return float(completion.endswith(answer))

    assert rlvr.verify("I think it is 7", "7", verifier="ends_with_it").score == 1.0 and "ends_with_it" in rlvr.list("verifier")
    report: Any = rlvr.evaluate("guess_number", "scripted:gold", tasks=1)
    assert report.episodes[0].total_reward == 1.0 and ".conversation_stats.turns" in read_message(lambda: report.episodes[0].steps)
    assert ".is_complete" in read_message(lambda: report.status)


def test_methods_that_nothing_calls_are_refused() -> None:
    class Hot(api.MultiTurnEnv):
        def task(self, split: str, index: int) -> rlvr.Task:
            return rlvr.Task("Say the word.", reference="hot")

        def env_response(self, messages: Any, state: Any) -> Any:
            return [{"role": "user", "content": "Colder."}]

    assert "env 'Hot' has env_response, which nothing calls" in read_message(lambda: rlvr.make_env(Hot, verifier="exact"))
