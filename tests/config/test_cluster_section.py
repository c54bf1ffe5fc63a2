"""The section `cluster`: what is refused, in one sentence each."""

from __future__ import annotations

from typing import Any

import pytest

from rlvr.config.cluster import ClusterConfig
from rlvr.config.section import validate_section
from rlvr.errors import ConfigError


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"rollout_workers": -1}, "rollout_workers: input should be greater than or equal to 0, got -1"),
        ({"rollout_workers": "3"}, "rollout_workers: input should be a valid integer, got '3'"),
        ({"rollout_workers": 10**9}, "rollout_workers: input should be less than or equal to 10000"),
        ({"cpus_per_rollout_worker": float("nan")}, "cpus_per_rollout_worker: input should be a finite number"),
        (
            {"cpus_per_rollout_worker": 0.00001},
            "cpus_per_rollout_worker: it is 1e-05; Ray shares processors out in steps of 0.0001; write for example 0.5",
        ),
        ({"cpus_per_verifier_worker": 0.12345}, "cpus_per_verifier_worker: it is 0.12345; Ray shares processors out"),
        (
            {"gpus_per_rollout_worker": 1.5},
            "gpus_per_rollout_worker: it is 1.5; more than one GPU must be a whole number of them, such as 1",
        ),
        ({"address": "ray://head:10001"}, r"address: it is 'ray://head:10001'; allowed: local, auto, or HOST:PORT as `ray start --head`"),
        ({"address": ""}, "address: it is ''; allowed: local, auto, or HOST:PORT"),
        ({"address": "head:xx"}, "address: it is 'head:xx'; allowed: local, auto, or HOST:PORT"),
        ({"address": "head:99999"}, "address: it is 'head:99999'; allowed: local, auto, or HOST:PORT"),
        ({"heartbeat_timeout_s": 0}, "heartbeat_timeout_s: input should be greater than 0, got 0"),
        ({"rollout_worker": 2}, "there is no key 'rollout_worker'; did you mean 'rollout_workers'"),
    ],
)
def test_what_a_cluster_cannot_be_is_one_sentence(given: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        validate_section(ClusterConfig, given, "cluster")


@pytest.mark.parametrize(
    "given",
    [
        {"address": "[fe80::1]:6379"},
        {"address": "head-1.my_net:6379"},
        {"cpus_per_rollout_worker": 1.5},
        {"gpus_per_rollout_worker": 0.3333},
        {"gpus_per_rollout_worker": 2},
    ],
)
def test_what_a_cluster_can_be(given: dict[str, Any]) -> None:
    validate_section(ClusterConfig, given, "cluster")
