"""Score answers with one reward model, or with the minimum of several, which is harder to fool."""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from rlvr.contracts import Verifier, VerifierExample
from rlvr.contracts.plugin import reject_unused_settings
from rlvr.errors import ConfigError, require_text_answers
from rlvr.mdp.tokenizers import load_tokenizer
from rlvr.task import Fault, Task, Verdict

MAX_DEVICE_BATCH = 64
"""Maximum number of pending answers that an accelerator scores in one batch."""
MAX_BATCH_TOKENS = 32_768
"""Maximum tokens of one batch of answers, padding included."""
PendingRow = tuple[list[Any], "Future[float]"]


class RewardModelVerifier(Verifier):
    """Score an answer with reward models: the lowest of their scores, each mapped to 0 to 1.

    A sigmoid maps the scores: a raw score of 0 becomes 0.5. Without models the true verifier gives the score.

    A true verifier verifies the same answers. Its score is only logged, as the component `true`, so that a run shows where the learned
    reward and the true score differ; the log has their correlation.

    >>> import rlvr
    >>> rlvr.make_verifier("learned").verify(rlvr.Task(rlvr.make_user_prompt("2+2="), id="t", reference="4"), "4").components
    {'true': 1.0}
    """

    needs = {"verifier": "exact"}
    examples = (VerifierExample("4", correct=("4",), incorrect=("5", "4 or 5", "")),)

    def __init__(self, *, verifier: Verifier, models: Sequence[str] = (), device: str | None = None) -> None:
        """Name the models.

        Args:
            verifier: the true verifier, for the log.
            models: folders that `rlvr train reward_model` wrote (DIR/checkpoints/last).
            device: the device of the models, for example cuda:1; None: the accelerator, or the CPU if there is none.
        """
        if not models:
            reject_unused_settings(
                RewardModelVerifier,
                {"device": device},
                "without models: no reward model is asked; give models=['RUN/checkpoints/last'] too",
            )
        if isinstance(models, str):
            models = (models,)
        missing = [folder for folder in models if not Path(folder).is_dir()]
        if missing:
            raise ConfigError(f"models names {missing[0]!r}, which is not a folder; give folders such as RUN/checkpoints/last")
        self.verifier = verifier
        self.models = [_RewardModel(Path(folder), device) for folder in models]

    @require_text_answers
    def verify(self, task: Task, answer: str) -> Verdict:
        """Score an answer with every reward model; the score of the inner verifier is added as component `true`, for the log."""
        truth = self.verifier.verify(task, answer)
        if not self.models:
            parts = {} if truth.score is None else {"true": truth.score}
            return Verdict(truth.score, truth.reason, parts, truth.fault, truth.detail)
        try:
            scores = [model.score(task, answer) for model in self.models]
        except Exception as error:
            return _failure_verdict(error)
        return self._make_verdict(truth, scores)

    def verify_many(self, tasks: Sequence[Task], answers: Sequence[str]) -> list[Verdict]:
        """Score in batches. A batch that fails is scored row by row, so that no answer loses its score to another.

        The rounding of a batch differs from that of a single answer, by some 1e-6: `verify` never batches, so that a run can be replayed.
        """
        if not self.models:
            return super().verify_many(tasks, answers)
        truths = self.verifier.verify_many(tasks, answers)
        pairs = list(zip(tasks, answers, strict=True))
        columns = [model.score_many(pairs) for model in self.models]
        rows: list[Verdict] = []
        for truth, row in zip(truths, zip(*columns, strict=True), strict=True):
            broken = next((score for score in row if isinstance(score, Exception)), None)
            scores = [score for score in row if isinstance(score, float)]
            rows.append(self._make_verdict(truth, scores) if broken is None else _failure_verdict(broken))
        return rows

    @staticmethod
    def _make_verdict(truth: Verdict, scores: Sequence[float]) -> Verdict:
        parts = {} if truth.score is None else {"true": truth.score}
        if not all(map(math.isfinite, scores)):
            return Verdict(None, f"a reward model gave {list(scores)}, which is not finite; its weights may be damaged", fault=Fault.INFRA)
        told = ", ".join(f"{score:+.3f}" for score in scores)
        least = 1 / (1 + math.exp(-max(-700.0, min(scores))))
        return Verdict(least, f"reward models: {told}; true verifier: {truth.reason}", parts | {"learned": least})

    def close(self) -> None:
        """Close the inner verifier, whose score is only logged."""
        self.verifier.close()


class _RewardModel:
    """One reward model and its tokenizer. One thread at a time computes, also for the pending rows of other threads."""

    def __init__(self, folder: Path, device: str | None) -> None:
        from rlvr.models.device import resolve_device
        from rlvr.models.reward_model import load_reward_model  # torch comes with it

        place = resolve_device(device)
        self.tokenizer, self.scorer = load_tokenizer(str(folder)), load_reward_model(folder).to(place)
        self.max_batch_size = 1 if place.type == "cpu" else MAX_DEVICE_BATCH
        """Maximum batch size. 1 on a CPU, so that a score does not depend on the batch bit for bit."""
        self.lock, self.pending_rows = threading.Lock(), deque[PendingRow]()

    def score(self, task: Task, answer: str) -> float:
        """Return the raw score of one answer."""
        mine: Future[float] = Future()
        self.pending_rows.append((self._tokenize(task, answer), mine))
        with self.lock:
            while not mine.done():
                self._score_batch([self.pending_rows.popleft() for _ in range(min(self.max_batch_size, len(self.pending_rows)))])
        return mine.result()

    def score_many(self, pairs: Sequence[tuple[Task, str]]) -> list[float | Exception]:
        """Return the raw score of each answer, or the exception if it has none. Answers of similar length share a batch."""
        rows: list[PendingRow] = [(self._tokenize(task, answer), Future()) for task, answer in pairs]
        order = sorted(rows, key=lambda row: len(row[0]))
        with self.lock:
            while order:
                longest = len(order[-1][0])
                self._score_batch([order.pop() for _ in range(min(len(order), max(1, MAX_BATCH_TOKENS // longest)))])
        return [error if isinstance(error := future.exception(), Exception) else future.result() for _, future in rows]

    def _score_batch(self, rows: list[PendingRow]) -> None:
        """Score a batch of answers; if that fails, score each one alone, so that a failure affects only its own answer."""
        try:
            scores = self._compute_scores([tokens for tokens, _ in rows])
        except Exception as error:
            if len(rows) == 1:
                rows[0][1].set_exception(error)
                return
            for one in rows:
                self._score_batch([one])
            return
        for (_, future), score in zip(rows, scores, strict=True):
            future.set_result(score)

    def _tokenize(self, task: Task, answer: str) -> list[Any]:
        return [*self.tokenizer.render(task.prompt), *self.tokenizer.encode(answer), self.tokenizer.eos_id]

    def _compute_scores(self, rows: list[list[Any]]) -> list[float]:
        return [float(score) for score in self.scorer(rows).tolist()]


def _failure_verdict(error: Exception) -> Verdict:
    return Verdict(None, f"a reward model failed: {type(error).__name__}: {error}", fault=Fault.INFRA)


make = RewardModelVerifier
