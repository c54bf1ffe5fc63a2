"""KL: estimate the divergence of the policy from the reference for each token, and control its coefficient beta.

With D = l - l_ref on tokens that the policy sampled:

    k1 = D                     unbiased value; as a loss its expected gradient is 0, so it is allowed only in the reward
    k2 = D^2 / 2               biased value; as a loss its expected gradient is that of KL(policy || reference)
    k3 = exp(-D) + D - 1       unbiased, never negative; as a loss its gradient is that of KL(reference || policy)
    k3_ratio = r * k3          with the ratio's own gradient: that of KL(policy || reference) again

Only tensor methods are used, so this module needs no import of torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

KL_ESTIMATORS = ("k1", "k2", "k3", "k3_ratio")


def estimate_kl(new: Tensor, reference: Tensor, estimator: str, ratio: Tensor | None = None) -> Tensor:
    """Estimate the KL at each token. `ratio` is the token-level importance ratio, with its gradient."""
    difference = new - reference
    if estimator == "k1":
        return difference
    if estimator == "k2":
        return difference.square() / 2
    if estimator not in KL_ESTIMATORS:
        raise ValueError(f"kl_estimator is {estimator!r}; allowed: {', '.join(KL_ESTIMATORS)}")
    k3 = (-difference).clamp(-20, 20).exp() + difference - 1
    return k3 if estimator == "k3" or ratio is None else ratio * k3


class KLController:
    """The KL coefficient beta, fixed or adapted to a target KL (Ziegler et al., 1909.08593), and the schedule of reference updates.

    The KL is the mean of k3 per token; Ziegler's is per answer.

    >>> c = KLController(0.1, target=1.0, horizon=10)
    >>> c.update(2.0, 10)
    >>> round(c.beta, 3)
    0.12
    """

    def __init__(self, beta: float, *, target: float | None = None, horizon: int = 10_000, sync_every: int = 0, mixup: float = 0.6) -> None:
        self.beta, self.target_kl, self.horizon_episodes = beta, target, horizon
        self.sync_interval_steps, self.reference_update_fraction, self.num_steps = sync_every, mixup, 0

    def update(self, kl: float | None, num_episodes: int) -> None:
        """Update beta after a step: raise it if the KL is above the target, lower it if below."""
        self.num_steps += 1
        if self.target_kl is not None and kl is not None:
            error = min(max(kl / self.target_kl - 1.0, -0.2), 0.2)
            self.beta *= 1.0 + error * min(1.0, num_episodes / self.horizon_episodes)  # at most one horizon per step, so beta stays above 0

    def get_reference_update_fraction(self) -> float:
        """Return how far to move the reference toward the policy after this step."""
        return self.reference_update_fraction if self.sync_interval_steps and self.num_steps % self.sync_interval_steps == 0 else 0.0
