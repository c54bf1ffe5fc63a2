"""The process that holds other people's code: deadlines, deaths, isolation, and nothing left behind."""

from __future__ import annotations

import os
import signal
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rlvr.envs.external._foreign_host import ForeignHost, ForeignProcessLost, ForeignRaised
from rlvr.envs.external.reasoning_gym import ReasoningGym
from rlvr.errors import ConfigError, MissingExtra, PluginLoadError


@pytest.fixture(scope="module")
def host() -> Iterator[ForeignHost]:
    made = ForeignHost("tests.fixtures.theirs.odd_worlds:Odd", extra="odd", call_timeout_s=20.0)
    yield made
    made.close()


def gone(pid: int) -> bool:
    """Whether a process ends within a while."""
    for _ in range(200):
        try:
            if "\nState:\tZ" in Path(f"/proc/{pid}/status").read_text():
                return True
        except (FileNotFoundError, ProcessLookupError):  # it may end between opening and reading
            return True
        time.sleep(0.02)
    return False


@pytest.mark.parametrize("whole", [True, False])
def test_worlds_do_not_share_the_position_in_a_file_that_was_loaded(tmp_path: Path, whole: bool) -> None:
    (tmp_path / "lines").write_text("one\ntwo\n")
    given: dict[str, Any] = {"path": str(tmp_path / "lines"), "whole": whole}
    host = ForeignHost("tests.fixtures.theirs.odd_worlds:Lines", extra="odd", prepare_args=given)
    try:
        assert host.ensure_started()["kept"] is whole, "an open file is not shared, and what was read from it is"
        with host.new_instance(**given) as first, host.new_instance(**given) as second:
            assert first.call("line") == "one\n" == second.call("line")
            assert first.call("line") == "two\n"
    finally:
        host.close()


def test_a_forked_child_has_a_process_of_its_own(host: ForeignHost) -> None:
    with host.new_instance() as world:
        before = world.call("pid")
        said, told = os.pipe()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of a fork beside threads
            child = os.fork()
        if child == 0:
            try:
                signal.alarm(30)
                with host.new_instance() as own:
                    os.write(told, f"{own.call('twice', number=4)}".encode())
                host.close()
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        os.close(told)
        assert os.read(said, 100) == b"8"
        os.close(said)
        assert world.call("pid") == before, "the parent's worlds live on"
        with host.new_instance() as other:
            assert other.call("twice", number=4) == 8


def test_what_cannot_be_written_as_json_is_refused_and_ends_nothing(host: ForeignHost) -> None:
    deep: list[object] = []
    for _ in range(5000):
        deep = [deep]
    with host.new_instance() as world:
        for wrong in (deep, object(), {1, 2}):
            with pytest.raises(ForeignRaised, match="cannot be written as JSON"):
                world.call("twice", number=wrong)
        assert world.call("twice", number=4) == 8


def test_what_passes_is_json_and_what_is_printed_stays_there(host: ForeignHost) -> None:
    assert host.ensure_started() == {"version": "1"}
    with host.new_instance() as world:
        assert world.call("twice", number=4) == 8
        assert world.call("twice", number=float("inf")) == float("inf")


def test_what_raises_is_said_and_the_world_lives_on(host: ForeignHost) -> None:
    with pytest.raises(ForeignRaised, match="ValueError: no such mode"):
        host.new_instance(mode="raises")
    with host.new_instance() as world:
        for method in ("nothing", "exit", "strange"):
            with pytest.raises(ForeignRaised):
                world.call(method)
        assert world.call("twice", number=1) == 2


def test_a_world_that_hangs_is_killed_and_the_others_are_not(host: ForeignHost) -> None:
    with host.new_instance() as other, host.new_instance() as world:
        pid = world.call("pid")
        with pytest.raises(ForeignProcessLost, match=r"sleep returned nothing within 0\.3 s"):
            world.call("sleep", timeout_s=0.3, seconds=60)
        assert gone(pid)
        with pytest.raises(ForeignProcessLost, match="has ended"):
            world.call("twice", number=1)
        assert other.call("twice", number=1) == 2


@pytest.mark.parametrize("method", ["leave", "huge"])
def test_a_world_that_dies_or_floods_is_an_error_of_its_own(host: ForeignHost, method: str) -> None:
    with host.new_instance() as other, host.new_instance() as world:
        with pytest.raises(ForeignProcessLost, match="the process of this instance died"):
            world.call(method)
        assert other.call("twice", number=1) == 2


def test_memory_has_a_limit(host: ForeignHost) -> None:
    with host.new_instance() as world, pytest.raises(ForeignRaised, match="MemoryError"):
        world.call("fill")


def test_worlds_do_not_share_the_global_generator(host: ForeignHost) -> None:
    with host.new_instance() as one, host.new_instance() as other:
        drawn = [one.call("draw") for _ in range(3)]
        assert [other.call("draw") for _ in range(3)] == drawn


def test_closing_ends_every_process() -> None:
    made = ForeignHost("tests.fixtures.theirs.odd_worlds:Odd", extra="odd")
    worlds = [made.new_instance() for _ in range(3)]
    pids = [world.call("pid") for world in worlds]
    worlds[0].close()
    assert gone(pids[0]) and not gone_now(pids[1])
    made.close()
    made.close()
    assert all(gone(pid) for pid in pids)


def gone_now(pid: int) -> bool:
    return not Path(f"/proc/{pid}").exists()


def test_a_dead_host_is_started_again() -> None:
    made = ForeignHost("tests.fixtures.theirs.odd_worlds:Odd", extra="odd")
    with made.new_instance() as world:
        parent = int(next(line.split()[1] for line in Path(f"/proc/{world.call('pid')}/status").read_text().splitlines() if "PPid" in line))
        os.kill(parent, 9)
        with pytest.raises(ForeignProcessLost):
            world.call("sleep", seconds=60)  # a world dies with its host
    with made.new_instance() as world:
        assert world.call("twice", number=2) == 4
    made.close()


def test_a_missing_package_and_a_broken_one_are_one_message_each() -> None:
    with pytest.raises(MissingExtra, match=r"a_package_that_is_not_there is not installed; `pip install .*\[odd\]"):
        ForeignHost("a_package_that_is_not_there.worlds:World", extra="odd").new_instance()
    made = ForeignHost("tests.fixtures.theirs.odd_worlds:Odd", extra="odd")
    with pytest.raises(MissingExtra, match="a_package_that_is_not_there"):
        made.new_instance(mode="missing")
    made.close()
    with pytest.raises(PluginLoadError, match="RuntimeError: it needs another version; try another version"):
        ForeignHost("tests.fixtures.theirs.odd_worlds:Broken", extra="odd").ensure_started()


def test_a_package_that_another_interpreter_lacks_is_said_with_that_interpreter(tmp_path: Path) -> None:
    bare = tmp_path / "python"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    bare.chmod(0o755)
    env = ReasoningGym(sandbox=None, dataset="gcd", python=str(bare))  # type: ignore[arg-type]
    try:
        with pytest.raises(ConfigError, match=f"reasoning_gym is not installed for python={bare}; install it there, or ") as raised:
            env.prepare()
        assert not isinstance(raised.value, MissingExtra)
    finally:
        env.close()
