"""Numerics check: compare every way in which a model is computed with its own plain forward pass.

The trainer computes padded or packed rows, the sampler one token at a time. Both make assumptions about a model family's attention,
positions and state; if they are wrong, the model would be trained on wrong probabilities without an error. So before a run a few short
rows are computed in every way and compared with a plain forward pass: evaluation mode, one row at a time, no padding, no cache.

The rows have about 100 tokens, and are computed at most three times in each way: about 1 TFLOP for a model of 0.5B parameters. Neither
the weights nor the random state change.

Two other modules compare log-probabilities: `rlvr/training/sampler_mismatch.py` those of the sampler and the trainer, before a run and in
every step; `rlvr/samplers/_weight_probe.py` those of an engine with weights of its own and the trainer, after every update.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from rlvr.contracts import Tokenizer
from rlvr.errors import ConfigError, RlvrError
from rlvr.mdp.token_mdp import TokenMDP
from rlvr.models.batch import TokenRows
from rlvr.models.layout_attention import ATTENTION_NAME, SelfOnlyLayout, build_layout_kwargs

LogprobFunction = Callable[[TokenRows], Tensor]
"""Computes the log-probability of every policy token of some rows, in the order of their entries."""
TRAINING_MODE_CHECK = "rows in training mode"
FP32_TOLERANCE, LOW_PRECISION_TOLERANCE = 1e-5, 2e-2
"""The rounding tolerance of log-probabilities, relative to 1 plus the largest: in float32, and in lower precision."""
MAX_ROW_LENGTH = 29
"""The maximum length of a test row."""
RUN_MISMATCH_LIMIT = 1e-4
"""The allowed difference of sampler and trainer on a token, in a float32 run at temperature 1."""


@dataclass(frozen=True, slots=True)
class NumericsCheck:
    """One result of the numerics check: how log-probabilities were computed, their difference from a plain forward pass, and the
    allowed difference.

    >>> NumericsCheck("packed rows", gap=2e-7, allowed=3e-5).passed
    True
    """

    name: str
    gap: float | None = None
    """The difference of the log-probabilities (see `compute_max_or_rms_difference`); None if nothing was compared."""
    allowed: float = 0.0
    note: str = ""
    wrong: bool = False
    """True if `note` describes why the model cannot be used."""

    @property
    def passed(self) -> bool:
        """Whether this check passed."""
        return not self.wrong and (self.gap is None or self.gap <= self.allowed)

    def to_dict(self) -> dict[str, Any]:
        """Return the result as plain JSON."""
        return asdict(self) | {"ok": self.passed}


def build_check_rows(model: Any, max_length: int = MAX_ROW_LENGTH, *, change_first_answer: bool = False) -> TokenRows:
    """Build five test rows: three answers to one prompt, and answers to a prompt of one token and to a longer one.

    `max_length`: the maximum row length of the run, because a model may compute longer rows differently. `change_first_answer`: use a
    different first answer.
    """
    vocabulary = int(model.get_input_embeddings().weight.shape[0])
    max_length = max(
        2, min(max_length, MAX_ROW_LENGTH, getattr(model.config.get_text_config(), "max_position_embeddings", None) or MAX_ROW_LENGTH)
    )
    step = 11 if change_first_answer else 5
    tokens, acted = list[list[int]](), list[list[bool]]()
    for full, count in ((6, 3), (1, 1), (11, 1)):
        length = min(full, max_length // 2)
        for k in range(count):
            first = not tokens
            size = min(12 + 3 * k, max_length - length)
            answer = [((step if first else 5) * (k + 1) + (7 + (change_first_answer and first)) * j * j) % vocabulary for j in range(size)]
            tokens.append([(7 * j + 3) % vocabulary for j in range(length)] + answer)
            acted.append([False] * length + [True] * len(answer))
    return TokenRows(tokens, acted)


@torch.no_grad()
def compute_plain_logprobs(model: Any, rows: TokenRows, temperature: float = 1.0) -> Tensor:
    """Compute log-probabilities with the model's own forward pass, one row at a time."""
    found, device = list[Tensor](), next(model.parameters()).device
    for tokens, places in zip(rows.tokens, rows.acted_positions, strict=True):
        ids = torch.from_numpy(tokens).to(device)
        at = torch.from_numpy(places).to(device)
        logits = model(input_ids=ids[None, :-1], use_cache=False).logits[0]
        logs = (logits if logits.dtype == torch.float64 else logits.float()).div(temperature).log_softmax(-1)
        found.append(logs[at - 1, ids[at]])
    return torch.cat(found).cpu()


def has_full_precision_matmul(dtype: torch.dtype, device: torch.device) -> bool:
    """Return whether products are computed in float32 or better."""
    return dtype in (torch.float32, torch.float64) and (device.type == "cpu" or torch.get_float32_matmul_precision() == "highest")


def compute_rounding_tolerance(logprobs: Tensor, full_precision: bool) -> float:
    """Return the rounding tolerance between two computations of these log-probabilities."""
    return (FP32_TOLERANCE if full_precision else LOW_PRECISION_TOLERANCE) * (1 + float(logprobs.abs().max()))


def compute_max_or_rms_difference(a: Tensor, b: Tensor, full_precision: bool) -> float:
    """Return the maximum difference; in low precision the RMS, because rounding can change one unlikely token a lot."""
    gaps = (a.double().cpu() - b.double().cpu()).abs()
    gap = float(gaps.max() if full_precision else gaps.square().mean().sqrt())
    return float("inf") if math.isnan(gap) else gap


@contextmanager
def use_evaluation_mode(model: Any) -> Iterator[None]:
    """Set the model to evaluation mode in this block, and restore the old mode and all random states afterwards."""
    training, device = model.training, next(model.parameters()).device
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        model.eval()
        try:
            yield
        finally:
            model.train(training)


@contextmanager
def wrap_model_errors(model: Any, operation: str) -> Iterator[None]:
    """Convert errors of a model's code in this block to ConfigError, except out-of-memory errors; `operation` says in the message what
    was attempted.
    """
    try:
        yield
    except (RlvrError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        kind = next(model.parameters()).device.type
        mixed = torch.is_autocast_enabled(kind)
        computed = str(torch.get_autocast_dtype(kind) if mixed else model.dtype).removeprefix("torch.")
        way_out = "; set train.mixed_precision: 'no'" if mixed else ""
        said = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
        raise ConfigError(f"{model.config.model_type} cannot be computed in {computed}: {operation} fails ({said}){way_out}") from error


@torch.no_grad()
def compare_logprob_functions(
    model: Any,
    logprob_functions: Mapping[str, LogprobFunction],
    *,
    temperature: float = 1.0,
    dtype: torch.dtype | None = None,
    max_length: int = MAX_ROW_LENGTH,
) -> Iterator[NumericsCheck]:
    """Compare each function that computes log-probabilities with a plain forward pass; yield one result per check.

    A change of one row must not change the others. `dtype`: the compute precision, if it is not that of the weights. Raises ConfigError if
    the model's own code fails.
    """
    exact = has_full_precision_matmul(dtype or model.dtype, next(model.parameters()).device)
    rows, changed = build_check_rows(model, max_length), build_check_rows(model, max_length, change_first_answer=True)
    with wrap_model_errors(model, "a plain pass"):
        expected = compute_plain_logprobs(model, rows, temperature)
    room = compute_rounding_tolerance(expected, exact)
    yield NumericsCheck(
        "a second pass", compute_max_or_rms_difference(compute_plain_logprobs(model, rows, temperature), expected, exact), room
    )
    others = slice(int(rows.num_acted[0]), None)
    for name, way in logprob_functions.items():
        found = way(rows)
        yield NumericsCheck(name, compute_max_or_rms_difference(found, expected, exact), room)
        if name == TRAINING_MODE_CHECK:
            continue
        leak, allowed, note = compute_max_or_rms_difference(way(changed)[others], found[others], full_precision=True), 0.0, ""
        if leak and has_experts(model):
            allowed, note = room, "experts get other tokens"
        elif leak and (noise := compute_max_or_rms_difference(way(rows)[others], found[others], full_precision=True)):
            allowed, note = 10 * noise, "repeating the same rows differs too: sums on this device have no fixed order"
        yield NumericsCheck(f"{name}, another row changed", leak, allowed, note)


def has_experts(model: Any) -> bool:
    """Return whether a model has experts; the last bits of a row then depend on the other rows of the batch."""
    names = (type(module).__name__.lower() for module in model.modules())
    return any("expert" in name or "moe" in name for name in names)


@torch.no_grad()
def count_layout_attention_layers(model: Any) -> NumericsCheck:
    """Count the layers that call the layout attention, compared to the configuration."""
    config, layout = model.config.get_text_config(), SelfOnlyLayout()
    layers = int(config.num_hidden_layers)
    before = str(getattr(model.config, "_attn_implementation", ""))
    if before in ("sdpa", ATTENTION_NAME):
        ids = torch.arange(1, 5, device=next(model.parameters()).device)[None] % model.get_input_embeddings().weight.shape[0]
        model.set_attn_implementation(ATTENTION_NAME)
        try:
            model(input_ids=ids, **build_layout_kwargs(layout, torch.arange(4, device=ids.device)[None]))
        except Exception as error:  # each family fails in its own way
            return NumericsCheck("layers with attention", note=f"not counted: a forward pass fails ({type(error).__name__})")
        finally:
            model.set_attn_implementation(before)
    kinds = Counter(getattr(config, "layer_types", None) or getattr(config, "layers_block_type", None) or ())
    told = f" ({', '.join(f'{count} {kind}' for kind, count in kinds.items())})" if kinds else ""
    return NumericsCheck("layers with attention", note=f"{len(layout.attending_layers)} of {layers}{told}")


def check_stop_ids(model: Any, tokenizer: Tokenizer) -> NumericsCheck:
    """Check that a completion can end: compare the tokenizer's stop ids with the model's, and with its vocabulary."""
    size = int(model.get_input_embeddings().weight.shape[0])
    known, own = tokenizer.stop_ids, set[int]()
    for source in (model.generation_config, model.config.get_text_config()):
        ids: int | Sequence[int] | None = getattr(source, "eos_token_id", None)
        own |= {ids} if isinstance(ids, int) else set(ids or ())
    shown = ", ".join(map(str, sorted(known)))
    if not known or min(known) >= size:
        what = f"its tokenizer's stop ids ({shown}) are not among its {size} ids" if known else "its tokenizer has no stop id"
        return NumericsCheck("stop ids", note=f"{what}, so that no answer could end", wrong=True)
    if own and not own & known:
        note = f"{shown}; but the model's configuration says {', '.join(map(str, sorted(own)))}: check the tokenizer"
        return NumericsCheck("stop ids", note=note)
    return NumericsCheck("stop ids", note=shown)


def find_untrainable_reason(model_family: str, results: Sequence[NumericsCheck], advice: str = "") -> str:
    """Return why the model cannot be trained, in one sentence; '' if it can."""
    for bad in (finding for finding in results if not finding.passed):
        if bad.wrong:
            return f"a model of the family {model_family} cannot be trained: {bad.note}"
        if bad.name == "a second pass":
            cause = "two passes over the same tokens differ, so dropout or router noise stays on"
        elif bad.name.endswith("another row changed"):
            cause = f"{bad.name.partition(',')[0]} depend on the other rows of their batch"
        else:
            cause = f"{bad.name} do not give the probabilities of a plain forward pass"
        return f"a model of the family {model_family} cannot be trained: {cause} (by {bad.gap:.2g}; allowed {bad.allowed:.1g}){advice}"
    return ""


def format_check_results(results: Sequence[NumericsCheck]) -> str:
    """Format the results of the numerics check in one line."""
    plain_pass = [f for f in results if f.gap is not None and "," not in f.name and f.name != "a second pass"]
    gaps = ", ".join(f"{f.gap:.0e} ({f.name})" for f in plain_pass)
    layers = [f"layers with attention: {f.note}" for f in results if f.name == "layers with attention"]
    ends = [f"token ids that end an answer: {f.note}" for f in results if f.name == "stop ids"]
    differences = [f"log-probabilities differ from those of a plain forward pass by at most {gaps}"] if gaps else []
    return "; ".join([*differences, *layers, *ends])


def compute_logprob_tolerance(results: Sequence[NumericsCheck], temperature: float) -> float:
    """Compute how far sampler and trainer may differ in log-probabilities in a float32 run, from the model's measured rounding error."""
    measured = max((f.gap for f in results if f.gap is not None), default=0.0)
    return max(RUN_MISMATCH_LIMIT, 20 * measured) / min(1.0, temperature)


def check_context_window(mdp: TokenMDP, config: Any, max_prompt_length: int, name: str = "this model") -> None:
    """Check that the context window fits a model's positions; `max_prompt_length` is the length of the longest prompt."""
    settings = config.get_text_config()
    known = getattr(settings, "max_position_embeddings", None)
    reached = min(mdp.max_length, max_prompt_length + mdp.max_new_tokens) if mdp.environment.max_turns == 1 else mdp.max_length
    kind, original = _get_rope_type_and_length(settings)
    if kind == "longrope" and original and reached > original:
        raise ConfigError(
            f"prompt and answer may reach {reached} tokens, and beyond {original} {name} encodes positions with another factor, which "
            f"depends on the longest row of a batch: a row's gradient would depend on the other rows; set rollout.max_length={original}"
        )
    if known and reached > known and not _has_scaled_positions(settings):
        left = known - max_prompt_length
        lower = f"rollout.max_new_tokens={left}" if mdp.environment.max_turns == 1 and left > 0 else "lower rollout.max_new_tokens"
        raise ConfigError(
            f"prompt and answer may reach {reached} tokens, but {name} has {known} positions; set rollout.max_length={known}, or {lower}"
        )


def _has_scaled_positions(model_config: Any) -> bool:
    """Whether the model's positions are stretched by a factor, so that their number is no limit."""
    return "'factor'" in str(getattr(model_config, "rope_parameters", None))


def get_position_limit(model_config: Any) -> int | None:
    """Return the longest row that a model can be trained on; None: its configuration names no limit."""
    settings = model_config.get_text_config()
    kind, original = _get_rope_type_and_length(settings)
    if kind == "longrope" and original:
        return original
    known = getattr(settings, "max_position_embeddings", None)
    return int(known) if known and not _has_scaled_positions(settings) else None


def _get_rope_type_and_length(model_config: Any) -> tuple[str, int]:
    """Return a model's RoPE scaling type, and its original number of positions."""
    rope = getattr(model_config, "rope_parameters", None) or getattr(model_config, "rope_scaling", None) or {}
    original = rope.get("original_max_position_embeddings") or getattr(model_config, "original_max_position_embeddings", None)
    return str(rope.get("rope_type", "")), int(original or 0)
