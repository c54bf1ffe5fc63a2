"""Run one suite over the worlds of five other projects with several policies: one table with intervals, and one page with every answer.

    python benchmarks/envs/zoo.py --out FOLDER [--tasks 4] [--policies gold,noop,random,hf] [--set textworld.python=VENV/bin/python]

It calls `rlvr eval zoo` as a user would. `hf` is a model of a few thousand random weights, made here, with a byte-level tokenizer and a
chat template with tools; it answers nothing right, and shows that each world can be sampled with a model. At most 64 tokens a conversation
are sampled from it. The right answers must score 1, the others 0, and no sample may be without a score.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

TEMPLATE = (
    "{% if tools %}<|im_start|>system\nCall a function with <tool_call>{'name': ..., 'arguments': ...}</tool_call>, in JSON.\n"
    "{% for t in tools %}{{ t | tojson }}\n{% endfor %}<|im_end|>\n{% endif %}"
    "{% for m in messages %}{% if m.role == 'tool' %}<|im_start|>user\n<tool_response>\n{{ m.content }}\n</tool_response><|im_end|>\n"
    "{% else %}<|im_start|>{{ m.role }}\n{{ m.content }}{% for c in m.tool_calls or [] %}\n<tool_call>\n{{ c.function | tojson }}\n"
    "</tool_call>{% endfor %}<|im_end|>\n{% endif %}{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SCRIPTS = {"gold": 1.0, "noop": 0.0, "random": 0.0}
"""What each scripted policy must score."""
FEW = ("--max-new-tokens", "64", "--max-turn-tokens", "16")


def main() -> int:
    """Run it; 1 if a score is not the expected one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--suite", default="zoo")
    parser.add_argument("--tasks", type=int, default=4)
    parser.add_argument("--policies", default="gold,noop,random,hf")
    parser.add_argument("--set", action="append", default=[], dest="pairs", help="a setting of an environment, as for rlvr eval")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    rows: dict[str, dict[str, Any]] = {}
    for policy in given.policies.split(","):
        began = time.perf_counter()
        rows[policy] = evaluated(given, policy)
        print(json.dumps({"policy": policy, "seconds": round(time.perf_counter() - began, 1), **summary(rows[policy])}), flush=True)
    print(table(rows))
    first, *others = rows
    against = ("--against", str(given.out / others[0])) if others else ()
    page = given.out / "zoo.html"
    ran("view", str(given.out / first), *against, "--out", str(page))
    print(json.dumps({"page": str(page), "bytes": page.stat().st_size}))
    return int(any(not right(policy, row) for policy, row in rows.items()))


def evaluated(given: argparse.Namespace, policy: str) -> dict[str, Any]:
    """The figures of one policy, as `rlvr eval --json` prints them."""
    named, few = (f"hf:{model(given.out / 'model')}", FEW) if policy == "hf" else (f"scripted:{policy}", ())
    pairs = [part for pair in given.pairs for part in ("--set", pair)]
    where = ("--out", str(given.out / policy), "--tasks", str(given.tasks))
    printed = ran("eval", given.suite, "--policy", named, *where, *few, *pairs, "--json")
    found: dict[str, Any] = json.loads(printed.splitlines()[-1])
    return found


def ran(*arguments: str) -> str:
    """What a command prints; an error ends the script with its message."""
    done = subprocess.run([sys.executable, "-m", "rlvr", *arguments], stdout=subprocess.PIPE, text=True, timeout=3600)
    if done.returncode not in (0, 1) or not done.stdout.strip():
        raise SystemExit(f"rlvr {' '.join(arguments)} ended with {done.returncode}")
    return done.stdout


def summary(report: dict[str, Any]) -> dict[str, Any]:
    """What is compared: the scores, and what has none."""
    envs = report["envs"].items()
    return {"scores": {name: env["avg"] for name, env in envs}, "unscored": sum(env["unscored"] for _, env in envs)}


def right(policy: str, report: dict[str, Any]) -> bool:
    """Whether the scores are those that this policy must get."""
    found = summary(report)
    return not found["unscored"] and all(score == SCRIPTS.get(policy, 0.0) for score in found["scores"].values())


def table(rows: dict[str, dict[str, Any]]) -> str:
    """Worlds by policies, as Markdown: the mean score and its 95 % interval."""
    names = list(next(iter(rows.values()))["envs"])
    lines = ["| world | tasks | " + " | ".join(rows) + " |", "|---|---|" + "---|" * len(rows)]
    for name in names:
        envs = [report["envs"][name] for report in rows.values()]
        lines.append(f"| {name} | {envs[0]['tasks']} | " + " | ".join(map(cell, envs)) + " |")
    means = [report.get("mean") for report in rows.values()]
    lines.append("| mean | | " + " | ".join(shown(one["avg"], one["ci95"]) if one else "-" for one in means) + " |")
    return "\n".join(lines)


def cell(env: dict[str, Any]) -> str:
    """One figure with its interval."""
    return shown(env["avg"], env["ci95"]) if env["ci95"] else f"none ({env['unscored']} unscored)"


def shown(value: float, interval: list[float]) -> str:
    """A share and its interval in percent.

    >>> shown(0.5, [0.25, 0.75])
    '50 (25 to 75)'
    """
    return f"{100 * value:.0f} ({100 * interval[0]:.0f} to {100 * interval[1]:.0f})"


def model(folder: Path) -> Path:
    """A small model with random weights, for any text: made once."""
    if not (folder / "config.json").exists():
        import torch
        from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
        from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

        made: Any = Tokenizer(models.BPE())
        made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
        specials = ["<|im_end|>", "<|im_start|>"]
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        trainer = trainers.BpeTrainer(vocab_size=320, special_tokens=specials, initial_alphabet=alphabet, show_progress=False)
        made.train_from_iterator(["What is the answer? The answer is one of these words and numbers."], trainer)
        made.add_tokens(
            [AddedToken(text, normalized=False) for text in ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")]
        )
        fast = PreTrainedTokenizerFast(tokenizer_object=made, eos_token=specials[0])
        fast.chat_template = TEMPLATE
        torch.manual_seed(0)
        shape = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1}
        config = LlamaConfig(vocab_size=len(fast), max_position_embeddings=131_072, eos_token_id=fast.eos_token_id, **shape)
        LlamaForCausalLM(config).save_pretrained(folder)
        fast.save_pretrained(folder)
    return folder


if __name__ == "__main__":
    sys.exit(main())
