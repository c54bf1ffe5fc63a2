"""Aggregation: the weight of each row's tokens in the loss, computed once per optimizer step.

The loss of an optimizer step is `sum over tokens of weight[row] * loss[token]`. The denominators run over all
micro-batches and all processes, so the gradient does not depend on how the rows are split into micro-batches.

    seq-mean-token-mean        1 / (B * T_i)      the mean over sequences of the mean over tokens (GRPO)
    token-mean                 1 / N              every token counts the same (DAPO, PPO)
    seq-mean-token-sum         1 / B              the true policy gradient (REINFORCE)
    seq-mean-token-sum-norm    1 / (B * L_max)    a constant divisor (Dr.GRPO)
    prompt-mean                1 / (P * N_p)      token-mean inside each prompt's group, then the mean over prompts

A row without trainable tokens has weight 0 and is not counted in B. A row whose advantage is zero is counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from typing import NamedTuple

from rlvr.algorithms.functions.advantages import AllReduce, single_process_all_reduce


class BatchTotals(NamedTuple):
    """The rows, tokens and prompts of one optimizer step, over all processes.

    Rows and prompts without a token are not counted.

    >>> BatchTotals(rows=2.0, tokens=4.0, prompts=1.0, max_length=8).tokens
    4.0
    """

    rows: float
    tokens: float
    prompts: float
    max_length: int


LOSS_DIVISORS: dict[str, Callable[[BatchTotals, int, int], float]] = {
    "seq-mean-token-mean": lambda whole, length, inside: whole.rows * length,
    "token-mean": lambda whole, length, inside: whole.tokens,
    "seq-mean-token-sum": lambda whole, length, inside: whole.rows,
    "seq-mean-token-sum-norm": lambda whole, length, inside: whole.rows * whole.max_length,
    "prompt-mean": lambda whole, length, inside: whole.prompts * inside,
}
"""The divisor of a token's loss, given the length of its row and the number of tokens of its prompt's group."""
AGGREGATIONS = tuple(LOSS_DIVISORS)


def compute_row_weights(
    lengths: Sequence[int],
    prompts: Sequence[Hashable],
    aggregation: str,
    *,
    max_length: int = 0,
    all_reduce: AllReduce = single_process_all_reduce,
) -> list[float]:
    """Compute the weight of each row's tokens, given the number of trained tokens and the prompt of each row.

    >>> compute_row_weights([1, 3], ["a", "a"], "seq-mean-token-mean")
    [0.5, 0.16666666666666666]
    >>> compute_row_weights([1, 3], ["a", "a"], "token-mean")
    [0.25, 0.25]
    """
    if aggregation not in LOSS_DIVISORS:
        raise ValueError(f"loss_aggregation is {aggregation!r}; allowed: {', '.join(AGGREGATIONS)}")
    inside: Counter[Hashable] = Counter()
    for prompt, length in zip(prompts, lengths, strict=True):
        inside[prompt] += length
    living, living_prompts = sum(length > 0 for length in lengths), sum(n > 0 for n in inside.values())
    rows, tokens, groups = all_reduce([float(living), float(sum(lengths)), float(living_prompts)])
    whole = BatchTotals(rows, tokens, groups, max_length)
    return [1.0 / LOSS_DIVISORS[aggregation](whole, n, inside[prompt]) if n else 0.0 for n, prompt in zip(lengths, prompts, strict=True)]
