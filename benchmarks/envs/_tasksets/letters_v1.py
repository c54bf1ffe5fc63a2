"""A taskset of verifiers v1 whose prompts are lists of messages, and whose reward is a plain function of the last reply."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import verifiers.v1 as vf  # noqa: TID251  # the package, not our folder

__all__ = ["LetterTaskset"]
WORDS = (
    "banana",
    "committee",
    "bookkeeper",
    "mississippi",
    "balloon",
    "rhythm",
    "success",
    "parallel",
    "assess",
    "coffee",
    "address",
    "tattoo",
)


class LetterData(vf.TaskData):
    """The word and the letter."""

    word: str = ""
    letter: str = ""


class LetterTask(vf.Task[LetterData]):
    """One word and one letter."""

    @vf.reward
    async def counted(self, trace: Any) -> float:
        """Whether the number is right."""
        return float((trace.last_reply or "").strip() == str(self.data.word.count(self.data.letter)))


class LetterTaskset(vf.Taskset[LetterTask, vf.TasksetConfig]):
    """How often a letter is in a word."""

    def load(self) -> Iterable[LetterTask]:
        """All tasks."""
        pairs = [(word, letter) for word in WORDS for letter in sorted(set(word))]
        return [
            LetterTask(
                LetterData(
                    idx=number,
                    prompt=[vf.UserMessage(content=f"How many letters {letter} are in {word}?")],
                    word=word,
                    letter=letter,
                ),
                self.config.task,
            )
            for number, (word, letter) in enumerate(pairs)
        ]
