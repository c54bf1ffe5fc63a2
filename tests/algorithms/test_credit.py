"""Credit: advantages against their definitions, degenerate groups, and what must not change them."""

from __future__ import annotations

import math
import statistics
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlvr.algorithms.functions import advantages as credit
from rlvr.algorithms.functions.returns import compute_gae
from rlvr.episode import Episode, StopReason
from rlvr.errors import ConfigError
from rlvr.registry.plugins import build
from rlvr.task import Fault, Task, Verdict, make_user_prompt
from tests.fixtures.learning import factory, usual
from tests.fixtures.two_threads import at_once

quick = settings(max_examples=40, deadline=None)
rewards = st.lists(st.floats(0, 1).map(lambda x: round(x, 3)), min_size=2, max_size=8)
GROUPED = ["grpo", "dr_grpo", "dapo", "gspo", "cispo", "sapo", "rloo", "reinforce_pp_baseline", "gdpo"]


def said(
    reward: float | None, *, length: int = 2, end: StopReason = StopReason.TERMINATED, parts: dict[str, float] | None = None, **meta: Any
) -> Episode:
    judged = Verdict(max(0.0, min(1.0, reward or 0.0)), "", components=parts or {})
    verdict = Verdict(None, "gone", fault=Fault.INFRA) if reward is None else judged
    return Episode(
        "t", "g", [1] * (length + 1), [False] + [True] * length, [0.0] * (length + 1), [0.0] * length + [reward or 0.0], end,
        verdict=verdict, meta=meta,
    )  # fmt: skip


def scalars(name: str, *groups: list[Episode], **settings_: Any) -> list[list[float]]:
    """One advantage per episode (the last token's)."""
    algorithm = factory(name)(**({"beta": 0.0} | settings_ if usual(name).get("beta") else settings_))
    return [[row[-1] for row in group] for group in algorithm.compute_advantages(list(groups))]


@quick
@given(rewards)
def test_grpo_is_its_definition(values: list[float]) -> None:
    mean, std = statistics.fmean(values), statistics.stdev(values)
    flat = max(values) - min(values) <= credit.REWARD_TOLERANCE
    expected = [0.0 if flat else (v - mean) / (std + 1e-4) for v in values]
    assert scalars("grpo", [said(v) for v in values])[0] == pytest.approx(expected, abs=1e-9)


@quick
@given(rewards)
def test_rloo_is_its_definition_and_a_scaled_centring(values: list[float]) -> None:
    n = len(values)
    flat = max(values) - min(values) <= credit.REWARD_TOLERANCE
    expected = [0.0 if flat else v - (sum(values) - v) / (n - 1) for v in values]
    [got] = scalars("rloo", [said(v) for v in values])
    assert got == pytest.approx(expected, abs=1e-9)
    assert got == pytest.approx([n / (n - 1) * a for a in scalars("dr_grpo", [said(v) for v in values])[0]], abs=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("name", GROUPED)
@quick
@given(values=rewards, shift=st.floats(-3, 3), order=st.randoms())
def test_a_shift_and_an_order_change_nothing(name: str, values: list[float], shift: float, order: Any) -> None:
    plain, moved = scalars(name, [said(v) for v in values]), scalars(name, [said(v + shift) for v in values])
    assert moved[0] == pytest.approx(plain[0], abs=1e-6)
    places = list(range(len(values)))
    order.shuffle(places)
    mixed = scalars(name, [said(values[p]) for p in places])
    assert mixed[0] == pytest.approx([plain[0][p] for p in places], abs=1e-9)


def test_scaling_by_the_deviation_forgets_the_scale() -> None:
    small, large = ([said(v) for v in row] for row in ([0.0, 0.1, 0.2], [0.0, 5.0, 10.0]))
    for how in ("group", "batch"):
        a, b = (scalars("grpo", g, scale_rewards=how, advantage_epsilon=0.0)[0] for g in (small, large))
        assert a == pytest.approx(b)
    assert scalars("dr_grpo", small)[0] == pytest.approx([-0.1, 0.0, 0.1])


def test_batch_scale_is_one_number_for_all() -> None:
    [a, b] = scalars("grpo", [said(0.0), said(1.0)], [said(0.0), said(0.5)], scale_rewards="batch", advantage_epsilon=0.0)
    std = statistics.stdev([0.0, 1.0, 0.0, 0.5])
    assert a == pytest.approx([-0.5 / std, 0.5 / std]) and b == pytest.approx([-0.25 / std, 0.25 / std])


@pytest.mark.parametrize("name", GROUPED)
@pytest.mark.parametrize(
    "values", [[0.5] * 4, [0.95] * 7, [0.95, 0.95 + 1e-9, 0.95 - 1e-9], [1.0], [None, None], [1.0, None], [None], []], ids=str
)
def test_a_group_that_teaches_nothing_gives_zeros(name: str, values: list[float | None]) -> None:
    assert credit.has_no_signal(values)
    [got] = scalars(name, [said(v) for v in values])
    assert got == [0.0] * len(values)


@pytest.mark.parametrize("name", [*GROUPED, "reinforce", "reinforce_pp"])
def test_the_unscored_are_left_out_not_read_as_zero(name: str) -> None:
    groups = [[said(1.0), said(0.25), said(0.0)], [said(0.5), said(1.0)]]
    with_none = [[said(1.0), said(None), said(0.25), said(0.0)], [said(0.5), said(1.0), said(None)]]
    plain, got = scalars(name, *groups), scalars(name, *with_none)
    assert got[0] == pytest.approx([plain[0][0], 0.0, *plain[0][1:]]) and got[1] == pytest.approx([*plain[1], 0.0])


def test_advantages_stand_on_acted_tokens_only() -> None:
    mixed = Episode("t", "g", [1, 2, 3, 4], [False, True, False, True], [0.0] * 4, [0.0, 0.0, 0.0, 1.0], StopReason.TERMINATED)
    for name in GROUPED:
        [[row, _]] = factory(name)().compute_advantages([[mixed, said(0.0)]], penalties=[[[0.0] * 4, [0.0] * 3]])
        assert row[0] == row[2] == 0.0 and row[1] == row[3] != 0.0


def test_gdpo_weighs_named_parts_and_with_one_it_is_whitened_grpo() -> None:
    parts = [{"math": 1.0, "form": 0.0}, {"math": 0.0, "form": 1.0}, {"math": 0.0, "form": 0.0}]
    group = [said(p["math"], parts=p) for p in parts]
    [got] = scalars("gdpo", group, reward_weights={"math": 2.0, "form": 1.0})
    normal = [credit.divide_by_std([r], [credit.subtract_group_mean(r)], "group", 1e-4)[0] for r in ([1.0, 0.0, 0.0], [0.0, 1.0, 0.0])]
    assert got == pytest.approx(credit.whiten([2 * a + b for a, b in zip(*normal, strict=True)]))
    assert scalars("gdpo", group)[0] == pytest.approx(credit.whiten(scalars("grpo", group)[0]))
    with pytest.raises(ConfigError, match=r"'style'.*math, form"):
        scalars("gdpo", group, reward_weights={"style": 1.0})


def test_a_part_that_an_answer_lacks_is_zero_and_only_one_that_nobody_has_is_a_mistake() -> None:
    weights = {"format": 1.0, "content": 1.0}
    good, malformed, beaten = said(1.0, parts={"format": 1.0, "content": 1.0}), said(0.0, parts={"format": 0.0}), said(0.0)
    zeros = said(0.0, parts={"format": 0.0, "content": 0.0})
    assert scalars("gdpo", [good, malformed, beaten], reward_weights=weights) == scalars(
        "gdpo", [good, zeros, zeros], reward_weights=weights
    )
    assert scalars("gdpo", [malformed, malformed], [beaten, beaten], reward_weights=weights) == [[0.0, 0.0]] * 2
    algorithm = factory("gdpo")(reward_weights=weights)
    other = said(1.0, parts={"format": 1.0})  # another process has the good answers that have the part

    ranks = at_once([partial(algorithm.compute_advantages, [[member, malformed]]) for member in (good, other)])
    assert all(group[0][-1] > 0 > group[1][-1] for [group] in ranks)
    with pytest.raises(ConfigError, match=r"'content'.*have the components: format"):
        scalars("gdpo", [other, malformed], reward_weights=weights)


def test_gdpo_takes_what_structure_says_of_a_malformed_answer() -> None:
    verify, task = build("verifier", "structure").verify, Task(make_user_prompt("2+2="), id="t", reference="4")
    verdicts = [verify(task, text) for text in ("<think></think><answer>4</answer>", "<think></think><answer>5</answer>", "4")]
    group = [said(v.score, parts=dict(v.components)) for v in verdicts]
    right, wrong, malformed = scalars("gdpo", group, reward_weights={"format": 1.0, "content": 1.0})[0]
    assert right > wrong > malformed


@pytest.mark.parametrize("how", ["group", "batch"])
@pytest.mark.parametrize("name", ["grpo", "dapo", "sapo"])
def test_where_nothing_differs_an_epsilon_of_zero_is_no_divisor(name: str, how: str) -> None:
    assert scalars(name, [said(1.0), said(1.0)], scale_rewards=how, advantage_epsilon=0.0) == [[0.0, 0.0]]
    assert scalars("gdpo", [said(1.0), said(1.0)], advantage_epsilon=0.0) == [[0.0, 0.0]]


def test_a_greedy_baseline_needs_a_greedy_answer() -> None:
    with pytest.raises(ConfigError, match="no group has one"):
        scalars("remax", [said(1.0), said(0.0)])


def test_remax_compares_with_the_greedy_answer() -> None:
    groups = [[said(1.0), said(0.0), said(0.25, greedy=True)], [said(1.0), said(0.0)], [said(1.0), said(None, greedy=True)]]
    assert scalars("remax", *groups) == [[0.75, -0.25, 0.0], [0.0, 0.0], [0.0, 0.0]]


def test_the_running_baseline_is_of_earlier_steps_and_survives_a_resume() -> None:
    first = factory("reinforce_baseline")()
    assert [row[-1] for row in first.compute_advantages([[said(1.0)]])[0]] == [1.0]
    first.on_step_end([1.0, 0.0], None)
    first.on_step_end([1.0, 1.0], None)
    second = factory("reinforce_baseline")()
    second.load_state_dict(first.state_dict())
    after = [a.compute_advantages([[said(1.0)]])[0][0][-1] for a in (first, second)]
    assert after[0] == after[1] == pytest.approx(1.0 - (0.09 * 0.5 + 0.1 * 1.0) / 0.19)


def test_overlong_filtering_masks_the_tokens_and_keeps_the_reward() -> None:
    group = [said(1.0), said(0.0, end=StopReason.TRUNCATED)]
    algorithm = factory("dapo")()
    assert [algorithm.is_in_loss(e) for e in group] == [True, False]
    assert scalars("dapo", group)[0] == pytest.approx(scalars("grpo", group)[0])
    assert algorithm.is_in_loss(
        said(0.0, end=StopReason.TRUNCATED, truncated="turns")
    )  # said to its end, and wrong: that is to be unlearned


def test_answers_near_the_cap_are_punished_softly() -> None:
    group = [said(1.0, length=n) for n in (2, 6, 8, 10)]
    got = scalars("dapo", group, overlong_buffer=4, max_new_tokens=10, scale_rewards="none")[0]
    assert got == pytest.approx([a - 0.8125 for a in (1.0, 1.0, 0.75, 0.5)])
    whole = scalars("dapo", group, overlong_buffer=4, overlong_penalty=1.0, max_new_tokens=10, scale_rewards="none")[0]
    assert whole == pytest.approx([a - 0.625 for a in (1.0, 1.0, 0.5, 0.0)])
    with pytest.raises(ConfigError, match="more than max_new_tokens, 10"):
        factory("dapo")(overlong_buffer=11, max_new_tokens=10)
    with pytest.raises(ConfigError, match="need a limit on the answer length"):
        factory("dapo")(overlong_buffer=4).set_completion_limit(max_new_tokens=0)
    with pytest.raises(ConfigError, match="need a limit on the answer length"):
        factory("dapo")(overlong_buffer=4).compute_advantages([group])
    factory("dapo")(overlong_buffer=8).set_completion_limit(max_new_tokens=8)
    with pytest.raises(ConfigError, match="overlong_buffer is 64, more than the longest allowed answer, 8"):
        factory("dapo")(overlong_buffer=64).set_completion_limit(max_new_tokens=8)
    with pytest.raises(ConfigError, match="need a limit on the answer length"):
        factory("dr_grpo")().compute_row_weights([1], ["0"])


def test_whitening_over_tokens_counts_long_answers_by_their_length() -> None:
    [[a, b]] = factory("reinforce_pp_baseline")().compute_advantages([[said(1.0, length=3), said(0.0, length=1)]])
    assert sum(a) + sum(b) == pytest.approx(0.0) and sum(x * x for x in a + b) == pytest.approx(4.0)
    assert a[1] == pytest.approx(0.5 / math.sqrt(0.1875) * 0.5)


# ---- returns and GAE over tokens that the environment wrote ------------------------------------------------------------------


def naive_gae(rewards_: list[float], values: list[float], gamma: float, lam: float) -> list[float]:
    n = len(rewards_)
    deltas = [rewards_[t] + gamma * (values[t + 1] if t + 1 < n else 0.0) - values[t] for t in range(n)]
    return [sum((gamma * lam) ** (k - t) * deltas[k] for k in range(t, n)) for t in range(n)]


numbers = st.floats(-2, 2).map(lambda x: round(x, 3))


@quick
@given(
    st.lists(st.tuples(numbers, numbers, st.integers(0, 2)), min_size=1, max_size=6),
    st.sampled_from([1.0, 0.9]),
    st.sampled_from([0, 0.5, 1]),
)
def test_gae_is_its_definition_and_blind_to_inserted_tokens(steps: list[tuple[float, float, int]], gamma: float, lam: float) -> None:
    rewards_, values = [r for r, _, _ in steps], [v for _, v, _ in steps]
    expected = naive_gae(rewards_, values, gamma, lam)
    assert compute_gae([[True] * len(steps)], [rewards_], [values], gamma, lam)[0].tolist() == pytest.approx(expected, abs=1e-9)
    acted, paid, seen = [False], [0.0], [99.0]
    for reward, value, inserted in steps:
        acted += [True] + [False] * inserted
        paid += [reward] + [0.0] * inserted
        seen += [value] + [55.0] * inserted
    got = compute_gae([acted], [paid], [seen], gamma, lam)[0].tolist()
    assert [a for a, on in zip(got, acted, strict=True) if on] == pytest.approx(expected, abs=1e-9)
    assert not any(a for a, on in zip(got, acted, strict=True) if not on)


def test_a_reward_on_an_environment_token_belongs_to_the_action_before() -> None:
    e = Episode("t", "g", [1, 2, 3, 4], [False, True, False, True], [0.0] * 4, [0.0] * 4, StopReason.TERMINATED)
    paid = [0.0, 0.0, 1.0, 0.5]
    assert compute_gae([e.action_mask], [paid], None, 1.0, 1.0)[0].tolist() == [0.0, 1.5, 0.0, 0.5]
    assert compute_gae([e.action_mask], [paid], [[0.0] * 4], 1.0, 1.0)[0].tolist() == [0.0, 1.5, 0.0, 0.5]
    assert compute_gae([e.action_mask], [paid], None, 0.5, 1.0)[0].tolist() == pytest.approx([0.0, 1.25, 0.0, 0.5])


def test_ppo_without_a_critics_opinion_is_reinforce_before_whitening() -> None:
    group = [said(1.0), said(0.25)]
    zeros = [[[0.0] * 3, [0.0] * 3]]
    ppo = factory("ppo")(whiten="none", lam=1.0, beta=0.0)
    assert ppo.compute_advantages([group], values=zeros) == factory("reinforce")().compute_advantages([group])
    assert ppo.value_targets([group], penalties=None, values=zeros) == factory("reinforce")().compute_advantages([group])


def test_returns_are_taken_before_whitening() -> None:
    group, values = [said(1.0), said(0.0)], [[[0.0, 0.5, 0.5], [0.0, 0.25, 0.25]]]
    ppo = factory("ppo")(beta=0.0, lam=1.0)
    assert ppo.value_targets([group], penalties=None, values=values) == [[[0.0, 1.0, 1.0], [0.0, 0.0, 0.0]]]
    flat = [a for row in ppo.compute_advantages([group], values=values)[0] for a in row[1:]]
    assert statistics.fmean(flat) == pytest.approx(0.0) and statistics.pstdev(flat) == pytest.approx(1.0)


def test_penalties_come_off_before_the_baseline() -> None:
    penalties = [[[0.0, 0.1, 0.2], [0.0, 0.0, 0.4]]]
    [rows] = factory("rloo")().compute_advantages([[said(1.0), said(0.0)]], penalties=penalties)
    assert rows[0][1:] == pytest.approx([1.1, 1.1]) and rows[1][1:] == pytest.approx([-1.1, -1.1])
    [rows] = factory("reinforce_pp")(whiten="none").compute_advantages([[said(1.0)]], penalties=[[[0.0, 0.1, 0.2]]])
    assert rows[0] == pytest.approx([0.0, 0.7, 0.8])


def test_sums_over_processes_enter_every_global_figure() -> None:
    """Two processes, played by two threads that meet at every sum: each half gets what the whole would."""
    a, b = [said(1.0), said(0.0), said(0.0)], [said(1.0), said(0.5)]
    for name, how in (("grpo", {"scale_rewards": "batch"}), ("gdpo", {}), ("reinforce_pp_baseline", {}), ("reinforce_pp", {})):
        algorithm = factory(name)(**({"beta": 0.0} if usual(name).get("beta") else {}) | how)
        whole, halves = algorithm.compute_advantages([a, b]), at_once([partial(algorithm.compute_advantages, [group]) for group in (a, b)])
        for got, expected in zip([halves[0][0], halves[1][0]], whole, strict=True):
            assert [x for row in got for x in row] == pytest.approx([x for row in expected for x in row])
