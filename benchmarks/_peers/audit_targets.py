"""The reward functions of other projects, as plain functions that `rlvr audit` can call; `benchmarks/judging/audits.py` installs them.

Each project's own code is called; only the shape of the call is here. Modules are loaded by their file where importing the whole project
would need packages that its scorer does not use.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.util
import sys
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any

DATASETS = (
    "chain_sum", "basic_arithmetic", "gcd", "leg_counting", "number_sorting", "letter_counting", "spell_backward", "base_conversion",
    "fraction_simplification", "simple_equations",
)  # fmt: skip
"""Of reasoning-gym: ten data sets whose answer is unique."""
TASKS, SEED = 12, 7
SITES = [path for path in sys.path if path.endswith("site-packages")]


@lru_cache
def _module(package: str, file: str) -> ModuleType:
    """A module of a package by its file, without importing the package."""
    spec = importlib.machinery.PathFinder.find_spec(package, SITES)
    if spec is None or spec.origin is None:
        raise ImportError(f"{package} is not installed here")
    path = Path(spec.origin).parent / file
    name = "peer_" + file.removesuffix(".py").removesuffix("/__init__").replace("/", "_")
    folder = [str(path.parent)] if path.name == "__init__.py" else None
    found = importlib.util.spec_from_file_location(name, path, submodule_search_locations=folder)
    if found is None or found.loader is None:
        raise ImportError(f"{path} cannot be imported")
    module = sys.modules[name] = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


def _positive(score: Any) -> float:
    """A reward from -1 to 1 as a share."""
    value = score.get("score") if isinstance(score, dict) else score
    return max(float(value), 0.0)


def math_verify(answer: str, reference: str) -> float:
    """math-verify as its README shows it: the gold and the answer are parsed, and compared."""
    from math_verify import parse, verify

    return float(verify(parse(f"${reference}$"), parse(answer)))


def trl_accuracy(answer: str, reference: str) -> float | None:
    """`accuracy_reward` of TRL."""
    from trl.rewards import accuracy_reward

    return accuracy_reward(completions=[[{"role": "assistant", "content": answer}]], solution=[f"${reference}$"])[0]  # type: ignore[no-any-return]


def verl_math(answer: str, reference: str) -> float:
    """The scorer of MATH in verl."""
    return _positive(_module("verl", "utils/reward_score/math_reward.py").compute_score(answer, reference))


def verl_math_dapo(answer: str, reference: str) -> float:
    """The scorer of DAPO in verl."""
    return _positive(_module("verl", "utils/reward_score/math_dapo.py").compute_score(answer, reference))


def verl_prime_math(answer: str, reference: str) -> float:
    """The scorer of PRIME, as verl has it."""
    for name in ("verl", "verl.utils"):  # the whole of verl needs Ray
        package = sys.modules.setdefault(name, ModuleType(name))
        package.__path__ = [str(Path(path, *name.split("."))) for path in SITES]
    scored = _module("verl", "utils/reward_score/prime_math/__init__.py").compute_score(answer, reference)
    return _positive(scored[0] if isinstance(scored, tuple) else scored)


def verl_gsm8k(answer: str, reference: str) -> float:
    """The scorer of GSM8K in verl, with the line ####."""
    return _positive(_module("verl", "utils/reward_score/gsm8k.py").compute_score(answer, reference, method="strict"))


def verl_gsm8k_flexible(answer: str, reference: str) -> float:
    """The same, with the last number."""
    return _positive(_module("verl", "utils/reward_score/gsm8k.py").compute_score(answer, reference, method="flexible"))


def prime_math(answer: str, reference: str) -> float:
    """The scorer of mathematics of Prime Intellect's `verifiers`."""
    for name in ("verifiers", "verifiers.v1"):  # the whole of it needs packages that its scorer does not use
        package = sys.modules.setdefault(name, ModuleType(name))
        package.__path__ = [str(Path(path, *name.split("."))) for path in SITES]
    sys.modules.setdefault("verifiers.v1.errors", ModuleType("verifiers.v1.errors")).__dict__.setdefault("SandboxError", OSError)
    score = _module("verifiers", "v1/utils/score.py")
    return float(score.verify_boxed_math_answer(answer, reference))


def lm_eval_math(answer: str, reference: str) -> float:
    """lm-evaluation-harness, `hendrycks_math`: the last box, compared as text."""
    utils = _module("lm_eval", "tasks/hendrycks_math/utils.py")
    found = utils.process_results({"solution": rf"\boxed{{{reference}}}", "problem": "?"}, [answer])
    return float(found["exact_match"])


def lm_eval_gsm8k(answer: str, reference: str) -> float:
    """lm-evaluation-harness, `gsm8k` with `flexible-extract`: the last number, as its YAML file has the pattern."""
    import re

    found = re.findall(r"(-?[$0-9.,]{2,})|(-?[0-9]+)", answer)
    last = next((part for part in found[-1] if part), "") if found else "[invalid]"

    def plain(text: str) -> str:
        for pattern in (",", r"\$", "(?s).*#### ", r"\.$"):
            text = re.sub(pattern, "", text)
        return text.lower()

    return float(plain(last) == plain(reference))


def _gym(name: str) -> Callable[[str, str, str], float]:
    """The scorer of one data set of reasoning-gym; the question says which entry is meant."""

    @lru_cache
    def data() -> tuple[Any, dict[str, Any]]:
        import reasoning_gym

        made = reasoning_gym.create_dataset(name, size=TASKS, seed=SEED)
        return made, {entry["question"]: entry for entry in made}

    def score(answer: str, reference: str, question: str) -> float:
        made, entries = data()
        return float(made.score_answer(answer, entries[question]))

    return score


for _name in DATASETS:
    globals()[f"gym_{_name}"] = _gym(_name)
MATHS = ("math_verify", "trl_accuracy", "verl_math", "verl_math_dapo", "verl_prime_math", "prime_math", "lm_eval_math")
NUMBERS = ("verl_gsm8k", "verl_gsm8k_flexible", "lm_eval_gsm8k")
