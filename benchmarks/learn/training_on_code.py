"""Measure how much of verification is hidden behind sampling when programs are judged in the docker sandbox. A table, and one JSON line.

A sampler that returns the gold solution, one answer after the other at a given pace, replaces the model; the rest is the rollout
that `rlvr train` uses. `busy` is the time in which any program was being judged, `waited` the part of it after the last
answer, `hidden` the share of `busy` that sampling covered: the number that `timings.jsonl` calls `verify_hidden`.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from rlvr.contracts import Completion, Request, Sampler, SamplingParams
from rlvr.mdp.token_mdp import TokenMDP
from rlvr.mdp.tokenizers import load_tokenizer
from rlvr.registry.plugins import build
from rlvr.rollout.rollout import Rollout, RolloutRequest
from rlvr.samplers.scripted import ScriptedSampler


class Paced(ScriptedSampler):
    """Returns the gold solution, one answer every so many seconds."""

    def __init__(self, pace_s: float) -> None:
        super().__init__()
        self.pace_s = pace_s

    def stream(self, requests: Sequence[Request], sampling: SamplingParams) -> Iterator[tuple[int, Completion]]:
        """The answers, no faster than the pace."""
        for pair in super().stream(requests, sampling):
            time.sleep(self.pace_s)
            yield pair

    serve = Sampler.serve  # which calls `stream`


def measure(environment: Any, pace_s: float, count: int) -> dict[str, float]:
    """One collection of so many episodes."""
    tokenizer = load_tokenizer("bytes")
    sampler = Paced(pace_s)
    sampler.setup(environment, tokenizer)
    with Rollout(TokenMDP(environment, tokenizer), sampler=sampler) as rollout:
        draws = [RolloutRequest(environment.task("train", n), f"g{n}", n) for n in range(count)]
        episodes = rollout.collect(draws, SamplingParams(stop_ids=tokenizer.stop_ids))
    timing = rollout.timing
    row = {"sampling_s": timing.sampling, "busy_s": timing.busy, "waited_s": timing.waiting, "hidden": timing.hidden}
    return {"pace_ms": pace_s * 1000, "right": sum(e.reward == 1.0 for e in episodes), **{name: round(x, 3) for name, x in row.items()}}


def main() -> None:
    """Measure at several paces."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--count", type=int, default=128)
    count = arguments.parse_args().count
    with build("env", "code_contest", hidden=3) as environment:
        environment.ready()
        rows = [measure(environment, pace, count) for pace in (0.0, 0.02, 0.05, 0.1)]
    table = Table(*rows[0])
    for row in rows:
        table.add_row(*(str(value) for value in row.values()))
    Console(file=sys.stderr).print(table)
    print(json.dumps({"episodes": count, "paces": rows}))


if __name__ == "__main__":
    main()
