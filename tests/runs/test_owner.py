"""Whoever is dead is known to be, and what it left goes; what belongs to the living, or to another machine, stays."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rlvr.runs.folder_owner import (
    OWNER_FILE,
    create_owned_folder,
    force_remove_folder,
    get_owner_label,
    get_pid_scope,
    is_owner_dead,
    remove_orphaned_folders,
)
from rlvr.sandbox._inside.workdirs import empty_folders

PLAIN = 65534 if os.geteuid() == 0 else None
"""A user whom rights keep out."""


def test_only_what_the_dead_of_this_machine_left_is_swept(tmp_path: Path) -> None:
    gone = subprocess.run(
        [sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, text=True, check=True
    ).stdout.strip()
    labels = {
        "dead": "|".join((*get_pid_scope(), gone, "1")),
        "another": "|".join((*get_pid_scope(), str(os.getpid()), "1")),  # our number, used again: whoever it was had another birth
        "rebooted": "|".join((get_pid_scope()[0], "before", get_pid_scope()[2], str(os.getpid()), "1")),
        "far": "|".join(("another-machine", *get_pid_scope()[1:], gone, "1")),
        "torn": "",
    }
    for name, label in labels.items():
        (tmp_path / f"ours-{name}").mkdir()
        (tmp_path / f"ours-{name}" / OWNER_FILE).write_text(label)
    (tmp_path / "ours-unsigned").mkdir()
    (tmp_path / "theirs-dead").mkdir()
    (tmp_path / "theirs-dead" / OWNER_FILE).write_text(labels["dead"])
    mine = create_owned_folder("ours-", str(tmp_path))
    assert (mine / OWNER_FILE).read_text() == get_owner_label(os.getpid()) and not is_owner_dead(get_owner_label(os.getpid()))
    assert remove_orphaned_folders("ours-", str(tmp_path)) == 3
    assert {path.name for path in tmp_path.iterdir()} == {"ours-far", "ours-torn", "ours-unsigned", "theirs-dead", mine.name}


@pytest.fixture
def everybodys() -> Iterator[Path]:
    """A folder that every user reaches, which those of pytest are not."""
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o777)
        yield Path(name)


def as_plain_user(work: Callable[[], None]) -> None:
    """Run it in a process that is no longer root."""

    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            if PLAIN is not None:
                os.setgroups([])
                os.setresgid(PLAIN, PLAIN, PLAIN)
                os.setresuid(PLAIN, PLAIN, PLAIN)
            work()
            status = 0
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def shut_in(folder: Path) -> None:
    """What a program may leave: folders that not even their owner may enter."""
    (folder / "outer" / "inner").mkdir(parents=True)
    (folder / "outer" / "inner" / "file").touch()
    (folder / "link").symlink_to(folder.parent.parent)
    for path in ("outer/inner", "outer", "."):
        (folder / path).chmod(0)


@pytest.mark.parametrize(
    "removed",
    [force_remove_folder, lambda folder: remove_orphaned_folders("ours-", str(folder.parent))],
    ids=["by its owner", "by a sweep"],
)
def test_folders_that_a_program_shut_go_too(everybodys: Path, removed: Callable[[Path], Any]) -> None:
    def work() -> None:
        mine = create_owned_folder("ours-", str(everybodys))
        (mine / OWNER_FILE).write_text("|".join((*get_pid_scope(), str(os.getpid()), "1")))  # whose number we have now
        (mine / "work").mkdir()
        shut_in(mine / "work")
        (everybodys / "left").touch()
        removed(mine)

    as_plain_user(work)
    assert [path.name for path in everybodys.iterdir()] == ["left"] and everybodys.stat().st_mode & 0o777 == 0o777


def test_a_place_that_a_program_shut_is_emptied_for_the_next_one(everybodys: Path) -> None:
    def work() -> None:
        lent = everybodys / "lent"
        lent.mkdir()
        shut_in(lent)
        empty_folders([str(lent)], None, None)
        (everybodys / "emptied").touch()

    as_plain_user(work)
    assert {path.name for path in everybodys.iterdir()} == {"lent", "emptied"} and not list((everybodys / "lent").iterdir())


def test_a_folder_that_cannot_go_yet_goes_with_a_later_sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(20):  # whichever way a folder is read, in some of them the note comes before the rest
        folder = tmp_path / f"ours-{number}"
        folder.mkdir()
        (folder / OWNER_FILE).write_text("|".join((*get_pid_scope(), str(os.getpid()), "1")))
        (folder / f"stuck-{number}").mkdir()
    rmdir = os.rmdir

    def busy(path: Any, **how: Any) -> None:
        if "stuck" in str(path):
            raise OSError("it is in use")
        rmdir(path, **how)

    with monkeypatch.context() as patch:
        patch.setattr(os, "rmdir", busy)
        assert remove_orphaned_folders("ours-", str(tmp_path)) == 0
    assert remove_orphaned_folders("ours-", str(tmp_path)) == 20 and not list(tmp_path.iterdir())
