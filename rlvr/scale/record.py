"""What happened to the collectors of a run: `collectors.jsonl` in its folder, one row for each loss, call given up, and resume.

It tells what happened, not what was learned: a run that is resumed adds to it, and nothing is removed from it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

NAME = "collectors.jsonl"


class Record:
    """Appends rows to the record of a run. Until the run has a folder, they are kept.

    >>> Record(Path("runs/a")).add("lost", collector="c0.0", why="killed", words=["Killed"])            # doctest: +SKIP
    """

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder
        self._kept = list[Mapping[str, Any]]()

    def add(self, event: str, **facts: Any) -> None:
        """Add a row."""
        self._kept.append({"time": datetime.now(UTC).isoformat(timespec="milliseconds"), "event": event, **facts})
        self.write()

    def write(self) -> None:
        """Write what is kept, if the run has begun. A folder that cannot be written to does not end the run: its other logs do that."""
        if self.folder is None or not self._kept or not (self.folder / "config.yaml").is_file():
            return
        try:
            with (self.folder / NAME).open("a", encoding="utf-8", errors="backslashreplace") as file:
                file.writelines(json.dumps(row, ensure_ascii=False, default=str) + "\n" for row in self._kept)
        except OSError:
            return
        self._kept.clear()
