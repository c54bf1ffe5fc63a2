"""The section `rollout` of a configuration: how episodes are sampled."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, field_validator

from rlvr.config.section import Section, named


class CurriculumConfig(Section):
    """Prefer tasks that are sometimes solved, by their running solve rate; `{}` takes the defaults.

    >>> CurriculumConfig(by="level").candidates
    4
    """

    decay: float = Field(default=0.7, ge=0, lt=1)
    """The weight of the old rate when a group updates it."""
    floor: float = Field(default=0.05, gt=0, le=1)
    """The smallest weight of a task; a task that is solved half of the time has weight 1."""
    candidates: int = Field(default=4, ge=1)
    """How many candidate tasks are considered for each task that is sampled."""
    by: str | None = None
    """A key of the tasks' meta, such as level: tasks with the same value share a rate. Unset: each task has its own."""


class RolloutConfig(Section):
    """How episodes are sampled.

    >>> RolloutConfig(prompts_per_step=32, num_generations=16).num_generations
    16
    """

    sampler: dict[str, Any] = Field(default_factory=lambda: {"name": "hf"})  # `rlvr list samplers`
    prompts_per_step: int = Field(default=32, ge=1)  # how many tasks are asked in each step
    num_generations: int = Field(default=8, ge=1)  # answers to each of them: a group
    max_completion_length: int | None = Field(default=None, ge=1)
    """The most tokens of an answer, all turns together. Unset: what the environment says."""
    max_turn_length: int | None = Field(default=None, ge=1)
    """The most tokens of a turn; a longer one is cut, and the conversation continues. Unset: max_completion_length alone."""
    max_length: int | None = Field(default=None, ge=2)
    """The most tokens of a prompt and all that follows."""
    episode_s: float | None = Field(default=None, gt=0)
    """After so many seconds of sampling and replies a conversation ends with its present turn. Such a run is not repeatable to the bit."""
    overlong: Literal["wait", "cut"] = "wait"
    """`cut` ends the last conversation of a group where it has as many turns as the longest of the others, once those are over; it is
    judged as it is. An answer of one turn is not cut. Such a run is not repeatable to the bit."""
    temperature: float = Field(default=1.0, gt=0)  # and what is trained; data.* runs and best_of_n train the model at temperature 1
    top_p: float = Field(default=1.0, gt=0, le=1)  # sample from the likeliest tokens of this total probability
    top_k: int = Field(default=0, ge=0)  # sample from so many of the likeliest tokens; 0: from all
    curriculum: CurriculumConfig | None = None
    honeypots: float = Field(default=0.0, ge=0, le=0.5)
    """How many answers to tasks that cannot be solved are sampled for each other answer, such as 0.01. One that is paid proves a hole."""
    honeypot_limit: int = Field(default=3, ge=0)
    """How many of them may be paid before the run stops."""
    max_staleness: int = Field(default=0, ge=0)
    """How many steps ahead batches are sampled, by weights that are that many steps old; 0: sampling and training alternate."""
    max_tokens_per_version: int | None = Field(default=None, ge=1)
    """An answer that is longer is cut after so many tokens in each step and continues in the next one, by that step's weights. Its group
    is trained on in the step in which its last answer ends. For environments of one turn. Unset: every answer ends in its step."""
    lockstep: bool | None = None
    """Whether all conversations wait for the slowest before each turn. Faster without, where tools or sessions are slow; with it, a
    repeated run has the same bits. Unset: in a deterministic run, and where it costs nothing (no tools, no sessions of its own)."""
    verify_workers: int = Field(default=32, ge=1)  # how many answers are judged at once, and replies given at once
    verify_deadline_s: float = Field(default=600.0, gt=0)
    """How long one verification, or one reply of the environment or its tools, may take; then the answer has no score."""

    @field_validator("sampler", mode="before")
    @classmethod
    def _named(cls, value: Any) -> Any:
        return named(value)

    @property
    def stale(self) -> bool:
        """Whether tokens may come from weights older than those that are trained."""
        return bool(self.max_staleness or self.max_tokens_per_version)

    @property
    def collecting(self) -> dict[str, Any]:
        """How answers are collected, under the names that a rollout has for it."""
        asked = {"workers": self.verify_workers, "deadline_s": self.verify_deadline_s, "episode_s": self.episode_s}
        return asked | {"overlong": self.overlong, "most": self.max_tokens_per_version}

    @property
    def limits(self) -> dict[str, Any]:
        """The limits on an answer, under the names that the rules of the MDP have for them."""
        return {"max_new_tokens": self.max_completion_length, "max_length": self.max_length, "max_turn_tokens": self.max_turn_length}
