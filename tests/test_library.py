"""`import rlvr` as a library: the front door as a user types it, objects wherever names are taken, and messages for wrong guesses."""

from __future__ import annotations

import asyncio
import json
import logging
import math
import os
import signal
import subprocess
import sys
import traceback
from pathlib import Path
from typing import Any

import numpy
import pandas
import pytest
from transformers import AutoConfig, AutoModelForCausalLM

import rlvr
from rlvr.errors import ConfigError
from rlvr.evaluation.rescore import rescore
from rlvr.training.run_inputs import resolve_run_inputs

TOKENIZER = "chars:0123456789+=\n"
SMALL: dict[str, Any] = {"rollout": {"prompts_per_step": 2, "num_generations": 2, "max_new_tokens": 6}, "eval": {"tasks": 4}}


def tiny_model(tokenizer: rlvr.Tokenizer) -> Any:
    config = AutoConfig.for_model(
        "llama",
        vocab_size=tokenizer.vocab_size,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        eos_token_id=tokenizer.eos_id,
        bos_token_id=None,
        pad_token_id=None,
    )
    return AutoModelForCausalLM.from_config(config)


def test_one_answer_is_verified_by_name_by_function_and_by_mapping() -> None:
    assert rlvr.verify("symbolic", answer=r"\boxed{0.5}", reference=r"\frac12").score == 1.0
    assert rlvr.verify("numeric", answer="3.14", reference="3.1416", tolerance=0.01).score == 1.0
    assert rlvr.verify({"name": "exact", "ignore_case": True}, answer="paris", reference="Paris").score == 1.0
    assert rlvr.verify(lambda answer, reference: answer == reference, answer="4", reference="5").score == 0.0
    verdict = rlvr.verify(lambda answer, reference: None, answer="4", reference="5")
    assert verdict.score is None and "returned None" in verdict.reason


def test_the_verifier_may_be_a_keyword_and_answers_may_be_several() -> None:
    assert rlvr.verify("it is 4", "4", verifier="numeric").score == 1.0
    for verdicts in (
        rlvr.verify_many("numeric", ["4", "5"], ["4", "4"]),
        rlvr.verify_many(["4", "5"], ["4", "4"], verifier="numeric"),
        rlvr.verify_many("numeric", answers=["4", "5"], references=["4", "4"]),
    ):
        assert [verdict.score for verdict in verdicts] == [1.0, 0.0]


def test_a_reward_function_of_trl_is_a_verifier() -> None:
    def reward(prompts: list[str], completions: list[str], level: list[int], **columns: Any) -> list[float | None]:
        assert prompts == ["2+2="]
        return [0.5 if text == "4" and level == [3] else None for text in completions]

    verifier = rlvr.make_verifier(reward)
    task = rlvr.Task("2+2=", reference="4", meta={"level": 3})
    assert verifier.verify(task, "4").score == 0.5 and verifier.verify(task, "5").score is None


def test_the_value_of_a_function_is_its_score_or_is_mapped_from_its_range() -> None:
    def five(answer: str, reference: str) -> float:
        return 5.0

    assert rlvr.verify(five, answer="4", reference="5").score == 5.0
    assert rlvr.verify(five, answer="4", reference="5", score_range=(0, 5)).score == 1.0
    beyond = rlvr.verify(five, answer="4", reference="5", score_range=(0, 1))
    assert beyond.score is None and "outside of its score_range, 0 to 1; widen it" in beyond.reason
    endless = rlvr.verify(lambda answer, reference: math.inf, answer="4", reference="5")
    assert endless.score is None and "a score is a finite number" in endless.reason


def test_plain_rewards_are_reported_as_a_mean_with_an_interval_of_their_own() -> None:
    rows = [{"question": f"{n}+1=", "answer": str(n + 1)} for n in range(9)]

    def minus_length(completions: list[str], **columns: Any) -> list[float]:
        return [-float(len(text)) for text in completions]

    report = rlvr.evaluate(rows, lambda prompt: prompt[0] * (1 + int(prompt[0]) % 3), verifier=minus_length)
    (average,) = [env.mean_score for env in report.envs.values()]
    assert average is not None and not average.is_fraction and average.value == -2.0 and -2.7 < average.low < -2 < average.high < -1.3
    assert str(average) == "-2" and "%" not in str(report).replace("95 %", "")
    single = rlvr.evaluate(rows[:1], lambda prompt: "22", verifier=minus_length)
    (summary,) = single.envs.values()
    assert summary.to_report_dict()["mean_score"]["low"] is None  # no number of JSON is infinite


def test_a_verifier_with_a_bounded_score_may_not_go_beyond_it() -> None:
    class Ten(rlvr.Verifier):
        def verify(self, task: rlvr.Task, answer: str) -> rlvr.Verdict:
            return rlvr.Verdict(10.0, "ten")

    class Unbounded(Ten):
        has_bounded_score = False

    rows = [{"question": "2+2=", "answer": "4"}]
    refused = rlvr.evaluate(rows, lambda prompt: "4", verifier=Ten).samples[0]
    assert refused.score is None and "set has_bounded_score = False on the verifier" in refused.reason
    assert rlvr.evaluate(rows, lambda prompt: "4", verifier=Unbounded).samples[0].score == 10.0
    assert not rlvr.make_verifier({Unbounded: 1.0, "exact": 1.0}).has_bounded_score
    think = {"name": "structure", "verifier": lambda answer, reference: -1.0, "malformed_factor": 0.5}
    assert rlvr.make_verifier(think).verify(rlvr.Task("2+2=", "4"), "no format").score == -1.0  # half of it would be more


def test_plugins_are_listed_and_made() -> None:
    assert "arithmetic" in rlvr.list("env") and "grpo" in rlvr.list("algorithm")
    assert isinstance(rlvr.make_env("arithmetic", levels=["1+1"]), rlvr.Environment)
    assert isinstance(rlvr.make_verifier("symbolic"), rlvr.Verifier)
    assert isinstance(rlvr.make_algorithm("grpo", beta=0.1), rlvr.Algorithm)
    assert isinstance(rlvr.make_tool("calculator"), rlvr.Tool)
    assert isinstance(rlvr.make_sandbox("process", trusted=True), rlvr.Sandbox)
    assert isinstance(rlvr.make_sampler("scripted"), rlvr.Sampler)


class Always(rlvr.Verifier):
    """Gives every answer the same score."""

    def __init__(self, score: float = 0.5) -> None:
        self.score = score

    def verify(self, task: rlvr.Task, answer: str) -> rlvr.Verdict:
        return rlvr.Verdict(self.score, "always")


class Weighted(Always):
    """Has a setting whose name is in the table of hints."""

    def __init__(self, weights: list[float]) -> None:
        super().__init__(sum(weights))


def test_a_class_is_built_with_settings_and_with_what_it_needs() -> None:
    assert rlvr.verify(Always, "x", score=1.0).score == 1.0
    Arithmetic = type(rlvr.make_env("arithmetic"))
    assert rlvr.make_env(Arithmetic, levels=["1+1"], verifier=Always()).verifier.verify(rlvr.Task("?"), "").score == 0.5
    assert isinstance(rlvr.make_env({"name": Arithmetic, "levels": ["1+1"]}), rlvr.Environment)
    assert rlvr.verify(Weighted, "x", weights=[1.0]).score == 1.0  # a setting that other libraries' words would hide
    with pytest.raises(ConfigError, match="verifier 'Always' has no setting 'scor'; did you mean 'score'"):
        rlvr.verify(Always, "x", scor=1.0)


@rlvr.tool
def add(a: int, b: int = 1) -> int:
    """Add two integers."""
    return a + b


def test_a_function_is_a_tool_and_a_tool_is_called_by_hand() -> None:
    assert add(2, 3) == 5 and rlvr.make_tool(add)(2, b=3) == "5" and rlvr.make_tool("calculator")("7 * 8") == "56"
    with pytest.raises(rlvr.ToolError, match="'a'"):
        rlvr.make_tool(add)(a="x")
    env = rlvr.make_env("arithmetic", tools=[add, "calculator"])
    assert [spec.name for one in env.tools for spec in one.specs()] == ["add", "calculator"]


def test_a_sandbox_runs_a_text() -> None:
    with rlvr.make_sandbox("process", trusted=True) as sandbox:
        assert sandbox.run("print(input() * 2)", stdin="ab").stdout == "abab\n"
        assert sandbox.run("while True: pass", timeout=0.3).status is rlvr.ExitStatus.TIMEOUT
        with pytest.raises(ConfigError, match="go with a text"):
            sandbox.run(rlvr.Program("1"), timeout=1)


def test_make_is_the_one_of_gymnasium() -> None:
    env = rlvr.make("arithmetic", tokenizer=TOKENIZER, levels=["1+1"], max_new_tokens=8)
    env.reset(seed=0)
    answer = env.state.task.reference if env.state else ""
    _, reward, terminated, _, _ = env.step(answer)
    assert (reward, terminated) == (1.0, True)
    assert rlvr.make([{"question": "2+2=", "answer": "4"}], verifier="numeric", holdout=0).reset(seed=0)


def test_without_a_tokenizer_the_environment_of_make_is_one_of_texts() -> None:
    env = rlvr.make("arithmetic", levels=["1+1"])
    question, info = env.reset(seed=0)
    assert question == info["prompt"] and question.endswith("=")
    assert env.state is not None and env.step(str(env.state.task.reference))[1:3] == (1.0, True)
    envs = rlvr.make_vec("arithmetic", 3, levels=["1+1"], workers=2)
    questions, _ = envs.reset(seed=0)
    assert len(questions) == 3 and envs.step(["x"] * 3)[1].tolist() == [0.0] * 3
    envs.close()


def test_a_gymnasium_environment_is_taken_where_an_environment_is() -> None:
    gym = rlvr.make("arithmetic")
    assert rlvr.evaluate(gym, lambda prompt: "4", n_eval_episodes=3).envs["Arithmetic"].samples == 3
    assert isinstance(rlvr.Rollout(gym, TOKENIZER, "scripted").mdp.environment, type(gym.environment))
    assert resolve_run_inputs("quickstart", env=gym).environment is gym.environment


def test_generate_returns_the_texts_of_each_prompt() -> None:
    told: list[str] = []

    def policy(messages: Any) -> str:
        told.append(messages[-1]["content"])
        return messages[-1]["content"].upper()

    prompts: list[Any] = ["one", [{"role": "user", "content": "two"}]]
    assert rlvr.generate(policy, prompts, n=2) == [["ONE", "ONE"], ["TWO", "TWO"]] and rlvr.generate(policy, prompts) == ["ONE", "TWO"]
    assert rlvr.generate(policy, "one") == "ONE" and rlvr.generate(policy, "one", n=1) == ["ONE"] and rlvr.generate(policy, []) == []
    tokenizer = rlvr.load_tokenizer(TOKENIZER)
    loaded = rlvr.LoadedModel(tiny_model(tokenizer), tokenizer)
    once, again = rlvr.generate(loaded, "1+1=", n=3, max_new_tokens=5, seed=2), loaded.generate("1+1=", n=3, max_tokens=5, seed=2)
    assert once == again and len(once) == 3 and len({*once}) > 1 and all(len(text) <= 5 for text in once)
    with pytest.raises(rlvr.RlvrError, match=r"no answer to the prompt 0: .*division by zero"):
        rlvr.generate(lambda prompt: 1 / 0, "one")


def test_an_answer_and_a_reference_alone_are_compared_as_mathematics() -> None:
    assert rlvr.verify(r"so it is \boxed{\frac12}", "0.5").score == 1.0
    assert rlvr.verify("5", "4").score == 0.0 and float(rlvr.verify("4", reference="4")) == 1.0
    assert rlvr.verify(answer="it is 4", gold="4").score == 1.0  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="takes the verifier first"):
        rlvr.verify("4", "4", rlvr.make_verifier("numeric"))
    for typo in ("symbolc", "exect", "Exact"):
        with pytest.raises(rlvr.RlvrError, match="no verifier is called"):
            rlvr.verify(typo, "4")


def test_a_verdict_is_neither_true_nor_false() -> None:
    with pytest.raises(TypeError, match=r"has the score 0.0; write verdict.passed"):
        assert rlvr.verify("5", "4")


def test_data_to_evaluate_on_takes_the_settings_of_its_environment() -> None:
    seen: list[Any] = []

    def policy(messages: Any, tools: Any) -> str:
        seen.append([tool["function"]["name"] for tool in tools])
        return "4"

    rows = [{"q": "2+2", "a": "4"}, {"q": "1+1", "a": "4"}]
    sampling = {"max_tokens": 8}
    report = rlvr.evaluate(
        rows, policy, verifier="numeric", tools=["calculator"], max_turns=3, question="q", reference="a", sampling_args=sampling
    )
    assert report.accuracy == 1.0 and seen == [["calculator"]] * 2 and report.plan.envs[0].max_new_tokens == 8
    with pytest.raises(rlvr.RlvrError, match=r"question is a setting of data, and env is no data"):
        rlvr.evaluate("arithmetic", policy, question="q")


def of_mapping(response: Any, answer: str, **columns: Any) -> float:
    return float(answer in response["content"])


def endless(completions: list[str], **columns: Any) -> list[float]:
    return [math.inf for text in completions]


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (of_mapping, r"of_mapping in line \d+ of test_library.py raised TypeError: .*`response` is a text"),
        (endless, r"endless returned inf, and a score is a finite number"),
    ],
)
@pytest.mark.parametrize("mixed", [False, True])
def test_a_function_that_can_score_nothing_is_told_before_anything_is_sampled(function: Any, said: str, mixed: bool) -> None:
    verifier = {function: 1.0, "format": 0.5} if mixed else function
    rows = [{"question": "2+2=", "answer": "4"}] * 4
    with pytest.raises(rlvr.RlvrError, match=said):
        rlvr.evaluate(rows, lambda prompt: pytest.fail("it was sampled"), verifier=verifier)
    with pytest.raises(rlvr.RlvrError, match=said):
        rlvr.Trainer(model="no/such-model", data=rows, verifier=verifier)


def test_a_tool_shows_its_calls_and_a_loaded_model_its_classes() -> None:
    def add(a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    made = rlvr.make_tool(add)
    assert repr(made) == "<FunctionTool: add(a, b)>" and made.specs()[0].description == "Add two numbers."
    with pytest.raises(AttributeError, match=r"write .specs\(\)"):
        _ = made.schema  # type: ignore[attr-defined]
    assert repr(rlvr.LoadedModel("a model", rlvr.load_tokenizer("chars"))) == "LoadedModel(a str, a CharTokenizer)"


def test_the_reference_of_a_call_by_hand_may_have_its_usual_names() -> None:
    verifier = rlvr.make_verifier("numeric")
    assert [verifier("it is 4", **{word: "4"}).score for word in ("reference", "target", "solution", "ground_truth")] == [1.0] * 4


def test_unknown_settings_of_a_run_are_told_before_anything_is_imported(tmp_path: Path) -> None:
    lines = ["import sys, rlvr", "try:", "    rlvr.train(model='m', env='arithmetic', beta=0.04, optim='sgd')", "finally:"]
    script = "\n".join([*lines, "    print(sorted({'torch', 'transformers'} & {*sys.modules}))"])
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=tmp_path)
    assert "there is no setting 'optim'; the optimizer is AdamW" in done.stderr and done.stdout == "[]\n", done.stderr
    config = resolve_run_inputs(model="m", env="arithmetic", beta=0.04, lora={"r": 8, "lora_alpha": 16}).config
    assert config.algorithm["beta"] == 0.04 and config.model.lora is not None and config.model.lora.rank == 8


def test_a_function_that_needs_another_form_of_answer_is_left_to_the_run() -> None:
    calls: list[str] = []

    def in_json(completion: str, reference: str) -> bool:
        calls.append(completion)
        return bool(json.loads(completion)["value"] == reference)

    report = rlvr.evaluate([{"question": "2+2=", "answer": "4"}], lambda prompt: '{"value": "4"}', verifier=in_json)
    assert report.accuracy == 1.0 and calls == ["-", '{"value": "4"}']  # one trial call


class Seeded(rlvr.Environment):
    """Asks for a number."""

    needs = {"verifier": "exact"}

    def __init__(self, *, verifier: rlvr.Verifier, seed: int = 0, target: str = "4") -> None:
        self.verifier, self.seed, self.target = verifier, seed, target

    def task(self, split: str, index: int) -> rlvr.Task:
        return rlvr.Task(f"{index}?", reference=self.target)


class Targeted(rlvr.Verifier):
    """Has settings that other libraries use as words for something else."""

    def __init__(self, *, target: float = 1.0, timeout: float = 1.0) -> None:
        self.target = target

    def verify(self, task: rlvr.Task, answer: str) -> rlvr.Verdict:
        return rlvr.Verdict(self.target if answer == task.reference else 0.0)


def test_a_setting_of_a_plugin_is_never_taken_for_a_word_of_another_library() -> None:
    made: Any = rlvr.make_env(Seeded, target="7")
    assert made.target == "7" and made.task("train", 0).reference == "7"
    assert (
        rlvr.verify(Targeted, "4", "4", target=0.5).score == 0.5
        and rlvr.verify(Targeted, answer="4", reference="4", target=0.25).score == 0.25
    )
    assert rlvr.verify(lambda completion, reference, label="pos": label == "neg", "a", "b", label="neg").score == 1.0
    assert rlvr.make_verifier(lambda completions, timeout, **columns: [float(timeout == [3])])("x", "y", timeout=3).score == 1.0
    with pytest.raises(ConfigError, match="timeout is no column of a task; a setting is given when the verifier is made"):
        rlvr.make_verifier(Targeted)("4", "4", timeout=3)


def test_a_seed_of_make_reaches_the_environment_or_the_first_reset() -> None:
    for env in (Seeded, {"name": Seeded}):
        made: Any = rlvr.make(env, seed=9).environment  # type: ignore[arg-type]
        assert made.seed == 9
    rows = [{"question": str(number), "answer": "4"} for number in range(50)]
    questions = [[one.reset()[0] for _ in range(3)] for one in (rlvr.make(rows, verifier="exact", seed=numpy.int64(5)) for _ in range(2))]
    assert questions[0] == questions[1] and len({*questions[0]}) > 1
    envs = [rlvr.make_vec(rows, 2, verifier="exact", seed=5) for _ in range(2)]
    assert envs[0].reset()[0] == envs[1].reset()[0]


def test_names_of_environments_may_stand_in_tasks_and_a_conversation_is_one_prompt() -> None:
    conversation: Any = [{"role": "user", "content": "hi"}]
    for words in ({"model": lambda prompt: "4"}, {"policy": lambda prompt: "4"}):
        evaluate: Any = rlvr.evaluate
        assert evaluate(tasks=["arithmetic"], limit=2, **words).envs["arithmetic"].samples == 2
    assert rlvr.generate(lambda prompt: prompt, conversation) == "hi"
    with pytest.raises(ConfigError, match="sampling_args is a str"):
        rlvr.evaluate("arithmetic", lambda prompt: "4", sampling_args="temperature=1")


def test_an_environment_shows_its_size_and_its_verifier() -> None:
    rows = [{"question": str(number), "answer": "4"} for number in range(10)]
    assert repr(rlvr.make_env(rows, verifier="exact", holdout=0.2, tools=["calculator"])) == (
        "<WithTools: train 8, test 2, verifier Exact, tools Calculator>"
    )
    assert repr(rlvr.make_env("arithmetic")) == "<Arithmetic: train generated, test generated, verifier Numeric>"


def test_an_error_about_an_argument_shows_the_call_and_no_insides() -> None:
    with pytest.raises(rlvr.RlvrError) as caught:
        rlvr.evaluate("arithmetic", lambda prompt: "4", samplng=3)
    files = [Path(frame.filename).name for frame in traceback.extract_tb(caught.value.__traceback__)]
    assert files[0] == "test_library.py" and set(files[1:]) <= {"synonyms.py", "hints.py"} and caught.value.__cause__ is None

    class Own(rlvr.Environment):
        verifier = rlvr.make_verifier("exact")

        def task(self, split: str, index: int) -> rlvr.Task:
            raise ConfigError("the file is gone")

    with pytest.raises(rlvr.RlvrError, match="the file is gone") as caught:
        rlvr.evaluate(Own(), lambda prompt: "4")
    assert "task" in [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]  # the user's own code stays


def test_an_object_in_the_settings_of_a_run_is_refused_in_words() -> None:
    for settings in ({"env": {"name": "arithmetic", "x": object()}}, {"env.x": object()}):
        with pytest.raises(rlvr.RlvrError, match=r"Object of type object is not JSON.*Give an object as a keyword: env="):
            rlvr.train("quickstart", settings)


def test_a_run_that_ctrl_c_ended_after_its_step_shows_no_insides(tmp_path: Path) -> None:
    """It has said where it stands. Ctrl-C that ends something at once shows where it was."""

    class Stop(rlvr.Callback):
        def on_step_end(self, trainer: rlvr.Trainer, step: int, record: Any) -> None:
            if step == 1:
                os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt) as caught:
        rlvr.train("quickstart", {"sft_warmup": None, "eval.tasks": 0}, steps=3, prompts_per_step=2, out=tmp_path, callbacks=[Stop()])
    files = [Path(frame.filename).name for frame in traceback.extract_tb(caught.value.__traceback__)]
    assert files == ["test_library.py"]


def test_settings_of_training_need_no_section() -> None:
    config = resolve_run_inputs("quickstart", steps=3, num_generations=4, learning_rate=0.5, eval={"tasks": 7}).config
    assert (config.train.steps, config.rollout.num_generations, config.train.learning_rate, config.eval.tasks) == (3, 4, 0.5, 7)


def test_a_loaded_model_is_taken_with_its_tokenizer(tmp_path: Path) -> None:
    tokenizer = rlvr.load_tokenizer(TOKENIZER)
    loaded = rlvr.load_model(tiny_model(tokenizer), tokenizer)
    assert rlvr.evaluate(loaded, "arithmetic", tasks=2).accuracy == 0.0  # the policy may come first
    assert rlvr.Learner(loaded, "grpo").policy is not None and rlvr.make_sampler("hf", model=loaded)
    loaded.save_pretrained(tmp_path / "model")
    assert (tmp_path / "model" / "config.json").is_file()


def test_data_is_an_environment(tmp_path: Path) -> None:
    rows = [{"question": f"{a}+1=", "answer": str(a + 1)} for a in range(20)]
    from datasets import Dataset

    (tmp_path / "rows.csv").write_text("question,answer\n" + "\n".join(f"{r['question']},{r['answer']}" for r in rows), "utf-8")
    for data in (rows, pandas.DataFrame(rows), Dataset.from_list(rows), str(tmp_path / "rows.csv"), tmp_path / "rows.csv"):
        env = rlvr.make_env(data, verifier="numeric", holdout=0)
        assert env.num_tasks("train") == 20 and env.task("train", 3).reference == "4"
        report = rlvr.evaluate(data, policy=lambda prompt: "4", verifier="numeric")
        assert (report.accuracy, next(iter(report.envs.values())).samples) == (0.05, 20)


def test_a_gymnasium_environment_takes_the_environment_first() -> None:
    env = rlvr.TokenEnv(rlvr.make_env("arithmetic"), tokenizer="chars")
    observation, _ = env.reset(seed=0)
    assert set(observation) == {"input_ids", "attention_mask", "loss_mask", "length"}
    assert env.step(7)[1:4] == (0.0, False, False)


def test_grpo_by_hand_and_stop_ids_that_come_from_the_tokenizer() -> None:
    model, tokenizer = rlvr.load_model(tiny_model(tok := rlvr.load_tokenizer(TOKENIZER)), tok)
    env = rlvr.make_env("arithmetic", levels=["1+1"])
    with rlvr.Rollout(env, tokenizer, rlvr.make_sampler("hf", model=model), max_new_tokens=6) as rollout:
        learner = rlvr.Learner(model, "grpo", learning_rate=1e-3)
        tasks = [env.task("train", index) for index in range(4)]
        groups = rollout.sample(tasks, n=8, seed=0)
        assert [len(group) for group in groups] == [8] * 4
        assert not [episode.error for group in groups for episode in group if episode.error]  # none failed for want of a stop id
        assert rollout.sample(tasks, n=8, seed=0)[0][0].tokens == groups[0][0].tokens
        assert "grad_norm" in learner.update(groups)
        rollout.update_weights(learner)
        assert rollout.sample(tasks[0], n=2, seed=1)[0][0].policy_version == 1

        async def collect() -> list[list[rlvr.Episode]]:
            return [group async for group in rollout.stream_groups(tasks, n=2, seed=3)]

        assert sorted(group[0].group for group in asyncio.run(collect())) == ["3:0", "3:1", "3:2", "3:3"]
        with pytest.raises(ConfigError, match="leave stop_ids out"):
            rollout.collect([], rlvr.SamplingParams(stop_ids=frozenset({7})))


class StopAfter(rlvr.Callback):
    """Early stopping as a user writes it."""

    def __init__(self, step: int) -> None:
        self.step, self.seen = step, list[str]()

    def on_step_end(self, trainer: Any, step: int, record: Any) -> None:
        self.seen.append(sorted(record.metrics)[0])
        if record.step == self.step:
            trainer.stop("enough")


def test_a_trainer_with_objects_and_a_callback(tmp_path: Path) -> None:
    tokenizer = rlvr.load_tokenizer(TOKENIZER)
    callback = StopAfter(2)
    with rlvr.Trainer(
        model=tiny_model(tokenizer),
        tokenizer=tokenizer,
        env=rlvr.make_env("arithmetic", levels=["1+1"]),
        algorithm="grpo",
        callbacks=[callback],
        train={"steps": 5},
        out=tmp_path / "run",
        **SMALL,
    ) as trainer:
        report = trainer.fit()
    assert report.steps == 2 and len(callback.seen) == 2 and report.accuracy_after is not None
    run = rlvr.load_run(tmp_path / "run")
    assert list(run.metrics["step"]) == [1, 2] and len(run.episodes) == 8 and run.plot("reward").axes
    with pytest.raises(ConfigError, match="the run has no metric 'rewards'"):
        run.plot("rewards")


def test_answers_and_references_may_be_arrays_and_iterators() -> None:
    assert [verdict.score for verdict in rlvr.verify_many("numeric", iter(["4", "5"]), numpy.array([4, 4]))] == [1.0, 0.0]  # type: ignore[call-overload]
    (verdict,) = rlvr.verify_many("numeric", [None], ["4"])  # type: ignore[list-item]
    assert verdict.score is None and verdict.reason == "the answer is None; it must be a text"


class Emptying(rlvr.Verifier):
    """Empties the lists that it gets."""

    def verify(self, task: rlvr.Task, answer: str) -> rlvr.Verdict:
        return rlvr.Verdict(float(answer == task.reference), "alone")

    def verify_many(self, tasks: Any, answers: Any) -> list[rlvr.Verdict]:
        found = [rlvr.Verdict(float(answer == task.reference), "together") for task, answer in zip(tasks, answers, strict=True)]
        tasks.clear()
        answers.clear()
        return found


def test_a_reward_function_that_returns_too_many_rewards_gives_no_score() -> None:
    def three(completions: Any, **columns: Any) -> list[float]:
        return [1.0] * 3

    for verdict in rlvr.verify_many(three, ["4", "5"], ["4", "4"]):
        assert verdict.score is None and "it returned 3 rewards for 1 completion" in verdict.reason, verdict


def test_a_batch_method_may_change_its_lists() -> None:
    answers = ["4", "5"]
    assert [verdict.score for verdict in rlvr.verify_many(Emptying(), answers, ["4", "4"])] == [1.0, 0.0]
    assert answers == ["4", "5"]


def test_an_answer_with_a_lone_surrogate_leaves_a_run_readable(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("{}", "utf-8")
    (tmp_path / "episodes.jsonl").write_text('{"step": 1, "text": "\\ud800a", "tokens": [1]}\n', "utf-8")
    assert rlvr.Run(tmp_path).episodes["text"][0] == "?a"


def test_train_by_recipe_and_on_data_with_a_function(tmp_path: Path) -> None:
    few = {"train.steps": 1, "sft_warmup.max_steps": 2, "eval.tasks": 4, "rollout.prompts_per_step": 2, "rollout.num_generations": 2}
    assert rlvr.train("quickstart", few, out=tmp_path / "a").steps == 1
    tokenizer = rlvr.load_tokenizer("chars")
    rows = [{"question": f"{a}+1=", "answer": str(a + 1)} for a in range(20)]
    report = rlvr.train(
        model=tiny_model(tokenizer),
        tokenizer=tokenizer,
        data=rows,
        verifier=lambda answer, reference: reference in answer,
        train={"steps": 1},
        out=tmp_path / "b",
        **SMALL,
    )
    assert report.held_out_tasks == 2


def test_columns_of_data_are_named_as_keywords_or_as_settings_and_an_unscored_answer_has_no_reward(tmp_path: Path) -> None:
    tokenizer = rlvr.load_tokenizer("chars")
    rows = [{"frage": f"{a}+1=", "loesung": a + 1} for a in range(20)]
    seen = set[str]()

    def judge(answer: str, reference: str) -> float | None:
        seen.add(reference)
        return None if int(reference) % 2 else 1.0

    policy = {"model": tiny_model(tokenizer), "tokenizer": tokenizer, "data": rows, "verifier": judge, "train": {"steps": 1}}
    short = {"rollout.num_generations": 2, "rollout.max_new_tokens": 8, "eval.tasks": 2}
    rlvr.train(question="frage", reference="loesung", out=tmp_path / "a", **policy, **SMALL)
    assert seen <= {str(a + 1) for a in range(20)} and len(seen) > 1  # a number in the data is a text
    rlvr.train(
        settings={"env.question": "frage", "env.reference": "loesung", "rollout.prompts_per_step": 8, **short}, out=tmp_path / "b", **policy
    )
    episodes = rlvr.load_run(tmp_path / "b").episodes
    scores = [verdict["score"] for verdict in episodes["verdict"]]
    assert None in scores and 1.0 in scores
    assert [None if reward != reward else reward for reward in episodes["reward"]] == scores  # NaN: a mean leaves it out
    settings = {"env.question": "frage", "env.verifier.tolerance": 0.1, "env.reference": "loesung"}
    inputs = resolve_run_inputs(None, settings, model="x", data=rows, question="no", verifier="numeric")
    assert inputs.environment is not None and inputs.environment.verifier.tolerance * 10 == 1  # type: ignore[attr-defined]
    refused: tuple[tuple[Any, str], ...] = (({"env.path": "x"}, "env.path is set, and data"), (["env.rows=1"], "env.rows is set"))
    for settings, words in refused:
        with pytest.raises(ConfigError, match=words):
            resolve_run_inputs(None, settings, model="x", data=rows, verifier="numeric")
    with pytest.raises(ConfigError, match="env is set, but env is an object"):
        resolve_run_inputs(None, ["env=arithmetic"], model="x", env=rlvr.make_env("arithmetic"))
    with pytest.raises(ConfigError, match="the data has no column that is known to be the question"):
        rlvr.train(out=tmp_path / "c", **policy)
    with pytest.raises(ConfigError, match=r"env.question is set, but env is an object"):
        rlvr.train(
            settings={"env.question": "frage"},
            model=policy["model"],
            tokenizer=tokenizer,
            env=rlvr.make_env("arithmetic"),
            out=tmp_path / "d",
        )


def test_tasks_lists_of_environments_and_reports_are_what_a_program_expects(tmp_path: Path) -> None:
    tasks = [rlvr.Task(f"{a}+1=", str(a + 1), id=f"t{a}") for a in range(6)]
    right = rlvr.evaluate(tasks, lambda prompt: str(int(prompt[0]) + 1), verifier="numeric")
    wrong = rlvr.evaluate(tasks, lambda prompt: "3", verifier="numeric", n=1, limit=6)
    assert [sample.task_id for sample in right.samples] == [task.id for task in tasks]
    sample = wrong.samples[0]
    assert (sample.prompt, sample.text, sample.reference, sample.score) == ("0+1=", "3", "1", 0.0) and "3" in sample.reason
    assert list(wrong.to_pandas()["score"]) == [0.0, 0.0, 1.0, 0.0, 0.0, 0.0]
    test = right.compare(wrong).envs["TaskList"].paired_test
    assert (test.wins, test.losses, test.ties) == (5, 0, 1)
    assert "100.0%" in str(right) and "accuracy=1, 6 samples" in repr(right)

    both = rlvr.evaluate(["arithmetic", {"env": "countdown", "tasks": 2}], "scripted:gold", n=2, out=tmp_path / "e")
    stored = rlvr.load_evaluation(tmp_path / "e")
    assert list(both.envs) == ["arithmetic", "countdown"] and both.samples == stored.samples
    assert stored.compare(both).envs["countdown"].paired_test.ties == 2 and stored.envs == both.envs and stored.metrics == both.metrics
    with pytest.raises(rlvr.RlvrError, match=r"write rlvr.load_evaluation"):
        rlvr.load_run(tmp_path / "e")
    with pytest.raises(rlvr.RlvrError, match="cannot be built again"):
        rlvr.evaluate(tasks, lambda prompt: "3", verifier="numeric", out=tmp_path / "o")
        rescore(tmp_path / "o")


def test_the_folder_of_a_run_is_a_model_and_a_policy(tmp_path: Path) -> None:
    tokenizer = rlvr.load_tokenizer("chars")
    rlvr.LoadedModel(tiny_model(tokenizer), tokenizer).model.save_pretrained(tmp_path / "checkpoints" / "last")
    assert rlvr.load_model(tmp_path, tokenizer).model.num_parameters() > 0


def test_a_function_of_the_prompt_is_told_the_system_prompt() -> None:
    heard = []
    rlvr.evaluate([rlvr.Task("2+2=", "4")], lambda prompt: heard.append(prompt) or "4", verifier="numeric", system="Be short.")  # type: ignore[func-returns-value]
    assert heard == ["Be short.\n\n2+2="]


def test_words_of_trl_and_inspect_are_taken_as_they_are(tmp_path: Path) -> None:
    def correct(completions: list[str], answer: list[str], **columns: Any) -> list[float]:
        return [float(gold in text) for text, gold in zip(completions, answer, strict=True)]

    def short(completions: list[str], **columns: Any) -> list[float]:
        return [float(len(text) < 3) for text in completions]

    def double(number: int) -> int:
        """Double a number."""
        return 2 * number

    tokenizer = rlvr.load_tokenizer("chars")
    rows = [{"prompt": f"{a}+1=", "answer": str(a + 1)} for a in range(20)]
    settings: dict[str, Any] = {"max_steps": 1, "group_size": 2, "prompts_per_step": 2, "max_completion_length": 4, "beta": 0.04}
    shared: dict[str, Any] = {"model": tiny_model(tokenizer), "processing_class": tokenizer, "train_dataset": rows}
    with rlvr.Trainer(
        **shared,
        reward_funcs=[correct, short],
        reward_weights=[1.0, 0.5],
        tools=[double],
        max_turns=2,
        algo="rloo",
        output_dir=tmp_path / "a",
        report_to="tensorboard",
        eval={"tasks": 2},
        **settings,
    ) as trainer:
        report = trainer.fit()
    config = rlvr.load_run(tmp_path / "a").config
    assert report.steps == 1 and config.algorithm == {"name": "rloo", "beta": 0.04} and config.log.report_to == ["tensorboard"]
    lone = [{"prompt": "say something short"}, {"prompt": "and again"}]
    words: dict[str, Any] = {"dataset": lone, "model": lambda prompt: "ab", "reward_funcs": short, "epochs": 2, "num_examples": 2}
    assert rlvr.evaluate(**words).accuracy == 1.0
    assert rlvr.verify(r"\boxed{4}", "4", verifier="math").score == 1.0

    def close(answer: str, reference: str, tol: float = 0.0) -> bool:
        return abs(float(answer) - float(reference)) <= tol

    assert rlvr.make_verifier(close, tol=0.2)("4.1", "4").score == 1.0 and rlvr.make_verifier(close)("4.1", "4").score == 0.0


def test_policies_are_names_models_samplers_and_functions(capsys: pytest.CaptureFixture[str]) -> None:
    tokenizer = rlvr.load_tokenizer(TOKENIZER)
    by_model = rlvr.evaluate("arithmetic", policy=tiny_model(tokenizer), tokenizer=tokenizer, n=2, tasks=3)
    assert by_model.envs["arithmetic"].samples == 6 and list(by_model.to_pandas()["sample"]) == [0, 1] * 3
    by_model.table(width=80)
    assert "arithmetic" in capsys.readouterr().out
    by_function = rlvr.evaluate([{"question": "2+2=", "answer": "4"}], policy=lambda prompt: "4", verifier="numeric")
    assert by_function.envs["Dataset"].mean_score.value == 1.0  # type: ignore[union-attr]
    failing = rlvr.evaluate([{"question": "2+2=", "answer": "4"}], policy=lambda prompt: 1 / 0, verifier="numeric")
    assert failing.envs["Dataset"].unscored == 1  # a policy that breaks has no score, not a zero


WRONG_GUESSES: list[tuple[Any, type[Exception], str]] = [
    (lambda: rlvr.make("verifier", "numeric"), TypeError, r"the call is rlvr.make\(env=None, /, \*, tokenizer=None, \*\*settings\)"),  # type: ignore[call-arg]
    (lambda: rlvr.verify("numeric", "4", "4", answer="4"), TypeError, "got the answer twice"),  # type: ignore[call-overload]
    (lambda: rlvr.verify("numeric", "4", "4").info, AttributeError, "write .detail"),  # type: ignore[attr-defined]
    (lambda: rlvr.available_verifiers, AttributeError, r"write rlvr.list\('verifier'\)"),
    (lambda: rlvr.SFTTrainer, AttributeError, r"write rlvr.train\(model=..., data=rows, verifier=function"),
    (lambda: rlvr.LLM, AttributeError, "write rlvr.generate"),
    (lambda: rlvr.PPO, AttributeError, r"write rlvr.train\(model="),
    (lambda: rlvr.parse, AttributeError, "nothing is parsed before"),
    (lambda: rlvr.nothing_like_it, AttributeError, r"the main names are rlvr.list, verify, evaluate, generate, train"),
    (lambda: rlvr.Task(dataset=[]), TypeError, "an rlvr.Task is one question; a benchmark is rows"),  # type: ignore[call-arg]
    (lambda: rlvr.Environment(), TypeError, "for questions with answers write rlvr.make_env"),  # type: ignore[abstract]
    (lambda: type("Own", (rlvr.Environment,), {"env_response": 1})(), TypeError, "smallest conversation that works"),
    (lambda: type("Own", (rlvr.Environment,), {"step": 1})(), TypeError, "a verifier gives the reward"),
    (
        lambda: rlvr.evaluate("arithmetic", lambda prompt: "4", tasks=1)["rewards"],
        LookupError,
        r"write report.scores",
    ),
    (lambda: rlvr.add_verifier, AttributeError, "nothing has to be registered"),
    (lambda: rlvr.Sandbox("docker"), TypeError, "write rlvr.make_sandbox"),  # type: ignore[abstract, call-arg]
    (lambda: rlvr.train("quickstart", ppo_epochs=4), ConfigError, "num_iterations"),
    (lambda: rlvr.train("quickstart", num_train_epochs=4), ConfigError, "write steps="),
    (lambda: rlvr.train("quickstart", max_steps=4, steps=4), ConfigError, "got max_steps and steps, which mean the same"),
    (
        lambda: rlvr.train("quickstart", callbacks=[object()]),
        ConfigError,
        "give an object of a subclass of rlvr.Callback",
    ),
    (lambda: rlvr.evaluate("arithmetic", lambda prompt: "7", samples=5), ConfigError, "write n="),
    (lambda: rlvr.train("quickstart", optim="sgd", num_train_epochs=2), ConfigError, "'optim'; the optimizer is AdamW.*and no 'num_train"),
    (lambda: rlvr.evaluate("arithmetic", "scripted:gold", tasks=1)["mean_reward"], LookupError, "write report.accuracy"),
    (lambda: rlvr.evaluate("quickstart", "scripted:gold"), rlvr.RlvrError, "is a recipe for training; its environment is arithmetic"),
    (lambda: rlvr.Task("2+2=", solution="4"), TypeError, "write reference="),  # type: ignore[call-arg]
    (lambda: rlvr.Limits(memory=3), TypeError, "memory_mb="),  # type: ignore[call-arg]
    (lambda: rlvr.make_verifier([]), ConfigError, "the list of verifiers is empty"),
    (lambda: rlvr.make("arithmetic").step("7"), rlvr.RlvrError, "reset"),
    (lambda: rlvr.make_env("arithmetics"), rlvr.RlvrError, "did you mean 'arithmetic'"),
    (lambda: rlvr.evalute, AttributeError, "did you mean 'evaluate'"),
    (lambda: rlvr.train(model="x"), ConfigError, "no environment is given"),
    (lambda: rlvr.train(env="arithmetic"), ConfigError, "no model is given"),
    (lambda: rlvr.train(env="arithmetic", data="x.jsonl"), ConfigError, "data and env are both given"),
    (lambda: rlvr.Rollout("arithmetic", sampler="scripted"), ConfigError, "no tokenizer is given"),
    (lambda: rlvr.Learner(tiny_model(rlvr.load_tokenizer(TOKENIZER)), lerning_rate=1.0), ConfigError, "did you mean 'learning_rate'"),
    (lambda: rlvr.evaluate("arithmetic", policy=tiny_model(rlvr.load_tokenizer(TOKENIZER))), ConfigError, "give tokenizer="),
    (lambda: rlvr.evaluate("arithmetic", policy=5), ConfigError, "the policy is a int"),
    (lambda: rlvr.make_verifier(rlvr.make_env("arithmetic")), ConfigError, "not an rlvr.Verifier"),  # type: ignore[arg-type]
    (lambda: rlvr.load_run("nowhere"), rlvr.RlvrError, "is not a run folder"),
    (lambda: rlvr.evaluate("arithmetic", "scripted:gold", fail_on_erorr=False), ConfigError, "fail_on_erorr"),
    (
        lambda: rlvr.make_env([rlvr.Task("a", "b", id="x"), rlvr.Task("c", "d", id="x")]),
        ConfigError,
        "two tasks of the list have the id 'x'",
    ),
    (lambda: rlvr.make_env([5]), ConfigError, "each must be a dict"),  # type: ignore[arg-type]
    (lambda: rlvr.verify_many("numeric", ["4", "5"], "45"), TypeError, "references is the text '45'"),
    (lambda: rlvr.verify_many("numeric", {"a": "4"}, ["4"]), TypeError, "answers is {'a': '4'}; it must be a list"),  # type: ignore[call-overload]
    (lambda: rlvr.verify_many("numeric", ["4"], ["4"], columns={"unit": []}), ConfigError, "the column 'unit' has 0 values for 1 answers"),
    (lambda: rlvr.verify_many("numeric", ["4"], ["4"], columns=[1]), TypeError, r"columns is \[1\]; it must be a mapping"),  # type: ignore[call-overload]
    (lambda: rlvr.evaluate({"a": "arithmetik"}, "scripted:gold"), rlvr.RlvrError, "did you mean 'arithmetic'"),
    (
        lambda: rlvr.evaluate({"a": "arithmetic", "b": [{"question": "2+2"}]}, "scripted:gold"),
        ConfigError,
        "'b' is .*, which is no environ",
    ),
    (lambda: rlvr.evaluate({}, "scripted:gold"), ConfigError, "the mapping of environments is empty"),
    (lambda: rlvr.make_env("arithmetic").to_dataset(-1, seed=0), ConfigError, "n is -1; it must be a whole number from 1"),
    (lambda: rlvr.make_env("arithmetic").to_dataset(1.5), ConfigError, "n is 1.5; it must be"),  # type: ignore[arg-type]
    (lambda: rlvr.make_env("arithmetic").to_dataset(2, seed=[1]), ConfigError, r"seed is \[1\]; it must be"),  # type: ignore[arg-type]
    (lambda: rlvr.verify("numeric", answer="4", refrence="4"), TypeError, "has no argument 'refrence'"),
    (lambda: rlvr.train("quickstart", resume="runs/first"), ConfigError, "the run to resume is named by out="),  # type: ignore[arg-type]
    (
        lambda: rlvr.train(model="x", data=[{"question": "first?", "answer": "a"}], verifier="numeric"),
        ConfigError,
        "none of the 1 references can be read by the verifier",
    ),
]


@pytest.mark.parametrize(("call", "error", "words"), WRONG_GUESSES, ids=[words for _, _, words in WRONG_GUESSES])
def test_a_wrong_guess_gets_a_message_that_names_the_right_call(call: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        call()


def test_the_library_logs_and_does_not_print(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from rlvr.cli.logging_setup import configure_logging

    logger = logging.getLogger("rlvr.test")
    try:
        configure_logging(log_file=tmp_path / "run.log")
        logger.info("a note")
        logger.debug("a detail")
        configure_logging(quiet=True)
        logger.info("nothing")
        logger.warning("careful")
        assert capsys.readouterr().err == "note: a note\nwarning: careful\n"
        assert "DEBUG rlvr.test a detail" in (tmp_path / "run.log").read_text("utf-8")
        with pytest.raises(ConfigError, match="cannot be written"):
            configure_logging(log_file=tmp_path / "run.log" / "x")
    finally:
        root = logging.getLogger("rlvr")
        for handler in list(root.handlers):
            if getattr(handler, "is_from_cli", False):
                root.removeHandler(handler)
                handler.close()


def test_an_answer_that_makes_a_negative_reward_fail_is_not_paid_for_that() -> None:
    def wrong_is_negative(answer: str, reference: str) -> float:
        if "crash" in answer:
            raise RuntimeError("it cannot be read")
        return 0.0 if answer == reference else -1.0

    rows = [{"question": "2+2=", "answer": "4"}]
    for text, score in (("4", 0.0), ("5", -1.0), ("crash", -1.0), ("", -1.0)):
        (sample,) = rlvr.evaluate(rows, lambda prompt, text=text: text, verifier=wrong_is_negative).samples
        assert sample.score == score and sample.verdict["fault"] == ("answer" if text == "crash" else "none"), sample
    boxed = rlvr.make_verifier(wrong_is_negative, extractor="boxed")
    assert rlvr.verify(boxed, "no box", "4").score == -1.0 and rlvr.verify(boxed, r"\boxed{4}", "4").score == 0.0
    with pytest.raises(ValueError, match="with fault 'answer' the score is 0 or less"):
        rlvr.Verdict(0.5, "paid", fault=rlvr.Fault.ANSWER)
