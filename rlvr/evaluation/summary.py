"""Summarise the samples of each environment of a suite: scores, missing scores, truncated and failed samples.

The headline is the mean over tasks. It is withheld if more than 2 % of the samples have no score, since the mean over the others may be
biased.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from rlvr.errors import ConfigError, format_suggestion
from rlvr.evaluation.samples import EvalSample
from rlvr.evaluation.statistics import Estimate, estimate_mean, list_k_values, majority_at_k, mean, pass_all_k, pass_at_k, selected_at_k
from rlvr.hints import Hinted

MAX_UNSCORED_FRACTION = MAX_TRUNCATED_FRACTION = 0.02
TARGET_TRUNCATED_FRACTION = 0.01
"""Fraction of answers that a suggested cap would still truncate, by extrapolation of the lengths."""
MAX_CAP_FACTOR = 8.0
"""Maximum suggested cap, as a multiple of the current one; beyond it the lengths cannot be extrapolated."""
SELECTORS: Mapping[str, Callable[[EvalSample], float]] = {
    "shortest": lambda sample: sample.tokens,
    "longest": lambda sample: -sample.tokens,
    "confident": lambda sample: -sample.mean_logprob,
}
"""How best@k chooses: the sample with the lowest value of this function, the earlier one if equal."""
Votes = Mapping[int, Sequence[int | None]]
"""Task index to the class of each of its samples' answers, in the order of the samples (see `rlvr.evaluation.votes`)."""


@dataclass(frozen=True, slots=True)
class EnvSummary(Hinted):
    """The summary of one environment.

    >>> summarize_env("gsm8k", {}, n=1, tasks=0).samples
    0
    """

    _synonyms = {
        **dict.fromkeys(("mean", "score", "reward", "mean_reward", "avg_reward"), "accuracy"),
        **dict.fromkeys(("pass_at", "pass_k"), "pass_at_k"),
    }
    _hints = {**dict.fromkeys(("stderr", "ci", "interval"), "write .mean_score, which has .low and .high")}
    name: str
    n: int
    tasks: int
    samples: int
    """Number of samples, scored or not."""
    missing: int
    """Number of planned samples that are missing."""
    scored: int
    unscored: int
    """Without a score: a broken task, a dead sandbox, or no answer at all. Never counted as wrong."""
    failed: int
    """Number of unscored samples to which the policy gave no answer."""
    truncated: int
    """Number of truncated samples; they are verified as they are."""
    empty: int
    """Number of scored samples with an empty answer; they are verified like any other answer."""
    mean_score: Estimate | None
    """The mean over tasks of the mean score of their samples."""
    metrics_at_k: dict[str, dict[int, Estimate | None]]
    """`pass_at`, `pass_all`, `maj_at`, `best_at`: estimates by k. None if no task has k samples, or there is nothing to select by."""
    untruncated_score: float | None
    """The mean score of the scored samples that were not truncated."""
    suggested_max_new_tokens: int | None
    """The `max_new_tokens` to try, if the current one truncates more than 2 in 100."""
    repeated: int
    """Number of tasks that repeat the question of another task and form one cluster with it."""
    truncated_by: dict[str, int] = field(default_factory=dict)
    """Number of truncated samples by the limit that truncated them: `tokens`, `turns` or `window`."""
    reasons: dict[str, int] = field(default_factory=dict)
    """The reasons for missing scores, with their counts."""
    tokens: int = 0
    prompt_tokens: int = 0
    turns: float = 1.0
    """The mean number of turns of a sample."""
    calls: float | None = None
    """The mean number of calls of a sample, and of those that failed; None if there were no tools."""
    errors: float | None = None
    unanswered: int = 0
    """Number of unscored samples without any token of the policy: not the verifier has failed, but its sampler or the start of the session."""

    @property
    def accuracy(self) -> float | None:
        """The mean score; None if no sample has a score."""
        return None if self.mean_score is None else self.mean_score.value

    def pass_at_k(self, k: int) -> float | None:
        """Return pass@k: the probability that at least one of k samples passes; None if no task has k scored samples."""
        estimate = self.mean_score if k == 1 else self.metrics_at_k.get("pass_at", {}).get(k)
        return None if estimate is None else estimate.value

    @property
    def has_conversations(self) -> bool:
        """Whether there are samples of several turns, or tools."""
        return self.turns > 1 or self.calls is not None

    @property
    def is_headline_withheld(self) -> bool:
        """Whether too many samples have no score for a headline."""
        return self.unscored > MAX_UNSCORED_FRACTION * self.samples

    @property
    def is_suggested_cap_sufficient(self) -> bool:
        """Whether the suggested cap is estimated to truncate only 1 in 100."""
        told: float = TARGET_TRUNCATED_FRACTION ** (1 / MAX_CAP_FACTOR)
        return self.truncated_by.get("tokens", 0) <= told * self.samples

    def to_dict(self, *, allow_unscored: bool = False) -> dict[str, Any]:
        """Convert the summary to JSON for programs, with `selected_at_k` if requested; metrics are null if the headline is withheld."""
        shown = not self.is_headline_withheld or allow_unscored
        avg = self.mean_score if shown else None

        def values(name: str) -> dict[str, float | None]:
            return {str(k): found.value if found and shown else None for k, found in self.metrics_at_k.get(name, {}).items()}

        counts = {name: getattr(self, name) for name in ("tasks", "samples", "scored", "unscored", "truncated", "failed")}
        interval = [avg.to_dict()["low"], avg.to_dict()["high"]] if avg else None
        at = {name: values(name) for name in ("pass_at", "maj_at", *(["best_at"] if "best_at" in self.metrics_at_k else []))}
        conversation_figures = {
            name: getattr(self, name) for name in ("turns", "calls", "errors") if self.has_conversations and getattr(self, name) is not None
        }
        return {"mean_score": avg and avg.value, "ci95": interval, **at, **counts, **conversation_figures}

    def to_report_dict(self) -> dict[str, Any]:
        """Convert all fields to JSON: the content of `report.json`."""
        at = {name: {k: found and found.to_dict() for k, found in figures.items()} for name, figures in self.metrics_at_k.items()}
        return asdict(self) | {
            "mean_score": self.mean_score and self.mean_score.to_dict(),
            "metrics_at_k": at,
            "refused": self.is_headline_withheld,
        }

    @classmethod
    def from_report_dict(cls, data: Mapping[str, Any]) -> EnvSummary:
        """Build the summary that `to_report_dict` converted."""

        def read(estimate: Any) -> Estimate | None:
            return Estimate.from_dict(estimate) if estimate else None

        at = {name: {int(k): read(found) for k, found in figures.items()} for name, figures in data["metrics_at_k"].items()}
        rest = {name: value for name, value in data.items() if name != "refused"}
        return cls(**{**rest, "mean_score": read(data["mean_score"]), "metrics_at_k": at})


def summarize_env(
    name: str, groups: Mapping[int, Sequence[EvalSample]], *, n: int, tasks: int, votes: Votes | None = None, select: str = ""
) -> EnvSummary:
    """Count and average the samples of one environment, grouped by task, in the order of their keys."""
    samples = [sample for group in groups.values() for sample in group]
    scored = [sample for sample in samples if sample.score is not None]
    completed = [sample.score for sample in scored if sample.stop_reason != "truncated" and sample.score is not None]
    cut = Counter(sample.truncated_by for sample in samples if sample.stop_reason == "truncated")
    called = [sample.conversation_stats for sample in samples if sample.conversation_stats.calls is not None]
    return EnvSummary(
        name=name,
        n=n,
        tasks=tasks,
        samples=len(samples),
        missing=tasks * n - len(samples),
        scored=len(scored),
        unscored=len(samples) - len(scored),
        failed=sum(sample.stop_reason == "failed" for sample in samples),
        truncated=cut.total(),
        empty=sum(not sample.text.strip() for sample in scored),
        mean_score=estimate_mean([_mean_score(group) for group in groups.values()], _question_digests(groups)),
        metrics_at_k=_compute_metrics(groups, n, votes, select),
        untruncated_score=mean(completed) if completed else None,
        suggested_max_new_tokens=_suggest_token_cap(samples, cut["tokens"])
        if cut["tokens"] > MAX_TRUNCATED_FRACTION * len(samples)
        else None,
        repeated=len(groups) - len(set(_question_digests(groups))),
        truncated_by=dict(cut.most_common()),
        reasons=dict(Counter(sample.reason for sample in samples if sample.score is None).most_common()),
        tokens=sum(sample.tokens for sample in samples),
        prompt_tokens=sum(sample.prompt_tokens for sample in samples),
        turns=mean([sample.conversation_stats.turns for sample in samples]) if samples else 1.0,
        calls=mean([conversation.calls or 0 for conversation in called]) if called else None,
        errors=mean([conversation.errors for conversation in called]) if called else None,
        unanswered=sum(sample.score is None and sample.stop_reason == "failed" and not sample.tokens for sample in samples),
    )


def _question_digests(groups: Mapping[int, Sequence[EvalSample]]) -> list[str]:
    return [group[0].question_digest for group in groups.values()]


def _mean_score(group: Sequence[EvalSample]) -> float | None:
    scores = _scores(group)
    return mean(scores) if scores else None


def _scores(group: Sequence[EvalSample]) -> list[float]:
    return [sample.score for sample in group if sample.score is not None]


def _compute_metrics(
    groups: Mapping[int, Sequence[EvalSample]], n: int, votes: Votes | None, select: str
) -> dict[str, dict[int, Estimate | None]]:
    judged = {index: [s for s in group if s.score is not None] for index, group in groups.items()}
    right = [(sum(s.is_correct for s in group), len(group)) for group in judged.values()]
    questions, ks = _question_digests(groups), list_k_values(n)
    found = {
        "pass_at": {k: estimate_mean([pass_at_k(c, m, k) for c, m in right], questions) for k in sorted({*ks, *range(1, min(n, 64) + 1)})},
        "pass_all": {k: estimate_mean([pass_all_k(c, m, k) for c, m in right], questions) for k in ks},
    }
    if votes is not None:
        cast = [_select_scored_votes(groups[index], votes[index]) for index in groups]
        found["maj_at"] = {k: estimate_mean([majority_at_k(classes, scores, k) for classes, scores in cast], questions) for k in ks}
    if select:
        ranked = [[score for s in sorted(group, key=SELECTORS[select]) for score in _scores([s])] for group in judged.values()]
        told = select != "confident" or any(s.mean_logprob for group in judged.values() for s in group)
        found["best_at"] = {k: estimate_mean([selected_at_k(scores, k) for scores in ranked], questions) if told else None for k in ks}
    return found


def _select_scored_votes(group: Sequence[EvalSample], classes: Sequence[int | None]) -> tuple[list[int | None], list[float]]:
    """Return the votes and the scores of the samples that have a score."""
    return [vote for sample, vote in zip(group, classes, strict=True) if sample.score is not None], _scores(group)


def check_selector(name: str) -> str:
    """Check the name of a selector and return it; an error lists all if it is unknown."""
    if name and name not in SELECTORS:
        raise ConfigError(f"unknown selector {name!r}; {format_suggestion(name, SELECTORS)}")
    return name


def _suggest_token_cap(samples: Sequence[EvalSample], num_truncated: int) -> int:
    """Suggest a cap that would truncate 1 in 100, by extrapolating the distribution of lengths up to a maximum factor."""
    longest = max(1, *(sample.tokens for sample in samples))  # an endpoint may report no counts
    share = min(num_truncated / len(samples), 0.95)
    wanted = longest * min(math.log(TARGET_TRUNCATED_FRACTION) / math.log(share), MAX_CAP_FACTOR)
    step: int = 2 ** max(int(math.log2(wanted)) - 3, 0)
    return math.ceil(wanted / step) * step
