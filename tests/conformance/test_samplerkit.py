"""The kit of samplers: the shipped one passes it, and each defect is found by the check that is named after it."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlvr.conformance import check_sampler, list_failures
from rlvr.contracts import SamplerTraits, Weights
from rlvr.errors import ConfigError
from rlvr.models.plain_weights import PlainWeights
from tests.fixtures.pages import ROOT, blocks_of

HEAD = '''
from dataclasses import replace
from rlvr.contracts import Request, SamplingParams
from rlvr.samplers.hf import HFSampler


class Broken(HFSampler):
    """Broken on purpose."""

    def stream_completions(self, requests, sampling):
        for place, completion in super().stream_completions(requests, sampling):
            yield place, self.change(completion)

    def change(self, completion):
        return completion

'''
BROKEN = {
    "it says what it is for": "    __doc__ = ''",
    "without weights it says so in words": """
    def stream_completions(self, requests, sampling):
        assert self.model is not None
        yield from super().stream_completions(requests, sampling)
""",
    "it loads weights": "    def update_weights(self, weights, version): raise ValueError('no')",
    "each request gets one completion, within its limit": """
    def stream_completions(self, requests, sampling):
        yield from super().stream_completions([replace(request, max_tokens=request.max_tokens + 1) for request in requests], sampling)
""",
    "a completion ends at its first stop id": """
    def stream_completions(self, requests, sampling):
        yield from super().stream_completions(requests, replace(sampling, stop_ids=frozenset()))
""",
    "requests of a queue get the same completions": """
    def stream_from_queue(self, queue, sampling):
        yield from list(super().stream_from_queue(queue, sampling))[:-1]
""",
    "the same seed samples the same, and other seeds do not": """
    def stream_completions(self, requests, sampling):
        yield from super().stream_completions([replace(request, seed=0) for request in requests], sampling)
""",
    "log-probabilities are those of the sampled distribution": """
    def change(self, completion):
        return replace(completion, logprobs=[x * 0.7 for x in completion.logprobs])
""",
    "at temperature 0 the likeliest token is chosen": """
    def stream_completions(self, requests, sampling):
        yield from super().stream_completions(requests, replace(sampling, temperature=sampling.temperature or 1.0))
""",
    "of the one likeliest token (top_k) that one is chosen, or top_k is refused": """
    def stream_completions(self, requests, sampling):
        yield from super().stream_completions(requests, replace(sampling, top_k=0))
""",
    "new weights change what is sampled": """
    def update_from_model(self, model, version):
        if self.model is None:
            super().update_from_model(model, version)
""",
    "after sleep it samples from the next weights": """
    def sleep(self):
        self.change = lambda completion: replace(completion, tokens=[1] * len(completion.tokens))
""",
    "it can be closed twice": """
    def close(self):
        del self.model
""",
}
OWN_SAMPLER = next(block.text for block in blocks_of(ROOT / "docs" / "sampling.md") if block.file == "my_sampler.py")


def write(folder: Path, code: str) -> str:
    (folder / "mine.py").write_text(code)
    return f"{folder / 'mine.py'}:{'Broken' if code.startswith(HEAD) else 'Plain'}"


def test_the_shipped_sampler_passes() -> None:
    assert list_failures(check_sampler("hf")) == []


@pytest.mark.parametrize("defect", BROKEN)
def test_each_defect_is_found(tmp_path: Path, defect: str) -> None:
    failures = list_failures(check_sampler(write(tmp_path, f"{HEAD}{BROKEN[defect]}\nmake = Broken\n")))
    assert any(failure.startswith(defect) for failure in failures), failures


def test_tokens_without_weights_are_found(tmp_path: Path) -> None:
    invented = """
    def stream_completions(self, requests, sampling):
        if self.model is None:
            yield from ((place, Completion([5], [-1.0], "length")) for place, _ in enumerate(requests))
        else:
            yield from super().stream_completions(requests, sampling)
"""
    code = HEAD.replace("import Request,", "import Completion, Request,") + invented
    failures = list_failures(check_sampler(write(tmp_path, f"{code}\nmake = Broken\n").replace("Plain", "Broken")))
    assert len(failures) == 1 and "before it had weights" in failures[0]


def test_an_engine_defines_the_update_of_weights_alone(tmp_path: Path) -> None:
    """It gets the weights from everything that has some: the trainer, batches ahead, a model object."""
    engine = OWN_SAMPLER.replace("def update_from_model(self, model, version):", "def update_weights(self, weights, version):")
    engine = engine.replace("self.model = model", "self.model = weights.gather_model()").replace(
        "SamplerTraits()", "SamplerTraits(runs_model=False)"
    )
    assert list_failures(check_sampler(write(tmp_path, engine))) == []


def test_a_sampler_that_loads_no_weights_is_refused_at_its_first_ones(tmp_path: Path) -> None:
    forgot = OWN_SAMPLER.replace("def update_from_model(", "def update(")
    failures = list_failures(check_sampler(write(tmp_path, forgot)))
    assert any("it loads weights" in failure and "define `update_from_model`" in failure for failure in failures), failures


def test_every_sampler_without_weights_says_so() -> None:
    from rlvr.samplers.scripted import ScriptedSampler

    weights: Weights = PlainWeights(None)
    sampler = ScriptedSampler()
    sampler.update_weights(weights, 0)
    sampler.traits = SamplerTraits()
    with pytest.raises(ConfigError, match=r"ScriptedSampler was given weights and loads none.*loads_weights=False"):
        sampler.update_weights(weights, 0)
