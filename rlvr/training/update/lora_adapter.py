"""LoRA adapters through peft: small matrices next to a model's linear layers are trained, and its own weights are frozen.

    reference      the model with the adapter disabled: nothing is copied
    sampler        a plain model with the adapter merged, which shares the other weights; or, for an engine that supports adapters, the
                   frozen weights once and then only the matrices
    run folder     base/ has the model without the adapter; each checkpoint has the merged model, and the matrices in adapter/

The adapter is merged into a copy, because merging and unmerging in place would accumulate rounding errors.
"""

from __future__ import annotations

import copy
import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from rlvr.config.config import LoraConfig
from rlvr.errors import ConfigError, MissingExtra, format_suggestion
from rlvr.training.update.policy import has_no_weights
from rlvr.training.update.sharded_tensors import copy_to_shards, gather_full

ADAPTER_NAME = "default"


def check_lora_config(model: Any, settings: LoraConfig) -> None:
    """Check the LoRA settings before the run begins."""
    try:
        importlib.import_module("peft")
    except ModuleNotFoundError as error:
        raise MissingExtra("peft", "lora", "remove model.lora") from error
    known = list_linear_layers(model)
    for name in settings.target_modules or ():
        if name not in known:
            raise ConfigError(
                f"model.lora.target_modules names {name!r}, which is not a linear layer of this model; {format_suggestion(name, known)}"
            )


def list_linear_layers(model: Any) -> list[str]:
    """List the linear layers that may have an adapter: all except the output head."""
    head = model.get_output_embeddings()
    found = (name for name, layer in model.named_modules() if isinstance(layer, nn.Linear | Conv1D) and layer is not head)
    return sorted({name.rpartition(".")[2] for name in found})


def add_adapter(model: Any, settings: LoraConfig) -> Any:
    """Add a new adapter to the model. It does not change the output yet; only it is trained."""
    peft: Any = importlib.import_module("peft")
    chosen = settings.target_modules or list_linear_layers(model)
    shape = peft.LoraConfig(
        r=settings.rank, lora_alpha=settings.effective_alpha, target_modules=chosen, task_type="CAUSAL_LM",
        fan_in_fan_out=any(isinstance(layer, Conv1D) for layer in model.modules()),
    )  # fmt: skip
    random = torch.get_rng_state()
    adapted = peft.get_peft_model(model, shape, adapter_name=ADAPTER_NAME)
    if has_no_weights(model):  # peft created the matrices on the meta device, like the weights
        torch.set_rng_state(random)
        for layer in _find_adapted_layers(adapted.get_base_model()).values():
            for matrices in (layer.lora_A, layer.lora_B):
                matrices[ADAPTER_NAME] = nn.Linear(matrices[ADAPTER_NAME].in_features, matrices[ADAPTER_NAME].out_features, bias=False)
            layer.reset_lora_parameters(ADAPTER_NAME, True)
    return adapted


def has_adapter(model: Any) -> bool:
    """Return whether a model has an adapter."""
    return hasattr(model, "disable_adapter")


def merge_adapter(model: Any, reusable_model: Any = None) -> Any:
    """Return a plain model with the adapter merged; `reusable_model`: an earlier merged model, whose memory is used again."""
    plain = reusable_model or _copy_without_adapter(model)
    with torch.no_grad():
        for name, layer in _find_adapted_layers(model.get_base_model()).items():
            plain.get_submodule(name).weight.copy_(compute_merged_weight(layer))
    return plain


def list_base_model_tensors(model: Any) -> list[tuple[str, Tensor, Any]]:
    """List the tensors of the model without its adapter: the name in a plain model, the tensor, and its adapted layer, if any.

    Tied weights are listed once, under their first name. Sorted by name, as in files.
    """
    base = model.get_base_model() if has_adapter(model) else model
    adapted, seen, found = _find_adapted_layers(base), set[int](), []
    for name, tensor in base.state_dict(keep_vars=True).items():
        layer = next((layer for layer in adapted if name.startswith(f"{layer}.")), None)
        own = name if layer is None else name.removeprefix(f"{layer}.").removeprefix("base_layer.")
        if id(tensor) in seen or (layer is not None and ".base_layer." not in name):
            continue
        seen.add(id(tensor))
        found.append((name, tensor, None) if layer is None else (f"{layer}.{own}", tensor, adapted[layer] if own == "weight" else None))
    return sorted(found, key=lambda entry: entry[0])


def compute_merged_weight(layer: Any) -> Tensor:
    """Compute the weight of one adapted layer, with its adapter merged."""
    weight = layer.get_base_layer().weight
    return weight + layer.get_delta_weight(ADAPTER_NAME).to(_accumulation_dtype(weight))


def get_adapter_state(model: Any) -> dict[str, Tensor] | None:
    """Return the adapter's matrices; None if there is no adapter."""
    return (
        {name: gather_full(p.detach()).clone() for name, p in model.named_parameters() if p.requires_grad} if has_adapter(model) else None
    )


def save_adapter(model: Any, matrices: Mapping[str, Tensor], folder: Path, base: str = "") -> None:
    """Save the adapter's matrices in the format of peft, for PeftModel, TRL and vLLM, with the base model `base`."""
    folder.mkdir(parents=True, exist_ok=True)
    shape = copy.copy(model.peft_config[ADAPTER_NAME])
    shape.base_model_name_or_path, shape.inference_mode = base or shape.base_model_name_or_path, True
    shape.save_pretrained(str(folder))
    named = {name.replace(f".{ADAPTER_NAME}.", "."): value.detach().cpu().contiguous() for name, value in matrices.items()}
    save_file(named, folder / "adapter_model.safetensors")


def load_adapter(model: Any, state: Mapping[str, Tensor] | None) -> None:
    """Restore the matrices from `get_adapter_state`."""
    parameters = dict(model.named_parameters())
    for name, value in (state or {}).items():
        copy_to_shards(parameters[name], value)


def _find_adapted_layers(base: Any) -> dict[str, Any]:
    """Find the layers with an adapter, by name."""
    return {name: layer for name, layer in base.named_modules() if hasattr(layer, "get_delta_weight")}


def remove_adapter(model: Any) -> Any:
    """Return the model without the adapter, sharing all weights."""
    base = model.get_base_model()
    plain = copy.deepcopy(base, {id(p): p for p in base.parameters()})
    del plain.peft_config
    for name, layer in _find_adapted_layers(plain).items():
        plain.set_submodule(name, layer.get_base_layer())
    return plain


def _copy_without_adapter(model: Any) -> Any:
    """Return the model without the adapter, sharing all weights except those that the adapter changes."""
    plain = remove_adapter(model)
    for name in _find_adapted_layers(model.get_base_model()):
        linear = plain.get_submodule(name)
        linear.weight = nn.Parameter(torch.empty_like(linear.weight), requires_grad=False)
    return plain


def _accumulation_dtype(weight: Tensor) -> torch.dtype:
    return torch.float64 if weight.dtype == torch.float64 else torch.float32
