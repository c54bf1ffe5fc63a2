"""Verify the form of an answer, not its content: tags, a pattern, length, language. No reference is needed.

Alone it rewards any well-formed answer, so use it as one component of a reward: `verifier: {symbolic: 0.9, format: 0.1}`.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Sequence

from rlvr.contracts import Verifier, VerifierExample
from rlvr.errors import ConfigError, format_suggestion, require_text_answers
from rlvr.task import Fault, Task, Verdict
from rlvr.verifiers._languages import LANGUAGES, find_language_mismatch
from rlvr.verifiers._workers.pool import PATTERNS_FILE, BudgetExceeded, TwoLanePool, WorkersFailed
from rlvr.verifiers.structure import TAG_NAME, parse_sections

MAX_PATTERN_TEXT_CHARS, PATTERN_CPU_S = 20_000, 0.5
"""Maximum length of a text that is matched with a pattern, and maximum CPU seconds; beyond either the text does not match."""


_BLANKS = re.compile("[\\s\u00ad\u115f\u1160\u180e\u200b\u2060\u2800\u3164\ufeff\uffa0]+")
"""White space, and characters that look like it or like nothing."""


class Format(Verifier):
    """Score the form of an answer: 1 if all requirements are met, else 0, or with `partial` the fraction that is met.

    >>> import rlvr
    >>> verify = rlvr.make_verifier("format", tags=["think", "answer"], max_words=50).verify
    >>> verify(rlvr.Task(rlvr.make_user_prompt("2+2="), id="t", reference=None), "<think>two and two</think><answer>4</answer>").score
    1.0
    """

    needs_reference = False
    version = "4"  # 3: the language by sequences of letters; 4: what cannot be seen is no word and fills no section
    examples = (
        VerifierExample(
            None,
            correct=("<think>2+2</think>\n<answer>4</answer>", "<think>no idea</think><answer>5</answer>"),
            incorrect=(
                "4",
                "<answer>4</answer>",
                "<answer>4</answer><think>2+2</think>",
                "<think></think><answer>4</answer>",
                "<think>2+2</think><answer> </answer>",
                "<think>2+2</think><answer>4</answer><answer>5</answer>",
                "<think>2+2</think><answer>4</answer> Done.",
                "<think>2+2</think><answer>4",
                "<think><answer>4</answer></think>",
            ),
        ),
    )

    def __init__(
        self,
        *,
        tags: Sequence[str] | None = None,
        pattern: str = "",
        min_words: int = 0,
        max_words: int | None = None,
        language: str = "",
        partial: bool = False,
    ) -> None:
        """Set the requirements; without any, the tags think and answer are required.

        Args:
            tags: sections that the answer consists of, in this order, none of them empty and nothing outside them.
            pattern: a regular expression that the whole answer matches (a dot matches line ends too).
            min_words: the smallest number of words.
            max_words: the largest number of words.
            language: the language of the answer, such as en, de, zh; formulas, code and numbers are ignored. It is told by the script, and
                in Latin script by sequences of letters: fewer than five words, or text that fits two languages, are accepted in both.
            partial: whether an answer that meets some requirements scores their fraction.
        """
        if tags is None and not (pattern or min_words or max_words or language):
            tags = ("think", "answer")
        if tags is not None and (isinstance(tags, str) or not all(isinstance(t, str) and TAG_NAME.fullmatch(t) for t in tags)):
            raise ConfigError(f"tags is {tags!r}; it must be a list of tag names, such as [think, answer]")
        for name, value in (("min_words", min_words), ("max_words", max_words)):
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 0):
                raise ConfigError(f"{name} is {value!r}; it must be a whole number")
        if max_words is not None and max_words < min_words:
            raise ConfigError(f"max_words is {max_words}, and min_words is {min_words}; no answer could have the right length")
        if language and language not in LANGUAGES:
            raise ConfigError(f"language is {language!r}; {format_suggestion(language, LANGUAGES, max_names=40)}")
        self.tags, self.pattern, self.partial = tuple(tags or ()), _validate_pattern(pattern), partial
        self.word_limits, self.language = (min_words, max_words), language
        self.matcher = (
            TwoLanePool(1, cpu_s=PATTERN_CPU_S, memory_mb=1024, handler_file=PATTERNS_FILE, work_name="matching") if pattern else None
        )
        self.instruction = _build_tags_instruction(self.tags)

    @require_text_answers
    def verify(self, task: Task, answer: str) -> Verdict:
        """Test each requirement. The reference is not read."""
        tests: dict[str, Callable[[str], str]] = {}
        if self.tags:
            tests["tags"] = self._check_tags
        if self.word_limits != (0, None):
            tests["length"] = self._check_length
        if self.language:
            tests["language"] = lambda text: find_language_mismatch(text, self.language)
        if self.matcher is not None:
            question = {
                "do": "match",
                "pattern": self.pattern,
                "flags": int(re.DOTALL),
                "text": answer[: MAX_PATTERN_TEXT_CHARS + 1].strip(),
                "search": False,
            }
            try:
                matched = len(answer) <= MAX_PATTERN_TEXT_CHARS and bool(self.matcher.send_request(question).get("same"))
            except BudgetExceeded:
                matched = False  # its own text made the comparison long
            except WorkersFailed as error:
                return Verdict(None, f"the process that compares patterns failed: {error}", fault=Fault.INFRA)
            tests["pattern"] = lambda _: "" if matched else f"does not match the pattern {self.pattern!r:.80}"
        if not _has_visible_character(answer):
            return Verdict(0.0, "the answer is empty", dict.fromkeys(tests, 0.0))
        flaws = {name: test(answer) for name, test in tests.items()}
        parts = {name: float(not flaw) for name, flaw in flaws.items()}
        share = sum(parts.values()) / len(parts)
        return Verdict(share if self.partial else float(share == 1), "; ".join(filter(None, flaws.values())) or "well-formed", parts)

    def prepare(self) -> None:
        """Start the process that compares patterns."""
        if self.matcher is not None:
            self.matcher.start_workers()

    def close(self) -> None:
        """Stop the process that compares patterns."""
        if self.matcher is not None:
            self.matcher.close()

    def _check_tags(self, text: str) -> str:
        contents, flaw = parse_sections(text, self.tags)
        return flaw or next((f"<{name}> is empty" for name, content in contents.items() if not _has_visible_character(content)), "")

    def _check_length(self, text: str) -> str:
        words, (least, most) = [word for word in _BLANKS.split(text) if _has_visible_character(word)], self.word_limits
        if most is not None and len(words) > most:
            return f"{len(words)} words, more than {most}"
        count = sum(any(map(str.isalnum, word)) for word in words)  # `- - -` is none
        return f"{count} words, fewer than {least}" if count < least else ""


def _has_visible_character(text: str) -> bool:
    r"""Whether a text has a character that is seen.

    >>> _has_visible_character(" \u200b\u3164"), _has_visible_character(" .")
    (False, True)
    """
    return any(unicodedata.category(sign)[0] not in "CZM" for sign in _BLANKS.sub("", text))


def _validate_pattern(pattern: str) -> str:
    """Check a configured pattern and return it; ConfigError if it is invalid or accepts an empty answer.

    >>> _validate_pattern("Answer: [0-9]+")
    'Answer: [0-9]+'
    """
    try:
        made = re.compile(pattern, re.DOTALL)
    except re.error as error:
        raise ConfigError(f"pattern {pattern!r:.120} is not a regular expression: {error}") from error
    if pattern and made.fullmatch(""):
        raise ConfigError(f"pattern {pattern!r:.120} accepts an empty answer; require something")
    return pattern


def _build_tags_instruction(tags: Sequence[str]) -> str:
    """Format the instruction that asks for the tags.

    >>> _build_tags_instruction(["think", "answer"])
    'Answer in the form <think>...</think><answer>...</answer>, with nothing outside.'
    """
    return f"Answer in the form {''.join(f'<{tag}>...</{tag}>' for tag in tags)}, with nothing outside." if tags else ""


make = Format
