"""Tasks for the real inspect_ai: one with a text to match, one with several choices."""

from __future__ import annotations

from inspect_ai import Task, task
from inspect_ai.dataset import Sample
from inspect_ai.scorer import choice, match
from inspect_ai.solver import generate, multiple_choice, system_message

NUMBERS = range(10, 40)


@task
def doubled() -> Task:
    """Doubles, by match."""
    samples = [Sample(input=f"What is {n} + {n}?", target=str(2 * n)) for n in NUMBERS]
    return Task(dataset=samples, solver=[system_message("Add."), generate()], scorer=match())


@task
def chosen() -> Task:
    """Doubles, by letter."""
    samples = [Sample(input=f"What is {n} + {n}?", choices=[str(n), str(2 * n), str(3 * n)], target="B") for n in NUMBERS]
    return Task(dataset=samples, solver=multiple_choice(), scorer=choice())
