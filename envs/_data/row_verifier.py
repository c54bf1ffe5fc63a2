"""The verifier of a data set: one for all rows, several with weights, or one whose settings are columns."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterable, Mapping
from typing import Any

from rlvr.contracts import Transcript, Verifier
from rlvr.errors import ConfigError, require_text_answers
from rlvr.registry.plugins import build_from_config
from rlvr.task import Fault, Task, Verdict

COLUMN_PATTERN = re.compile(r"\{[^{}]+\}")
MAX_VERIFIERS = 64
"""Most different settings of the rows; each needs a verifier of its own."""


def build_dataset_verifier(verifier_config: Any) -> tuple[Verifier, dict[str, str]]:
    """Build the verifier of a data set; also return which of its settings are columns.

    >>> build_dataset_verifier({"name": "numeric", "tolerance": "{tolerance}"})[1]
    {'tolerance': '{tolerance}'}
    """
    settings = dict(verifier_config) if isinstance(verifier_config, Mapping) else {}
    columns = {key: text for key, text in settings.items() if isinstance(text, str) and COLUMN_PATTERN.fullmatch(text) and key != "name"}
    if columns:
        return PerRowSettingsVerifier({key: value for key, value in settings.items() if key not in columns}), columns
    return build_from_config("verifier", verifier_config), {}


class PerRowSettingsVerifier(Verifier):
    """One verifier with several settings, selected by each task's `meta["settings"]`."""

    def __init__(self, wanted: Mapping[str, Any]) -> None:
        """Build the verifier without the settings of the rows, so that a wrong name fails at once."""
        self.wanted, self.default_verifier = wanted, build_from_config("verifier", wanted)
        self.needs_reference, self.instruction = self.default_verifier.needs_reference, self.default_verifier.instruction
        self.has_bounded_score = self.default_verifier.has_bounded_score
        self.verifiers: dict[str, Verifier] = {}
        self._lock = threading.Lock()

    def build_verifiers(self, row_settings: Iterable[Mapping[str, Any]]) -> None:
        """Build a verifier for each distinct settings; an error names the invalid settings."""
        for own in row_settings:
            self._get_verifier(own)

    @require_text_answers
    def verify(self, task: Task, answer: str) -> Verdict:
        """Verify an answer with the settings of the task's row."""
        return self.verify_transcript(task, Transcript(answer))

    def verify_transcript(self, task: Task, transcript: Transcript) -> Verdict:
        """Verify a transcript with the settings of the task's row."""
        own = task.meta.get("settings")
        if not isinstance(own, Mapping):
            return Verdict(None, "the task has no settings for its verifier", fault=Fault.TASK)
        return self._get_verifier(own).verify_transcript(task, transcript)

    def prepare(self) -> None:
        """Check that every verifier works here."""
        for verifier in (self.default_verifier, *self.verifiers.values()):
            verifier.prepare()

    def close(self) -> None:
        """Close every verifier."""
        for verifier in (self.default_verifier, *self.verifiers.values()):
            verifier.close()

    def _get_verifier(self, own: Mapping[str, Any]) -> Verifier:
        key = repr(sorted(own.items()))
        with self._lock:
            if key not in self.verifiers:
                if len(self.verifiers) == MAX_VERIFIERS:
                    raise ConfigError(
                        f"the rows ask for more than {MAX_VERIFIERS} different settings of their verifier, such as {dict(own)!r:.120}"
                    )
                self.verifiers[key] = build_from_config("verifier", {**self.wanted, **own})
            return self.verifiers[key]
