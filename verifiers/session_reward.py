"""Verify a conversation by the rewards that its session gave: the sum of the rewards of the step results."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from rlvr.contracts import Transcript, Verifier, VerifierExample
from rlvr.errors import require_text_answers
from rlvr.task import Fault, StepReward, Task, Verdict

ROUNDING = 1e-9


class SessionReward(Verifier):
    """The score is the sum of the rewards that the session gave with its replies (`StepResult.reward`), mapped to 0 ... 1.

    The reference is {"scale": [low, high]}: what the rewards of a whole conversation may add up to. Each turn is credited with its own
    reward. The text of the answer does not count. A session whose artifacts say `over: False` was broken off, and scores 0. A sum below the
    scale scores 0, since what a policy does must not cost it its own 0; a sum above the scale gives no score.

    >>> from rlvr.contracts import StepResult
    >>> task = Task(({"role": "user", "content": "Play."},), {"scale": [0, 1]}, id="t")
    >>> said = ({"role": "user", "content": "go on"},)
    >>> transcript = Transcript("", step_results=(StepResult(said, reward=0.3), StepResult(done=True, reward=0.5)))
    >>> verdict = SessionReward().verify_transcript(task, transcript)
    >>> verdict.score, [part.turn for part in verdict.step_rewards]
    (0.8, [0, 1])
    """

    version = "2"  # 2: a session that was broken off scores 0
    examples = (VerifierExample({"scale": [0, 1]}, correct=(), incorrect=("", "I won", '{"reward": 1.0}')),)

    @require_text_answers
    def verify(self, task: Task, answer: str) -> Verdict:
        """Verify an answer without a conversation: no session gave a reward, so it scores 0."""
        return self.verify_transcript(task, Transcript(answer))

    def verify_transcript(self, task: Task, transcript: Transcript) -> Verdict:
        """Add up the rewards of the step results."""
        scale = _parse_scale(task.reference)
        if scale is None:
            return Verdict(
                None, f'the reference is {task.reference!r:.80}; write {{"scale": [low, high]}}, such as [0, 1]', fault=Fault.TASK
            )
        (low, high), rewards = scale, [result.reward for result in transcript.step_results]
        if not rewards:
            return Verdict(0.0, "no turn reached the session: it was cut at a limit, it calls what is no tool here, or there was none")
        total, size = math.fsum(rewards), high - low
        if transcript.artifacts.get("over") is False:
            return Verdict(0.0, f"the episode was not over; the session gave {total:g} until then")
        if total > high + ROUNDING:
            why = (
                f"the session gave {total:g} in all, above its scale, {low:g} to {high:g}; make it wider: reward_range=({low:g}, {total:g})"
            )
            return Verdict(None, why, fault=Fault.INFRA)
        if total < low - ROUNDING:
            return Verdict(0.0, f"the session gave {total:g} in all, below its scale, {low:g} to {high:g}")
        score = min(1.0, max(0.0, (total - low) / size))
        parts = [StepReward(reward / size, turn=place) for place, reward in enumerate(rewards) if reward]
        if rest := score - math.fsum(part.amount for part in parts):
            parts.append(StepReward(rest, turn=len(rewards) - 1))  # where the scale does not begin at zero
        return Verdict(score, f"the session gave {total:g} of {high:g}", step_rewards=tuple(parts))


def _parse_scale(reference: Any) -> tuple[float, float] | None:
    """Parse the scale of a reference; None if it is not valid."""
    if not isinstance(reference, Mapping) or set(reference) != {"scale"}:
        return None
    scale = reference["scale"]
    if not isinstance(scale, list | tuple) or len(scale) != 2:
        return None
    if any(isinstance(end, bool) or not isinstance(end, int | float) or not math.isfinite(end) for end in scale):
        return None
    low, high = scale
    return (low, high) if low < high else None


make = SessionReward
