"""Built tasks on the disk, in a folder by the digest of the project and the settings."""

from __future__ import annotations

import base64
import fcntl
import gzip
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path

from rlvr.envs._repository.building import Build, BuildReport, RepositoryTask
from rlvr.envs._repository.project import Project
from rlvr.errors import ConfigError


def get_default_folder() -> Path:
    """Return the folder for built tasks: `rlvr/repository` in the user's cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rlvr" / "repository"


class StoredTasks:
    """The tasks of a build, read from its folder."""

    def __init__(self, folder: Path, digest: str) -> None:
        """Read the tasks and the report.

        Raises:
            ConfigError: the folder is damaged, or no task can be built from the project.
        """
        self.folder, self.digest = folder, digest
        try:
            rows = json.loads((folder / "tasks.json").read_text("utf-8"))
            self.report = BuildReport(**json.loads((folder / "report.json").read_text("utf-8")))
            tasks = [RepositoryTask(**{**row, "functions": [tuple(one) for one in row["functions"]]}) for row in rows]
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise ConfigError(
                f"the built tasks in {folder} cannot be read ({error}); delete the folder, and they are built again"
            ) from None
        if self.report.refusal:
            raise ConfigError(
                f"no tasks can be built from {self.report.project}: {self.report.refusal}; {folder / 'report.json'} says more"
            )
        self.framework = self.report.framework
        self.by_split = {split: [task for task in tasks if task.split == split] for split in ("train", "test")}
        self._by_key = {task.key: task for task in tasks}
        self.get_project: Callable[[str], Project] = lru_cache(maxsize=64)(self._read_project)

    def get(self, key: str) -> RepositoryTask | None:
        """Return the task of that key, or None."""
        return self._by_key.get(key)

    def _read_project(self, tree: str) -> Project:
        with gzip.open(self.folder / "trees" / f"{tree}.json.gz") as file:
            files = json.load(file)
        return Project(self.report.project, {path: base64.b64decode(data) for path, data in files.items()})


def load_or_build(folder: Path, digest: str, build: Callable[[], Build]) -> StoredTasks:
    """Return the stored tasks of a digest, and build them first if they are not there. Other processes wait for the build."""
    place = folder / digest
    if not place.is_dir():
        with _lock(folder, digest):
            if not place.is_dir():
                _store(place, build())
    return StoredTasks(place, digest)


@contextmanager
def _lock(folder: Path, digest: str) -> Iterator[None]:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = open(folder / f"{digest}.lock", "w")  # noqa: SIM115
    except OSError as error:
        raise ConfigError(f"tasks cannot be stored in {folder} ({error.strerror}); set cache to a folder that can be written") from None
    with file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _store(place: Path, build: Build) -> None:
    made = Path(tempfile.mkdtemp(dir=place.parent, prefix=f"{place.name}."))
    try:
        (made / "trees").mkdir()
        for tree in {task.tree for task in build.tasks}:
            files = {path: base64.b64encode(data).decode() for path, data in build.trees[tree].files.items()}
            (made / "trees" / f"{tree}.json.gz").write_bytes(gzip.compress(json.dumps(files).encode(), mtime=0))
        (made / "tasks.json").write_text(json.dumps([asdict(task) for task in build.tasks], indent=1), "utf-8")
        (made / "report.json").write_text(json.dumps({**asdict(build.report), "dropped": build.report.dropped}, indent=1), "utf-8")
        made.chmod(0o755)
        os.replace(made, place)
    except BaseException:
        shutil.rmtree(made, ignore_errors=True)
        raise
