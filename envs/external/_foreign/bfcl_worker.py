"""Worker class of `bfcl`: the questions of the package, and the small stateful services of its multi-turn conversations.

No call is evaluated as code: a method is looked up by name among those that the question lists, and gets JSON arguments. The correct
calls are texts in the package's data, of which only literals are parsed.
"""

from __future__ import annotations

import ast
import copy
import importlib
import importlib.util
import json
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

from rlvr.envs.external._foreign_worker import find_version

SERVICES = {
    "GorillaFileSystem": "gorilla_file_system",
    "MathAPI": "math_api",
    "MessageAPI": "message_api",
    "TwitterAPI": "posting_api",
    "TicketAPI": "ticket_api",
    "TradingBot": "trading_bot",
    "TravelAPI": "travel_booking",
    "VehicleControlAPI": "vehicle_control",
}
SERVICE_PACKAGE = "bfcl_eval.eval_checker.multi_turn_eval.func_source_code"


class BfclInstance:
    """Worker class of `bfcl`: one category of questions, in a forked process. It runs at most one conversation at a time."""

    def __init__(self, *, category: str) -> None:
        self.category = category
        self.folder = _find_data_folder()
        self.policy_services: dict[str, Any] = {}
        self.reference_services: dict[str, Any] = {}

    @staticmethod
    def import_and_describe_package() -> Any:
        """Find the data, and return the version and the categories."""
        folder = _find_data_folder()
        return {
            "version": find_version("bfcl-eval", None),
            "categories": sorted(path.stem.removeprefix("BFCL_v4_") for path in folder.glob("*.json")),
        }

    def list_questions(self, limit: int) -> list[dict[str, Any]]:
        """Return the questions with their functions and correct calls."""
        name = f"BFCL_v4_{self.category}.json"
        with open(self.folder / name, encoding="utf-8") as asked, open(self.folder / "possible_answer" / name, encoding="utf-8") as right:
            answers = {row["id"]: row["ground_truth"] for row in map(json.loads, right)}
            rows = [json.loads(line) for line in islice(asked, limit)]
        kept = [row for row in rows if row["id"] in answers]
        return [{**self._build_entry(row), "id": row["id"], "truth": answers[row["id"]], "question": row["question"]} for row in kept]

    def start_services(
        self, config: dict[str, Any], service_names: list[str], correct_calls: list[list[str]], allowed_functions: list[str]
    ) -> None:
        """Create new services for the policy, and for the correct calls."""
        self.allowed = frozenset(allowed_functions)
        self.policy_services, self.reference_services = (
            self._create_services(config, service_names),
            self._create_services(config, service_names),
        )
        self.truth, self.turn_index, self.policy_results = correct_calls, 0, list[str]()

    def call_function(self, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """Run one call of the policy; return its text, and whether it succeeded."""
        if name not in self.allowed:
            return {"ok": False, "text": f"there is no function {name}"}
        ok, text = _run_call(self.policy_services, name, [], arguments)
        self.policy_results.append(text)
        return {"ok": ok, "text": text}

    def grade_request(self) -> dict[str, Any]:
        """End a request: run the correct calls, and compare the states of the services and the returned results."""
        wanted = [_run_call(self.reference_services, *_parse_call(text)) for text in self.truth[self.turn_index]]
        self.turn_index += 1
        if not wanted:
            return {"right": True, "why": ""}
        for name, service in self.reference_services.items():
            if not _have_same_state(self.policy_services[name], service):
                return {"right": False, "why": f"the state of {name} differs"}
        left = list(self.policy_results)
        for _, text in wanted:
            if text not in left:
                return {"right": False, "why": "an expected result was never read"}
            left.remove(text)
        return {"right": True, "why": ""}

    def _build_entry(self, row: dict[str, Any]) -> dict[str, Any]:
        if "function" in row:
            return {"functions": row["function"]}
        involved, excluded = row["involved_classes"], set(row.get("excluded_function", ()))
        found = []
        for name in involved:
            with open(self.folder / "multi_turn_func_doc" / f"{SERVICES[name]}.json", encoding="utf-8") as file:
                found += [one for one in map(json.loads, file) if one["name"] not in excluded]
        return {"functions": found, "config": row["initial_config"], "involved": involved}

    def _create_services(self, config: dict[str, Any], involved: list[str]) -> dict[str, Any]:
        found = {}
        for name in involved:
            service = getattr(importlib.import_module(f"{SERVICE_PACKAGE}.{SERVICES[name]}"), name)()
            if name != "MathAPI":
                service._load_scenario(copy.deepcopy(config.get(name, {})), long_context="long_context" in self.category)
            found[name] = service
        return found


def _find_data_folder() -> Path:
    spec = importlib.util.find_spec("bfcl_eval")
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError("No module named 'bfcl_eval'", name="bfcl_eval")
    return Path(next(iter(spec.submodule_search_locations))) / "data"


def _run_call(services: dict[str, Any], name: str, places: list[Any], given: dict[str, Any]) -> tuple[bool, str]:
    for service in services.values():
        method = None if name.startswith("_") else getattr(service, name, None)
        if callable(method):
            try:
                found = method(*places, **given)
            except Exception as error:
                return False, f"Error during execution: {error}"
            return True, _format_result(found)
    return False, f"Error during execution: there is no function {name}"


def _format_result(result: Any) -> str:
    """Format a returned value like the package does; some values are numbers that JSON cannot represent."""
    if isinstance(result, dict):
        with suppress(TypeError, ValueError):
            return json.dumps(result)
    return str(result)


def _parse_call(text: str) -> tuple[str, list[Any], dict[str, Any]]:
    call = ast.parse(text.strip(), mode="eval").body
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
        raise ValueError(f"{text!r:.200} is no plain call")
    return call.func.id, [ast.literal_eval(one) for one in call.args], {one.arg or "": ast.literal_eval(one.value) for one in call.keywords}


def _have_same_state(one: Any, other: Any) -> bool:
    """Return whether two services have equal public attributes, like the package does."""
    mine, theirs = ({name: value for name, value in vars(each).items() if not name.startswith("_")} for each in (one, other))
    return mine.keys() == theirs.keys() and all(bool(mine[name] == theirs[name]) for name in mine)
