"""Find out why a reward has fallen: verify answers of the best steps again, and sample their tasks again.

If the same answers score less, the verifier has changed. If they do not, and the policy of now does worse on the same tasks, the policy
has. If it does not, the tasks have become harder.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import suppress
from enum import StrEnum
from functools import partial
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from rlvr.contracts import Environment
from rlvr.episode import AUXILIARY_MARKS, Episode
from rlvr.errors import SandboxOutage
from rlvr.mdp.answer_faults import verify_recorded_answer
from rlvr.mdp.records import step_result_from_json, turn_from_json
from rlvr.mdp.sessions import LazySession
from rlvr.mdp.verifier_executor import DaemonThreadExecutor
from rlvr.rollout.rollout import derive_seed
from rlvr.rollout.rollout_request import RolloutRequest
from rlvr.task import Task
from rlvr.training.processes import map_sharded, run_on_main

if TYPE_CHECKING:
    from rlvr.training.trainer import Trainer

T = TypeVar("T")
MAX_ANSWERS = 128
"""How many answers are kept."""
MAX_PLAYED, MAX_QUOTE = 8, 60
"""How many recorded conversations are played again, and how much of a tool's result is quoted."""
NUM_THREADS = 8
POLICY_SIGMAS = 3.0
"""How many standard errors the policy must be below its earlier self on the same tasks."""
MIN_REFERENCES, MIN_SHIFT, SHIFT_SIGMAS = 16, 0.1, 4.0
"""How many different references, and how much higher scores, show that references belong to the tasks of another row."""
MAX_ROWS, MIN_DISTINCT = 2000, 0.9
"""Up to how many stored rows answers are compared with the references of all, where so large a part of these is different."""
MIN_CORRELATION = 0.1
"""Scores then and now that are less correlated than this have no order in common; the noise of a judge leaves more."""
MAX_NOISE = 0.2
"""A verifier that was deterministic may give so large a part of the same answers another score each time."""
CHANGE_SIGMAS = 3.0
"""How many standard errors the correlation of scores must be below that of a verifier that is not deterministic with itself."""
MIN_CHANGED, MIN_APART = 4, 8
"""A verifier that seems deterministic may seldom give another score, so that many answers must have one, if they are to show a change. One that
is known to do so must have told the second number of answers from so many others.
"""
SAME_SCORE = 1e-9
"""Scores that differ by less are equal: 0.9 is not always computed to the last bit."""


class KeptAnswer(NamedTuple):
    """An answer with its score, kept to be verified again."""

    task: Task
    text: str
    record: Mapping[str, Any] | None
    """The record of the session, if there was one."""
    score: float
    place: tuple[str, int] | None = None
    """The split and the index of the task."""


class Misplacement(NamedTuple):
    """How references belong to the tasks of other rows."""

    what: str
    is_certain: bool
    """False if answers that are wrong may look like that too: numbers that are off by one in rows that count."""


class FallCause(StrEnum):
    """What has changed since an earlier step."""

    VERIFIER = "verifier"
    """The verifier no longer tells answers apart as it did before: it gives all one score, or more to those that had less."""
    SCORING = "scoring"
    """The verifier gives the same answers other scores, which explain the fall."""
    POLICY = "policy"
    TASKS = "tasks"
    UNKNOWN = "unknown"


def keep_answers(environment: Environment, episodes: Sequence[Episode]) -> list[KeptAnswer]:
    """Keep answers with a score and their tasks, one of each task before the second of any."""
    return _keep_by_task(
        environment,
        [
            (episode.meta, episode.text, episode.verdict.score)
            for episode in episodes
            if episode.verdict is not None and episode.verdict.score is not None and not episode.is_auxiliary
        ],
    )


LOGGED_FIELDS = ("split", "index", "text", "session", "verdict", *AUXILIARY_MARKS)
"""What `keep_logged_answers` reads of a row."""


def keep_logged_answers(environment: Environment, rows: Iterable[Mapping[str, Any]]) -> list[KeptAnswer]:
    """Keep answers as `keep_answers` does, from rows of episodes.jsonl."""
    return _keep_by_task(
        environment,
        [
            (row, row["text"], verdict["score"])
            for row in rows
            if (verdict := row.get("verdict")) and verdict["score"] is not None and not any(row.get(name) for name in AUXILIARY_MARKS)
        ],
    )


def _keep_by_task(environment: Environment, answers: Sequence[tuple[Mapping[str, Any], str, float]]) -> list[KeptAnswer]:
    by_task: dict[tuple[str, int], list[KeptAnswer]] = {}
    for meta, text, score in answers:
        if meta.get("index") is not None:
            members = by_task.setdefault(key := (meta["split"], meta["index"]), [])
            task = members[0].task if members else environment.task(*key)
            members.append(KeptAnswer(task, text, meta.get("session"), score, key))
    return [answer for answers in zip_longest(*by_task.values()) for answer in answers if answer is not None][:MAX_ANSWERS]


class RewardFallProbe:
    """Verifies kept answers again, and samples their tasks again, with what the trainer has now. Each method is collective."""

    def __init__(self, trainer: Trainer) -> None:
        self._trainer, self.environment = trainer, trainer.environment
        self.repeatability = 1.0
        """The correlation of the scores that the same answers got twice, at first: 1 for a deterministic verifier."""
        self._num_measured = 0
        """The number of answers that the correlation was measured on."""
        self._has_measured_replies = self._tools_repeat = False

    def measure_repeatability(self, answers: Sequence[KeptAnswer]) -> None:
        """Verify answers again that were just verified, to know how much scores differ without a change of the verifier."""
        known = _pair_scores(answers, self.verify_again(answers))
        if len(known) >= len(answers) / 2 and any(abs(before - now) > SAME_SCORE for before, now in known):
            self.repeatability, self._num_measured = _correlate(known), len(known)

    def describe_change(self, answers: Sequence[KeptAnswer], scores: Sequence[float | None]) -> str:
        """Describe how the verifier no longer tells answers apart as it did, beyond its own noise; empty if it does."""
        return _describe_verifier_change(answers, scores, self.repeatability, self._num_measured)

    def confirm_change(self, answers: Sequence[KeptAnswer], scores: Sequence[float | None], newest: Sequence[KeptAnswer]) -> str:
        """Describe a change as `describe_change` does, after the newest answers were verified again: a verifier that seldom gives an answer
        another score may have shown no noise at first, and one such score is no change.
        """
        known = _pair_scores(newest, self.verify_again(newest))
        apart = sum(abs(before - now) > SAME_SCORE for before, now in known)
        if self.repeatability < 1 - SAME_SCORE or not 0 < apart <= MAX_NOISE * len(known):
            return self.describe_change(answers, scores)
        noise = statistics.fmean((before - now) ** 2 for before, now in known)
        spread = 2 * statistics.pvariance([answer.score for answer in answers])
        return _describe_verifier_change(answers, scores, max(0.0, 1 - noise / spread) if spread else 0.0, len(known))

    def find_last_step_before_change(self, steps: Sequence[tuple[int, Sequence[KeptAnswer]]]) -> tuple[int, bool] | None:
        """Find the last of some steps in a row whose answers get other scores now, and whether all of that step came before the change:
        else only few of its answers do. None if no step shows it, or if the newest does: the scores differ each time.
        """
        parts = list[tuple[int, float]]()
        for step, answers in steps:
            known = _pair_scores(answers, self.verify_again(answers))
            parts.append((step, sum(abs(before - now) > SAME_SCORE for before, now in known) / max(1, len(known))))
        most = max((part for _, part in parts), default=0.0)
        changed = [(step, part) for step, part in parts if part > max(MAX_NOISE / 2, most / 8)]
        if not changed or changed[-1][0] == parts[-1][0]:
            return None
        step, part = changed[-1]
        return step, part >= most / 2

    def describe_noise(self, answers: Sequence[KeptAnswer]) -> str:
        """Describe how answers that got the same scores twice at first get another one each time now; empty if they do not."""
        if self.repeatability < 1 - SAME_SCORE:
            return ""
        one, two = (self.verify_again(answers) for _ in range(2))
        pairs = [(first, second) for first, second in zip(one, two, strict=True) if first is not None and second is not None]
        apart = sum(abs(first - second) > SAME_SCORE for first, second in pairs)
        is_noise = len(pairs) >= MIN_APART and apart > MAX_NOISE * len(pairs)
        return f"{apart} of {len(pairs)} answers score otherwise from one time to the next" if is_noise else ""

    def explain_reward_fall(self, answers: Sequence[KeptAnswer], fraction: float) -> FallCause:
        """Find what has changed so that the reward fell by more than a fraction of it since these answers were given."""
        scores = self.verify_again(answers)
        pairs = [(answer, score) for answer, score in zip(answers, scores, strict=True) if score is not None]
        if not pairs or len(pairs) < len(answers) / 2:
            return FallCause.UNKNOWN
        if self.describe_change(answers, scores):
            return FallCause.VERIFIER
        before, again = (math.fsum(values) / len(pairs) for values in ([a.score for a, _ in pairs], [score for _, score in pairs]))
        if again < (1 - fraction) * before:
            return FallCause.SCORING
        return self._compare_policy([answer._replace(score=score) for answer, score in pairs], fraction)

    def verify_again(self, answers: Sequence[KeptAnswer]) -> list[float | None]:
        """Verify the answers again; None where there is no score."""
        return self._verify([(answer, answer.task) for answer in answers])

    def check_tool_repeatability(self, answers: Sequence[KeptAnswer]) -> None:
        """Play conversations again that have just ended, to know whether the same calls of tools get the same results. The first ones that
        have calls count.
        """
        if not self._has_measured_replies and (called := _select_with_calls(answers)):
            self._has_measured_replies = True
            self._tools_repeat = not any(self._play_again(called))

    def describe_changed_tool_results(self, answers: Sequence[KeptAnswer]) -> str:
        """Describe that most of some recorded conversations have a call of a tool that gets another result now; empty if they do not, or if
        calls got different results from the first.
        """
        called = _select_with_calls(answers) if self._tools_repeat else []
        changed = list(filter(None, self._play_again(called))) if called else []
        if 2 * len(changed) <= len(called):
            return ""
        return f"in {len(changed)} of {len(called)} recorded conversations that were played again a call got another result: {changed[0]}"

    def _play_again(self, answers: Sequence[KeptAnswer]) -> list[str]:
        """Play the recorded turns of conversations in new sessions; return the first result of each that differs, or an empty string."""

        def play(answer: KeptAnswer) -> str:
            try:
                return _find_changed_result(self.environment, answer.task, answer.record or {})
            except Exception:  # it says nothing about results
                return ""

        return [found or "" for found in self._run_all([partial(play, answer) for answer in answers])]

    def tells_swapped_answers_apart(self, answers: Sequence[KeptAnswer]) -> bool:
        """Return whether the verifier gives another score to answers if each is given to the task of another one."""
        shifted = [(answer, other.task) for answer, other in zip(answers, [*answers[1:], *answers[:1]], strict=True)]
        scores = self._verify([(answer, task) for answer, task in shifted if answer.task.id != task.id and answer.record is None])
        known = [score for score in scores if score is not None]
        return any(abs(score - answers[0].score) > SAME_SCORE for score in known)

    def find_misplaced_references(self, answers: Sequence[KeptAnswer]) -> Misplacement | None:
        """Find that answers are right for the tasks one row before or after their own, or for any others, and hardly for their own; None if
        they are not.
        """
        own = [answer for answer in answers if answer.record is None and answer.place is not None]
        if len({str(answer.task.reference) for answer in own}) < MIN_REFERENCES:  # yes and no may alternate
            return None
        for distance, where in ((1, "after"), (-1, "before")):
            asked = [(answer, other) for answer in own if (other := self._load_task(*(answer.place or ("", 0)), distance)) is not None]
            found = [(answer.score, score) for (answer, _), score in zip(asked, self._verify(asked), strict=True) if score is not None]
            if len(found) < MIN_REFERENCES:
                continue
            more = [score - before for before, score in found]
            if statistics.fmean(more) > max(MIN_SHIFT, SHIFT_SIGMAS * statistics.stdev(more) / math.sqrt(len(more))):
                mine, theirs = (statistics.fmean(values) for values in zip(*found, strict=True))
                is_certain = mine <= self._measure_chance(own) and not _do_count([(one.task, other) for one, other in asked])
                what = (
                    f"the references seem to be shifted by a row: {len(found)} answers score {mine:.2g} in the mean for their own tasks, and "
                    f"{theirs:.2g} for the tasks one row {where} them"
                )
                return Misplacement(what, is_certain)
        told = self._find_permutation(own)
        return Misplacement(told, is_certain=False) if told else None

    def _measure_chance(self, answers: Sequence[KeptAnswer]) -> float:
        """Return what answers may score in the mean for tasks that are not theirs, by chance."""
        apart = len(answers) // 2
        others = [(answer, other.task) for answer, other in zip(answers, [*answers[apart:], *answers[:apart]], strict=True)]
        scores = [score for score in self._verify(others) if score is not None]
        return statistics.fmean(scores) + 2 * statistics.pstdev(scores) / math.sqrt(len(scores)) if scores else 0.0

    def _find_permutation(self, answers: Sequence[KeptAnswer]) -> str:
        """Find that answers are word for word the references of other rows, and strings much like them are not."""
        split = (answers[0].place or ("", 0))[0]
        if (size := self.environment.num_tasks(split)) is None or size > MAX_ROWS:
            return ""
        try:
            rows = {str(task.reference).strip(): task for task in (self.environment.task(split, index) for index in range(size))}
        except Exception:  # it may serve each task once
            return ""
        texts = [answer.text.strip() for answer in answers if answer.text.strip()]
        if len(rows) < MIN_DISTINCT * size or len(texts) < MIN_REFERENCES:  # a class has many rows
            return ""
        alike = _vary(texts)
        mine = statistics.fmean(text in rows for text in texts)
        chance = statistics.fmean(one in rows for one in alike) if alike else 1.0
        error = math.sqrt(mine * (1 - mine) / len(texts) + chance * (1 - chance) / max(1, len(alike)))
        if mine < 0.5 or mine - chance < SHIFT_SIGMAS * error or mine == chance:
            return ""
        asked = [(answer, rows[answer.text.strip()]) for answer in answers if answer.text.strip() in rows]
        scores = [score for score in self._verify(asked) if score is not None]
        before = statistics.fmean(answer.score for answer, _ in asked)
        if not scores or statistics.fmean(scores) < before + 0.5:
            return ""
        return (
            f"{len(asked)} of {len(answers)} answers are word for word the references of other rows, and score {statistics.fmean(scores):.2g} "
            f"in the mean there, {before:.2g} for their own: the references seem to be in another order than the questions"
        )

    def _load_task(self, split: str, index: int, distance: int) -> Task | None:
        """Load the task some rows after another one; None where tasks are generated, or at the ends."""
        size = self.environment.num_tasks(split)
        return self.environment.task(split, index + distance) if size is not None and 0 <= index + distance < size else None

    def _compare_policy(self, answers: Sequence[KeptAnswer], fraction: float) -> FallCause:
        """Sample the tasks of the answers with the present policy, and compare the scores."""
        trainer = self._trainer
        trainer.batch_source.wait_until_idle()
        trainer.sync_weights()
        step, seed = trainer.num_completed_steps, trainer.config.seed
        requests = [
            RolloutRequest(answer.task, f"probe:{place}", derive_seed(seed, "probe", step, place)) for place, answer in enumerate(answers)
        ]
        episodes = map_sharded(
            trainer.accelerator,
            requests,
            lambda mine: trainer.rollout.collect(mine, trainer.components.sampling),
            on_main_only=trainer.rollout.main_process_samples,
        )
        by_task: dict[str, list[tuple[float, float]]] = {}
        for answer, episode in zip(answers, episodes, strict=True):
            if episode.verdict is not None and episode.verdict.score is not None:
                by_task.setdefault(answer.task.id, []).append((answer.score, episode.verdict.score))
        falls = [math.fsum(old - new for old, new in pairs) / len(pairs) for pairs in by_task.values()]
        if len(falls) < 2:
            return FallCause.UNKNOWN
        before = math.fsum(old for pairs in by_task.values() for old, _ in pairs) / sum(map(len, by_task.values()))
        fall = math.fsum(falls) / len(falls)
        error = math.sqrt(math.fsum((one - fall) ** 2 for one in falls) / (len(falls) - 1) / len(falls))
        if fall > fraction * before and fall > POLICY_SIGMAS * error:
            return FallCause.POLICY
        return FallCause.TASKS if fall + POLICY_SIGMAS * error < fraction * before else FallCause.UNKNOWN

    def _verify(self, asked: Sequence[tuple[KeptAnswer, Task]]) -> list[float | None]:
        calls = [partial(verify_recorded_answer, self.environment, task, answer.text, answer.record) for answer, task in asked]
        return [None if verdict is None else verdict.score for verdict in self._run_all(calls)]

    def _run_all(self, calls: Sequence[Callable[[], T]]) -> list[T | None]:
        """Run calls at the same time on the main process; return their results in order, None where a call takes too long or has no sandbox."""
        timeout = self._trainer.config.rollout.call_timeout_s

        def run() -> list[T | None]:
            executor = DaemonThreadExecutor(NUM_THREADS, name="probe")
            try:
                futures = [executor.submit(call) for call in calls]
                results: list[T | None] = []
                for future in futures:
                    try:
                        results.append(future.result(timeout=timeout))
                    except (FutureTimeout, SandboxOutage):
                        results.append(None)
                return results
            finally:
                executor.close()

        return run_on_main(self._trainer.accelerator, run)


def _find_changed_result(environment: Environment, task: Task, record: Mapping[str, Any]) -> str:
    """Play the turns of a session record in a new session; describe the first call of a tool with another result, or return ''."""
    if environment.traits.rewrites_context:
        return ""  # which turns had notes depends on the window
    session = LazySession(environment, task, seed=record["seed"])
    try:
        session.open()
        for turn, recorded in zip(record["turns"], record["step_results"], strict=False):
            step_result = session.step(turn_from_json(turn))
            results = step_result_from_json(recorded).tool_results
            calls = {call["id"]: call for call in turn.get("calls", ()) if "id" in call}
            for before, now in zip(results, step_result.tool_results, strict=False):
                if (before.text, before.ok) != (now.text, now.ok):
                    call = calls.get(before.call, {})
                    asked = f"{call.get('name', 'a call')}({call.get('arguments', '')!s:.60})"
                    return f"{asked} gave {before.text[:MAX_QUOTE]!r}, and gives {now.text[:MAX_QUOTE]!r} now"
        return ""
    finally:
        session.close()


def _select_with_calls(answers: Sequence[KeptAnswer]) -> list[KeptAnswer]:
    """Select some answers with calls of tools that had a result."""
    called = []
    for answer in answers:
        steps = (answer.record or {}).get("step_results", ())
        if any(result["ok"] for step in steps for result in step.get("tool_results", ())):
            called.append(answer)
    return called[:MAX_PLAYED]


def _describe_verifier_change(
    answers: Sequence[KeptAnswer], scores: Sequence[float | None], repeatability: float = 1.0, num_measured: int = 0
) -> str:
    """Describe how a verifier no longer tells answers apart as it did; empty if it does, or only gives them other scores in the same order.

    `repeatability`: how the scores of the same answers correlated without a change, measured on `num_measured` answers.

    >>> answers = [KeptAnswer(Task("2+2="), "4", None, score) for score in [0.0] * 4 + [1.0] * 4]
    >>> _describe_verifier_change(answers, [0.5] * 8)
    'all score the same now'
    >>> _describe_verifier_change(answers, [1.0] * 3 + [0.9] + [0.0] * 4)
    'those that scored more do not score more now'
    >>> _describe_verifier_change(answers, [0.0, 0.1, 0.1, 0.1] + [0.2] * 4)
    ''
    >>> _describe_verifier_change(answers * 2, [1.0, 0.0] * 8, repeatability=0.1, num_measured=32)
    ''
    """
    known = _pair_scores(answers, scores)
    if len(known) < len(answers) / 2 or len(known) < 2:
        return ""
    before, now = zip(*known, strict=True)
    if max(before) - min(before) <= SAME_SCORE:
        return ""
    is_noisy, middle = repeatability < 1 - SAME_SCORE, (max(before) + min(before)) / 2
    above, num_changed = sum(score > middle for score in before), sum(abs(old - new) > SAME_SCORE for old, new in known)
    if min(above, len(before) - above) < MIN_APART if is_noisy else num_changed < MIN_CHANGED:
        return ""
    if max(now) - min(now) <= SAME_SCORE:
        return "all score the same now"
    correlation = _correlate(known)
    if correlation >= MIN_CORRELATION or (is_noisy and not _is_below((correlation, len(known)), (repeatability, num_measured))):
        return ""
    return "those that scored more do not score more now"


def _vary(texts: Sequence[str]) -> list[str]:
    """Make strings much like some texts: each with one character taken from the same place of another text.

    >>> sorted(_vary(["ab", "cd"]))
    ['ad', 'cb']
    """
    found = list[str]()
    for number, text in enumerate(texts):
        for other in (texts[(number + step) % len(texts)] for step in range(1, 3)):
            place = (number + len(found)) % len(text)
            if place < len(other) and other[place] != text[place]:
                found.append(text[:place] + other[place] + text[place + 1 :])
    return found


def _do_count(pairs: Sequence[tuple[Task, Task]]) -> bool:
    """Return whether most references of neighbouring rows are numbers with one and the same difference.

    >>> _do_count([(Task("1+1=", "2"), Task("1+2=", "3")), (Task("1+2=", "3"), Task("1+3=", "4"))])
    True
    """
    differences = Counter[float]()
    for one, other in pairs:
        with suppress(ValueError):
            differences[float(str(other.reference)) - float(str(one.reference))] += 1
    return any(2 * count > len(pairs) for count in differences.values())


def _pair_scores(answers: Sequence[KeptAnswer], scores: Sequence[float | None]) -> list[tuple[float, float]]:
    return [(answer.score, score) for answer, score in zip(answers, scores, strict=True) if score is not None]


def _correlate(pairs: Sequence[tuple[float, float]]) -> float:
    """Return the correlation of scores then and now; 0 where all are the same."""
    try:
        return statistics.correlation(*zip(*pairs, strict=True))
    except statistics.StatisticsError:
        return 0.0


def _is_below(now: tuple[float, int], usual: tuple[float, int]) -> bool:
    """Return whether a correlation is below another one beyond chance, by Fisher's transformation. Each comes with its number of pairs."""
    mine, other = (math.atanh(max(-1 + SAME_SCORE, min(1 - SAME_SCORE, correlation))) for correlation, _ in (now, usual))
    counts = [count - 3 for _, count in (now, usual)]
    return min(counts) > 0 and other - mine > CHANGE_SIGMAS * math.sqrt(sum(1 / count for count in counts))
