"""The plan of an evaluation: what is sampled and how it is verified; and how an evaluation is extended.

With more tasks, more answers for each, or another environment, stored samples stay valid, because the seed of a sample depends only on its
task and its number. A plan never shrinks.
"""

from __future__ import annotations

from typing import Any

import yaml
from pydantic import Field

from rlvr.config.section import Section
from rlvr.contracts import SamplingParams
from rlvr.errors import ConfigError
from rlvr.evaluation.object_digest import is_changed
from rlvr.evaluation.suite import SuiteItem
from rlvr.plugin_files import shorten_plugin_files
from rlvr.runs.run_log import list_config_differences

OBJECT_PREFIXES = ("object:", "function:")
"""How a plan names a policy that was given as an object."""


class EvalPlan(Section):
    """All settings that affect sampling and verification of an evaluation.

    >>> EvalPlan(suite="quick", policy="scripted:gold", envs=[SuiteItem(env={"name": "arithmetic"})]).n
    1
    """

    suite: str
    policy: str
    policy_folder: str = ""
    """The resolved path of the policy's folder: `checkpoints/last` is a link whose target changes."""
    policy_weights: str = ""
    """A digest of its weights: the folder may contain another model later."""
    n: int = Field(default=1, ge=1)
    temperature: float = Field(default=0.0, ge=0)
    """`n` and `temperature` apply to environments that do not set their own. If all set their own, these are those of the first."""
    top_p: float = Field(default=1.0, gt=0, le=1)
    top_k: int = Field(default=0, ge=0)
    seed: int = 0
    sampler: dict[str, Any] = Field(default_factory=dict)
    """Settings of the policy's sampler that affect what is sampled."""
    envs: list[SuiteItem]
    verifiers: dict[str, str] = Field(default_factory=dict)
    """Name in the suite to verifier and version."""
    objects: dict[str, str] = Field(default_factory=dict)
    """Name in the suite to a digest of an environment that was given as an object, with its verifier."""
    earlier_stages: dict[str, list[list[int]]] = Field(default_factory=dict)
    """Name in the suite to its earlier sizes (tasks, answers for each), one entry for each extension of the evaluation."""
    rescored_from: str = ""
    """The run whose samples were rescored, if nothing was sampled."""

    def get_samples_per_task(self, item: SuiteItem) -> int:
        """Return the number of answers for each task of one environment."""
        return item.n or self.n

    def get_temperature(self, item: SuiteItem) -> float:
        """Return the temperature for one environment; 0 is greedy."""
        return self.temperature if item.temperature is None else item.temperature

    def make_sampling(self, item: SuiteItem, stop_ids: frozenset[int]) -> SamplingParams:
        """Make the sampling parameters for one environment."""
        top_p, top_k = (getattr(self, name) if (own := getattr(item, name)) is None else own for name in ("top_p", "top_k"))
        return SamplingParams(self.get_temperature(item), top_p, top_k, stop_ids)

    @property
    def sampling_summary(self) -> str:
        """Number of answers and sampling settings in words, by environment if they differ.

        Example: 'n = 4, temperature 1 (arithmetic); n = 1, greedy (countdown, digit_sum)'
        """
        names: dict[str, list[str]] = {}
        for item in self.envs:
            n, temperature = self.get_samples_per_task(item), self.get_temperature(item)
            cut = "".join(f", {key} {own:g}" for key in ("top_p", "top_k") if (own := getattr(item, key)) is not None)
            names.setdefault(f"n = {n}, {f'temperature {temperature:g}' if temperature else 'greedy'}{cut}", []).append(item.name)
        return next(iter(names)) if len(names) == 1 else "; ".join(f"{way} ({', '.join(of)})" for way, of in names.items())

    def normalize_for_comparison(self, other: EvalPlan) -> EvalPlan:
        """Normalize the plan for comparison with `other`: older plans have fewer fields; a deleted folder and the folder of a plugin's
        file are no differences.
        """
        same = {"call_timeout_s": None}  # no difference, because timed-out samples are retried
        envs = [
            item.model_copy(
                update={
                    "n": self.get_samples_per_task(item),
                    "temperature": self.get_temperature(item),
                    "env": shorten_plugin_files(item.env),
                    **same,
                }
            )
            for item in self.envs
        ]
        known = {name: getattr(self, name) if getattr(other, name) else "" for name in ("policy_folder", "policy_weights")}
        known["objects"] = {}  # two digests may be of two versions of Python: `list_changed_objects` compares them
        if not is_changed(self.policy_weights, other.policy_weights):
            known["policy_weights"] = ""
        return self.model_copy(update={"envs": envs, "n": 1, "temperature": 0.0, "earlier_stages": {}, **known})

    def list_changed_objects(self, other: EvalPlan) -> list[str]:
        """List the environments that were given as objects to both plans, and have other code, other settings or another verifier."""
        return [name for name, digest in self.objects.items() if is_changed(digest, other.objects.get(name, ""))]

    def find_extension_stage(self, name: str, index: int, sample: int) -> int:
        """Return the stage of a sample: 0 is the first plan, 1 the first extension, and so on.

        >>> EvalPlan(suite="s", policy="p", envs=[], earlier_stages={"e": [[40, 4]]}).find_extension_stage("e", 40, 0)
        1
        """
        sizes = self.earlier_stages.get(name, [])
        return next((place for place, (tasks, n) in enumerate(sizes) if index < tasks and sample < n), len(sizes))

    def to_yaml(self) -> str:
        """Convert the plan to YAML."""
        return str(yaml.safe_dump(self.model_dump(mode="json", exclude_defaults=True), sort_keys=False, allow_unicode=True))


def merge_plans(old: EvalPlan, new: EvalPlan, folder: str) -> EvalPlan:
    """Return the plan to continue a folder with: the new one, if it equals or extends the old one; ConfigError otherwise."""
    was, now = old.normalize_for_comparison(new), new.normalize_for_comparison(old)
    sizes = {item.name: (item.tasks, item.n or 1) for item in was.envs}
    kept = [item for item in now.envs if item.name in sizes]
    if len(kept) == len(was.envs):
        same = [item.model_copy(update=dict(zip(("tasks", "n"), sizes[item.name], strict=True))) for item in kept]
        verifiers = {name: label for name, label in now.verifiers.items() if name in old.verifiers}
        now = now.model_copy(update={"envs": same, "verifiers": verifiers})
    if names := old.list_changed_objects(new):
        raise ConfigError(
            f"{folder} has answers that were judged by other code or other settings of {', '.join(names)} or of the verifier; choose another "
            "--out (out=), or remove the folder"
        )
    if old.policy == new.policy and old.policy.startswith(OBJECT_PREFIXES) and is_changed(old.policy_weights, new.policy_weights):
        raise ConfigError(
            f"{folder} has answers of this policy before its code or its weights changed; choose another --out (out=), or remove the folder"
        )
    if changed := list_config_differences(was, now):
        raise ConfigError(f"{folder} was begun with another plan ({'; '.join(changed)}); use the same plan, or choose another --out")
    for item in kept:
        if item.tasks < sizes[item.name][0] or (item.n or 1) < sizes[item.name][1]:
            had = "{} tasks with n = {}".format(*sizes[item.name])
            raise ConfigError(
                f"{folder} has {had} of {item.name}, and {item.tasks} with n = {item.n} are asked for; an evaluation grows, and never "
                "shrinks; ask for as many, or choose another --out"
            )
    grew = {item.name: [[*sizes[item.name]]] for item in kept if (item.tasks, item.n or 1) != sizes[item.name]}
    stages = {name: [*old.earlier_stages.get(name, []), *grew.get(name, [])] for name in sizes}
    return new.model_copy(update={"earlier_stages": {name: sizes for name, sizes in stages.items() if sizes}})
