"""`rlvr new`: what it writes is installed for real, found, checked, evaluated and trained on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from rlvr.cli.commands import run_command
from rlvr.conformance import check_plugin, list_failures
from rlvr.registry.plugins import PACKAGE_FOLDER

TRAIN = "tokenizer=chars sft_warmup=null train.steps=1 eval.tasks=4 rollout.prompts_per_step=2 rollout.num_generations=2"


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def installed(desk: Path, *folders: str) -> dict[str, str]:
    """Install packages editable, beside the running environment and not into it; the variables of a process that sees them."""
    command = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-build-isolation",
        "--no-deps",
        "--no-index",
        "--disable-pip-version-check",
    ]
    editable = [word for folder in folders for word in ("--editable", folder)]
    done = subprocess.run([*command, "--prefix", str(desk / "place"), *editable], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    (site,) = (desk / "place").glob("lib/python*/site-packages")
    (desk / "hook").mkdir()
    (desk / "hook" / "sitecustomize.py").write_text(f"import site; site.addsitedir({str(site)!r})\n", "utf-8")
    return os.environ | {"PYTHONPATH": f"{desk / 'hook'}{os.pathsep}{PACKAGE_FOLDER.parent}", "OMP_NUM_THREADS": "1", "RLVR_TRACEBACK": ""}


@pytest.mark.parametrize("kind", ["env", "verifier", "tool", "sampler", "algorithm"])
def test_the_readme_of_a_package_links_nothing_that_is_not_there(kind: str, desk: Path) -> None:
    assert run_command(["new", kind, "my_quite_long_name"]) == 0
    text = (desk / "rlvr-my-quite-long-name" / "README.md").read_text("utf-8")
    assert f"rlvr check {kind} my_quite_long_name\n" in text and "http" not in text and "   " not in text and "$" not in text


@pytest.mark.slow
def test_a_new_package_is_installed_found_checked_and_trained_on(desk: Path) -> None:
    assert run_command(["new", "env", "my_doubling"]) == 0
    assert run_command(["new", "verifier", "my_words"]) == 0
    variables = installed(desk, "rlvr-my-doubling", "rlvr-my-words")
    commands = [
        "list envs --json",
        "list verifiers --json",
        "check env my_doubling --json",
        "check verifier my_words --json",
        "verify my_words --reference Paris --answer PARIS --json",
        "eval my_doubling --policy scripted:gold --tasks 20 --json",
        f"train quickstart env=my_doubling {TRAIN} --out run --json",
    ]
    code = f"from rlvr.cli.commands import run_command\nfor line in {commands!r}: print('code', run_command(line.split()), flush=True)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=200, env=variables, cwd=desk)
    lines = done.stdout.splitlines()
    assert [line for line in lines if line.startswith("code")] == ["code 0"] * len(commands), done.stdout + done.stderr
    envs, verifiers, env, verifier, verdict, evaluated, trained = (
        json.loads(lines[i - 1]) for i, line in enumerate(lines) if line == "code 0"
    )
    assert {"name": "my_doubling", "source": "rlvr-my-doubling"}.items() <= next(r for r in envs if r["name"] == "my_doubling").items()
    assert "my_words" in {row["name"] for row in verifiers}
    assert env["ok"] and verifier["ok"] and verdict["score"] == 1.0
    assert (evaluated["envs"]["my_doubling"]["mean_score"], evaluated["envs"]["my_doubling"]["samples"]) == (1.0, 20)
    assert (trained["status"], trained["steps"]) == ("finished", 1)
    own = [sys.executable, "-m", "pytest", "-q", "rlvr-my-words"]
    done = subprocess.run(own, capture_output=True, text=True, timeout=120, env=variables, cwd=desk)
    assert done.returncode == 0 and "1 passed" in done.stdout, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "package", "cls"),
    [*((kind, "rlvr_my_thing", "MyThing") for kind in ("env", "verifier", "tool", "sampler")), ("algorithm", "rlvr_my_thing", "make")],
)
def test_what_is_written_is_sound_as_it_stands(kind: str, package: str, cls: str, desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["new", kind, "my_thing", "--out", "here", "--json"]) == 0
    said: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert sorted(said["files"]) == sorted(str(p.relative_to(desk / "here")) for p in (desk / "here").rglob("*") if p.is_file())
    assert list_failures(check_plugin(kind, f"here/{package}/__init__.py:{cls}")) == []
    project = tomllib.loads((desk / "here" / "pyproject.toml").read_text("utf-8"))["project"]
    assert project["entry-points"] == {f"rlvr.{kind}s": {"my_thing": f"{package}:{cls}"}}
    config = PACKAGE_FOLDER.parent / "pyproject.toml"
    for tool in (["ruff", "check"], ["ruff", "format", "--check"]):
        done = subprocess.run(
            [sys.executable, "-m", *tool, "--config", str(config), f"here/{package}"], capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, done.stdout + done.stderr
    assert "$" not in (desk / "here" / "README.md").read_text("utf-8")


def test_a_new_sampler_passes_its_kit_and_a_run_samples_with_it(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["new", "sampler", "my_engine", "--out", "here"]) == 0
    assert "rollout.sampler=my_engine" in capsys.readouterr().out
    target = "here/rlvr_my_engine/__init__.py:MyEngine"
    found = check_plugin("sampler", target)
    assert list_failures(found) == [] and sum(not check.skipped for check in found) >= 13
    run = ["train", "quickstart", f"rollout.sampler={target}", "sft_warmup.max_steps=2", "train.steps=1", "eval.tasks=2"]
    assert run_command([*run, "rollout.prompts_per_step=2", "rollout.num_generations=2", "--out", "run", "--json"]) == 0


@pytest.mark.slow
@pytest.mark.parametrize("template", ["question", "conversation", "tools", "box"])
def test_each_template_of_an_environment_passes_its_kit_at_the_first_try(
    template: str, desk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(["new", "env", "my_thing", "--kind", template, "--out", "here", "--json"]) == 0
    capsys.readouterr()
    target = "here/rlvr_my_thing/__init__.py:MyThing"
    settings = {"sandbox": {"name": "process", "trusted": True}} if template == "box" else {}
    assert list_failures(check_plugin("env", target, **settings)) == []
    policies = ["gold"] if template in ("box", "tools") else ["gold", "random"]
    for policy in policies:
        given = ["--set", "sandbox={name: process, trusted: true}"] if settings else []
        assert run_command(["eval", target, "--policy", f"scripted:{policy}", "--tasks", "3", "--json", *given]) == 0
    config = PACKAGE_FOLDER.parent / "pyproject.toml"
    for tool in (["ruff", "check"], ["ruff", "format", "--check"]):
        command = [sys.executable, "-m", *tool, "--config", str(config), "here/rlvr_my_thing"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stdout + done.stderr


def test_a_plugin_of_another_kind_may_have_the_same_name(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["new", "env", "anagram"]) == 0
    assert run_command(["new", "verifier", "anagram"]) == 0
    assert (desk / "rlvr-anagram" / "rlvr_anagram").is_dir()
    project = tomllib.loads((desk / "rlvr-anagram-verifier" / "pyproject.toml").read_text("utf-8"))["project"]
    assert project["name"] == "rlvr-anagram-verifier"
    assert project["entry-points"] == {"rlvr.verifiers": {"anagram": "rlvr_anagram_verifier:Anagram"}}


@pytest.mark.parametrize(
    ("words", "said"), [(["env", "x", "--kind", "game"], "--kind is 'game'"), (["tool", "x", "--kind", "box"], "has only one")]
)
def test_a_wrong_template_is_a_usage_error(words: list[str], said: str, desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["new", *words]) == 2
    assert said in capsys.readouterr().err
