"""The conformance kit of algorithms: signs, masks, denominators, a bandit with its exact expectation, and resuming from a state."""

from __future__ import annotations

import importlib
import itertools
import json
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields
from functools import partial
from typing import Any

from rlvr.conformance.check_runner import CheckSkipped, Steps, check_closing_twice, describe_first_problem
from rlvr.contracts.algorithm import SAMPLE_TOKEN_STATS, Algorithm, LossInputs, TokenStats, get_loss_input_name
from rlvr.episode import Episode, StopReason
from rlvr.registry.plugins import build
from rlvr.task import Fault, Verdict

Groups = Sequence[Sequence[Episode]]
MAX_ANSWER_TOKENS = 6
"""Maximum length in tokens of the answers in the kit's episodes."""


def iter_algorithm_checks(name: str, settings: Mapping[str, Any]) -> Steps:
    """Yield the checks of one algorithm, in the order in which they run."""
    made: Any = build("algorithm", name, **settings)
    kit = _AlgorithmChecks(made, partial(build, "algorithm", name, **settings))
    yield "it can be built", lambda: "" if isinstance(made, Algorithm) else f"it is a {type(made).__name__}, not an rlvr.Algorithm"
    yield "it says what it is for", kit.check_docstring
    yield "its settings can be written down", kit.check_describe
    yield "tokens of the environment and answers without a score get nothing", kit.check_masking
    yield "a better answer becomes more likely than a worse one", kit.check_sign
    yield "a bandit gets better in expectation", kit.check_bandit_improvement
    yield "the gradient does not depend on the micro-batches", kit.check_micro_batches
    yield "the weights do not depend on the order of the rows", kit.check_row_order
    yield "answers that are far from the old policy give finite numbers", kit.check_finite
    yield "a resumed run goes on with the same numbers", kit.check_resume
    yield "it can be closed twice", partial(check_closing_twice, made)


def make_episode(tokens: Sequence[int], reward: float | None, group: str = "g", **meta: Any) -> Episode:
    """Make an episode of one turn after a prompt of one token, rewarded at its end; a reward of None means no score.

    >>> make_episode([1, 2], 0.5).action_mask
    [False, True, True]
    """
    n = len(tokens)
    verdict = Verdict(None, "gone", fault=Fault.INFRA) if reward is None else Verdict(reward, "")
    acted, rewards = [False] + [True] * n, [0.0] * n + [reward or 0.0]
    return Episode(group, group, [9, *tokens], acted, [0.0] * (n + 1), rewards, StopReason.TERMINATED, verdict=verdict, meta=meta)


def _make_irregular_groups() -> list[list[Episode]]:
    """Make two groups of answers of several lengths; in the second group one answer has two turns and one has no score."""
    first_ = [make_episode([1, 2, 3], 1.0), make_episode([1, 2], 0.0), make_episode([3] * MAX_ANSWER_TOKENS, 0.5), make_episode([2], 0.0)]
    acted = [False, True, True, False, True]
    turns = Episode(
        "h", "h", [9, 1, 2, 8, 3], acted, [0.0] * 5, [0.0] * 4 + [1.0], StopReason.TERMINATED, verdict=Verdict(1.0, ""), turns=2
    )
    return [first_, [turns, make_episode([1, 1], 0.0, "h"), make_episode([2, 2], None, "h"), make_episode([3], 0.25, "h")]]


def make_missing_sample_columns(algorithm: Algorithm, like: Any, known: Collection[str]) -> dict[str, Any]:
    """Make the loss inputs that the algorithm declares and that are not known yet, each full of the sample value of its field."""
    wanted = {get_loss_input_name(name): SAMPLE_TOKEN_STATS[name] for name in sorted(algorithm.traits.token_inputs)}
    taken = {field.name for field in fields(LossInputs)} - set(known)
    return {name: like * 0 + value for name, value in wanted.items() if name in taken}


class _AlgorithmChecks:
    """The checks of one algorithm."""

    def __init__(self, algorithm: Algorithm, build_new: Any) -> None:
        self.algorithm, self.build_new = algorithm, build_new

    def check_docstring(self) -> str:
        maker = getattr(self.algorithm, "spec", type(self.algorithm))
        return "" if (maker.__doc__ or "").strip() else "it has no docstring; say what it is for"

    def check_describe(self) -> str:
        try:
            json.dumps([[name, value, bool(differs)] for name, value, differs in self.algorithm.describe_settings()], allow_nan=False)
        except (TypeError, ValueError) as error:
            return f"describe() gives what JSON cannot hold: {error}"
        return ""

    # ---- credit ------------------------------------------------------------------------------------------------------

    def compute_advantages(self, groups: Groups, logs: Any = None) -> Any:
        """Compute the advantages of groups, with neutral values of the inputs that the algorithm needs."""
        algorithm = self.algorithm
        algorithm.set_completion_limit(max_new_tokens=MAX_ANSWER_TOKENS)
        needs = {
            need: [[[SAMPLE_TOKEN_STATS[need] * on for on in e.action_mask] for e in group] for group in groups]
            for need in algorithm.traits.token_inputs
        }
        return algorithm.compute_advantages(groups, TokenStats(**needs))

    def make_groups(self) -> list[list[Episode]]:
        groups = _make_irregular_groups()
        return (
            [[*group, make_episode([1], 0.25, group[0].group, greedy=True)] for group in groups]
            if self.algorithm.traits.needs_greedy_sample
            else groups
        )

    def check_masking(self) -> str:
        groups = self.make_groups()

        def wrong(e: Episode, row: Sequence[float]) -> str:
            if len(row) != len(e.tokens):
                return f"an answer of {len(e.tokens)} tokens has {len(row)} advantages"
            if not all(map(math.isfinite, row)):
                return f"an advantage is not finite: {list(row)}"
            if any(a and not (on and e.is_scored) for a, on in zip(row, e.action_mask, strict=True)):
                return f"an advantage is not 0 at a token that the policy did not choose, or without a score: {[float(a) for a in row]}"
            return ""

        pairs = zip(groups, self.compute_advantages(groups), strict=True)
        return describe_first_problem(wrong(e, row) for group, rows in pairs for e, row in zip(group, rows, strict=True))

    # ---- the gradient ------------------------------------------------------------------------------------------------

    def compute_negative_gradients(self, groups: Groups, *, logprob_shift: float = 0.0, one_row_per_micro_batch: bool = False) -> Any:
        """Compute the negative gradient of the loss with respect to each token's log-probability, one tensor per trained answer.

        `logprob_shift`: how far the new log-probabilities are above the old ones.
        `one_row_per_micro_batch`: each row is a separate micro-batch.
        """
        torch: Any = importlib.import_module("torch")
        algorithm, credit = self.algorithm, self.compute_advantages(groups)
        rows = [
            (e, a) for group, own in zip(groups, credit, strict=True) for e, a in zip(group, own, strict=True) if algorithm.is_in_loss(e)
        ]
        rows = [(e, [float(x) for x, on in zip(a, algorithm.loss_mask(e), strict=True) if on]) for e, a in rows]
        counted = [len(a) if algorithm.traits.count_zero_advantage or any(a) else 0 for _, a in rows]
        weights = algorithm.compute_row_weights(counted, [e.group for e, _ in rows], max_length=MAX_ANSWER_TOKENS)
        leaves = [torch.full((len(a),), -1.0, dtype=torch.float64, requires_grad=True) for _, a in rows]
        columns = {"advantages": torch.tensor([x for _, a in rows for x in a], dtype=torch.float64)}
        columns["old_logprobs"] = columns["rollout_logprobs"] = torch.cat([leaf.detach() for leaf in leaves]) - logprob_shift
        columns["batch_stats"] = (
            algorithm.compute_token_batch_stats(columns, list) if algorithm.traits.needs_batch_stats else columns["old_logprobs"] * 0
        )
        total: Any = torch.zeros((), dtype=torch.float64)
        starts = [0, *itertools.accumulate(len(leaf) for leaf in leaves)]
        for part in [[k] for k in range(len(rows))] if one_row_per_micro_batch else [list(range(len(rows)))]:
            sizes = torch.tensor([len(leaves[k]) for k in part])
            take = torch.cat([torch.arange(starts[k], starts[k + 1]) for k in part])
            inputs = self._make_loss_inputs(
                torch.cat([leaves[k] for k in part]), columns, take, torch.arange(len(part)).repeat_interleave(sizes)
            )
            weight = torch.tensor([weights[k] for k in part], dtype=torch.float64).repeat_interleave(sizes)
            total = total - (algorithm.compute_token_losses(inputs)[0] * weight).sum()
        found = torch.autograd.grad(total, leaves, allow_unused=True)
        return [torch.zeros_like(leaf) if g is None else g for leaf, g in zip(leaves, found, strict=True)], [e for e, _ in rows]

    def _make_loss_inputs(self, new: Any, columns: Mapping[str, Any], take: Any, rows: Any) -> LossInputs:
        algorithm, known = self.algorithm, {name: column[take] for name, column in columns.items()}
        more: dict[str, Any] = {"frozen_logprobs": dict.fromkeys(algorithm.traits.scoring_models, new.detach())}
        if algorithm.traits.needs_entropy:
            more["entropy"] = new * 0 + 0.5
        if algorithm.traits.needs_value:
            more |= {"values": new.detach() * 0, "old_values": new.detach() * 0, "returns": new.detach() * 0}
        if algorithm.traits.needs_token_context:
            more |= {"tokens": rows * 0 + 1, "episodes": rows, "turns": rows * 0}
        more |= make_missing_sample_columns(algorithm, new.detach(), {*known, *more})
        return LossInputs(logprobs=new, rows=rows, num_rows=int(rows.max()) + 1, **known, **more)

    def _skip_unless_score_driven(self) -> None:
        """Skip the check if the algorithm does not follow the scores alone."""
        if self.algorithm.is_critic_warmup:
            raise CheckSkipped("its first steps train the critic alone")
        if self.algorithm.traits.frozen_models:
            raise CheckSkipped("it follows another model, not only the score")

    def check_sign(self) -> str:
        self._skip_unless_score_driven()
        groups = [[make_episode([1, 2], 1.0), make_episode([2, 1], 0.0)], [make_episode([3, 3], 0.0, "h"), make_episode([1, 3], 1.0, "h")]]
        if self.algorithm.traits.needs_greedy_sample:
            groups = [[*group, make_episode([2], 0.5, group[0].group, greedy=True)] for group in groups]
        slopes, rows = self.compute_negative_gradients(groups)
        up = sum(float(g.sum()) for g, e in zip(slopes, rows, strict=True) if e.reward > 0.5)
        down = sum(float(g.sum()) for g, e in zip(slopes, rows, strict=True) if e.reward < 0.5)
        return "" if up > down else f"the loss raises the log-probability of right answers by {up:g} and of wrong ones by {down:g}"

    def check_bandit_improvement(self) -> str:
        """Check that the exact expected step on a bandit with three arms raises the reward (all groups of three pulls, weighted)."""
        torch: Any = importlib.import_module("torch")
        self._skip_unless_score_driven()
        chances, pays, arms = (0.5, 0.3, 0.2), (0.0, 1.0, 0.25), range(3)
        mean = sum(p * r for p, r in zip(chances, pays, strict=True))
        truth = torch.tensor([p * (r - mean) for p, r in zip(chances, pays, strict=True)], dtype=torch.float64)
        step = torch.zeros(3, dtype=torch.float64)
        for pulled in itertools.product(arms, repeat=3):
            group = [make_episode([arm], pays[arm]) for arm in pulled]
            extra = [make_episode([0], pays[0], greedy=True)] if self.algorithm.traits.needs_greedy_sample else []
            slopes, _ = self.compute_negative_gradients([[*group, *extra]])
            chance = math.prod(chances[arm] for arm in pulled)
            for arm, g in zip(pulled, slopes, strict=True):
                towards = torch.tensor([float(k == arm) - chances[k] for k in arms], dtype=torch.float64)  # d log p(arm) / d logits
                step += chance * float(g.sum()) * towards
        cosine = float((step * truth).sum() / (step.norm() * truth.norm()).clamp(min=1e-30))
        return "" if cosine > 0.1 else f"the mean step and the gradient of the expected reward have the cosine {cosine:.3f}"

    def check_micro_batches(self) -> str:
        groups = self.make_groups()
        (whole, _), (parts, _) = (
            self.compute_negative_gradients(groups, logprob_shift=0.1),
            self.compute_negative_gradients(groups, logprob_shift=0.1, one_row_per_micro_batch=True),
        )
        most = max(float((a - b).abs().max()) for a, b in zip(whole, parts, strict=True))
        return "" if most < 1e-9 else f"row by row the gradient differs by {most:g}; a loss may look only at its own row"

    def check_row_order(self) -> str:
        lengths, prompts, order = [3, 0, 5, 1], ["a", "a", "b", "b"], [2, 0, 3, 1]
        plain = self.algorithm.compute_row_weights(lengths, prompts, max_length=MAX_ANSWER_TOKENS)
        turned = self.algorithm.compute_row_weights([lengths[k] for k in order], [prompts[k] for k in order], max_length=MAX_ANSWER_TOKENS)
        wrong = any(abs(turned[i] - plain[k]) > 1e-12 for i, k in enumerate(order)) or not all(w >= 0 and math.isfinite(w) for w in plain)
        return f"row_weights gives {plain}, and {turned} in the order {order}" if wrong else ""

    def check_finite(self) -> str:
        for gap in (-50.0, 50.0):
            slopes, _ = self.compute_negative_gradients(self.make_groups(), logprob_shift=gap)
            if not all(bool(g.isfinite().all()) for g in slopes):
                return f"with log-probabilities {gap:+g} from the old ones the gradient is not finite; clamp the log ratio"
        return ""

    def check_resume(self) -> str:
        before = self.algorithm
        for rewards, kl in (([1.0, 0.0], 0.2), ([0.5, 0.25], 0.1)):
            before.on_step_end(rewards, kl)
        after: Algorithm = self.build_new()
        try:
            after.load_state_dict(json.loads(json.dumps(before.state_dict(), allow_nan=False)))
        except (TypeError, ValueError, KeyError) as error:
            return f"state_dict() does not survive JSON and load_state_dict: {type(error).__name__}: {error}"
        seen = []
        for algorithm in (before, after):
            rows = _AlgorithmChecks(algorithm, self.build_new).compute_advantages(self.make_groups())
            seen.append(([[float(x) for x in row] for group in rows for row in group], algorithm.beta, algorithm.is_critic_warmup))
        return "" if seen[0] == seen[1] else "after load_state_dict the advantages, beta or critic_alone differ; save what they depend on"
