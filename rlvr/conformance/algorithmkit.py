"""The conformance kit of algorithms: signs, masks, denominators, a bandit with its exact expectation, and resuming from a state."""

from __future__ import annotations

import importlib
import itertools
import json
import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from rlvr.conformance.steps import CannotCheck, Steps, closed, first
from rlvr.contracts.algorithm import Algorithm, LossInputs, Scores
from rlvr.episode import End, Episode
from rlvr.plugins.registry import build
from rlvr.task import Fault, Verdict

Groups = Sequence[Sequence[Episode]]
LONGEST = 6
"""Maximum length in tokens of the answers in the kit's episodes."""


def algorithm_checks(name: str, settings: Mapping[str, Any]) -> Steps:
    """Yield the checks of one algorithm, in the order in which they run."""
    made: Any = build("algorithm", name, **settings)
    kit = _Kit(made, partial(build, "algorithm", name, **settings))
    yield "it can be built", lambda: "" if isinstance(made, Algorithm) else f"it is a {type(made).__name__}, not an rlvr.Algorithm"
    yield "it says what it is for", kit.described
    yield "its settings can be written down", kit.told
    yield "tokens of the environment and answers without a score get nothing", kit.masked
    yield "a better answer becomes more likely than a worse one", kit.sign
    yield "a bandit gets better in expectation", kit.bandit
    yield "the gradient does not depend on the micro-batches", kit.divided
    yield "the weights do not depend on the order of the rows", kit.ordered
    yield "answers that are far from the old policy give finite numbers", kit.finite
    yield "a resumed run goes on with the same numbers", kit.resumed
    yield "it can be closed twice", partial(closed, made)


def answer(tokens: Sequence[int], reward: float | None, group: str = "g", **meta: Any) -> Episode:
    """Make an episode of one turn after a prompt of one token, rewarded at its end; a reward of None means no score.

    >>> answer([1, 2], 0.5).acted
    [False, True, True]
    """
    n = len(tokens)
    verdict = Verdict(None, "gone", fault=Fault.INFRA) if reward is None else Verdict(reward, "")
    acted, rewards = [False] + [True] * n, [0.0] * n + [reward or 0.0]
    return Episode(group, group, [9, *tokens], acted, [0.0] * (n + 1), rewards, End.TERMINATED, verdict=verdict, meta=meta)


def mixed() -> list[list[Episode]]:
    """Make two groups of answers of several lengths; in the second group one answer has two turns and one has no score."""
    first_ = [answer([1, 2, 3], 1.0), answer([1, 2], 0.0), answer([3] * LONGEST, 0.5), answer([2], 0.0)]
    acted = [False, True, True, False, True]
    turns = Episode("h", "h", [9, 1, 2, 8, 3], acted, [0.0] * 5, [0.0] * 4 + [1.0], End.TERMINATED, verdict=Verdict(1.0, ""), turns=2)
    return [first_, [turns, answer([1, 1], 0.0, "h"), answer([2, 2], None, "h"), answer([3], 0.25, "h")]]


class _Kit:
    """The checks of one algorithm."""

    def __init__(self, algorithm: Algorithm, fresh: Any) -> None:
        self.algorithm, self.fresh = algorithm, fresh

    def described(self) -> str:
        maker = getattr(self.algorithm, "recipe", type(self.algorithm))
        return "" if (maker.__doc__ or "").strip() else "it has no docstring; say what it is for"

    def told(self) -> str:
        try:
            json.dumps([[name, value, bool(differs)] for name, value, differs in self.algorithm.describe()], allow_nan=False)
        except (TypeError, ValueError) as error:
            return f"describe() gives what JSON cannot hold: {error}"
        return ""

    # ---- credit ------------------------------------------------------------------------------------------------------

    def credited(self, groups: Groups, logs: Any = None) -> Any:
        """Compute the advantages of groups, with neutral values of the inputs that the algorithm needs."""
        algorithm = self.algorithm
        algorithm.configure(max_completion_length=LONGEST)
        flat = {"values": 0.0, "entropy": 0.5, "penalties": 0.0, "old": -1.0, "reference": -1.0}
        needs = {need: [[[flat[need] * on for on in e.acted] for e in group] for group in groups] for need in algorithm.credit_needs}
        return algorithm.credit(groups, Scores(**needs))

    def groups(self) -> list[list[Episode]]:
        groups = mixed()
        return [[*group, answer([1], 0.25, group[0].group, greedy=True)] for group in groups] if self.algorithm.needs_greedy else groups

    def masked(self) -> str:
        groups = self.groups()

        def wrong(e: Episode, row: Sequence[float]) -> str:
            if len(row) != len(e.tokens):
                return f"an answer of {len(e.tokens)} tokens has {len(row)} advantages"
            if not all(map(math.isfinite, row)):
                return f"an advantage is not finite: {list(row)}"
            if any(a and not (on and e.scored) for a, on in zip(row, e.acted, strict=True)):
                return f"an advantage is not 0 at a token that the policy did not choose, or without a score: {[float(a) for a in row]}"
            return ""

        pairs = zip(groups, self.credited(groups), strict=True)
        return first(wrong(e, row) for group, rows in pairs for e, row in zip(group, rows, strict=True))

    # ---- the gradient ------------------------------------------------------------------------------------------------

    def slopes(self, groups: Groups, *, gap: float = 0.0, split: bool = False) -> Any:
        """Compute the negative gradient of the loss with respect to each token's log-probability, one tensor per trained answer.

        `gap`: how far the new log-probabilities are above the old ones; `split`: each row is a separate micro-batch.
        """
        torch: Any = importlib.import_module("torch")
        algorithm, credit = self.algorithm, self.credited(groups)
        rows = [(e, a) for group, own in zip(groups, credit, strict=True) for e, a in zip(group, own, strict=True) if algorithm.trains(e)]
        rows = [(e, [float(x) for x, on in zip(a, algorithm.kept(e), strict=True) if on]) for e, a in rows]
        counted = [len(a) if algorithm.counts_flat or any(a) else 0 for _, a in rows]
        weights = algorithm.row_weights(counted, [e.group for e, _ in rows], max_length=LONGEST)
        leaves = [torch.full((len(a),), -1.0, dtype=torch.float64, requires_grad=True) for _, a in rows]
        columns = {"advantages": torch.tensor([x for _, a in rows for x in a], dtype=torch.float64)}
        columns["old"] = columns["sampler"] = torch.cat([leaf.detach() for leaf in leaves]) - gap
        columns["prepared"] = algorithm.prepare(columns, list) if algorithm.prepares else columns["old"] * 0
        total: Any = torch.zeros((), dtype=torch.float64)
        starts = [0, *itertools.accumulate(len(leaf) for leaf in leaves)]
        for part in [[k] for k in range(len(rows))] if split else [list(range(len(rows)))]:
            sizes = torch.tensor([len(leaves[k]) for k in part])
            take = torch.cat([torch.arange(starts[k], starts[k + 1]) for k in part])
            inputs = self._inputs(torch.cat([leaves[k] for k in part]), columns, take, torch.arange(len(part)).repeat_interleave(sizes))
            weight = torch.tensor([weights[k] for k in part], dtype=torch.float64).repeat_interleave(sizes)
            total = total - (algorithm.losses(inputs)[0] * weight).sum()
        found = torch.autograd.grad(total, leaves, allow_unused=True)
        return [torch.zeros_like(leaf) if g is None else g for leaf, g in zip(leaves, found, strict=True)], [e for e, _ in rows]

    def _inputs(self, new: Any, columns: Mapping[str, Any], take: Any, rows: Any) -> LossInputs:
        algorithm, known = self.algorithm, {name: column[take] for name, column in columns.items()}
        more: dict[str, Any] = {"reference": new.detach()} if algorithm.needs_reference else {}
        if algorithm.needs_entropy:
            more["entropy"] = new * 0 + 0.5
        if algorithm.needs_value:
            more |= {"values": new.detach() * 0, "old_values": new.detach() * 0, "returns": new.detach() * 0}
        if algorithm.needs_context:
            more |= {"tokens": rows * 0 + 1, "episodes": rows, "turns": rows * 0}
        return LossInputs(new=new, rows=rows, count=int(rows.max()) + 1, **known, **more)

    def _led_by_scores(self) -> None:
        """Skip the check if the algorithm does not follow the scores alone."""
        if self.algorithm.critic_alone:
            raise CannotCheck("its first steps train the critic alone")
        if self.algorithm.needs_teacher:
            raise CannotCheck("it follows a teacher, not only the score")

    def sign(self) -> str:
        self._led_by_scores()
        groups = [[answer([1, 2], 1.0), answer([2, 1], 0.0)], [answer([3, 3], 0.0, "h"), answer([1, 3], 1.0, "h")]]
        if self.algorithm.needs_greedy:
            groups = [[*group, answer([2], 0.5, group[0].group, greedy=True)] for group in groups]
        slopes, rows = self.slopes(groups)
        up = sum(float(g.sum()) for g, e in zip(slopes, rows, strict=True) if e.reward > 0.5)
        down = sum(float(g.sum()) for g, e in zip(slopes, rows, strict=True) if e.reward < 0.5)
        return "" if up > down else f"the loss raises the log-probability of right answers by {up:g} and of wrong ones by {down:g}"

    def bandit(self) -> str:
        """Check that the exact expected step on a bandit with three arms raises the reward (all groups of three pulls, weighted)."""
        torch: Any = importlib.import_module("torch")
        self._led_by_scores()
        chances, pays, arms = (0.5, 0.3, 0.2), (0.0, 1.0, 0.25), range(3)
        mean = sum(p * r for p, r in zip(chances, pays, strict=True))
        truth = torch.tensor([p * (r - mean) for p, r in zip(chances, pays, strict=True)], dtype=torch.float64)
        step = torch.zeros(3, dtype=torch.float64)
        for pulled in itertools.product(arms, repeat=3):
            group = [answer([arm], pays[arm]) for arm in pulled]
            extra = [answer([0], pays[0], greedy=True)] if self.algorithm.needs_greedy else []
            slopes, _ = self.slopes([[*group, *extra]])
            chance = math.prod(chances[arm] for arm in pulled)
            for arm, g in zip(pulled, slopes, strict=True):
                towards = torch.tensor([float(k == arm) - chances[k] for k in arms], dtype=torch.float64)  # d log p(arm) / d logits
                step += chance * float(g.sum()) * towards
        cosine = float((step * truth).sum() / (step.norm() * truth.norm()).clamp(min=1e-30))
        return "" if cosine > 0.1 else f"the mean step and the gradient of the expected reward have the cosine {cosine:.3f}"

    def divided(self) -> str:
        groups = self.groups()
        (whole, _), (parts, _) = self.slopes(groups, gap=0.1), self.slopes(groups, gap=0.1, split=True)
        most = max(float((a - b).abs().max()) for a, b in zip(whole, parts, strict=True))
        return "" if most < 1e-9 else f"row by row the gradient differs by {most:g}; a loss may look only at its own row"

    def ordered(self) -> str:
        lengths, prompts, order = [3, 0, 5, 1], ["a", "a", "b", "b"], [2, 0, 3, 1]
        plain = self.algorithm.row_weights(lengths, prompts, max_length=LONGEST)
        turned = self.algorithm.row_weights([lengths[k] for k in order], [prompts[k] for k in order], max_length=LONGEST)
        wrong = any(abs(turned[i] - plain[k]) > 1e-12 for i, k in enumerate(order)) or not all(w >= 0 and math.isfinite(w) for w in plain)
        return f"row_weights gives {plain}, and {turned} in the order {order}" if wrong else ""

    def finite(self) -> str:
        for gap in (-50.0, 50.0):
            slopes, _ = self.slopes(self.groups(), gap=gap)
            if not all(bool(g.isfinite().all()) for g in slopes):
                return f"with log-probabilities {gap:+g} from the old ones the gradient is not finite; clamp the log ratio"
        return ""

    def resumed(self) -> str:
        before = self.algorithm
        for rewards, kl in (([1.0, 0.0], 0.2), ([0.5, 0.25], 0.1)):
            before.observe(rewards, kl)
        after: Algorithm = self.fresh()
        try:
            after.load_state_dict(json.loads(json.dumps(before.state_dict(), allow_nan=False)))
        except (TypeError, ValueError, KeyError) as error:
            return f"state_dict() does not survive JSON and load_state_dict: {type(error).__name__}: {error}"
        seen = []
        for algorithm in (before, after):
            rows = _Kit(algorithm, self.fresh).credited(self.groups())
            seen.append(([[float(x) for x in row] for group in rows for row in group], algorithm.beta, algorithm.critic_alone))
        return "" if seen[0] == seen[1] else "after load_state_dict the advantages, beta or critic_alone differ; save what they depend on"
