"""Pack the episodes of a run into separately compressed parts of its page, so that a page of many thousand episodes opens immediately.

columns    the columns of the episode list, one array each
texts-N    texts of 500 episodes: answers, prompts, conversations, reasons; decompressed when an episode is opened, or for a search
tokens-N   tokens of the same episodes: ids, which of them the policy sampled, log-probabilities, log-ratios, advantages
"""

from __future__ import annotations

import base64
import gzip
import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby, islice
from typing import Any

from rlvr.contracts import Tokenizer
from rlvr.errors import ConfigError
from rlvr.evaluation.samples import ROWS_FILE, count_tokens
from rlvr.mdp.tokenizers import SPECIALS
from rlvr.runs.conversation_stats import count_turns_and_calls
from rlvr.viewer.conversation_view import build_conversation_view
from rlvr.viewer.episode_curves import GroupAndComponentCurves

EPISODES_PER_CHUNK = 500
"""The number of episodes that are compressed together."""
PREVIEW_CHARS = 100
"""The number of characters of an answer in the list."""
NUMBER_COLUMNS = ("step", "sample", "score", "advantage", "tokens", "turns", "calls", "glimpse")
LOGPROB_SCALE, RATIO_SCALE = 100, 1000
"""Log-probabilities are rounded to two decimals, log-ratios and advantages to three: enough for a colour."""


@dataclass(slots=True)
class DictionaryColumn:
    """A dictionary-encoded column: each distinct word once, and for each row the index of its word.

    >>> column = DictionaryColumn()
    >>> for reason in ("terminated", "truncated", "terminated"):
    ...     column.append(reason)
    >>> column.words, column.word_indices
    ({'terminated': 0, 'truncated': 1}, [0, 1, 0])
    """

    words: dict[str, int] = field(default_factory=dict)
    word_indices: list[int] = field(default_factory=list)

    def append(self, word: str) -> None:
        """Add a row."""
        self.word_indices.append(self.words.setdefault(word, len(self.words)))

    def to_json(self) -> dict[str, Any]:
        """Return the column as JSON data."""
        return {"words": list(self.words), "at": self.word_indices}


class EpisodeColumns:
    """The columns of the page's list of episodes: one array of numbers or of words for each.

    >>> EpisodeColumns().count
    0
    """

    def __init__(self) -> None:
        self.count = 0
        self.numbers: dict[str, list[Any]] = {name: [] for name in NUMBER_COLUMNS}
        self.words = {name: DictionaryColumn() for name in ("task", "env", "group", "fault", "end", "reason")}
        self._group_sizes: Counter[str] = Counter()
        self._same_name_groups: dict[tuple[str, int, str], dict[str, int]] = {}
        """Numbers the groups of one step that have the same task name."""

    def add_episode(self, row: Mapping[str, Any]) -> None:
        """Add an episode."""
        verdict, env = row["verdict"] or {}, str(row.get("env", ""))
        group = f"{env} {row['group']}".strip()
        alike = self._same_name_groups.setdefault((env, row["step"], str(row["task_id"])), {})
        nth = alike.setdefault(group, len(alike))
        sample = row.get("sample", self._group_sizes[group])
        numbers = {"step": row["step"], "sample": f"{sample}.{nth}" if nth else sample, "score": verdict.get("score")}
        numbers |= {"advantage": round(row["advantage"], 4), "tokens": count_tokens(row)[1]}
        counts = count_turns_and_calls(row["turns"], row.get("session"))
        numbers |= {"turns": counts.turns, "calls": counts.calls}
        numbers |= {"glimpse": " ".join(row["text"][: 2 * PREVIEW_CHARS].split())[:PREVIEW_CHARS]}
        words = {"task": str(row["task_id"]), "env": env, "group": group, "end": str(row.get("finish", row["stop_reason"]))}
        words |= {"fault": verdict.get("fault", "none" if verdict else "no verdict")}
        words |= {"reason": (row["error"] or verdict.get("reason", ""))[: 2 * PREVIEW_CHARS]}
        for name, value in numbers.items():
            self.numbers[name].append(value)
        for name, word in words.items():
            self.words[name].append(word)
        self._group_sizes[group] += 1
        self.count += 1

    def to_json(self) -> dict[str, Any]:
        """Return all columns as JSON data."""
        return self.numbers | {name: column.to_json() for name, column in self.words.items()}


@dataclass(frozen=True, slots=True)
class PackedEpisodes:
    """The episodes of a run as compressed parts of its page, with the number of episodes and the curves computed from them.

    >>> PackedEpisodes({"columns": "H4sI..."}, count=0, panels=[]).count
    0
    """

    parts: dict[str, str]
    count: int
    panels: list[dict[str, Any]]
    """Curves computed from the episodes."""


def pack_episodes(rows: Iterator[dict[str, Any]], tokenizer: Tokenizer | None, prefix: str = "") -> PackedEpisodes:
    """Pack the columns, texts and tokens of all episodes in one pass."""
    columns, rates, parts = EpisodeColumns(), GroupAndComponentCurves(), {f"{prefix}columns": ""}
    seen: set[int] = set()
    fits = 0
    try:
        for at, chunk in enumerate(iter(lambda: list(islice(rows, EPISODES_PER_CHUNK)), [])):
            for row in chunk:
                columns.add_episode(row)
                rates.add_episode(row)
            parts[f"{prefix}texts-{at}"] = _compress_json([_collect_texts(row) for row in chunk])
            parts[f"{prefix}tokens-{at}"] = _compress_json([_collect_tokens(row) for row in chunk])
            seen.update(token for row in chunk for token in row["tokens"])
            fits += sum(_is_decodable(row, tokenizer) for row in chunk) if tokenizer else 0
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ConfigError(
            f"{ROWS_FILE}: an episode after the first {columns.count // EPISODES_PER_CHUNK * EPISODES_PER_CHUNK} does not have the format that rlvr writes "
            f"({type(error).__name__}: {error}); was the file changed?"
        ) from error
    told = tokenizer if fits > columns.count / 2 else None
    vocabulary = {token: _decode_token(told, token) for token in sorted(seen)} if told else {}
    names = {token: name for token in vocabulary if (name := get_control_token_name(told, token))}
    parts[f"{prefix}columns"] = _compress_json(columns.to_json() | {"vocabulary": vocabulary, "names": names})
    return PackedEpisodes(parts, columns.count, rates.build_panels())


def dump_browser_safe_json(data: Any) -> str:
    """Write data as JSON that a browser can read: a number that is not finite is null, and a half of a character is an escape.

    >>> dump_browser_safe_json({"reward": [float("nan"), 1.0]})
    '{"reward":[null,1.0]}'
    """
    try:
        return json.dumps(data, separators=(",", ":"), allow_nan=False)
    except ValueError:
        return json.dumps(_drop_nonfinite(data), separators=(",", ":"), allow_nan=False)


def _drop_nonfinite(data: Any) -> Any:
    if isinstance(data, Mapping):
        return {key: _drop_nonfinite(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [_drop_nonfinite(value) for value in data]
    return None if isinstance(data, float) and not math.isfinite(data) else data


def _compress_json(data: Any) -> str:
    """Encode plain data as gzipped JSON in base64. Equal data gives equal bytes."""
    text = dump_browser_safe_json(data)
    return base64.b64encode(gzip.compress(text.encode(), compresslevel=6, mtime=0)).decode()


def _collect_texts(row: Mapping[str, Any]) -> dict[str, Any]:
    """Collect the texts of an episode: the available fields of the answer, the prompt and the verdict."""
    verdict = row["verdict"] or {}
    found = {name: row.get(name) for name in ("text", "prompt", "reference", "reasoning", "error", "reward", "turns", "policy_version")}
    found |= {name: verdict.get(name) for name in ("reason", "components", "detail")}
    found["talk"] = build_conversation_view(row.get("session") or {})
    return {name: value for name, value in found.items() if value not in (None, "", {}, [])}


def _collect_tokens(row: Mapping[str, Any]) -> list[list[int] | None]:
    """Collect the token ids, the alternating run lengths of context and sampled tokens, and the numbers of each sampled token."""
    runs = [(own, len(list(same))) for own, same in groupby(row["action_mask"], bool)]
    stretches = [0] * (bool(runs) and runs[0][0]) + [length for _, length in runs]
    known = (("logprobs", -LOGPROB_SCALE), ("log_ratio", RATIO_SCALE), ("advantages", RATIO_SCALE))
    return [row["tokens"], stretches, *(_scale_action_values(row.get(name), row["action_mask"], scale) for name, scale in known)]


def _scale_action_values(values: Sequence[float] | None, acted: Sequence[int], scale: int) -> list[int] | None:
    return None if values is None else [round(scale * value) for value, own in zip(values, acted, strict=False) if own]


def _is_decodable(row: Mapping[str, Any], tokenizer: Tokenizer) -> bool:
    """Whether the token ids of an answer decode to its text; they do not with a wrong tokenizer."""
    if row["turns"] != 1:
        return True
    try:
        return (
            tokenizer.decode([token for token, own in zip(row["tokens"], row["action_mask"], strict=False) if own]).strip() in row["text"]
        )
    except (IndexError, OverflowError, ValueError):
        return False


def _decode_token(tokenizer: Tokenizer, token: int) -> str:
    try:
        return tokenizer.decode([token])
    except (IndexError, OverflowError, ValueError):
        return ""


def get_control_token_name(tokenizer: Tokenizer | None, token: int) -> str:
    """Return the name of a control token, such as `<eos>`, which decodes to no text; empty for any other token."""
    inner = getattr(tokenizer, "tokenizer", None)  # a Hugging Face tokenizer
    if inner is None:
        return SPECIALS[token] if token < len(SPECIALS) else ""
    added = inner.added_tokens_decoder.get(token)
    return str(added.content) if added is not None and added.special else ""
