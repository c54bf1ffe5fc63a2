"""The section `rollout` of a configuration: how episodes are sampled."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, PrivateAttr, field_validator

from rlvr.config.section import Section, normalize_plugin


class CurriculumConfig(Section):
    """Prefer tasks that are sometimes solved, by their running solve rate; `{}` uses the defaults.

    >>> CurriculumConfig(meta_key="level").candidates_per_task
    4
    """

    ema_decay: float = Field(default=0.7, ge=0, lt=1)
    """The weight of the old solve rate when a group updates it (exponential moving average)."""
    min_weight: float = Field(default=0.05, gt=0, le=1)
    """The minimum weight of a task; a task that is solved half of the time has weight 1."""
    candidates_per_task: int = Field(default=4, ge=1)
    """The number of candidate tasks per sampled task."""
    meta_key: str | None = None
    """A key of the tasks' meta, such as level: tasks with the same value share a rate. Unset: each task has its own."""


class RolloutConfig(Section):
    """Settings of sampling and verification.

    >>> RolloutConfig(prompts_per_step=32, num_generations=16).num_generations
    16
    """

    sampler: dict[str, Any] = Field(default_factory=lambda: {"name": "hf"})
    """The sampler: a name, or {name: ..., setting: value}; `rlvr list samplers` shows the names."""
    prompts_per_step: int = Field(default=32, ge=1)  # the number of tasks per step
    num_generations: int = Field(default=8, ge=1)  # completions per task: a group
    max_new_tokens: int | None = Field(default=None, ge=1)
    """The maximum number of tokens of a completion, over all turns. Unset: the environment's limit."""
    max_turn_tokens: int | None = Field(default=None, ge=1)
    """The maximum number of tokens of a turn; a longer turn is truncated, and the conversation continues. Unset: no such limit."""
    max_length: int | None = Field(default=None, ge=2)
    """The maximum number of tokens of a whole conversation, including the prompt."""
    episode_timeout_s: float | None = Field(default=None, gt=0)
    """After this time of sampling and replies a conversation ends with its current turn. The run is then not bitwise repeatable."""
    temperature: float = Field(default=1.0, gt=0)
    """The temperature of sampling, also applied to the log-probabilities in training. data.* runs and best_of_n train at temperature 1."""
    top_p: float = Field(default=1.0, gt=0, le=1)  # nucleus sampling
    top_k: int = Field(default=0, ge=0)  # sample from the k likeliest tokens; 0: from all
    curriculum: CurriculumConfig | None = None
    canary_fraction: float = Field(default=0.0, ge=0, le=0.5)
    """How many answers to unsolvable canary tasks are sampled per regular answer, such as 0.01. A rewarded canary proves a verifier
    loophole."""
    max_rewarded_canaries: int = Field(default=3, ge=0)
    """The number of rewarded canaries after which the run stops."""
    max_staleness: int = Field(default=0, ge=0)
    """The number of steps that sampling runs ahead of training, with weights that much older; 0: sampling and training alternate."""
    partial_rollout_tokens: int | None = Field(default=None, ge=1)
    """Partial rollouts: a longer completion is interrupted after this many tokens and continues in the next step, with new weights. A group
    is trained on when its last completion has ended. For single-turn environments. Unset: no partial rollouts."""
    sync_turns: bool | Literal["auto"] = "auto"
    """Whether all conversations wait for the slowest one before each turn. False is faster with slow tools or sessions; True makes a run
    bitwise repeatable. auto: True for deterministic runs, and where it costs nothing (no tools, no stateful sessions)."""
    max_concurrent_calls: int = Field(default=32, ge=1)  # the number of concurrent verifications, and of concurrent replies
    call_timeout_s: float = Field(default=600.0, gt=0)
    """The timeout of one verification, or of one reply of the environment or its tools; after it the episode has no score."""

    _has_off_policy_source: bool = PrivateAttr(default=False)
    """Whether a batch source of the user's trains on episodes of older weights."""

    @field_validator("sampler", mode="before")
    @classmethod
    def _normalize_plugin(cls, value: Any) -> Any:
        return normalize_plugin(value)

    @property
    def is_off_policy(self) -> bool:
        """Whether tokens may come from older weights than those being trained."""
        return bool(self.max_staleness or self.partial_rollout_tokens or self._has_off_policy_source)

    def copy_for_off_policy_source(self) -> RolloutConfig:
        """Return a copy for a batch source that trains on episodes of older weights."""
        copied = self.model_copy()
        copied._has_off_policy_source = True
        return copied

    @property
    def rollout_kwargs(self) -> dict[str, Any]:
        """The keyword arguments of `Rollout`."""
        return {
            "max_concurrent_calls": self.max_concurrent_calls,
            "call_timeout_s": self.call_timeout_s,
            "episode_timeout_s": self.episode_timeout_s,
            "partial_rollout_tokens": self.partial_rollout_tokens,
        }

    @property
    def token_limits(self) -> dict[str, Any]:
        """The length limits, as keyword arguments of `TokenMDP`."""
        return {"max_new_tokens": self.max_new_tokens, "max_length": self.max_length, "max_turn_tokens": self.max_turn_tokens}
