"""The section `reference` of a configuration: a separate reference model."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from rlvr.config.hub import resolve_model_folder
from rlvr.config.section import Section


class ReferenceConfig(Section):
    """A separate reference model: the teacher of a distillation, or the anchor of a KL penalty.

    >>> ReferenceConfig(path="runs/teacher/checkpoints/last").revision is None
    True
    """

    path: str = Field(min_length=1)
    """A folder or a Hub id of a model with the policy's tokenizer. It is loaded again when a run is resumed."""
    revision: str | None = None  # a commit, tag or branch of a model of the Hub

    @property
    def local_folder(self) -> Path:
        """The local folder; a model of the Hub is downloaded first."""
        return resolve_model_folder(self.path, self.revision)
