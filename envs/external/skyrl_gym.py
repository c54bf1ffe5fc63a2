"""Environments of skyrl-gym over your rows: gsm8k, gsm8k_multi_turn, aime, and those that you register."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlvr.envs.external._foreign.task_lists import DEFAULT_LIMIT, TaskListEnvironment
from rlvr.envs.external._foreign_host import ForeignHost
from rlvr.errors import ConfigError, format_suggestion
from rlvr.task import Task

VERSION = "0.4.0"
NUMBER_PATTERN = re.compile(r"(?:the answer is:?\s*)?####\s*(-?\d[\d,]*(?:\.\d+)?)\s*", re.IGNORECASE)
ANSWER_PATTERN = re.compile(r"\**(?:final\s+)?answer\s*:\**\s*\$?(-?\d{1,9})\$?\.?\s*", re.IGNORECASE)
SUPPORTED: Mapping[str, tuple[int, str]] = {
    "gsm8k": (1, "the number after #### on the last line"),
    "gsm8k_multi_turn": (5, "like gsm8k, over several turns; only a correct number is rewarded, a well-formed wrong one is not"),
    "aime": (1, "a whole number after Answer: on the last line"),
}
UNSUPPORTED: Mapping[str, str] = {
    "lcb": "it runs the answer's code on this machine; use code_contest",
    "search": "it scores what the search returns together with the answer, so a passage that holds the answer is rewarded; use search_qa",
    "searchcode": "it runs the answer's code on this machine, and scores what the tools return",
    "text2sql": "it runs the answer's SQL with the rights of this process; use sql",
}
ANSWER_FORMS: Mapping[str, tuple[re.Pattern[str], str, str]] = {
    "gsm8k": (NUMBER_PATTERN, "#### {}", "Write the number after ####, alone on the last line."),
    "gsm8k_multi_turn": (NUMBER_PATTERN, "#### {}", "Write the number after ####, alone on the last line."),
    "aime": (ANSWER_PATTERN, "Answer: {}", "Write Answer: and a whole number, alone on the last line."),
}
"""For environments of the package: pattern of the last line, format of the answer passed to the package, and hint to the policy."""


class SkyRLGym(TaskListEnvironment):
    """An environment of skyrl-gym, with a row of your data for each task. The score is 1 if the last reward is the full one, else 0.

    The package runs in a process of its own. For its own environments only the declared answer is passed to it, so a hedged answer, or one
    in the middle of a sentence, is not rewarded.

    >>> import rlvr
    >>> env = rlvr.make_env("skyrl_gym", id="gsm8k", rows="train.jsonl")  # doctest: +SKIP
    """

    choice = "id"
    """Name of the setting whose value is a name of the catalog."""
    max_prompt_tokens = 4096

    def __init__(
        self,
        *,
        id: str = "gsm8k",
        rows: str = "",
        config: Mapping[str, Any] | None = None,
        imports: str = "",
        max_turns: int | None = None,
        success_threshold: float = 1.0,
        python: str = "",
        limit: int = DEFAULT_LIMIT,
        instruction: str = "",
    ) -> None:
        """Choose the environment and the data.

        Args:
            id: its name; `rlvr list envs --catalog skyrl_gym` shows all of the package.
            rows: a JSONL file; each line has a prompt (a list of messages) and the fields that the environment needs, such as reward_spec.
            config: the environment's own configuration.
            imports: a module that registers environments of yours; it is imported in the process of the package.
            max_turns: the most turns of the policy.
            success_threshold: the last reward that wins, which must be the highest possible one.
            python: the interpreter of an environment that has skyrl-gym; empty: this one.
            limit: use at most this many rows, the first ones.
            instruction: a system message.
        """
        super().__init__()
        if id in UNSUPPORTED:
            raise ConfigError(f"the environment {id!r} is not offered: {UNSUPPORTED[id]}")
        if id not in SUPPORTED and not imports:
            raise ConfigError(
                f"there is no environment {id!r}; {format_suggestion(str(id), SUPPORTED)}; one of yours needs imports, its module"
            )
        self.id, self.limit, self.instruction, self.id_prefix = id, limit, instruction, f"skyrl_gym/{id}"
        self.instance_settings = {"id": id, "path": _check_rows_file(rows), "config": dict(config or {}), "imports": imports}
        self.reference = {"won": success_threshold, "most": success_threshold}
        self.max_turns = (SUPPORTED[id][0] if id in SUPPORTED else 8) if max_turns is None else max_turns
        if isinstance(self.max_turns, bool) or not isinstance(self.max_turns, int) or self.max_turns < 1:
            raise ConfigError(f"max_turns is {max_turns!r}; at least 1 is needed")
        self.max_new_tokens = 512 * self.max_turns
        self.harmless_moves = ["#### 0"] if id.startswith("gsm8k") else ["Answer: 0"]
        self.host = ForeignHost(
            "rlvr.envs.external._foreign.skyrl_worker:SkyRLInstance", extra="skyrl_gym", call_timeout_s=20.0, python=python
        )

    @classmethod
    def list_support_status(cls) -> list[dict[str, str]]:
        """List what is supported and what is not, and why."""
        rows = [{"name": name, "offered": "yes", "why": why} for name, (_, why) in SUPPORTED.items()]
        rows.append({"name": "your own", "offered": "yours", "why": "with imports, the module that registers it"})
        return rows + [{"name": name, "offered": "no", "why": why} for name, why in UNSUPPORTED.items()]

    def prepare(self) -> None:
        """Start the process, and check that the tested version is installed."""
        about = self.host.ensure_started()
        if about["version"] != VERSION:
            raise ConfigError(f"skyrl-gym {about['version']} is installed, {VERSION} is needed: pip install skyrl-gym=={VERSION}")

    def gold(self, task: Task) -> str | None:
        """Return the gold answer in its required form if the row has one, else None."""
        found = self.call_on_temporary_instance("find_gold_answer", number=task.reference["seed"])
        return ANSWER_FORMS[self.id][1].format(found) if found is not None and self.id in ANSWER_FORMS else None

    def parse_move(self, text: str) -> str | None:
        """Parse the answer of a turn that is passed to the package."""
        if self.id not in ANSWER_FORMS:
            return super().parse_move(text)
        pattern, form, _ = ANSWER_FORMS[self.id]
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        said = [found[1].replace(",", "") for line in lines if (found := pattern.fullmatch(line))]
        one = len(set(said)) == 1 and pattern.fullmatch(lines[-1]) is not None  # two different answers count as none
        return form.format(said[0]) if one else None

    def format_no_move_reply(self) -> str:
        """Return a message that says how to write an answer."""
        return ANSWER_FORMS[self.id][2] if self.id in ANSWER_FORMS else super().format_no_move_reply()


def _check_rows_file(where: str) -> str:
    """Check a file of rows and return its absolute path. ConfigError names the first invalid line."""
    path = Path(where).expanduser()
    if not where or not path.is_file():
        raise ConfigError(f"rows is {where!r}; give a JSONL file, each line with a prompt and a reward_spec")
    some = False
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            some = True
            try:
                row = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise ConfigError(f"{where}:{number} is no JSON: {error}") from error
            prompt = row.get("prompt") if isinstance(row, dict) else None
            whole = isinstance(prompt, list) and prompt and all(isinstance(one, dict) and {"role", "content"} <= set(one) for one in prompt)
            if not whole:
                raise ConfigError(f"{where}:{number} has the prompt {prompt!r:.120}; a list of messages is needed")
    if not some:
        raise ConfigError(f"{where} has no rows")
    return str(path.absolute())


make = SkyRLGym
