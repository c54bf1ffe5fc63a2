"""The conformance kit of samplers: limits, stop ids, seeds, log-probabilities under the sampled distribution, and new weights.

It samples from a model of a few thousand random weights, which the sampler is given as by the trainer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from typing import Any

import torch

from rlvr.config.config import ModelConfig
from rlvr.conformance.check_runner import CheckSkipped, Steps, check_closing_twice, describe_first_problem
from rlvr.contracts import Completion, Request, Sampler, SamplingParams, StaticQueue
from rlvr.errors import ConfigError, RlvrError
from rlvr.mdp.tokenizers import ByteTokenizer
from rlvr.models.model_loading import load_model
from rlvr.models.plain_weights import PlainWeights
from rlvr.registry.plugins import build

MAX_TOKENS = 12
TOLERANCE = 0.02
"""The largest allowed difference of a log-probability from the model's, in float32."""
MODEL = {
    "model_type": "llama",
    "hidden_size": 64,  # with two heads of 32, which vLLM needs on a CPU
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
}


def iter_sampler_checks(name: str, settings: Mapping[str, Any]) -> Steps:
    """Yield the checks of one sampler, in the order in which they run."""
    build_new = partial(build, "sampler", name, **settings)
    made: Any = build_new()
    kit = _SamplerChecks(made, build_new)
    try:
        yield "it can be built", lambda: "" if isinstance(made, Sampler) else f"it is a {type(made).__name__}, not an rlvr.Sampler"
        yield "it says what it is for", kit.check_docstring
        yield "without weights it says so in words", kit.check_missing_weights
        yield "it loads weights", kit.check_loading
        yield "each request gets one completion, within its limit", kit.check_limits
        yield "a completion ends at its first stop id", kit.check_stop_ids
        yield "requests of a queue get the same completions", kit.check_queue
        yield "the same seed samples the same, and other seeds do not", kit.check_seeds
        yield "log-probabilities are those of the sampled distribution", kit.check_logprobs
        yield "at temperature 0 the likeliest token is chosen", kit.check_greedy
        yield "of the one likeliest token (top_k) that one is chosen, or top_k is refused", kit.check_top_k
        yield "new weights change what is sampled", kit.check_new_weights
        yield "after sleep it samples from the next weights", kit.check_sleep
    finally:
        kit.environment.close()
    yield "it can be closed twice", partial(_close_twice, made)


def _close_twice(made: Any) -> str:
    made.close()
    return check_closing_twice(made)


class _SamplerChecks:
    """The checks of one sampler; each begins with the weights of version 0."""

    def __init__(self, sampler: Sampler, build_new: Callable[[], Any]) -> None:
        self.sampler, self.build_new, self.tokenizer, self.version = sampler, build_new, ByteTokenizer(), 0
        self.environment: Any = build("env", "arithmetic")

    @cached_property
    def models(self) -> list[Any]:
        """Two models of the same shape with different weights."""
        return [self.make_model(seed) for seed in (1, 2)]

    def make_model(self, seed: int) -> Any:
        model = load_model(ModelConfig(config=MODEL), self.tokenizer, seed).eval()
        with torch.no_grad():
            model.get_output_embeddings().weight.mul_(20)  # new models are nearly uniform
        return model

    @cached_property
    def requests(self) -> list[Request]:
        """Three members of each of four groups."""
        tasks = [self.environment.task("train", index) for index in range(4)]
        prompts = [self.tokenizer.render(list(task.prompt)) for task in tasks]
        return [
            Request(prompt, MAX_TOKENS, seed=10 * group + member, task=task)
            for group, (task, prompt) in enumerate(zip(tasks, prompts, strict=True))
            for member in range(3)
        ]

    def load(self, model: Any) -> None:
        """Give the sampler the weights of a model, as the trainer does."""
        self.sampler.update_weights(PlainWeights(model), self.version)
        self.version += 1

    def sample(self, requests: Sequence[Request] | None = None, *, temperature: float = 1.0, **params: Any) -> list[Completion]:
        """Sample the kit's requests, or others; every second token id is a stop id, unless `stop_ids` are given."""
        params = {"stop_ids": frozenset(range(0, self.tokenizer.vocab_size, 2)), **params}
        found = self.sampler.sample(self.requests if requests is None else requests, SamplingParams(temperature, **params))
        failed = next((completion.error for completion in found if completion.finish_reason == "error"), None)
        if failed is not None:
            raise RlvrError(f"a completion has finish_reason 'error': {failed}")
        return found

    def require_model(self) -> Any:
        """Return the first model, with its weights loaded; skip the check of a sampler that has no weights, or samples texts."""
        if not self.sampler.traits.loads_weights or self.sampler.traits.text_only:
            raise CheckSkipped("it loads no weights")
        self.load(self.models[0])
        return self.models[0]

    def check_docstring(self) -> str:
        return "" if (type(self.sampler).__doc__ or "").strip() else "its class has no docstring; say what it is for"

    def check_missing_weights(self) -> str:
        if not self.sampler.traits.loads_weights:
            raise CheckSkipped("it loads no weights")
        with self.build_new() as new:
            new.setup(self.environment, self.tokenizer, precision="float32", max_length=128)
            try:
                found = new.sample(self.requests[:1], SamplingParams())
            except RlvrError:
                return ""
            except Exception as error:  # what a user would see instead of a sentence
                return f"asked to sample before it has weights, it raised {type(error).__name__}: {error}; raise rlvr.SamplerError"
        invented = [completion for completion in found if completion.finish_reason != "error"]
        return f"it sampled {invented[0].tokens} before it had weights; raise rlvr.errors.SamplerError" if invented else ""

    def check_loading(self) -> str:
        self.sampler.setup(self.environment, self.tokenizer, precision="float32", max_length=128)
        model = self.require_model()
        if self.sampler.traits.validates_model:
            self.sampler.check_model_support(model)
        return ""

    def check_limits(self) -> str:
        if self.sampler.traits.loads_weights:
            self.require_model()
        requests = [Request(r.prompt, 1 + place % MAX_TOKENS, r.seed, r.task) for place, r in enumerate(self.requests)]
        found = self.sample(requests, stop_ids=self.tokenizer.stop_ids)
        if len(found) != len(requests):
            return f"{len(requests)} requests got {len(found)} completions"
        return describe_first_problem(
            f"{len(c.tokens)} tokens at a limit of {r.max_tokens}" if len(c.tokens) > r.max_tokens else ""
            for r, c in zip(requests, found, strict=True)
        )

    def check_stop_ids(self) -> str:
        self.require_model()
        stops = frozenset(range(0, self.tokenizer.vocab_size, 2))

        def wrong(completion: Completion) -> str:
            tokens, last = completion.tokens, completion.tokens[-1]
            if any(token in stops for token in tokens[:-1]):
                return f"{tokens} goes on after the stop id {next(token for token in tokens if token in stops)}"
            right = "stop" if last in stops else "length"
            if completion.finish_reason != right:
                return f"{tokens} has finish_reason {completion.finish_reason!r}, not {right!r}"
            return (
                ""
                if right == "stop" or len(tokens) == MAX_TOKENS
                else f"{tokens} ends without a stop id after {len(tokens)} of {MAX_TOKENS}"
            )

        return describe_first_problem(map(wrong, self.sample()))

    def check_queue(self) -> str:
        self.require_model()
        params = SamplingParams(stop_ids=frozenset(range(0, self.tokenizer.vocab_size, 2)))
        found = [pair for pair in self.sampler.stream_from_queue(StaticQueue(self.requests), params) if pair is not None]
        if sorted(number for number, _ in found) != list(range(len(self.requests))):
            return f"{len(self.requests)} requests got completions with the numbers {sorted(number for number, _ in found)}"
        return describe_first_problem(
            f"request {number} got {dict(found)[number].tokens}, and {alone.tokens} from sample()"
            for number, alone in enumerate(self.sample())
            if dict(found)[number].tokens != alone.tokens
        )

    def check_seeds(self) -> str:
        self.require_model()
        first, again = [[completion.tokens for completion in self.sample()] for _ in range(2)]
        if first != again:
            return "the same requests were sampled twice and gave different tokens; draw from a generator with `request.seed`"
        others = [Request(r.prompt, r.max_tokens, r.seed + 1_000, r.task) for r in self.requests]
        same = [completion.tokens for completion in self.sample(others)] == first
        return "other seeds gave the same tokens" if same else ""

    def check_logprobs(self) -> str:
        model = self.require_model()
        return describe_first_problem(
            _find_logprob_problem(model, r, c, temperature)
            for temperature in (1.0, 0.7)
            for r, c in zip(self.requests, self.sample(temperature=temperature), strict=True)
        )

    def check_greedy(self) -> str:
        return self.find_unlikely_tokens(self.require_model(), temperature=0.0)

    def check_top_k(self) -> str:
        model = self.require_model()
        try:
            return self.find_unlikely_tokens(model, temperature=1.0, top_k=1)
        except ConfigError as error:
            raise CheckSkipped(f"it refuses top_k: {error}") from error

    def find_unlikely_tokens(self, model: Any, **params: Any) -> str:
        """Sample where each token has only one choice, and describe completions with another."""

        def wrong(request: Request, completion: Completion) -> str:
            if any(completion.logprobs):
                return f"a token without an alternative has log-probability {min(completion.logprobs):g}; its only choice has 0.0"
            best_T = compute_vocab_logprobs(model, request, completion).topk(2).values
            taken_T = compute_vocab_logprobs(model, request, completion).gather(1, torch.tensor(completion.tokens)[:, None])[:, 0]
            behind = float((best_T[:, 0] - taken_T).max())
            return f"a token without an alternative is {behind:.3g} less likely than the likeliest" if behind > TOLERANCE else ""

        return describe_first_problem(wrong(r, c) for r, c in zip(self.requests, self.sample(**params), strict=True))

    def check_new_weights(self) -> str:
        self.require_model()
        before = [completion.tokens for completion in self.sample()]
        trained = self.make_model(1)
        self.load(trained)
        self.sample()
        with torch.no_grad():  # as an optimizer changes them, in the same object
            for weight, new in zip(trained.parameters(), self.models[1].parameters(), strict=True):
                weight.copy_(new)
        for model, how in ((trained, "the weights of the same model object"), (self.models[0], "another model object")):
            self.load(model)
            found = self.sample()
            for request, completion in zip(self.requests, found, strict=True):
                if wrong := _find_logprob_problem(model, request, completion, 1.0):
                    return f"after an update with {how}, {wrong}; is a cache of old keys and values left?"
        return (
            ""
            if [completion.tokens for completion in found] == before
            else "after other weights, the first ones do not sample what they sampled"
        )

    def check_sleep(self) -> str:
        self.require_model()
        before = [completion.tokens for completion in self.sample()]
        self.sampler.sleep()
        self.sampler.sleep()
        self.load(self.models[0])
        return (
            ""
            if [completion.tokens for completion in self.sample()] == before
            else "after sleep, the same weights and seeds sample other tokens"
        )


@torch.no_grad()
def compute_vocab_logprobs(model: Any, request: Request, completion: Completion, temperature: float = 1.0) -> torch.Tensor:
    """Compute the model's log-probabilities of all tokens (V), at each token of a completion (T): T x V."""
    row = torch.tensor([[*request.prompt, *completion.tokens]])
    logits_TV = model(input_ids=row, use_cache=False).logits[0, len(request.prompt) - 1 : -1].float()
    logprobs_TV: torch.Tensor = (logits_TV / temperature).log_softmax(-1)
    return logprobs_TV


def _find_logprob_problem(model: Any, request: Request, completion: Completion, temperature: float) -> str:
    """Say where a completion's log-probabilities are not those of the model at a temperature; "" if they are."""
    ours = (
        compute_vocab_logprobs(model, request, completion, temperature).gather(1, torch.tensor(completion.tokens)[:, None])[:, 0].tolist()
    )
    gaps = [abs(mine - theirs) for mine, theirs in zip(ours, completion.logprobs, strict=True)]
    if max(gaps) <= TOLERANCE:
        return ""
    place = gaps.index(max(gaps))
    return (
        f"token {place} of a completion at temperature {temperature:g} has log-probability {completion.logprobs[place]:.4f}; "
        f"the model gives {ours[place]:.4f}"
    )
