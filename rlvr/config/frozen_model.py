"""The section `frozen_models` of a configuration: the models that score the policy's tokens and are not trained."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from rlvr.config.hub import resolve_model_folder
from rlvr.config.section import Section


class FrozenModelConfig(Section):
    """A model that scores the policy's tokens: the reference of a KL penalty, a teacher, or another one that the algorithm names.

    >>> FrozenModelConfig(path="runs/teacher/checkpoints/last").revision is None
    True
    """

    path: str = Field(min_length=1)
    """A folder or a Hub id of a model with the policy's tokenizer. It is loaded again when a run is resumed."""
    revision: str | None = None  # a commit, tag or branch of a model of the Hub

    @property
    def local_folder(self) -> Path:
        """The local folder; a model of the Hub is downloaded first."""
        return resolve_model_folder(self.path, self.revision)
