"""Estimators against every possible draw, intervals and tests against what is known of them."""

from __future__ import annotations

import importlib
import math
import random
from collections import Counter
from collections.abc import Sequence
from fractions import Fraction
from itertools import combinations
from typing import Any

import pytest

from rlvr.evaluation.paired import apply_holm_correction, compute_mcnemar_p, compute_sign_flip_p, run_paired_test
from rlvr.evaluation.statistics import (
    bootstrap_interval,
    compute_t_quantile,
    compute_t_upper_tail,
    estimate_mean,
    list_k_values,
    majority_at_k,
    pass_all_k,
    pass_at_k,
    selected_at_k,
    standard_error,
    wilson_interval,
)


def every_draw(m: int, k: int) -> list[tuple[int, ...]]:
    return list(combinations(range(m), k))


def brute_majority(votes: Sequence[str | None], scores: Sequence[float], k: int) -> float:
    total = Fraction(0)
    draws = every_draw(len(votes), k)
    for draw in draws:
        count = Counter(votes[i] for i in draw if votes[i] is not None)
        if not count:
            continue
        most = max(count.values())
        tied = [vote for vote in count if count[vote] == most]
        for vote in tied:
            members = [Fraction(s) for v, s in zip(votes, scores, strict=True) if v == vote]
            total += sum(members, Fraction(0)) / len(members) / len(tied)
    return float(total / len(draws))


@pytest.mark.parametrize("m", range(1, 9))
def test_pass_at_k_and_pass_all_k_are_the_share_of_all_draws(m: int) -> None:
    for right in range(m + 1):
        for k in range(1, m + 1):
            draws = every_draw(m, k)
            any_right = Fraction(sum(any(i < right for i in draw) for draw in draws), len(draws))
            all_right = Fraction(sum(all(i < right for i in draw) for draw in draws), len(draws))
            assert pass_at_k(right, m, k) == pytest.approx(float(any_right), rel=1e-12, abs=1e-15)
            assert pass_all_k(right, m, k) == pytest.approx(float(all_right), rel=1e-12)


def test_majority_at_k_is_the_mean_over_all_draws() -> None:
    dice = random.Random(0)
    for _ in range(150):
        m = dice.randint(1, 8)
        votes = [dice.choice(["a", "b", "c", "d", None]) for _ in range(m)]
        worth = {vote: dice.choice([0.0, 0.0, 0.5, 1.0]) for vote in "abcd"}
        scores = [worth[vote] if vote else 0.0 for vote in votes]
        for k in range(1, m + 1):
            assert majority_at_k(votes, scores, k) == pytest.approx(brute_majority(votes, scores, k), abs=1e-12), (votes, scores, k)


def test_best_at_k_is_the_mean_over_all_draws() -> None:
    scores = [0.0, 1.0, 0.25, 1.0, 0.0, 0.5]
    for k in range(1, len(scores) + 1):
        draws = every_draw(len(scores), k)
        assert selected_at_k(scores, k) == pytest.approx(math.fsum(scores[min(draw)] for draw in draws) / len(draws), abs=1e-12)


def test_more_than_arrived_is_no_figure_and_one_sample_is_the_score() -> None:
    assert pass_at_k(0, 2, 3) is None and pass_at_k(2, 2, 3) is None and pass_all_k(2, 2, 3) is None
    assert majority_at_k(["a"], [1.0], 2) is None and selected_at_k([1.0], 2) is None
    assert (
        pass_at_k(1, 4, 1)
        == pass_all_k(1, 4, 1)
        == majority_at_k(list("abcd"), [1.0, 0, 0, 0], 1)
        == selected_at_k([0, 1.0, 0, 0], 1)
        == 0.25
    )


def test_a_task_with_fewer_samples_is_left_out_and_counted() -> None:
    found = estimate_mean([pass_at_k(right, m, 4) for right, m in ((4, 4), (0, 4), (3, 3), (0, 0))])
    assert found is not None and (found.value, found.tasks) == (0.5, 2)
    assert estimate_mean([None, None]) is None


def test_tasks_with_the_same_question_are_one_cluster() -> None:
    values = [1.0, 0.0, 0.5, 1.0] * 10
    once, twice = estimate_mean(values), estimate_mean(values * 2, list(range(40)) * 2)
    assert once is not None and twice is not None and twice.tasks == 80
    assert (twice.value, twice.low, twice.high) == pytest.approx((once.value, once.low, once.high))
    blind = estimate_mean(values * 2)
    assert blind is not None and blind.high - blind.low < twice.high - twice.low
    shares, about = (1 / 2, 1 / 6, 1 / 3), (0.2 - 0.4, 0.8 - 0.4, 0.5 - 0.4)
    worth = 1 / sum(share**2 for share in shares)
    by_hand = sum((share * away) ** 2 for share, away in zip(shares, about, strict=True)) * worth / (worth - 1)
    assert standard_error([0.2, 0.8, 0.5], [3, 1, 2]) == pytest.approx(by_hand**0.5)


def test_a_long_vote_is_quick() -> None:
    votes = [str(i % 24) for i in range(64)]
    assert majority_at_k(votes, [float(v == "0") for v in votes], 32) == pytest.approx(0.0512, abs=0.03)


def test_wilson_is_wilsons_for_yes_and_no() -> None:
    z2 = 1.959963984540054**2
    for right, tasks in ((7, 20), (50, 100), (1, 500)):
        values = [1.0] * right + [0.0] * (tasks - right)
        p = right / tasks
        half = math.sqrt(z2 * p * (1 - p) / tasks + z2 * z2 / (4 * tasks * tasks)) / (1 + z2 / tasks)
        middle = (p + z2 / (2 * tasks)) / (1 + z2 / tasks)
        assert wilson_interval(values) == pytest.approx((middle - half, middle + half), abs=1e-9)


def test_intervals_know_their_edges() -> None:
    assert wilson_interval([0.0] * 50)[0] == 0.0 < wilson_interval([0.0] * 50)[1] < 0.1
    assert wilson_interval([1.0])[0] < 0.5 and wilson_interval([1.0])[1] == 1.0
    steady, wild = [0.4, 0.6] * 50, [0.0, 1.0] * 50
    assert wilson_interval(steady)[1] - wilson_interval(steady)[0] < (wilson_interval(wild)[1] - wilson_interval(wild)[0]) / 2
    assert standard_error([0.5]) == 0.0


def test_values_that_crowd_at_an_end_say_little_of_the_tasks_that_are_not_there() -> None:
    """Of a hundred tasks that are nearly always answered, a hundredth may be hopeless all the same."""
    alike = wilson_interval([1.0] * 100)
    assert wilson_interval([1.0] * 97 + [0.9999] * 3) == pytest.approx(alike, abs=1e-3) and alike[0] == pytest.approx(0.963, abs=1e-3)
    assert wilson_interval([0.999] * 100)[0] < 0.98


def test_the_bootstrap_repeats_itself_and_is_as_wide_as_students_interval() -> None:
    dice = random.Random(5)
    values = [dice.gauss(0.1, 1.0) for _ in range(200)]
    low, high = bootstrap_interval(values, seed=3)
    assert (low, high) == bootstrap_interval(values, seed=3) != bootstrap_interval(values, seed=4)
    assert high - low == pytest.approx(2 * compute_t_quantile(0.975, 199) * standard_error(values), rel=0.03)


@pytest.mark.slow
def test_statistics_are_those_of_scipy_on_random_inputs() -> None:
    """To six digits, for 3,000 inputs in all."""
    stats: Any = importlib.import_module("scipy.stats")
    dice = random.Random(7)
    freedoms = [math.exp(dice.uniform(math.log(0.3), math.log(1e5))) for _ in range(750)]
    ts = [dice.choice((-1, 1)) * math.exp(dice.uniform(-6, 4)) for _ in freedoms]
    for freedom, t, expected in zip(freedoms, ts, stats.t.sf(ts, freedoms), strict=True):
        assert compute_t_upper_tail(t, freedom) == pytest.approx(expected, rel=1e-6, abs=1e-300), (t, freedom)
    ps = [dice.choice((0.975, 0.025, 0.9, 0.6, 0.995, 0.4, dice.uniform(0.001, 0.999))) for _ in freedoms]
    for freedom, p, expected in zip(freedoms, ps, stats.t.ppf(ps, freedoms), strict=True):
        assert compute_t_quantile(p, freedom) == pytest.approx(expected, rel=1e-6), (p, freedom)
    for _ in range(750):
        wins, losses = dice.randrange(200), dice.randrange(200)
        if wins + losses:
            assert compute_mcnemar_p(wins, losses) == pytest.approx(stats.binomtest(wins, wins + losses).pvalue, rel=1e-6)
    for _ in range(300):
        right, total = dice.randrange(1, 60), 60
        found = stats.binomtest(right, total).proportion_ci(method="wilson")
        assert wilson_interval([1.0] * right + [0.0] * (total - right)) == pytest.approx((found.low, found.high), rel=1e-6)
    for _ in range(450):
        values = [dice.gauss(0, 1) for _ in range(dice.randrange(2, 30))]
        assert standard_error(values) == pytest.approx(stats.sem(values), rel=1e-6)


def test_the_k_that_are_shown() -> None:
    assert [list_k_values(n) for n in (1, 2, 5, 8)] == [[1], [1, 2], [1, 2, 4, 5], [1, 2, 4, 8]]


def test_mcnemar_is_the_count_of_coin_rows() -> None:
    for wins, losses in ((0, 0), (3, 3), (5, 1), (0, 6)):
        total = wins + losses
        as_uneven = sum(abs(2 * sum(row) - total) >= abs(wins - losses) for row in _coins(total))
        assert compute_mcnemar_p(wins, losses) == pytest.approx(min(1.0, as_uneven / 2**total))


def test_sign_flips_are_all_counted_or_drawn() -> None:
    dice = random.Random(1)
    differences = [dice.choice([-0.5, 0.25, 0.0, 1.0]) for _ in range(10)]
    far = [abs(sum(d * (1 - 2 * c) for d, c in zip(differences, coins, strict=True))) for coins in _coins(10)]
    exact = sum(value >= abs(sum(differences)) - 1e-9 for value in far) / len(far)
    assert (
        compute_sign_flip_p(differences)
        == pytest.approx(exact)
        == pytest.approx(compute_sign_flip_p(differences, num_resamples=500, seed=2), abs=0.07)
    )
    assert (
        compute_sign_flip_p([1.0] * 3) == compute_mcnemar_p(3, 0) == 0.25
        and compute_sign_flip_p([0.0] * 9) == 1.0
        and compute_sign_flip_p([1.0] * 40) < 0.001
    )


def _coins(total: int) -> list[tuple[int, ...]]:
    return [tuple(number >> i & 1 for i in range(total)) for number in range(2**total)]


def test_holm_keeps_the_order_and_never_falls_below_the_p_value() -> None:
    assert apply_holm_correction([]) == [] and apply_holm_correction([0.2]) == [0.2]
    assert apply_holm_correction([0.5, 0.001, 0.02]) == pytest.approx([0.5, 0.003, 0.04])


def test_a_paired_difference() -> None:
    clear = run_paired_test([1.0] * 15 + [0.0] * 85, is_greedy=True)
    assert (clear.difference, clear.wins, clear.losses, clear.ties, clear.test) == (0.15, 15, 0, 85, "mcnemar")
    assert clear.low > 0 and clear.p < 0.001
    none = run_paired_test([0.0] * 30)
    assert (none.p, none.difference) == (1.0, 0.0) and -0.15 < none.low < 0 < none.high < 0.15 and none.detectable > none.high
    assert run_paired_test([0.0] * 100).high == pytest.approx(0.03, abs=1e-3), "the rule of three"
    assert run_paired_test([1.0] * 5).high == 1.0 and run_paired_test([1.0] * 5).low == pytest.approx(1 - 2 * (1 - 0.05**0.2))
    third = run_paired_test([1 / 3] * 100)
    assert third.low < 0.32 and third.high > 0.34 and third.detectable > 0.01, "rounding is no spread"
    noise = run_paired_test([0.25, -0.25] * 20, seed=1)
    assert noise == run_paired_test([0.25, -0.25] * 20, seed=1) and noise.p > 0.9 and noise.low < 0 < noise.high
    assert noise.test == "sign flips" and 0.05 < noise.detectable < 0.15


def test_nothing_right_and_everything_right_reach_the_very_ends() -> None:
    for n in range(1, 200):
        assert (
            wilson_interval([0.0] * n)[0] == 0.0 < wilson_interval([0.0] * n)[1]
            and wilson_interval([1.0] * n)[0] < 1.0 == wilson_interval([1.0] * n)[1]
        )
