"""A line that cannot be read gets one message, with everything that is wrong in it and with the line as it should be."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

from rlvr.cli.commands import run_command, usage_errors
from rlvr.cli.settings import find_config_key
from rlvr.cli.similar import find_similar
from tests.cli.command_lines import GROUP, find_command_fault

# what a newcomer types, and the line that the message ends with
LINES: list[tuple[str, str]] = [
    ("verify --verifier choice --completion '(B)' --target B", "verify choice --answer '(B)' --reference B"),
    ("verify choice '(B)' B", "verify choice --answer '(B)' --reference B"),
    ("verify --completion x", "verify VERIFIER --answer x --reference REFERENCE"),
    ("verify math --input-file a.jsonl", "verify math --file a.jsonl"),
    (
        "eval --env arithmetic --policy f.py:policy --limit 5 --n 2 --output logs",
        "eval arithmetic --policy f.py:policy --limit 5 --n 2 --out logs",
    ),
    (
        "eval --model openai/m --base-url http://localhost:9/v1 --env arithmetic",
        "eval arithmetic --policy openai:http://localhost:9/v1#m",
    ),
    ("eval --model models/a --env arithmetic", "eval arithmetic --policy hf:models/a"),
    (
        "eval --model hf --model_args pretrained=m/a,dtype=float32 --tasks gsm8k --num_fewshot 5 --batch_size 8 --limit 3",
        "eval gsm8k --limit 3 --policy hf:m/a --set shots=5 --sampler batch_size=8",
    ),
    ("eval --policy scripted:gold --tasks gsm8k", "eval gsm8k --policy scripted:gold"),
    ("eval -m gpt -b http://h/v1 -e gsm8k -n 5 -r 3", "eval gsm8k --policy openai:http://h/v1#gpt --tasks 5 -n 3"),
    ("eval hf:models/a quick", "eval quick --policy hf:models/a"),
    ("eval quick --policy scripted:gold --epochs=4", "eval quick --policy scripted:gold -n 4"),
    ("eval quick --policy scripted:gold --max_new_tokens 5", "eval quick --policy scripted:gold --max-new-tokens 5"),
    ("eval quick --policy scripted:gold --temp 0.5", "eval quick --policy scripted:gold --temperature 0.5"),
    ("eval --rescore runs/a --output b", "eval --rescore runs/a --out b"),
    ("train quickstart --steps 5", "train quickstart train.steps=5"),
    ("train --bf16 true --use-vllm quickstart", "train quickstart train.mixed_precision=bf16 rollout.sampler=vllm"),
    (
        "train --model M --dataset d.jsonl --lr 1e-5 --output_dir runs/a --lora-r 16 --bf16 --report_to wandb",
        "train d.jsonl train.learning_rate=1e-5 model.lora.rank=16 train.mixed_precision=bf16 'log.report_to=[wandb]' --model M --out runs/a",
    ),
    (
        "train --train-dataset d.jsonl --reward-funcs numeric --environment gsm8k --processing-class chars",
        "train d.jsonl env=gsm8k tokenizer=chars --verifier numeric",
    ),
    ("train quickstart --set train.steps=4 --algorithm ppo", "train quickstart train.steps=4 algorithm=ppo"),
    ("check --env gsm8k", "check env gsm8k"),
    ("check", "check KIND NAME"),
    ("new chess", "new KIND chess"),
    ("compare runs/a", "compare runs/a B"),
    ("export runs/a --format csv", "export runs/a --to csv"),
    ("export-env gsm8k --target trl --n 5", "export-env gsm8k --to trl --count 5 --out DIR"),
    ("play --env arithmetic --task-id 4", "play arithmetic --index 4"),
]


def fail(capsys: pytest.CaptureFixture[str], line: str) -> str:
    assert run_command(shlex.split(line)) == 2
    return capsys.readouterr().err


@pytest.mark.parametrize(("line", "right"), LINES, ids=[line for line, _ in LINES])
def test_one_message_ends_with_the_line_as_it_should_be(line: str, right: str, capsys: pytest.CaptureFixture[str]) -> None:
    said = fail(capsys, line)
    assert said.rstrip().rstrip("`").endswith(f"rlvr {right}"), said
    assert find_command_fault(f"rlvr {right}") == ""
    unknown = [word.partition("=")[0] for word in shlex.split(line) if word.startswith("--")]
    known = usage_errors._list_options(GROUP.commands[line.split()[0]])
    assert [option for option in unknown if option not in known and f"{option}'" not in said] == [], "an option is not named"


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("score completions.jsonl --verifier math", "`rlvr verify NAME --file FILE`"),
        ("score completions.jsonl --verifier math", "`rlvr eval --rescore RUN`"),
        ("list-envs", "`rlvr list envs`"),
        ("list_verifiers", "`rlvr list verifiers`"),
        ("new-verifier mine", "`rlvr new verifier NAME`"),
        ("grpo", "`rlvr train env=ENV algorithm=grpo --model DIR`"),
        ("lint", "`rlvr check KIND NAME`"),
        ("evals", "did you mean 'eval'?"),
        ("veiw", "did you mean 'view'?"),
        ("--json list", "`rlvr list --json`"),
        ("list --verbose", "`rlvr --verbose list ...`"),
        ("init chess", "`rlvr new env chess`"),
        ("show symbolik", "did you mean 'symbolic'?"),
        ("show math_verify", "did you mean 'symbolic'?"),
        ("eval quick --policy scripted:gold --foo 3", "has no option '--foo'; see `rlvr eval --help`"),
        ("eval quick --policy scripted:gold --fail-on-error", "an answer that failed has no score"),
        ("train d.jsonl --model m lr=1", "did you mean 'train.learning_rate'?"),
    ],
)
def test_a_wrong_command_or_name_gets_the_right_one(
    line: str, words: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("d.jsonl").write_text('{"question": "1+1=", "answer": "2"}\n')
    assert words in fail(capsys, line)


def test_a_far_word_is_not_offered() -> None:
    assert find_similar("score", GROUP.commands) == "" == find_similar("lint", GROUP.commands)


def find_table_faults() -> list[str]:
    """List what the tables of commands and options name and what does not exist."""
    found = [f"{name} is a command" for name in usage_errors.COMMANDS if name in GROUP.commands]
    texts = [*usage_errors.COMMANDS.values()]
    for command, table in usage_errors.OPTIONS.items():
        known = usage_errors._list_options(GROUP.commands[command])
        metavars = [usage_errors._get_metavar(one) for one in usage_errors._list_arguments(GROUP.commands[command])]
        for word, target in table.items():
            found += [f"{command} has --{word}"] if f"--{word}" in known or (len(word) == 1 and f"-{word}" in known) else []
            if target.startswith("-") and usage_errors._is_target(target, metavars):
                found += [] if target.split()[0] in known else [f"{command} has no {target}"]
            elif target.endswith("="):
                found += [] if find_config_key(target[:-1]) == target[:-1] else [f"a run has no {target}"]
            elif target not in (*metavars, "{value}"):
                found += [f"{command}: {target!r} is no sentence"] if " " not in target else []
                texts.append(target)
    for text in texts:
        found += [fault for code in re.findall(r"`([^`]+)`", text) if (fault := find_command_fault(code))]
    return found


def test_the_tables_name_what_exists() -> None:
    assert find_table_faults() == []


@pytest.mark.parametrize(
    ("command", "word", "target"),
    [
        ("eval", "x", "--outt"),
        ("eval", "out", "--out"),
        ("eval", "x", "SUIT"),
        ("train", "x", "train.stepz="),
        ("serve", "x", "served by `rlvr evall SUITE --policy P`"),
        ("serve", "x", "served by `rlvr eval SUITE --polcy P`"),
    ],
)
def test_a_wrong_entry_of_a_table_is_found(command: str, word: str, target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(usage_errors, "OPTIONS", {command: {word: target}})
    assert find_table_faults()


# ---- a file with the columns of other tools ---------------------------------------------------------------------------


def test_usual_columns_are_read_and_said_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "theirs.jsonl"
    rows = [{"question": f"{n}+1=", "gold": str(n + 1), "response": "it is 3"} for n in range(4)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert run_command(["verify", "numeric", "--file", str(file), "--json"]) == 0
    said = capsys.readouterr()
    assert [json.loads(line)["score"] for line in said.out.splitlines()] == [0, 0, 1, 0]
    assert [json.loads(line)["id"] for line in said.out.splitlines()] == [1, 2, 3, 4]
    assert said.err.splitlines() == [
        f"note: {file}: the column 'gold' is read as the reference, the column 'response' is read as the answer, "
        "the column 'question' is read as the prompt"
    ]


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"gold": "4", "completion": "4", "response": "5"}, "the answer may be 'completion' or 'response'; the columns are 'gold',"),
        ({"target": "4", "gold": "4", "answer": "4"}, "the reference may be 'target' or 'gold'"),
        ({"answer": "4", "completion": "4"}, "'answer' is what was answered: rename it to 'reference' if it is the right answer"),
        ({"words": "4"}, "'reference' and 'answer' are missing; the columns are 'words';"),
    ],
)
def test_unclear_columns_are_listed(row: dict[str, str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "theirs.jsonl"
    file.write_text(json.dumps(row) + "\n")
    assert words in fail(capsys, f"verify numeric --file {file}")


def test_a_solution_is_the_reference_only_without_another() -> None:
    from rlvr.cli.verifying import _take_usual_names

    assert _take_usual_names({"solution": "s", "target": "4", "answer": "a"}, "f:1", set())["reference"] == "4"
    assert _take_usual_names({"solution": "s", "answer": "a"}, "f:1", set())["reference"] == "s"
    whole = {"id": 1, "reference": "4", "answer": "a", "completion": "c", "target": "5"}
    assert _take_usual_names(whole, "f:1", set()) == whole  # the names of rlvr come first
