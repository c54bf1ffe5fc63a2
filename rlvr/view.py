"""A run as one HTML file that needs nothing else: no server, no request, no library.

The page is `rlvr/viewer/`: a frame, a style and two scripts. What the run said is put in as base64, so no byte of it is ever read as
HTML or as a script, whatever a model wrote; the scripts show it with `textContent` alone, and the page forbids every other script.

    head       the curves and figures; small, so they are drawn before anything is unpacked
    columns    what the list of episodes shows and filters by, one array a column
    texts-N    500 episodes: answers, prompts, reasons; unpacked when one is opened, or searched
    tokens-N   the same episodes: token ids, who chose them, their log-probabilities
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby, islice
from pathlib import Path
from typing import Any

from rlvr.contracts import Tokenizer
from rlvr.errors import ConfigError, NotFound, RlvrError
from rlvr.export import last_rows
from rlvr.runlog import config_of, rows_of
from rlvr.samples import PLAN, REPORT, ROWS, plan_of, write_whole
from rlvr.tokenizers import tokenizer_from

PAGE = Path(__file__).with_name("viewer")
CHUNK = 500
"""Episodes that are unpacked together."""
POINTS = 1000
"""Points of a curve; a longer one is averaged down to so many."""
GLIMPSE = 100
"""Characters of an answer that the list shows."""
PANELS: Mapping[str, tuple[str, ...]] = {
    "reward": ("reward", "reward_std"),
    "accuracy": ("eval/accuracy", "accuracy"),
    "answer length, tokens": ("completions/mean_length", "completions/max_length"),
    "share cut off": ("completions/clipped_ratio",),
    "KL": ("kl", "mismatch_kl"),
    "entropy": ("entropy",),
    "clip share": ("clip_ratio/region_mean", "clip_ratio/low_mean", "clip_ratio/high_mean"),
    "loss": ("loss",),
    "gradient norm": ("grad_norm",),
    "groups without a spread": ("frac_reward_zero_std",),
    "step time by phase, seconds": ("step_time", "time/sample", "time/verify_waited", "time/update"),
}
"""The curves of a training run: title, and which numbers of the logs. One without any number is not shown."""
DECIMALS = 100
"""Log-probabilities are kept to two places: enough for a colour."""


@dataclass(frozen=True, slots=True)
class Written:
    """What was made of a run.

    >>> Written(Path("runs/a/view.html"), episodes=1536, bytes=90_000).episodes
    1536
    """

    path: Path
    episodes: int
    bytes: int


@dataclass(slots=True)
class Coded:
    """A column of words that repeat: each word once, and which one each line has.

    >>> column = Coded()
    >>> for end in ("terminated", "truncated", "terminated"): column.append(end)
    >>> column.words, column.at
    ({'terminated': 0, 'truncated': 1}, [0, 1, 0])
    """

    words: dict[str, int] = field(default_factory=dict)
    at: list[int] = field(default_factory=list)

    def append(self, word: str) -> None:
        """One more line."""
        self.at.append(self.words.setdefault(word, len(self.words)))

    def plain(self) -> dict[str, Any]:
        """The column as JSON."""
        return {"words": list(self.words), "at": self.at}


def view(run: Path, out: Path | None = None) -> Written:
    """Write the page of a training run or an evaluation; where nothing is said, into its own folder."""
    out = out or run / "view.html"
    if (run / PLAN).is_file():
        head, rows, tokenizer = _evaluation(run), last_rows(run), _tokenizer(plan_of(run).policy.partition(":")[2])
    elif (run / "config.yaml").is_file():
        config = config_of(run)
        head, rows, tokenizer = _training(run), iter(_log(run, ROWS)), _tokenizer(config.tokenizer or config.model.path or "")
    else:
        raise NotFound(f"{run} is no run: it has neither config.yaml nor {PLAN}; name a folder that `rlvr train` or `rlvr eval` wrote")
    parts, count = _parts(rows, tokenizer)
    if not count and not head["panels"]:
        raise NotFound(f"{run} has nothing to show yet: no step and no episode is written down; look again a little later")
    head |= {"episodes": count, "chunk": CHUNK}
    text = _page({"head": base64.b64encode(json.dumps(head).encode()).decode(), **parts})
    try:
        write_whole(out, text)
    except OSError as error:
        raise ConfigError(f"{out} cannot be written: {error.strerror}; choose another --out") from error
    return Written(out, count, out.stat().st_size)


def _page(parts: Mapping[str, str]) -> str:
    """The frame with style, scripts and data in it. Its policy names our script by its digest: no other one runs, nothing is fetched."""
    style, script = ("".join((PAGE / name).read_text("utf-8") for name in names) for names in (["page.css"], ["curves.js", "page.js"]))
    policy = f"default-src 'none'; script-src '{_digest(script)}'; style-src '{_digest(style)}'; base-uri 'none'; form-action 'none'"
    data = "\n".join(f'<script type="text/plain" id="{name}">{text}</script>' for name, text in parts.items() if name != "head")
    first = f'<script type="text/plain" id="head">{parts["head"]}</script>'
    page = (PAGE / "page.html").read_text("utf-8")
    for mark, text in (("POLICY", policy), ("STYLE", style), ("HEAD", first), ("SCRIPT", script), ("DATA", data)):
        before, _, after = page.partition(f"<!--{mark}-->")
        page = before + text + after
    return page


def _digest(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def packed(data: Any) -> str:
    """Plain data as the page unpacks it: JSON, gzip, base64. Equal data, equal bytes."""
    text = json.dumps(data, separators=(",", ":"))  # ASCII: half a surrogate pair in an answer stays what it was
    return base64.b64encode(gzip.compress(text.encode(), compresslevel=6, mtime=0)).decode()


def _parts(rows: Iterator[dict[str, Any]], tokenizer: Tokenizer | None) -> tuple[dict[str, str], int]:
    """The columns, the texts and the tokens of all episodes, in one pass."""
    parts: dict[str, str] = {"columns": ""}
    numbers: dict[str, list[Any]] = {name: [] for name in ("step", "score", "advantage", "tokens", "glimpse")}
    words = {name: Coded() for name in ("task", "env", "group", "fault", "end", "reason")}
    seen: set[int] = set()
    count = fits = 0
    try:
        for at, chunk in enumerate(iter(lambda: list(islice(rows, CHUNK)), [])):
            for row in chunk:
                _line(row, numbers, words)
            parts[f"texts-{at}"] = packed([_texts(row) for row in chunk])
            parts[f"tokens-{at}"] = packed([_tokens(row) for row in chunk])
            seen.update(token for row in chunk for token in row["tokens"])
            fits += sum(_fits(row, tokenizer) for row in chunk) if tokenizer else 0
            count += len(chunk)
    except (KeyError, TypeError, AttributeError) as error:
        raise ConfigError(
            f"{ROWS}: an episode after the first {count} is not what rlvr writes ({type(error).__name__}: {error}); was the file changed?"
        ) from error
    told = tokenizer if fits > count / 2 else None
    vocabulary = {token: _piece(told, token) for token in sorted(seen)} if told else {}
    parts["columns"] = packed(numbers | {name: column.plain() for name, column in words.items()} | {"vocabulary": vocabulary})
    return parts, count


def _line(row: Mapping[str, Any], numbers: Mapping[str, list[Any]], words: Mapping[str, Coded]) -> None:
    verdict = row["verdict"] or {}
    numbers["step"].append(row["step"])
    numbers["score"].append(verdict.get("score"))
    numbers["advantage"].append(round(row["advantage"], 4))
    numbers["tokens"].append(sum(row["acted"]))
    numbers["glimpse"].append(" ".join(row["text"][: 2 * GLIMPSE].split())[:GLIMPSE])
    env = str(row.get("env", ""))
    words["task"].append(str(row["task_id"]))
    words["env"].append(env)
    words["group"].append(f"{env} {row['group']}".strip())
    words["fault"].append(verdict.get("fault", "none" if verdict else "no verdict"))
    words["end"].append(str(row.get("finish", row["end"])))
    words["reason"].append((row["error"] or verdict.get("reason", ""))[: 2 * GLIMPSE])


def _texts(row: Mapping[str, Any]) -> dict[str, Any]:
    """What is read: everything that is there of the answer, the prompt and the judgement."""
    verdict = row["verdict"] or {}
    found = {name: row.get(name) for name in ("text", "prompt", "reference", "error", "reward", "turns", "policy_version")}
    found |= {name: verdict.get(name) for name in ("reason", "parts", "detail")}
    return {name: value for name, value in found.items() if value not in (None, "", {}, [])}


def _tokens(row: Mapping[str, Any]) -> list[list[int]]:
    """Token ids, lengths of the stretches that the policy did not and did choose by turns, and its log-probabilities."""
    runs = [(own, len(list(same))) for own, same in groupby(row["acted"], bool)]
    stretches = [0] * (bool(runs) and runs[0][0]) + [length for _, length in runs]
    chosen = [round(-DECIMALS * value) for value, own in zip(row["logprobs"], row["acted"], strict=False) if own]
    return [row["tokens"], stretches, chosen]


def _tokenizer(spec: str) -> Tokenizer | None:
    """Who can say what the ids mean; nobody where it is not at hand. Policies without a tokenizer of their own speak bytes."""
    try:
        return tokenizer_from(spec if spec.startswith(("chars", "bytes")) or Path(spec).is_dir() else "bytes")
    except (RlvrError, OSError):
        return None


def _fits(row: Mapping[str, Any], tokenizer: Tokenizer) -> bool:
    """Whether the ids of an answer read as its text: with the wrong tokenizer they do not."""
    if row["turns"] != 1:
        return True
    try:
        return tokenizer.decode([token for token, own in zip(row["tokens"], row["acted"], strict=False) if own]).strip() in row["text"]
    except (IndexError, OverflowError, ValueError):
        return False


def _piece(tokenizer: Tokenizer, token: int) -> str:
    try:
        return tokenizer.decode([token])
    except (IndexError, OverflowError, ValueError):
        return ""


def _training(run: Path) -> dict[str, Any]:
    """What stands at the top of a training run: its curves."""
    metrics, timings = (list(_log(run, name)) for name in ("metrics.jsonl", "timings.jsonl"))
    clock: dict[Any, dict[str, Any]] = {row.get("step"): row for row in timings}
    rows = [clock.get(row.get("step"), {}) | row for row in metrics]
    told = {name: _json(run / REPORT).get(name) for name in ("accuracy_before", "accuracy_after", "seconds")}
    facts = {"steps": len(rows), **{name: value for name, value in told.items() if value is not None}}
    settings = (run / "config.yaml").read_text("utf-8")
    return {"name": run.resolve().name, "kind": "training", "facts": facts, "panels": _panels(rows), "figures": None, "settings": settings}


def _panels(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The curves that have a number, each averaged down to what an eye can tell apart."""
    size = -(-len(rows) // POINTS) or 1
    blocks = [rows[at : at + size] for at in range(0, len(rows), size)]
    steps = [block[-1].get("step", 0) for block in blocks]
    panels = []
    for title, names in PANELS.items():
        lines = {name: [_mean(row.get(name) for row in block) for block in blocks] for name in names}
        lines = {name: line for name, line in lines.items() if any(value is not None for value in line)}
        if lines:
            panels.append({"title": title, "steps": steps, "lines": lines})
    return panels


def _mean(values: Iterable[Any]) -> float | None:
    found = [value for value in values if isinstance(value, int | float)]
    return sum(found) / len(found) if found else None


def _evaluation(run: Path) -> dict[str, Any]:
    """What stands at the top of an evaluation: a line of figures for each environment, once it has come to its end."""
    plan, report = plan_of(run), _json(run / REPORT)
    head = ["environment", "n", "avg", "95 %", "pass@n", "maj@n", "tasks", "samples", "scored", "unscored", "truncated", "failed"]
    lines = [_figures(name, env) for name, env in report.get("envs", {}).items()]
    facts = {"suite": plan.suite, "policy": plan.policy, "temperature": plan.temperature, "seed": plan.seed}
    figures = {"head": head, "lines": lines} if lines else None
    return {"name": run.resolve().name, "kind": "evaluation", "facts": facts, "panels": [], "figures": figures, "settings": plan.dump()}


def _figures(name: str, env: Mapping[str, Any]) -> list[str]:
    avg = None if env["refused"] else env["avg"]
    shown = [f"{avg['value']:.1%}", f"{100 * avg['low']:.1f} to {100 * avg['high']:.1f}"] if avg else ["refused", ""]
    for key in ("pass_at", "maj_at"):
        found = env["at"].get(key, {}).get(str(env["n"]))
        shown.append(f"{found['value']:.1%}" if found and avg else "")
    return [name, str(env["n"]), *shown, *(str(env[key]) for key in ("tasks", "samples", "scored", "unscored", "truncated", "failed"))]


def _log(run: Path, name: str) -> Iterable[dict[str, Any]]:
    """The rows of a log; none where the run has not begun it."""
    return rows_of(run / name) if (run / name).is_file() else ()


def _json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
