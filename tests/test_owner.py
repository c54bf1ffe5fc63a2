"""Whoever is dead is known to be, and what it left goes; what belongs to the living, or to another machine, stays."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from rlvr.owner import NOTE, dead, own_folder, owner, place, sweep


def test_only_what_the_dead_of_this_machine_left_is_swept(tmp_path: Path) -> None:
    gone = subprocess.run(
        [sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, text=True, check=True
    ).stdout.strip()
    labels = {
        "dead": "|".join((*place(), gone, "1")),
        "another": "|".join((*place(), str(os.getpid()), "1")),  # our number, used again: whoever it was had another birth
        "rebooted": "|".join((place()[0], "before", place()[2], str(os.getpid()), "1")),
        "far": "|".join(("another-machine", *place()[1:], gone, "1")),
        "torn": "",
    }
    for name, label in labels.items():
        (tmp_path / f"ours-{name}").mkdir()
        (tmp_path / f"ours-{name}" / NOTE).write_text(label)
    (tmp_path / "ours-unsigned").mkdir()
    (tmp_path / "theirs-dead").mkdir()
    (tmp_path / "theirs-dead" / NOTE).write_text(labels["dead"])
    mine = own_folder("ours-", str(tmp_path))
    assert (mine / NOTE).read_text() == owner(os.getpid()) and not dead(owner(os.getpid()))
    assert sweep("ours-", str(tmp_path)) == 3
    assert {path.name for path in tmp_path.iterdir()} == {"ours-far", "ours-torn", "ours-unsigned", "theirs-dead", mine.name}
