"""A suite: the environments to evaluate on, each with its settings, in one YAML list.

    - {env: gsm8k, tasks: 200}
    - {name: hard, env: {name: countdown, numbers: 6}, tasks: 100, split: test, max_new_tokens: 512}

A suite is given by name (`rlvr list suites`), by path, by the name of a single environment, as a data file, or as the recipe of a
training run, which stands for the recipe's environment.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import Field, field_validator

from rlvr.config.config import RunConfig, find_recipes, translate_flat_keys
from rlvr.config.data_source import is_data_source
from rlvr.config.overrides import parse_exponents
from rlvr.config.section import Section, normalize_plugin, validate_section
from rlvr.config.yamlfile import read_yaml
from rlvr.errors import ConfigError, NotFound, format_suggestion
from rlvr.plugin_files import resolve_plugin_files
from rlvr.registry.plugins import list_entries
from rlvr.runs.plugin_record import warn_about_plugin_changes
from rlvr.task import Message, Task

SUITES_FOLDER = Path(__file__).parent / "suites"

ALL_TASKS = 1_000_000
"""Default number of tasks for a data file: all rows."""


class SuiteItem(Section):
    """One environment of a suite, and its sampling settings. None means the environment's default.

    >>> SuiteItem(name="hard", env={"name": "countdown", "numbers": 6}, tasks=50).split
    'test'
    """

    name: str = ""
    """The name in the report; by default the environment's name."""
    env: dict[str, Any]
    tasks: int = Field(default=100, ge=1)
    """Number of tasks, from the first; fewer if the split has fewer."""
    split: str = "test"
    n: int | None = Field(default=None, ge=1)
    """Answers for each task; default 1."""
    temperature: float | None = Field(default=None, ge=0)
    """0 is greedy; by default 0 for one answer per task and 1 for several."""
    top_p: float | None = Field(default=None, gt=0, le=1)
    top_k: int | None = Field(default=None, ge=0)
    system: str | None = None
    """The system prompt, in place of the environment's own; an empty text means none."""
    max_new_tokens: int | None = Field(default=None, ge=1)
    """Maximum tokens of an answer, all turns together."""
    max_turn_tokens: int | None = Field(default=None, ge=1)
    """Maximum tokens of a turn; a longer turn is truncated, and the conversation continues."""
    max_length: int | None = Field(default=None, ge=2)
    episode_timeout_s: float | None = Field(default=None, gt=0)
    """Timeout of a conversation in seconds; it ends with its current turn."""
    call_timeout_s: float | None = Field(default=None, gt=0)
    """Timeout of one verification, or one step of the environment, in seconds; then the sample has no score. None: 600."""
    sampler: dict[str, Any] = Field(default_factory=dict)
    """Settings of the policy's sampler for this environment; --sampler takes precedence."""

    @field_validator("env", mode="before")
    @classmethod
    def _normalize_env(cls, value: Any) -> Any:
        return normalize_plugin(value)

    def model_post_init(self, _: Any) -> None:
        """Use the environment's name if no name is given."""
        if not self.name:
            object.__setattr__(self, "name", str(self.env["name"]).rpartition(":")[2])

    def with_default_sampling(self) -> SuiteItem:
        """Fill in the default number of answers and temperature."""
        n = self.n or 1
        usual = 0.0 if n == 1 else 1.0
        return self.model_copy(update={"n": n, "temperature": usual if self.temperature is None else self.temperature})

    def apply_system_prompt(self, task: Task) -> Task:
        """Return the task with the system prompt of this item, if it has one."""
        if self.system is None:
            return task
        rest = [message for message in task.prompt if message["role"] != "system"]
        return replace(task, prompt=(*([Message(role="system", content=self.system)] if self.system else []), *rest))


@dataclass(frozen=True, slots=True)
class Suite:
    """A named list of environments.

    >>> load_suite("quick").name
    'quick'
    """

    name: str
    items: tuple[SuiteItem, ...]


def _list_suites() -> dict[str, Path]:
    """List the built-in suites, by name."""
    return {path.stem: path for path in sorted(SUITES_FOLDER.glob("*.yaml"))}


def load_suite(target: str | Sequence[Any], settings: Mapping[str, Any] | None = None, **item_settings: Any) -> Suite:
    """Load a suite by name or from a file, or make one of an environment or of a list of them.

    `settings` are for the environment (`path`); in a suite of several environments the keys start with a name (`gsm8k.path`). The other
    keywords (tasks, split, n, temperature, max_new_tokens, ...) apply to every item; None keeps the value of the suite.
    """
    rows = _load_rows(target) if isinstance(target, str) else [row for item in target for row in _load_list_entry(item)]
    target = target if isinstance(target, str) else ", ".join(map(_format_list_entry, target))
    if not rows:
        raise ConfigError(f"{target} has no environments; a suite is a list such as [{{env: gsm8k, tasks: 200}}]")
    wanted = {key: value for key, value in item_settings.items() if value is not None}
    items = [validate_section(SuiteItem, {**row, **wanted}, f"{target}, entry {place}") for place, row in enumerate(rows, 1)]
    items = [part for item in apply_env_settings(items, settings or {}) for part in _expand_mixture(item)]
    names = [item.name for item in items]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ConfigError(
            f"{target} has two entries called {twice!r}; give each a name, such as {{'name': '{twice}-hard', 'env': '{twice}'}}"
        )
    return Suite(Path(target).stem if Path(target).suffix in (".yaml", ".yml") else target, tuple(items))


def _expand_mixture(item: SuiteItem) -> list[SuiteItem]:
    """Expand a mixture into its sub-environments, each with its own metrics; any other environment is returned unchanged.

    >>> [part.name for part in _expand_mixture(SuiteItem(env={"name": "mixture", "envs": {"a": "arithmetic", "b": {"env": "digit_sum", "weight": 2}}}))]
    ['a', 'b']
    """
    envs = item.env.get("envs")
    if item.env["name"] != "mixture" or not isinstance(envs, Mapping):
        return [item]
    inner = {
        str(name): part["env"] if isinstance(part, Mapping) and "env" in part and "name" not in part else part
        for name, part in envs.items()
    }
    return [validate_section(SuiteItem, {**item.model_dump(), "name": name, "env": env}, f"mixture, {name}") for name, env in inner.items()]


def _load_list_entry(item: str | Mapping[str, Any]) -> list[Any]:
    return _load_rows(item) if isinstance(item, str) else [parse_exponents(resolve_plugin_files(item))]


def _format_list_entry(item: str | Mapping[str, Any]) -> str:
    env = item if isinstance(item, str) else item.get("name") or item["env"]
    return str(env["name"] if isinstance(env, Mapping) and "name" in env else env)


def _load_rows(target: str) -> list[Any]:
    path = _list_suites().get(target, Path(target).expanduser())
    if path.suffix not in (".yaml", ".yml"):
        known = [entry.name for entry in list_entries("env")]
        if target not in known and target not in _list_suites() and is_data_source(target):
            return [{"name": Path(target).name.partition(".")[0], "env": {"name": "dataset", "test": target}, "tasks": ALL_TASKS}]
        if target not in known and target in find_recipes():
            env = read_yaml(find_recipes()[target])["env"]
            name = env["name"] if isinstance(env, Mapping) else env
            raise NotFound(
                f"{target!r} is a recipe for training; its environment is {name}, and the recipe's file is a suite of its own: "
                f"{find_recipes()[target]}"
            )
        if target not in known and ":" not in target:
            if ".py" in target:
                raise NotFound(
                    f"there is no suite or env {target!r}; an environment in a Python file is named FILE.py:CLASS, a class that derives from "
                    f"rlvr.Environment; questions with answers are a file such as FILE.jsonl; your own suite is a YAML file"
                )
            raise NotFound(
                f"there is no suite or env {target!r}; {format_suggestion(target, [*_list_suites(), *known], max_names=24)}. "
                f"`rlvr list suites` and `rlvr list envs` show all; your own suite is a YAML file"
            )
        return [{"env": resolve_plugin_files(target)}]
    if not path.is_file():
        raise NotFound(f"there is no suite {target!r}; {format_suggestion(target, _list_suites())}; or name a YAML file that exists")
    rows = resolve_plugin_files(read_yaml(path), path.parent)
    if isinstance(rows, Mapping):
        rows = translate_flat_keys(rows, str(path))
    if isinstance(rows, Mapping) and "env" in rows and rows.keys() <= RunConfig.model_fields.keys():
        warn_about_plugin_changes(path.parent)
        return [_make_suite_row(rows)]
    if not isinstance(rows, list) or not all(isinstance(row, Mapping | str) for row in rows):
        raise ConfigError(f"{path} is a {type(rows).__name__}, not a list of environments such as [{{env: gsm8k, tasks: 200}}]")
    return [{"env": row} if isinstance(row, str) else parse_exponents(row) for row in rows]


def _make_suite_row(recipe: Mapping[str, Any]) -> dict[str, Any]:
    """Make a suite row from a training recipe: its held-out tasks (all of a data set) and its limits for an answer.

    >>> _make_suite_row({"env": "gsm8k", "rollout": {"max_new_tokens": 256}, "train": {"steps": 3}})
    {'env': 'gsm8k', 'max_new_tokens': 256}
    """
    env, rollout = parse_exponents(recipe["env"]), recipe.get("rollout") or {}
    limits = ("max_new_tokens", "max_turn_tokens", "max_length")
    found = {key: rollout[key] for key in limits if isinstance(rollout, Mapping) and rollout.get(key) is not None}
    return {"env": env, **({"tasks": ALL_TASKS} if isinstance(env, Mapping) and env.get("name") == "dataset" else {}), **found}


def apply_env_settings(items: list[SuiteItem], settings: Mapping[str, Any]) -> list[SuiteItem]:
    """Apply environment settings from the command line to the items."""
    for key, value in settings.items():
        owner, dot, setting = key.rpartition(".")
        if not dot and len(items) > 1:
            raise ConfigError(f"--set {key}=... names no environment; write {items[0].name}.{key}=..., this suite has several")
        at = next((i for i, item in enumerate(items) if not dot or item.name == owner), None)
        if at is None:
            raise ConfigError(f"--set {key}=...: the suite has no {owner!r}; {format_suggestion(owner, [item.name for item in items])}")
        items[at] = items[at].model_copy(update={"env": {**items[at].env, setting: resolve_plugin_files(value)}})
    return items
