"""The run folder: all outputs of a run.

    recipe.yaml        the recipe, if `rlvr train` was given a data file and made it
    config.yaml        the resolved configuration
    versions.json      Python, packages, platform
    plugins.json       plugins from outside of rlvr: digests of files, versions of packages (rlvr.runs.plugin_record)
    plugins/           copies of the files that have plugins
    metrics.jsonl      one object per step: metrics, reproducible
    timings.jsonl      one object per step: timings, not reproducible
    episodes.jsonl     one object per episode: text, tokens, verdict with reasons, advantage
    rollout_workers.jsonl   with a cluster: one object per failed rollout worker, abandoned task, and resume (rlvr.cluster.event_log)
    checkpoints/       see rlvr.training.checkpoint
    reward.png         the reward curve
    report.json        what `rlvr train --json` prints

A run is never overwritten, and is resumed only with the configuration it was started with (see `RunLog.reopen` for what may differ).
"""

from __future__ import annotations

import json
import logging
import os
import platform
import re
import shlex
import sys
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, TextIO

import rlvr
from rlvr.config.config import RunConfig, validate_config
from rlvr.config.section import Section
from rlvr.config.training import ENDLESS_SCHEDULERS
from rlvr.config.yamlfile import read_yaml
from rlvr.episode import Episode, segments_to_json
from rlvr.errors import ConfigError, NotFound, RlvrError
from rlvr.mdp.state import find_last_policy_token
from rlvr.plugin_files import resolve_plugin_files, shorten_plugin_files

_STEP_OF_LINE = re.compile(rb'\{"step": (\d+),')
LOG_FILES = ("metrics.jsonl", "timings.jsonl", "episodes.jsonl", "canaries.jsonl")
RECORDED_PACKAGES = ("torch", "transformers", "accelerate", "peft", "gymnasium", "numpy", "sympy", "vllm", "docker")
logger = logging.getLogger(__name__)
TokenDiagnostics = tuple[Sequence[float], Sequence[float] | None]
"""The learner's values for an episode: the advantage of each token, and the log-ratio of trainer to sampler, if available."""


@contextmanager
def explain_damaged_run(*folders: Path) -> Iterator[None]:
    """Turn what the reading of a run's files raises into one message: files of a run are data, which may be cut or edited."""
    try:
        yield
    except RlvrError:  # some of them are LookupErrors or ValueErrors, too
        raise
    except (AttributeError, LookupError, TypeError, ValueError, ArithmeticError, RecursionError) as error:
        logger.debug("reading a run failed", exc_info=error)
        raise ConfigError(
            f"the files of {' or '.join(map(str, folders))} cannot be read as those of a run ({type(error).__name__}: {str(error)[:200]}); "
            "were they edited or cut? A run that `rlvr eval` or `rlvr train` wrote can be read"
        ) from error


class RunLog:
    """Writes a run folder.

    >>> run = RunLog.create(Path("runs/a"), config)  # doctest: +SKIP
    >>> run.log_metrics({"step": 1, "reward": 0.5}, {"step": 1, "step_time": 0.4})  # doctest: +SKIP
    """

    def __init__(self, folder: Path, *, is_writer: bool = True) -> None:
        self.folder, self.is_writer = folder, is_writer
        """`is_writer` is False in all processes except the main one."""
        self._files: dict[str, TextIO] = {}

    @classmethod
    def create(cls, folder: Path, config: RunConfig) -> RunLog:
        """Create a run folder; raise ConfigError if it is not empty."""
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if not is_empty_run(folder):
                raise ConfigError(
                    f"{folder} is not empty and is not overwritten; choose another --out, or continue the run in it with --resume"
                )
            (folder / "versions.json").write_text(json.dumps(collect_versions(), indent=2) + "\n", "utf-8")
            _write_at_once(folder / "config.yaml", config.to_yaml())  # with this file the folder counts as a run
        except OSError as error:
            raise ConfigError(f"the run folder {folder} cannot be written: {error.strerror}; choose another --out") from error
        return cls(folder)

    @classmethod
    def reopen(cls, folder: Path, config: RunConfig) -> RunLog:
        """Open an existing run folder to resume; raise ConfigError if the configuration differs.

        The sections health, log (without `log.episodes`) and cluster (without `cluster.groups_per_task`, and if both have it) may differ,
        and there may be more steps.
        """
        was = load_run_config(folder)
        changed = list_config_differences(adopt_changeable_settings(was, config), config)
        if changed:
            last = folder / "checkpoints" / "last"
            recipe = shlex.quote(str(folder / "config.yaml"))
            further = f"; a new run from its weights: rlvr train {recipe} --model {shlex.quote(str(last))}" if last.is_dir() else ""
            if changed == [f"train.steps: {was.train.steps} -> {config.train.steps}"] and config.train.steps > was.train.steps:
                changed[0] += f", which the learning rate of {config.train.lr_scheduler} depends on"
            again = f"rlvr train {recipe} --out {shlex.quote(str(folder))} --resume"
            if config.train.steps > was.train.steps and was.train.lr_scheduler in ENDLESS_SCHEDULERS:
                again += f" train.steps={config.train.steps}"
            if "object:" in (folder / "config.yaml").read_text("utf-8"):
                again = "the same call of rlvr.train, with resume=True"
            raise ConfigError(
                f"{folder} was started with another configuration ({'; '.join(changed)}); resume it as it was started: {again}; "
                f"or choose another --out{further}"
            )
        return cls(folder)

    def record_num_steps_in_config(self, num_steps: int) -> None:
        """Record in the configuration that the run has this many steps."""
        config = load_run_config(self.folder)
        if config.train.steps != num_steps:
            longer = config.model_copy(update={"train": config.train.model_copy(update={"steps": num_steps})})
            _write_at_once(self.folder / "config.yaml", longer.to_yaml())

    def log_metrics(self, row: Mapping[str, Any], timings: Mapping[str, Any]) -> None:
        """Append the metrics of a step; timings go to a separate file, because they are not reproducible."""
        self._append("metrics.jsonl", [row])
        self._append("timings.jsonl", [timings])

    def log_episodes(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Append the episodes of a step, as `episode_to_json` makes them."""
        self._append("episodes.jsonl", rows)

    def log_rewarded_canaries(self, step: int, episodes: Sequence[Episode]) -> None:
        """Append the rewarded canaries of a step: each is an answer that the verifier should not have rewarded."""
        if episodes:
            self._append("canaries.jsonl", [episode_to_json(step, episode, ()) for episode in episodes])

    def flush_and_get_offsets(self) -> dict[str, int]:
        """Flush the logs to disk, and return the length of each."""
        for file in self._files.values():
            file.flush()
            os.fsync(file.fileno())
        return {name: (self.folder / name).stat().st_size for name in LOG_FILES if (self.folder / name).exists()}

    def truncate_logs(self, offsets: Mapping[str, int]) -> None:
        """Truncate the logs to a checkpoint; the steps after it will be repeated."""
        self.close()
        for name in LOG_FILES if self.is_writer else ():
            path = self.folder / name
            if path.exists():
                with path.open("r+b") as file:
                    file.truncate(min(offsets.get(name, 0), path.stat().st_size))

    def write_json(self, name: str, data: Mapping[str, Any]) -> None:
        """Write a small JSON file atomically."""
        if self.is_writer:
            _write_at_once(self.folder / name, json.dumps(data, indent=2) + "\n")

    def close(self) -> None:
        """Close the logs. May be called more than once."""
        for file in self._files.values():
            file.close()
        self._files.clear()

    def _append(self, name: str, rows: Iterable[Mapping[str, Any]]) -> None:
        if not self.is_writer:
            return
        if name not in self._files:
            self._files[name] = open_for_append(self.folder / name)
        file = self._files[name]
        for row in rows:
            file.write(json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n")
        file.flush()


def episode_to_json(step: int, episode: Episode, advantages: Sequence[float], log_ratio: Sequence[float] | None = None) -> dict[str, Any]:
    """Convert an episode to JSON. `advantage` is that of the policy's last token; `advantages` has all of them if they differ.

    `log_ratio` is, for each token, the trainer's log-probability before the update minus the sampler's.
    """
    told: dict[str, Sequence[float]] = {} if log_ratio is None else {"log_ratio": log_ratio}
    if len({value for value, own in zip(advantages, episode.action_mask, strict=False) if own}) > 1:
        told["advantages"] = advantages
    if any(episode.action_mask) and any(
        episode.rewards[: find_last_policy_token(episode.action_mask)]
    ):  # the reward is not only at the end
        told["rewards"] = episode.rewards
    return {
        "step": step,
        **episode.meta,
        "task_id": episode.task_id,
        "group": episode.group,
        "text": episode.text,
        "reward": episode.reward if episode.is_scored else None,  # a mean over the rows would take a zero for a score
        "advantage": advantages[find_last_policy_token(episode.action_mask)] if advantages and any(episode.action_mask) else 0.0,
        "stop_reason": episode.stop_reason.value,
        "turns": episode.turns,
        "policy_version": episode.policy_version,
        "verdict": episode.verdict.to_dict() if episode.verdict is not None else None,
        "error": episode.error,
        "tokens": episode.tokens,
        "action_mask": [int(flag) for flag in episode.action_mask],
        "logprobs": [round(value, 6) for value in episode.logprobs],
        **{name: [round(value, 6) for value in values] for name, values in told.items()},
        **({"segments": segments_to_json(episode.segments)} if episode.segments else {}),
    }


@contextmanager
def lock_run_folder(folder: Path) -> Iterator[None]:
    """Lock a run folder, because two writing processes would corrupt its logs and remove each other's checkpoints.

    The operating system releases the lock however the process ends.
    """
    with (folder / "config.yaml").open("r+b") as file:
        try:
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ConfigError(
                f"another trainer is at work in {folder}, in this process or another; close it, wait for it or stop it, or choose another --out"
            ) from error
        except (ImportError, OSError):  # without file locks, preventing this is up to the user
            pass
        yield


def is_empty_run(folder: Path) -> bool:
    """Return whether a folder is missing, empty, or has only a recipe and the files of a run that was killed during setup."""
    known = ("versions.json", ".config.part", "recipe.yaml")
    return not folder.exists() or (folder.is_dir() and all(path.name in known for path in folder.iterdir()))


def load_run_config(folder: Path) -> RunConfig:
    """Load the configuration that a run was started with."""
    path = folder / "config.yaml"
    if not path.is_file():
        raise NotFound(f"{folder} is not a run folder: it has no config.yaml; give a folder that `rlvr train` wrote")
    return validate_config(resolve_plugin_files(read_yaml(path), folder), str(path))


def open_for_append(path: Path) -> TextIO:
    """Open a log to append lines.

    A lone surrogate, which is not valid UTF-8, is written as a JSON escape.
    """
    return path.open("a", encoding="utf-8", errors="backslashreplace")


def read_jsonl(path: Path) -> Iterable[dict[str, Any]]:
    """Read the objects of a JSONL file one by one. An incomplete last line (of a killed run) is skipped; any other is an error."""
    if not path.is_file():
        raise NotFound(f"there is no file {path}")
    with path.open("rb") as file:  # in bytes: a killed process may have written part of a character
        for number, line in enumerate(file, 1):
            try:
                row = json.loads(line)
            except (ValueError, RecursionError) as error:  # also a number of thousands of digits, or brackets without end
                if not line.endswith(b"\n"):
                    return
                raise ConfigError(f"{path}, line {number} is not valid JSON: {error}") from error
            if not isinstance(row, dict):
                raise ConfigError(f"{path}, line {number} contains {type(row).__name__}, not an object")
            yield row


def read_metrics(folder: Path) -> Iterable[dict[str, Any]]:
    """Read the metrics of a run's steps one by one; there are none before the first step has ended."""
    path = folder / "metrics.jsonl"
    return read_jsonl(path) if path.is_file() else ()


def read_episodes_of_steps(folder: Path, steps: Container[int]) -> list[dict[str, Any]]:
    """Read the logged episodes of some steps; none if episodes are not logged. Lines of other steps are not parsed: a log may be large."""
    path = folder / "episodes.jsonl"
    if not path.is_file():
        return []
    with path.open("rb") as file:
        wanted = [line for line in file if (start := _STEP_OF_LINE.match(line)) and int(start[1]) in steps and line.endswith(b"\n")]
    return [json.loads(line) for line in wanted]


def _write_at_once(path: Path, text: str) -> None:
    """Write a file so that it is there whole or not at all."""
    partial = path.with_name(f".{path.stem}.part")
    partial.write_text(text, "utf-8")
    partial.replace(path)


def collect_versions() -> dict[str, str]:
    """Collect the versions of Python, the platform and the packages, to explain differences between runs."""
    found = {"rlvr": rlvr.__version__, "python": sys.version.split()[0], "platform": platform.platform()}
    for name in RECORDED_PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def adopt_changeable_settings(old: RunConfig, new: RunConfig) -> RunConfig:
    """Return the old configuration with those new settings that a resumed run may change.

    These are the bounds of its health, checkpoints and trackers, the cluster, except `groups_per_task`, which affects the samples, and
    more steps, if the learning rate does not depend on their number.
    """
    log = new.log.model_copy(update={"episodes": old.log.episodes})
    changed: dict[str, Any] = {"health": new.health, "log": log}
    if new.train.steps > old.train.steps and new.train.lr_scheduler in ENDLESS_SCHEDULERS:
        changed["train"] = old.train.model_copy(update={"steps": new.train.steps})
    if old.cluster is not None and new.cluster is not None:
        changed["cluster"] = new.cluster.model_copy(update={"groups_per_task": old.cluster.groups_per_task})
    return old.model_copy(update=changed)


def list_config_differences(old: Section, new: Section) -> list[str]:
    """Return all keys that differ, as `key: old -> new`. The folder of a plugin's file is no difference."""
    a, b = (_flatten(shorten_plugin_files(section.model_dump(mode="json"))) for section in (old, new))
    return [f"{key}: {a.get(key)!r} -> {b.get(key)!r}" for key in sorted(a | b) if a.get(key) != b.get(key)]


def _flatten(data: Any, prefix: str = "") -> dict[str, Any]:
    if isinstance(data, list) and any(isinstance(value, Mapping) for value in data):
        data = dict(enumerate(data, 1))
    if not isinstance(data, Mapping) or not data:
        return {prefix: data}
    return {k: v for key, value in data.items() for k, v in _flatten(value, f"{prefix}.{key}" if prefix else str(key)).items()}
