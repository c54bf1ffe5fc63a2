"""Prevent text from becoming control tokens: a reply that spells `<|im_end|>` is encoded as ten characters and does not end a turn.

In the output of a chat template, the template's own control tokens and the contents of messages look alike. To distinguish them, the
conversation is rendered twice: unchanged, and *masked*, with placeholders for every character of a content that could start a control
token. Control tokens in the masked text belong to the template. If both texts have the same control tokens, the ids of the plain text
are used. Otherwise the masked text is encoded by a copy of the tokenizer in which control tokens have secret names, and the contents
are restored.
"""

from __future__ import annotations

import json
import re
import secrets
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property, lru_cache
from typing import Any

from rlvr.errors import EnvError

AUTHORS = frozenset({"assistant", "system", "developer"})
"""Roles whose text comes from the task's author. Marks such as <think> remain tokens there, as in the policy's text."""
FIXED_KEYS = frozenset({"role", "type"})


class ControlTokens:
    """The control tokens of one Hugging Face tokenizer, and how to encode text without forging any.

    `reserved_ids` are the special tokens and the added stop tokens: no text may produce them. `mark_ids` are other added tokens that the
    chat template writes, such as <think> or </tool_response>: texts of users and tools may not produce them.
    """

    def __init__(self, tokenizer: Any, stop_ids: Iterable[int]) -> None:
        self.tokenizer = tokenizer
        source = template_source(tokenizer.chat_template)
        added: dict[int, Any] = dict(tokenizer.added_tokens_decoder)
        hard = {*tokenizer.all_special_ids, *(i for i, token in added.items() if token.special)} - {tokenizer.unk_token_id}
        self.hard = frozenset(int(i) for i in hard | (added.keys() & set(stop_ids)))  # other stop ids are ordinary text
        self.marks = frozenset(i for i, token in added.items() if i not in self.hard and is_mark(token.content, source))
        self.ids = self.hard | self.marks
        self.names = {i: str(added[i].content if i in added else tokenizer.convert_ids_to_tokens(i)) for i in sorted(self.ids)}
        self.names = {i: name for i, name in self.names.items() if name.strip()}
        self.nonce = "q" + secrets.token_hex(6)
        """A random string that no earlier text can contain."""
        self._any = _one_of(self.names.values())
        self._hard = _one_of(self.names[i] for i in self.hard if i in self.names)
        self._marks = _one_of(self.names[i] for i in self.marks if i in self.names)
        first = {name: next((char for char in name if not char.isalnum() and not char.isspace()), name) for name in self.names.values()}
        chars = {char for char in first.values() if len(char) == 1 and not char.isalnum()}
        words = [re.escape(name) for name in first.values() if name not in chars and first[name] == name]
        self._opening = re.compile(
            "|".join([*sorted(words, key=len, reverse=True), *map(re.escape, look_alikes(frozenset(chars)))]) or "(?!)"
        )
        self._masked = re.compile(self.nonce + "h([0-9a-f]+)z")

    def read(self, text: str) -> list[int]:
        """Encode a text as it is, including every control token that it spells."""
        return [int(i) for i in self.tokenizer.encode(text, add_special_tokens=False)]

    def among(self, ids: Iterable[int]) -> list[int]:
        """Return the control tokens of a sequence, in order."""
        return [i for i in ids if i in self.ids]

    def spelled(self, text: str) -> Iterator[re.Match[str]]:
        """Yield the matches where a text spells control tokens."""
        return self._any.finditer(text)

    def mask(self, value: Any, *, author: bool = False) -> Any:
        """Replace every character of a content that could start a control token with a placeholder."""
        if isinstance(value, str):
            return self._mask_text(value, author)
        if isinstance(value, Mapping):
            author = author or value.get("role") in AUTHORS
            return {key: item if key in FIXED_KEYS else self.mask(item, author=author) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.mask(item, author=author) for item in value]
        return value

    def forged(self, value: Any, *, author: bool = False) -> bool:
        """Return whether a content spells a control token that it may not produce."""
        if isinstance(value, str):
            return (self._hard if author else self._any).search(value) is not None
        if isinstance(value, Mapping):
            author = author or value.get("role") in AUTHORS
            if named := [text for text in (*value, value.get("role")) if isinstance(text, str) and self._any.search(text)]:
                raise EnvError(f"{named[0]!r} is the name of a field or a role and contains a control token; use plain words there")
            return any(self.forged(item, author=author) for item in value.values())
        return isinstance(value, list | tuple) and any(self.forged(item, author=author) for item in value)

    def encode(self, text: str | None, masked: str) -> list[int]:
        """Encode `text` with the control tokens of `masked` and no others. `text` is None if it is known to spell forbidden ones."""
        if text == masked:
            return self.read(masked)
        frame = self.among(self.read(masked))
        if text is not None and self.among(ids := self.read(text)) == frame:
            return ids
        for inert in (self._renamed(masked), self.read(self._unmasked(masked, after=" "))):
            if inert is not None and self.among(inert) == frame:
                return inert
        raise EnvError("a message spells control tokens that this tokenizer cannot encode as plain text; leave them out of the message")

    def encode_text(self, text: str) -> list[int]:
        """Encode a text of the policy: marks become tokens, special tokens do not."""
        masked = self._mask_text(text, True)
        return self.encode(None if masked != text and self._hard.search(text) else text, masked)

    def _mask_text(self, text: str, author: bool) -> str:
        if not self._opening.search(text):
            return text
        if not author:
            return self._opening.sub(self._placeholder, text)
        parts, at = [], 0
        for mark in self._marks.finditer(text):
            parts += [self._opening.sub(self._placeholder, text[at : mark.start()]), mark[0]]
            at = mark.end()
        return "".join([*parts, self._opening.sub(self._placeholder, text[at:])])

    def _placeholder(self, found: re.Match[str]) -> str:
        return f"{self.nonce}h{found[0].encode('utf-8', 'surrogatepass').hex()}z"

    def _unmasked(self, masked: str, *, after: str = "") -> str:
        def back(found: re.Match[str]) -> str:
            text = bytes.fromhex(found[1]).decode("utf-8", "surrogatepass")
            return text[:1] + after + text[1:]

        return self._masked.sub(back, masked)

    def _renamed(self, masked: str) -> list[int] | None:
        """Encode with the renamed copy of the tokenizer; None if there is none, or if it encodes the template's part differently."""
        if self._copy is None:
            return None
        found = self.tokenizer.backend_tokenizer.encode(masked, add_special_tokens=False)
        parts, at = [], 0
        for token, (start, end) in zip(found.ids, found.offsets, strict=True):
            if token in self.names:
                span = masked[start:end]
                start += len(span) - len(span.lstrip())
                parts += [masked[at:start], self._secret(token)]
                at = start + len(span.strip())
        secret = "".join([*parts, masked[at:]])
        if self._copy.encode(secret, add_special_tokens=False).ids != found.ids:
            return None
        return [int(i) for i in self._copy.encode(self._unmasked(secret), add_special_tokens=False).ids]

    def _secret(self, token: int) -> str:
        return f"<{self.nonce}s{token}>"

    @cached_property
    def _copy(self) -> Any:
        backend = getattr(self.tokenizer, "backend_tokenizer", None)
        if backend is None:
            return None
        copy = type(backend).from_str(renamed(backend.to_str(), {i: (name, self._secret(i)) for i, name in self.names.items()}))
        return copy if all(copy.token_to_id(self._secret(i)) == i for i in self.names) else None


def template_source(template: Any) -> str:
    """Return the text of a chat template, or of all templates if there are several.

    >>> template_source(None), template_source({"default": "{{ a }}"})
    ('', '{{ a }}')
    """
    return template or "" if isinstance(template, str | None) else "\n".join(template.values())


def is_mark(text: str, template: str) -> bool:
    r"""Return whether an added token is a mark of the chat template rather than ordinary text.

    >>> is_mark("<think>", "... <think> ..."), is_mark("<table>", "... <think> ..."), is_mark("\n\n", "{{ x }}\n\n")
    (True, False, False)
    """
    shaped = len(text) > 2 and not text[0].isalnum() and not text[-1].isalnum() and any(char.isalpha() for char in text)
    return shaped and (text in template or text.startswith(("<|", "<\uff5c")))


@lru_cache
def look_alikes(chars: frozenset[str]) -> tuple[str, ...]:
    """Return the characters and those that NFKC normalization maps to them, such as the full-width \uff1c.

    >>> "\uff1c" in look_alikes(frozenset("<"))
    True
    """
    return (*sorted(chars), *(char for char in map(chr, range(0x80, 0x10000)) if not chars.isdisjoint(unicodedata.normalize("NFKC", char))))


def renamed(spec: str, names: Mapping[int, tuple[str, str]]) -> str:
    """Rename tokens in a tokenizer's JSON, so that no text produces them under their old names."""
    tree = json.loads(spec)
    new = dict(names.values())
    for token in tree["added_tokens"]:
        if token["id"] in names:
            token["content"] = names[token["id"]][1]
    model = tree["model"]
    if isinstance(model["vocab"], dict):
        model["vocab"] = {new.get(piece, piece): i for piece, i in model["vocab"].items()}
    else:
        model["vocab"] = [[new.get(piece, piece), score] for piece, score in model["vocab"]]
    if model.get("unk_token") in new:
        model["unk_token"] = new[model["unk_token"]]
    if "merges" in model:
        pairs = [pair.split(" ") if isinstance(pair, str) else pair for pair in model["merges"]]
        model["merges"] = [[left, right] for left, right in pairs if new.keys().isdisjoint((left, right, left + right))]
    tree["truncation"] = tree["padding"] = tree["post_processor"] = None
    return json.dumps(tree)


def _one_of(names: Iterable[str]) -> re.Pattern[str]:
    return re.compile("|".join(map(re.escape, sorted(names, key=lambda name: (-len(name), name)))) or "(?!)")
