"""`rlvr export-env`: every file is Python that runs next to the framework (here: stand-ins), and loads the environment as it was set."""

from __future__ import annotations

import asyncio
import importlib
import json
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import yaml

from rlvr.cli.commands import run_command
from rlvr.errors import ConfigError
from rlvr.integrations.exporting import export_env
from rlvr.integrations.formats import FORMATS
from tests.fixtures.worlds import First
from tests.integrations import stand_ins
from tests.integrations.worlds import Engine, config, tokenizer, wire

WORLDS = "tests/fixtures/worlds.py"


class Registry(dict[str, Any]):
    """`register` of skyrl-gym."""

    def named(self, *, id: str, entry_point: str) -> None:
        self[id] = entry_point


def stand_in(monkeypatch: pytest.MonkeyPatch, **modules: dict[str, Any]) -> None:
    """Put modules with these names in the place of the frameworks; `__` stands for a dot."""
    for name, parts in modules.items():
        dotted = name.replace("__", ".")
        for depth in range(1, dotted.count(".") + 1):
            above = ".".join(dotted.split(".")[:depth])
            if above not in sys.modules:
                monkeypatch.setitem(sys.modules, above, ModuleType(above))
        made = ModuleType(dotted)
        vars(made).update(parts)
        monkeypatch.setitem(sys.modules, dotted, made)


def loaded(folder: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.delitem(sys.modules, name, raising=False)
    return importlib.import_module(name)


def test_a_file_says_what_is_missing_before_the_first_conversation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "late.py").write_text(
        "from rlvr.errors import ConfigError\nfrom tests.fixtures.worlds import First\n\n\nclass Late(First):\n"
        "    def prepare(self) -> None:\n        raise ConfigError('version 2 is installed, 1 is needed')\n"
    )
    export_env(f"{tmp_path / 'late.py'}:Late", "trl", tmp_path / "out", count=2)
    with pytest.raises(ConfigError, match="version 2 is installed"):
        loaded(tmp_path / "out", "rlvr_late", monkeypatch)


@pytest.mark.parametrize("to", FORMATS)
def test_every_file_is_what_its_name_says(to: str, tmp_path: Path) -> None:
    written = export_env("arithmetic", to, tmp_path / "out", settings={"levels": ["2+2"]}, count=3)
    for name in written.files:
        text = (written.folder / name).read_bytes()
        if name.endswith(".py"):
            compile(text, name, "exec")
            assert b"'levels': ['2+2']" in text and b"$" not in text
        elif name.endswith(".yaml") and to != "lm-eval":
            yaml.safe_load(text)
        elif name.endswith(".jsonl"):
            rows = [json.loads(line) for line in text.splitlines()]
            assert len(rows) == 3 and "reference" not in rows[0]


def test_trl_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    export_env(f"{WORLDS}:First", "trl", tmp_path / "out", count=4)
    made = loaded(tmp_path / "out", "rlvr_first", monkeypatch)
    (reward,) = made.reward_funcs()
    gold = [[{"role": "assistant", "content": First().gold(First().task("train", i))}] for i in range(4)]
    given = {key: [row[key] for row in made.rows] for key in ("split", "index")}
    assert reward(prompts=[row["prompt"] for row in made.rows], completions=gold, **given) == [1.0] * 4
    assert [json.loads(line) for line in (tmp_path / "out" / "rows.jsonl").read_text().splitlines()] == made.rows
    assert made.rollout_func().tasks


def test_verl_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loops = stand_ins.AgentLoops()
    parts = {"AgentLoopBase": stand_ins.AgentLoopBase, "AgentLoopOutput": stand_ins.AgentLoopOutput, "register": loops.register}
    stand_in(monkeypatch, verl__experimental__agent_loop__agent_loop=parts)
    export_env(f"{WORLDS}:First", "verl", tmp_path / "out", count=4)
    made = loaded(tmp_path / "out", "rlvr_first", monkeypatch)
    assert loops["rlvr"] == "rlvr_first.RlvrLoop", "verl imports the class by this name, for each row"
    (named,) = yaml.safe_load((tmp_path / "out" / "agent_loop.yaml").read_text())
    assert named["_target_"] == "rlvr_first.RlvrLoop"
    row = json.loads((tmp_path / "out" / "rows.jsonl").read_text().splitlines()[2])
    label = row["reward_model"]["ground_truth"]
    assert made.compute_score("rlvr", First().gold(First().task("train", 2)), label, row["extra_info"]) == {"score": 1.0}
    manager = stand_ins.ServerManager(Engine(wire(First(), ["x"])))
    parts = {"processor": None, "dataset_cls": None, "data_config": None, "hf_model_type": "llama", "tools": None}
    played = loops.made("rlvr", trainer_config=config(), server_manager=manager, tokenizer=tokenizer(), **parts)
    assert asyncio.run(played.run({}, raw_prompt=row["prompt"], **row)).reward_score == 0.0


def test_openrlhf_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch, openrlhf__utils__agent={"AgentExecutorBase": stand_ins.AgentExecutorBase})
    export_env(f"{WORLDS}:First", "openrlhf", tmp_path / "out", count=4)
    made = loaded(tmp_path / "out", "rlvr_first", monkeypatch)
    assert issubclass(made.AgentExecutor, stand_ins.AgentExecutorBase) and made.AgentExecutor.__module__ == "rlvr_first"
    row = json.loads((tmp_path / "out" / "rows.jsonl").read_text().splitlines()[0])
    assert made.reward_func(["p x"], ["p "], [row["label"]])["rewards"].tolist() == [0.0]


def test_skyrl_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    register = Registry()
    texts = {"BaseTextEnv": stand_ins.BaseTextEnv, "BaseTextEnvStepOutput": stand_ins.BaseTextEnvStepOutput}
    stand_in(monkeypatch, skyrl_gym={"register": register.named}, skyrl_gym__envs__base_text_env=texts)
    stand_in(monkeypatch, skyrl__train__generators__base={"GeneratorInterface": stand_ins.GeneratorInterface})
    export_env(f"{WORLDS}:First", "skyrl", tmp_path / "out", count=4)
    made = loaded(tmp_path / "out", "rlvr_first", monkeypatch)
    assert register["rlvr"] == "rlvr_first:RlvrEnv" and made.RlvrEnv.__module__ == "rlvr_first"
    assert isinstance(made.generator(None, tokenizer()), stand_ins.GeneratorInterface)


@pytest.mark.parametrize(("env", "table"), [("First", "orms"), ("Talk", "envs")])
def test_swift_file(env: str, table: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tables: dict[str, dict[str, Any]] = {"orms": {}, "envs": {}}
    stand_in(monkeypatch, swift__rewards={"ORM": stand_ins.ORM, "orms": tables["orms"]})
    stand_in(monkeypatch, swift__rollout__gym_env={"Env": stand_ins.Env, "envs": tables["envs"]})
    export_env(f"{WORLDS}:{env}", "ms-swift", tmp_path / "out", count=4)
    loaded(tmp_path / "out", f"rlvr_{env.lower()}", monkeypatch)
    assert [name for name, found in tables.items() if found] == [table]


def test_nemo_gym_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = {"SimpleResourcesServer": object, "BaseVerifyResponse": stand_ins.BaseVerifyResponse}
    stand_in(monkeypatch, nemo_gym__base_resources_server=parts, nemo_gym__server_utils={"SESSION_ID_KEY": "session_id"})
    export_env(f"{WORLDS}:First", "nemo-gym", tmp_path / "out", count=4)
    made = loaded(tmp_path / "out", "rlvr_first", monkeypatch)
    assert hasattr(made.RlvrResourcesServer, "verify")
    assert set(yaml.safe_load((tmp_path / "out" / "rlvr_first.yaml").read_text())) == {"rlvr_first", "rlvr_first_agent"}


def test_lm_eval_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    export_env(f"{WORLDS}:First", "lm-eval", tmp_path / "out", split="test", count=3)
    made = loaded(tmp_path / "out", "rlvr_first", monkeypatch)
    doc = made.custom_dataset()["test"][1]
    gold = First().gold(First().task("test", 1))
    assert made.process_results(doc, [gold]) == {"score": 1.0, "unscored": 0.0}
    assert made.doc_to_text(doc) == First().task("test", 1).question


def test_verifiers_file_needs_its_framework_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Generic:
        def __class_getitem__(cls, _: Any) -> type:
            return cls

    parts = {name: type(name, (Generic,), {}) for name in ("TaskData", "Task", "Taskset", "TasksetConfig", "Trace")}
    stand_in(monkeypatch, verifiers={}, verifiers__v1=parts | {"reward": lambda weight: lambda method: method})
    export_env(f"{WORLDS}:First", "verifiers", tmp_path / "out", count=3)
    made = loaded(tmp_path / "out", "rlvr_first", monkeypatch)
    assert made.__all__ == ["RlvrTaskset"] and issubclass(made.RlvrTaskset, parts["Taskset"])
    task = made.RlvrTask()
    task.data = SimpleNamespace(split="train", index=1)
    last = [SimpleNamespace(message={"role": "assistant", "content": First().gold(First().task("train", 1))})]
    assert asyncio.run(task.verdict(SimpleNamespace(nodes=last))) == 1.0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["arithmetic", "--to", "trll"], "did you mean 'trl'"),
        (["arithmetic", "--to", "trl", "--split", "dev"], "--split is 'dev'"),
        (["arithmetic", "--to", "trl", "--count", "0"], "--count is 0"),
        (["guess_number", "--to", "lm-eval"], "is a conversation"),
        (["arithmetic", "--to", "trl", "--set", "level=1"], "did you mean 'levels'"),
    ],
)
def test_what_cannot_be_exported_is_one_message(
    arguments: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(["export-env", *arguments, "--out", str(tmp_path / "out")]) == 2
    assert words in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "out").exists()


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(ConfigError, match="not an empty folder"):
        export_env("arithmetic", "trl", tmp_path, count=1)


def test_the_command_says_what_it_wrote(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["export-env", "arithmetic", "--to", "trl", "--count", "2", "--out", str(tmp_path / "out"), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["files"] == ["rlvr_arithmetic.py", "rows.jsonl"] and said["tasks"] == 2
