"""What several gloo processes find out about FSDP2 on the CPU: `python -m tests.training.update.shards SUITES_FOLDER PART ...` in each of
them.

The main process writes FOLDER/found.json: one entry for each part. A part that fails ends all.
"""

from __future__ import annotations

import argparse
import copy
import gc
import json
import os
import resource
import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers
from accelerate import Accelerator, FullyShardedDataParallelPlugin
from accelerate.state import PartialState
from accelerate.utils import DistributedType
from safetensors.torch import load_file
from torch import Tensor
from torch.distributed.tensor import DTensor

import rlvr.training.update.policy
from rlvr.config.config import LoraConfig, ModelConfig
from rlvr.episode import Episode, Segment, StopReason
from rlvr.errors import ConfigError
from rlvr.mdp.tokenizers import CharTokenizer
from rlvr.models import compiled_layers
from rlvr.models.batch import Batch, TokenRows
from rlvr.models.model_loading import build_meta_model, load_model
from rlvr.models.plain_weights import compute_model_logprobs
from rlvr.models.safetensors_files import TensorWriter
from rlvr.registry.plugins import build
from rlvr.training.components import try_compile_policy
from rlvr.training.distributed.group import all_gather_values, init_control_group
from rlvr.training.sampler_mismatch import check_sharded_model_numerics
from rlvr.training.update import fsdp as sharded
from rlvr.training.update import lora_adapter as adapter
from rlvr.training.update.learner import Learner, OptimizationSettings
from rlvr.training.update.policy import Policy
from rlvr.training.update.sharded_tensors import gather_full, get_local_shard

REFERENCE = {"beta": 0.1, "ref_model_sync_steps": 1, "ref_model_mixup_alpha": 0.5}
MODEL = {
    "model_type": "qwen2", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 128, "tie_word_embeddings": True,
}  # fmt: skip
EXPERTS = MODEL | {"model_type": "qwen3_moe", "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "head_dim": 16}
TOKENIZER = CharTokenizer("0123456789+=")


def in_fsdp(mixed_precision: str) -> Accelerator:
    """The accelerator in FSDP2 mode, with the plugin that accelerate makes of the launch configuration."""
    accelerator = Accelerator(cpu=True)
    state: Any = accelerator.state
    state.distributed_type = PartialState._shared_state["distributed_type"] = DistributedType.FSDP
    state.fsdp_plugin = FullyShardedDataParallelPlugin()
    if mixed_precision != "no":
        state.fsdp_plugin.set_mixed_precision(mixed_precision)
    state._mixed_precision = mixed_precision
    assert accelerator.is_fsdp2 and accelerator.mixed_precision == mixed_precision
    return accelerator


def groups(count: int = 8, size: int = 4) -> list[list[Episode]]:
    """Groups of answers of different lengths, with rewards; every other one is a tree, whose later branches continue its first third."""
    dice = torch.Generator().manual_seed(5)

    def one(g: int, k: int) -> Episode:
        length = 6 + int(torch.randint(2, 30, (1,), generator=dice))
        tokens = [(5 * g + j) % 12 + 1 for j in range(6)]
        tokens += [int(t) for t in torch.randint(1, 13, (length - 6,), generator=dice)]
        acted = [False] * 6 + [True] * (length - 6)
        rewards = [0.0] * (length - 1) + [float(k % 2)]
        forks = [6 + (length - 6) * third // 3 for third in (1, 2)]
        tree = (Segment(0), *(Segment(fork, 0) for fork in forks)) if k // 2 and length > 12 else ()
        return Episode(f"t/{g}", f"g{g}", tokens, acted, [-2.5 * a for a in acted], rewards, StopReason.TERMINATED, segments=tree)

    return [[one(g, k) for k in range(size)] for g in range(count)]


def new(
    accelerator: Accelerator, model: Any, algorithm: dict[str, Any] | None = None, *, gradient_checkpointing: bool = False, **more: Any
) -> Learner:
    """A learner of one step's shape."""
    settings = OptimizationSettings(
        learning_rate=1e-3, max_tokens_per_microbatch=64, max_grad_norm=0.0, gradient_checkpointing=gradient_checkpointing
    )
    made = build("algorithm", "grpo", **(algorithm or {}))
    return Learner(model, made, settings, accelerator=accelerator, total_steps=4, **more)


def share(accelerator: Accelerator, everything: list[Any]) -> list[Any]:
    return everything[accelerator.process_index :: accelerator.num_processes]


def fresh(config: dict[str, Any] = MODEL, seed: int = 3) -> Any:
    return load_model(ModelConfig(config=config), TOKENIZER, seed)


def flat(model: Any) -> Tensor:
    return torch.cat([p.detach().double().flatten() for p in model.parameters()])


@contextmanager
def counted() -> Iterator[dict[str, int]]:
    """How many tensors that `full_tensor` gathered are alive at once, at most."""
    figures, alive = {"most": 0, "made": 0}, set[int]()
    original = DTensor.full_tensor

    def gathered(self: DTensor, **settings: Any) -> Tensor:
        tensor = original(self, **settings)
        key = id(tensor)
        alive.add(key)
        weakref.finalize(tensor, alive.discard, key)
        figures["made"] += 1
        figures["most"] = max(figures["most"], len(alive))
        return tensor

    DTensor.full_tensor = gathered  # type: ignore[method-assign]
    try:
        yield figures
    finally:
        DTensor.full_tensor = original  # type: ignore[method-assign]


def gradient(learner: Learner) -> Tensor:
    """The gradient of the first step, from Adam's first moment, in the order of the parameters."""
    parameters = [p for group in learner.optimizer.param_groups for p in group["params"]]
    return torch.cat([gather_full(learner.optimizer.state[p]["exp_avg"]).double().flatten() / 0.1 for p in parameters])


@torch.no_grad()
def logprobs(score: Callable[[Batch], Any]) -> Tensor:
    """Of all acted tokens of the groups."""
    episodes = [episode for group in groups() for episode in group]
    rows = TokenRows([e.tokens for e in episodes], [e.action_mask for e in episodes])
    return torch.cat([score(next(rows.iter_batches([i], max_tokens=1))).logprobs.float() for i in range(len(episodes))])


def apart(found: Tensor, truth: Tensor) -> float:
    return float((found.double() - truth.double()).norm() / truth.double().norm())


def alone(folder: Path) -> None:
    """In one process: what the sharded ones are compared with, written to FOLDER/truth.pt; and the models that they start from."""
    fresh().save_pretrained(folder / "start")
    fresh(EXPERTS).save_pretrained(folder / "experts")
    accelerator, truth = Accelerator(cpu=True), dict[str, Any]()
    model = fresh()
    truth["logprobs"] = logprobs(Policy(model))
    with torch.autocast("cpu", torch.bfloat16):
        truth["autocast"] = logprobs(Policy(model))
    for name, algorithm in (("plain", {}), ("reference", REFERENCE)):
        learner = new(accelerator, fresh(), algorithm)
        metrics = [learner.update(groups()) for _ in range(2)]
        truth[name] = {"metrics": metrics, "weights": flat(learner.gather_model())}
    learner = new(accelerator, fresh())
    learner.update(groups())
    truth["gradient"] = gradient(learner)
    learner = new(accelerator, with_adapter(fresh()), {"beta": 0.1})
    truth["adapter"] = {"metrics": [learner.update(groups()) for _ in range(2)], "weights": flat(learner.gather_model())}
    torch.save(truth, folder / "truth.pt")


def with_adapter(model: Any) -> Any:
    torch.manual_seed(11)
    return adapter.add_adapter(model, LoraConfig(rank=2))


def blank(folder: Path) -> tuple[Any, sharded.WeightLoader]:
    """The model of a folder without weights, and what fills it."""
    model = build_meta_model(ModelConfig(path=str(folder)))
    assert all(p.device.type == "meta" for p in model.parameters())
    fill = sharded.FolderWeightLoader.for_model(model, folder)
    assert fill is not None
    return model, fill


def precision(folder: Path, truth: dict[str, Any]) -> dict[str, Any]:
    """In bf16: the dtype of log-probabilities, and one update against the one in float32."""
    accelerator, seen = in_fsdp("bf16"), set[str]()
    model, fill = blank(folder / "start")
    learner = new(accelerator, model, weight_loader=fill)
    learner.policy.register_forward_hook(lambda module, args, scores: seen.add(str(scores.logprobs.dtype)))
    found = logprobs(learner.policy)
    with added_up() as reduced:
        learner.update(share(accelerator, groups()))
    heads = {"shared": head_seen(learner.policy)}
    again, fill = blank(folder / "start")
    exact = Policy(again, fp32_head=True)
    sharded.shard_policy(exact, accelerator, fill)
    heads["exact"] = head_seen(exact)
    rounded = found.to(torch.bfloat16).float()  # what accelerate's own policy gives
    errors = {"ours": found, "autocast": truth["autocast"], "cast outputs": rounded}
    return {
        "dtypes": sorted(seen),
        "reduced": sorted(reduced),
        "heads": heads,
        "gradient": apart(gradient(learner), truth["gradient"]),
        "packed": not learner.padding_reason,
        "logprobs": {name: float((value - truth["logprobs"]).abs().max()) for name, value in errors.items()},
    }


@contextmanager
def added_up() -> Iterator[set[str]]:
    """The types in which gradients are added up over the processes."""
    seen, names = set[str](), [name for name in ("reduce_scatter_single", "reduce_scatter_tensor") if hasattr(torch.distributed, name)]
    originals = {name: getattr(torch.distributed, name) for name in names}

    def noted(*args: Any, how: Any, **more: Any) -> Any:
        seen.update(str(value.dtype) for value in (*args, *more.values()) if isinstance(value, Tensor))
        return how(*args, **more)

    for name, original in originals.items():
        setattr(torch.distributed, name, partial(noted, how=original))
    try:
        yield seen
    finally:
        for name, original in originals.items():
            setattr(torch.distributed, name, original)


def head_seen(policy: Any) -> str:
    """The type in which the head has its weights while it computes."""
    seen, module = set[str](), vars(rlvr.training.update.policy)
    original = module["compute_token_logprobs"]

    def noted(hidden: Tensor, weight: Tensor, *args: Any, **more: Any) -> Any:
        seen.add(str(weight.dtype))
        return original(hidden, weight, *args, **more)

    module["compute_token_logprobs"] = noted
    try:
        logprobs(policy)
    finally:
        module["compute_token_logprobs"] = original
    return " ".join(seen)


def watch_sync(policy: Any, held: list[bool]) -> None:
    """Note each time that the policy is told whether to reduce gradients."""
    original = policy.set_requires_gradient_sync

    def noted(on: bool, **more: Any) -> None:
        held.append(on)
        original(on, **more)

    policy.set_requires_gradient_sync = noted


def updates(folder: Path, truth: dict[str, Any]) -> dict[str, Any]:
    """In float32: two steps as in one process, without and with a reference that moves, and no gradient kept whole."""
    accelerator, held = in_fsdp("no"), list[bool]()
    found: dict[str, Any] = {}
    for name, algorithm in (("plain", {}), ("reference", REFERENCE)):
        model, fill = blank(folder / "start")
        frozen = {"reference": copy.deepcopy(model)} if algorithm else {}
        learner = new(accelerator, model, algorithm, weight_loader=fill, frozen_models=frozen)
        watch_sync(learner.policy, held)
        metrics = [learner.update(share(accelerator, groups())) for _ in range(2)]
        kl = [row.get("kl", 0.0) for row in metrics]
        found[name] = {
            "weights": apart(flat(learner.gather_model()), truth[name]["weights"]),
            "kl": kl,
            "microbatches": metrics[0]["tokens/computed_with_padding"] / 64,
        }
        found[name]["kl_alone"] = [row.get("kl", 0.0) for row in truth[name]["metrics"]]
        every = [*learner.policy.parameters(), *(learner.reference.policy.parameters() if learner.reference else ())]
        found[name]["share"] = sum(get_local_shard(p).numel() for p in every) / sum(p.numel() for p in every)
    return found | {"kept_whole": held.count(False)}


def stream(folder: Path, truth: dict[str, Any]) -> dict[str, Any]:
    """Hand-over, checkpoint and resume: how many tensors are whole at once, and that all come back."""
    accelerator, figures = in_fsdp("no"), dict[str, Any]()
    model, fill = blank(folder / "start")
    learner = new(accelerator, model, REFERENCE, weight_loader=fill, frozen_models={"reference": copy.deepcopy(model)})
    learner.update(share(accelerator, groups()))
    with counted() as at_once:
        learner.weights.save(folder / "engine", "bfloat16")
        figures["hand-over"] = dict(at_once)
    with counted() as at_once:
        learner.weights.save(folder / "kept")
        learner.write_sharded_state(folder / "kept")
        state = learner.state_dict()
        figures["checkpoint"] = dict(at_once)
    figures["parts"] = sorted(path.name for path in (folder / "kept" / "sharded").glob("*.distcp"))
    with counted() as at_once:
        model, fill = blank(folder / "kept")
        again = new(accelerator, model, REFERENCE, weight_loader=fill, frozen_models={"reference": copy.deepcopy(model)})
        again.load_state_dict(state, folder / "kept")
        figures["resume"] = dict(at_once)
    if accelerator.is_main_process:
        torch.save(state, folder / "kept" / "state.pt")
    metrics = [each.update(share(accelerator, groups())) for each in (learner, again)]
    figures["same"] = metrics[0] == metrics[1] and bool(torch.equal(flat(learner.gather_model()), flat(again.gather_model())))
    figures["apart_from_alone"] = apart(flat(learner.gather_model()), truth["reference"]["weights"])
    figures["probe"] = apart(
        torch.tensor(learner.weights.compute_logprobs(range(1, 12))),
        torch.tensor(compute_model_logprobs(learner.gather_model(), range(1, 12))),
    )
    return figures


def adapters(folder: Path, truth: dict[str, Any]) -> dict[str, Any]:
    """LoRA with sharded weights: two steps as in one process, and the merged model one tensor at a time."""
    accelerator = in_fsdp("no")
    model, fill = blank(folder / "start")
    learner = new(accelerator, with_adapter(model), {"beta": 0.1}, weight_loader=fill)
    metrics = [learner.update(share(accelerator, groups())) for _ in range(2)]
    with counted() as at_once:
        learner.weights.save(folder / "merged")
        most = at_once["most"]
    kept = adapter.get_adapter_state(learner.policy.model)
    return {
        "weights": apart(flat(learner.gather_model()), truth["adapter"]["weights"]),
        "kl": [row["kl"] for row in metrics], "kl_alone": [row["kl"] for row in truth["adapter"]["metrics"]],
        "most": most, "adapter": sum(weight.numel() for weight in (kept or {}).values()),
    }  # fmt: skip


def experts(folder: Path, truth: dict[str, Any]) -> dict[str, Any]:
    """A family whose files have other names than the model: filled by the main process, and written with the names of files."""
    accelerator = in_fsdp("no")
    model = build_meta_model(ModelConfig(path=str(folder / "experts")))
    converted = sharded.FolderWeightLoader.for_model(model, folder / "experts") is None
    held = dict(fresh(EXPERTS).state_dict()) if accelerator.is_main_process else None
    learner = new(accelerator, model, weight_loader=sharded.MainProcessWeightLoader(held))
    learner.weights.save(folder / "experts again")
    before, after = (load_file(folder / name / "model.safetensors") for name in ("experts", "experts again"))
    return {
        "converted": converted,
        "same": before.keys() == after.keys() and all(torch.equal(before[name], after[name]) for name in before),
    }


def honest(folder: Path, truth: dict[str, Any]) -> dict[str, Any]:
    """The table before a run: of a model that is computed right in every way, and of one that mixes the rows of a batch."""
    accelerator, said, tables = in_fsdp("bf16"), dict[str, str](), dict[str, list[dict[str, Any]]]()
    for name, share in (("right", 0.0), ("mixing", 0.9)):
        model, fill = blank(folder / "start")
        learner = new(accelerator, model, weight_loader=fill)
        model.model.norm.register_forward_hook(lambda _, args, out, share=share: out + share * (out.mean(0, keepdim=True) - out))
        before = flat(learner.gather_model())
        try:
            tables[name] = [finding.to_dict() for finding in check_sharded_model_numerics(learner, max_length=128)]
        except ConfigError as error:
            said[name] = str(error)
        assert torch.equal(before, flat(learner.gather_model())) and all(isinstance(p, DTensor) for p in learner.policy.parameters())
    return {"said": said, "tables": tables}


def start(folder: Path, truth: dict[str, Any]) -> dict[str, Any]:
    """A model four times larger than the memory that each process may still take: whole it does not fit, sharded it starts."""
    home = folder / "large"
    model = build_meta_model(ModelConfig(path=str(home)))
    size = 4 * sum(p.numel() for p in model.parameters())
    accelerator = in_fsdp("bf16")
    warm(accelerator)
    room = size // 4
    resource.setrlimit(resource.RLIMIT_DATA, (held_now() + room, resource.RLIM_INFINITY))
    refused = ""
    try:
        copy.deepcopy(model).to_empty(device="cpu")
    except RuntimeError as error:  # of torch's allocator
        refused = f"{type(error).__name__}: {' '.join(str(error).split())[:160]}"
    gc.collect()  # what came together of the whole model
    policy = Policy(model)
    sharded.shard_policy(policy, accelerator, sharded.FolderWeightLoader.for_model(model, home))
    scores = look(policy)
    most = all_gather_values(sum(get_local_shard(p).numel() for p in policy.parameters()) * 4)
    finite = bool(scores.isfinite().all())
    return {
        "whole": refused,
        "model_mb": size / 1e6,
        "allowed_mb": room / 1e6,
        "largest_shard_mb": max(most) / 1e6,
        "scores_finite": finite,
    }


def compiled(folder: Path, truth: dict[str, Any]) -> dict[str, Any]:
    """Two steps with compiled layers, without and with gradient checkpointing."""
    accelerator, found = in_fsdp("no"), dict[str, Any]()
    vars(compiled_layers)["COMPILE_BACKEND"] = "aot_eager"  # compiling as C++ takes half a minute
    for checkpointing in (False, True):
        model, fill = blank(folder / "start")
        learner = new(accelerator, model, weight_loader=fill, gradient_checkpointing=checkpointing)
        reason = try_compile_policy(learner)
        for _ in range(2):
            learner.update(share(accelerator, groups()))
        found[str(checkpointing)] = {
            "reason": reason,
            "weights": apart(flat(learner.gather_model()), truth["plain"]["weights"]),
            "failures": [str(name) for name in compiled_layers._FAILURES],
            "functions": sorted(function.__name__ for function in compiled_layers._COMPILED),
        }
    return found


def warm(accelerator: Accelerator) -> None:
    """What libraries take once, whatever the size of the model: threads, connections, modules that are imported late."""
    policy = Policy(fresh())
    sharded.shard_policy(policy, accelerator)
    look(policy)
    all_gather_values("warm")


@torch.no_grad()
def look(policy: Policy) -> Tensor:
    """One forward pass."""
    return policy(TokenRows([[1, 2, 3, 4]], [[False, False, True, True]]).build_padded_batch([0])).logprobs


def held_now() -> int:
    """The private memory of this process in bytes, as the kernel counts it for RLIMIT_DATA."""
    [line] = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmData")]
    return int(line.split()[1]) * 1024


def large(folder: Path) -> None:
    """Write a model of 260 million parameters, tensor by tensor."""
    width = {"hidden_size": 768, "intermediate_size": 2304, "num_hidden_layers": 36, "num_attention_heads": 12, "num_key_value_heads": 4}
    model = build_meta_model(ModelConfig(config=MODEL | width), TOKENIZER)
    home = folder / "large"
    home.mkdir()
    model.config.save_pretrained(home)
    named = {name: torch.empty_like(tensor, dtype=torch.bfloat16) for name, tensor, _ in adapter.list_base_model_tensors(model)}
    with TensorWriter(home / "model.safetensors", named) as file:
        for name, tensor in named.items():
            file.write_tensor(name, torch.randn(tensor.shape).mul_(0.02).to(torch.bfloat16))


PARTS = {part.__name__: part for part in (precision, updates, stream, adapters, experts, honest, compiled)}
MORE = {part.__name__: part for part in (start,)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("parts", nargs="*", help=f"alone, or some of {', '.join(PARTS)}; none: all of them")
    args = parser.parse_args()
    transformers.utils.logging.disable_progress_bar()
    if args.parts in (["alone"], ["large"]):
        return alone(args.folder) if args.parts == ["alone"] else large(args.folder)
    main = in_fsdp("no").is_main_process
    init_control_group(60.0)
    truth = torch.load(args.folder / "truth.pt") if args.parts != ["start"] else {}
    found = {name: (PARTS | MORE)[name](args.folder, truth) for name in args.parts or PARTS}
    if main:
        (args.folder / "found.json").write_text(json.dumps(found, indent=1))
    torch.distributed.destroy_process_group()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # a thread of gloo that still runs may abort a process that ends by itself, seen once on a busy machine


if __name__ == "__main__":
    main()
