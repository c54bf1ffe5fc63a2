"""Sweep over families of models: does rlvr score and sample each of them as a plain forward pass does, or refuse it in words?

    python benchmarks/model/families.py                          all families of the installed transformers, a JSON line each
    python benchmarks/model/families.py --only llama lfm2        some
    python benchmarks/model/families.py --steps 300 --out FILE   steps of training between the two comparisons; lines are appended

Each family is a tiny random model in float32, in a process of its own with a time limit. Before and after the steps of training, the
log-probabilities of the learner (packed and padded rows) and of the hf sampler are compared with the oracle below: one unpadded row at a
time through the model's own forward pass. Differences are given as they are; the bar is 1e-5 of 1 plus the largest log-probability of the
oracle, since training makes them large. `right`: all agree within the bar. `refused`: a sentence says why the family cannot be used.
`wrong`: a difference that nothing reported. `internal`: an exception that is not a sentence to the user. `absent`: this version of
transformers has no such family, or cannot build the tiny configuration. The exit code is 1 if any family is wrong or internal.

After the training two more things are compared, in each arrangement. `gradient`: of a weighted sum of all log-probabilities, against the
oracle's; the largest difference relative to the largest element, bar 1e-5. `bf16`: under autocast in bfloat16, the mean distance to the
float32 oracle divided by that of the oracle's own pass under the same autocast; 1 is the rounding of the model itself, the bar is 2.
`alone` NaN: the code of this family in transformers fails under autocast.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import random
import sys
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import transformers
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from transformers import AutoModelForCausalLM
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.model._configs import FAMILIES, settings
from rlvr.contracts import Request, SamplingParams
from rlvr.errors import RlvrError
from rlvr.mdp.tokenizers import CharTokenizer
from rlvr.models.batch import TokenRows
from rlvr.models.numerics_check import find_untrainable_reason
from rlvr.registry.plugins import build
from rlvr.training.sampler_mismatch import run_numerics_checks
from rlvr.training.update import packing
from rlvr.training.update.learner import Learner, OptimizationSettings

BAR, ROUNDING, TEMPERATURE = 1e-5, 2.0, 0.9
"""What counts as rounding in float32, relative to 1 plus the largest log-probability; and in bfloat16, relative to a plain pass's error."""
VOCABULARY = 64


def oracle(model: Any, row: list[int]) -> torch.Tensor:
    """The log-probability of each token of a row but the first, by the model's forward pass over this row alone."""
    logits = model(input_ids=torch.tensor([row[:-1]]), use_cache=False).logits[0].double() / TEMPERATURE
    return logits.log_softmax(-1).gather(1, torch.tensor(row[1:])[:, None])[:, 0]


def rows_of(seed: int) -> list[tuple[list[int], list[bool]]]:
    """Groups of rows with a common prompt, with answers of 2 to 34 tokens. The second half of an answer repeats the first."""
    dice, out = random.Random(seed), list[tuple[list[int], list[bool]]]()
    for length in (1, 6, 11):
        prompt = [dice.randrange(VOCABULARY) for _ in range(length)]
        for k in range(3):
            half = [dice.randrange(VOCABULARY) for _ in range(1 + 8 * k)]
            out.append((prompt + half + half, [False] * length + [True] * 2 * len(half)))
    return out


def expected(model: Any) -> torch.Tensor:
    """The oracle's log-probabilities of all answers, one after the other."""
    return torch.cat([oracle(model, tokens)[sum(not on for on in acted) - 1 :] for tokens, acted in rows_of(1)])


def by_arrangement(learner: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """The learner's log-probabilities of the same, for each way to arrange the rows."""
    pairs = rows_of(1)
    rows, everyone = TokenRows([tokens for tokens, _ in pairs], [acted for _, acted in pairs]), range(len(pairs))
    ways = {"padded": [rows.padded(list(everyone))]}
    if not learner.packing.padded:
        ways["packed"] = [packing.pack_rows(rows, everyone, how=learner.packing)]
    parts, lay = packing.plan_batches(rows, everyone, 60, learner.packing)
    ways["arranged"] = [lay(part) for part in parts]
    for name, batches in ways.items():
        scores = torch.zeros(rows.entries, dtype=torch.float64)
        for batch in batches:
            scores = scores.index_put((batch.take,), learner.policy(batch).logprobs.double())
        yield name, scores


@torch.no_grad()
def learned(learner: Any) -> dict[str, float]:
    """The largest difference between the learner's scores and the oracle's, by how the rows are arranged."""
    truth = expected(learner.policy.model.eval())
    apart = {name: float((scores - truth).abs().max()) for name, scores in by_arrangement(learner)}
    return {"largest": float(truth.abs().max())} | apart


def gradients(learner: Any) -> dict[str, float]:
    """The largest difference between the learner's gradient and the oracle's, relative to its largest element, by arrangement."""
    model = learner.policy.model.eval()

    def of(scores: torch.Tensor) -> torch.Tensor:
        model.zero_grad()
        (scores * torch.linspace(-1, 1, len(scores), dtype=torch.float64)).sum().backward()
        return torch.cat([p.grad.double().flatten() for p in model.parameters() if p.grad is not None])

    truth = of(expected(model))
    return {name: float((of(scores) - truth).abs().max() / truth.abs().max()) for name, scores in by_arrangement(learner)}


@torch.no_grad()
def rounded(model: Any) -> dict[str, float]:
    """By arrangement, how many times farther than a plain pass a learner in bfloat16 is from float32, on average."""
    truth = expected(model.eval())
    AcceleratorState._reset_state(reset_partial_state=True)
    accelerator = Accelerator(cpu=True, mixed_precision="bf16")
    with accelerator.autocast():
        try:
            alone = float((expected(model.eval()) - truth).abs().mean())
        except RuntimeError:  # this family's own code in transformers cannot be computed under autocast
            return {"alone": float("nan")}
        learner = Learner(
            model, build("algorithm", "grpo"), OptimizationSettings(), accelerator=accelerator, total_steps=1, temperature=TEMPERATURE
        )
        apart = {name: float((scores - truth).abs().mean()) / alone for name, scores in by_arrangement(learner)}
    return {"alone": alone} | apart


def sampled(sampler: Any, model: Any) -> dict[str, float]:
    """The largest difference between the sampler's log-probabilities and the oracle's, of what it samples itself."""
    dice = random.Random(2)
    prompts = [[dice.randrange(VOCABULARY) for _ in range(length)] for length in (1, 3, 3, 9, 20)]
    requests = [Request(prompts[i % 5], 1 + 7 * i % 24, seed=i) for i in range(15)]
    worst = 0.0
    for request, said in zip(requests, sampler.sample(requests, SamplingParams(TEMPERATURE, stop_ids=frozenset({0}))), strict=True):
        truth = oracle(model, [*request.prompt, *said.tokens])[len(request.prompt) - 1 :].detach()
        worst = max(worst, float((torch.tensor(said.logprobs, dtype=torch.float64) - truth).abs().max()))
    return {"sampled": worst}


def examined(family: str, steps: int) -> dict[str, Any]:
    """The line of one family."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    line: dict[str, Any] = {"family": family, "state": "absent"}
    try:
        model = AutoModelForCausalLM.from_config(CONFIG_MAPPING[family](**settings(family))).float().eval()
        oracle(model, [1, 2, 3])
    except Exception as error:  # each version of transformers has other families and checks
        return line | {"why": f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"}
    try:
        sampler = build("sampler", "hf", batch_size=7)
        sampler.setup(build("env", "arithmetic"), CharTokenizer(), precision="float32", max_length=64)
        slow = sampler.validate_model(model)
        line |= {"sampler": sampler.kind.__name__, "slow": bool(slow)}
        table = run_numerics_checks(model, sampler, CharTokenizer("0123456789"), temperature=TEMPERATURE)  # as before every run
        if why := find_untrainable_reason(family, table):
            return line | {"state": "refused", "why": why}
        learner = Learner(
            model, build("algorithm", "grpo"), OptimizationSettings(learning_rate=1e-2), accelerator=Accelerator(cpu=True), total_steps=steps,
            temperature=TEMPERATURE,
        )  # fmt: skip
        line |= {"learner": "padded" if learner.unpackable else "packed", "why_padded": learner.unpackable}
        line["before"] = learned(learner) | sampled(sampler, model)
        for step in range(steps):
            learner.supervise(random.Random(step).sample(rows_of(step % 7), 4))
        sampler.load_model(learner.whole(), 1)
        line["after"] = learned(learner) | sampled(sampler, model)
        line["gradient"] = gradients(learner)
        line["bf16"] = rounded(model)
    except RlvrError as error:
        return line | {"state": "refused", "why": str(error)}
    except Exception as error:  # this is what the sweep looks for
        return line | {"state": "internal", "why": f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"}
    gaps = [
        (gap, 1 + figures["largest"]) for figures in (line["before"], line["after"]) for name, gap in figures.items() if name != "largest"
    ]
    line["worst"] = max(gap for gap, _ in gaps)
    right = all(gap <= BAR * scale for gap, scale in gaps) and max(line["gradient"].values()) <= BAR
    right &= all(value <= ROUNDING for name, value in line["bf16"].items() if name != "alone")
    return line | {"state": "right" if right else "wrong"}


def main() -> int:
    """Examine the families one after another; print a line each and a summary."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", nargs="+", default=list(FAMILIES), metavar="FAMILY", help="some families")
    parser.add_argument("--steps", type=int, default=300, help="steps of training between the comparisons")
    parser.add_argument("--limit", type=float, default=120.0, help="seconds a family may take")
    parser.add_argument("--out", type=Path, help="append the lines to this file; families that are in it are not run again")
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    transformers.utils.logging.set_verbosity_error()
    done = [json.loads(line) for line in asked.out.read_text("utf-8").splitlines()] if asked.out and asked.out.exists() else []
    lines = [line for line in done if line["family"] in asked.only]
    for family in (name for name in asked.only if name not in {line["family"] for line in lines}):
        began = time.monotonic()
        with multiprocessing.get_context("fork").Pool(1) as pool:
            try:
                line = pool.apply_async(examined, (family, asked.steps)).get(asked.limit)
            except multiprocessing.TimeoutError:
                line = {"family": family, "state": "internal", "why": f"no result after {asked.limit:g} s"}
        line["seconds"] = round(time.monotonic() - began, 1)
        print(json.dumps(line), flush=True)
        lines.append(line)
        if asked.out:
            with asked.out.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
    count = Counter(line["state"] for line in lines)
    print(json.dumps({"transformers": transformers.__version__, "steps": asked.steps, "families": len(lines)} | count), file=sys.stderr)
    return int(bool(count["wrong"] or count["internal"]))


if __name__ == "__main__":
    sys.exit(main())
