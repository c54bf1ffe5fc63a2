"""Replay: step recorded episodes again through `TokenEnv.step`, and compare them exactly.

Rollouts and `TokenEnv` share one implementation, so they should never differ; replay verifies it. Only the policy's tokens are stepped.
The replies of the environment must be the same again; stateful sessions are replayed from the record.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from pathlib import Path
from typing import Any

from rlvr.episode import StopReason
from rlvr.errors import ConfigError
from rlvr.mdp.env import TokenEnv
from rlvr.mdp.sessions import ReplayedSession
from rlvr.runs.plugin_record import warn_about_plugin_changes
from rlvr.runs.run_log import load_run_config, read_jsonl

REQUIRED_KEYS = ("split", "index", "tokens", "action_mask", "stop_reason", "reward")


@dataclass(slots=True)
class ReplayReport:
    """The result of a replay.

    >>> ReplayReport(episodes=10_000, mismatches=0).to_dict()
    {'episodes': 10000, 'mismatches': 0, 'failed': 0, 'details': []}
    """

    episodes: int = 0
    """The number of episodes that were stepped."""
    mismatches: int = 0
    failed: int = 0
    """Episodes recorded as failed. They are not stepped and not counted in `episodes`."""
    num_recorded_sessions: int = 0
    """The number of episodes whose stateful sessions were replayed from the record."""
    details: list[str] = field(default_factory=list)
    """One line for each of the first mismatches."""

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain JSON."""
        recorded = {"recorded": self.num_recorded_sessions} if self.num_recorded_sessions else {}
        return {"episodes": self.episodes, "mismatches": self.mismatches, "failed": self.failed, **recorded, "details": list(self.details)}


def replay_recorded_episodes(run: str | Path, *, max_details: int = 20) -> ReplayReport:
    """Replay every recorded episode of a run, in the environment of its configuration.

    >>> replay_recorded_episodes(Path("runs/quickstart")).mismatches  # doctest: +SKIP
    0
    """
    run = Path(run)
    config = load_run_config(run)
    warn_about_plugin_changes(run)
    tokenizer = config.tokenizer_name
    assert tokenizer is not None, "RunConfig asks for one of the two"
    env = TokenEnv(env=config.env, tokenizer=tokenizer, obs="ids", **config.rollout.token_limits)
    try:
        return replay_rows(env, read_jsonl(run / "episodes.jsonl"), max_details=max_details)
    finally:
        env.close()


def replay_rows(env: TokenEnv, rows: Iterable[Mapping[str, Any]], *, max_details: int = 20) -> ReplayReport:
    """Replay recorded episodes, one row each, in `env`."""
    report = ReplayReport()
    for number, row in enumerate(rows, 1):
        missing = [key for key in REQUIRED_KEYS if key not in row]
        if missing:
            raise ConfigError(
                f"episode {number} has no {', '.join(map(repr, missing))}; to be replayed it needs {', '.join(REQUIRED_KEYS)}"
            )
        if row["stop_reason"] == StopReason.FAILED.value:
            report.failed += 1
            continue
        report.episodes += 1
        session = row.get("session") if env.mdp.has_sessions else None
        report.num_recorded_sessions += session is not None
        other = {"reference": row["reference"]} if row.get("canary") else {}
        timed = row.get("truncated") == "time"
        wrong = find_mismatch(env, **{key: row[key] for key in REQUIRED_KEYS}, session=session, ended_by_time=timed, **other)
        if wrong:
            report.mismatches += 1
            if len(report.details) < max_details:
                report.details.append(f"episode {number} ({row.get('task_id', '?')}): {wrong}")
    return report


def find_mismatch(
    env: TokenEnv,
    split: str,
    index: int,
    tokens: Sequence[int],
    action_mask: Sequence[bool],
    stop_reason: str,
    reward: float | None,
    session: Mapping[str, Any] | None = None,
    ended_by_time: bool = False,
    **task_overrides: Any,
) -> str:
    """Step an episode again and describe the first difference; empty if there is none. `session`: the session record to replay.

    `ended_by_time`: the episode ended by a timeout or as the last of its group, which replay cannot reproduce; then only the tokens are
    compared, not the end. `task_overrides` replaces fields of the task, for canary tasks.

    >>> find_mismatch(env, "train", 7, [1, 6, 14, 2, 0], [0, 0, 0, 0, 1], "terminated", 0.0)  # doctest: +SKIP
    ''
    """
    env.reset_to_task(
        replace(env.environment.task(split, index), **task_overrides), session=None if session is None else ReplayedSession(session)
    )
    assert env.state is not None
    prompt = env.state.tokens
    if list(tokens[: len(prompt)]) != prompt:
        return f"the prompt differs: {_describe_first_difference(prompt, tokens[: len(prompt)])}"
    chosen = [token for token, own in zip(tokens, action_mask, strict=True) if own]
    paid, last = 0.0, ""
    for k, token in enumerate(chosen):
        if env.state.stop_reason is not None:
            return f"stepping ended ({last}) after {k} of the policy's {len(chosen)} tokens"
        _, paid, _, _, info = env.step(token)
        last = info["stop_reason"]
        if not last and paid != 0.0:
            return f"token {k} of the policy has the reward {paid} before the end"
    if ended_by_time and env.state.stop_reason is None:
        same = env.state.tokens[: len(tokens)] == list(tokens) and env.state.action_mask[: len(action_mask)] == [
            bool(own) for own in action_mask
        ]
        return "" if same else f"the tokens differ: {_describe_first_difference(env.state.tokens[: len(tokens)], tokens)}"
    if env.state.stop_reason is None:
        return f"the episode continues after the policy's {len(chosen)} tokens, and was recorded as {stop_reason}"
    if env.state.tokens != list(tokens):
        return f"the tokens differ: {_describe_first_difference(env.state.tokens, tokens)}"
    if env.state.action_mask != [bool(own) for own in action_mask]:
        return f"the action mask differs: {_describe_first_difference(env.state.action_mask, [bool(own) for own in action_mask])}"
    if last != stop_reason:
        return f"stepping ended {last}, recorded {stop_reason}" + (
            f" ({env.verdict.reason})" if env.verdict is not None and not env.verdict.is_scored else ""
        )
    return "" if paid == (0.0 if reward is None else reward) else f"the reward is {paid!r}, recorded {reward!r}"


def _describe_first_difference(stepped: Sequence[Any], recorded: Sequence[Any]) -> str:
    i = next((i for i, (a, b) in enumerate(zip_longest(stepped, recorded)) if a != b), -1)
    here = [repr(values[i]) if i < len(values) else "nothing" for values in (stepped, recorded)]
    return f"at position {i} stepping gives {here[0]}, recorded is {here[1]}"
