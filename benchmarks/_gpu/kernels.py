"""Parts that need torch only: facts of the device, the output head in tiles, attention over packed rows."""

from __future__ import annotations

import importlib
import importlib.util
import platform
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import cross_entropy, scaled_dot_product_attention

from benchmarks._gpu.bench import Bench
from rlvr.models.compiled_layers import use_compiled_layers
from rlvr.models.varlen import attend_with_matmul, build_segment_boundaries, choose_kernel
from rlvr.training.update.output_head import compute_token_logprobs

PACKAGES = ("torch", "transformers", "accelerate", "triton", "flash_attn", "peft", "trl", "vllm", "pydantic", "gymnasium", "PyYAML")


def facts(bench: Bench) -> None:
    """The device, the packages, and what both can do at most."""
    found: dict[str, str] = {}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "missing"
    bench.line("packages", python=platform.python_version(), **found)
    if bench.device.type == "cuda":
        card = torch.cuda.get_device_properties(0)
        memory = {"gb": round(card.total_memory / 1e9, 1), "free_gb": round(torch.cuda.mem_get_info()[0] / 1e9, 1)}
        bench.line("device", name=card.name, capability=f"{card.major}.{card.minor}", cuda=torch.version.cuda, **memory)
    kernel, why = choose_kernel(bench.device, bench.half)
    bench.line("kernel for packed rows", name=getattr(kernel, "__name__", ""), why_not=why)
    for precision, wide in (("highest", torch.float32), ("high", torch.float32), ("highest", bench.half)):

        def product(precision: str = precision, wide: torch.dtype = wide) -> dict[str, Any]:
            torch.set_float32_matmul_precision(precision)
            return {"tflops": round(bench.product_per_s(wide) / 1e12, 3)}

        bench.case(f"product {wide} {precision}".replace("torch.", ""), product)
    torch.set_float32_matmul_precision("highest")
    size = bench.pick(1 << 30, 1 << 20)

    def copies() -> dict[str, Any]:
        here = torch.empty(size, dtype=torch.uint8, device=bench.device)
        there = torch.empty_like(here)
        plain = torch.empty(size, dtype=torch.uint8)
        pinned = plain.pin_memory() if bench.device.type == "cuda" else plain
        ways = {"on device": (there, here), "pageable to device": (here, plain), "pinned to device": (here, pinned)}
        ways |= {"device to pinned": (pinned, here), "device to pageable": (plain, here)}
        return {name: round(size / bench.seconds(lambda a=a, b=b: a.copy_(b), times=3) / 1e9, 2) for name, (a, b) in ways.items()}

    bench.case("copies in GB/s", copies)


def head(bench: Bench) -> None:
    """The output head, forward and backward, with tiles of several sizes; against plain logits and TRL's kernel."""
    vocabulary = bench.pick(151_936, 512)
    for tokens, width in bench.pick([(65_536, 1024), (16_384, 2560)], [(64, 16)]):
        torch.manual_seed(0)
        hidden = torch.randn(tokens, width, device=bench.device, dtype=bench.half).requires_grad_()
        weight = (torch.randn(vocabulary, width, device=bench.device) * 0.02).requires_grad_()
        target = torch.randint(0, vocabulary, (tokens,), device=bench.device)
        work = 6 * tokens * width * vocabulary

        def cleared(hidden: torch.Tensor = hidden, weight: torch.Tensor = weight) -> None:
            hidden.grad = weight.grad = None

        def tiles(logits: int, hidden: Any = hidden, weight: Any = weight, target: Any = target) -> None:
            cleared(hidden, weight)
            with torch.autocast(bench.device.type, dtype=bench.half):
                logprobs, _ = compute_token_logprobs(hidden, weight, None, target, tile_size=max(1, logits // weight.shape[0]))
            logprobs.sum().backward()

        def compiled(logits: int, hidden: Any = hidden, weight: Any = weight, target: Any = target) -> None:
            with use_compiled_layers():
                tiles(logits, hidden, weight, target)

        def plain(hidden: Any = hidden, weight: Any = weight, target: Any = target) -> None:
            cleared(hidden, weight)
            with torch.autocast(bench.device.type, dtype=bench.half):
                logits = hidden @ weight.to(bench.half).t()
            (-cross_entropy(logits.float(), target, reduction="sum")).backward()

        def trl(hidden: Any = hidden, weight: Any = weight, target: Any = target) -> None:
            chunked: Any = importlib.import_module("trl.kernels.chunked_logprob").ChunkedLogProbFunction
            cleared(hidden, weight)
            out = chunked.apply(hidden, weight.to(bench.half), None, target, 1.0, 4096)  # as in TRL 1.16
            (out[0] if isinstance(out, tuple) else out).sum().backward()

        cases: dict[str, Any] = {f"tiles of 2^{n}": lambda n=n: tiles(1 << n) for n in bench.pick((22, 26, 28, 30), (12, 16))}
        if not bench.tiny:
            cases |= {f"compiled tiles of 2^{n}": lambda n=n: compiled(1 << n) for n in (26, 28, 30)}
        cases |= {"plain logits": plain} | ({"TRL's kernel": trl} if importlib.util.find_spec("trl") else {})
        for name, call in cases.items():

            def measured(call: Any = call, work: int = work) -> dict[str, Any]:
                seconds = bench.seconds(call, times=3, warm=1)
                return {"seconds": round(seconds, 4), "tflops": round(work / seconds / 1e12, 2), "peak_gb": bench.peak_gb()}

            bench.case(f"{tokens} x {width}, {name}", measured)


def attention(bench: Bench) -> None:
    """Answers that share prompts: one masked rectangle against a kernel for segments; both against plain products."""
    heads, kv, size = bench.pick((16, 8, 128), (4, 2, 16))
    prompt, answers, length = bench.pick((512, 8, 2048), (8, 2, 16))
    torch.manual_seed(0)
    like: dict[str, Any] = {"device": bench.device, "dtype": bench.half}
    query = torch.randn(answers * length, heads, size, **like).requires_grad_()
    key, value = (torch.randn(answers * (prompt + length), kv, size, **like).requires_grad_() for _ in range(2))
    lengths = build_segment_boundaries([length] * answers, [prompt + length] * answers, bench.device)
    work = answers * 3.5 * 4 * heads * size * length * (prompt + length / 2)  # forward and backward, the causal part only
    how: dict[str, Any] = {"scale": size**-0.5, "window": 0, "softcap": 0.0}

    def masked() -> torch.Tensor:
        q, k, v = (
            x.view(answers, -1, x.shape[1], size).transpose(1, 2)
            for x in (query, *(x.repeat_interleave(heads // kv, 1) for x in (key, value)))
        )
        seen = torch.arange(prompt + length, device=bench.device)[None] <= torch.arange(length, device=bench.device)[:, None] + prompt
        out = scaled_dot_product_attention(q, k, v, attn_mask=seen)
        return out.transpose(1, 2).reshape(answers * length, heads, size)

    with torch.no_grad():
        truth = attend_with_matmul(query.float(), key.float(), value.float(), lengths, **how)
    kernel, why = choose_kernel(bench.device, bench.half)
    ways: dict[str, Any] = {"masked": masked}
    for backend in (SDPBackend.CUDNN_ATTENTION, SDPBackend.EFFICIENT_ATTENTION) if bench.device.type == "cuda" else ():

        def limited(backend: Any = backend) -> torch.Tensor:
            with sdpa_kernel(backend):
                return masked()

        ways[f"masked, {backend.name}"] = limited
    if kernel is None:
        bench.line("kernel for segments", why_not=why)
    else:
        ways["kernel for segments"] = lambda: kernel(query, key, value, lengths, **how)
    for name, way in ways.items():

        def both(way: Any = way) -> None:
            query.grad = key.grad = value.grad = None
            way().float().square().sum().backward()

        def measured(way: Any = way, both: Any = both) -> dict[str, Any]:
            began = bench.settled()
            both()  # some libraries plan each shape that they have not seen, and a run sees new ones in every step
            first = bench.settled() - began
            gap = float((way().detach().float() - truth).abs().max())
            seconds = bench.seconds(both)
            return {
                "first_s": round(first, 3),
                "seconds": round(seconds, 5),
                "tflops": round(work / seconds / 1e12, 2),
                "gap": round(gap, 5),
                "peak_gb": bench.peak_gb(),
            }

        bench.case(name, measured)
