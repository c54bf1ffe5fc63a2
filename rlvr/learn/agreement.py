"""Compare the log-probabilities that the sampler and the trainer give to the same tokens.

The learner's ratios depend on the sampler's log-probabilities. Two implementations never agree exactly; this module measures the
difference by precision, temperature and token position, and explains the result. `run_model_checks` is a short version that runs before
every run (see `rlvr.model.honesty`); `check_logprob_mismatch` is applied to every step.
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
from rlvr.contracts import Completion, Request, Sampler, Sampling, Tokenizer
from rlvr.errors import ConfigError, RlvrError
from rlvr.learn.peers.group import in_main
from rlvr.learn.update import packing
from rlvr.learn.update.learner import Learner
from rlvr.learn.update.policy import Policy, is_blank
from rlvr.learn.update.sharded import computed_in
from rlvr.learn.update.shards import folded
from rlvr.mdp.rules import TokenMDP
from rlvr.mdp.tokenizers import tokenizer_from
from rlvr.model import honesty
from rlvr.model.batch import Batch, Rows
from rlvr.model.device import computing_in, device_from
from rlvr.model.weights import model_from
from rlvr.plugins.registry import build, load, parameters
from rlvr.rollout.rollout import seed_of

DEPTHS = ((0, 4), (4, 16), (16, 64), (64, 10**9))
PRECISIONS: dict[str, tuple[str, str | None]] = {
    "float32": ("float32", None),
    "bfloat16": ("bfloat16", None),
    "mixed bf16": ("float32", "bfloat16"),
}
"""By name: the precision of the weights, and the compute precision if it differs (`train.mixed_precision=bf16`)."""
ROUNDING = {"float32": 1e-4, "bfloat16": 0.05, "mixed bf16": 0.05}
"""The tolerance of the median difference, by precision; the maximum may be twenty times as large."""


def in_process(sampler: Sampler) -> bool:
    """Return whether a sampler runs the trainer's own model, in this process."""
    kind = type(sampler)
    own = kind.load is not Sampler.load and kind.receive is Sampler.receive and kind.suits is not Sampler.suits
    return own and getattr(sampler, "model", None) is not None


SAMPLER = "the sampler's tokens"


def trusted(
    model: Any, sampler: Sampler, mdp: TokenMDP, config: RunConfig, *, precision: str, autocast: Callable[[], Any]
) -> list[honesty.Finding]:
    """Check the model of a run; raise ConfigError if it cannot be trained. A model without weights gets only a check of its stop ids."""
    temperature = 1.0 if config.data is not None else config.rollout.temperature
    own, fp32_head = sampler if in_process(sampler) and config.data is None else None, config.model.fp32_head
    how: dict[str, Any] = {"temperature": temperature or 1.0, "precision": precision, "autocast": autocast, "fp32_head": fp32_head}
    found = (
        [honesty.endings(model, mdp.tokenizer)] if is_blank(model) else checked(model, own, mdp.tokenizer, longest=mdp.max_length, **how)
    )
    if why := honesty.refusal(model.config.model_type, found):
        raise ConfigError(why)
    return found


def checked(
    model: Any,
    sampler: Sampler | None,
    tokenizer: Tokenizer,
    *,
    temperature: float = 1.0,
    precision: str = "float32",
    autocast: Callable[[], Any] = nullcontext,
    fp32_head: bool = False,
    longest: int = honesty.LONGEST,
) -> list[honesty.Finding]:
    """Run the numerics checks of a model before a run.

    `sampler`: a sampler in this process that runs the model; `precision`: the compute precision; `longest`: the maximum row length.
    """
    device, dtype = next(model.parameters()).device, getattr(torch, precision)
    with honesty.undisturbed(model), honesty.in_words(model, "the check before a run"):
        policy = Policy(model, temperature=temperature, fp32_head=fp32_head)
        how = packing.packing_for([policy], device, precision, autocast)

        ways = ways_of(policy, how, device, autocast)
        with autocast():
            found = list(honesty.compared(model, ways, temperature=temperature, dtype=dtype, longest=longest))
        found += [honesty.Finding("packed rows", note=f"not used: {how.padded}")] if how.padded else []
        if sampler is not None:
            found.append(trial(model, sampler, honesty.material(model, longest), temperature, dtype, autocast))
        return [*found, honesty.attending(model), honesty.endings(model, tokenizer)]


def ways_of(policy: Any, how: packing.Packing, device: torch.device, autocast: Callable[[], Any] = nullcontext) -> dict[str, honesty.Way]:
    """Return the functions by which a trainer scores rows: padded, in training mode, and packed if possible."""

    def scored(rows: Rows, batch: Batch) -> Tensor:
        found = torch.zeros(rows.entries)
        with torch.no_grad(), autocast():
            found[batch.take] = policy(batch).logprobs.float().cpu()
        return found

    def padded(rows: Rows) -> Tensor:
        return scored(rows, rows.padded(range(len(rows.tokens)), device))

    def packed(rows: Rows) -> Tensor:
        return scored(rows, packing.pack(rows, range(len(rows.tokens)), device, how))

    def in_training(rows: Rows) -> Tensor:
        policy.train()
        return padded(rows)

    ways: dict[str, honesty.Way] = {"padded rows": padded, honesty.TRAINING: in_training}
    return ways if how.padded else ways | {"packed rows": packed}


def agreed(way: honesty.Way) -> honesty.Way:
    """Broadcast the scores of the main process, so that all processes make the same decisions."""

    def scored(rows: Rows) -> Tensor:
        mine = way(rows)
        return in_main(lambda: mine)

    return scored


def trusted_shards(learner: Learner, *, longest: int) -> list[honesty.Finding]:
    """Check a learner's sharded model, which had no weights before; raise ConfigError if it cannot be trained.

    A collective operation; the results of the main process decide for all.
    """
    policy, model = learner.policy, learner.policy.model
    dtype = getattr(torch, computed_in(model, learner.accelerator))
    how: dict[str, Any] = {"temperature": policy.temperature, "dtype": dtype, "longest": longest}
    ways = {name: agreed(way) for name, way in ways_of(policy, learner.packing, learner.device).items()}

    def table() -> list[honesty.Finding]:
        with honesty.undisturbed(model):
            return [*honesty.compared(model, ways, **how), honesty.attending(model)]

    found: list[honesty.Finding] = policy.look(table)
    folded(policy)
    if why := in_main(lambda: honesty.refusal(model.config.model_type, found)):
        raise ConfigError(why)
    return found


def examined(folder: str, sampler: str, *, device: str | None = None) -> tuple[list[honesty.Finding], str]:
    """Check the model in a folder, in float32; return the results, and why it cannot be trained ('' if it can)."""
    tokenizer = tokenizer_from(folder)
    model = model_from(ModelConfig(path=folder)).eval().to(device_from(device))
    with build("sampler", sampler) as asked:
        asked.prepare(precision="float32", max_length=0)
        asked.suits(model)
        found = checked(model, asked if in_process(asked) else None, tokenizer)
    return found, honesty.refusal(model.config.model_type, found)


def trial(model: Any, sampler: Sampler, *how: Any) -> honesty.Finding:
    """Run `compare_sampler`; return a failed result if the sampler fails on this model."""
    try:
        return said_as_computed(model, sampler, *how)
    except (RlvrError, torch.OutOfMemoryError):
        raise
    except Exception as error:  # each family fails in its own way
        why = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
        return honesty.Finding(SAMPLER, note=f"sampling from it fails ({why}); sample with vllm, or use another family", wrong=True)


def said_as_computed(
    model: Any, sampler: Sampler, rows: Rows, temperature: float, dtype: torch.dtype, autocast: Callable[[], Any]
) -> honesty.Finding:
    """Sample completions of some prompts, and compare their log-probabilities with a plain forward pass."""
    prompts = [tokens[: places[0]].tolist() for tokens, places in zip(rows.tokens, rows.places, strict=True)]
    limits = [min(4 + 2 * i, len(places)) for i, places in enumerate(rows.places)]
    requests = [Request(prompt, limit, seed=i) for i, (prompt, limit) in enumerate(zip(prompts, limits, strict=True))]
    said = sampler.sample(requests, Sampling(temperature or 1.0))
    tokens = [[*request.prompt, *completion.tokens] for request, completion in zip(requests, said, strict=True)]
    acted = [[False] * len(request.prompt) + [True] * len(completion.tokens) for request, completion in zip(requests, said, strict=True)]
    with torch.no_grad(), autocast():
        expected = honesty.plain(model, Rows(tokens, acted), temperature or 1.0)
    theirs = torch.tensor([logprob for completion in said for logprob in completion.logprobs])
    exact = honesty.is_exact(dtype, next(model.parameters()).device)
    gap = honesty.apart(theirs, expected, exact)
    return honesty.Finding(SAMPLER, gap, honesty.room_for(expected, exact), str(getattr(sampler, "memory", "")))


def hold(figures: Mapping[str, float], limit: float | None, *, steady: bool) -> None:
    """Raise RlvrError if sampler and trainer disagree although both compute the same model in float32 in this process.

    `steady`: the limit applies to every token. Otherwise it applies to 98 % of them, because with experts or top_p a rounding error can
    change a discrete decision.
    """
    if limit is None or "sampling/logp_difference_max" not in figures:
        return
    gap = figures["sampling/logp_difference_max"]
    if not steady:
        gap = max(
            abs(math.log(figures[f"sampling/ratio_{name}"])) if figures[f"sampling/ratio_{name}"] else math.inf for name in ("p01", "p99")
        )
    if not gap <= limit:
        raise RlvrError(
            f"sampler and trainer differ by {gap:.2g} in the log-probability of a token, although both compute this model in float32 in "
            f"this process, where rounding is below {limit:.1g}: one of them computes it wrongly, and the run would learn from wrong "
            "numbers. `rlvr doctor --model DIR` with the newest checkpoint shows which; sample with vllm, or use another family"
        )


@dataclass(frozen=True, slots=True)
class Gap:
    """Statistics of the log-probability differences of some tokens.

    >>> Gap("float32", 1.0, "0-3", tokens=40, median=1e-7, p99=1e-6, largest=2e-6, kl=1e-13).precision
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

    def record(self) -> dict[str, Any]:
        """Return the statistics as plain JSON."""
        return asdict(self)


def measured(
    folder: str,
    sampler: str,
    *,
    env: str,
    answers: int = 64,
    temperatures: Sequence[float] = (0.7, 1.0, 1.3),
    precisions: Sequence[str] = (),
    device: str | None = None,
) -> Iterator[Gap]:
    """Sample and rescore completions; yield the differences for each precision, temperature and range of positions.

    The trainer computes on `device`, by default the accelerator. Mixed precision is compared on an accelerator only, because on a CPU a
    sampler uses the precision of the weights.
    """
    place = device_from(device)
    precisions = precisions or [name for name, (_, mixed) in PRECISIONS.items() if mixed is None or place.type != "cpu"]
    tokenizer = tokenizer_from(folder)
    # disable the sampler's own check of its log-probabilities
    unheld = {"probe_tolerance": math.inf} if "probe_tolerance" in parameters(load("sampler", sampler)) else {}
    with build("env", env) as environment:
        mdp = TokenMDP(environment, tokenizer)
        states = [mdp.preview(environment.task("train", i // 4)) for i in range(answers)]
        requests = [Request(list(state.tokens), mdp.budget(state), seed_of("agreement", i)) for i, state in enumerate(states)]
        for precision in precisions:
            weights, mixed = PRECISIONS[precision]
            model = model_from(ModelConfig.model_validate({"path": folder, "dtype": weights})).eval().to(place)
            with build("sampler", sampler, **unheld) as asked:
                asked.bind(environment, tokenizer)
                asked.prepare(precision=mixed or weights, max_length=mdp.max_length)
                asked.load(model, 0)
                for temperature in temperatures:
                    found = asked.sample(requests, Sampling(temperature, stop_ids=tokenizer.stop_ids))
                    yield from gaps(model, requests, found, precision, temperature)


@torch.no_grad()
def gaps(model: Any, requests: Sequence[Request], found: Sequence[Completion], precision: str, temperature: float) -> Iterator[Gap]:
    """Compute the differences of one precision and temperature, by range of positions; empty ranges are omitted."""
    pairs = [(request, said) for request, said in zip(requests, found, strict=True) if said.finish != "error"]
    if not pairs:
        raise ConfigError(f"the sampler gave no answer at temperature {temperature:g}: {found[0].error}")
    tokens = [[*request.prompt, *said.tokens] for request, said in pairs]
    rows = Rows(tokens, [[False] * len(request.prompt) + [True] * len(said.tokens) for request, said in pairs])
    ours = torch.zeros(rows.entries)
    policy = Policy(model, temperature=temperature)
    with computing_in(model, PRECISIONS[precision][1]):
        for batch in rows.batches(range(len(pairs)), budget=8192, device=model.device):
            ours[batch.take] = policy(batch).logprobs.float().cpu()
    theirs = torch.tensor([logprob for _, said in pairs for logprob in said.logprobs])
    depth = torch.tensor([i for _, said in pairs for i in range(len(said.tokens))])
    for low, high in DEPTHS:
        chosen = (depth >= low) & (depth < high)
        if chosen.any():
            gap = (ours - theirs)[chosen].double()
            sizes = gap.abs().sort().values
            where = f"{low}-{high - 1}" if high < 10**9 else f"{low} on"
            kl = float((gap.exp() - 1 - gap).mean())
            ninety = float(sizes[math.ceil(0.99 * len(sizes)) - 1])
            yield Gap(precision, temperature, where, len(sizes), float(sizes.median()), ninety, float(sizes[-1]), kl)


def verdict(rows: Sequence[Gap]) -> tuple[bool, str]:
    """Return whether these log-probabilities are accurate enough for training, and an explanation."""
    if not rows:
        return False, "Nothing was compared: no answer was complete."
    bad = [row for row in rows if not (row.median <= ROUNDING[row.precision] and row.largest <= 20 * ROUNDING[row.precision])]
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
