"""Weights to rollout_workers: the time for several against one, and the size of a delta of real steps.

    python benchmarks/scale/weights.py copies [--mb 1024] [--rollout_workers 3] [--repeat 3] python benchmarks/scale/weights.py steps
    [--recipe quickstart] [--set train.steps=5 model.path=FOLDER ...]

`copies`: a model of bfloat16 weights of so many MB is put into the object store of a cluster on this machine and loaded by one collector
and by several at once, in turns; each collector is a process that holds the model. One JSON line for each turn: seconds to put, seconds
until all have loaded, and the memory of a collector beyond its model at its peak. Bar: put and load of all at most 1.3 times that of one.

`steps`: each version that a run gives to its sampler is packed as a delta in bfloat16; its own weights are in `model.dtype`, and with
float32 they are what a trainer with `mixed_precision: bf16` has. One JSON line a version: the share of changed elements, bytes against a
whole copy, and whether a collector's weights are exactly the trainer's. The bar is that they are.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from rlvr.cluster.weights.packing import WeightPacker, apply_updates, convert_model
from rlvr.cluster.weights.weight_updates import WeightUpdate
from rlvr.config.config import load_config
from rlvr.training.components import Components, build_components
from rlvr.training.run_inputs import RunInputs
from rlvr.training.train import train


def net(mb: int) -> torch.nn.Module:
    """Matrices of 32 MB, as many as fit; in bfloat16."""
    made = torch.nn.ModuleList([torch.nn.Linear(4096, 4096, bias=False, dtype=torch.bfloat16, device="meta") for _ in range(mb // 32)])
    made = made.to_empty(device="cpu")
    for number, weight in enumerate(made.parameters()):
        torch.nn.init.constant_(weight, number + 0.5)
    made.dtype = torch.bfloat16  # type: ignore[assignment]
    return made


def memory(name: str) -> float:
    """Of this process, in MB: VmHWM is the most so far, VmRSS what it has. Both count what it reads of the object store."""
    status = Path("/proc/self/status").read_text("utf-8")
    return int(status.split(f"{name}:")[1].split()[0]) / 1024


class Holder:
    """As a collector: it holds a model and loads parcels."""

    def __init__(self, mb: int) -> None:
        torch.set_num_threads(1)
        self.net = net(mb)

    def load(self, parcel: WeightUpdate) -> dict[str, float]:
        """Load it; how long it took, and the memory beside model and object store."""
        import ray

        Path("/proc/self/clear_refs").write_text("5", "utf-8")  # the most so far begins again
        began, before = time.perf_counter(), memory("RssAnon")
        apply_updates(self.net, [replace(parcel, buckets=(ray.get(ref, timeout=120) for ref in parcel.buckets))])
        return {"seconds": time.perf_counter() - began, "grown_mb": memory("RssAnon") - before, "rss_mb": memory("VmHWM")}

    def change(self) -> float:
        """Forget the weights; returns nothing of use but that it is done."""
        for weight in self.net.parameters():
            torch.nn.init.zeros_(weight)
        return float(next(self.net.parameters()).sum())

    def exact(self) -> bool:
        """Whether the weights are those that were sent."""
        return all(bool((weight == number + 0.5).all()) for number, weight in enumerate(self.net.parameters()))


def copies(args: argparse.Namespace) -> bool:
    """The time of one copy and of several, in turns."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    import ray

    torch.set_num_threads(1)
    store = (args.mb + args.mb // 2) << 20
    quiet: dict[str, Any] = {"include_dashboard": False, "log_to_driver": False, "logging_level": "error", "configure_logging": False}
    ray.init(address="local", num_cpus=args.rollout_workers, object_store_memory=store, **quiet)
    passed, totals = True, dict[int, list[float]]()
    try:
        kind = ray.remote(max_restarts=0)(Holder)
        holders: list[Any] = [kind.remote(args.mb) for _ in range(args.rollout_workers)]
        ray.get([holder.change.remote() for holder in holders], timeout=300)
        trainer, packer = net(args.mb), WeightPacker("whole", "bfloat16")
        for turn in range(args.repeat + 1):
            for count in (1, args.rollout_workers):
                ray.get([holder.change.remote() for holder in holders], timeout=300)
                began = time.perf_counter()
                parcel = packer.pack(trainer)
                held = replace(parcel, buckets=[ray.put(bucket) for bucket in parcel.buckets])
                put_s = time.perf_counter() - began
                told = ray.get([holder.load.remote(held) for holder in holders[:count]], timeout=300)
                all_s = time.perf_counter() - began
                exact = all(ray.get([holder.exact.remote() for holder in holders[:count]], timeout=300))
                del held
                first = turn == 0  # the object store has never been written to, and each page is made
                row = {"rollout_workers": count, "first": first, "mb": args.mb, "put_s": round(put_s, 3), "all_s": round(all_s, 3)}
                row |= {"grown_mb": round(max(one["grown_mb"] for one in told), 1), "exact": exact}
                print(json.dumps(row), flush=True)
                passed = passed and exact
                if not first:
                    totals.setdefault(count, []).append(all_s)
    finally:
        ray.shutdown()
    ratio = min(totals[args.rollout_workers]) / min(totals[1])
    print(json.dumps({"passed": passed and ratio <= 1.3, "several_over_one": round(ratio, 3), "bar": 1.3}))
    return passed and ratio <= 1.3


class Weighed:
    """Packs each version that a run hands to its sampler, and brings a collector's model to it."""

    def __init__(self) -> None:
        self.packer, self.version, self.passed = WeightPacker("delta", "bfloat16", every=1 << 30), 0, True
        self.got: Any = None
        self.before = dict[str, Any]()

    def weigh(self, model: Any) -> None:
        """One line about this version."""
        began = time.perf_counter()
        parcel = self.packer.pack(model)
        pack_s = time.perf_counter() - began
        now = {name: weight.detach().to(torch.bfloat16).clone() for name, weight in model.named_parameters()}
        self.got = convert_model(copy.deepcopy(model), "bfloat16", vectors=True) if self.got is None else self.got
        began = time.perf_counter()
        apply_updates(self.got, [parcel])
        load_s = time.perf_counter() - began
        whole = sum(weight.nbytes for weight in now.values())
        row: dict[str, Any] = {"version": self.version, "delta": parcel.delta, "bytes": parcel.size, "whole": whole}
        if self.before:
            changed = sum(int((weight != self.before[name]).sum()) for name, weight in now.items())
            row |= {"changed": round(2 * changed / whole, 5), "of_whole": round(parcel.size / whole, 5)}
            row |= {"bytes_a_change": round(parcel.size / max(1, changed), 2)}
        exact = all(torch.equal(weight, now[name]) for name, weight in self.got.named_parameters())
        print(json.dumps(row | {"pack_s": round(pack_s, 2), "load_s": round(load_s, 2), "exact": exact}), flush=True)
        self.passed, self.before, self.version = self.passed and exact, now, self.version + 1


def steps(args: argparse.Namespace) -> bool:
    """The size of the delta of each step of a run."""
    weighed = Weighed()

    def weighed_components(inputs: RunInputs, accelerator: Any, stack: Any, *, checkpoint_folder: Path | None) -> Components:
        components = build_components(inputs, accelerator, stack, checkpoint_folder=checkpoint_folder)
        given = components.sampler.update_weights

        def update_weights(weights: Any, version: int) -> None:
            weighed.weigh(weights.gather_model())
            given(weights, version)

        setattr(components.sampler, "update_weights", update_weights)  # noqa: B010 -- type checkers take an assignment for an override
        return components

    with tempfile.TemporaryDirectory() as folder:
        train(load_config(args.recipe, args.set), component_builder=weighed_components, out=Path(folder, "run"))
    print(json.dumps({"passed": weighed.passed}))
    return weighed.passed


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["copies", "steps"])
    parser.add_argument("--mb", type=int, default=1024)
    parser.add_argument("--rollout_workers", type=int, default=3)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--recipe", default="quickstart")
    parser.add_argument("--set", nargs="*", default=[], help="overrides of the recipe")
    args = parser.parse_args(argv)
    sys.exit(not (copies(args) if args.what == "copies" else steps(args)))


if __name__ == "__main__":
    main()
