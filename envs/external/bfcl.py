"""Function calling, from the questions of the Berkeley leaderboard (bfcl-eval): single turns, and conversations with stateful services."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from rlvr.contracts import Environment, Session
from rlvr.contracts.schema import SchemaValidationError, validate_arguments
from rlvr.contracts.tool import Tool
from rlvr.envs.external._foreign.calls import PARALLEL_CATEGORIES, CallSession, CallsVerifier, PlaceholderTool, iter_minimal_expected_calls
from rlvr.envs.external._foreign_host import ForeignError, ForeignHost
from rlvr.envs.external._game_env import is_held_out
from rlvr.errors import ConfigError, format_suggestion
from rlvr.task import Task, make_user_prompt
from rlvr.turns import Call, ToolSpec

SINGLE_TURN_CATEGORIES = (
    "simple_python",
    "multiple",
    "parallel",
    "parallel_multiple",
    "live_simple",
    "live_multiple",
    "live_parallel",
    "live_parallel_multiple",
)
MAX_CALLS = 12
"""More than the number of correct calls of any question."""
MULTI_TURN_CATEGORIES = ("multi_turn_base", "multi_turn_miss_param", "multi_turn_long_context")
UNSUPPORTED: Mapping[str, str] = {
    **dict.fromkeys(("irrelevance", "live_irrelevance"), "any text without a call would be correct"),
    "live_relevance": "any call at all would be correct",
    "multi_turn_miss_func": "functions are added in the middle of the conversation, and tools here are fixed at its beginning",
    **dict.fromkeys(("simple_java", "simple_javascript"), "the arguments are source texts of these languages"),
    **dict.fromkeys(("memory", "web_search"), "they need services outside of the package"),
    "format_sensitivity": "it varies the form of the prompt, which here is the chat template's",
}
JSON_TYPES = {"dict": "object", "float": "number", "tuple": "array", "list": "array", "int": "integer", "str": "string", "bool": "boolean"}
KNOWN_JSON_TYPES = ("string", "integer", "number", "boolean", "array", "object")


class Bfcl(Environment):
    """Questions of bfcl-eval, answered by calling the correct functions with the correct arguments.

    In single-turn categories, the calls are compared with the expected ones in any order; an extra call is wrong. If several calls are
    expected, they may also come one per turn, as in dialects that end a turn at a call; a turn without a call ends them. In multi-turn
    categories the user makes several requests; after each, the services must be in the state that the correct calls lead to, and the
    policy must have read their results. The score is 1 if all turns are correct, else 0. No argument is ever evaluated.

    >>> import rlvr
    >>> env = rlvr.make_env("bfcl", category="simple_python")  # doctest: +SKIP
    >>> env.oracle_turns(env.task("train", 0))  # doctest: +SKIP
    [[Call(id='0.0', name='calculate_triangle_area', arguments={'base': 10, 'height': 5, 'unit': 'units'}, ...)]]
    """

    choice = "category"
    """Name of the setting whose value is a name of the catalog."""
    requires_tool_call = True
    max_prompt_tokens = 8192

    def __init__(
        self, *, category: str = "simple_python", limit: int = 2_000, max_turns: int | None = None, python: str = "", instruction: str = ""
    ) -> None:
        """Choose the questions.

        Args:
            category: the kind of question; `rlvr list envs --catalog bfcl` shows all.
            limit: use at most this many questions, the first ones.
            max_turns: the most turns of the policy, turns with tool calls included.
            python: the interpreter of an environment that has bfcl-eval; empty: this one.
            instruction: a system message.
        """
        if category in UNSUPPORTED:
            raise ConfigError(f"the category {category!r} is not offered: {UNSUPPORTED[category]}")
        if category not in (*SINGLE_TURN_CATEGORIES, *MULTI_TURN_CATEGORIES):
            raise ConfigError(
                f"there is no category {category!r}; {format_suggestion(str(category), (*SINGLE_TURN_CATEGORIES, *MULTI_TURN_CATEGORIES))}"
            )
        self.category, self.limit, self.instruction = category, limit, instruction
        self.max_turns = (
            (40 if category in MULTI_TURN_CATEGORIES else MAX_CALLS + 1 if category in PARALLEL_CATEGORIES else 2)
            if max_turns is None
            else max_turns
        )
        if isinstance(self.max_turns, bool) or not isinstance(self.max_turns, int) or self.max_turns < 2:
            raise ConfigError(f"max_turns is {max_turns!r}; at least 2 are needed, a call and the answer")
        self.max_new_tokens = 4096 if category in MULTI_TURN_CATEGORIES else 2048 if category in PARALLEL_CATEGORIES else 512
        self.verifier = CallsVerifier()
        self.tools: Sequence[Tool] = (PlaceholderTool(),)
        self.host = ForeignHost("rlvr.envs.external._foreign.bfcl_worker:BfclInstance", extra="bfcl", call_timeout_s=20.0, python=python)
        self._rows: dict[str, list[dict[str, Any]]] | None = None

    @classmethod
    def list_support_status(cls) -> list[dict[str, str]]:
        """List what is supported and what is not, and why."""
        how = {name: "the calls are compared, at once or one in each turn" for name in PARALLEL_CATEGORIES}
        rows = [
            {"name": name, "offered": "yes", "why": how.get(name, "one turn; the calls are compared")} for name in SINGLE_TURN_CATEGORIES
        ]
        rows += [
            {"name": name, "offered": "yes", "why": "several requests; the states of the services are compared"}
            for name in MULTI_TURN_CATEGORIES
        ]
        return rows + [{"name": name, "offered": "no", "why": why} for name, why in UNSUPPORTED.items()]

    def num_tasks(self, split: str) -> int:
        """Return the number of questions in the split."""
        return len(self._load_split(split))

    def task(self, split: str, index: int) -> Task:
        """Return the question at `index`; its reference holds the correct calls."""
        rows = self._load_split(split)
        if not 0 <= index < len(rows):
            raise ConfigError(f"bfcl has no {split} task {index}; it has 0 to {len(rows) - 1}")
        row = rows[index]
        head: list[Any] = [{"role": "system", "content": self.instruction}] if self.instruction else []
        prompt = (*head, *_make_messages(row["question"][0]))
        reference = {"truth": row["truth"], "single": self.category in SINGLE_TURN_CATEGORIES}
        return Task(prompt, reference, id=f"bfcl/{split}/{row['id']}", meta={"place": index, "split": split})

    def oracle_turns(self, task: Task) -> list[Any]:
        """Return the correct calls, and a short text after those of each request."""
        row = self._find_row(task)
        if self.category in SINGLE_TURN_CATEGORIES:
            calls = [
                Call("0.0", _make_tool_name(name), given)
                for name, given in iter_minimal_expected_calls(row["truth"], _list_required_arguments(row))
            ]
            return [calls, "Done."] if self.category in PARALLEL_CATEGORIES else [calls]
        return [said for turn in self._parse_expected_calls(row) for said in (*([turn] if turn else ()), "Done.")]

    def gold(self, task: Task) -> str:
        """Return a placeholder answer: only the calls are verified."""
        return "Done."

    def new_session(self, task: Task, *, seed: int) -> Session:
        """Open a conversation; one with services gets a process of its own."""
        row = self._find_row(task)
        specs = [_make_tool_spec(one) for one in row["functions"]]
        return CallSession(task, specs, row, None if self.category in SINGLE_TURN_CATEGORIES else self.host, self.category)

    def prepare(self) -> None:
        """Start the process that imports the package."""
        self.host.ensure_started()

    def close(self) -> None:
        """End the process of the package."""
        super().close()
        self.host.close()

    def _parse_expected_calls(self, row: Mapping[str, Any]) -> list[list[Call]]:
        from rlvr.envs.external._foreign.bfcl_worker import _parse_call

        names = {one["name"]: list(one["parameters"]["properties"]) for one in row["functions"]}
        turns = []
        for texts in row["truth"]:
            calls = []
            for text in texts:
                name, places, given = _parse_call(text)
                calls.append(Call("0.0", _make_tool_name(name), {**dict(zip(names.get(name, ()), places, strict=False)), **given}))
            turns.append(calls)
        return turns

    def _find_row(self, task: Task) -> dict[str, Any]:
        row: dict[str, Any] = self._load_split(task.meta["split"])[task.meta["place"]]
        return row

    def _load_split(self, split: str) -> list[dict[str, Any]]:
        if self._rows is None:
            try:
                with self.host.new_instance(category=self.category) as world:
                    rows = world.call("list_questions", limit=self.limit)
            except ForeignError as error:
                raise ConfigError(f"the questions of {self.category} cannot be read: {error}") from error
            made: dict[str, list[dict[str, Any]]] = {"train": [], "test": []}
            for row in rows:
                if self.category in MULTI_TURN_CATEGORIES or _are_expected_calls_valid(row):
                    made["test" if is_held_out(str(row["question"])) else "train"].append(row)
            self._rows = made
        if split not in self._rows:
            raise ConfigError(f"bfcl has no split {split!r}; allowed: {', '.join(self._rows)}")
        return self._rows[split]


def _are_expected_calls_valid(row: Mapping[str, Any]) -> bool:
    """Return whether the expected calls fit the functions of their question: a few in the data do not, and cannot be answered.

    >>> f = {"name": "f", "description": "", "parameters": {"type": "dict", "properties": {"x": {"type": "string", "enum": ["a"]}}}}
    >>> [_are_expected_calls_valid({"functions": [f], "truth": [{"f": {"x": [value]}}]}) for value in "ab"]
    [True, False]
    """
    specs = {spec.name: spec for spec in map(_make_tool_spec, row["functions"])}
    try:
        for name, given in iter_minimal_expected_calls(row["truth"], _list_required_arguments(row)):
            validate_arguments(specs[_make_tool_name(name)].parameters, given)
    except (SchemaValidationError, KeyError):
        return False
    return True


def _list_required_arguments(row: Mapping[str, Any]) -> dict[str, Sequence[str]]:
    return {one["name"]: one["parameters"].get("required", ()) for one in row["functions"]}


def _make_tool_name(name: str) -> str:
    """Return a function's name as a tool name: without dots, which chat templates do not accept.

    >>> _make_tool_name("spotify.play")
    'spotify_play'
    """
    return re.sub(r"[^A-Za-z0-9_-]", "_", name)


def _make_tool_spec(function: Mapping[str, Any]) -> ToolSpec:
    """Convert a function of the data into a tool spec with JSON Schema types.

    >>> given = {"type": "dict", "properties": {"x": {"type": "float"}}}
    >>> _make_tool_spec({"name": "f", "description": "d", "parameters": given}).parameters["properties"]
    {'x': {'type': 'number'}}
    """
    return ToolSpec(
        _make_tool_name(function["name"]), function["description"], {"required": [], **_convert_bfcl_schema(function["parameters"])}
    )


def _convert_bfcl_schema(source: Mapping[str, Any]) -> dict[str, Any]:
    """Convert a schema of the data, keeping only the keywords that are checked here.

    >>> _convert_bfcl_schema({"type": "any", "description": "x", "default": 1}), _convert_bfcl_schema({"type": "tuple", "items": {"type": "float"}})
    ({'description': 'x'}, {'type': 'array', 'items': {'type': 'number'}})
    """
    kind = str(source.get("type", "")).lower()
    kind = JSON_TYPES.get(kind, kind)
    found: dict[str, Any] = {"type": kind} if kind in KNOWN_JSON_TYPES else {}
    found |= {name: source[name] for name in ("description", "enum") if name in source}
    if kind == "object" and isinstance(source.get("properties"), Mapping):
        found["properties"] = {name: _convert_bfcl_schema(of) for name, of in source["properties"].items()}
        if isinstance(source.get("required"), list):
            found["required"] = [name for name in source["required"] if name in found["properties"]]
    if kind == "array" and isinstance(source.get("items"), Mapping):
        found["items"] = _convert_bfcl_schema(source["items"])
    return found


def _make_messages(turn: Sequence[Mapping[str, str]]) -> list[Any]:
    return [{"role": one["role"], "content": one["content"]} for one in turn] or list(make_user_prompt("Go on."))


make = Bfcl
