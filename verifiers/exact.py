"""Compare two texts exactly, after an optional normalisation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from rlvr.contracts import Verifier, VerifierExample
from rlvr.errors import require_text_answers
from rlvr.extraction import extract_answer
from rlvr.task import Fault, Task, Verdict
from rlvr.verifiers._markup import strip_markdown_and_latex
from rlvr.verifiers._unicode import normalize_unicode


class Exact(Verifier):
    """The declared answer equals the reference, or one of the references in a list.

    >>> import rlvr
    >>> verify = rlvr.make_verifier("exact", ignore_case=True).verify
    >>> verify(rlvr.Task(rlvr.make_user_prompt("The capital of France?"), id="t", reference="Paris"), " paris ").score
    1.0
    """

    instruction = "Give only the answer, without any other words."
    examples = (
        VerifierExample(
            "Paris", correct=("Paris", " Paris\n"), incorrect=("paris", "Paris!", "Paris or Rome", "It is Paris", "Par is", "")
        ),
        VerifierExample(["4", "four"], correct=("4", "four"), incorrect=("4 four", "['4', 'four']")),
    )

    def __init__(self, *, extractor: str = "whole", ignore_case: bool = False, markdown: bool = False) -> None:
        """Set where the answer is declared and which differences are ignored.

        Args:
            extractor: where the answer is declared: whole, boxed, tag, hash, final_line, fence or auto.
            ignore_case: whether upper and lower case count as equal.
            markdown: whether Markdown and LaTeX markup is removed, so that `**Paris**` is `Paris`.
        """
        extract_answer("", extractor)  # raises now for an unknown extractor, not at the first answer
        self.extractor, self.ignore_case, self.markdown = extractor, ignore_case, markdown

    @require_text_answers
    def verify(self, task: Task, answer: str) -> Verdict:
        """Compare the declared text with the reference."""
        allowed = task.reference if isinstance(task.reference, list | tuple) else [task.reference]
        if not allowed or not all(isinstance(text, str) and text.strip() for text in allowed):
            return Verdict(None, f"the reference {task.reference!r:.80} is neither a text nor a list of texts", fault=Fault.TASK)
        found = extract_answer(answer, self.extractor)
        if found.text is None:
            return Verdict(0.0, f"no answer: {found.reason}")
        said = strip_markdown_and_latex(found.text) if self.markdown else found.text
        right = self._normalize(said) in {self._normalize(text) for text in allowed}
        return Verdict(float(right), f"{found.text!r:.80} {'is' if right else 'is not'} {' or '.join(map(repr, allowed)):.120}")

    @property
    def explained_functions(self) -> Sequence[tuple[str, Callable[..., Any]]]:
        """Return the functions whose results are steps of an explanation."""
        return (("without markup", strip_markdown_and_latex),)

    def _normalize(self, text: str) -> str:
        text = normalize_unicode("NFC", text.strip())
        return text.casefold() if self.ignore_case else text


make = Exact
