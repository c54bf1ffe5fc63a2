"""A line in the words of other tools is read as the line that says the same here, or gets one message with that line."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

from rlvr.cli.commands import run_command, usage_errors
from rlvr.cli.settings import find_config_key
from rlvr.cli.similar import find_similar
from rlvr.config.config import LoraConfig
from tests.cli.command_lines import GROUP, find_command_fault, read_command_line

# what a newcomer types, and the line as which it runs: each word means exactly a word here
READ_LINES: list[tuple[str, str]] = [
    ("verify --verifier choice --completion '(B)' --target B", "verify choice --answer '(B)' --reference B"),
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
        "eval --model models/a --env arithmetic --num-examples 4 --max-tokens 8 --output-dir results",
        "eval arithmetic --policy hf:models/a --tasks 4 --max-new-tokens 8 --out results",
    ),
    ("eval arithmetic --model models/a --limit 4", "eval arithmetic --limit 4 --policy hf:models/a"),
    ("eval arithmetic -m models/a -n 4 -r 2", "eval arithmetic --policy hf:models/a --tasks 4 -n 2"),
    ("eval --model hf --model_args pretrained=m/a --tasks gsm8k", "eval gsm8k --policy hf:m/a"),
    ("eval --policy scripted:gold --tasks gsm8k", "eval gsm8k --policy scripted:gold"),
    ("eval -m gpt -b http://h/v1 -e gsm8k -n 5 -r 3", "eval gsm8k --policy openai:http://h/v1#gpt --tasks 5 -n 3"),
    ("eval quick --policy scripted:gold --epochs=4", "eval quick --policy scripted:gold -n 4"),
    ("eval quick --policy scripted:gold --max_new_tokens 5", "eval quick --policy scripted:gold --max-new-tokens 5"),
    ("eval quick --policy scripted:gold --allow_unscored", "eval quick --policy scripted:gold --allow-unscored"),
    ("eval --rescore runs/a --output b", "eval --rescore runs/a --out b"),
    ("train quickstart --steps 5", "train quickstart train.steps=5"),
    ("train --config grpo.yaml --max_steps 5 --seed 1", "train grpo.yaml train.steps=5 seed=1"),
    (
        "train --model M --env arithmetic --algorithm grpo --steps 1 --out D",
        "train env=arithmetic algorithm=grpo train.steps=1 --model M --out D",
    ),
    (
        "train --model M --env arithmetic --max-steps 1 --num-generations 2 --learning-rate 1e-5 --output-dir D "
        "--max-completion-length 8 --save-steps 2 --logging-steps 1 --beta 0.1 --report-to none --gradient_checkpointing",
        "train env=arithmetic train.steps=1 rollout.num_generations=2 train.learning_rate=1e-5 rollout.max_new_tokens=8 log.save_every=2 "
        "algorithm.beta=0.1 'log.report_to=[]' train.gradient_checkpointing=true --model M --out D",
    ),
    (
        "train --model M --env arithmetic --per_device_train_batch_size 4 --num_generations 2 --gradient_accumulation_steps 2",
        "train env=arithmetic rollout.prompts_per_step=4 rollout.num_generations=2 --model M",
    ),
    ("train --model M --env arithmetic --reward f.py:f", "train env=arithmetic --model M --verifier f.py:f"),
    (
        "train --train-dataset d.jsonl --reward-funcs numeric --processing-class chars --lr 1e-5",
        "train d.jsonl tokenizer=chars train.learning_rate=1e-5 --verifier numeric",
    ),
    ("train quickstart --set train.steps=4 --algorithm ppo", "train quickstart train.steps=4 algorithm=ppo"),
    ("check --env gsm8k", "check env gsm8k"),
    ("export runs/a --format csv", "export runs/a --to csv"),
    ("play --env arithmetic --task-id 4", "play arithmetic --index 4"),
]
# what means only something like a word here, lacks something, or may mean two things; and the line that the message ends with
LINES: list[tuple[str, str]] = [
    ("verify choice '(B)' B", "verify choice --answer '(B)' --reference B"),
    ("verify --completion x", "verify VERIFIER --answer x --reference REFERENCE"),
    (
        "eval --model hf --model_args pretrained=m/a,dtype=float32 --tasks gsm8k --num_fewshot 5 --batch_size 8 --limit 3",
        "eval gsm8k --limit 3 --policy hf:m/a --set shots=5 --sampler batch_size=8",
    ),
    ("eval --env arithmetic", "eval arithmetic --policy POLICY"),
    ("eval hf:models/a quick", "eval quick --policy hf:models/a"),
    ("eval quick --policy scripted:gold --temp 0.5", "eval quick --policy scripted:gold --temperature 0.5"),
    (
        "train --model M --dataset d.jsonl --lr 1e-5 --output_dir runs/a --lora-r 16 --bf16 --report_to wandb",
        "train d.jsonl train.learning_rate=1e-5 model.lora.rank=16 train.mixed_precision=bf16 'log.report_to=[wandb]' --model M --out runs/a",
    ),
    ("train --bf16 true --use-vllm quickstart", "train quickstart train.mixed_precision=bf16 rollout.sampler=vllm"),
    ("train --steps 5", "train quickstart train.steps=5"),
    ("train --steps 5 --model M", "train env=arithmetic train.steps=5 --model M"),
    ("train --config", "train quickstart"),
    ("check", "check KIND NAME"),
    ("new chess", "new KIND chess"),
    ("compare runs/a", "compare runs/a B"),
    ("export-env gsm8k --target trl --n 5", "export-env gsm8k --to trl --count 5 --out DIR"),
]


def fail(capsys: pytest.CaptureFixture[str], line: str) -> str:
    assert read_command_line(line) in ("", line), "it would run"
    assert run_command(shlex.split(line)) == 2
    return capsys.readouterr().err


@pytest.mark.parametrize(("line", "right"), READ_LINES, ids=[line for line, _ in READ_LINES])
def test_a_line_whose_words_all_have_an_exact_equivalent_is_read_as_it(line: str, right: str) -> None:
    assert read_command_line(line) == right
    assert find_command_fault(f"rlvr {right}") == ""


@pytest.mark.parametrize(("line", "right"), LINES, ids=[line for line, _ in LINES])
def test_one_message_ends_with_the_line_as_it_should_be(line: str, right: str, capsys: pytest.CaptureFixture[str]) -> None:
    said = fail(capsys, line)
    assert said.rstrip().rstrip("`").endswith(f"rlvr {right}"), said
    assert find_command_fault(f"rlvr {right}") == "" and "RECIPE" not in right
    unknown = [word.partition("=")[0] for word in shlex.split(line) if word.startswith("--")]
    known = usage_errors._list_options(GROUP.commands[line.split()[0]])
    assert [option for option in unknown if option not in known and f"{option}'" not in said] == [], "an option is not named"


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("train quickstart --steps 5 --max-steps 5", "--steps and --max-steps mean the same; give one of them"),
        ("train quickstart max_steps=5 --steps 5", "max_steps=5 and --steps mean the same"),
        ("train other.yaml --config grpo.yaml", "other.yaml and --config mean the same"),
        ("train --train-dataset d.jsonl --env gsm8k", "--train-dataset and --env both say where the questions come from"),
        ("train --env a --per-device-train-batch-size 3 --num-generations 2", "must be a multiple of num_generations=2"),
        ("eval quick --env gsm8k --policy scripted:gold", "quick and --env mean the same"),
        ("eval quick --policy scripted:gold --model m", "--policy and --model mean the same"),
    ],
)
def test_of_two_words_for_one_thing_no_line_is_made(line: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    said = fail(capsys, line)
    assert words in said and "write: " not in said and "write `" not in said


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("eval arithmetic -m models/a -n 4", "-n is the number of answers for each task, and --tasks the number of tasks"),
        ("eval arithmetic --model gpt-4 --limit 4", "openai:URL#MODEL for a model that is served"),
        ("eval arithmetic --model google/gemini --limit 4", "openai:URL#MODEL for a model that is served"),
        ("eval --policy scripted:gold --tasks arithmetic,gsm8k", "--tasks is the number of tasks"),
        ("train quickstart --resume-from-checkpoint true", "--resume resumes the run of --out"),
        ("train quickstart --epochs 2", "write `rlvr train quickstart train.steps=2`"),
    ],
)
def test_a_word_that_may_mean_something_else_is_not_run_unasked(line: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert words in fail(capsys, line)


def test_a_translated_line_is_told_once_and_run(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    out = tmp_path / "results"
    line = ["eval", "--env", "arithmetic", "--policy", "scripted:gold", "--num-examples", "3", "--output-dir", str(out), "--json"]
    assert run_command(line) == 0
    said = capsys.readouterr()
    assert json.loads(said.out)["envs"]["arithmetic"]["tasks"] == 3 and out.is_dir()
    read = f"note: read as: rlvr eval arithmetic --policy scripted:gold --json --tasks 3 --out {out}"
    assert [text for text in said.err.splitlines() if "read as" in text] == [read]


def test_a_translated_line_that_is_wrong_all_the_same_gets_the_error_of_its_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["eval", "--env", "arithmetik", "--policy", "scripted:gold"]) == 2
    read, error = capsys.readouterr().err.splitlines()
    assert read == "note: read as: rlvr eval arithmetik --policy scripted:gold" and "did you mean 'arithmetic'" in error


def test_the_folder_of_a_model_or_of_a_run_is_a_policy(tmp_path: Path) -> None:
    for folder in (tmp_path / "model", tmp_path / "run" / "checkpoints" / "last"):
        folder.mkdir(parents=True)
        (folder / "config.json").write_text("{}")
    assert read_command_line(f"eval quick --model {tmp_path}/model") == f"eval quick --policy hf:{tmp_path}/model"
    assert read_command_line(f"eval quick --model {tmp_path}/run") == f"eval quick --policy hf:{tmp_path}/run/checkpoints/last"
    assert read_command_line(f"eval quick --model {tmp_path}/none") == ""


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
        ("train d.jsonl --model m epochs=1", "did you mean 'train.steps'?"),
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


LORA_KEYS = {f"model.lora.{name}" for name in LoraConfig.model_fields}
"""The keys of a section that a run need not have."""


def find_table_faults() -> list[str]:
    """List what the tables of commands and options name and what does not exist."""
    found = [f"{name} is a command" for name in usage_errors.COMMANDS if name in GROUP.commands]
    texts = [*usage_errors.COMMANDS.values()]
    for command, table in [*usage_errors.OPTIONS.items(), *usage_errors.SAME_OPTIONS.items()]:
        known = usage_errors._list_options(GROUP.commands[command])
        metavars = [usage_errors._get_metavar(one) for one in usage_errors._list_arguments(GROUP.commands[command])]
        for word, target in table.items():
            found += [f"{command} has --{word}"] if f"--{word}" in known or (len(word) == 1 and f"-{word}" in known) else []
            if target.startswith("-") and usage_errors._is_target(target, metavars):
                found += [] if target.split()[0] in known else [f"{command} has no {target}"]
            elif target.endswith("="):
                is_key = find_config_key(target[:-1]) == target[:-1] or target[:-1] in LORA_KEYS
                found += [] if is_key else [f"a run has no {target}"]
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
