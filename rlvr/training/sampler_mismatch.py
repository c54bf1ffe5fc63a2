"""Compare the log-probabilities that the sampler and the trainer give to the same tokens.

The learner's ratios depend on the sampler's log-probabilities. Two implementations never agree exactly; this module measures the
difference by precision, temperature and token position, and explains the result. `run_numerics_checks` is a short version that runs before
every run (see `rlvr.models.numerics_check`); `check_logprob_mismatch` is applied to every step.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from rlvr.config.config import ModelConfig, RunConfig
from rlvr.contracts import Completion, Request, Sampler, SamplingParams, Tokenizer
from rlvr.errors import CheckFailed, ConfigError, RlvrError
from rlvr.mdp.token_mdp import TokenMDP
from rlvr.mdp.tokenizers import load_tokenizer
from rlvr.models import numerics_check
from rlvr.models.batch import Batch, TokenRows
from rlvr.models.device import autocast_to, resolve_device
from rlvr.models.model_loading import load_model
from rlvr.models.plain_weights import PlainWeights
from rlvr.registry.plugins import build, get_parameters, load_factory
from rlvr.rollout.rollout import derive_seed
from rlvr.training.distributed.group import run_in_main_process
from rlvr.training.update import packing
from rlvr.training.update.fsdp import get_compute_precision
from rlvr.training.update.learner import Learner
from rlvr.training.update.policy import Policy, has_no_weights
from rlvr.training.update.sharded_tensors import reshard

POSITION_RANGES = ((0, 4), (4, 16), (16, 64), (64, 10**9))
PRECISIONS: dict[str, tuple[str, str | None]] = {
    "float32": ("float32", None),
    "bfloat16": ("bfloat16", None),
    "mixed bf16": ("float32", "bfloat16"),
}
"""By name: the precision of the weights, and the compute precision if it differs (`train.mixed_precision=bf16`)."""
MEDIAN_TOLERANCE = {"float32": 1e-4, "bfloat16": 0.05, "mixed bf16": 0.05}
"""The tolerance of the median difference, by precision; the maximum may be twenty times as large."""


def _runs_trainer_model(sampler: Sampler) -> bool:
    """Return whether a sampler runs the trainer's own model, in this process."""
    return sampler.traits.runs_model and sampler.traits.validates_model and getattr(sampler, "model", None) is not None


SAMPLER_CHECK_NAME = "the sampler's tokens"


def check_model_numerics(
    model: Any, sampler: Sampler, mdp: TokenMDP, config: RunConfig, *, precision: str, autocast: Callable[[], Any]
) -> list[numerics_check.NumericsCheck]:
    """Check the numerics of a run's model before training; raise ConfigError if the model cannot be trained.

    A model without weights gets only a check of its stop ids.
    """
    temperature = 1.0 if config.data is not None else config.rollout.temperature
    own, fp32_head = sampler if _runs_trainer_model(sampler) and config.data is None else None, config.model.fp32_head
    how: dict[str, Any] = {"temperature": temperature or 1.0, "precision": precision, "autocast": autocast, "fp32_head": fp32_head}
    found = (
        [numerics_check.check_stop_ids(model, mdp.tokenizer)]
        if has_no_weights(model)
        else run_numerics_checks(model, own, mdp.tokenizer, max_length=mdp.max_length, **how)
    )
    if why := numerics_check.find_untrainable_reason(model.config.model_type, found):
        raise ConfigError(why)
    return found


def run_numerics_checks(
    model: Any,
    sampler: Sampler | None,
    tokenizer: Tokenizer,
    *,
    temperature: float = 1.0,
    precision: str = "float32",
    autocast: Callable[[], Any] = nullcontext,
    fp32_head: bool = False,
    max_length: int = numerics_check.MAX_ROW_LENGTH,
) -> list[numerics_check.NumericsCheck]:
    """Run the numerics checks of a model before a run.

    `sampler`: a sampler in this process that runs the model; `precision`: the compute precision; `max_length`: the maximum row length.
    """
    device, dtype = next(model.parameters()).device, getattr(torch, precision)
    with numerics_check.use_evaluation_mode(model), numerics_check.wrap_model_errors(model, "the check before a run"):
        policy = Policy(model, temperature=temperature, fp32_head=fp32_head)
        how = packing.choose_packing([policy], device, precision, autocast)

        ways = _build_logprob_functions(policy, how, device, autocast)
        with autocast():
            found = list(numerics_check.compare_logprob_functions(model, ways, temperature=temperature, dtype=dtype, max_length=max_length))
        found += [numerics_check.NumericsCheck("packed rows", note=f"not used: {how.padding_reason}")] if how.padding_reason else []
        if sampler is not None:
            found.append(
                _try_compare_sampler(model, sampler, numerics_check.build_check_rows(model, max_length), temperature, dtype, autocast)
            )
        return [*found, numerics_check.count_layout_attention_layers(model), numerics_check.check_stop_ids(model, tokenizer)]


def _build_logprob_functions(
    policy: Any, packing_mode: packing.PackingMode, device: torch.device, autocast: Callable[[], Any] = nullcontext
) -> dict[str, numerics_check.LogprobFunction]:
    """Return the functions by which a trainer scores rows: padded, in training mode, and packed if possible."""

    def scored(rows: TokenRows, batch: Batch) -> Tensor:
        found = torch.zeros(rows.num_policy_tokens)
        with torch.no_grad(), autocast():
            found[batch.entry_positions] = policy(batch).logprobs.float().cpu()
        return found

    def padded(rows: TokenRows) -> Tensor:
        return scored(rows, rows.build_padded_batch(range(len(rows.tokens)), device))

    def packed(rows: TokenRows) -> Tensor:
        return scored(rows, packing.pack_rows(rows, range(len(rows.tokens)), device, packing_mode))

    def in_training(rows: TokenRows) -> Tensor:
        policy.train()
        return padded(rows)

    ways: dict[str, numerics_check.LogprobFunction] = {"padded rows": padded, numerics_check.TRAINING_MODE_CHECK: in_training}
    return ways if packing_mode.padding_reason else ways | {"packed rows": packed}


def _make_broadcast_logprob_function(compute_logprobs: numerics_check.LogprobFunction) -> numerics_check.LogprobFunction:
    """Broadcast the scores of the main process, so that all processes make the same decisions."""

    def scored(rows: TokenRows) -> Tensor:
        mine = compute_logprobs(rows)
        return run_in_main_process(lambda: mine)

    return scored


def check_sharded_model_numerics(learner: Learner, *, max_length: int) -> list[numerics_check.NumericsCheck]:
    """Check the numerics of a learner's sharded model; raise ConfigError if the model cannot be trained.

    The model gets its weights only when it is sharded, so they are checked then. A collective operation; the results of the main process
    decide for all.
    """
    policy, model = learner.policy, learner.policy.model
    dtype = getattr(torch, get_compute_precision(model, learner.accelerator))
    how: dict[str, Any] = {"temperature": policy.temperature, "dtype": dtype, "max_length": max_length}
    ways = {
        name: _make_broadcast_logprob_function(way)
        for name, way in _build_logprob_functions(policy, learner.packing, learner.device).items()
    }

    def table() -> list[numerics_check.NumericsCheck]:
        with numerics_check.use_evaluation_mode(model):
            return [*numerics_check.compare_logprob_functions(model, ways, **how), numerics_check.count_layout_attention_layers(model)]

    found: list[numerics_check.NumericsCheck] = policy.run_with_weights(table)
    reshard(policy)
    if why := run_in_main_process(lambda: numerics_check.find_untrainable_reason(model.config.model_type, found)):
        raise ConfigError(why)
    return found


def check_model_folder_numerics(
    folder: str, sampler_name: str, *, device: str | None = None
) -> tuple[list[numerics_check.NumericsCheck], str]:
    """Check the model in a folder, in float32; return the results, and why it cannot be trained ('' if it can)."""
    tokenizer = load_tokenizer(folder)
    model = load_model(ModelConfig(path=folder)).eval().to(resolve_device(device))
    with build("env", "arithmetic") as environment, build("sampler", sampler_name) as asked:  # any environment: no task is sampled
        asked.setup(environment, tokenizer, precision="float32")
        asked.check_model_support(model)
        found = run_numerics_checks(model, asked if _runs_trainer_model(asked) else None, tokenizer)
    return found, numerics_check.find_untrainable_reason(model.config.model_type, found)


def _try_compare_sampler(model: Any, sampler: Sampler, *compare_args: Any) -> numerics_check.NumericsCheck:
    """Run `_compare_sampler_logprobs`; return a failed result if the sampler fails on this model."""
    try:
        return _compare_sampler_logprobs(model, sampler, *compare_args)
    except (RlvrError, torch.OutOfMemoryError):
        raise
    except Exception as error:  # each family fails in its own way
        why = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
        return numerics_check.NumericsCheck(
            SAMPLER_CHECK_NAME, note=f"sampling from it fails ({why}); sample with vllm, or use another family", wrong=True
        )


def _compare_sampler_logprobs(
    model: Any, sampler: Sampler, rows: TokenRows, temperature: float, dtype: torch.dtype, autocast: Callable[[], Any]
) -> numerics_check.NumericsCheck:
    """Sample completions of some prompts, and compare their log-probabilities with a plain forward pass."""
    prompts = [tokens[: rows.get_prompt_length(i)].tolist() for i, tokens in enumerate(rows.tokens)]
    limits = [min(4 + 2 * i, len(places)) for i, places in enumerate(rows.acted_positions)]
    requests = [Request(prompt, limit, seed=i) for i, (prompt, limit) in enumerate(zip(prompts, limits, strict=True))]
    said = sampler.sample(requests, SamplingParams(temperature or 1.0))
    tokens = [[*request.prompt, *completion.tokens] for request, completion in zip(requests, said, strict=True)]
    acted = [[False] * len(request.prompt) + [True] * len(completion.tokens) for request, completion in zip(requests, said, strict=True)]
    with torch.no_grad(), autocast():
        expected = numerics_check.compute_plain_logprobs(model, TokenRows(tokens, acted), temperature or 1.0)
    theirs = torch.tensor([logprob for completion in said for logprob in completion.logprobs])
    exact = numerics_check.has_full_precision_matmul(dtype, next(model.parameters()).device)
    gap = numerics_check.compute_max_or_rms_difference(theirs, expected, exact)
    return numerics_check.NumericsCheck(
        SAMPLER_CHECK_NAME, gap, numerics_check.compute_rounding_tolerance(expected, exact), str(getattr(sampler, "cache_description", ""))
    )


def check_logprob_mismatch(metrics: Mapping[str, float], limit: float | None, *, check_every_token: bool) -> None:
    """Raise CheckFailed if log-probabilities of sampler and trainer differ although both compute them in float32 in this process.

    `check_every_token`: the limit applies to every token. Otherwise it applies to 98 % of them, because with experts or top_p a rounding
    error can change a discrete decision.
    """
    if limit is None or "sampling/logp_difference_max" not in metrics:
        return
    gap = metrics["sampling/logp_difference_max"]
    if not check_every_token:
        gap = max(
            abs(math.log(metrics[f"sampling/ratio_{name}"])) if metrics[f"sampling/ratio_{name}"] else math.inf for name in ("p01", "p99")
        )
    if not gap <= limit:
        raise CheckFailed(
            f"sampler and trainer differ by {gap:.2g} in the log-probability of a token, although both compute this model in float32 in "
            f"this process, where rounding is below {limit:.1g}: the sampler has other weights, or one of them computes it wrongly, and the "
            "run would learn from wrong numbers. `rlvr doctor --model DIR` with the newest checkpoint shows which; sample with vllm, or use "
            "another family; a batch source of yours that trains on older episodes sets is_off_policy = True"
        )


@dataclass(frozen=True, slots=True)
class LogprobGap:
    """Statistics of the log-probability differences of some tokens.

    >>> LogprobGap("float32", 1.0, "0-3", tokens=40, median=1e-7, p99=1e-6, largest=2e-6, kl=1e-13).precision
    'float32'
    """

    precision: str
    temperature: float
    position: str
    """The range of token positions in the completion, counted from 0."""
    tokens: int
    median: float
    p99: float
    largest: float
    kl: float
    """KL(sampler || trainer) per token, estimated."""

    def to_dict(self) -> dict[str, Any]:
        """Return the statistics as plain JSON."""
        return asdict(self)


def measure_logprob_gaps(
    folder: str,
    sampler_name: str,
    *,
    env_name: str,
    num_completions: int = 64,
    temperatures: Sequence[float] = (0.7, 1.0, 1.3),
    precisions: Sequence[str] = (),
    device: str | None = None,
) -> Iterator[LogprobGap]:
    """Sample and rescore completions; yield the differences for each precision, temperature and range of positions.

    The trainer computes on `device`, by default the accelerator. Mixed precision is compared on an accelerator only, because on a CPU a
    sampler uses the precision of the weights.
    """
    place = resolve_device(device)
    precisions = precisions or [name for name, (_, mixed) in PRECISIONS.items() if mixed is None or place.type != "cpu"]
    tokenizer = load_tokenizer(folder)
    # disable the sampler's own check of its log-probabilities
    unheld = {"probe_tolerance": math.inf} if "probe_tolerance" in get_parameters(load_factory("sampler", sampler_name)) else {}
    with build("env", env_name) as environment:
        mdp = TokenMDP(environment, tokenizer)
        states = [mdp.preview_prompt(environment.task("train", i // 4)) for i in range(num_completions)]
        requests = [
            Request(list(state.tokens), mdp.count_remaining_turn_tokens(state), derive_seed("agreement", i))
            for i, state in enumerate(states)
        ]
        for precision in precisions:
            weights, mixed = PRECISIONS[precision]
            model = load_model(ModelConfig.model_validate({"path": folder, "dtype": weights})).eval().to(place)
            with build("sampler", sampler_name, **unheld) as asked:
                asked.setup(environment, tokenizer, precision=mixed or weights, max_length=mdp.max_length)
                asked.update_weights(PlainWeights(model), 0)
                for temperature in temperatures:
                    found = asked.sample(requests, SamplingParams(temperature, stop_ids=tokenizer.stop_ids))
                    yield from compute_logprob_gaps_by_position(model, requests, found, precision, temperature)


@torch.no_grad()
def compute_logprob_gaps_by_position(
    model: Any, requests: Sequence[Request], completions: Sequence[Completion], precision: str, temperature: float
) -> Iterator[LogprobGap]:
    """Compute the differences of one precision and temperature, by range of positions; empty ranges are omitted."""
    pairs = [(request, said) for request, said in zip(requests, completions, strict=True) if said.finish_reason != "error"]
    if not pairs:
        raise ConfigError(f"the sampler gave no answer at temperature {temperature:g}: {completions[0].error}")
    tokens = [[*request.prompt, *said.tokens] for request, said in pairs]
    rows = TokenRows(tokens, [[False] * len(request.prompt) + [True] * len(said.tokens) for request, said in pairs])
    ours = torch.zeros(rows.num_policy_tokens)
    policy = Policy(model, temperature=temperature)
    with autocast_to(model, PRECISIONS[precision][1]):
        for batch in rows.iter_batches(range(len(pairs)), max_tokens=8192, device=model.device):
            ours[batch.entry_positions] = policy(batch).logprobs.float().cpu()
    theirs = torch.tensor([logprob for _, said in pairs for logprob in said.logprobs])
    depth = torch.tensor([i for _, said in pairs for i in range(len(said.tokens))])
    for low, high in POSITION_RANGES:
        chosen = (depth >= low) & (depth < high)
        if chosen.any():
            gap = (ours - theirs)[chosen].double()
            sizes = gap.abs().sort().values
            where = f"{low}-{high - 1}" if high < 10**9 else f"{low} on"
            kl = float((gap.exp() - 1 - gap).mean())
            ninety = float(sizes[math.ceil(0.99 * len(sizes)) - 1])
            yield LogprobGap(precision, temperature, where, len(sizes), float(sizes.median()), ninety, float(sizes[-1]), kl)


def summarize_logprob_gaps(rows: Sequence[LogprobGap]) -> tuple[bool, str]:
    """Return whether these log-probabilities are accurate enough for training, and an explanation."""
    if not rows:
        return False, "Nothing was compared: no answer was complete."
    bad = [
        row for row in rows if not (row.median <= MEDIAN_TOLERANCE[row.precision] and row.largest <= 20 * MEDIAN_TOLERANCE[row.precision])
    ]
    if not bad:
        low = max((row.largest for row in rows if row.precision != "float32"), default=0.0)
        more = "; in the lower precision, set importance_sampling_correction" if low > 1e-2 else ""
        return True, f"They agree: the differences are rounding{more}."
    worst = max(bad, key=lambda row: row.largest if math.isfinite(row.largest) else math.inf)
    known = {row.temperature for row in bad}
    if known < {row.temperature for row in rows}:
        why = "only at some temperatures: the sampler reports log-probabilities of another distribution than the one it samples from"
    elif not any(row.precision == "float32" for row in bad) and any(row.precision == "float32" for row in rows):
        why = "only in the lower precision: train with importance_sampling_correction, or sample in float32"
    elif not any(row.position.startswith("0-") for row in bad):
        why = "only deep in the answers: positions or caches differ (rotary settings, a context that was cut)"
    else:
        why = "everywhere: the sampler has other weights, or tokenizes the prompt differently"
    return False, f"They do not agree, by {worst.largest:.3g} in {worst.precision} at temperature {worst.temperature:g}, {why}."
