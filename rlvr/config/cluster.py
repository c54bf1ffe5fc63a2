"""The section `cluster` of a configuration: who samples, where one machine is not enough."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from rlvr.config.section import Section


class ClusterConfig(Section):
    """Collectors: processes on the machines of a Ray cluster that sample and judge whole groups. The run itself stays the driver.

    What is sampled is the same for every number of collectors, whichever of them are lost. 0 collectors: this process samples in the
    same units, without Ray, so that a cluster can be compared with it.

    >>> ClusterConfig(collectors=4).address
    'local'
    """

    address: str = "local"
    """`local` starts a cluster on this machine for the time of the run, `auto` joins that of this machine; else HOST:PORT."""
    collectors: int = Field(default=1, ge=0)  # how many processes sample
    cpus: float = Field(default=1.0, ge=0)  # that each collector reserves
    gpus: float = Field(default=0.0, ge=0)  # that each collector reserves
    judges: int = Field(default=0, ge=0)
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
    group_s: float = Field(default=3600.0, gt=0)
    """How long a collector may take for one call; then its process is ended, and another one samples the groups."""

    @model_validator(mode="after")
    def _audit_compares(self) -> Self:
        if self.audit and self.collectors < 2:
            raise ValueError(f"audit is {self.audit:g}, which compares collectors, and collectors is {self.collectors}; have 2 or more")
        return self
