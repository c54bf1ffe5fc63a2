"""Offline data: train on the episodes of an earlier run, or on gold solutions, instead of sampling.

Nothing is sampled, so a run on stored episodes depends only on the files it reads, its seed and its configuration.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rlvr.config.config import RunConfig
from rlvr.episode import Episode, StopReason, segments_from_json
from rlvr.errors import ConfigError, NotFound, RlvrError
from rlvr.mdp.state import find_last_policy_token
from rlvr.mdp.token_mdp import TokenMDP
from rlvr.runs.run_log import load_run_config, read_jsonl
from rlvr.task import Task, Verdict
from rlvr.training.task_sampling.task_order import compute_shuffled_index

NUM_COMPARED_PROMPTS = 20
"""The number of recorded prompts that are re-rendered, to check that both runs use the same tokens."""

EPISODE_KEYS = (
    "step", "task_id", "group", "text", "reward", "advantage", "stop_reason", "turns", "policy_version", "verdict", "error", "tokens", "action_mask",
    "logprobs", "rewards", "segments",
)  # fmt: skip
"""The keys of a recorded line that are fields of the episode; the others are metadata."""

Group = list[Episode]


class OfflineDataset:
    """Recorded groups in an order that depends on the seed, repeated endlessly, reshuffled for each pass.

    >>> OfflineDataset([[]], seed=0).get_groups(first_position=0, num_groups=2)
    [[], []]
    """

    def __init__(self, groups: Sequence[Group], *, seed: int, digest: str = "") -> None:
        self.groups, self.seed, self.digest = list(groups), seed, digest
        """`digest` is the fingerprint of all recorded episodes; a resumed run checks that it has not changed."""

    def get_groups(self, first_position: int, num_groups: int) -> list[Group]:
        """Return the groups from a position on."""
        return [
            self.groups[compute_shuffled_index(len(self.groups), self.seed, "stored", position)]
            for position in range(first_position, first_position + num_groups)
        ]

    def load_tasks(self, mdp: TokenMDP) -> list[Task]:
        """Load the tasks of the groups."""
        return [mdp.environment.task(e.meta["split"], e.meta["index"]) for group in self.groups for e in group[:1]]


def compute_digest(groups: Sequence[Group]) -> str:
    """Compute a fingerprint of recorded groups, which changes with any token or reward.

    >>> compute_digest([])[:8]
    'e3b0c442'
    """
    sums = hashlib.sha256()
    for group in groups:
        for e in group:
            sums.update(repr((e.group, e.task_id, e.tokens, e.action_mask, e.logprobs, e.rewards, e.stop_reason.value)).encode())
    return sums.hexdigest()


def check_episodes_unchanged(recorded_digest: object, current_digest: str, config: RunConfig) -> None:
    """Raise ConfigError if the episodes have changed since the run began."""
    if recorded_digest is not None and recorded_digest != current_digest:
        run = config.data and config.data.run
        raise ConfigError(
            f"the episodes of {run} are not those that this run began with (fingerprint {str(recorded_digest)[:12]} then, {current_digest[:12]} now); "
            "restore episodes.jsonl, or start a new run with another --out"
        )


def load_recorded_groups(config: RunConfig, mdp: TokenMDP) -> list[Group]:
    """Load the groups that a run recorded, and check them against this run's environment and tokenizer."""
    assert config.data is not None and config.data.run is not None
    folder = Path(config.data.run)
    their = load_run_config(folder)
    path = folder / "episodes.jsonl"
    if not path.is_file():
        raise NotFound(f"{folder} has no episodes.jsonl: it was run with log.episodes=false; run it again with log.episodes=true")
    groups: dict[tuple[int, str], Group] = {}
    for number, row in enumerate(read_jsonl(path), 1):
        try:
            episode = episode_from_json(row)
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError(f"{path}, line {number} is not an episode: {type(error).__name__}: {error}") from error
        groups.setdefault((int(row["step"]), episode.group), []).append(episode)
    found = [[e for e in group if e.is_scored and e.num_policy_tokens and not e.is_auxiliary] for group in groups.values()]
    found = [group for group in found if group]
    if not found:
        raise ConfigError(f"{folder} has no episode with a score yet; let it run longer, or name another run in data.run")
    for group in found[:NUM_COMPARED_PROMPTS]:
        if differs := _find_incompatibility(group[0], mdp):
            ours, theirs = (c.tokenizer_name for c in (config, their))
            raise ConfigError(
                f"the episodes of {folder} do not fit this run: {differs}. They have the environment {their.env} and the tokenizer "
                f"{theirs!r}, this run has {config.env} and {ours!r}; remove env and tokenizer to use those of the episodes"
            )
    return found


def episode_from_json(row: Mapping[str, Any]) -> Episode:
    """Build an episode from a line of episodes.jsonl."""
    acted = [bool(flag) for flag in row["action_mask"]]
    rewards = [0.0] * len(acted)
    if "rewards" in row:
        rewards = [float(value) for value in row["rewards"]]
    elif row["reward"]:
        rewards[find_last_policy_token(acted)] = float(row["reward"])
    verdict = row["verdict"]
    return Episode(
        task_id=row["task_id"],
        group=row["group"],
        tokens=list(row["tokens"]),
        action_mask=acted,
        logprobs=[float(value) for value in row["logprobs"]],
        rewards=rewards,
        stop_reason=StopReason(row["stop_reason"]),
        policy_version=int(row["policy_version"]),
        verdict=verdict and Verdict(**verdict),
        text=row["text"],
        turns=int(row["turns"]),
        error=row["error"],
        meta={key: value for key, value in row.items() if key not in EPISODE_KEYS},
        segments=segments_from_json(row.get("segments", ())),
    )


def _find_incompatibility(episode: Episode, mdp: TokenMDP) -> str:
    """Return why an episode does not match this environment and tokenizer; empty if it does."""
    split, index = episode.meta.get("split"), episode.meta.get("index")
    try:
        prompt = mdp.preview_prompt(mdp.environment.task(str(split), int(index or 0))).tokens
    except (RlvrError, KeyError, IndexError, ValueError) as error:
        return f"the task {episode.task_id!r} cannot be created here ({error})"
    if not mdp.environment.traits.plays_agent and episode.tokens[: len(prompt)] != prompt:
        return f"the prompt of {episode.task_id!r} has other tokens there"
    said = [token for token, on in zip(episode.tokens, episode.action_mask, strict=True) if on]
    if max(episode.tokens) >= mdp.tokenizer.vocab_size or (episode.turns == 1 and mdp.tokenizer.decode(said) != episode.text):
        return f"the answer to {episode.task_id!r} decodes to another text here"
    return ""


def build_gold_groups(tasks: Sequence[tuple[int, Task]], mdp: TokenMDP) -> Iterator[Group]:
    """Yield one group of one episode per task: the environment's gold solution."""
    for index, task in tasks:
        tokens, acted = tokenize_gold(mdp, task)
        rewards = [0.0] * len(tokens)
        rewards[find_last_policy_token(acted)] = 1.0
        end = StopReason.TERMINATED if tokens[-1] in mdp.tokenizer.stop_ids else StopReason.TRUNCATED
        verdict = Verdict(1.0, "the environment's own solution")
        meta = {"split": "train", "index": index}
        yield [Episode(task.id, task.id, tokens, acted, [0.0] * len(tokens), rewards, end, policy_version=-1, verdict=verdict, meta=meta)]


def tokenize_gold(mdp: TokenMDP, task: Task) -> tuple[list[int], list[bool]]:
    """Tokenize a prompt and its gold solution; return tokens and action mask. A solution that is too long is truncated."""
    turns = mdp.tool_format.build_oracle_turns(task)
    if turns is None:
        raise ConfigError(
            f"{type(mdp.environment).__name__} has no gold solution for {task.id!r}, so there is nothing to imitate; "
            "remove sft_warmup, or name a run in data.run"
        )
    state = mdp.start_conversation(task)
    try:
        for text in turns:
            if state.stop_reason is None:
                mdp.step_turn(state, [*mdp.tokenizer.encode(text), mdp.tokenizer.eos_id][: mdp.count_remaining_turn_tokens(state)])
    finally:
        state.close()
    if state.segments:  # what the policy would have to write as its notes is not known
        raise ConfigError(
            f"the gold conversation of {task.id!r} does not fit the context, so that its history is rewritten, and it cannot be imitated; raise "
            "rollout.max_length or the environment's `at`"
        )
    return state.tokens, state.action_mask
