"""A file of questions as an environment: what is read, guessed, held out and refused, with the line where it is wrong."""

from __future__ import annotations

import csv
import gzip
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

import rlvr
from rlvr import Task, make_user_prompt
from rlvr.envs._data.rows import find_split_word, map_to_train_and_test, read_file_rows
from rlvr.errors import ConfigError, NotFound, RlvrError
from rlvr.registry.plugins import build

CODE = {"name": "unit_tests", "sandbox": {"name": "process", "trusted": True}}
SUMS = [{"question": f"What is {n} + {n}?", "answer": str(2 * n)} for n in range(40)]


def jsonl(path: Path, rows: Iterable[Mapping[str, Any]]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    return str(path)


def written(folder: Path, ending: str) -> str:
    path = folder / f"sums{ending}"
    text = "".join(json.dumps(row) + "\n" for row in SUMS)
    if ending == ".parquet":
        import pyarrow
        from pyarrow import parquet

        parquet.write_table(pyarrow.Table.from_pylist(SUMS), path)
    elif ending == ".json":
        path.write_text(json.dumps(SUMS))
    elif ending == ".jsonl.gz":
        path.write_bytes(gzip.compress(text.encode()))
    elif ending == ".jsonl":
        path.write_text(text)
    else:
        with path.open("w", newline="", encoding="utf-8-sig") as file:
            writer = csv.DictWriter(file, ["question", "answer"], delimiter="\t" if ending == ".tsv" else ",")
            writer.writeheader()
            writer.writerows(SUMS)
    return str(path)


def asked(env: Any, split: str) -> list[Task]:
    return [env.task(split, index) for index in range(env.num_tasks(split))]


def questions(env: Any, split: str) -> set[str]:
    return {task.question.partition("\n")[0] for task in asked(env, split)}


@pytest.mark.parametrize("ending", [".jsonl", ".json", ".jsonl.gz", ".csv", ".tsv", ".parquet"])
def test_every_format_gives_the_same_tasks(ending: str, tmp_path: Path) -> None:
    env = build("env", "dataset", path=written(tmp_path, ending), verifier="numeric")
    assert env.splits == ("train", "test") and (env.num_tasks("train"), env.num_tasks("test")) == (36, 4)
    found = {task.question.partition("\n")[0]: task.reference for split in env.splits for task in asked(env, split)}
    assert found == {row["question"]: row["answer"] for row in SUMS}
    assert all(env.verifier.verify(task, env.gold(task)).passed for task in asked(env, "test"))
    assert env.warnings[0].startswith(f"{tmp_path}/sums{ending}: 40 rows, question = {{question}}, reference = {{answer}}")


def test_what_is_held_out_depends_on_the_questions_only(tmp_path: Path) -> None:
    one = build("env", "dataset", path=jsonl(tmp_path / "a.jsonl", SUMS), holdout=0.25)
    other = build("env", "dataset", path=jsonl(tmp_path / "b.jsonl", reversed(SUMS)), holdout=0.25)
    assert questions(one, "test") == questions(other, "test") and len(questions(one, "test")) == 10
    assert not questions(one, "test") & questions(one, "train")
    everything = build("env", "dataset", path=str(tmp_path / "a.jsonl"), holdout=0)
    assert everything.splits == ("train",) and everything.num_tasks("train") == 40


def test_few_rows_are_held_out_only_when_it_is_asked_for() -> None:
    few, enough = SUMS[:9], SUMS[:10]
    assert build("env", "dataset", rows=few).splits == ("train",) and build("env", "dataset", rows=enough).num_tasks("test") == 1
    assert build("env", "dataset", rows=few, holdout=0.1).num_tasks("test") == 1
    assert any("no row of 9 is held out" in told for told in build("env", "dataset", rows=few).warnings)
    assert len(rlvr.evaluate(rlvr.make_env(few, verifier="numeric"), "scripted:gold").samples) == 9


def test_a_question_asked_twice_is_never_on_both_sides(tmp_path: Path) -> None:
    rows = [*SUMS, *({**row, "question": f"  {row['question'].upper()}"} for row in SUMS)]
    env = build("env", "dataset", path=jsonl(tmp_path / "a.jsonl", rows))
    train, test = ({" ".join(q.lower().split()) for q in questions(env, split)} for split in env.splits)
    assert not train & test and (env.num_tasks("train"), env.num_tasks("test")) == (72, 8)
    assert any("36 rows of train repeat a question" in note for note in env.warnings)


def test_training_rows_with_a_held_out_question_are_left_out_and_said(tmp_path: Path) -> None:
    path, held = jsonl(tmp_path / "a.jsonl", SUMS), jsonl(tmp_path / "held.jsonl", [{**SUMS[7], "question": "what is  7 + 7?"}, SUMS[9]])
    env = build("env", "dataset", path=path, test=held)
    assert (env.num_tasks("train"), env.num_tasks("test")) == (38, 2)
    assert any(note == "2 training rows ask a held-out question and are left out, such as " + path + ":8" for note in env.warnings)
    assert build("env", "dataset", test=held).splits == ("test",)


def test_different_references_for_one_question_are_said(tmp_path: Path) -> None:
    env = build("env", "dataset", path=jsonl(tmp_path / "a.jsonl", [*SUMS, {"question": "What is 1 + 1?", "answer": "3"}]))
    assert any("a.jsonl:2 and" in note and "a.jsonl:41 ask the same and have different references" in note for note in env.warnings)


def test_folders_are_read_by_the_names_of_their_files(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    jsonl(tmp_path / "data" / "train-00000-of-00002.jsonl", SUMS[:20])
    jsonl(tmp_path / "data" / "train-00001-of-00002.jsonl", SUMS[20:30])
    jsonl(tmp_path / "data" / "validation.jsonl", SUMS[30:35])
    assert build("env", "dataset", path=str(tmp_path)).num_tasks("test") == 5
    jsonl(tmp_path / "test.jsonl", SUMS[35:])
    env = build("env", "dataset", path=str(tmp_path))
    assert env.num_tasks("train") == 30 and questions(env, "test") == {row["question"] for row in SUMS[35:]}
    assert len({task.id for task in asked(env, "train")}) == 30
    with pytest.raises(NotFound, match="no data files"):
        (tmp_path / "empty").mkdir()
        build("env", "dataset", path=str(tmp_path / "empty"))


def test_splits_are_found_by_their_words() -> None:
    assert [find_split_word(name) for name in ("gsm8k_test.jsonl", "train.csv", "latest.csv", "mydev.csv")] == ["test", "train", "", ""]
    assert map_to_train_and_test({"train": 1, "dev": 2}) == {"train": 1, "test": 2} and map_to_train_and_test({"": 3}) == {"": 3}


def test_a_column_may_say_the_split(tmp_path: Path) -> None:
    rows = [{**row, "part": ("train", "Test", "validation")[n % 3]} for n, row in enumerate(SUMS)]
    env = build("env", "dataset", path=jsonl(tmp_path / "a.jsonl", rows), split="part")
    assert (env.num_tasks("train"), env.num_tasks("test")) == (14, 26)
    with pytest.raises(ConfigError, match=r"a\.jsonl:41: the column 'part' \(split\) is 'nope'"):
        build("env", "dataset", path=jsonl(tmp_path / "a.jsonl", [*rows, {**SUMS[0], "part": "nope"}]), split="part")


def test_templates_fill_question_system_instruction_and_reference(tmp_path: Path) -> None:
    rows = [{"text": f"n = {n}", "task": "double {n}", "half": n, "unit": "cm"} for n in range(20)]
    env = build("env", "dataset", path=jsonl(tmp_path / "a.jsonl", rows), verifier="exact", question="{text}: {task}", reference="{half} {unit}",
        system="You measure in {unit}. {{sic}}", instruction="Answer with the unit.",
    )  # fmt: skip
    task = next(task for split in env.splits for task in asked(env, split) if task.reference == "3 cm")
    assert task.prompt == make_user_prompt("n = 3: double {n}\n\nAnswer with the unit.", system="You measure in cm. {sic}")


def test_a_column_of_messages_is_the_prompt(tmp_path: Path) -> None:
    talk = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}, {"role": "user", "content": "2+2?"}]
    env = build("env", "dataset", test=jsonl(tmp_path / "a.jsonl", [{"prompt": talk, "answer": 4}]), system="Be brief.", instruction="")
    assert [message["role"] for message in env.task("test", 0).prompt] == ["system", "user", "assistant", "user"]
    assert env.task("test", 0).reference == "4"
    with pytest.raises(ConfigError, match=r"a\.jsonl:1: the last message of the question has the role 'assistant'"):
        build("env", "dataset", test=jsonl(tmp_path / "a.jsonl", [{"prompt": talk[:2], "answer": 4}]))


@pytest.mark.parametrize(("columns", "question", "reference"), [
    (["id", "problem", "solution", "answer"], "problem", "answer"),
    (["Question", "solution"], "Question", "solution"),
    (["prompt", "ground_truth", "source"], "prompt", "ground_truth"),
])  # fmt: skip
def test_columns_with_usual_names_are_found(columns: list[str], question: str, reference: str, tmp_path: Path) -> None:
    rows = [{name: f"{name} {n}" for name in columns} for n in range(5)]
    env = build("env", "dataset", test=jsonl(tmp_path / "a.jsonl", rows), verifier="exact", instruction="")
    assert (env.task("test", 2).question, env.task("test", 2).reference) == (f"{question} 2", f"{reference} 2")
    assert f"question = {{{question}}}, reference = {{{reference}}}" in env.warnings[0]


@pytest.mark.parametrize(("row", "settings", "words"), [
    ({"q": "1?", "a": "1"}, {}, "no column that is known to be the question.*it has q, a.*question=COLUMN"),
    ({"question": "1?", "prompt": "2?", "answer": "1"}, {}, "several columns that may be the question: question, prompt"),
    ({"question": "1?", "answer": "1", "target": "2"}, {}, "several columns that may be the reference: answer, target.*Its columns: "),
    ({"question": "1?", "value": "1"}, {}, "no column that is known to be the reference"),
    ({"question": "1?", "answer": "1"}, {"question": "{quesion}"}, "uses the column 'quesion'; did you mean 'question'"),
    ({"question": "1?", "answer": "1"}, {"question": "why"}, "which names no column"),
    ({"question": "1?", "answer": "1"}, {"instruction": "It is {answer}."}, "the prompt would show the column 'answer'"),
    ({"question": "1?", "answer": " "}, {}, r"1 of 1 rows.*env.skip_bad_rows=true\):\n  .*a\.jsonl:1: the column 'answer' is empty"),
    ({"question": None, "answer": "1"}, {}, r"a\.jsonl:1: the column 'question' is empty"),
    ({"question": "1?", "answer": "1"}, {"where": {"level": 3}}, r"a\.jsonl:1: where names the column 'level'"),
    ({"question": "1?", "answer": "1"}, {"where": {"question": {"min": 3}}}, r"where\.question needs numbers"),
    ({"question": "1?", "answer": "1"}, {"where": {"answer": 2}}, "no rows are left for test"),
    ({"question": "1?", "answer": "1"}, {"shots": 1}, "shots is 1, and there are 0 training rows"),
    ({"question": "1?", "answer": "1"}, {"shots": [{"question": "?"}]}, "a list of {question: ..., answer: ...}"),
    ({"question": "1?", "answer": "1"}, {"extract": "box"}, "extract is 'box'; did you mean 'boxed'"),
    ({"question": "1?", "answer": "1"}, {"limit": 0}, "limit is 0"),
    ({"question": "1?", "answer": "1"}, {"verifier": "symbolc"}, "did you mean 'symbolic'"),
    ({"question": "1?", "answer": "1"}, {"meta": ["level"]}, "meta uses the column 'level'"),
])  # fmt: skip
def test_what_cannot_be_used_is_refused_in_words(row: dict[str, Any], settings: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(RlvrError, match=f"(?s){words}"):
        build("env", "dataset", test=jsonl(tmp_path / "a.jsonl", [row]), **settings)


@pytest.mark.parametrize(("name", "content", "words"), [
    ("a.jsonl", b'{"question": "1", "answer": "2"}\n\n{"question":\n', r"a\.jsonl:3: not valid JSON"),
    ("a.jsonl", b"[1]\n", r"a\.jsonl:1: list \[1\] is not an object"),
    ("b.jsonl", b"7\n", r"b\.jsonl:1: int 7 is not an object"),
    ("a.json", b'[{"question": ', r"a\.json is not valid JSON"),
    ("a.csv", b"question,answer\n1,2\n3\n", r"a\.csv:3: this row has 1 fields, and the first line names 2 columns"),
    ("a.csv", b"question,answer\n1,2,3\n", r"a\.csv:2: this row has 3 fields"),
    ("a.csv", b'question,answer\n"1\n2",3\n4,5,6\n', r"a\.csv:4: this row has 3 fields"),
    ("a.csv", b"question,question\n1,2\n", r"a\.csv:1: the first line must name the columns"),
    ("a.jsonl", b'{"question": "\xff"}\n', r"a\.jsonl is not valid UTF-8: byte 14 is"),
    ("a.jsonl.gz", b"plain", r"a\.jsonl\.gz cannot be read"),
    ("a.parquet", b"plain", r"a\.parquet is not a readable Parquet file"),
    ("a.jsonl", b"\n", r"a\.jsonl has no rows"),
    ("a.txt", b"1", "none of the known endings"),
])  # fmt: skip
def test_a_broken_file_is_named_with_its_line(name: str, content: bytes, words: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ConfigError, match=words):
        read_file_rows(tmp_path / name)


def test_bad_rows_can_be_left_out(tmp_path: Path) -> None:
    env = build("env", "dataset", test=jsonl(tmp_path / "a.jsonl", [*SUMS, {"question": "?", "answer": None}]), skip_bad_rows=True)
    assert env.num_tasks("test") == 40 and "1 left out as unusable" in env.warnings[0]


def test_rows_are_filtered_and_limited(tmp_path: Path) -> None:
    rows = [{**row, "level": n % 4, "long": "x" * n} for n, row in enumerate(SUMS)]
    path = jsonl(tmp_path / "a.jsonl", rows)
    sizes = {
        "one": build("env", "dataset", test=path, where={"level": "2"}).num_tasks("test"),
        "list": build("env", "dataset", test=path, where={"level": [1, 2]}).num_tasks("test"),
        "range": build("env", "dataset", test=path, where={"level": {"min": 2}}).num_tasks("test"),
        "longest": build("env", "dataset", test=path, question="long", where={"long": [f"{'x' * n}" for n in (1, 5, 30)]}, max_question_chars=29,
                        instruction="").num_tasks("test"),
        "limit": build("env", "dataset", test=path, limit=7).num_tasks("test"),
    }  # fmt: skip
    assert sizes == {"one": 10, "list": 20, "range": 20, "longest": 2, "limit": 7}


def test_shots_come_first_and_are_not_trained_on(tmp_path: Path) -> None:
    path = jsonl(tmp_path / "a.jsonl", SUMS)
    bare, env = build("env", "dataset", path=path), build("env", "dataset", path=path, shots=2, system="Add.")
    task = env.task("test", 0)
    assert [message["role"] for message in task.prompt] == ["system", "user", "assistant", "user", "assistant", "user"]
    assert env.num_tasks("train") == bare.num_tasks("train") - 2
    shown = {message["content"] for message in task.prompt[1:-1] if message["role"] == "user"}
    assert shown == {bare.task("train", index).question for index in (0, 1)} and not shown & {t.question for t in asked(env, "train")}
    given = build("env", "dataset", test=path, shots=[{"question": "1+1?", "answer": "2"}]).task("test", 0)
    assert [message["content"] for message in given.prompt[:2]] == ["1+1?", "2"]


@pytest.mark.parametrize(("answers", "reference", "solution"), [
    (["She has 3+4=<<3+4=7>>7.\n#### 1,007", "#### 8"], "1007", "She has 3+4=7.\n#### 1,007"),
    ([r"so it is $\boxed{\frac12}$", r"\boxed{3}"], r"\frac12", r"so it is $\boxed{\frac12}$"),
    (["1,007", "8"], "1,007", None),
])  # fmt: skip
def test_the_final_answer_is_taken_out_of_a_solution(answers: list[str], reference: str, solution: str | None, tmp_path: Path) -> None:
    env = build("env", "dataset", test=jsonl(tmp_path / "a.jsonl", [{"question": f"{n}?", "answer": a} for n, a in enumerate(answers)]))
    task = env.task("test", 0)
    assert (task.reference, task.meta.get("solution")) == (reference, solution)
    assert env.verifier.verify(task, env.gold(task)).passed and env.gold(task).startswith(solution or reference)


def test_a_row_without_the_mark_that_the_others_have_is_an_error(tmp_path: Path) -> None:
    rows = [{"question": f"{n}?", "answer": f"#### {n}"} for n in range(5)] + [{"question": "?", "answer": "none"}]
    with pytest.raises(ConfigError, match=r"a\.jsonl:6: the reference has no number after ####, as most others have: 'none'"):
        build("env", "dataset", test=jsonl(tmp_path / "a.jsonl", rows))


def test_settings_of_the_verifier_may_be_columns(tmp_path: Path) -> None:
    rows = [{"question": "pi?", "answer": 3.14159, "tol": tol} for tol in (0.1, 0.001)]
    env = build("env", "dataset", test=jsonl(tmp_path / "a.jsonl", rows), verifier={"name": "numeric", "tolerance": "{tol}"})
    assert [env.verifier.verify(task, "3.14").score for task in asked(env, "test")] == [1.0, 0.0]
    with pytest.raises(ConfigError, match="tolerance is -1"):
        build("env", "dataset", test=jsonl(tmp_path / "a.jsonl", [*rows, {**rows[0], "tol": -1}]), verifier=env_settings())


def env_settings() -> dict[str, str]:
    return {"name": "numeric", "tolerance": "{tol}"}


def test_rewards_are_weighed_in_one_line_and_form_needs_no_reference(tmp_path: Path) -> None:
    path = jsonl(tmp_path / "a.jsonl", [{"question": "2+2?", "answer": "4"}])
    env = build("env", "dataset", test=path, verifier={"numeric": 0.9, "format": 0.1})
    task = env.task("test", 0)
    scores = [
        env.verifier.verify(task, text).score
        for text in ("<think>2+2</think><answer>4</answer>", "4", "<think>x</think><answer>5</answer>")
    ]
    assert scores == pytest.approx([1.0, 0.9, 0.1])
    assert "after ####." in task.question and "<think>...</think><answer>...</answer>" in task.question
    bare = build("env", "dataset", test=jsonl(tmp_path / "b.jsonl", [{"question": "Say hello."}]), verifier="format")
    assert bare.verifier.verify(bare.task("test", 0), "<think>hm</think><answer>Hello</answer>").passed


def test_structures_stay_structures_for_verifiers_that_read_them(tmp_path: Path) -> None:
    tests = {"kind": "asserts", "entry_point": "f", "test": "assert f(1) == 2"}
    rows = [{"question": "Add one.", "reference": tests, "solution": "```python\ndef f(x):\n    return x + 1\n```"}]
    env = build("env", "dataset", test=jsonl(tmp_path / "a.jsonl", rows), verifier=CODE)
    try:
        assert env.task("test", 0).reference == tests and env.gold(env.task("test", 0)) == rows[0]["solution"]
    finally:
        env.close()


def test_published_data_sets_are_read_by_split(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    asked_for: list[Any] = []

    def load_dataset(name: str, config: str | None, *, split: str | None) -> Any:
        asked_for.append((name, config, split))
        return {"train": SUMS[:30], "validation": SUMS[30:]}

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    env = build("env", "dataset", path="hf:org/sums:main")
    assert asked_for == [("org/sums", "main", None)] and (env.num_tasks("train"), env.num_tasks("test")) == (30, 10)
    assert env.task("train", 2).id == "dataset/train/train:3"
    with pytest.raises(ConfigError, match="is not the name of a data set"):
        build("env", "dataset", path="hf:a/b/c")


def test_a_data_set_that_is_not_here_says_how_to_fetch_it(monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    with pytest.raises(ConfigError, match="hf download rlvr-tests/nothing --repo-type dataset --local-dir DIR"):
        build("env", "dataset", path="hf:rlvr-tests/nothing")
