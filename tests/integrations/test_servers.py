"""OpenEnv and aviary, called as they call: with stand-ins of their published signatures."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest

from rlvr.chat.dialects.table import get_dialect
from rlvr.errors import ConfigError, EnvError
from rlvr.integrations import aviary, openenv
from rlvr.integrations.exporting import export_env
from rlvr.integrations.rows import make_rows
from rlvr.turns import Call
from tests.fixtures.worlds import Unable
from tests.integrations import stand_ins
from tests.integrations.test_exporting import WORLDS, loaded, stand_in
from tests.integrations.worlds import Counts, Twice, Watched


def server(env: Any) -> Any:
    seen = type("Seen", (stand_ins.OpenAction,), {"__annotations__": {"text": str}, "text": ""})
    return openenv.make_environment_class(env, stand_ins.OpenEnvironment, seen, SimpleNamespace)()


def test_openenv_plays_the_conversation_of_a_row() -> None:
    made, (row,) = server(Twice()), make_rows(Twice(), "train", 1, start=7)
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
    add = get_dialect("fenced").format_calls([Call("0.0", "add", {"number": 3})], env.tools[0].specs())
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
    with pytest.raises(EnvError, match="step was called before reset"):
        server(Twice()).step(SimpleNamespace(text="7"))


@pytest.mark.parametrize("seed", ["7", True, 7.5])
def test_openenv_refuses_a_seed_that_is_no_whole_number(seed: Any) -> None:
    with pytest.raises(ConfigError, match=r"the seed of a reset is .* it must be a whole number"):
        server(Twice()).reset(seed=seed)


def test_openenv_has_no_conversation_after_a_reset_that_failed_or_a_close() -> None:
    made = server(Counts())
    for ending in (lambda: made.reset(split="nowhere", index=1), lambda: made.reset(index=True), lambda: made.reset(seed="7"), made.close):
        made.reset(index=7)
        with contextlib.suppress(ConfigError):
            ending()
        with pytest.raises(EnvError, match="there is no conversation"):
            made.step(SimpleNamespace(text="7"))
        assert made.state.step_count == 0
    assert not Watched.alive


def test_openenv_draws_from_a_split_that_is_smaller_than_the_count() -> None:
    class Few(Twice):
        def num_tasks(self, split: str) -> int:
            return 3

    assert server(Few()).reset(seed=7).text == "What is 1?"


def test_openenv_takes_texts_for_turns() -> None:
    made = server(Twice())
    made.reset(index=7)
    for text in (7, None, ["7"]):
        with pytest.raises(ConfigError, match="it must be a string"):
            made.step(SimpleNamespace(text=text))
    assert made.state.step_count == 0, "what is refused is no turn"


def test_two_turns_at_once_are_refused_and_break_nothing() -> None:
    class Slow(Twice):
        entered, goes = threading.Event(), threading.Event()

        def reply(self, task: Any, said: Any) -> str | None:
            self.entered.set()
            assert self.goes.wait(10)
            return super().reply(task, said)

    made = server(Slow())
    made.reset(index=7)
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(made.step, SimpleNamespace(text="7"))
        assert Slow.entered.wait(10)
        with pytest.raises(EnvError, match="another turn of the conversation about 'twice/train/7' is being handled"):
            made.step(SimpleNamespace(text="8"))
        Slow.goes.set()
        assert first.result(10).text == "Are you sure?"
    assert made.step(SimpleNamespace(text="7")).reward == 1.0


def bird(env: Any, index: int = 7) -> Any:
    parts: dict[str, Any] = {"message": stand_ins.AviaryMessage, "response": stand_ins.AviaryMessage, "tool": stand_ins.AviaryTool}
    return aviary.make_environment_class(env, stand_ins.AviaryEnvironment, **parts)("train", index)


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


def test_aviary_reads_parts_of_text_and_has_no_conversation_after_close() -> None:
    async def played() -> Any:
        made = bird(Counts())
        await made.reset()
        await made.close()
        with pytest.raises(EnvError, match="there is no conversation"):
            await made.step(SimpleNamespace(content="7"))
        await made.reset()
        for role in ("tool", "system"):
            with pytest.raises(ConfigError, match=f"a message of role '{role}'"):
                await made.step(SimpleNamespace(role=role, content="7"))
        parts = SimpleNamespace(content='[{"type": "text", "text": "7"}]', content_is_json_str=True)
        return await made.step(parts)

    assert asyncio.run(played()) == ([], 1.0, True, False)
    assert not Watched.alive


def test_aviary_closes_a_session_that_opens_after_its_reset_was_given_up() -> None:
    class Late(Counts):
        entered, goes = threading.Event(), threading.Event()

        def new_session(self, task: Any, *, seed: int) -> Any:
            self.entered.set()
            assert self.goes.wait(10)
            return super().new_session(task, seed=seed)

    async def given_up() -> None:
        opening = asyncio.ensure_future(bird(Late()).reset())
        assert await asyncio.to_thread(Late.entered.wait, 10)
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening

    asyncio.run(given_up())
    Late.goes.set()
    end = time.monotonic() + 10
    while (not Watched.begun or Watched.alive) and time.monotonic() < end:
        time.sleep(0.01)
    assert Watched.begun and not Watched.alive


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
