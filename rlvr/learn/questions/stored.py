"""Offline data: train on the episodes of an earlier run, or on gold solutions, instead of sampling.

Nothing is sampled, so a run on stored episodes depends only on the files it reads, its seed and its configuration.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rlvr.config.config import RunConfig
from rlvr.episode import End, Episode
from rlvr.errors import ConfigError, NotFound, RlvrError
from rlvr.learn.questions.schedule import place_in
from rlvr.mdp.rules import TokenMDP
from rlvr.mdp.state import last_acted
from rlvr.runs.runlog import config_of, rows_of
from rlvr.task import Task, Verdict

PROMPTS_COMPARED = 20
"""The number of recorded prompts that are re-rendered, to check that both runs use the same tokens."""

OF_THE_EPISODE = (
    "step", "task_id", "group", "text", "reward", "advantage", "end", "turns", "policy_version", "verdict", "error", "tokens", "acted",
    "logprobs", "rewards",
)  # fmt: skip
"""The keys of a recorded line that are fields of the episode; the others are metadata."""

Group = list[Episode]


class Stored:
    """Recorded groups in an order that depends on the seed, repeated endlessly, reshuffled for each pass.

    >>> Stored([[right, wrong]], seed=0).take(first=0, count=4)        # doctest: +SKIP
    """

    def __init__(self, groups: Sequence[Group], *, seed: int, digest: str = "") -> None:
        self.all, self.seed, self.digest = list(groups), seed, digest
        """`digest` is the fingerprint of all recorded episodes; a resumed run checks that it has not changed."""

    def take(self, first: int, count: int) -> list[Group]:
        """Return the groups from a position on."""
        return [self.all[place_in(len(self.all), self.seed, "stored", position)] for position in range(first, first + count)]

    def tasks(self, mdp: TokenMDP) -> list[Task]:
        """Load the tasks of the groups."""
        return [mdp.environment.task(e.meta["split"], e.meta["index"]) for group in self.all for e in group[:1]]


def digest(groups: Sequence[Group]) -> str:
    """Compute a fingerprint of recorded groups, which changes with any token or reward.

    >>> digest([])[:8]
    'e3b0c442'
    """
    sums = hashlib.sha256()
    for group in groups:
        for e in group:
            sums.update(repr((e.group, e.task_id, e.tokens, e.acted, e.logprobs, e.rewards, e.end.value)).encode())
    return sums.hexdigest()


def unchanged(then: object, now: str, config: RunConfig) -> None:
    """Raise ConfigError if the episodes have changed since the run began."""
    if then is not None and then != now:
        run = config.data and config.data.run
        raise ConfigError(
            f"the episodes of {run} are not those that this run began with (fingerprint {str(then)[:12]} then, {now[:12]} now); "
            "restore episodes.jsonl, or start a new run with another --out"
        )


def stored_groups(config: RunConfig, mdp: TokenMDP) -> list[Group]:
    """Load the groups that a run recorded, and check them against this run's environment and tokenizer."""
    assert config.data is not None and config.data.run is not None
    folder = Path(config.data.run)
    their = config_of(folder)
    path = folder / "episodes.jsonl"
    if not path.is_file():
        raise NotFound(f"{folder} has no episodes.jsonl: it was run with log.episodes=false; run it again with log.episodes=true")
    groups: dict[tuple[int, str], Group] = {}
    for number, row in enumerate(rows_of(path), 1):
        try:
            episode = episode_of(row)
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError(f"{path}, line {number} is not an episode: {type(error).__name__}: {error}") from error
        groups.setdefault((int(row["step"]), episode.group), []).append(episode)
    found = [[e for e in group if e.scored and e.length and not e.aside] for group in groups.values()]
    found = [group for group in found if group]
    if not found:
        raise ConfigError(f"{folder} has no episode with a score yet; let it run longer, or name another run in data.run")
    for group in found[:PROMPTS_COMPARED]:
        if differs := foreign(group[0], mdp):
            ours, theirs = (c.tokenizer_name for c in (config, their))
            raise ConfigError(
                f"the episodes of {folder} do not fit this run: {differs}. They have the environment {their.env} and the tokenizer "
                f"{theirs!r}, this run has {config.env} and {ours!r}; remove env and tokenizer to use those of the episodes"
            )
    return found


def episode_of(row: Mapping[str, Any]) -> Episode:
    """Build an episode from a line of episodes.jsonl."""
    acted = [bool(flag) for flag in row["acted"]]
    rewards = [0.0] * len(acted)
    if "rewards" in row:
        rewards = [float(value) for value in row["rewards"]]
    elif row["reward"]:
        rewards[last_acted(acted)] = float(row["reward"])
    verdict = row["verdict"]
    return Episode(
        task_id=row["task_id"],
        group=row["group"],
        tokens=list(row["tokens"]),
        acted=acted,
        logprobs=[float(value) for value in row["logprobs"]],
        rewards=rewards,
        end=End(row["end"]),
        policy_version=int(row["policy_version"]),
        verdict=verdict and Verdict(**verdict),
        text=row["text"],
        turns=int(row["turns"]),
        error=row["error"],
        meta={key: value for key, value in row.items() if key not in OF_THE_EPISODE},
    )


def foreign(episode: Episode, mdp: TokenMDP) -> str:
    """Return why an episode does not match this environment and tokenizer; empty if it does."""
    split, index = episode.meta.get("split"), episode.meta.get("index")
    try:
        prompt = mdp.preview(mdp.environment.task(str(split), int(index or 0))).tokens
    except (RlvrError, KeyError, IndexError, ValueError) as error:
        return f"the task {episode.task_id!r} cannot be created here ({error})"
    if episode.tokens[: len(prompt)] != prompt:
        return f"the prompt of {episode.task_id!r} has other tokens there"
    said = [token for token, on in zip(episode.tokens, episode.acted, strict=True) if on]
    if max(episode.tokens) >= mdp.tokenizer.vocab_size or (episode.turns == 1 and mdp.tokenizer.decode(said) != episode.text):
        return f"the answer to {episode.task_id!r} decodes to another text here"
    return ""


def gold_groups(asked: Sequence[tuple[int, Task]], mdp: TokenMDP) -> Iterator[Group]:
    """Yield one group of one episode per task: the environment's gold solution."""
    for index, task in asked:
        tokens, acted = gold_row(mdp, task)
        rewards = [0.0] * len(tokens)
        rewards[last_acted(acted)] = 1.0
        end = End.TERMINATED if tokens[-1] in mdp.tokenizer.stop_ids else End.TRUNCATED
        verdict = Verdict(1.0, "the environment's own solution")
        meta = {"split": "train", "index": index}
        yield [Episode(task.id, task.id, tokens, acted, [0.0] * len(tokens), rewards, end, policy_version=-1, verdict=verdict, meta=meta)]


def gold_row(mdp: TokenMDP, task: Task) -> tuple[list[int], list[bool]]:
    """Tokenize a prompt and its gold solution; return tokens and action mask. A solution that is too long is truncated."""
    turns = mdp.calls.gold(task)
    if turns is None:
        raise ConfigError(
            f"{type(mdp.environment).__name__} has no gold solution for {task.id!r}, so there is nothing to imitate; "
            "remove warmstart, or name a run in data.run"
        )
    state = mdp.start(task)
    try:
        for text in turns:
            if state.end is None:
                mdp.extend(state, [*mdp.tokenizer.encode(text), mdp.tokenizer.eos_id][: mdp.budget(state)])
    finally:
        state.close()
    return state.tokens, state.acted
