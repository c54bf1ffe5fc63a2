"""Parts that need transformers and accelerate: updates, against TRL, sampling, repeated runs, hand-over of weights."""

from __future__ import annotations

import importlib
import json
import math
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from benchmarks._gpu.bench import Bench, Missing

GENERATIONS = 8
QWEN3: dict[str, Any] = {"num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151_936}
MODELS: dict[str, dict[str, Any]] = {
    "0.6b": {"hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28, "num_attention_heads": 16, **QWEN3},
    "4b": {"hidden_size": 2560, "intermediate_size": 9728, "num_hidden_layers": 36, "num_attention_heads": 32, **QWEN3},
    "tiny": {
        "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
        "head_dim": 32, "vocab_size": 512,
    },
}  # fmt: skip
"""The shapes of Qwen3-0.6B and Qwen3-4B, and one for a CPU; their weights are random."""


def preload() -> None:
    """Import what most parts need."""


def needed(*packages: str) -> None:
    """Skip a part whose packages are not there."""
    if gone := [name for name in packages if find_spec(name) is None]:
        raise Missing(f"{', '.join(gone)} not installed")


def model_of(bench: Bench, size: str, dtype: torch.dtype = torch.float32) -> Any:
    """A new model on the device."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(0)
    shape = MODELS["tiny" if bench.tiny else size]
    named = ["Qwen3ForCausalLM"]  # as in the files of a model: vLLM chooses its own by this name
    config = Qwen3Config(**shape, max_position_embeddings=8192, tie_word_embeddings=True, dtype=dtype, architectures=named)
    with torch.device(bench.device):
        return Qwen3ForCausalLM(config).to(dtype)


@cache
def lengths_of_answers(count: int, median: int, longest: int) -> list[int]:
    """Log-normal lengths, as of answers that reason."""
    dice = random.Random(0)
    return [min(longest, max(1, round(dice.lognormvariate(math.log(median), 0.8)))) for _ in range(count)]


def groups_of(bench: Bench, prompts: int) -> list[list[Any]]:
    """One step's groups: prompts of 256 tokens, answers with a median of 1,000 tokens and a cap of 4,096."""
    from rlvr.episode import Episode, StopReason

    vocabulary, prompt = MODELS["tiny" if bench.tiny else "0.6b"]["vocab_size"], bench.pick(256, 8)
    lengths = lengths_of_answers(prompts * GENERATIONS, *bench.pick((1000, 4096), (8, 32)))
    dice, groups = random.Random(1), []
    for g in range(prompts):
        asked, members = [dice.randrange(vocabulary) for _ in range(prompt)], []
        for k, length in enumerate(lengths[g * GENERATIONS : (g + 1) * GENERATIONS]):
            said = [dice.randrange(vocabulary) for _ in range(length)]
            acted, paid = [False] * prompt + [True] * length, [0.0] * (prompt + length - 1) + [float(k % 2)]
            logprobs = [0.0] * prompt + [-math.log(vocabulary)] * length
            members.append(Episode(f"t{g}", f"g{g}", asked + said, acted, logprobs, paid, StopReason.TERMINATED))
        groups.append(members)
    return groups


def learner_of(bench: Bench, model: Any, *, precision: str, **settings: Any) -> Any:
    """A learner of GRPO."""
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState

    from rlvr.registry.plugins import build
    from rlvr.training.update.learner import Learner, OptimizationSettings

    AcceleratorState._reset_state(reset_partial_state=True)
    accelerator = Accelerator(cpu=bench.device.type == "cpu", mixed_precision=precision)
    optimization = OptimizationSettings(learning_rate=1e-6, **settings)
    return Learner(model, build("algorithm", "grpo"), optimization, accelerator=accelerator, total_steps=100)


def updates(
    bench: Bench, size: str, prompts: int, peak: float, *, precision: str, times: int = 2, compiled: bool = False, **settings: Any
) -> dict[str, Any]:
    """Tokens per second of whole updates, after one that is not counted."""
    model = model_of(bench, size)
    weights = sum(p.numel() for p in model.parameters())
    learner, groups = learner_of(bench, model, precision=precision, **settings), groups_of(bench, prompts)
    tokens = sum(len(episode.tokens) for group in groups for episode in group)
    uncompiled = "not asked for"
    if compiled:
        from rlvr.training.components import try_compile_policy

        uncompiled = try_compile_policy(learner)
    found = []
    for _ in range(1 + times):
        began = bench.settled()
        metrics = learner.update(groups)
        found.append(bench.settled() - began)
    seconds = statistics.median(found[1:])
    return {
        "weights": weights, "tokens": tokens, "computed": metrics["tokens/computed_with_padding"], "peak_gb": bench.peak_gb(),
        "first_s": round(found[0], 2), "seconds": round(seconds, 3), "tokens_per_s": round(tokens / seconds),
        "share_of_peak": round(6 * weights * tokens / seconds / peak, 4), "packed": not learner.padding_reason,
        "masked": learner.packing.no_kernel_reason, "uncompiled": uncompiled, "loss": metrics["loss"], "grad_norm": metrics["grad_norm"],
    }  # fmt: skip


def update(bench: Bench) -> None:
    """Updates at the shape of Qwen3-0.6B: precision, tokens of a micro-batch, checkpointing, compiled layers."""
    needed("transformers", "accelerate")
    peak, prompts = bench.product_per_s(bench.half), bench.pick(24, 1)
    small = bench.pick(16_384, 64)
    bf16: dict[str, Any] = {"precision": "bf16", "max_tokens_per_microbatch": small}
    cases: dict[str, dict[str, Any]] = {"bf16": bf16}
    if not bench.tiny:  # on a CPU the compiler takes longer than all the rest
        cases["bf16, compiled layers"] = bf16 | {"compiled": True}
    cases["bf16, checkpointing, 4 times the tokens"] = bf16 | {"max_tokens_per_microbatch": 4 * small, "gradient_checkpointing": True}
    cases["bf16, twice the tokens"] = bf16 | {"max_tokens_per_microbatch": 2 * small}
    cases["float32"] = {"precision": "no", "max_tokens_per_microbatch": small, "times": 1}
    for name, settings in cases.items():
        bench.case(name, partial(updates, bench, "0.6b", prompts, peak, **settings))


def gradients(bench: Bench) -> None:
    """The gradient of one whole update: packed rows with kernels and shared prompts, against padded rows in float32."""
    needed("transformers", "accelerate")
    from rlvr.training.components import try_compile_policy

    groups, small = groups_of(bench, bench.pick(2, 1)), bench.pick(16_384, 64)
    truth: dict[str, torch.Tensor] = {}

    def gradient(precision: str, padded: bool, compiled: bool = False) -> tuple[dict[str, torch.Tensor], Any]:
        # in float32 attention keeps its scores, of each layer without checkpointing
        sizes: dict[str, Any] = {"max_tokens_per_microbatch": small, "gradient_checkpointing": precision == "no"}
        learner = learner_of(bench, model_of(bench, "0.6b"), precision=precision, max_grad_norm=0.0, **sizes)
        if padded:
            learner.packing = learner.packing._replace(kernel=None, padding_reason="the reference of this measurement")
        if compiled and (reason := try_compile_policy(learner)):
            raise RuntimeError(reason)
        found: dict[str, torch.Tensor] = {}

        def keep(*_: Any) -> None:
            found.update((name, p.grad.detach().clone()) for name, p in learner.policy.named_parameters() if p.grad is not None)

        hook = register_optimizer_step_pre_hook(keep)
        try:
            learner.update(groups)
        finally:
            hook.remove()
        return found, learner

    def compared(precision: str, padded: bool, compiled: bool) -> dict[str, Any]:
        found, learner = gradient(precision, padded, compiled)
        assert found.keys() == truth.keys()
        sums = {name: [float((a * b).sum(dtype=torch.float64)) for a, b in ((x, truth[name]), (x, x), (truth[name], truth[name]))]
                for name, x in found.items()}  # fmt: skip
        cosines = {name: xy / math.sqrt(xx * yy) for name, (xy, xx, yy) in sums.items() if xx * yy}
        xy, xx, yy = (sum(row[k] for row in sums.values()) for k in range(3))
        worst = min(cosines, key=lambda name: cosines[name])
        return {
            "kernel": getattr(learner.packing.kernel, "__name__", ""), "packed": not learner.packing.padding_reason,
            "cosine": round(xy / math.sqrt(xx * yy), 7), "norm_ratio": round(math.sqrt(xx / yy), 6),
            "least_cosine": round(cosines[worst], 7), "of": worst, "parameters": len(cosines),
        }  # fmt: skip

    def reference() -> dict[str, Any]:
        found, _ = gradient("no", padded=True)
        truth.update(found)
        return {"parameters": len(found), "norm": math.sqrt(sum(float(x.double().square().sum()) for x in found.values()))}

    if bench.case("padded, float32: the reference", reference):
        cases = {"packed, bf16": ("bf16", False, False), "padded, bf16": ("bf16", True, False), "packed, float32": ("no", False, False)}
        if not bench.tiny:
            cases["packed, bf16, compiled layers"] = ("bf16", False, True)
        for name, case in cases.items():
            bench.case(name, partial(compared, *case))


def profile(bench: Bench) -> None:
    """Where the time of an update goes: the operations with the most time on the device, and the time of the CPU beside it."""
    needed("transformers", "accelerate")
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as profiler

    from rlvr.training.components import try_compile_policy

    def measured(compiled: bool) -> dict[str, Any]:
        learner = learner_of(bench, model_of(bench, "0.6b"), precision="bf16", max_tokens_per_microbatch=bench.pick(16_384, 64))
        groups = groups_of(bench, bench.pick(6, 1))
        uncompiled = try_compile_policy(learner) if compiled else "not asked for"
        learner.update(groups)
        with profiler(activities=[ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if bench.device.type == "cuda" else [])]) as seen:
            began = bench.settled()
            learner.update(groups)
            seconds = bench.settled() - began
        rows = seen.key_averages()

        def most(attribute: str, kept: list[Any], count: int) -> dict[str, Any]:
            found: dict[str, list[float]] = {}
            for row in kept:  # the ends of two long names of kernels differ, and both count
                times, spent = found.get(row.key[:90], (0, 0.0))
                found[row.key[:90]] = [times + row.count, spent + getattr(row, attribute) / 1e6]
            ranked = sorted(found.items(), key=lambda item: -item[1][1])[:count]
            return {name: [times, round(spent, 3)] for name, (times, spent) in ranked}

        if bench.device.type == "cpu":
            return {"seconds": round(seconds, 3), "uncompiled": uncompiled, "operations": most("self_cpu_time_total", rows, 24)}
        kernels = [row for row in rows if not str(row.device_type).endswith("CPU")]
        return {
            "seconds": round(seconds, 3), "uncompiled": uncompiled,
            "busy_s": round(sum(row.self_device_time_total for row in kernels) / 1e6, 3),
            "operations": most("self_device_time_total", [row for row in rows if str(row.device_type).endswith("CPU")], 20),
            "kernels": most("self_device_time_total", kernels, 20),
        }  # fmt: skip

    bench.case("an update", partial(measured, compiled=False))
    if not bench.tiny:
        bench.case("an update, compiled layers", partial(measured, compiled=True))


def large(bench: Bench) -> None:
    """Updates at the shape of Qwen3-4B: does 16 bytes a weight hold, and what do compiled layers and checkpointing change?"""
    needed("transformers", "accelerate")
    peak, small = bench.product_per_s(bench.half), bench.pick(16_384, 64)
    cases: dict[str, dict[str, Any]] = {"checkpointing": {"gradient_checkpointing": True, "max_tokens_per_microbatch": small}}
    if not bench.tiny:
        cases["checkpointing, compiled layers"] = cases["checkpointing"] | {"compiled": True}
        cases["a quarter of the tokens, compiled layers"] = {"max_tokens_per_microbatch": small // 4, "compiled": True}
    for name, settings in cases.items():
        work = partial(updates, bench, "4b", bench.pick(6, 1), peak, precision="bf16", times=1, **settings)
        bench.case(f"4b, bf16, {name}", work)


def trl(bench: Bench) -> None:
    """TRL's own loss in bf16, in micro-batches of 8 rows that are padded to the longest; then an update of rlvr with the same rows."""
    needed("transformers", "accelerate", "trl", "datasets")
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "learn"))
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "_peers"))
    update_vs_trl: Any = importlib.import_module("update_vs_trl")

    prompts = bench.pick(6, 1)
    rows, prompt = [], bench.pick(256, 8)
    for group in groups_of(bench, prompts):
        rows += [{"prompt": e.tokens[:prompt], "said": e.tokens[prompt:], "reward": e.rewards[-1]} for e in group]
    longest = max(len(row["said"]) for row in rows)
    update_vs_trl.SIZES["gpu day"] = SimpleNamespace(rows_at_once=8, longest=longest)
    job: Any = SimpleNamespace(size="gpu day", device=bench.device.type, precision="bf16")

    def measured() -> dict[str, Any]:
        step, tokens = update_vs_trl.trl(job, model_of(bench, "0.6b"), rows), sum(len(row["prompt"]) + len(row["said"]) for row in rows)
        seconds = bench.seconds(step, times=1, warm=1)
        return {"tokens": tokens, "seconds": round(seconds, 3), "tokens_per_s": round(tokens / seconds), "peak_gb": bench.peak_gb()}

    bench.case("TRL, bf16", measured)
    compiled = not bench.tiny
    settings: dict[str, Any] = {"precision": "bf16", "times": 1, "max_tokens_per_microbatch": bench.pick(16_384, 64), "compiled": compiled}
    bench.case("rlvr, bf16", partial(updates, bench, "0.6b", prompts, bench.product_per_s(bench.half), **settings))


def sampler(bench: Bench) -> None:
    """Tokens per second of the sampler `hf`: rows at a time, and the precision of the weights."""
    needed("transformers", "accelerate")
    from rlvr.contracts import Request, SamplingParams
    from rlvr.samplers.hf import HFSampler

    new, vocabulary = bench.pick(256, 4), MODELS["tiny" if bench.tiny else "0.6b"]["vocab_size"]
    for dtype in (bench.half, torch.float32):
        model = model_of(bench, "0.6b", dtype)
        for rows in bench.pick((64, 256), (4,)):
            dice = random.Random(0)
            prompts = [[dice.randrange(vocabulary) for _ in range(bench.pick(256, 4))] for _ in range(rows // 4)]
            asked = [Request(prompt=prompts[i // 4], max_tokens=new, seed=i) for i in range(rows)]

            def measured(asked: Any = asked, rows: int = rows, model: Any = model) -> dict[str, Any]:
                engine = HFSampler(batch_size=rows)
                engine.update_from_model(model, 0)
                with engine:
                    took = bench.seconds(lambda: engine.sample(asked, SamplingParams()), times=1, warm=1)
                said = rows * new
                return {
                    "tokens": said,
                    "tokens_per_s": round(said / took),
                    "ms_a_step": round(1000 * took / new, 2),
                    "peak_gb": bench.peak_gb(),
                }

            bench.case(f"{rows} rows, {dtype}".replace("torch.", ""), measured)


def repeated(bench: Bench) -> None:
    """The same run twice, with the kernels that a device takes by default."""
    again(bench, deterministic=False)


def determinism(bench: Bench) -> None:
    """The same with deterministic kernels; in a process of its own, since libraries read some settings once."""
    again(bench, deterministic=True)


def again(bench: Bench, *, deterministic: bool) -> None:
    """A run twice: how many of its lines are equal."""
    needed("transformers", "accelerate", "pydantic", "gymnasium")
    from rlvr.config.config import validate_config
    from rlvr.training.train import train

    run: dict[str, Any] = {
        "env": {"name": "arithmetic"}, "tokenizer": "chars:0123456789+-*= ?", "sft_warmup": None,
        "eval": {"tasks": 8}, "algorithm": {"name": "grpo"},
        "model": {"config": {"model_type": "qwen2", "hidden_size": bench.pick(256, 32), "intermediate_size": bench.pick(512, 64),
                             "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}},
        "rollout": {"prompts_per_step": bench.pick(16, 2), "num_generations": bench.pick(8, 2), "max_new_tokens": 8},
    }  # fmt: skip

    def rows(folder: Path) -> list[str]:
        from accelerate.state import AcceleratorState
        from rich.console import Console

        AcceleratorState._reset_state(reset_partial_state=True)
        steps = {"steps": bench.pick(10, 1), "learning_rate": 1e-4, "deterministic": deterministic}
        train(validate_config(run | {"train": steps}, "gpu day"), out=folder, console=Console(quiet=True))
        return (folder / "metrics.jsonl").read_text().splitlines()

    def twice() -> dict[str, Any]:
        with tempfile.TemporaryDirectory() as home:
            began = time.perf_counter()
            first, again = (rows(Path(home) / name) for name in ("first", "again"))
            same = [a == b for a, b in zip(first, again, strict=True)]
            last = [json.loads(lines[-1]) for lines in (first, again)]
            apart = max((abs(last[0][k] - last[1][k]) for k in ("loss", "grad_norm", "reward")), default=0.0)
            return {
                "steps": len(same),
                "equal_steps": sum(same),
                "apart_at_the_end": apart,
                "seconds": round(time.perf_counter() - began, 1),
            }

    bench.case("deterministic kernels" if deterministic else "default", twice)


def handover(bench: Bench) -> None:
    """The sampler `hf` in the training process: sample, learn, hand over, and again; and the files that a server would read."""
    needed("transformers", "accelerate")
    from rlvr.contracts import Request, SamplingParams
    from rlvr.samplers.hf import HFSampler

    learner = learner_of(bench, model_of(bench, "0.6b"), precision="bf16", max_tokens_per_microbatch=bench.pick(16_384, 64))
    groups, engine = groups_of(bench, bench.pick(4, 1)), HFSampler(batch_size=64)
    asked = [Request(prompt=[1, 2, 3], max_tokens=bench.pick(64, 2), seed=i) for i in range(bench.pick(64, 2))]

    def turn(work: Callable[[], Any]) -> dict[str, float]:
        began = bench.settled()
        work()
        return {"seconds": round(bench.settled() - began, 3), "held_gb": bench.held_gb(), "peak_gb": bench.peak_gb()}

    for k in range(bench.pick(3, 1)):

        def around(k: int = k) -> dict[str, Any]:
            return {
                "hand-over": turn(lambda: engine.update_weights(learner.weights, k)),
                "sample": turn(lambda: engine.sample(asked, SamplingParams())),
                "update": turn(lambda: learner.update(groups)),
            }

        bench.case(f"turn {k}", around)

    def files() -> dict[str, Any]:
        with tempfile.TemporaryDirectory() as home:
            took = turn(lambda: learner.weights.save(Path(home) / "weights", "bfloat16"))
            size = sum(path.stat().st_size for path in Path(home).rglob("*") if path.is_file())
            return {**took, "gb": round(size / 1e9, 3), "gb_per_s": round(size / 1e9 / took["seconds"], 3) if took["seconds"] else None}

    bench.case("files in bf16", files)
