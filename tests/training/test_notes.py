"""Notes: each puzzle is explained once, and only where it stands."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import pytest

import rlvr
from rlvr.episode import Episode, StopReason
from rlvr.registry.plugins import build
from rlvr.task import Verdict
from rlvr.training.run_summary import describe_on_policy_effects
from rlvr.training.step_notes import NO_ANSWER_REASON, UnusualMetricNotes
from tests.fixtures.tiny import tiny_run

QUIET: dict[str, Any] = {
    "step": 4, "loss": 0.3, "grad_norm": 0.2, "advantage/std": 1.0, "completions/clipped_ratio": 0.1, "unscored": 0,
    "frac_reward_zero_std": 0.2, "mismatch_kl": 1e-9, "sampling/effective_sample_size": 0.999,
}  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"loss": 1e-9}, "loss is 0, which is correct.*grad_norm 0.2"),
        ({"loss": 0.0, "grad_norm": 0.0, "step/skipped": 1.0, "frac_reward_zero_std": 1.0}, "step 4 changed nothing"),
        ({"step/nonfinite_minibatches": 1.0}, "not finite"),
        ({"mismatch_kl": 0.5}, "importance_sampling_correction"),
        ({"sampling/effective_sample_size": 0.4}, "effective sample size 40%"),
        ({"completions/clipped_ratio": 0.8}, "80% of the answers of step 4 reached the length limit"),
        ({"unscored": 3}, "3 answers of step 4 have no verdict"),
        ({"unscored": 16, "reward": None, "step/skipped": 1.0, "frac_reward_zero_std": 1.0}, "16 answers of step 4 have no verdict"),
        ({"frac_reward_zero_std": 0.75}, "75% of the groups of step 4"),
        (
            {"dynamic_sampling/missing_groups": 2.0, "dynamic_sampling/sampled_groups": 24.0, "dynamic_sampling/useful_fraction": 0.25},
            "only 25% of 24 groups had a spread of rewards; the step lacks 2 of them",
        ),
    ],
)
def test_a_puzzle_is_explained_once(changes: dict[str, Any], told: str) -> None:
    notes = UnusualMetricNotes(tiny_run())
    assert notes.find_notes(QUIET) == []
    [said] = notes.find_notes(QUIET | changes)
    assert re.search(told, said)
    assert notes.find_notes(QUIET | changes) == []


def test_a_truncated_distribution_is_named_as_the_cause() -> None:
    notes = UnusualMetricNotes(tiny_run(rollout={"top_p": 0.8}))
    assert "top_p and top_k are applied by both" in notes.find_notes(QUIET | {"mismatch_kl": 0.1})[0]


def test_where_answers_are_older_the_note_says_so() -> None:
    [said] = UnusualMetricNotes(tiny_run(rollout={"max_staleness": 2})).find_notes(QUIET | {"mismatch_kl": 0.5})
    assert "answers come from weights up to rollout.max_staleness steps older" in said


def test_a_sampler_that_agreed_to_the_last_digits_and_no_longer_does_has_other_weights() -> None:
    for rollout, least, words in (({}, 1e-14, "samples from other weights"), ({}, 1e-5, ""), ({"max_staleness": 1}, 1e-14, "")):
        notes = UnusualMetricNotes(tiny_run(rollout=rollout))
        assert not [line for step in (1, 2, 3) for line in notes.find_notes(QUIET | {"step": step, "mismatch_kl": least})]
        said = "".join(notes.find_notes(QUIET | {"step": 4, "mismatch_kl": 0.002}))
        assert words in said and bool(said) == bool(words)
        assert not words or "they agreed up to step 3" in said


APART = QUIET | {"mismatch_kl": 0.5, "sampling/effective_sample_size": 0.3}
FLAT = QUIET | {"frac_reward_zero_std": 1.0}


@pytest.mark.parametrize("algorithm", ["sft", "dpo", "kto"])
def test_stored_answers_are_not_measured_by_what_sampling_would_mend(algorithm: str) -> None:
    notes = UnusualMetricNotes(tiny_run(data={}, algorithm={"name": algorithm}))
    whole = {"completions/clipped_ratio": 0.0}
    assert notes.find_notes(APART | whole) == [] and notes.find_notes(FLAT | whole) == []
    [said] = notes.find_notes(FLAT | whole | {"step/skipped": 1.0, "loss": 0.0, "grad_norm": 0.0})
    assert "step 4 changed nothing" in said and "curriculum" not in said


@pytest.mark.parametrize("algorithm", ["rloo", "online_dpo", "ppo", "best_of_n", "gdpo", "reinforce"])
def test_flat_groups_are_noted_where_they_teach_nothing(algorithm: str) -> None:
    assert len(UnusualMetricNotes(tiny_run(algorithm={"name": algorithm})).find_notes(FLAT)) == (algorithm in ("rloo", "online_dpo"))


def test_kto_is_told_where_the_undesirable_answers_outweigh_the_desirable_ones() -> None:
    uneven = QUIET | {"preference/num_desirable": 10.0, "preference/num_undesirable": 40.0}
    [said] = UnusualMetricNotes(tiny_run(algorithm={"name": "kto"})).find_notes(uneven)
    assert "weigh 4.0 times as much" in said and "algorithm.desirable_weight=4 balances them" in said
    for better in (uneven | {"preference/num_desirable": 30.0}, uneven | {"preference/num_desirable": 0.0}):
        assert UnusualMetricNotes(tiny_run(algorithm={"name": "kto"})).find_notes(better) == []
    assert UnusualMetricNotes(tiny_run(algorithm={"name": "kto", "desirable_weight": 4.0})).find_notes(uneven) == []


def test_gdpo_without_weights_is_told_which_parts_it_could_weigh() -> None:
    parts = QUIET | {"rewards/place/mean": 0.5, "rewards/form/mean": 0.25}
    notes = UnusualMetricNotes(tiny_run(algorithm={"name": "gdpo"}))
    [said] = notes.find_notes(parts)
    assert "gdpo has no reward_weights" in said and said.endswith("the parts of the verdict: place, form")
    assert notes.find_notes(parts) == []
    assert UnusualMetricNotes(tiny_run(algorithm={"name": "gdpo"})).find_notes(QUIET) == []
    for algorithm in ({"name": "gdpo", "reward_weights": {"place": 1.0}}, {"name": "grpo"}):
        assert UnusualMetricNotes(tiny_run(algorithm=algorithm)).find_notes(parts) == []


def test_settings_that_do_nothing_on_policy_are_named() -> None:
    def told(name: str, **settings: Any) -> str:
        components: Any = SimpleNamespace(algorithm=build("algorithm", name, **settings))
        return describe_on_policy_effects(components)

    assert told("grpo") == (" (exactly on-policy: every ratio is 1, so epsilon, epsilon_high, delta, importance_sampling_level do nothing)")
    assert "ratio_max does nothing" in told("cispo") and "sapo_temperature_pos" in told("sapo")
    for plain in (told("dpo"), told("grpo", old_from_sampler=True), told("dppo"), told("sft")):
        assert plain == " (exactly on-policy)"


def test_the_limit_of_a_cluster_run_is_told_after_some_steps_and_again_when_it_changes() -> None:
    notes = UnusualMetricNotes(tiny_run(rollout={"max_staleness": 1}))
    waits = {"step_time": 1.0, "time/wait_for_batch": 0.5, "cluster/sampling_fraction": 0.95, "cluster/idle_fraction": 0.05}
    told = [notes.find_notes(QUIET, waits | {"step": step}) for step in range(1, 9)]
    assert [len(lines) for lines in told] == [0, 0, 0, 0, 0, 1, 0, 0]
    assert told[5] == [
        "over the last 5 steps, the trainer waits for rollout workers 50% of the step, and they sample 95% of it: add rollout workers"
    ]
    idle = waits | {"time/wait_for_batch": 0.0, "cluster/sampling_fraction": 0.2, "cluster/idle_fraction": 0.8}
    later = [line for step in range(9, 20) for line in notes.find_notes(QUIET, idle | {"step": step})]
    assert "because the trainer is slower" in later[-1]


def test_answers_that_cannot_be_read_are_shown() -> None:
    def answer(text: str, reason: str) -> Episode:
        verdict = Verdict(0.0, reason)
        return Episode("t", "g", [1, 2], [False, True], [0.0, -0.1], [0.0, 0.0], StopReason.TERMINATED, verdict=verdict, text=text)

    notes = UnusualMetricNotes(tiny_run())
    read = [answer("5", "5 differs from 4")]
    unread = [answer(f"{'I think ' * 20} it is {k}", "no answer: no number is declared") for k in range(3)]
    assert notes.note_unextractable_answers(1, read * 3 + unread) == []
    (note,) = notes.note_unextractable_answers(2, read + unread)
    assert note.startswith("in 3 of the 4 scored answers of step 2 the verifier finds no answer") and note.count("\n") == 2
    assert "it is 0': no answer: no number is declared" in note and len(note) < 600
    assert notes.note_unextractable_answers(3, unread) == []  # once


@pytest.mark.parametrize(
    ("verifier", "reference", "text"),
    [
        ("numeric", "36", "There are 6 x 6 = 36 pens in total."),
        ("quantity", "5 kg", "5 kg 5 kg 7"),
        ("symbolic", "36", "36 36 36"),
    ],
)
def test_answers_that_a_verifier_cannot_read_are_noted(verifier: str, reference: str, text: str) -> None:
    with rlvr.make_verifier(verifier) as plugin:
        reason = plugin.verify(rlvr.Task("How many?", reference), text).reason
    assert NO_ANSWER_REASON.match(reason), reason
    assert not NO_ANSWER_REASON.match("12 is not 13") and not NO_ANSWER_REASON.match("the words 'no answer' are not 'yes'")
