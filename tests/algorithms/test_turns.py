"""Credit of turns: exact expectations in a two-turn world, the formulas by naive loops, and random groups of all shapes."""

from __future__ import annotations

import itertools
import math
import statistics
from collections import defaultdict
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from rlvr import make_env
from rlvr.algorithms.functions import advantages as credit
from rlvr.algorithms.functions.turn_advantages import TURN_COMPARISONS, compute_turn_returns, group_comparable_turns
from rlvr.contracts.algorithm import LossInputs
from rlvr.episode import Episode, StopReason
from rlvr.mdp.token_mdp import TokenMDP
from rlvr.mdp.tokenizers import ByteTokenizer
from rlvr.task import Fault, Verdict
from tests.fixtures.learning import factory
from tests.fixtures.two_threads import at_once

quick = settings(max_examples=40, deadline=None)


def conversation(
    turns: list[tuple[list[int], list[int], float]], *, end: StopReason = StopReason.TERMINATED, scored: bool = True, **meta: Any
) -> Episode:
    """An episode from its turns: what the environment writes, what the policy writes, what it earns."""
    tokens, acted, rewards = [9], [False], [0.0]
    for before, said, amount in turns:
        tokens += [*before, *said]
        acted += [False] * len(before) + [True] * len(said)
        rewards += [0.0] * (len(before) + len(said) - 1) + [amount if scored else 0.0]
    verdict = Verdict(max(0.0, min(1.0, math.fsum(rewards))), "") if scored else Verdict(None, "gone", fault=Fault.INFRA)
    return Episode(
        "t",
        "g",
        tokens,
        acted,
        [0.0] * len(tokens),
        rewards,
        end if scored else StopReason.FAILED,
        verdict=verdict,
        turns=len(turns),
        meta=meta,
    )


# ---- exact expectations ----------------------------------------------------------------------------------------------------------

REPLY = {0: 5, 1: 6, 2: 6}
"""What the environment answers to the first turn: after 1 and 2 it says the same."""


class TwoTurns:
    """Two turns of one token each; the policy has logits for its first turn and for its second after each first."""

    def __init__(self, seed: int, *, stops_after: int | None) -> None:
        g = torch.Generator().manual_seed(seed)
        self.first = torch.randn(3, generator=g, dtype=torch.float64).requires_grad_()
        self.second = torch.randn(3, 3, generator=g, dtype=torch.float64).requires_grad_()
        self.early, self.late = (torch.rand(3, n, generator=g, dtype=torch.float64).tolist() for n in (1, 3))
        self.stops_after = stops_after
        self.paths = [(a, b) for a in range(3) for b in ([None] if a == stops_after else range(3))]

    def logs(self, path: tuple[int, int | None]) -> Tensor:
        a, b = path
        one = self.first.log_softmax(-1)[a : a + 1]
        return one if b is None else torch.cat([one, self.second.log_softmax(-1)[a, b : b + 1]])

    def episode(self, path: tuple[int, int | None]) -> Episode:
        a, b = path
        return conversation([([], [a], self.early[a][0]), *([] if b is None else [([REPLY[a]], [b], self.late[a][b])])])

    def expected(self, meets: Any, discount: float) -> Tensor:
        """The gradient in closed form: of each turn's own return, where the turn meets another one that it is compared with."""
        first, second = self.first.softmax(-1), self.second.softmax(-1)
        reach = first.detach()
        value = torch.zeros((), dtype=torch.float64)
        for a in range(3):
            later = torch.zeros((), dtype=torch.float64)
            if a != self.stops_after:
                later = (second[a] * torch.tensor(self.late[a], dtype=torch.float64)).sum()
                value = value + reach[a] * meets(reach.tolist(), a) * later
            value = value + first[a] * (self.early[a][0] + discount * later.detach())
        return torch.cat([g.flatten() for g in torch.autograd.grad(value, (self.first, self.second))])

    def mean(self, algorithm: Any, size: int) -> Tensor:
        """The mean over all groups, each weighed by its probability, of the gradient of -loss."""
        total = torch.zeros((), dtype=torch.float64)
        known = {path: self.logs(path) for path in self.paths}
        for members in itertools.product(self.paths, repeat=size):
            logs = [known[path] for path in members]
            episodes = [self.episode(path) for path in members]
            [advantages] = algorithm.compute_advantages([episodes])
            flat = [a for row, e in zip(advantages, episodes, strict=True) for a, on in zip(row, e.action_mask, strict=True) if on]
            lengths = [e.num_policy_tokens for e in episodes]
            rows = torch.tensor([i for i, n in enumerate(lengths) for _ in range(n)])
            new = torch.cat(logs)
            inputs = LossInputs(
                logprobs=new,
                old_logprobs=new.detach(),
                rollout_logprobs=new.detach(),
                advantages=torch.tensor(flat, dtype=torch.float64),
                rows=rows,
                num_rows=size,
            )
            losses, _ = algorithm.compute_token_losses(inputs)
            weights = torch.tensor(algorithm.compute_row_weights(lengths, ["0"] * size), dtype=torch.float64)
            total = total - math.exp(math.fsum(float(x.detach().sum()) for x in logs)) * (losses * weights[rows]).sum()
        return torch.cat([g.flatten() for g in torch.autograd.grad(total, (self.first, self.second))])


def same_index(size: int, stops_after: int | None) -> Any:
    """The chance that another member has a second turn at all."""
    return lambda reach, a: 1 - (0.0 if stops_after is None else reach[stops_after]) ** (size - 1)


def same_state(size: int, stops_after: int | None) -> Any:
    return lambda reach, a: 1 - (1 - reach[a]) ** (size - 1)


def same_reply(size: int, stops_after: int | None) -> Any:
    alike = {a: [b for b in range(3) if REPLY[b] == REPLY[a] and b != stops_after] for a in range(3)}
    return lambda reach, a: 1 - (1 - sum(reach[b] for b in alike[a])) ** (size - 1)


@pytest.mark.parametrize("stops_after", [None, 0, 2])
@pytest.mark.parametrize(("how", "meets"), [("index", same_index), ("state", same_state), ("observation", same_reply)])
@pytest.mark.parametrize(("size", "discount"), [(2, 1.0), (3, 0.6)])
def test_the_mean_gradient_is_that_of_each_turns_own_return(
    how: str, meets: Any, size: int, discount: float, stops_after: int | None
) -> None:
    """With leave-one-out no baseline biases a turn: it is only weighed by the chance to be compared with another one."""
    world = TwoTurns(size, stops_after=stops_after)
    algorithm = factory("reinforce")(
        advantage="grpo_turns", scale_rewards="none", baseline="leave_one_out", compare_turns=how, turn_discount=discount
    )
    gap = world.mean(algorithm, size) - world.expected(meets(size, stops_after), discount)
    assert float(gap.abs().max()) < 1e-10


def test_with_as_many_turns_each_comparing_by_index_is_unbiased() -> None:
    world = TwoTurns(7, stops_after=None)
    value = torch.zeros((), dtype=torch.float64)
    for path in world.paths:
        value = value + world.logs(path).sum().exp() * world.episode(path).reward
    truth = torch.cat([g.flatten() for g in torch.autograd.grad(value, (world.first, world.second))])
    algorithm = factory("reinforce")(advantage="grpo_turns", scale_rewards="none", baseline="leave_one_out")
    assert float((world.mean(algorithm, 2) - truth).abs().max()) < 1e-10
    whole = factory("reinforce")(advantage="rloo")
    assert float((world.mean(whole, 2) - truth).abs().max()) < 1e-10  # the reward of the whole answer is unbiased too, with more noise


# ---- the formulas -------------------------------------------------------------------------------------------------------------------

said = st.lists(st.integers(0, 1), min_size=1, max_size=2)
amounts = st.sampled_from([0.0, 0.0, 0.25, 0.5, 1.0, -0.25])
one_turn = st.tuples(st.lists(st.integers(5, 6), min_size=1, max_size=1), said, amounts)
endings = st.sampled_from([StopReason.TERMINATED, StopReason.TERMINATED, StopReason.TRUNCATED, None])


@st.composite
def members(draw: Any, most_turns: int = 4) -> Episode:
    turns = draw(st.lists(one_turn, min_size=1, max_size=most_turns))
    turns[0] = ([], *turns[0][1:])
    end, flags = draw(endings), draw(st.sets(st.integers(0, most_turns - 1)))
    meta: dict[str, Any] = {"malformed_turns": sorted(flags & set(range(len(turns))))} if flags else {}
    return conversation(turns, end=end or StopReason.FAILED, scored=end is not None, **meta)


def batches(most_turns: int = 4) -> Any:
    return st.lists(st.lists(members(most_turns), min_size=1, max_size=5), min_size=1, max_size=3)


def places(e: Episode) -> list[list[int]]:
    """The tokens of each turn, found another way than the product finds them."""
    found: list[list[int]] = []
    for t, own in enumerate(e.action_mask):
        if own and not e.action_mask[t - 1]:
            found.append([])
        if own:
            found[-1].append(t)
    return found


def naive(groups: list[list[Episode]], how: str, gamma: float, weight: float, *, deviation: bool, outcome: bool) -> list[Any]:
    def score(values: list[float], mine: float) -> float:
        if len(values) < 2 or max(values) - min(values) <= 1e-6:
            return 0.0
        return (mine - statistics.fmean(values)) / (statistics.stdev(values) + 1e-4 if deviation else 1.0)

    out = []
    for group in groups:
        gains = [[sum(e.rewards[t] for t in turn) for turn in places(e)] for e in group]
        totals = [[sum(gamma ** (k - t) * row[k] for k in range(t, len(row))) for t in range(len(row))] for row in gains]
        alike: dict[Any, list[float]] = defaultdict(list)

        def key(e: Episode, turn: int) -> Any:
            start = places(e)[turn][0]
            before = places(e)[turn - 1][-1] + 1 if turn else 0
            return {"index": turn, "state": tuple(e.tokens[:start]), "observation": tuple(e.tokens[before:start])}[how]

        for e, row in zip(group, totals, strict=True):
            for turn, value in enumerate(row if e.is_scored else ()):
                alike[key(e, turn)].append(value)
        whole = [math.fsum(e.rewards) for e in group if e.is_scored]
        rows = []
        for e, row in zip(group, totals, strict=True):
            mine = [0.0] * len(e.tokens)
            for turn, value in enumerate(row if e.is_scored else ()):
                one = score(alike[key(e, turn)], value)
                for t in places(e)[turn]:
                    mine[t] = score(whole, math.fsum(e.rewards)) + weight * one if outcome else one
            rows.append(mine)
        out.append(rows)
    return out


def near(a: list[Any], b: list[Any], tolerance: float = 1e-10) -> bool:
    pairs = [(x, y) for g, h in zip(a, b, strict=True) for r, q in zip(g, h, strict=True) for x, y in zip(r, q, strict=True)]
    return all(math.isfinite(x) and abs(x - y) < tolerance for x, y in pairs)


@pytest.mark.parametrize("how", TURN_COMPARISONS)
@quick
@given(groups=batches(), gamma=st.sampled_from([1.0, 0.95, 0.0]), weight=st.sampled_from([1.0, 0.3]), deviation=st.booleans())
def test_the_credit_of_random_groups_is_its_formula(
    how: str, groups: list[list[Episode]], gamma: float, weight: float, deviation: bool
) -> None:
    scale = "group" if deviation else "none"
    turns = factory("grpo_turns")(compare_turns=how, turn_discount=gamma, scale_rewards=scale).compute_advantages(groups)
    assert near(turns, naive(groups, how, gamma, weight, deviation=deviation, outcome=False))
    both = factory("gigpo")(compare_turns=how, turn_discount=gamma, turn_weight=weight, scale_rewards=scale).compute_advantages(groups)
    assert near(both, naive(groups, how, gamma, weight, deviation=deviation, outcome=True))


@pytest.mark.parametrize("how", TURN_COMPARISONS)
@quick
@given(groups=batches())
def test_what_is_compared_sums_to_zero_and_the_rest_is_zero(how: str, groups: list[list[Episode]]) -> None:
    advantages = factory("grpo_turns")(compare_turns=how, scale_rewards="none").compute_advantages(groups)
    for group, rows in zip(groups, advantages, strict=True):
        compared = group_comparable_turns(group, how)
        assert sorted(x for cohort in compared for x in cohort) == [(i, t) for i, e in enumerate(group) for t in range(e.turns)]
        for cohort in compared:
            values = [rows[i][places(group[i])[t][0]] for i, t in cohort]
            scored = [group[i].is_scored for i, _ in cohort]
            assert abs(math.fsum(values)) < 1e-9
            assert not any(v for v, ok in zip(values, scored, strict=True) if not ok or sum(scored) < 2)
        for e, row in zip(group, rows, strict=True):
            assert all(len({row[t] for t in turn}) == 1 for turn in places(e))
            assert not any(a for a, own in zip(row, e.action_mask, strict=True) if not own)


@pytest.mark.slow
@pytest.mark.parametrize("settings_", [{}, {"scale_rewards": "none"}, {"scale_rewards": "batch"}, {"whiten": "tokens"}])
@quick
@given(groups=batches(most_turns=1))
def test_where_there_is_one_turn_it_is_grpo_to_the_bit(settings_: dict[str, Any], groups: list[list[Episode]]) -> None:
    plain = factory("grpo")(**settings_).compute_advantages(groups)
    for how in TURN_COMPARISONS:
        assert factory("grpo_turns")(compare_turns=how, turn_discount=0.5, **settings_).compute_advantages(groups) == plain
    if settings_.get("whiten") != "tokens":
        twice = [[[2 * a for a in row] for row in rows] for rows in plain]
        assert factory("gigpo")(**settings_).compute_advantages(groups) == twice  # the same comparison twice: why it is refused there
        assert factory("gigpo")(turn_weight=0.0, **settings_).compute_advantages(groups) == plain


@pytest.mark.slow
@quick
@given(groups=batches(), order=st.randoms())
def test_the_order_and_the_unscored_do_not_matter(groups: list[list[Episode]], order: Any) -> None:
    for name, how in itertools.product(("grpo_turns", "gigpo"), TURN_COMPARISONS):
        algorithm = factory(name)(compare_turns=how)
        plain = algorithm.compute_advantages(groups)
        mixed = [order.sample(range(len(group)), len(group)) for group in groups]
        turned = algorithm.compute_advantages([[group[i] for i in places_] for group, places_ in zip(groups, mixed, strict=True)])
        assert near(turned, [[rows[i] for i in places_] for rows, places_ in zip(plain, mixed, strict=True)])
        alone = algorithm.compute_advantages([[e for e in group if e.is_scored] for group in groups])
        assert near(
            alone, [[r for r, e in zip(rows, group, strict=True) if e.is_scored] for rows, group in zip(plain, groups, strict=True)]
        )


@pytest.mark.parametrize("settings_", [{"scale_rewards": "batch"}, {"whiten": "tokens"}])
def test_sums_over_processes_enter_the_credit_of_turns(settings_: dict[str, Any]) -> None:
    a = [conversation([([], [0], 0.0), ([5], [1], x)]) for x in (0.0, 0.5, 1.0)]
    b = [conversation([([], [0], 0.25), ([5], [1], x)]) for x in (0.0, 0.25)] + [conversation([([], [1], 0.75)])]
    for name in ("grpo_turns", "gigpo"):
        algorithm = factory(name)(**settings_)
        whole, halves = algorithm.compute_advantages([a, b]), at_once([partial(algorithm.compute_advantages, [group]) for group in (a, b)])
        assert near([halves[0][0], halves[1][0]], whole)


def test_how_many_turns_were_compared_is_told() -> None:
    group = [conversation([([], [0], 0.0), ([5], [k], float(k))]) for k in (0, 1)] + [conversation([([], [1], 0.0), ([5], [1], 1.0)])]
    shares = []
    for how in TURN_COMPARISONS:
        algorithm = factory("gigpo")(compare_turns=how)
        algorithm.compute_advantages([group])
        shares.append(algorithm.metrics["turns/compared_fraction"])
    assert shares == [1.0, 5 / 6, 1.0]


@pytest.mark.slow
@pytest.mark.parametrize("how", TURN_COMPARISONS)
@quick
@given(groups=batches(), data=st.data())
def test_a_penalty_on_the_reward_is_the_same_as_a_lower_reward(how: str, groups: list[list[Episode]], data: Any) -> None:
    """The KL in the reward goes through the turns as the rewards do."""
    cost = st.floats(-1, 1).map(lambda x: round(x, 3))
    costs = [[[data.draw(cost) if own else 0.0 for own in e.action_mask] for e in group] for group in groups]

    def less(e: Episode, row: list[float]) -> Episode:
        return replace(e, rewards=[r - c for r, c in zip(e.rewards, row, strict=True)]) if e.is_scored else e

    lower = [[less(e, row) for e, row in zip(group, rows, strict=True)] for group, rows in zip(groups, costs, strict=True)]
    for name in ("grpo_turns", "gigpo"):
        algorithm = factory(name)(compare_turns=how)
        assert algorithm.compute_advantages(groups, penalties=costs) == algorithm.compute_advantages(lower)


@pytest.mark.slow
@quick
@given(groups=batches(), scale=st.sampled_from([1e-12, 1e-6, 1e6, 1e12]))
def test_credit_is_finite_whatever_the_size_of_the_rewards(groups: list[list[Episode]], scale: float) -> None:
    empty = Episode("t", "g", [9], [False], [0.0], [0.0], StopReason.FAILED)
    sized = [[replace(e, rewards=[scale * r for r in e.rewards]) for e in group] + [empty] for group in groups]
    for name, how, by in itertools.product(("grpo_turns", "gigpo"), TURN_COMPARISONS, ("group", "batch", "none")):
        exact = {} if by == "none" else {"advantage_epsilon": 0.0}
        rows = factory(name)(compare_turns=how, scale_rewards=by, **exact).compute_advantages(sized)
        assert all(math.isfinite(a) for group in rows for row in group for a in row)
        assert all(group[-1] == [0.0] for group in rows)


def test_returns_are_discounted_by_turn_and_not_by_token() -> None:
    e = conversation([([], [0] * 5, 0.5), ([5, 5, 5], [1] * 7, 0.25), ([6], [1], 0.25)])
    assert compute_turn_returns(e, e.rewards, 0.5) == [0.5 + 0.125 + 0.0625, 0.25 + 0.125, 0.25]
    assert e.turn_spans == [(1, 6), (9, 16), (17, 18)]


def test_a_wrong_comparison_is_named() -> None:
    with pytest.raises(ValueError, match="compare_turns is 'turn'; allowed: index, state, observation"):
        group_comparable_turns([], "turn")


# ---- turns with a malformed call ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["grpo", "grpo_turns", "gigpo", "reinforce_pp_baseline"])
@quick
@given(groups=batches())
def test_masked_turns_get_nothing_and_the_others_what_they_would(name: str, groups: list[list[Episode]]) -> None:
    extra = {"whiten": "none"} if name == "reinforce_pp_baseline" else {}
    algorithm, plain = factory(name)(mask_malformed_calls=True, **extra), factory(name)(**extra)
    for group, rows, whole in zip(groups, algorithm.compute_advantages(groups), plain.compute_advantages(groups), strict=True):
        for e, row, full in zip(group, rows, whole, strict=True):
            bad = {t for turn in e.meta.get("malformed_turns", ()) for t in places(e)[turn]}
            assert row == [0.0 if t in bad else a for t, a in enumerate(full)]
            assert list(algorithm.loss_mask(e)) == [own and t not in bad for t, own in enumerate(e.action_mask)]
            assert list(plain.loss_mask(e)) == e.action_mask


@quick
@given(groups=batches())
def test_whitening_is_over_the_tokens_that_are_left(groups: list[list[Episode]]) -> None:
    algorithm = factory("grpo_turns")(mask_malformed_calls=True, whiten="tokens", scale_rewards="none")
    kept = [
        a
        for group, rows in zip(groups, algorithm.compute_advantages(groups), strict=True)
        for e, row in zip(group, rows, strict=True)
        for a, on in zip(row, algorithm.loss_mask(e), strict=True)
        if on and e.is_scored
    ]
    if any(kept):
        assert statistics.fmean(kept) == pytest.approx(0, abs=1e-9) and statistics.pstdev(kept) == pytest.approx(1)


def test_a_penalty_is_paid_where_the_turn_ends() -> None:
    turns = [([], [0, 0], 0.0), ([5], [1, 1], 0.0), ([5], [0], 1.0)]
    group = [conversation(turns, malformed_turns=[1]), conversation(turns)]
    net = factory("reinforce")(
        advantage="grpo_turns", scale_rewards="none", baseline="none", malformed_call_penalty=0.25
    ).compute_advantages([group])[0]
    assert net[0] == [0.0, 0.75, 0.75, 0.0, 0.75, 0.75, 0.0, 1.0] and net[1] == [0.0, 1.0, 1.0, 0.0, 1.0, 1.0, 0.0, 1.0]
    [[a, b]] = factory("dr_grpo")(malformed_call_penalty=0.25).compute_advantages([group])
    assert (a[-1], b[-1]) == pytest.approx((-0.125, 0.125))
    assert group[0].rewards[5] == 0.0  # the record is not changed


def test_a_moment_of_two_equal_returns_is_silent() -> None:
    """Turns whose returns differ by rounding only teach nothing."""
    group = [conversation([([], [0], 0.1), ([5], [1], 0.2)]), conversation([([], [1], 0.3), ([5], [1], 0.0)])]
    [rows] = factory("grpo_turns")().compute_advantages([group])
    assert [row[1] for row in rows] == [0.0, 0.0] and credit.has_no_signal([0.1 + 0.2, 0.3])


def test_a_malformed_call_is_known_from_the_policys_own_tokens() -> None:
    """From a call that is no JSON, through the dialect and the record, to the mask."""
    with make_env("with_tools", env="arithmetic", tools=["calculator"], max_turns=4) as env:
        tokenizer = ByteTokenizer()
        mdp, stop = TokenMDP(env, tokenizer, max_new_tokens=200), min(tokenizer.stop_ids)
        task = env.task("train", 0)
        state = mdp.start_conversation(task)
        for text in ('!calculator {"expression": 1', "!calculator 1+1", str(task.reference)):
            mdp.step_turn(state, [*tokenizer.encode(text), stop])
        episode = mdp.build_episode(state, mdp.verify(state), group="g")
    assert episode.reward == 1.0 and episode.meta["malformed_turns"] == [0]
    kept = factory("grpo")(mask_malformed_calls=True).loss_mask(episode)
    assert [t for t, on in enumerate(episode.action_mask) if on and not kept[t]] == list(range(*episode.turn_spans[0]))
