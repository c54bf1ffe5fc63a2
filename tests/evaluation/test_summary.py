"""From samples to figures: whose votes count together, what is left out, and what a reader is warned of."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from rlvr.evaluation.plan import EvalPlan
from rlvr.evaluation.report import EvalReport, build_headline_table, list_warnings, print_report
from rlvr.evaluation.samples import EvalSample
from rlvr.evaluation.suite import SuiteItem
from rlvr.evaluation.summary import EnvSummary, summarize_env
from rlvr.evaluation.votes import assign_answer_classes
from rlvr.registry.plugins import build
from rlvr.runs.conversation_stats import ConversationStats
from rlvr.task import Task, make_user_prompt


def sample(index: int, k: int, score: float | None = 0.0, text: str = "#### 1", **rest: Any) -> EvalSample:
    values: dict[str, Any] = {
        "stop_reason": "terminated",
        "reason": "",
        "tokens": 10,
        "prompt_tokens": 5,
        "mean_logprob": -1.0,
        "question_digest": str(index),
    }
    return EvalSample(("e", index, k), f"t{index}", score, text=text, **(values | rest))


def summary(groups: dict[int, list[EvalSample]], n: int, **rest: Any) -> EnvSummary:
    return summarize_env("e", groups, n=n, tasks=len(groups), **rest)


def voted(verifier: str, reference: Any, texts: dict[str, float]) -> list[int | None]:
    with build("verifier", verifier) as judge:
        return assign_answer_classes(
            judge, Task(make_user_prompt("?"), reference, id="t"), [sample(0, k, s, text) for k, (text, s) in enumerate(texts.items())]
        )


def test_equal_numbers_vote_together_however_they_are_written() -> None:
    texts = {"#### 0.5": 0.0, "so\n#### 1/2": 0.0, "#### 0.50": 0.0, "#### 2": 0.0, "": 0.0, "#### 4": 1.0, "#### 4.0": 1.0}
    assert voted("numeric", "4", texts) == [0, 0, 0, 1, None, 2, 2]


def test_where_nothing_can_stand_for_the_reference_words_vote() -> None:
    texts = {"2*(3+4)": 1.0, " 2*(3+4) ": 1.0, "(3+4)*2": 1.0, "7": 0.0}
    assert voted("countdown", {"numbers": [2, 3, 4], "target": 14}, texts) == [0, 0, 1, 2]


def test_groups_of_unequal_size_count_what_arrived() -> None:
    groups = {0: [sample(0, k, 1.0) for k in range(4)], 1: [sample(1, 0, 1.0), sample(1, 1, 0.0), sample(1, 2, None), sample(1, 3, None)]}
    found = summary(groups, 4, votes={0: [0] * 4, 1: [0, 1, 2, 3]})
    assert found.mean_score is not None and found.mean_score.value == 0.75 and (found.scored, found.unscored) == (6, 2)
    two, four = found.metrics_at_k["pass_at"][2], found.metrics_at_k["pass_at"][4]
    assert two is not None and (two.value, two.tasks) == (1.0, 2)
    assert four is not None and (four.value, four.tasks) == (1.0, 1)
    assert any("leave out tasks with fewer scored samples" in line for line in list_warnings(found, True))


@pytest.mark.parametrize(("tokens", "blamed"), [(0, True), (7, False)])
def test_where_the_policy_gave_no_answer_not_the_verifier_is_blamed(tokens: int, blamed: bool) -> None:
    lost: dict[str, Any] = {"stop_reason": "failed", "tokens": tokens, "reason": "HTTP 503: model not loaded"}
    lines = list_warnings(summary({i: [sample(i, 0, None, **lost)] for i in range(6)}, 1), False)
    assert ("to 6 of these the policy gave no answer" in lines[0]) == blamed and "--allow-unscored" not in lines[0]
    assert "6 unscored: HTTP 503: model not loaded" in lines[1]


def test_an_answer_that_was_cut_off_is_counted_and_a_cap_suggested() -> None:
    ends = [{"stop_reason": "truncated", "truncated_by": "tokens"} if i % 10 == 0 else {"stop_reason": "terminated"} for i in range(100)]
    groups = {i: [sample(i, 0, float(i % 2), tokens=100, **end)] for i, end in enumerate(ends)}
    found = summary(groups, 1)
    assert (
        found.truncated == 10 and found.untruncated_score == pytest.approx(50 / 90) and found.suggested_max_new_tokens == 208
    )  # ln(0.01) / ln(0.1) = 2 times 100
    (line,) = list_warnings(found, False)
    assert "10 of 100 samples (10.0%) ran into the length cap; 55.6% is the mean of those that were not truncated; about 208 tokens" in line
    assert summary({0: [sample(0, 0, 1.0)]}, 1).suggested_max_new_tokens is None


def test_where_most_are_cut_no_cap_is_promised_to_do() -> None:
    end = {"stop_reason": "truncated", "truncated_by": "tokens"}
    for cut, promised in ((56, True), (57, False)):
        groups = {i: [sample(i, 0, 0.0, tokens=100, **(end if i < cut else {"stop_reason": "terminated"}))] for i in range(100)}
        (line,) = list_warnings(summary(groups, 1), False)
        assert ("would leave 1 in 100 truncated" in line, "try about 832 tokens" in line) == (promised, not promised)


def test_who_used_up_the_turns_is_not_told_to_raise_the_cap() -> None:
    ends = [{"stop_reason": "truncated", "truncated_by": cut} for cut in ("turns", "turns", "window")] + [{"stop_reason": "terminated"}]
    found = summary({i: [sample(i, 0, 1.0, **end)] for i, end in enumerate(ends)}, 1)
    assert (found.truncated, found.suggested_max_new_tokens, found.truncated_by) == (3, None, {"turns": 2, "window": 1})
    turns, window = list_warnings(found, False)
    assert turns == "e: 2 of 4 samples (50.0%) used up their turns; 100.0% is the mean of those that were not truncated"
    assert window.startswith("e: 1 of 4 samples (25.0%) filled the context window (--max-length)")


def test_best_of_n_chooses_by_what_it_is_told() -> None:
    groups = {0: [sample(0, 0, 0.0, tokens=9, mean_logprob=-0.1), sample(0, 1, 1.0, tokens=3, mean_logprob=-2.0)]}
    for select, score in (("shortest", 1.0), ("longest", 0.0), ("confident", 0.0)):
        best = summary(groups, 2, select=select).metrics_at_k["best_at"][2]
        assert best is not None and best.value == score


def test_without_log_probabilities_nobody_is_the_most_confident() -> None:
    groups = {0: [sample(0, 0, 1.0, mean_logprob=0.0), sample(0, 1, 0.0, mean_logprob=0.0)]}
    found = summary(groups, 2, select="confident")
    assert found.metrics_at_k["best_at"] == {1: None, 2: None} and found.to_dict()["best_at"] == {"1": None, "2": None}
    assert any("no best@k by confidence" in line for line in list_warnings(found, False))
    assert not any("best@k" in line for line in list_warnings(summary(groups, 2, select="longest"), False))


def test_where_every_headline_is_refused_there_is_no_table_of_figures() -> None:
    groups = {0: [sample(0, k, None, reason="away") for k in range(2)]}
    plan = EvalPlan(suite="s", policy="scripted:gold", envs=[SuiteItem(name="e", env={"name": "arithmetic"}, n=2)])
    console = Console(file=(said := io.StringIO()), width=100)
    print_report(console, EvalReport("s", None, plan, {"e": summary(groups, 2)}))
    assert "refused" in said.getvalue() and "environment  figure" not in said.getvalue()


def test_reasons_are_a_line_each_and_none_is_passed_over() -> None:
    groups = {i: [sample(i, 0, None, reason=f"away\x1b[31m\n{i % 5}")] for i in range(10)}
    lines = [line for line in list_warnings(summary(groups, 1), True) if "unscored" in line]
    assert lines == [*(f"e: 2 unscored: away [31m {i}" for i in range(3)), "e: 4 unscored for 2 other reasons"]


def test_a_headline_stands_at_two_in_a_hundred_and_falls_above() -> None:
    for unscored, refused in ((2, False), (3, True)):
        groups = {i: [sample(i, 0, None if i < unscored else 1.0, reason="away")] for i in range(100)}
        found = summary(groups, 1)
        assert (
            found.is_headline_withheld is refused
            and (found.to_dict()["mean_score"] is None) is refused
            and found.to_dict(allow_unscored=True)["mean_score"] == 1.0
        )
        assert any("--allow-unscored" in line for line in list_warnings(found, False)) is refused


def test_a_policy_that_says_nothing_is_wrong_and_said_to_be_silent() -> None:
    found = summary({0: [sample(0, 0), sample(0, 1, text=" ")], 1: [sample(1, 0, None, text=""), sample(1, 1)]}, 2)
    assert (found.scored, found.empty, found.mean_score and found.mean_score.value) == (3, 1, 0.0)
    assert any("1 of 4 samples (25.0%) the answer is empty" in line for line in list_warnings(found, True))


def test_samples_that_have_not_arrived_are_missing() -> None:
    found = summarize_env("e", {0: [sample(0, 0, 1.0)]}, n=2, tasks=3)
    assert found.missing == 5 and any("5 samples are missing" in line for line in list_warnings(found, False))


def test_an_endpoint_that_counts_no_token_of_a_cut_answer_does_not_end_the_report() -> None:
    assert (
        summary({0: [sample(0, 0, text="", stop_reason="truncated", truncated_by="tokens", tokens=0)]}, 1).suggested_max_new_tokens
        is not None
    )


def test_turns_and_calls_are_means_over_the_samples_and_left_out_where_there_are_none() -> None:
    talks = [ConversationStats(1, 0), ConversationStats(4, 5, errors=3)]
    samples = {index: [sample(index, 0, conversation_stats=talk)] for index, talk in enumerate(talks)}
    found = summarize_env("agents", samples, n=1, tasks=2)
    assert (found.turns, found.calls, found.errors) == (2.5, 2.5, 1.5)
    assert {"turns": 2.5, "calls": 2.5, "errors": 1.5}.items() <= found.to_dict().items()
    plain = summarize_env("plain", {0: [sample(0, 0)]}, n=1, tasks=1)
    assert plain.calls is None and not {"turns", "calls", "errors"} & plain.to_dict().keys()
    talked = summarize_env("talks", {0: [sample(0, 0, conversation_stats=ConversationStats(3))]}, n=1, tasks=1)
    assert talked.to_dict()["turns"] == 3 and "calls" not in talked.to_dict()
    table = build_headline_table([found, plain], allow_unscored=False)
    assert [column.header for column in table.columns][-3:] == ["turns", "calls", "errors"]
    assert [column.header for column in build_headline_table([plain], allow_unscored=False).columns][-1] == "failed"
