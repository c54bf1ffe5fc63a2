"""Combine several named verifiers in a weighted mean or sum."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from rlvr.contracts import Transcript, Verifier, VerifierExample, VerifierTraits
from rlvr.errors import ConfigError, require_text_answers
from rlvr.mdp.sessions import await_with_exceptions
from rlvr.registry.plugins import build_from_config, get_plugin_label
from rlvr.task import Fault, Task, Verdict

DEFAULT_COMPONENTS = {"numeric": {"verifier": "numeric"}}


class Composite(Verifier):
    """The weighted mean, or the weighted sum, of named component verifiers. If a component has no score, the answer has no score.

    >>> import rlvr
    >>> parts = {"value": {"verifier": "numeric", "weight": 3}, "text": {"verifier": "exact", "weight": 1}}
    >>> verify = rlvr.make_verifier("composite", components=parts).verify
    >>> verify(rlvr.Task(rlvr.make_user_prompt("2+2="), id="t", reference="4"), "4.0").score
    0.75
    """

    examples = (VerifierExample("4", correct=("4",), incorrect=("5", "4 or 5", "")),)

    def __init__(
        self, *, components: Mapping[Any, Any] | Sequence[Any] = DEFAULT_COMPONENTS, combine: Literal["mean", "sum"] = "mean"
    ) -> None:
        """Set the component verifiers and their weights.

        Args:
            components: for each name a mapping with `verifier` (a name, or a mapping with `name` and settings) and `weight` (default 1);
                or only the weight, where the name is that of a verifier: {symbolic: 0.9, format: 0.1}. With a weight, a function, a
                class or a verifier may stand for the name; its component has the name of the function or the class. Or a list of such
                mappings or of verifiers, whose components are named after them.
            combine: mean: the sum divided by the sum of the weights; sum: the sum itself, a reward that may be above 1, and weights may be
                negative.
        """
        if combine not in ("mean", "sum"):
            raise ConfigError(f"combine is {combine!r:.60}; allowed: mean, sum")
        self.is_sum = combine == "sum"
        if isinstance(components, Sequence) and not isinstance(components, str) and components:
            components = [part if isinstance(part, Mapping) else {"verifier": part} for part in components]
            components = dict(zip(_name_components([_get_verifier(part) for part in components]), components, strict=True))
        if not isinstance(components, Mapping) or not components:
            raise ConfigError(f"parts is {components!r}; it must name at least one: {{value: {{verifier: numeric, weight: 1}}}}")
        components = {
            name: {"verifier": part, "weight": weight} if isinstance(weight, int | float) else weight
            for name, (part, weight) in zip(_name_components(components), components.items(), strict=True)
        }
        self.weights = {name: _parse_weight(name, part, lowest=-math.inf if self.is_sum else 0.0) for name, part in components.items()}
        if not any(self.weights.values()):
            raise ConfigError("all weights are 0; at least one must not be 0")
        self.components: dict[str, Verifier] = {}
        try:
            for name, part in components.items():
                self.components[name] = build_from_config("verifier", part["verifier"])
        except Exception:
            self.close()
            raise

        self.needs_reference = any(part.needs_reference for part in self.components.values())
        self.columns = tuple(dict.fromkeys(column for part in self.components.values() for column in part.columns))
        self.has_bounded_score = all(part.has_bounded_score for part in self.components.values()) and (
            not self.is_sum or (min(self.weights.values()) >= 0 and math.fsum(self.weights.values()) <= 1)
        )
        self.traits = VerifierTraits(
            is_async=any(part.traits.is_async for part in self.components.values()),
            takes_transcript=any(part.traits.takes_transcript for part in self.components.values()),
        )
        self.instruction = " ".join(dict.fromkeys(part.instruction for part in self.components.values() if part.instruction))

    def __repr__(self) -> str:
        total = 1.0 if self.is_sum else math.fsum(self.weights.values())
        return f"<weighted {'sum' if self.is_sum else 'mean'} of {', '.join(f'{weight / total:.3g} {name}' for name, weight in self.weights.items())}>"

    @require_text_answers
    def verify(self, task: Task, answer: str) -> Verdict:
        """Verify with every component, and combine the scores."""
        return self.verify_transcript(task, Transcript(answer))

    def verify_transcript(self, task: Task, transcript: Transcript) -> Verdict:
        """Verify a whole conversation, which every component receives."""
        return self._combine([part.verify_transcript(task, transcript) for part in self.components.values()])

    async def averify(self, task: Task, answer: str) -> Verdict:
        """Verify an answer with every component concurrently, without occupying a thread, and combine the scores."""
        return await self.averify_transcript(task, Transcript(answer))

    async def averify_transcript(self, task: Task, transcript: Transcript) -> Verdict:
        """Verify a whole conversation with every component concurrently, and combine the scores."""
        found = [await_with_exceptions(part.averify_transcript(task, transcript)) for part in self.components.values()]
        return self._combine(await asyncio.gather(*found))

    def _combine(self, found: Sequence[Verdict]) -> Verdict:
        verdicts = dict(zip(self.components, found, strict=True))
        scores: dict[str, float] = {}
        for name, verdict in verdicts.items():
            if verdict.score is None:
                return Verdict(None, f"{name}: {verdict.reason}", fault=verdict.fault, detail=verdict.detail)
            scores[name] = verdict.score
        total = math.fsum(self.weights.values())
        score = math.fsum(self.weights[name] * value for name, value in scores.items())
        if not self.is_sum:
            score = min(max(score / total, min(scores.values())), max(scores.values()))  # rounding must not take it beyond its parts
        fault = Fault.ANSWER if not score and any(v.fault is Fault.ANSWER for v in verdicts.values()) else Fault.NONE
        reasons = [f"{name}: {v.reason}" for name, v in verdicts.items()]
        if (
            not self.is_sum and not math.isclose(total, 1.0) and len(set(self.weights.values())) > 1
        ):  # elsewhere, such as in a rubric, it would be the sum
            reasons.insert(0, f"the mean with the weights {', '.join(f'{weight / total:.3g}' for weight in self.weights.values())}")
        return Verdict(score, "; ".join(reasons), scores, fault)

    def prepare(self) -> None:
        """Check that every component is ready."""
        for part in self.components.values():
            part.prepare()

    def close(self) -> None:
        """Close every component."""
        for part in self.components.values():
            part.close()


def _name_components(parts: Iterable[Any]) -> list[str]:
    """Return a name for each component; those with one name, such as lambdas, are numbered: f, f_2.

    >>> _name_components(["exact", lambda answer: 1, lambda answer: 0, "exact"])
    ['exact', 'lambda', 'lambda_2', 'exact_2']
    """
    parts = list(parts)
    reserved, names = {part for part in parts if isinstance(part, str)}, list[str]()
    for part in parts:
        label = name = get_plugin_label(part)
        number = 1
        while name in names or (name in reserved and name != part):
            number += 1
            name = f"{label}_{number}"
        names.append(name)
    return names


def _get_verifier(component: Any) -> Any:
    """Return what names the verifier of a component of a list."""
    verifier = component.get("verifier") if isinstance(component, Mapping) else component
    return verifier.get("name", "mix") if isinstance(verifier, Mapping) else verifier


def _parse_weight(name: str, component: Any, *, lowest: float) -> float:
    if not isinstance(component, Mapping) or "verifier" not in component or set(component) - {"verifier", "weight"}:
        raise ConfigError(f"part {name!r} is {component!r}; it must be {{verifier: NAME, weight: NUMBER}}, or a weight")
    weight = component.get("weight", 1.0)
    if isinstance(weight, bool) or not isinstance(weight, int | float) or not lowest <= weight < math.inf or not math.isfinite(weight):
        raise ConfigError(f"the weight of {name!r} is {weight!r}; it must be a number{'' if lowest else ' of at least 0'}")
    return float(weight)


make = Composite
