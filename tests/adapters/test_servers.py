"""OpenEnv and aviary, called as they call: with stand-ins of their published signatures."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from rlvr.adapters import aviary, openenv
from rlvr.adapters.exporting import export_env
from rlvr.adapters.rows import rows_of
from rlvr.dialects.table import get
from rlvr.errors import ConfigError, EnvError
from rlvr.turns import Call
from tests.adapters import stand_ins
from tests.adapters.test_exporting import WORLDS, loaded, stand_in
from tests.adapters.worlds import Counts, Twice, Watched
from tests.fixtures.worlds import Unable


def server(env: Any) -> Any:
    seen = type("Seen", (stand_ins.OpenAction,), {"__annotations__": {"text": str}, "text": ""})
    return openenv.environment_of(env, stand_ins.OpenEnvironment, seen, SimpleNamespace)()


def test_openenv_plays_the_conversation_of_a_row() -> None:
    made, (row,) = server(Twice()), rows_of(Twice(), "train", 1, start=7)
    assert made.reset(**row).text == "What is 7?"
    first = made.step(SimpleNamespace(text="7"))
    assert (first.text, first.done, first.reward) == ("Are you sure?", False, None)
    last = made.step(SimpleNamespace(text="7"), timeout_s=5.0)
    assert (last.done, last.reward, made.state.step_count) == (True, 1.0, 2)
    assert made.reset(seed=1008, episode_id="e").text == "What is 8?" and made.state.episode_id == "e"
    made.close()


def test_openenv_has_tools_in_the_text_and_keeps_sessions_apart() -> None:
    env = Counts()
    one, other = server(env), server(env)
    assert "add" in one.reset(index=7).text and "Count to 7." in other.reset(index=7).text
    add = get("fenced").write([Call("0.0", "add", {"number": 3})], env.tools[0].specs())
    assert "The count is 3." in one.step(SimpleNamespace(text=add)).text
    assert "The count is 3." in other.step(SimpleNamespace(text=add)).text, "each session has a counter of its own"
    assert "The count is 6." in one.step(SimpleNamespace(text=add)).text
    last = one.step(SimpleNamespace(text="7"))
    assert (last.done, last.reward) == (True, 1.0)
    other.close()
    one.close()
    assert not Watched.alive


def test_openenv_is_told_of_a_missing_score_and_of_a_row_that_names_no_task() -> None:
    made = server(Counts(verifier=Unable()))
    made.reset(index=7)
    with pytest.raises(EnvError, match="OpenEnv has no way"):
        made.step(SimpleNamespace(text="7"))
    with pytest.raises(ConfigError, match="names no task"):
        made.reset()
    with pytest.raises(ConfigError, match="write the rows again"):
        made.reset(index=7, prompt=[{"role": "user", "content": "Count to 8."}])
    with pytest.raises(EnvError, match="before reset"):
        server(Twice()).step(SimpleNamespace(text="7"))


def bird(env: Any, index: int = 7) -> Any:
    parts: dict[str, Any] = {"message": stand_ins.AviaryMessage, "response": stand_ins.AviaryMessage, "tool": stand_ins.AviaryTool}
    return aviary.environment_of(env, stand_ins.AviaryEnvironment, **parts)("train", index)


def calling(**arguments: Any) -> Any:
    call = SimpleNamespace(id="c1", function=SimpleNamespace(name="add", arguments=arguments))
    return SimpleNamespace(content=None, tool_calls=[call])


def test_aviary_runs_tools_and_judges_the_text() -> None:
    async def played(last: str) -> Any:
        made = bird(Counts())
        messages, tools = await made.reset()
        assert messages[-1].content == "Count to 7." and [tool.function["name"] for tool in tools] == ["add"]
        (result,), reward, done, _ = await made.step(calling(number=7))
        assert (result.content, result.tool_call_id, reward, done) == ("The count is 7. ", "c1", 0.0, False)
        assert await made.get_id() == "counts/train/7"
        return await made.step(SimpleNamespace(content=last))

    assert asyncio.run(played("7")) == ([], 1.0, True, False)
    assert asyncio.run(played("6")) == ([], 0.0, True, False)
    assert not Watched.alive


def test_aviary_is_told_of_a_missing_score() -> None:
    async def played() -> None:
        made = bird(Counts(verifier=Unable()))
        await made.reset()
        await made.step(SimpleNamespace(content="7"))

    with pytest.raises(EnvError, match="aviary has no way"):
        asyncio.run(played())


def test_openenv_file(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    parts: dict[str, Any] = {"Action": stand_ins.OpenAction, "Observation": stand_ins.OpenAction, "Environment": stand_ins.OpenEnvironment}
    parts |= {"State": SimpleNamespace, "create_fastapi_app": lambda *given, **named: given}
    stand_in(monkeypatch, openenv__core__env_server=parts)
    export_env(f"{WORLDS}:First", "openenv", tmp_path / "out", count=4)
    made = loaded(tmp_path / "out", "rlvr_first", monkeypatch)
    kind, said, seen = made.app
    assert kind().reset(index=1).text == made.environment.task("train", 1).question
    assert set(said.model_fields) - set(seen.model_fields) == set() and kind.__module__ == "rlvr_first"


def test_aviary_file(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    class Generic:
        def __class_getitem__(cls, _: Any) -> type:
            return cls

    parts = {"Environment": stand_ins.AviaryEnvironment, "Message": stand_ins.AviaryMessage, "Tool": stand_ins.AviaryTool}
    stand_in(monkeypatch, aviary__core=parts | {"ToolResponseMessage": stand_ins.AviaryMessage, "TaskDataset": Generic})
    export_env(f"{WORLDS}:First", "aviary", tmp_path / "out", count=4)
    made = loaded(tmp_path / "out", "rlvr_first", monkeypatch)
    tasks = made.RlvrTasks()
    assert len(tasks) == 4 and tasks.get_new_env_by_idx(3).task.id == made.environment.task("train", 3).id
    with pytest.raises(IndexError):
        tasks.get_new_env_by_idx(4)
