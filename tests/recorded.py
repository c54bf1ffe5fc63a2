"""A training run of so many episodes as the run folder records it, made up and not trained: for what reads such folders."""

from __future__ import annotations

import random
from pathlib import Path

from rlvr.episode import End, Episode
from rlvr.mdp.tokenizers import tokenizer_from
from rlvr.runs.runlog import RunLog
from rlvr.task import Fault, Verdict
from tests.tiny import tiny_run

ALPHABET = "0123456789+="
TESTS = {"tests": [{"name": "1", "ok": True, "why": ""}, {"name": "2", "ok": False, "why": "the output differs"}], "cpu_s": 0.2}


def recorded_run(folder: Path, *, steps: int, groups: int = 2, members: int = 4, longest: int = 40, seed: int = 0) -> Path:
    """Each step has `groups` of `members` episodes of at most `longest` characters. Equal seeds give equal runs, others other answers."""
    dice, tokenizer, log = random.Random(seed), tokenizer_from(f"chars:{ALPHABET}"), RunLog.create(folder, tiny_run())
    prompt = tokenizer.encode("3+4=")
    for step in range(1, steps + 1):
        asked = []
        for g in range(groups):
            task, group = f"sums/train/{(step * groups + g) % 997}", f"{step}:{g}"
            said = ["".join(dice.choices(ALPHABET, k=dice.randint(1, longest))) for _ in range(members)]
            asked.append([_episode(dice, task, group, prompt, text, tokenizer.encode(text), step) for text in said])
        reward = sum(e.reward for group_ in asked for e in group_) / (groups * members)
        row = {
            "step": step,
            "reward": reward,
            "reward_std": 0.4,
            "kl": 0.001 * step,
            "entropy": 2 - step / steps,
            "loss": dice.gauss(0, 0.01),
        }
        log.metrics(
            row | {"completions/mean_length": longest / 2}, {"step": step, "step_time": 1.0, "time/sample": 0.6, "time/update": 0.3}
        )
        log.episodes(step, asked, [[_learned(dice, e) for e in group_] for group_ in asked])
    log.close()
    return folder


def _episode(dice: random.Random, task: str, group: str, prompt: list[int], text: str, ids: list[int], step: int) -> Episode:
    verdict = dice.choice(
        [
            Verdict(1.0, "7 equals 7"),
            Verdict(0.0, f"{text[:8]} is not 7"),
            Verdict(0.5, "1 of 2 tests passed", parts={"tests": 0.5}, detail=TESTS),
            Verdict(None, "the engine does not answer", fault=Fault.INFRA),
        ]
    )
    given, chosen = len(prompt), len(ids)
    return Episode(
        task, group, [*prompt, *ids], [False] * given + [True] * chosen, [0.0] * given + [-dice.expovariate(1.0) for _ in ids],
        [0.0] * (given + chosen - 1) + [verdict.score or 0.0], dice.choice([End.TERMINATED, End.TERMINATED, End.TRUNCATED]),
        policy_version=step, verdict=verdict, text=text, meta={"split": "train"},
    )  # fmt: skip


def _learned(dice: random.Random, episode: Episode) -> tuple[list[float], list[float] | None]:
    if not episode.scored:
        return [0.0] * len(episode.tokens), None
    advantage = dice.gauss(0, 1)
    return [advantage] * len(episode.tokens), [dice.gauss(0, 0.1) for _ in episode.tokens]
