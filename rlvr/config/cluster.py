"""The section `cluster` of a configuration: distributed sampling with Ray."""

from __future__ import annotations

import re
from typing import Literal, Self

from pydantic import Field, ValidationInfo, field_validator, model_validator

from rlvr.config.section import Section

ADDRESS_PATTERN = re.compile(r"([\w.-]+|\[[0-9a-fA-F:]+\]):\d{1,5}")
CPU_PARTS = 10_000
"""Into how many parts Ray divides a processor."""


class ClusterConfig(Section):
    """Rollout workers: processes on a Ray cluster that sample and verify whole groups. The training process is the driver.

    The samples do not depend on the number of rollout workers, or on failures. With 0 rollout workers, this process samples the same
    tasks without Ray, for comparison.

    >>> ClusterConfig(rollout_workers=4).address
    'local'
    """

    address: str = "local"
    """`local` starts a cluster on this machine for the run, `auto` joins the machine's cluster; otherwise HOST:PORT."""
    rollout_workers: int = Field(default=1, ge=0, le=10_000)  # the number of sampling processes
    cpus_per_rollout_worker: float = Field(default=1.0, ge=0)
    """The number of CPUs that Ray reserves for each rollout worker."""
    gpus_per_rollout_worker: float = Field(default=0.0, ge=0)
    """The number of GPUs that Ray reserves for each rollout worker."""
    verifier_workers: int = Field(default=0, ge=0, le=10_000)
    """The number of verification processes, placed by Ray; 0: each rollout worker verifies its own samples."""
    cpus_per_verifier_worker: float = Field(
        default=1.0, ge=0
    )  # CPUs per verifier worker, which runs rollout.max_concurrent_calls verifications at once
    groups_per_task: int | None = Field(default=None, ge=1)
    """The number of whole groups in one rollout task, which one worker samples in one call. Larger tasks are faster, but more is lost
    if a rollout worker fails. Unset: 1, or groups of 64 completions together for an engine such as vLLM, which samples many at a time."""
    backup_task_fraction: float = Field(default=0.0, ge=0, le=1)
    """When this fraction of a step's tasks is left, idle rollout workers run copies of them; the first result counts."""
    max_restarts_per_worker: int = Field(default=5, ge=0)
    """The maximum number of restarts of each rollout worker; after that the run continues with fewer workers."""
    max_resumes_after_all_rollout_workers_lost: int = Field(default=0, ge=0)
    """How often a run whose rollout workers all failed resumes from its newest checkpoint, after a pause that doubles each time.

    The default is 0, as in Ray Train (`FailureConfig.max_failures`), because the cause often persists and costs machine time.
    """
    max_lost_workers_per_task: int = Field(default=4, ge=2)
    """A rollout task that has lost this many workers is abandoned, and its completions have no score: they may be the cause."""
    resample_fraction: float = Field(default=0.0, ge=0, le=1)
    """The fraction of rollout tasks that a second rollout worker samples too, to detect a machine that computes wrongly."""
    weight_transfer: Literal["whole", "delta"] = "whole"
    """How new weights are sent: completely, or as the difference to the previous version (a few percent for bfloat16)."""
    placement_timeout_s: float = Field(default=120.0, gt=0)
    """The timeout for Ray to place a rollout worker and to start its process."""
    startup_timeout_s: float = Field(default=300.0, gt=0)
    """The timeout for a rollout worker to start, or to load weights."""
    heartbeat_timeout_s: float = Field(default=15.0, gt=0)
    """The heartbeat timeout of a worker, after which it is killed. A long C call that holds the GIL (for example a backtracking regular
    expression) also blocks the heartbeat."""
    task_timeout_s: float = Field(default=3600.0, gt=0)
    """The timeout of one task; after it the rollout worker is killed, and another one samples the groups."""

    @field_validator("address")
    @classmethod
    def _check_address(cls, address: str) -> str:
        if address in ("local", "auto"):
            return address
        if not ADDRESS_PATTERN.fullmatch(address) or not 0 < int(address.rpartition(":")[2]) < 1 << 16:
            raise ValueError(f"it is {address!r}; allowed: local, auto, or HOST:PORT as `ray start --head` prints it (not ray://)")
        return address

    @field_validator("cpus_per_rollout_worker", "gpus_per_rollout_worker", "cpus_per_verifier_worker")
    @classmethod
    def _check_resource_amount(cls, amount: float, about: ValidationInfo) -> float:
        if abs(amount * CPU_PARTS - round(amount * CPU_PARTS)) > 1e-6:
            raise ValueError(f"it is {amount:g}; Ray shares processors out in steps of {1 / CPU_PARTS:g}; write for example 0.5")
        if about.field_name == "gpus_per_rollout_worker" and amount > 1 and amount != int(amount):
            raise ValueError(f"it is {amount:g}; more than one GPU must be a whole number of them, such as {int(amount)}")
        return amount

    @model_validator(mode="after")
    def _check_audit(self) -> Self:
        if self.resample_fraction and self.rollout_workers < 2:
            raise ValueError(
                f"resample_fraction is {self.resample_fraction:g}, but rollout_workers is {self.rollout_workers}; set it to 2 or more to compare them"
            )
        return self
