"""The command line: what it prints for eyes, what it prints for programs, and its exit codes."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import rlvr
from rlvr.cli.commands import app, run_command
from rlvr.cli.settings import parse_settings
from rlvr.cli.verifying import MAX_QUEUED_PER_WORKER, verify_in_order
from rlvr.config.config import RunConfig
from rlvr.evaluation.report import format_cost
from rlvr.registry.plugins import PACKAGE_FOLDER, list_entries
from rlvr.task import Verdict

Said = pytest.CaptureFixture[str]


def obey(line: list[str], capsys: Said, code: int = 0) -> str:
    assert run_command(line) == code
    said = capsys.readouterr()
    assert said.err == "", said.err
    return said.out


def parsed(line: list[str], capsys: Said, code: int = 0) -> Any:
    return json.loads(obey([*line, "--json"], capsys, code))


def test_a_command_that_a_person_ends_says_so(monkeypatch: pytest.MonkeyPatch, capsys: Said) -> None:
    def ended(*told: object, **more: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("rlvr.cli.listing.list_plugins", ended)
    assert run_command(["list"]) == 130
    assert capsys.readouterr().err == "stopped\n"


def test_every_command_has_json_and_help(capsys: Said) -> None:
    verbs = {command.name or command.callback.__name__ for command in app.registered_commands if command.callback}
    assert {"list", "show", "new", "check", "verify", "train", "eval", "compare", "export", "view", "replay", "doctor"} <= verbs
    for verb in sorted(verbs):
        said = obey([verb, "--help"], capsys)
        assert "--json" in said and "Usage: rlvr " + verb in said
        assert max(map(len, said.splitlines())) <= 100


def test_the_command_alone_shows_its_help(capsys: Said) -> None:
    said = obey([], capsys)
    assert said == obey(["--help"], capsys) and said.startswith("Usage: rlvr [OPTIONS] COMMAND")
    assert max(map(len, said.splitlines())) <= 80 and "..." not in said.partition("Commands:")[2], "a line of the help is cut"
    assert "Exit codes: 0" in said


def test_the_version_is_shown(capsys: Said) -> None:
    assert obey(["--version"], capsys) == f"rlvr {rlvr.__version__}\n"


@pytest.mark.parametrize("kind", ["envs", "verifiers", "sandboxes", "samplers", "algorithms", "recipes", "suites"])
def test_list_json(kind: str, capsys: Said) -> None:
    rows = parsed(["list", kind], capsys)
    assert rows and [row["name"] for row in rows] == sorted(row["name"] for row in rows)
    assert all({"name", "source", "summary"} <= set(row) and row["summary"] and "error" not in row for row in rows)


def test_list_shows_every_kind(capsys: Said) -> None:
    said = obey(["list"], capsys)
    assert [word for word in ("arithmetic", "numeric", "docker", "scripted", "grpo", "quickstart") if word not in said] == []
    assert {row["kind"] for row in parsed(["list"], capsys)} == {
        "envs",
        "verifiers",
        "sandboxes",
        "samplers",
        "tools",
        "algorithms",
        "recipes",
        "suites",
    }


def test_list_fits_on_one_screen(capsys: Said, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    said = obey(["list"], capsys)
    assert len(said.splitlines()) <= 35 and max(map(len, said.splitlines())) <= 100
    envs = parsed(["list", "envs"], capsys)
    assert re.search(rf"envs +{len(envs)} +agent, arithmetic, ", said) and "`rlvr list KIND`" in said


def test_list_shows_which_plugins_are_broken(monkeypatch: pytest.MonkeyPatch, capsys: Said) -> None:
    rows = [
        {"name": "good", "source": "acme", "summary": "It works."},
        {"name": "bad", "source": "acme", "summary": "", "error": "no module x"},
    ]
    monkeypatch.setattr("rlvr.cli.listing.list_rows", lambda plural: rows if plural == "tools" else [])
    said = obey(["list"], capsys)
    assert re.search(r"tools +2 +good, bad \(broken\)", said) and "`rlvr list tools` says why some are broken" in said


@pytest.mark.parametrize("name", ["gymnasium", "reasoning_gym", "textarena", "harbor", "bfcl"])
def test_list_says_what_a_collection_offers_and_refuses(name: str, capsys: Said) -> None:
    rows = parsed(["list", "envs", "--catalog", name], capsys)
    assert len(rows) >= 6 and all(row.keys() == {"name", "offered", "why"} and row["why"] for row in rows)
    assert ("no" in {row["offered"] for row in rows}) == (name != "gymnasium")
    assert rows[0]["name"] in obey(["list", "envs", "--catalog", name], capsys)


def test_list_of_what_is_no_collection_is_one_message(capsys: Said) -> None:
    for line, words in (
        (["list", "envs", "--catalog", "arithmetic"], "is one environment"),
        (["list", "tools", "--catalog", "gymnasium"], "write `rlvr list envs"),
    ):
        assert run_command(line) == 2
        assert words in capsys.readouterr().err


def test_show_explains_the_settings(capsys: Said) -> None:
    said = obey(["show", "verifier", "numeric"], capsys)
    assert "tolerance" in said and "largest difference" in said and "version " in said
    row = parsed(["show", "env", "arithmetic"], capsys)
    settings = {setting["name"]: setting for setting in row["settings"]}
    assert settings["verifier"]["default"] == "numeric" and not settings["verifier"]["required"]
    assert settings["levels"]["about"].startswith("digits of the first number")
    assert "seed: 0" in obey(["show", "recipe", "quickstart"], capsys)


def test_show_config_explains_every_setting_of_a_run(capsys: Said) -> None:
    schema = RunConfig.model_json_schema()  # another way to the same keys

    def keys(part: dict[str, Any], path: str) -> set[str]:
        found = set()
        for name, told in part["properties"].items():
            found.add(path + name)
            for ref in re.findall(r"#/\$defs/(\w+)", json.dumps(told)):
                by_name = "NAME." if told.get("type") == "object" and "additionalProperties" in told else ""
                found |= keys(schema["$defs"][ref], f"{path}{name}.{by_name}")
        return found

    rows = {row["key"]: row for row in parsed(["show", "config"], capsys)}
    assert set(rows) == keys(schema, "") and [key for key, row in rows.items() if not row["about"]] == []
    about = rows["rollout.prompts_per_step"]
    assert (about["default"], about["limits"]) == ("32", "at least 1") and "tasks" in about["about"]
    assert rows["health.action"]["limits"] == "one of stop, warn, off" and rows["model.lora.rank"]["default"] == "required"
    said = obey(["show", "config", "train"], capsys)
    assert "train.steps" in said and "constant_with_warmup" in said and "\nrollout." not in said
    (only,) = parsed(["show", "config", "log.save_total_limit"], capsys)
    assert only["key"] == "log.save_total_limit" and only["about"]
    assert parsed(["show", "recipe", "quickstart"], capsys)["name"] == "quickstart"


def test_show_says_of_a_plugin_only_what_it_says_itself(tmp_path: Path, capsys: Said) -> None:
    (tmp_path / "mute.py").write_text(
        "from rlvr import Verifier\n\nclass Mute(Verifier):\n    verify = None\n\n"
        "    def __init__(self, *, most=float('inf')):\n        pass\n"
    )
    row = parsed(["show", "verifier", f"{tmp_path}/mute.py:Mute"], capsys)
    assert row["about"] == "" and row["settings"][0]["default"] == "inf"


def test_verify_one(capsys: Said) -> None:
    assert parsed(["verify", "numeric", "--reference", "4", "--answer", "4.0"], capsys)["score"] == 1.0
    wrong = parsed(["verify", "numeric", "--reference", "4", "--answer", "5"], capsys)
    assert (wrong["score"], wrong["fault"]) == (0.0, "none")
    none = parsed(["verify", "numeric", "--reference", "four", "--answer", "4"], capsys, code=1)
    assert (none["score"], none["fault"]) == (None, "task")
    near = ["verify", "numeric", "--reference", "4", "--answer", "4.05", "--set", "tolerance=0.1"]
    assert parsed(near, capsys)["score"] == 1.0
    assert obey(near, capsys).startswith("1  4.05 is within 0.1 of 4")
    listed = ["verify", "exact", "--reference", '["4", "four"]', "--answer", "four"]
    assert parsed(listed, capsys)["score"] == 1.0
    assert parsed(["verify", "exact", "--reference", "{x", "--answer", "{x"], capsys)["score"] == 1.0


def test_verify_file_keeps_the_order_and_the_form(tmp_path: Path, capsys: Said) -> None:
    rows = [{"id": i, "reference": str(i), "answer": str(i if i % 3 else i + 1)} for i in range(200)]
    rows += [{"id": "float", "reference": 0.1, "answer": "0.1"}, {"id": None, "reference": [1], "answer": "1", "meta": {"level": 3}}]
    file = tmp_path / "pairs.jsonl"
    file.write_text("\n".join(json.dumps(row) for row in rows) + "\n\n", "utf-8")
    lines = [json.loads(line) for line in obey(["verify", "numeric", "--file", str(file), "--json"], capsys, code=1).splitlines()]
    assert [line["id"] for line in lines] == [row["id"] for row in rows]
    assert all(set(line) == {"id", "score", "reason", "fault"} for line in lines)
    assert [line["score"] for line in lines[:200]] == [float(i % 3 > 0) for i in range(200)]
    assert [(line["score"], line["fault"]) for line in lines[200:]] == [(1.0, "none"), (None, "task")]
    said = obey(["verify", "numeric", "--file", str(file)], capsys, code=1)
    assert "202" in said and "fault: task" in said and "no score" in said


def test_verify_reads_standard_input(monkeypatch: pytest.MonkeyPatch, capsys: Said) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO('{"id": 7, "reference": "4", "answer": "4"}\n'))
    assert parsed(["verify", "numeric", "--file", "-"], capsys) == {"id": 7, "score": 1.0, "reason": "4 equals 4", "fault": "none"}


def test_answers_are_judged_at_once_in_order_and_not_far_ahead() -> None:
    inside, most, read, gate = 0, 0, 0, threading.Lock()

    def rows() -> Iterator[dict[str, Any]]:
        nonlocal read
        for i in range(120):
            read += 1
            yield {"id": i}

    def judge(row: dict[str, Any]) -> Verdict:
        nonlocal inside, most
        with gate:
            inside += 1
            most = max(most, inside)
        time.sleep(0.02 if row["id"] % 4 == 0 else 0.002)
        with gate:
            inside -= 1
        return Verdict(1.0, "judged")

    seen = []
    for row, _ in verify_in_order(rows(), judge, workers=4):
        seen.append(row["id"])
        assert read - len(seen) <= 4 * MAX_QUEUED_PER_WORKER
    assert seen == list(range(120)) and 2 <= most <= 4


def test_check_counts_and_fails(tmp_path: Path, capsys: Said) -> None:
    row = parsed(["check", "verifier", "numeric"], capsys)
    assert row["ok"] and all(check["ok"] for check in row["checks"]) and len(row["checks"]) >= 12
    defect = (
        "from rlvr import Verdict, Verifier\n\nclass Bad(Verifier):\n    def verify(self, task, answer):\n        return Verdict(1.0, '')\n"
    )
    (tmp_path / "bad.py").write_text(defect, "utf-8")
    bad = parsed(["check", "verifier", f"{tmp_path}/bad.py:Bad"], capsys, code=1)
    assert not bad["ok"] and any("no docstring" in check["detail"] for check in bad["checks"])
    said = obey(["check", "verifier", f"{tmp_path}/bad.py:Bad"], capsys, code=1)
    assert "✗ it says what it is for" in said and "fail" in said.splitlines()[-1]


def test_eval_reports_and_writes(tmp_path: Path, capsys: Said) -> None:
    for script, accuracy in (("gold", 1.0), ("noop", 0.0), ("random", 0.0)):
        row = parsed(["eval", "arithmetic", "--policy", f"scripted:{script}", "--tasks", "20"], capsys)["envs"]["arithmetic"]
        assert (row["mean_score"], row["tasks"], row["unscored"]) == (accuracy, 20, 0)
    out = tmp_path / "results"
    said = obey(["eval", "guess_number", "--policy", "scripted:gold", "--tasks", "5", "-n", "2", "--out", str(out)], capsys)
    assert "100.0%" in said and "10 samples" in said and str(out) in said
    assert len((out / "episodes.jsonl").read_text("utf-8").splitlines()) == 10


@pytest.mark.parametrize(("amount", "shown"), [(0, "0.00"), (1234.5, "1234.50"), (0.1, "0.10"), (0.099, "0.099"), (0.00123, "0.0012")])
def test_a_cost_says_something_however_small_it_is(amount: float, shown: str) -> None:
    assert format_cost(amount) == shown


def test_the_cost_is_shown_with_its_prices(capsys: Said) -> None:
    said = obey(["eval", "arithmetic", "--policy", "scripted:gold", "--tasks", "5", "--price", "0.25,1.25"], capsys)
    assert re.search(r", cost 0\.0{3,5}[1-9]\d? at 0\.25,1\.25 for a million tokens$", said.strip()), said


def test_replay_counts_and_fails(tmp_path: Path, capsys: Said) -> None:
    from rlvr.config.config import load_config

    out = tmp_path / "run"
    recipe = load_config("quickstart", ["tokenizer=bytes"])
    settings = [word for key, value in recipe.env.items() if key != "name" for word in ("--set", f"{key}={json.dumps(value)}")]
    room = str(recipe.rollout.max_new_tokens)
    obey(
        ["eval", "arithmetic", "--policy", "scripted:gold", "--tasks", "6", "--max-new-tokens", room, "--out", str(out), *settings], capsys
    )
    (out / "config.yaml").write_text(recipe.to_yaml(), "utf-8")
    assert parsed(["replay", str(out)], capsys)["mismatches"] == 0
    assert "6 episodes stepped again, 0 differ" in obey(["replay", str(out)], capsys)
    rows = [json.loads(line) for line in (out / "episodes.jsonl").read_text("utf-8").splitlines()]
    rows[2]["reward"] = 0.0
    (out / "episodes.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n", "utf-8")
    row = parsed(["replay", str(out)], capsys, code=1)
    assert (row["episodes"], row["mismatches"]) == (6, 1)
    assert "the reward is 1.0, recorded 0.0" in obey(["replay", str(out)], capsys, code=1)


def test_doctor_looks_at_everything(capsys: Said) -> None:
    row = parsed(["doctor"], capsys)
    found = {finding["name"]: finding for finding in row["findings"]}
    assert row["ok"] and found["torch"]["state"] == "ok" and found["python"]["detail"].endswith(os.uname().machine)
    assert {"docker engine", "accelerator", "disk", "envs", "verifiers"} <= set(found)
    assert all(finding["advice"] for finding in row["findings"] if finding["state"] == "broken")
    assert found["sandbox process"]["state"] == "ok"


def test_without_an_engine_one_message_says_so(tmp_path: Path, capsys: Said, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/nothing.sock")
    monkeypatch.setenv("PATH", str(tmp_path))
    for line in ("check sandbox docker", "eval code_contest --policy scripted:gold --tasks 1"):
        assert run_command(line.split()) == 2
        said = capsys.readouterr().err
        assert "nothing.sock" in said and "start Docker" in said and said.count("\n") == 1
    found = {finding["name"]: finding for finding in parsed(["doctor"], capsys)["findings"]}
    assert found["sandbox docker"]["state"] == "missing" and "start Docker" in found["sandbox docker"]["advice"]


@pytest.mark.slow
def test_a_broken_plugin_of_another_package_is_listed_with_its_error(tmp_path: Path) -> None:
    package = tmp_path / "broken-0.1.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 0.1\n", "utf-8")
    (package / "entry_points.txt").write_text(
        "[rlvr.envs]\ncracked = cracked_module:Env\n[rlvr.verifiers]\nnumeric = cracked_module:V\n", "utf-8"
    )
    (tmp_path / "cracked_module.py").write_text("raise RuntimeError('cracked')\n", "utf-8")
    code = """
from rlvr.cli.commands import run_command
for line in ("list envs --json", "list verifiers --json", "doctor --json", "eval cracked --policy scripted:gold"):
    print("code", run_command(line.split()), flush=True)
"""
    env = os.environ | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{PACKAGE_FOLDER.parent}"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, env=env)
    lines = done.stdout.splitlines()
    assert lines[1::2] == ["code 0", "code 0", "code 1"] and lines[-1] == "code 2", done.stdout + done.stderr
    envs = {row["name"]: row for row in json.loads(lines[0])}
    assert "RuntimeError: cracked" in envs["cracked"]["error"] and "error" not in envs["arithmetic"]
    verifiers = {row["name"]: row for row in json.loads(lines[2])}
    assert "error" not in verifiers["numeric"] and "RuntimeError: cracked" in verifiers["broken:numeric"]["error"]
    assert "cracked" in done.stderr and "Traceback" not in done.stderr


def test_a_closed_pipe_is_no_error() -> None:
    env = os.environ | {"PYTHONPATH": str(PACKAGE_FOLDER.parent)}
    command = f"{sys.executable} -m rlvr list --json | head -c 10"
    done = subprocess.run(["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True, timeout=60, env=env)
    assert len(done.stdout) == 10 and done.stderr == "" and done.returncode == 0


def test_settings_are_yaml() -> None:
    read = parse_settings(["a=1", "b=1e-3", "c=[x, 2]", "d={name: exact, extractor: boxed}", "e=yes please", "f=", "g=a=b"])
    assert read == {
        "a": 1,
        "b": 0.001,
        "c": ["x", 2],
        "d": {"name": "exact", "extractor": "boxed"},
        "e": "yes please",
        "f": None,
        "g": "a=b",
    }


def test_the_version_is_one() -> None:
    import tomllib

    pyproject = tomllib.loads((PACKAGE_FOLDER.parent / "pyproject.toml").read_text("utf-8"))
    assert "version" in pyproject["project"]["dynamic"] and "version" not in pyproject["project"]
    assert pyproject["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "rlvr.__version__"}


@pytest.mark.parametrize("kind", ["env", "verifier", "sandbox", "sampler", "algorithm"])
def test_every_setting_is_explained(kind: str, capsys: Said) -> None:
    for entry in list_entries(kind):
        row = parsed(["show", kind, entry.name], capsys)
        assert [f"{entry.name}.{setting['name']}" for setting in row["settings"] if not setting["about"]] == []


def test_an_algorithm_shows_what_counts_in_it(capsys: Said) -> None:
    said = obey(["show", "algorithm", "grpo"], capsys)
    table, _, idle = said.partition("Used only together with other settings")
    assert "How far the ratio may fall below 1" in table and "kl_estimator" not in table and "kl_estimator" in idle
    assert "desirable_from" not in said and "2402.03300" in said and "differs from the paper" in said


def test_verify_passes_the_prompt_on(tmp_path: Path, capsys: Said) -> None:
    judge = tmp_path / "judge.py"
    judge.write_text(
        "import rlvr\n\n\nclass AsksForIt(rlvr.Verifier):\n"
        "    def verify(self, task, answer):\n        return rlvr.Verdict(float(answer in task.question), task.question)\n"
    )
    file = tmp_path / "rows.jsonl"
    rows: list[dict[str, Any]] = [
        {"prompt": "say cat"},
        {"prompt": [{"role": "system", "content": "x"}, {"role": "user", "content": "a cat"}]},
        {},
    ]
    file.write_text("\n".join(json.dumps({"id": k, "reference": "", "answer": "cat"} | row) for k, row in enumerate(rows)))
    lines = [json.loads(line) for line in obey(["verify", f"{judge}:AsksForIt", "--file", str(file), "--json"], capsys).splitlines()]
    assert [(line["score"], line["reason"]) for line in lines] == [(1.0, "say cat"), (1.0, "a cat"), (0.0, "?")]
    one = ["verify", f"{judge}:AsksForIt", "--reference", "", "--answer", "cat", "--prompt", "a cat?"]
    assert parsed(one, capsys)["score"] == 1.0
    file.write_text('{"id": 1, "reference": "", "answer": "cat", "prompt": 7}')
    assert run_command(["verify", f"{judge}:AsksForIt", "--file", str(file)]) == 2
    assert "the prompt is 7; it must be a text" in capsys.readouterr().err
