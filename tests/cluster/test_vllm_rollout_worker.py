"""A collector whose sampler is a vLLM engine in its own process: new weights are loaded in place, and stale ones are refused."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from rlvr.cluster.rollout_worker import RolloutWorker, WorkerSettings
from rlvr.cluster.training import train
from rlvr.cluster.weights.packing import WeightPacker
from rlvr.contracts import SamplingParams
from rlvr.errors import ConfigError, SamplerError
from rlvr.rollout.episode_encoding import EncodedEpisodes, decode_episodes
from rlvr.rollout.rollout_request import RolloutRequest, derive_seed
from tests.fixtures.tiny import MODEL, tiny_run

HEADS = MODEL | {"hidden_size": 64}
"""Heads of 32: the smallest that the engine's CPU kernels take."""


@pytest.mark.vllm
def test_a_collector_samples_from_an_engine_in_its_process_with_the_weights_of_its_version() -> None:
    sampler = {"name": "vllm", "kv_cache_gb": 0.25, "max_num_seqs": 16}
    config = tiny_run(model={"config": HEADS}, rollout={"prompts_per_step": 4, "num_generations": 4, "sampler": sampler}, cluster={})
    with closing(RolloutWorker(config, WorkerSettings("float32", False, 1))) as made:
        unit = [RolloutRequest(made.rollout.mdp.environment.task("train", 1), "1:1", derive_seed(member)) for member in range(8)]
        how = SamplingParams(stop_ids=made.rollout.mdp.tokenizer.stop_ids)
        assert made.model is not None
        said = []
        for version, sharper in enumerate((1.0, 30.0)):
            for weight in made.model.parameters():
                weight.data *= sharper
            made.load_weights(
                version, [WeightPacker("whole", "float32", converts_vectors=False).pack(made.model.state_dict(keep_vars=True))]
            )
            figures = made.sampler.get_weight_probe_metrics()
            assert figures and max(figures.values()) < 1e-2  # the probe has compared the engine with these weights
            with pytest.raises(SamplerError, match=f"version {version + 1} of the weights, but this rollout worker has version {version}"):
                made.run_task(version + 1, unit, how, 0)
            first, again = (made.run_task(version, unit, how, version)[0] for _ in range(2))
            assert first == again
            said.append([(episode.tokens, episode.logprobs) for episode in decode_episodes(EncodedEpisodes.from_bytes(first))[0]])
        assert said[0] != said[1]


@pytest.mark.vllm
def test_engines_in_processes_of_their_own_are_refused_in_a_sentence(tmp_path: Path) -> None:
    config = tiny_run(rollout={"prompts_per_step": 4, "num_generations": 4, "sampler": {"name": "vllm", "placement": "local"}}, cluster={})
    with pytest.raises(ConfigError, match=r"'vllm' has its own processes; .* such as hf, or vllm with placement: colocated"):
        train(config, out=tmp_path / "run")
