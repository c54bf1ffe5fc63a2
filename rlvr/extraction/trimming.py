r"""Strip special tokens, invisible characters and approving emoji from the ends of an answer."""

from __future__ import annotations

import re

SPECIAL_TOKENS = (
    ("<|im_end|>", r"<\|/?[a-z][a-z0-9_ ]{2,40}\|>"),
    ("<｜end▁of▁sentence｜>", r"<｜[^｜<>\n]{3,40}｜>"),
    ("</s>", r"</?(?:s|bos|eos)>"),
    ("<end_of_turn>", r"<(?:end_of_turn|end_of_text|end_of_utterance|pad|turn\|)>"),
    ("[EOS]", r"\[(?:EOS|/INST)\]"),
    ("[end of text]", r"\[end of text\]"),
)
"""Tokens that end a turn and may be left in the text: (example, pattern)."""

_SPECIAL_TOKEN_AT_END = re.compile(f"(?:{'|'.join(pattern for _, pattern in SPECIAL_TOKENS)})$", re.IGNORECASE)

INVISIBLE_CHARS = "\u200b\u200c\u200d\u200e\u200f\u2060\ufeff\u00ad\ufe0e\ufe0f"
"""Zero-width characters, direction marks and variation selectors."""
APPROVING_EMOJI = "✅✔✓☑⭐✨🎉🎊🎯👍😊🙂😀😃😄🚀💡🏆🔥👏🥳🌟∎■□"
"""Emoji that approve an answer, and end-of-proof marks. A cross, a thumbs-down and a question mark are not included."""
_STRIPPED_AT_END = INVISIBLE_CHARS + APPROVING_EMOJI


def strip_trailing_special_tokens(text: str) -> str:
    """Strip special tokens and whitespace from the end of a text.

    >>> strip_trailing_special_tokens("Answer: 16<|eot_id|> </s>")
    'Answer: 16'
    """
    return _strip_trailing_tokens(text) if "<" in text or "[" in text else text


def _strip_trailing_tokens(text: str) -> str:
    """Strip trailing special tokens from a text that contains < or [, with which every such token begins."""
    kept = end = len(text)
    while True:
        while end and (text[end - 1].isspace() or text[end - 1] in INVISIBLE_CHARS):
            end -= 1
        match = _SPECIAL_TOKEN_AT_END.search(text[max(0, end - 48) : end]) if end and text[end - 1] in ">]" else None
        if match is None:
            return text[:kept]
        kept = end = end - len(match[0])


def strip_whitespace_and_emoji(text: str) -> str:
    """Strip whitespace, invisible characters and approving emoji from the ends of a declared answer.

    >>> strip_whitespace_and_emoji("42\u200b "), strip_whitespace_and_emoji("12 ✅")
    ('42', '12')
    """
    start, end = 0, len(text)
    while start < end and (text[start].isspace() or text[start] in INVISIBLE_CHARS):
        start += 1
    while end > start and (text[end - 1].isspace() or text[end - 1] in _STRIPPED_AT_END):
        end -= 1
    return text[start:end]
