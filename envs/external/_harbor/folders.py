"""Read a task folder of Harbor or terminal-bench 0.2 into one record; unsupported folders raise an error of one sentence."""

from __future__ import annotations

import hashlib
import math
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

MAX_BYTES = 8_000_000
"""Largest size of the tests, or of the solution, of one folder."""
MAX_CONTEXT_BYTES = 1_000_000_000
"""Largest size of the build context of an image."""
IMAGE_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/:@-]*")
VARIABLE_PATTERN = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")
PATH_PATTERN = re.compile(r"/[A-Za-z0-9._-]+(?:/[A-Za-z0-9._-]+)*")


class UnsupportedTask(Exception):
    """Raised for a folder that is not supported; the message is one sentence."""


@dataclass(frozen=True)
class TaskFolder:
    """One task: its instruction, its environment and its tests.

    >>> TaskFolder("hello", "Write hello.txt.", "harbor").artifact_mode
    'shared'
    """

    name: str
    instruction: str
    task_format: str
    """harbor or terminal-bench."""
    environment: Path | None = None
    """The folder with the Dockerfile."""
    image: str = ""
    """An existing image that is used unchanged."""
    workdir: str = ""
    variables: Mapping[str, str] = field(default_factory=dict)
    tests: Mapping[str, bytes] = field(default_factory=dict)
    """The files of /tests."""
    test_script: str = "test.sh"
    """The file of `tests` that runs the verification."""
    test_variables: Mapping[str, str] = field(default_factory=dict)
    test_timeout_s: float = 600.0
    build_timeout_s: float = 600.0
    solution: Mapping[str, bytes] = field(default_factory=dict)
    solution_script: str = ""
    """The file of `solution` that solves the task; empty if there is none."""
    solution_variables: Mapping[str, str] = field(default_factory=dict)
    artifact_mode: str = "shared"
    """shared: all files of the working folder are verified; separate: only the artifacts."""
    artifacts: tuple[str, ...] = ()
    memory_mb: int = 1024
    metadata: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def digest(self) -> str:
        """Fingerprint, at reading time, of everything that affects a verdict."""
        said = hashlib.blake2b(
            repr((self.instruction, self.test_script, self.artifact_mode, self.artifacts, self.workdir)).encode(), digest_size=8
        )
        for name, data in sorted(self.tests.items()):
            said.update(f"{name} {len(data)} ".encode() + data)
        for name, path in _iter_files(self.environment, MAX_CONTEXT_BYTES) if self.environment else ():
            with path.open("rb") as file:
                said.update(f"{name} {hashlib.file_digest(file, 'sha256').hexdigest()} ".encode())
        return said.hexdigest()


def find_task_folders(root: Path) -> list[Path]:
    """Find the task folders in a folder, sorted by name; the folder itself if it is one."""
    if _is_task(root):
        return [root]
    return sorted(path for path in root.iterdir() if path.is_dir() and _is_task(path))


def read_task_folder(path: Path) -> TaskFolder:
    """Read the record of one folder. Raises UnsupportedTask if it needs unsupported features."""
    try:
        folder = _read_harbor(path) if (path / "task.toml").exists() else _read_terminal_bench(path)
        assert folder.digest  # computed now, so that errors in the folder are reported before a task is made
        return folder
    except (OSError, ValueError, TypeError, AttributeError, RecursionError, yaml.YAMLError) as error:
        raise UnsupportedTask(f"it cannot be read: {type(error).__name__}: {' '.join(str(error).split())}"[:300]) from error


def _read_files(folder: Path) -> dict[str, bytes]:
    """Read the files below a folder, by relative path."""
    return {name: path.read_bytes() for name, path in _iter_files(folder, MAX_BYTES)}


def _iter_files(folder: Path, max_bytes: int) -> Iterator[tuple[str, Path]]:
    """Yield the files below a folder with their relative paths. Links are followed only inside the folder."""
    root, size = folder.resolve(), 0
    for path in sorted(folder.rglob("*")):
        if not path.is_file():
            continue
        if not path.resolve().is_relative_to(root):
            raise UnsupportedTask(f"{path.relative_to(folder)} is a link that leads out of its folder")
        size += path.stat().st_size
        if size > max_bytes:
            raise UnsupportedTask(f"its folder {folder.name} has more than {max_bytes:,} bytes")
        yield path.relative_to(folder).as_posix(), path


def _is_task(path: Path) -> bool:
    return (path / "task.toml").exists() or (path / "task.yaml").exists()


def _read_harbor(path: Path) -> TaskFolder:
    about = tomllib.loads((path / "task.toml").read_text("utf-8"))
    place, agent, verifier = (_get_table(about, name) for name in ("environment", "agent", "verifier"))
    _check_supported(about, place, [agent, verifier, place], path)
    if not (path / "instruction.md").is_file():
        raise UnsupportedTask("it has no instruction.md")
    if not (path / "tests" / "test.sh").is_file():
        raise UnsupportedTask("it has no tests/test.sh")
    image, folder = str(place.get("docker_image") or ""), path / "environment"
    if not image and not (folder / "Dockerfile").is_file():
        raise UnsupportedTask("it has neither environment/Dockerfile nor [environment] docker_image")
    if image and not IMAGE_PATTERN.fullmatch(image):
        raise UnsupportedTask(f"[environment] docker_image is {image!r:.80}, which is no name of an image")
    mode = verifier.get("environment_mode", "shared")
    if mode not in ("shared", "separate"):
        raise UnsupportedTask(f"[verifier] environment_mode is {mode!r}; it must be 'shared' or 'separate'")
    artifacts = tuple(_parse_artifact(one) for one in about.get("artifacts", ()))
    solution = _read_files(path / "solution") if (path / "solution").is_dir() else {}
    return TaskFolder(
        name=path.name,
        instruction=(path / "instruction.md").read_text("utf-8").strip(),
        task_format="harbor",
        environment=None if image else folder,
        image=image,
        workdir=_parse_workdir(str(place.get("workdir") or "")),
        variables=_parse_variables(place.get("env", {})),
        tests=_read_files(path / "tests"),
        test_variables=_parse_variables(verifier.get("env", {})),
        test_timeout_s=_parse_seconds(verifier.get("timeout_sec", 600.0), "[verifier] timeout_sec"),
        build_timeout_s=_parse_seconds(place.get("build_timeout_sec", 600.0), "[environment] build_timeout_sec"),
        solution=solution,
        solution_script="solve.sh" if "solve.sh" in solution else "",
        solution_variables=_parse_variables(_get_table(about, "solution").get("env", {})),
        artifact_mode=mode,
        artifacts=artifacts,
        memory_mb=_parse_memory_mb(place),
        metadata={"difficulty": str(_get_table(about, "metadata").get("difficulty", ""))},
    )


def _check_supported(
    task_config: Mapping[str, Any], environment_table: Mapping[str, Any], tables: list[Mapping[str, Any]], path: Path
) -> None:
    """Raise UnsupportedTask for features that need a network, root, or several containers."""
    compose = any((path / "environment" / name).exists() for name in ("docker-compose.yaml", "docker-compose.yml"))
    verifier, networks = _get_table(task_config, "verifier"), {table.get("network_mode") for table in tables}
    for wrong, why in (
        (task_config.get("steps") or (path / "steps").is_dir(), "it has several steps, and only tasks of one step are played"),
        (environment_table.get("os", "linux") != "linux", f"it needs the system {environment_table.get('os')!r}, and boxes run linux"),
        (compose, "it needs several containers (docker-compose), and a conversation has one"),
        (environment_table.get("gpus") or environment_table.get("tpu"), "it needs a GPU or TPU, which boxes do not have"),
        (environment_table.get("mcp_servers"), "it needs MCP servers, which are not started here"),
        (environment_table.get("healthcheck"), "it waits for a service (healthcheck), which is not started here"),
        ("allowlist" in networks, "it needs some hosts of the network, and boxes have no network"),
        (verifier.get("environment"), "its verifier needs an environment of its own ([verifier.environment])"),
        (verifier.get("collect"), "its verifier collects by commands ([[verifier.collect]]), which are not run here"),
    ):
        if wrong:
            raise UnsupportedTask(why)


def _read_terminal_bench(path: Path) -> TaskFolder:
    about = yaml.safe_load((path / "task.yaml").read_text("utf-8"))
    if not isinstance(about, dict) or not isinstance(about.get("instruction"), str):
        raise UnsupportedTask("its task.yaml has no instruction")
    if (parser := about.get("parser_name", "pytest")) != "pytest":
        raise UnsupportedTask(f"its results are read by the parser {parser!r}, and only 'pytest' is known")
    if not (path / "run-tests.sh").is_file() or not (path / "Dockerfile").is_file():
        raise UnsupportedTask("it needs a Dockerfile and a run-tests.sh, each in its folder")
    for name in ("docker-compose.yaml", "docker-compose.yml"):
        if (path / name).is_file():
            services = (yaml.safe_load((path / name).read_text("utf-8")) or {}).get("services", {})
            if len(services) > 1:
                raise UnsupportedTask(f"it needs {len(services)} containers ({', '.join(sorted(services))}), and a conversation has one")
    tests = _read_files(path / "tests") if (path / "tests").is_dir() else {}
    solution = {"solution.sh": (path / "solution.sh").read_bytes()} if (path / "solution.sh").is_file() else {}
    return TaskFolder(
        name=path.name,
        instruction=about["instruction"].strip(),
        task_format="terminal-bench",
        environment=path,
        tests=tests | {"run-tests.sh": (path / "run-tests.sh").read_bytes()},
        test_script="run-tests.sh",
        test_variables={"TEST_DIR": "/tests"},
        test_timeout_s=_parse_seconds(about.get("max_test_timeout_sec", 60.0), "max_test_timeout_sec"),
        solution=solution,
        solution_script="solution.sh" if solution else "",
        metadata={"difficulty": str(about.get("difficulty", ""))},
    )


def _get_table(about: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    table = about.get(name) or {}
    if not isinstance(table, Mapping):
        raise UnsupportedTask(f"[{name}] is {table!r:.80}; it must be a table")
    return table


def _parse_artifact(one: Any) -> str:
    if isinstance(one, Mapping):
        if set(one) - {"source"}:
            raise UnsupportedTask(f"the artifact {one!r:.120} says more than its source, and artifacts keep their path here")
        one = one.get("source")
    if not isinstance(one, str) or not PATH_PATTERN.fullmatch(one) or ".." in one.split("/"):
        raise UnsupportedTask(f"the artifact {one!r:.120} is no plain absolute path")
    return one


def _parse_workdir(path: str) -> str:
    if path and (not PATH_PATTERN.fullmatch(path) or ".." in path.split("/")):
        raise UnsupportedTask(f"its workdir {path!r:.120} is no plain absolute path")
    return path


def _parse_variables(given: Any) -> dict[str, str]:
    """Return the variables with their defaults filled in. Variables of our own environment are never passed on."""

    def default(match: re.Match[str]) -> str:
        if match[2] is None:
            raise UnsupportedTask(f"it takes the variable {match[1]} from the machine that plays it, and gets none")
        return match[2]

    if not isinstance(given, Mapping) or not all(re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", str(name)) for name in given):
        raise UnsupportedTask(f"its env is {given!r:.120}; it must be a table of variables")
    return {str(name): VARIABLE_PATTERN.sub(default, str(value)) for name, value in given.items()}


def _parse_seconds(value: Any, name: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise UnsupportedTask(f"{name} is {value!r:.80}; it must be a number of seconds above 0")
    return float(value)


def _parse_memory_mb(place: Mapping[str, Any]) -> int:
    size = place.get("memory_mb", place.get("memory", 1024))
    if isinstance(size, str) and (form := re.fullmatch(r"(\d+)\s*([MG])i?B?", size.strip(), re.IGNORECASE)):
        size = int(form[1]) * (1024 if form[2].upper() == "G" else 1)
    if isinstance(size, bool) or not isinstance(size, int) or size < 1:
        raise UnsupportedTask(f"[environment] memory is {size!r:.80}; it must be a number of MB, or a text such as '2G'")
    return size
