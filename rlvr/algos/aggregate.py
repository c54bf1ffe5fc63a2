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
from collections.abc import Hashable, Sequence

from rlvr.algos.credit import Total, alone

AGGREGATIONS = ("seq-mean-token-mean", "token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm", "prompt-mean")


def row_weights(lengths: Sequence[int], prompts: Sequence[Hashable], how: str, *, max_length: int = 0, total: Total = alone) -> list[float]:
    """The weight of each row's tokens, given how many of them train and the prompt they belong to.

    >>> row_weights([1, 3], ["a", "a"], "seq-mean-token-mean")
    [0.5, 0.16666666666666666]
    >>> row_weights([1, 3], ["a", "a"], "token-mean")
    [0.25, 0.25]
    """
    inside: Counter[Hashable] = Counter()
    for prompt, length in zip(prompts, lengths, strict=True):
        inside[prompt] += length
    living = sum(length > 0 for length in lengths)
    rows, tokens, groups = total([float(living), float(sum(lengths)), float(sum(n > 0 for n in inside.values()))])
    weights = []
    for length, prompt in zip(lengths, prompts, strict=True):
        if not length:
            weights.append(0.0)
        elif how == "seq-mean-token-mean":
            weights.append(1.0 / (rows * length))
        elif how == "token-mean":
            weights.append(1.0 / tokens)
        elif how == "seq-mean-token-sum":
            weights.append(1.0 / rows)
        elif how == "seq-mean-token-sum-norm":
            weights.append(1.0 / (rows * max_length))
        elif how == "prompt-mean":
            weights.append(1.0 / (groups * inside[prompt]))
        else:
            raise ValueError(f"loss_aggregation is {how!r}; allowed: {', '.join(AGGREGATIONS)}")
    return weights
