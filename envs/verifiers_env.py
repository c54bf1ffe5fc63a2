"""Tasksets written for verifiers (interface v1): the questions and rewards of an installed package, judged in a process of its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rlvr.envs._host import Host
from rlvr.envs._worlds.listed import MOST, Listed
from rlvr.errors import ConfigError

SERIES = "0.4."
OFFERED: Mapping[str, str] = {
    "tasksets of v1 with one turn": "id is that of the installed package; all rewards must be given, each from 0 to 1",
}
REFUSED: Mapping[str, str] = {
    "environments of v0": "load_environment is gone from verifiers 0.4; ask its author for a taskset, or write the rewards as a verifier",
    "tasks with an image or a container": "the package would start it outside of the sandbox",
    "toolsets": "they are servers that the package starts; give tools of rlvr by the setting tools",
    "rewards that read a runtime": "there is none, so they give no value, and a task without all its rewards has no score",
}


class VerifiersEnv(Listed):
    """A taskset of verifiers. An answer gets the weighted sum of its rewards, divided by the most that it can be; only 1 is paid.

    The package and the taskset run in a process of their own, with a deadline. A reward that raises, is missing, or is not a number from 0
    to 1 is no score; where the package itself counts it as nothing, this does not.

    >>> import rlvr
    >>> env = rlvr.make("env", "verifiers_env", id="my-taskset")                              # doctest: +SKIP
    """

    max_prompt_tokens = 8192
    max_new_tokens = 2048

    def __init__(
        self,
        *,
        id: str = "",
        settings: Mapping[str, Any] | None = None,
        partial: bool = False,
        python: str = "",
        limit: int = MOST,
        score_s: float = 60.0,
        instruction: str = "",
    ) -> None:
        """Choose the taskset.

        Args:
            id: its id; the package must be installed already, nothing is downloaded.
            settings: the fields of its own configuration.
            partial: whether a share of the rewards is the score; false: it is worth 0.
            python: the interpreter of an environment that has verifiers and the taskset; empty: this one.
            limit: at most so many tasks, the first ones.
            score_s: how long the scoring of one answer may take.
            instruction: a system message.
        """
        super().__init__()
        if not isinstance(id, str) or not id:
            raise ConfigError(f"id is {id!r}; give the id of an installed taskset")
        if isinstance(score_s, bool) or not isinstance(score_s, int | float) or not 0 < score_s < 86_400:
            raise ConfigError(f"score_s is {score_s!r}; a number of seconds above 0 is needed")
        self.id, self.limit, self.instruction, self.source = id, limit, instruction, f"verifiers_env/{id}"
        self.settings = {"id": id, "settings": dict(settings or {})}
        self.reference = {"scale": [0.0, 1.0]} if partial else {"won": 1.0 - 1e-9, "most": 1.0}
        self.harmless = ("0", "-")
        self.host = Host("rlvr.envs._worlds.tasksets:Taskset", extra="verifiers", call_s=float(score_s), python=python)

    @classmethod
    def offered(cls) -> list[dict[str, str]]:
        """What is offered and what is refused, and why."""
        rows = [{"name": name, "offered": "yes", "why": why} for name, why in OFFERED.items()]
        return rows + [{"name": name, "offered": "no", "why": why} for name, why in REFUSED.items()]

    def ready(self) -> None:
        """Start the process, compare the version, and read the tasks."""
        about = self.host.start()
        if not str(about["version"]).startswith(SERIES):
            raise ConfigError(
                f"verifiers {about['version']} is installed, {SERIES}x is needed: its interface changes from series to series"
            )
        self.numbers("train")


make = VerifiersEnv
