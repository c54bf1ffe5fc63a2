"""Episodes as columns against pickles: bytes, seconds and memory.

    python benchmarks/scale/columns.py [--tokens 8000000] [--length 4000] [--text] [--repeat 3]

One JSON line for each way: bytes and microseconds a token to write and to read, and the most memory that reading took beyond the bytes
(in another process each). `columns` is the whole way from episodes to bytes and back; `arrays` is the part of a process that passes
arrays on: from arrays to bytes, and back to arrays. Bar: at most 8.5 bytes a token; `arrays` at most 0.03 us a token in both directions
together; `columns` at most 1.2 times as long as pickle, since most of both is making a Python object of each number. `--text` adds the
text of the answers, four characters a token.
"""

from __future__ import annotations

import argparse
import json
import pickle
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rlvr.episode import Episode, StopReason
from rlvr.rollout.episode_encoding import EncodedEpisodes, decode_episodes, encode_episodes
from rlvr.task import Verdict


def made(tokens: int, length: int, *, text: bool) -> list[list[Episode]]:
    """Groups of eight answers with random tokens; log-probabilities as float32, as samplers give them."""
    draw = random.Random(0)

    def episode(number: int) -> Episode:
        prompt = 100
        answer = length - prompt
        ids = [draw.randrange(150_000) for _ in range(length)]
        logprobs = [0.0] * prompt + [-draw.randrange(1 << 20) / (1 << 16) for _ in range(answer)]
        rewards = [0.0] * (length - 1) + [1.0]
        acted = [False] * prompt + [True] * answer
        meta = {"split": "train", "index": number, "reference": "42", "finish": "terminated"}
        said = "abcd" * answer if text else ""
        return Episode(
            f"t/train/{number}",
            f"1:{number}",
            ids,
            acted,
            logprobs,
            rewards,
            StopReason.TERMINATED,
            3,
            Verdict(1.0, "42 equals 42"),
            said,
            meta=meta,
        )

    return [[episode(group) for _ in range(8)] for group in range(max(1, tokens // length // 8))]


WRITE: dict[str, Callable[[Any], bytes]] = {
    "pickle": pickle.dumps,
    "columns": lambda groups: encode_episodes(groups).to_bytes(),
    "arrays": lambda columns: columns.to_bytes(),
}
READ: dict[str, Callable[[bytes], Any]] = {
    "pickle": pickle.loads,
    "columns": lambda data: decode_episodes(EncodedEpisodes.from_bytes(data)),
    "arrays": EncodedEpisodes.from_bytes,
}


def timed(work: Callable[[], Any], repeat: int) -> tuple[float, Any]:
    """The fastest of some runs, and its result."""
    best, found = float("inf"), None
    for _ in range(repeat):
        found = None
        began = time.perf_counter()
        found = work()
        best = min(best, time.perf_counter() - began)
    return best, found


def peak() -> float:
    """The most memory of this process so far, in MB. `ru_maxrss` would be that of the process that started it."""
    status = Path("/proc/self/status").read_text("utf-8")
    return int(status.split("VmHWM:")[1].split()[0]) / 1024


def measured(way: str, args: argparse.Namespace) -> dict[str, Any]:
    groups = made(args.tokens, args.length, text=args.text)
    tokens = sum(len(episode.tokens) for group in groups for episode in group)
    value = encode_episodes(groups) if way == "arrays" else groups
    write_s, data = timed(lambda: WRITE[way](value), args.repeat)
    read_s, back = timed(lambda: READ[way](data), args.repeat)
    same = decode_episodes(back) == groups if way == "arrays" else back == groups
    us = 1e6 / tokens
    return {
        "way": way, "tokens": tokens, "bytes_a_token": round(len(data) / tokens, 2), "write_us": round(write_s * us, 4),
        "read_us": round(read_s * us, 4), "same": same, "read_mb": reading(way, data),
    }  # fmt: skip


def reading(way: str, data: bytes) -> float:
    """The memory that reading takes, measured in a process that does nothing else."""
    with tempfile.NamedTemporaryFile() as file:
        Path(file.name).write_bytes(data)
        asked = [sys.executable, __file__, "--read", way]
        done = subprocess.run(asked, input=file.name, text=True, capture_output=True, timeout=600, check=True)
    return float(done.stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=8_000_000)
    parser.add_argument("--length", type=int, default=4_000)
    parser.add_argument("--text", action="store_true")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--read", choices=READ, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.read:
        data = Path(sys.stdin.readline().strip()).read_bytes()
        before = peak()
        kept = READ[args.read](data)
        print(round(peak() - before, 1), flush=True)
        del kept
        return
    rows = {way: measured(way, args) for way in WRITE}
    for row in rows.values():
        print(json.dumps(row))
    both = {way: row["write_us"] + row["read_us"] for way, row in rows.items()}
    small = args.text or rows["columns"]["bytes_a_token"] <= 8.5
    passed = small and both["arrays"] <= 0.03 and both["columns"] < 1.2 * both["pickle"] and all(row["same"] for row in rows.values())
    print(
        json.dumps(
            {"passed": passed, "pickle_over_columns_bytes": round(rows["pickle"]["bytes_a_token"] / rows["columns"]["bytes_a_token"], 2)}
        )
    )
    sys.exit(not passed)


if __name__ == "__main__":
    main()
