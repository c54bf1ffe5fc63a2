"""Require a declared format, and verify the content with another verifier.

The format multiplies the score and never adds to it: a well-formed wrong answer scores 0, so the format alone is not rewarded.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from rlvr.contracts import Verifier, VerifierExample, VerifierTraits
from rlvr.errors import ConfigError, require_text_answers
from rlvr.task import Task, Verdict

TAG_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")
TAG_MARK = re.compile(r"<(/?)([A-Za-z][A-Za-z0-9_-]*)>")


class Structure(Verifier):
    """The answer is the declared sections, in order, each once, and nothing outside them.

    >>> import rlvr
    >>> verify = rlvr.make_verifier("structure", verifier="numeric").verify
    >>> task = rlvr.Task(rlvr.make_user_prompt("2+2="), id="t", reference="4")
    >>> verify(task, "<think>two and two</think><answer>4</answer>").score, verify(task, "4").score
    (1.0, 0.0)
    """

    needs = {"verifier": "numeric"}
    examples = (
        VerifierExample(
            "4",
            correct=("<think>2+2</think>\n<answer>4</answer>", "<think></think><answer> 4 </answer>"),
            incorrect=(
                "4",
                "<answer>4</answer>",
                "<answer>4</answer><think>2+2</think>",
                "<think>2+2</think><answer>5</answer>",
                "<think>2+2</think><answer>4</answer><answer>5</answer>",
                "<think>2+2</think><answer>4</answer> or 5",
                "<think>2+2</think><answer>4",
            ),
        ),
    )

    def __init__(
        self,
        *,
        verifier: Verifier,
        sections: Sequence[str] = ("think", "answer"),
        answer_section: str = "answer",
        malformed_factor: float = 0.0,
    ) -> None:
        """Declare the format.

        Args:
            verifier: verifies the content of the answer section.
            sections: the tags, in the required order.
            answer_section: the section with the answer.
            malformed_factor: the factor for the score of a malformed answer, from 0 (scores 0) to 1 (the format does not matter).
        """
        if isinstance(sections, str) or not sections or not all(isinstance(s, str) and TAG_NAME.fullmatch(s) for s in sections):
            raise ConfigError(f"sections is {sections!r}; it must be a list of tag names, such as ['think', 'answer']")
        if len(set(sections)) != len(sections):
            raise ConfigError(f"sections {list(sections)!r} names a section twice; name each one once")
        if answer_section not in sections:
            raise ConfigError(f"answer_section is {answer_section!r}; it must be one of the sections: {', '.join(sections)}")
        if isinstance(malformed_factor, bool) or not isinstance(malformed_factor, int | float) or not 0 <= malformed_factor <= 1:
            raise ConfigError(f"malformed_factor is {malformed_factor!r}; it must be a number from 0 to 1")
        self.verifier, self.sections, self.answer_section, self.malformed_factor = (
            verifier,
            tuple(sections),
            answer_section,
            float(malformed_factor),
        )
        self.has_bounded_score = verifier.has_bounded_score
        self.traits = VerifierTraits(is_async=verifier.traits.is_async)

    @require_text_answers
    def verify(self, task: Task, answer: str) -> Verdict:
        """Verify the content of the answer section, and multiply its score by `malformed_factor` if the format is wrong.

        An answer in a wrong format is verified as a whole; with a factor of 0 the score is 0, and nothing is verified.
        """
        content, flaw = self._split_content(answer)
        return self._apply_format(Verdict(0.0, "") if content is None else self.verifier.verify(task, content), flaw)

    async def averify(self, task: Task, answer: str) -> Verdict:
        """Parse the format, await the verdict on the content, multiply the scores."""
        content, flaw = self._split_content(answer)
        return self._apply_format(Verdict(0.0, "") if content is None else await self.verifier.averify(task, content), flaw)

    def _split_content(self, answer: str) -> tuple[str | None, str]:
        """Return the text for the inner verifier (None if it is not needed) and what is wrong with the format."""
        contents, flaw = parse_sections(answer, self.sections)
        return (contents[self.answer_section] if not flaw else answer if self.malformed_factor else None), flaw

    def _apply_format(self, inner: Verdict, flaw: str) -> Verdict:
        if flaw and not self.malformed_factor:
            return Verdict(0.0, f"format: {flaw}", components={"format": 0.0, "content": 0.0})
        if inner.score is None:
            return inner
        form = self.malformed_factor if flaw else 1.0
        reason = f"format: {flaw}; {inner.reason}" if flaw else inner.reason
        score = form * inner.score if inner.score > 0 else inner.score  # a factor would raise a negative score
        return Verdict(score, reason, {**inner.components, "format": form, "content": inner.score}, inner.fault, inner.detail)

    def close(self) -> None:
        """Close the inner verifier."""
        self.verifier.close()


def parse_sections(text: str, sections: Sequence[str]) -> tuple[dict[str, str], str]:
    """Parse the content of each section; the second value says what is wrong with the format.

    >>> parse_sections("<think>a</think><answer>b</answer>", ["think", "answer"])
    ({'think': 'a', 'answer': 'b'}, '')
    >>> parse_sections("<answer>b</answer>", ["think", "answer"])[1]
    '<think> is missing or out of order'
    """
    marks = [mark for mark in TAG_MARK.finditer(text) if mark[2] in sections]
    contents: dict[str, str] = {}
    end = 0
    for i, name in enumerate(sections):
        pair = marks[2 * i : 2 * i + 2]
        if not pair or (pair[0][1], pair[0][2]) != ("", name):
            return {}, f"<{name}> is missing or out of order"
        if len(pair) < 2 or (pair[1][1], pair[1][2]) != ("/", name):
            return {}, f"<{name}> is not closed before the next tag"
        if text[end : pair[0].start()].strip():
            return {}, f"there is text before <{name}>"
        contents[name] = text[pair[0].end() : pair[1].start()]
        end = pair[1].end()
    if len(marks) > 2 * len(sections):
        return {}, f"<{marks[2 * len(sections)][2]}> is used more than once"
    if text[end:].strip():
        return {}, f"there is text after </{sections[-1]}>"
    return contents, ""


make = Structure
