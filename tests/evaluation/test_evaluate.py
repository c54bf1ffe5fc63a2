"""Evaluation: what counts, what is counted apart, what a killed one leaves, and what is refused."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

import rlvr
from rlvr.cli.commands import run_command
from rlvr.config.config import ModelConfig
from rlvr.contracts import Completion, Environment, Request, RequestQueue, Sampler, SamplerTraits, SamplingParams, Verifier
from rlvr.errors import ConfigError, NotFound, RlvrError, SamplerError
from rlvr.evaluation.evaluate import evaluate, make_env_requests
from rlvr.evaluation.plan import EvalPlan
from rlvr.evaluation.report import EvalReport
from rlvr.evaluation.runner import EvalRunner, get_sample_key
from rlvr.evaluation.samples import SampleStore, iter_rows, load_plan, load_samples
from rlvr.evaluation.suite import load_suite
from rlvr.evaluation.summary import EnvSummary
from rlvr.mdp.tokenizers import CharTokenizer
from rlvr.models.model_loading import load_model, to_transformers_tokenizer
from rlvr.runs.run_log import read_jsonl
from rlvr.samplers.scripted import ScriptedSampler
from rlvr.task import Fault, Task, Verdict, make_user_prompt
from rlvr.training import checkpoint
from rlvr.training.checkpoint import Progress
from tests.fixtures.endpoint import closed_port
from tests.fixtures.tiny import MODEL
from tests.fixtures.worlds import DIGITS, Sums

SUMS = "tests/fixtures/worlds.py:Sums"


def only(report: EvalReport) -> EnvSummary:
    (found,) = report.envs.values()
    return found


def value(report: EvalReport) -> float | None:
    avg = only(report).mean_score
    return avg.value if avg else None


def test_gold_is_right_and_silence_is_not() -> None:
    gold, noop, dice = (evaluate(SUMS, f"scripted:{script}", tasks=50) for script in ("gold", "noop", "random"))
    assert (value(gold), only(gold).tasks, only(gold).scored, only(gold).unscored) == (1.0, 50, 50, 0)
    assert value(noop) == 0.0 and (value(dice) or 0.0) < 0.3 and only(dice).truncated > 0


def test_a_split_that_ends_is_asked_to_its_end_and_no_further() -> None:
    found = only(evaluate({"name": SUMS, "below": 3}, "scripted:gold", tasks=50, n=4))
    assert (found.tasks, found.samples, found.missing) == (9, 36, 0)


class Sometimes(Verifier):
    """Right for even tasks; not able to judge every third."""

    def verify(self, task: Task, answer: str) -> Verdict:
        number = int(task.reference)
        if number % 3 == 0:
            return Verdict(None, "the engine is away", fault=Fault.INFRA)
        return Verdict(float(number % 2 == 0), "judged")


class Numbers(Environment):
    def __init__(self) -> None:
        self.verifier = Sometimes()

    def task(self, split: str, index: int) -> Task:
        return Task(make_user_prompt("?"), id=f"{split}/{index}", reference=index)

    def gold(self, task: Task) -> str:
        return "x"


def test_what_has_no_score_is_counted_apart_and_never_as_wrong() -> None:
    found = only(report := evaluate(Numbers(), "scripted:gold", tasks=30))
    assert (found.samples, found.scored, found.unscored, found.failed, value(report)) == (30, 20, 10, 0, 0.5)
    assert found.reasons == {"the engine is away": 10}
    assert report.withheld_envs == ["Numbers"] and report.to_dict()["envs"]["Numbers"]["mean_score"] is None
    shown = report.to_dict(allow_unscored=True)["envs"]["Numbers"]
    assert shown["mean_score"] == shown["pass_at"]["1"] == 0.5 and shown["ci95"][0] < 0.5 < shown["ci95"][1]


def test_a_model_in_a_folder_is_evaluated_with_its_own_tokenizer(tmp_path: Path) -> None:
    tokenizer = CharTokenizer(DIGITS)
    place = checkpoint.save_checkpoint(
        tmp_path, load_model(ModelConfig(config=MODEL), tokenizer), to_transformers_tokenizer(tokenizer), {}, Progress(1)
    )
    once, again = (only(evaluate(SUMS, f"hf:{place}", tasks=20, temperature=1.0, seed=3)) for _ in range(2))
    assert once.samples == 20 and once == again


def test_the_json_of_the_command_has_just_what_is_promised(tmp_path: Path) -> None:
    row = evaluate(SUMS, "scripted:gold", tasks=5, n=2, out=tmp_path / "e").to_dict()
    assert row == {
        "suite": SUMS,
        "run": str(tmp_path / "e"),
        "envs": {
            "Sums": {
                "mean_score": 1.0,
                "ci95": row["envs"]["Sums"]["ci95"],
                "pass_at": {"1": 1.0, "2": 1.0},
                "maj_at": {"1": 1.0, "2": 1.0},
                "tasks": 5,
                "samples": 10,
                "scored": 10,
                "unscored": 0,
                "truncated": 0,
                "failed": 0,
            }
        },
    }


def test_json_says_what_else_was_asked_for_and_warns_beside(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = ["eval", "arithmetic", "--policy", "scripted:random", "-n", "4", "--tasks", "20", "--json"]
    assert run_command([*line, "--select", "shortest", "--price", "1,2"]) == 0
    said = capsys.readouterr()
    row = json.loads(said.out)
    assert list(row["envs"]["arithmetic"]["best_at"]) == ["1", "2", "4"] and 0 < row["cost"] < 0.01
    assert said.err == ""
    assert run_command([*line, "--set", "verifier=tests/fixtures/worlds.py:Unable"]) == 1
    said = capsys.readouterr()
    assert "no headline, " in said.err and " unscored: " in said.err and json.loads(said.out)["envs"]["arithmetic"]["mean_score"] is None


def results(folder: Path) -> tuple[bytes, list[str]]:
    return (folder / "report.json").read_bytes(), sorted((folder / "episodes.jsonl").read_text("utf-8").splitlines())


def test_an_evaluation_goes_on_where_it_stopped(tmp_path: Path) -> None:
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    for folder in (whole, cut):
        evaluate(SUMS, "scripted:random", tasks=8, n=3, out=folder)
    lines = (cut / "episodes.jsonl").read_text("utf-8").splitlines(keepends=True)
    (cut / "episodes.jsonl").write_text("".join(lines[:10]) + lines[10][:50], "utf-8")
    (cut / "report.json").unlink()
    again = evaluate(SUMS, "scripted:random", tasks=8, n=3, out=cut)
    assert (again.num_new_samples, again.incomplete_line_bytes) == (14, 50) and results(cut) == results(whole)
    assert evaluate(SUMS, "scripted:random", tasks=8, n=3, out=cut).num_new_samples == 0 and results(cut) == results(whole)


def test_a_folder_of_another_plan_is_left_alone(tmp_path: Path) -> None:
    evaluate(SUMS, "scripted:gold", tasks=5, out=tmp_path / "e")
    before = results(tmp_path / "e")
    with pytest.raises(ConfigError, match=r"temperature: 0.0 -> 1.0"):
        evaluate(SUMS, "scripted:gold", tasks=5, n=2, out=tmp_path / "e")
    with pytest.raises(ConfigError, match=r"5 tasks with n = 1 of Sums, and 4 with n = 1 are asked for"):
        evaluate(SUMS, "scripted:gold", tasks=4, out=tmp_path / "e")
    assert results(tmp_path / "e") == before


def test_a_torn_line_of_times_is_cut_off_too(tmp_path: Path) -> None:
    evaluate(SUMS, "scripted:gold", tasks=3, out=tmp_path / "e")
    times = tmp_path / "e" / "timings.jsonl"
    times.write_text(times.read_text("utf-8") + '{"attempt": "1', "utf-8")
    (tmp_path / "e" / "episodes.jsonl").write_text("", "utf-8")
    for sampled in (3, 0):
        assert evaluate(SUMS, "scripted:gold", tasks=3, out=tmp_path / "e").num_new_samples == sampled
    assert len(times.read_text("utf-8").splitlines()) == 2


def test_a_report_is_taken_away_before_samples_come_that_it_does_not_know(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "e"
    evaluate(SUMS, "scripted:gold", tasks=3, out=folder)
    lines = (folder / "episodes.jsonl").read_text("utf-8").splitlines(keepends=True)

    def killed(self: ScriptedSampler, feed: RequestQueue, sampling: SamplingParams) -> Iterator[tuple[int, Completion]]:
        assert not (folder / "report.json").exists()
        raise SamplerError("killed")

    monkeypatch.setattr(ScriptedSampler, "stream_from_queue", killed)
    assert evaluate(SUMS, "scripted:gold", tasks=3, out=folder).num_new_samples == 0 and (folder / "report.json").is_file()
    (folder / "episodes.jsonl").write_text(lines[0], "utf-8")
    with pytest.raises(SamplerError, match="killed"):
        evaluate(SUMS, "scripted:gold", tasks=3, out=folder)
    assert not (folder / "report.json").exists()


class Moody(ScriptedSampler):
    """Fails on every third request while `down`."""

    down = True
    asked = 0

    def stream_completions(self, requests: Sequence[Request], sampling: SamplingParams) -> Iterator[tuple[int, Completion]]:
        for i, completion in super().stream_completions(requests, sampling):
            type(self).asked += 1
            yield i, Completion([], [], "error", "the endpoint answered 500") if self.down and i % 3 == 0 else completion

    stream_from_queue = Sampler.stream_from_queue  # which calls `stream_completions`


def test_what_failed_is_counted_and_asked_again_when_told_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlvr.samplers.scripted.make", Moody)
    first = only(evaluate(SUMS, "scripted:gold", tasks=12, out=tmp_path / "e"))
    assert (first.samples, first.scored, first.unscored, first.failed) == (12, 8, 4, 4)
    assert first.mean_score is not None and first.mean_score.value == 1.0 and first.reasons == {"the endpoint answered 500": 4}
    Moody.down, Moody.asked = False, 0
    assert only(evaluate(SUMS, "scripted:gold", tasks=12, out=tmp_path / "e")).failed == 4 and Moody.asked == 0
    mended = only(evaluate(SUMS, "scripted:gold", tasks=12, out=tmp_path / "e", retry=True))
    assert (mended.scored, mended.failed, Moody.asked) == (12, 0, 4)
    assert len(list(iter_rows(tmp_path / "e"))) == 16  # nothing was lost: the failures are still on record


KILLED = """
import sys, time
from pathlib import Path
import rlvr.samplers.scripted as scripted
stream_from_queue = scripted.ScriptedSampler.stream_from_queue
def slow(self, feed, sampling):
    for pair in stream_from_queue(self, feed, sampling):
        time.sleep(0.02)
        yield pair
scripted.ScriptedSampler.stream_from_queue = slow
from rlvr.evaluation.evaluate import evaluate
evaluate("tests/fixtures/worlds.py:Sums", "scripted:random", tasks=20, n=3, out=Path(sys.argv[1]))
"""


@pytest.mark.slow
def test_killed_twice_it_ends_like_one_that_was_left_alone(tmp_path: Path) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    evaluate(SUMS, "scripted:random", tasks=20, n=3, out=whole)
    counts = []
    for enough in (5, 25):
        process = subprocess.Popen([sys.executable, "-c", KILLED, str(killed)], env={**os.environ, "PYTHONPATH": os.getcwd()})
        deadline = time.monotonic() + 60
        while (count := rows(killed)) < enough and time.monotonic() < deadline:
            time.sleep(0.01)
        os.kill(process.pid, signal.SIGKILL)
        assert process.wait(20) == -signal.SIGKILL and count >= enough
        counts.append(rows(killed))
    left = evaluate(SUMS, "scripted:random", tasks=20, n=3, out=killed)
    assert left.num_new_samples == 60 - counts[1] and results(killed) == results(whole)


def rows(folder: Path) -> int:
    path = folder / "episodes.jsonl"
    return path.read_text("utf-8").count("\n") if path.is_file() else 0


def test_two_processes_do_not_write_to_one_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def meanwhile(self: EvalRunner, *args: Any) -> None:
        evaluate(SUMS, "scripted:gold", tasks=5, out=tmp_path / "e")

    monkeypatch.setattr(EvalRunner, "run", meanwhile)
    with pytest.raises(ConfigError, match="another process is writing"):
        evaluate(SUMS, "scripted:gold", tasks=5, out=tmp_path / "e")


def test_two_that_begin_at_once_leave_the_plan_of_the_one_that_samples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dump, asked = EvalPlan.to_yaml, []

    def meanwhile(plan: EvalPlan) -> str:
        asked.append(plan.policy)
        if len(asked) == 1:
            with suppress(ConfigError):
                evaluate(SUMS, "scripted:noop", tasks=5, out=tmp_path / "e")
        return dump(plan)

    monkeypatch.setattr(EvalPlan, "to_yaml", meanwhile)
    with suppress(ConfigError):
        evaluate(SUMS, "scripted:gold", tasks=5, out=tmp_path / "e")
    gold = load_plan(tmp_path / "e").policy == "scripted:gold"
    assert [sample.score for sample in load_samples(tmp_path / "e").values()] == [float(gold)] * 5


def test_one_killed_before_its_plan_was_written_leaves_the_place_free(tmp_path: Path) -> None:
    for name in (".eval.yaml.part", "episodes.jsonl"):
        (tmp_path / name).touch()
    assert evaluate(SUMS, "scripted:gold", tasks=3, out=tmp_path).num_new_samples == 3


def test_a_round_that_was_cut_short_is_sampled_in_the_same_company(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []

    class Company(ScriptedSampler):
        traits = replace(ScriptedSampler.traits, eval_batch_size=64)

        def stream_completions(self, requests: Sequence[Request], sampling: SamplingParams) -> Iterator[tuple[int, Completion]]:
            sizes.append(len(requests))
            return super().stream_completions(requests, sampling)

        stream_from_queue = Sampler.stream_from_queue  # which calls `stream_completions`

    monkeypatch.setattr("rlvr.samplers.scripted.make", Company)
    evaluate(SUMS, "scripted:random", tasks=10, concurrency=4, out=tmp_path / "e")
    whole = results(tmp_path / "e")
    lines = (tmp_path / "e" / "episodes.jsonl").read_text("utf-8").splitlines(keepends=True)
    (tmp_path / "e" / "episodes.jsonl").write_text("".join(lines[:6]), "utf-8")
    assert evaluate(SUMS, "scripted:random", tasks=10, concurrency=4, out=tmp_path / "e").num_new_samples == 4
    assert sizes == [4, 4, 2, 4, 2] and results(tmp_path / "e") == whole


def test_what_is_asked_for_goes_before_what_the_suite_says(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("- {env: arithmetic, tasks: 9, temperature: 0.5}\n- {env: digit_sum, tasks: 9}\n", "utf-8")
    for temperature, tasks, found in ((None, None, [(0.5, 9), (1.0, 9)]), (0.2, 2, [(0.2, 2), (0.2, 2)])):
        plan = evaluate(str(tmp_path / "mine.yaml"), "scripted:gold", n=2, temperature=temperature, tasks=tasks).plan
        assert [(plan.get_temperature(item), item.tasks) for item in plan.envs] == found


def test_one_answer_is_greedy_and_several_are_not_whoever_asks_for_them(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("- {env: arithmetic, tasks: 3, n: 4}\n- {env: digit_sum, tasks: 3}\n", "utf-8")
    for n, found, told in (
        (None, [(4, 1.0), (1, 0.0)], "n = 4, temperature 1 (arithmetic); n = 1, greedy (digit_sum)"),
        (8, [(8, 1.0), (8, 1.0)], "n = 8, temperature 1"),
        (1, [(1, 0.0), (1, 0.0)], "n = 1, greedy"),
    ):
        report = evaluate(str(tmp_path / "mine.yaml"), "scripted:gold", n=n)
        assert [(report.plan.get_samples_per_task(item), report.plan.get_temperature(item)) for item in report.plan.envs] == found
        assert [env.samples for env in report.envs.values()] == [3 * n for n, _ in found] and report.plan.sampling_summary == told


def test_a_run_of_an_earlier_version_goes_on(tmp_path: Path) -> None:
    """Its plan said `n` and the temperature once for all environments, and nothing of the policy's folder."""
    evaluate(SUMS, "scripted:gold", tasks=3, n=2, out=tmp_path / "e")
    plan = tmp_path / "e" / "eval.yaml"
    old = yaml.safe_load(plan.read_text("utf-8"))
    for item in old["envs"]:
        del item["n"], item["temperature"]
    plan.write_text(yaml.safe_dump(old), "utf-8")
    assert evaluate(SUMS, "scripted:gold", tasks=3, n=2, out=tmp_path / "e").num_new_samples == 0
    assert evaluate(SUMS, "scripted:gold", tasks=3, n=3, temperature=1.0, out=tmp_path / "e").num_new_samples == 3


def test_a_link_that_leads_to_another_policy_now_is_noticed(tmp_path: Path) -> None:
    tokenizer = CharTokenizer(DIGITS)
    model = load_model(ModelConfig(config=MODEL), tokenizer)
    last = tmp_path / "checkpoints" / "last"
    asked = partial(evaluate, SUMS, f"hf:{last}", tasks=2, out=tmp_path / "e")
    for step in (1, 2):
        checkpoint.save_checkpoint(tmp_path, model, to_transformers_tokenizer(tokenizer), {}, Progress(step))
        if step == 1:
            assert [asked().num_new_samples for _ in range(2)] == [2, 0]
    with pytest.raises(ConfigError, match=r"policy_folder: '\S*/step-000001' -> '\S*/step-000002'"):
        asked()
    last.unlink()
    assert asked().num_new_samples == 0  # whoever deletes a model may still read its report


def test_another_model_in_the_same_folder_is_noticed(tmp_path: Path) -> None:
    tokenizer = CharTokenizer(DIGITS)
    asked = partial(evaluate, SUMS, f"hf:{tmp_path / 'model'}", tasks=2, out=tmp_path / "e")
    model = load_model(ModelConfig(config=MODEL), tokenizer)
    for sampled in (2, 0):
        model.save_pretrained(tmp_path / "model")
        to_transformers_tokenizer(tokenizer).save_pretrained(tmp_path / "model")
        assert asked().num_new_samples == sampled
    with torch.no_grad():
        next(model.parameters())[0, 0] += 1
    model.save_pretrained(tmp_path / "model")
    with pytest.raises(ConfigError, match="policy_weights"):
        asked()


def test_a_full_disk_is_told_and_what_is_there_is_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = ["eval", SUMS, "--policy", "scripted:random", "--tasks", "40", "--out"]
    whole, full = tmp_path / "whole", tmp_path / "full"
    assert run_command([*line, str(whole)]) == 0
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, ((whole / "episodes.jsonl").stat().st_size // 2, hard))
    try:
        code = run_command([*line, str(full)])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    said = capsys.readouterr().err
    assert code == 2 and f"{full} cannot be written: File too large" in said and "run the same command again" in said
    assert 0 < rows(full) < 40 and run_command([*line, str(full)]) == 0 and results(full) == results(whole)


@pytest.mark.parametrize("name", ["timings.jsonl", ".report.json.part"])
def test_times_and_report_that_cannot_be_written_are_told(name: str, tmp_path: Path) -> None:
    evaluate_there = partial(evaluate, SUMS, "scripted:gold", tasks=2, out=tmp_path)
    evaluate_there()
    (tmp_path / "episodes.jsonl").write_text("", "utf-8")
    (tmp_path / name).unlink(missing_ok=True)
    (tmp_path / name).mkdir()
    with pytest.raises(ConfigError, match="cannot be written: Is a directory; the stored samples are kept"):
        evaluate_there()
    (tmp_path / name).rmdir()
    assert evaluate_there().num_new_samples == 0


def test_a_suite_of_ones_own(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("- {name: small, env: {name: tests/fixtures/worlds.py:Sums, below: 3}, n: 2}\n- {env: arithmetic, tasks: 4}\n", "utf-8")
    report = evaluate(str(file), "scripted:gold", n=3, settings={"arithmetic.levels": ["1+1"], "small.below": 2}, out=tmp_path / "e")
    assert report.suite == "mine" and list(report.envs) == ["small", "arithmetic"]
    assert [(env.tasks, env.samples) for env in report.envs.values()] == [(4, 12), (4, 12)]
    assert json.loads((tmp_path / "e" / "report.json").read_text("utf-8"))["envs"]["small"]["mean_score"]["value"] == 1.0


@pytest.mark.parametrize("name", ["quick", "reasoning", pytest.param("agents", marks=pytest.mark.docker)])
def test_the_shipped_suites_that_need_no_data(name: str) -> None:
    report = evaluate(name, "scripted:gold", tasks=3)
    assert {env.mean_score and env.mean_score.value for env in report.envs.values()} == {1.0}


@pytest.mark.docker
def test_the_suite_of_mathematics_with_tools(tmp_path: Path) -> None:
    gsm8k, math = tmp_path / "gsm8k", tmp_path / "math.jsonl"
    gsm8k.mkdir()
    (gsm8k / "test.jsonl").write_text('{"question": "2+2?", "answer": "It is <<2+2=4>>4.\\n#### 4"}\n', "utf-8")
    math.write_text('{"problem": "2+3?", "solution": "It is $\\\\boxed{5}$.", "answer": "5"}\n', "utf-8")
    report = evaluate(
        "tools_math", "scripted:gold", settings={"gsm8k.path": str(gsm8k), "competition_math.path": str(math)}, out=tmp_path / "x"
    )
    assert {env.mean_score and env.mean_score.value for env in report.envs.values()} == {1.0}
    tools = [row["session"]["tools"] for row in read_jsonl(tmp_path / "x" / "episodes.jsonl")]
    assert [[tool["name"] for tool in one] for one in tools] == [["python"]] * 2


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("- {env: gsm8kk}\n", "did you mean 'gsm8k'"),
        ("- {evn: gsm8k}\n", "there is no key 'evn'; did you mean 'env'"),
        ("- {env: gsm8k, task: 5}\n", "did you mean 'tasks'"),
        ("- {env: arithmetic, tasks: many}\n", "entry 1: tasks: "),
        ("- {env: {nmae: arithmetic}}\n", "a 'name' is missing"),
        ("- arithmetic\n- arithmetic\n", "two entries called 'arithmetic'"),
        ("- {env: arithmetic, split: tset}\n", "did you mean 'test'"),
        ("{env: arithmetic, tasks: 3}\n", "not a list of environments"),
        ("[]\n", "no environments"),
        ("- {env: [\n", "not valid YAML"),
    ],
)
def test_a_suite_with_a_typo(text: str, told: str, tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(text, "utf-8")
    with pytest.raises(ConfigError) as error:
        evaluate(str(file), "scripted:gold")
    assert told in str(error.value)


def test_a_recipe_stands_for_its_held_out_tasks(tmp_path: Path) -> None:
    """All of a data set, with the recipe's limits, so that the figure is the one that the run would give."""
    rows = [{"question": f"{at}+1?", "answer": str(at + 1)} for at in range(150)]
    (tmp_path / "sums.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    env = {"name": "dataset", "path": str(tmp_path / "sums.jsonl"), "holdout": 0.8, "verifier": "numeric"}
    rollout = {"max_new_tokens": 7, "max_turn_tokens": None, "sampler": "hf"}
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump({"env": env, "model": {"path": "nowhere"}, "rollout": rollout}), "utf-8")
    report = evaluate(str(tmp_path / "recipe.yaml"), "scripted:gold", out=tmp_path / "run")
    found = only(report)
    assert (
        (report.suite, found.name, found.tasks) == ("recipe", "dataset", 120)
        and found.mean_score is not None
        and found.mean_score.value == 1.0
    )
    assert {row["task_id"].split("/")[1] for row in read_jsonl(tmp_path / "run" / "episodes.jsonl")} == {"test"}
    (item,) = load_suite(str(tmp_path / "recipe.yaml")).items
    assert (item.max_new_tokens, item.max_turn_tokens, item.max_length) == (7, None, None)
    (tmp_path / "short.yaml").write_text("env: arithmetic\n", "utf-8")
    assert evaluate(str(tmp_path / "short.yaml"), "scripted:gold", tasks=3).envs["arithmetic"].tasks == 3


def test_the_folder_of_a_model_is_no_policy(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match=f"is a folder; for the model in it write hf:{tmp_path}, or vllm:"):
        evaluate(SUMS, str(tmp_path))


@pytest.mark.parametrize(
    ("policy", "told"),
    [
        ("scripted", "write scripted:gold|noop|random"),
        ("scriptd:gold", "did you mean 'scripted'"),
        ("scripted:", "write scripted:gold|noop|random"),
        ("", "is not SAMPLER:WHAT"),
    ],
)
def test_a_policy_that_is_none(policy: str, told: str) -> None:
    with pytest.raises(NotFound) as error:
        evaluate(SUMS, policy)
    assert told in str(error.value)


def test_other_bad_requests(tmp_path: Path) -> None:
    cases: list[tuple[str | Environment, str, dict[str, Any], str]] = [
        (SUMS, "scripted:golden", {}, "did you mean 'gold'"),
        (SUMS, "hf:nowhere", {}, "nowhere"),
        (SUMS, "scripted:gold", {"tasks": 0}, "tasks is 0"),
        (SUMS, "scripted:gold", {"split": "tests"}, "did you mean 'test'"),
        (SUMS, "scripted:gold", {"select": "shorter"}, "did you mean 'shortest'"),
        ("quik", "scripted:gold", {}, "did you mean 'quick'"),
        ("quik.yaml", "scripted:gold", {}, "no suite 'quik.yaml'"),
        ("quick", "scripted:gold", {"settings": {"levels": []}}, "arithmetic.levels"),
        (Sums(), "scripted:gold", {"settings": {"below": 3}}, "have no effect: this Sums is already built"),
        ("quick", "scripted:gold", {"settings": {"arthmetic.levels": []}}, "did you mean 'arithmetic'"),
    ]
    for suite, policy, kwargs, told in cases:
        with pytest.raises(ConfigError, match=told):
            evaluate(suite, policy, **kwargs)


@pytest.mark.parametrize("price", ["nan,1", "-1,2", "inf,1", "1", "a,b"])
def test_a_price_that_is_none(price: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["eval", SUMS, "--policy", "scripted:gold", "--tasks", "2", "--price", price, "--json"]) == 2
    assert "is not READ,WRITTEN" in capsys.readouterr().err


@pytest.mark.parametrize(("encoding", "json_"), [("ascii", False), ("utf-8", False), ("utf-8", True)])
def test_what_an_encoding_cannot_write_does_not_end_a_report(encoding: str, json_: bool, tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text('[{env: arithmetic, name: "half \\ud83d – é", tasks: 2}]', "utf-8")
    line = [sys.executable, "-m", "rlvr", "eval", str(tmp_path / "mine.yaml"), "--policy", "scripted:gold", *["--json"] * json_]
    env = {**os.environ, "PYTHONIOENCODING": f"{encoding}:strict"}
    said = subprocess.run(line, env=env, capture_output=True, timeout=120, check=True).stdout.decode(encoding)
    assert "half \\ud83d" in said and (not json_ or "half \ud83d – é" in json.loads(said)["envs"])


def test_an_evaluation_grows_without_sampling_again(tmp_path: Path) -> None:
    """From 6 tasks to 15, from 2 answers to 5, by another environment: only the new is asked, the figures are those of one made at once."""
    suite, more = tmp_path / "mine.yaml", "- {env: digit_sum, tasks: 4}\n"
    suite.write_text("- {env: arithmetic}\n", "utf-8")
    grown, measure = tmp_path / "grown", partial(evaluate, suite, "scripted:random", temperature=1.0)
    asked = [measure(tasks=tasks, n=n, out=grown).num_new_samples for tasks, n in ((6, 2), (15, 2), (15, 5))]
    first = (grown / "episodes.jsonl").read_bytes()
    suite.write_text(suite.read_text("utf-8") + more, "utf-8")
    last = measure(n=5, tasks=15, out=grown)
    assert [*asked, last.num_new_samples] == [12, 18, 45, 75] and (grown / "episodes.jsonl").read_bytes().startswith(first)
    whole = measure(n=5, tasks=15, out=tmp_path / "whole")
    assert (grown / "report.json").read_bytes() == (tmp_path / "whole" / "report.json").read_bytes() and whole.envs == last.envs
    assert load_plan(grown).earlier_stages == {"arithmetic": [[6, 2], [15, 2]]}
    for tasks, n in ((14, 5), (15, 4)):
        with pytest.raises(ConfigError, match="an evaluation grows, and never shrinks; ask for as many"):
            measure(tasks=tasks, n=n, out=grown)
    suite.write_text(more, "utf-8")
    with pytest.raises(ConfigError, match="was begun with another plan"):
        measure(n=5, tasks=15, out=grown)


class _Batched(ScriptedSampler):
    """A sampler whose last bits depend on who is in the batch."""

    traits = SamplerTraits(eval_batch_size=4)


def test_what_an_evaluation_grew_by_is_sampled_in_batches_of_its_own(tmp_path: Path) -> None:
    """The other answers of a batch may decide the last bits of an answer: no batch holds answers of two sizes of the evaluation."""
    for tasks, n in ((3, 2), (3, 3), (4, 3)):
        evaluate(SUMS, "scripted:gold", temperature=1.0, tasks=tasks, n=n, out=tmp_path / "grown")
    plan = load_plan(tmp_path / "grown")
    wanted = make_env_requests(plan.envs[0], Sums(), plan)
    attempt = EvalRunner(plan, SampleStore(None, plan), concurrency=4)
    rounds = [[get_sample_key(draw)[1:] for draw in asked] for asked in attempt._iter_batches(_Batched(), wanted)]
    assert rounds == [[(0, 0), (0, 1), (1, 0), (1, 1)], [(2, 0), (2, 1)], [(0, 2), (1, 2), (2, 2)], [(3, 0), (3, 1), (3, 2)]]


def test_a_policy_that_never_comes_up_leaves_the_place_free(tmp_path: Path) -> None:
    for place in (tmp_path / "new", tmp_path):
        with pytest.raises(RlvrError, match="there is no script 'nobody'"):
            evaluate(SUMS, "scripted:nobody", tasks=3, out=place)
        assert not list(tmp_path.iterdir())
    kept = evaluate(SUMS, "scripted:gold", tasks=3, out=tmp_path / "new")
    with pytest.raises(ConfigError, match="was begun with another plan"):
        evaluate(SUMS, "scripted:nobody", tasks=3, out=tmp_path / "new")
    assert evaluate(SUMS, "scripted:gold", tasks=3, out=tmp_path / "new").envs == kept.envs


def test_an_endpoint_that_is_not_there_is_told_once_and_at_once(tmp_path: Path) -> None:
    with pytest.raises(SamplerError, match=r"nothing listens at http://127\.0\.0\.1:"):
        evaluate(SUMS, f"openai:{closed_port()}/v1#tiny", tasks=1000, out=tmp_path / "e")
    assert not (tmp_path / "e").exists()


@pytest.mark.parametrize("left", ["", '{"env": "digit_sum", "ind'])
def test_an_evaluation_that_ended_before_its_first_answer_leaves_its_folder_to_another(left: str, tmp_path: Path) -> None:
    rlvr.evaluate("digit_sum", lambda prompt: "7", tasks=3, out=tmp_path / "e")
    for path in (tmp_path / "e").iterdir():
        if path.name not in ("eval.yaml", "versions.json"):
            path.unlink()
    (tmp_path / "e" / "episodes.jsonl").write_text(left, "utf-8")
    report = rlvr.evaluate("arithmetic", lambda prompt: "7", tasks=3, out=tmp_path / "e")
    assert len(report.samples) == 3 and rlvr.load_evaluation(tmp_path / "e").plan.envs[0].name == "arithmetic"
    with pytest.raises(ConfigError, match="was begun with another plan"):
        rlvr.evaluate("digit_sum", lambda prompt: "7", tasks=3, out=tmp_path / "e")


def test_an_environment_of_the_caller_stays_open_and_one_that_was_made_here_is_closed() -> None:
    env = rlvr.make_env("shell", sandbox={"name": "process", "trusted": True})
    with env:
        for _ in range(2):
            assert rlvr.evaluate(env, "scripted:gold", tasks=1).accuracy == 1.0
    closed: list[str] = []

    class Watched(Verifier):
        def verify(self, task: Task, answer: str) -> Verdict:
            return Verdict(float(answer == task.reference), "compared")

        def close(self) -> None:
            closed.append("closed")

    rows = [{"question": "2+2=", "answer": "4"}]
    rlvr.evaluate(rows, lambda prompt: "4", verifier=Watched())
    assert closed == []
    rlvr.evaluate(rows, lambda prompt: "4", verifier=Watched)
    assert closed == ["closed"]
