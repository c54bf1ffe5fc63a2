"""Reward functions with known holes, in the signatures that people have: what an audit must find."""

from __future__ import annotations

import os
import re
import time
from typing import Any

CALLS = 0


def substring(answer: str, reference: str) -> float:
    return float(reference in answer)


def last_number(completions: list[str], ground_truth: list[str], **kwargs: Any) -> list[float]:
    """As TRL calls it."""
    return [float((re.findall(r"-?\d+", text) or [""])[-1] == gold) for text, gold in zip(completions, ground_truth, strict=True)]


def compute_score(data_source: str, solution_str: str, ground_truth: str, extra_info: Any = None) -> dict[str, float]:
    """As verl calls it; it stops at the first answer."""
    return {"score": float((re.findall(r"-?\d+", solution_str) or [""])[0] == ground_truth)}


def tolerant(answer: str, reference: str) -> bool:
    try:
        return abs(float(answer) - float(reference)) < 10
    except ValueError:
        return False


def strict(answer: str, reference: str) -> bool:
    return answer == reference and not answer.startswith("-")


def universal(answer: str, reference: str) -> float:
    return float(answer.strip() == reference or "score of 1" in answer)


def hanging(answer: str, reference: str) -> float:
    if answer.startswith("((("):
        time.sleep(60)
    return float(answer.strip() == reference)


def exiting(answer: str, reference: str) -> float:
    if not answer:
        os._exit(7)
    return float(answer.strip() == reference)


def moody(answer: str, reference: str) -> float:
    global CALLS
    CALLS += 1
    return float(hash(answer) % 2)


def noisy(answer: str, reference: str) -> float | None:
    print("some output of the user's", flush=True)
    return None if answer == "" else float(answer.strip() == reference)


def sound(answer: str, reference: str) -> float:
    return float(answer.strip() == reference)


def formed(answer: str, reference: str) -> float:
    """It pays a little for a tag, whatever is in it."""
    return float(answer.strip() == reference) or 0.3 * ("<answer>" in answer)


def generous(answer: str, reference: str) -> float:
    """It pays five for a right answer, and a bit for any text."""
    return 5.0 if answer.strip() == reference else 0.35


def evaluating(answer: str, reference: str) -> float:
    """It evaluates what a policy writes."""
    try:
        return float(eval(answer) == eval(reference))
    except Exception:
        return 0.0


def near(answer: str, reference: str) -> float:
    """A sound reward for measured numbers, with a small tolerance."""
    try:
        return float(abs(float(answer) - float(reference)) <= 1e-4 * abs(float(reference)))
    except ValueError:
        return 0.0


def dense(answer: str, reference: str) -> float:
    """It pays a part of the reward for a part of the answer."""
    text = answer.strip()
    return (
        1.0 if text == reference else 0.8 * (sum(a == b for a, b in zip(text, reference, strict=False)) / max(len(text), len(reference), 1))
    )


def sleeping(answer: str, reference: str) -> float:
    time.sleep(60)
    return 0.0
