"""Read a conversation back from the tokens of a stored row, for formats that store messages.

Nothing is guessed: if this tokenizer renders the prompt or a reply differently, the conversation cannot be read.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import groupby
from pathlib import Path
from typing import Any

from rlvr.contracts import Tokenizer
from rlvr.errors import RlvrError
from rlvr.mdp.tokenizers import tokenizer_from

MARK = "0"
"""A placeholder for a reply, to find the text that a tokenizer puts around one."""


def messages_of(row: Mapping[str, Any], tokenizer: Tokenizer) -> list[dict[str, str]] | None:
    """The messages after the prompt: the policy's turns and the environment's replies, alternating; None if they cannot be read back.

    >>> messages_of({"prompt": user("2+2="), "tokens": [1, 6, 14, 6, 15, 2, 8, 0], "acted": [0] * 6 + [1, 1]}, tokenizer)  # doctest: +SKIP
    [{'role': 'assistant', 'content': '4'}]
    """
    try:
        given = tokenizer.render(row["prompt"])
        if row["tokens"][: len(given)] != given:
            return None
        before, _, after = tokenizer.decode(tokenizer.render_reply(MARK)).partition(MARK)
        turns = []
        later = list(zip(row["tokens"], row["acted"], strict=True))[len(given) :]
        for own, stretch in groupby(later, key=lambda pair: bool(pair[1])):
            ids = [token for token, _ in stretch]
            text = tokenizer.decode(ids)
            if not own:
                text = text.removeprefix(before).removesuffix(after)
                if tokenizer.render_reply(text) != ids:
                    return None
            turns.append({"role": "assistant" if own else "user", "content": text})
    except (IndexError, OverflowError, ValueError):  # ids that this tokenizer does not have
        return None
    return turns


def tokenizer_of(spec: str) -> Tokenizer | None:
    """The tokenizer that a stored run names; None if it is not on this machine. Policies without a tokenizer use bytes."""
    try:
        return tokenizer_from(spec if spec.startswith(("chars", "bytes")) or Path(spec).is_dir() else "bytes")
    except (RlvrError, OSError):
        return None
