"""Adapter for lm-evaluation-harness: the functions that the YAML file of a task names.

custom_dataset     the rows
doc_to_text        the question
process_results    the score; NaN if the answer could not be verified, which `nanmean` leaves out and `unscored` counts
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rlvr.contracts import Environment
from rlvr.errors import MissingExtra
from rlvr.integrations.rows import find_task, make_rows, warn_if_untested
from rlvr.integrations.texts import FinalTextVerifier

TESTED_VERSION = "0.4.13"
warn_if_untested("lm_eval", TESTED_VERSION)


def doc_to_text(doc: Mapping[str, Any]) -> str:
    """Join the messages of the prompt to one text.

    >>> doc_to_text({"prompt": [{"role": "user", "content": "2+2="}]})
    '2+2='
    """
    return "\n\n".join(message["content"] for message in doc["prompt"])


def make_custom_dataset(environment: Environment, split: str = "test", count: int | None = None) -> Callable[..., dict[str, Any]]:
    """Make the function `custom_dataset`: the rows of one split."""

    def custom_dataset(**settings: Any) -> dict[str, Any]:
        try:
            from datasets import Dataset
        except ModuleNotFoundError as error:
            raise MissingExtra("datasets", "train") from error
        return {"test": Dataset.from_list(make_rows(environment, split, count))}

    return custom_dataset


def make_process_results(environment: Environment, *, call_timeout_s: float = 600.0) -> Callable[..., dict[str, float]]:
    """Make the function `process_results` for a single-turn environment."""
    scorer = FinalTextVerifier(environment, workers=1, call_timeout_s=call_timeout_s)

    def process_results(doc: Mapping[str, Any], results: Sequence[str]) -> dict[str, float]:
        verdict = scorer.verify_all([find_task(environment, doc)], [results[0]])[0]
        return {"score": math.nan if verdict.score is None else verdict.score, "unscored": float(not verdict.is_scored)}

    setattr(process_results, "close", scorer.close)  # noqa: B010 -- a function has no such attribute for type checkers
    return process_results
