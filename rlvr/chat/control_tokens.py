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
from collections.abc import Iterable, Mapping
from functools import cached_property, lru_cache
from typing import Any

from rlvr.errors import EnvError

AUTHOR_ROLES = frozenset({"assistant", "system", "developer"})
"""Roles whose text comes from the task's author. Marks such as <think> remain tokens there, as in the policy's text."""
UNMASKED_KEYS = frozenset({"role", "type"})


class ControlTokenEncoder:
    """The control tokens of one Hugging Face tokenizer, and how to encode text without forging any.

    `reserved_ids` are the special tokens and the added stop tokens: no text may produce them. `mark_ids` are other added tokens that the
    chat template writes, such as <think> or </tool_response>: texts of users and tools may not produce them.
    """

    def __init__(self, tokenizer: Any, stop_ids: Iterable[int]) -> None:
        self.tokenizer = tokenizer
        source = get_template_text(tokenizer.chat_template)
        added: dict[int, Any] = dict(tokenizer.added_tokens_decoder)
        hard = {*tokenizer.all_special_ids, *(i for i, token in added.items() if token.special)} - {tokenizer.unk_token_id}
        self.reserved_ids = frozenset(int(i) for i in hard | (added.keys() & set(stop_ids)))  # other stop ids are ordinary text
        self.mark_ids = frozenset(
            i for i, token in added.items() if i not in self.reserved_ids and _is_template_mark(token.content, source)
        )
        self.control_ids = self.reserved_ids | self.mark_ids
        self.names = {i: str(added[i].content if i in added else tokenizer.convert_ids_to_tokens(i)) for i in sorted(self.control_ids)}
        self.names = {i: name for i, name in self.names.items() if name.strip()}
        self.nonce = "q" + secrets.token_hex(6)
        """A random string that no earlier text can contain."""
        self._any_pattern = _compile_alternatives(self.names.values())
        self._reserved_pattern = _compile_alternatives(self.names[i] for i in self.reserved_ids if i in self.names)
        self._mark_pattern = _compile_alternatives(self.names[i] for i in self.mark_ids if i in self.names)
        first = {name: next((char for char in name if not char.isalnum() and not char.isspace()), name) for name in self.names.values()}
        chars = {char for char in first.values() if len(char) == 1 and not char.isalnum()}
        words = [re.escape(name) for name in first.values() if name not in chars and first[name] == name]
        self._first_character_pattern = re.compile(
            "|".join([*sorted(words, key=len, reverse=True), *map(re.escape, _expand_with_look_alikes(frozenset(chars)))]) or "(?!)"
        )
        self._placeholder_pattern = re.compile(self.nonce + "h([0-9a-f]+)z")

    def encode_raw(self, text: str) -> list[int]:
        """Encode a text as it is, including every control token that it spells."""
        return [int(i) for i in self.tokenizer.encode(text, add_special_tokens=False)]

    def select_control_ids(self, ids: Iterable[int]) -> list[int]:
        """Return the control tokens of a sequence, in order."""
        return [i for i in ids if i in self.control_ids]

    def mask_content(self, value: Any, *, is_author: bool = False) -> Any:
        """Replace every character of a content that could start a control token with a placeholder."""
        if isinstance(value, str):
            return self._mask_text(value, is_author)
        if isinstance(value, Mapping):
            is_author = is_author or value.get("role") in AUTHOR_ROLES
            return {key: item if key in UNMASKED_KEYS else self.mask_content(item, is_author=is_author) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.mask_content(item, is_author=is_author) for item in value]
        return value

    def has_forged_token(self, value: Any, *, is_author: bool = False) -> bool:
        """Return whether a message, or a part of one, spells a control token that its author may not write.

        Raises EnvError if the name of a field or a role contains a control token.
        """
        if isinstance(value, str):
            return (self._reserved_pattern if is_author else self._any_pattern).search(value) is not None
        if isinstance(value, Mapping):
            is_author = is_author or value.get("role") in AUTHOR_ROLES
            if named := [text for text in (*value, value.get("role")) if isinstance(text, str) and self._any_pattern.search(text)]:
                raise EnvError(f"{named[0]!r} is the name of a field or a role and contains a control token; use plain words there")
            return any(self.has_forged_token(item, is_author=is_author) for item in value.values())
        return isinstance(value, list | tuple) and any(self.has_forged_token(item, is_author=is_author) for item in value)

    def encode_without_forged_tokens(self, text: str | None, masked_text: str) -> list[int]:
        """Encode `text` so that it has the control tokens that `masked_text` has and no others; `text` is None if it is known to spell
        forbidden ones.
        """
        if text == masked_text:
            return self.encode_raw(masked_text)
        frame = self.select_control_ids(self.encode_raw(masked_text))
        if text is not None and self.select_control_ids(ids := self.encode_raw(text)) == frame:
            return ids
        for inert in (self._encode_with_secret_names(masked_text), self.encode_raw(self._unmask(masked_text, insert_after_first=" "))):
            if inert is not None and self.select_control_ids(inert) == frame:
                return inert
        raise EnvError("a message spells control tokens that this tokenizer cannot encode as plain text; leave them out of the message")

    def encode_marks_only(self, text: str) -> list[int]:
        """Encode a text of the policy: marks become tokens, special tokens do not."""
        masked = self._mask_text(text, True)
        return self.encode_without_forged_tokens(None if masked != text and self._reserved_pattern.search(text) else text, masked)

    def _mask_text(self, text: str, is_author: bool) -> str:
        if not self._first_character_pattern.search(text):
            return text
        if not is_author:
            return self._first_character_pattern.sub(self._format_placeholder, text)
        parts, at = [], 0
        for mark in self._mark_pattern.finditer(text):
            parts += [self._first_character_pattern.sub(self._format_placeholder, text[at : mark.start()]), mark[0]]
            at = mark.end()
        return "".join([*parts, self._first_character_pattern.sub(self._format_placeholder, text[at:])])

    def _format_placeholder(self, found: re.Match[str]) -> str:
        return f"{self.nonce}h{found[0].encode('utf-8', 'surrogatepass').hex()}z"

    def _unmask(self, masked: str, *, insert_after_first: str = "") -> str:
        def back(found: re.Match[str]) -> str:
            text = bytes.fromhex(found[1]).decode("utf-8", "surrogatepass")
            return text[:1] + insert_after_first + text[1:]

        return self._placeholder_pattern.sub(back, masked)

    def _encode_with_secret_names(self, masked: str) -> list[int] | None:
        """Encode with the renamed copy of the tokenizer; None if there is none, or if it encodes the template's part differently."""
        if self._secret_tokenizer is None:
            return None
        found = self.tokenizer.backend_tokenizer.encode(masked, add_special_tokens=False)
        parts, at = [], 0
        for token, (start, end) in zip(found.ids, found.offsets, strict=True):
            if token in self.names:
                span = masked[start:end]
                start += len(span) - len(span.lstrip())
                parts += [masked[at:start], self._format_secret_name(token)]
                at = start + len(span.strip())
        secret = "".join([*parts, masked[at:]])
        if self._secret_tokenizer.encode(secret, add_special_tokens=False).ids != found.ids:
            return None
        return [int(i) for i in self._secret_tokenizer.encode(self._unmask(secret), add_special_tokens=False).ids]

    def _format_secret_name(self, token: int) -> str:
        return f"<{self.nonce}s{token}>"

    @cached_property
    def _secret_tokenizer(self) -> Any:
        backend = getattr(self.tokenizer, "backend_tokenizer", None)
        if backend is None:
            return None
        copy = type(backend).from_str(
            _rename_tokens(backend.to_str(), {i: (name, self._format_secret_name(i)) for i, name in self.names.items()})
        )
        return copy if all(copy.token_to_id(self._format_secret_name(i)) == i for i in self.names) else None


def get_template_text(template: Any) -> str:
    """Return the text of a chat template, or of all templates if there are several.

    >>> get_template_text(None), get_template_text({"default": "{{ a }}"})
    ('', '{{ a }}')
    """
    return template or "" if isinstance(template, str | None) else "\n".join(template.values())


def _is_template_mark(text: str, template: str) -> bool:
    r"""Return whether an added token is a mark of the chat template rather than ordinary text.

    >>> _is_template_mark("<think>", "... <think> ..."), _is_template_mark("<table>", "... <think> ..."), _is_template_mark("\n\n", "{{ x }}\n\n")
    (True, False, False)
    """
    shaped = len(text) > 2 and not text[0].isalnum() and not text[-1].isalnum() and any(char.isalpha() for char in text)
    return shaped and (text in template or text.startswith(("<|", "<\uff5c")))


@lru_cache
def _expand_with_look_alikes(chars: frozenset[str]) -> tuple[str, ...]:
    """Return the characters and those that NFKC normalization maps to them, such as the full-width \uff1c.

    >>> "\uff1c" in _expand_with_look_alikes(frozenset("<"))
    True
    """
    return (*sorted(chars), *(char for char in map(chr, range(0x80, 0x10000)) if not chars.isdisjoint(unicodedata.normalize("NFKC", char))))


def _rename_tokens(tokenizer_json: str, names_by_id: Mapping[int, tuple[str, str]]) -> str:
    """Rename tokens in a tokenizer's JSON, so that no text produces them under their old names."""
    tree = json.loads(tokenizer_json)
    new = dict(names_by_id.values())
    for token in tree["added_tokens"]:
        if token["id"] in names_by_id:
            token["content"] = names_by_id[token["id"]][1]
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


def _compile_alternatives(names: Iterable[str]) -> re.Pattern[str]:
    return re.compile("|".join(map(re.escape, sorted(names, key=lambda name: (-len(name), name)))) or "(?!)")
