"""The section `cluster` of a configuration: who samples, where one machine is not enough."""

from __future__ import annotations

import re
from typing import Literal, Self

from pydantic import Field, ValidationInfo, field_validator, model_validator

from rlvr.config.section import Section

ADDRESS = re.compile(r"([\w.-]+|\[[0-9a-fA-F:]+\]):\d{1,5}")
PARTS = 10_000
"""Into how many parts Ray divides a processor."""


class ClusterConfig(Section):
    """Collectors: processes on the machines of a Ray cluster that sample and judge whole groups. The run itself stays the driver.

    What is sampled is the same for every number of collectors, whichever of them are lost. 0 collectors: this process samples in the
    same units, without Ray, so that a cluster can be compared with it.

    >>> ClusterConfig(collectors=4).address
    'local'
    """

    address: str = "local"
    """`local` starts a cluster on this machine for the time of the run, `auto` joins that of this machine; else HOST:PORT."""
    collectors: int = Field(default=1, ge=0, le=10_000)  # how many processes sample
    cpus: float = Field(default=1.0, ge=0)  # that each collector reserves
    gpus: float = Field(default=0.0, ge=0)  # that each collector reserves
    judges: int = Field(default=0, ge=0, le=10_000)
    """How many processes judge, on machines of their own choice; 0: each collector judges what it sampled."""
    judge_cpus: float = Field(default=1.0, ge=0)  # that each judge host reserves; it judges rollout.verify_workers answers at once
    groups_per_call: int = Field(default=1, ge=1)
    """How many groups are sampled together. More are faster, and more is sampled again where a collector is lost."""
    backups: float = Field(default=0.0, ge=0, le=1)
    """When this share of a step's calls is left, collectors without work sample second copies of them; the first that ends counts."""
    restarts: int = Field(default=5, ge=0)
    """How often each collector is started again in a run; after that the run continues with fewer."""
    resumes: int = Field(default=0, ge=0)
    """How often a run that has lost all its collectors resumes by itself, from its newest checkpoint, after a pause that doubles each time.

    0, as in Ray Train (`FailureConfig.max_failures`): what ends every collector often ends the next ones too, and costs machine time.
    """
    losses: int = Field(default=4, ge=2)
    """After a call has lost its collector so often, its answers are left out, without a score: they may be what ends it."""
    audit: float = Field(default=0.0, ge=0, le=1)
    """The share of calls that are sampled twice and compared, if two collectors have them: finds a machine that computes wrongly."""
    weights: Literal["whole", "delta"] = "whole"
    """How new weights are sent: whole, or what changed since the version before, which is a few percent of bfloat16 weights."""
    place_s: float = Field(default=120.0, gt=0)
    """How long Ray may take to find a machine with room for a collector, and to start a process there."""
    start_s: float = Field(default=300.0, gt=0)
    """How long a collector may take to start, or to load weights."""
    pulse_s: float = Field(default=15.0, gt=0)
    """How long a collector or a judge host may give no sign of life; then it is ended. One long call in C that lets nothing else run, such
    as a regular expression that tries everything, is silence too."""
    group_s: float = Field(default=3600.0, gt=0)
    """How long a collector may take for one call; then its process is ended, and another one samples the groups."""

    @field_validator("address")
    @classmethod
    def _address(cls, address: str) -> str:
        if address not in ("local", "auto") and not ADDRESS.fullmatch(address):
            raise ValueError(f"it is {address!r}; allowed: local, auto, or HOST:PORT as `ray start --head` prints it (not ray://)")
        return address

    @field_validator("cpus", "gpus", "judge_cpus")
    @classmethod
    def _in_parts(cls, amount: float, about: ValidationInfo) -> float:
        if abs(amount * PARTS - round(amount * PARTS)) > 1e-6:
            raise ValueError(f"it is {amount:g}; Ray shares processors out in steps of {1 / PARTS:g}; write for example 0.5")
        if about.field_name == "gpus" and amount > 1 and amount != int(amount):
            raise ValueError(f"it is {amount:g}; more than one GPU must be a whole number of them, such as {int(amount)}")
        return amount

    @model_validator(mode="after")
    def _audit_compares(self) -> Self:
        if self.audit and self.collectors < 2:
            raise ValueError(f"audit is {self.audit:g}, which compares collectors, and collectors is {self.collectors}; have 2 or more")
        return self
