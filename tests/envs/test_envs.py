"""The environments that rlvr brings: their tasks, their splits, their solutions, their conversations."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rlvr import Task
from rlvr.conformance.gold_check import find_unreadable_references
from rlvr.envs.arithmetic import choose_data_split, format_steps
from rlvr.envs.guess_number import GUESS_FORMS, parse_single_guess
from rlvr.errors import ConfigError, NotFound
from rlvr.evaluation.suite import load_suite
from rlvr.mdp.tokenizers import load_tokenizer
from rlvr.registry.plugins import build

LINE = '{"question": "Ann has 3 pens and buys 4. How many?", "answer": "She has 3+4=<<3+4=7>>7 pens.\\n#### 1,007"}\n'


def many(env: Any, split: str, count: int = 500) -> list[Task]:
    return [env.task(split, index) for index in range(count)]


@pytest.mark.parametrize("settings", [{}, {"levels": ["1*1"]}, {"levels": ["3+3", "2*2"], "seed": 9}])
def test_no_held_out_question_is_ever_trained_on(settings: dict[str, Any]) -> None:
    train = {task.question for seed in (0, 1) for task in many(build("env", "arithmetic", **(settings | {"seed": seed})), "train", 2000)}
    test = {task.question for task in many(build("env", "arithmetic", **settings), "test", 2000)}
    assert train and test and not train & test


def test_a_sum_turned_round_is_held_out_with_it() -> None:
    for a in range(40):
        for b in range(40):
            assert choose_data_split(a, "+", b) == choose_data_split(b, "+", a) and choose_data_split(a, "*", b) == choose_data_split(
                b, "*", a
            )
    shares = [choose_data_split(a, "-", b) for a in range(100) for b in range(100)]
    assert 0.07 < shares.count("test") / len(shares) < 0.13


def test_arithmetic_is_right_at_every_level() -> None:
    for level in ("1+1", "2+2", "2-2", "3-1", "2*2", "3*1"):
        env = build("env", "arithmetic", levels=[level], show_steps=True)
        for task in many(env, "train", 200):
            a, sign, b = task.meta["left"], task.meta["sign"], task.meta["right"]
            assert task.question == f"{a}{sign}{b}=" and int(task.reference) == {"+": a + b, "-": a - b, "*": a * b}[sign]
            assert len(str(a)) == int(level[0]) and len(str(b)) == int(level[2])
            assert env.gold(task).endswith(f"#### {task.reference}") and env.verifier.verify(task, env.gold(task)).passed


def test_every_step_of_a_worked_solution_is_true_and_they_lead_to_the_answer() -> None:
    for a in (0, 5, 10, 37, 90, 608):
        for b in (0, 4, 10, 58, 305):
            for sign, value in (("-", a - b), ("*", a * b)):
                lines = format_steps(a, sign, b)
                assert lines[-1].endswith(f"={value}")
                for line in lines:
                    left, op, right, claimed = re.fullmatch(r"(-?\d+)([+*-])(\d+)=(-?\d+)", line).groups()  # type: ignore[union-attr]
                    assert int(claimed) == {"+": int(left) + int(right), "-": int(left) - int(right), "*": int(left) * int(right)}[op]
            columns = [re.fullmatch(r"([\d+]+)=(\d+)", line).groups() for line in format_steps(a, "+", b)]  # type: ignore[union-attr]
            assert all(sum(map(int, digits.split("+"))) == int(total) for digits, total in columns)
            carries = [int(digits.split("+")[0]) for digits, _ in columns[1:]]
            assert carries == [int(total) // 10 for _, total in columns[:-1]]
            assert int("".join([columns[-1][1], *(total[-1] for _, total in columns[-2::-1])])) == a + b


def test_a_seed_is_a_stream() -> None:
    for name in ("arithmetic", "countdown", "digit_sum", "copy_reverse", "guess_number"):
        one, two, other = (build("env", name, seed=seed) for seed in (1, 1, 2))
        questions = [[(t.question, str(t.reference)) for t in many(env, "train", 40)] for env in (one, two, other)]
        assert questions[0] == questions[1] != questions[2]
        assert not {t.id for t in many(one, "train", 40)} & {t.id for t in many(other, "train", 40)}


def test_an_unknown_split_is_refused() -> None:
    for name in ("arithmetic", "countdown", "digit_sum", "copy_reverse", "guess_number"):
        with pytest.raises(ConfigError, match="tset"):
            build("env", name).task("tset", 0)


@pytest.mark.parametrize("numbers", [2, 3, 5, 8])
def test_every_countdown_has_a_solution(numbers: int) -> None:
    env = build("env", "countdown", numbers=numbers)
    for task in many(env, "train", 150):
        assert len(task.reference["numbers"]) == numbers and task.reference["target"] > 0
        assert env.verifier.verify(task, env.gold(task)).passed and not env.verifier.verify(task, str(task.reference["target"])).passed
        assert task.question == f"Make {task.reference['target']} from {', '.join(map(str, task.reference['numbers']))}."


def test_halving_always_finds_the_number() -> None:
    env = build("env", "guess_number")
    for task in many(env, "test", 60):
        low, high = 1, 100
        said: list[str] = []
        reply: str | None = "begin"
        while reply is not None and len(said) < 7:
            said.append(str((low + high) // 2))
            reply = env.reply(task, said)
            low, high = (int(said[-1]) + 1, high) if reply == "higher" else (low, int(said[-1]) - 1)
        assert reply is None and env.max_turns == 7 and env.verifier.verify(task, env.select_answer(task, said)).passed


def test_a_guess_that_is_none_is_asked_for_again() -> None:
    env = build("env", "guess_number")
    task = env.task("train", 0)
    assert [env.reply(task, [text]) for text in ("", "x", "1 or 2", "0", "101")] == ["say one number"] * 3 + ["higher", "lower"]


@pytest.mark.parametrize("example", [row[-1] for row in GUESS_FORMS])
def test_each_form_of_a_guess_is_read(example: str) -> None:
    env = build("env", "guess_number", max_number=1000)
    task = replace(env.task("train", 0), reference="500")
    assert parse_single_guess(example) == 500 and env.reply(task, [example]) is None
    assert env.verifier.verify(task, env.select_answer(task, [example])).passed
    above, below = (replace(task, reference=secret) for secret in ("501", "499"))
    assert (env.reply(above, [example]), env.reply(below, [example])) == ("higher", "lower")
    assert not env.verifier.verify(above, env.select_answer(above, [example])).passed
    fewer = [row for row in GUESS_FORMS if row[-1] != example]
    assert not [row for row in fewer if re.fullmatch(row[0] + r"\s*[.?!]*", example.strip(), re.IGNORECASE)], "another row reads it too"


@pytest.mark.parametrize("text", [
    "500", "500!", "**500**", "`500`", r"\boxed{500}", r"I halve it: \boxed{500}", "<answer>500</answer>", "My guess is **500**.",
    "Okay, is it 500?", "Higher! Then I'll try 500.", "<think>1 or 1000?</think>500", "Is your number 500?", "How about 500?",
    "Let's try 500", "hmm\n#### 500",
    "My next guess: 500", "$500$", "The number is 500.",
])  # fmt: skip
def test_guesses_as_chat_models_write_them_are_read(text: str) -> None:
    assert parse_single_guess(text) == 500


@pytest.mark.parametrize("text", [
    "", "x", "1 or 2", "500 or 501", "500, 501", "is it 500 or 501?", "Is it more than 500?", "Is it not 500?", "It is not 500",
    "My guess is not 500.", "between 1 and 500", "less than 500", "-500", "500.5", "500 501", r"\boxed{500} or \boxed{501}",
    "**500** **501**",
    "My guess: 500 to 600", "1,00", "500?501?", "9" * 300, "Is it " * 50 + "500",
])  # fmt: skip
def test_what_is_no_guess_is_asked_for_again(text: str) -> None:
    env = build("env", "guess_number", max_number=1000)
    task = replace(env.task("train", 0), reference="500")
    assert env.reply(task, [text]) == "say one number"
    assert not env.verifier.verify(task, env.select_answer(task, [text])).passed


@pytest.mark.parametrize("name", ["arithmetic", "countdown", "digit_sum", "copy_reverse", "guess_number"])
def test_an_instruction_is_a_system_message_and_changes_nothing_else(name: str) -> None:
    bare, told = build("env", name), build("env", name, instruction="Say it.")
    for index in range(20):
        one, other = bare.task("train", index), told.task("train", index)
        assert [message["role"] for message in one.prompt] == ["user"], "recipes and small tokenizers know no more than the question"
        assert other == replace(one, prompt=({"role": "system", "content": "Say it."}, *one.prompt))
    if name != "countdown":
        env = build("env", name, instruction="Say it, and nothing else; " * 9)
        assert len(load_tokenizer("bytes").render(env.task("train", 0).prompt)) <= env.max_prompt_tokens, "there is no room for it"


def test_the_suite_quick_says_what_to_do_and_reads_what_chat_models_answer() -> None:
    items = {item.name: item for item in load_suite("quick", None).items}
    assert set(items) == {"arithmetic", "countdown", "digit_sum", "copy_reverse", "guess_number"}
    for name, item in items.items():
        with build("env", str(item.env["name"]), **{key: value for key, value in item.env.items() if key != "name"}) as env:
            for task in many(env, "test", 20):
                assert [message["role"] for message in task.prompt] == ["system", "user"], name
                gold = env.gold(task)
                for text in (gold, f"**{gold}**", f"Answer: {gold}", f"The final answer is **{gold}**.", rf"\boxed{{{gold}}}"):
                    if name != "countdown" or text == gold:
                        assert env.verifier.verify(task, env.select_answer(task, [text])).passed, (name, text)
                for text in ("", "0 or 1", task.question, f"{gold} or {task.question}"):
                    assert not env.verifier.verify(task, env.select_answer(task, [text])).passed, (name, text)


def test_toys_are_what_they_say() -> None:
    for task in many(build("env", "digit_sum", digits=4), "train"):
        assert task.reference == str(sum(map(int, task.question[:-1])) % 10)
    for task in many(build("env", "copy_reverse", length=3, letters="xy"), "train"):
        assert task.question[:-1][::-1] == task.reference != task.question[:-1]


@pytest.mark.parametrize(("name", "settings", "words"), [
    ("arithmetic", {"levels": ["22"]}, "'22'"), ("arithmetic", {"levels": [7]}, "7"), ("arithmetic", {"levels": "0+1"}, "'0\\+1'"),
    ("countdown", {"numbers": 1}, "2 to 8"), ("countdown", {"max_number": 3}, "5 to 1000"), ("digit_sum", {"digits": 9}, "2 to 8"),
    ("digit_sum", {"max_digit": 0}, "1 to 9"), ("copy_reverse", {"letters": "a"}, "two different"), ("copy_reverse", {"length": 1}, "2 to 8"),
    ("guess_number", {"max_number": 5}, "10 to"), ("guess_number", {"max_turns": 0}, "at least 1"), ("gsm8k", {"path": "/nowhere"}, "nowhere"),
])  # fmt: skip
def test_settings_are_checked(name: str, settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        build("env", name, **settings)


def test_gsm8k_reads_its_files(tmp_path: Path) -> None:
    (tmp_path / "gsm8k_test.jsonl").write_text(LINE + "\n", "utf-8")
    env = build("env", "gsm8k", path=str(tmp_path))
    task = env.task("test", 0)
    assert (env.num_tasks("test"), task.id, task.reference) == (1, "gsm8k/test/0", "1007")
    assert task.question.startswith("Ann has 3 pens") and "####" in task.question
    assert env.gold(task) == "She has 3+4=7 pens.\n#### 1,007" and env.verifier.verify(task, env.gold(task)).passed
    with pytest.raises(ConfigError, match="it has 0 to 0"):
        env.task("test", 1)
    with pytest.raises(NotFound, match=r"train\.jsonl"):
        env.num_tasks("train")


@pytest.mark.parametrize(("line", "words"), [
    ("{", "3: "), ("[1]", "not an object"), ('{"question": "a"}', "not an object"),
    (json.dumps({"question": " ", "answer": "#### 1"}), "is empty"),
    (json.dumps({"question": "a", "answer": "1"}), "no number after"), (json.dumps({"question": "a", "answer": 1}), "not an object"),
])  # fmt: skip
def test_a_malformed_line_is_named(line: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "train.jsonl").write_text(LINE + LINE + line + "\n" + LINE, "utf-8")
    with pytest.raises(ConfigError, match=r"train\.jsonl:3: ") as raised:
        build("env", "gsm8k", path=str(tmp_path)).num_tasks("train")
    assert words in str(raised.value)


def test_golds_that_cannot_be_judged_are_listed_one_by_one(tmp_path: Path) -> None:
    golds = {"train": ["2", "x", r"\frac{1}{\foo}"], "test": ["3"]}
    for split, answers in golds.items():
        lines = [json.dumps({"problem": f"{answer}?", "solution": f"\\boxed{{{answer}}}", "answer": answer}) for answer in answers]
        (tmp_path / f"{split}.jsonl").write_text("\n".join(lines) + "\n", "utf-8")
    with build("env", "competition_math", path=str(tmp_path)) as env:
        listed = find_unreadable_references(env).describe().splitlines()
    assert [line.split(":")[0].strip() for line in listed[1:]] == ["competition_math/train/1", "competition_math/train/2"]
    assert "bare letter" in listed[1] and "foo" in listed[2]


def test_an_environment_closes_its_verifier() -> None:
    closed = []
    env = build("env", "arithmetic")
    env.verifier.close = lambda: closed.append(1)
    env.close()
    env.close()
    assert closed == [1, 1]


@pytest.mark.slow
def test_a_hub_out_of_reach_is_told_once(tmp_path: Path) -> None:
    """Its client tries again and again and says so each time; the user reads one message that says what to do."""
    line = ["eval", "gsm8k", "--policy", "scripted:gold"]
    patient = (
        f"import time; time.sleep = lambda seconds: None; from rlvr.cli.commands import run_command; raise SystemExit(run_command({line}))"
    )
    nowhere = {"HF_ENDPOINT": "http://127.0.0.1:9", "HF_HUB_OFFLINE": "0", "HF_DATASETS_OFFLINE": "0", "HF_HOME": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", patient], capture_output=True, text=True, env=os.environ | nowhere, timeout=120)
    assert done.returncode == 2 and done.stdout == ""
    assert re.fullmatch(r"error: openai/gsm8k is not on this machine .* set path to a folder .*\n", done.stderr), done.stderr
