"""The tokenizer contract: where text meets tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from rlvr.task import Message


@runtime_checkable
class Tokenizer(Protocol):
    """Where text meets tokens. Only `rlvr.mdp.env` and the samplers' edges ever call it."""

    @property
    def vocab_size(self) -> int:
        """How many token ids there are: the size of the action space."""
        ...

    @property
    def stop_ids(self) -> frozenset[int]:
        """Every id that ends a turn (EOS and its friends)."""
        ...

    @property
    def eos_id(self) -> int:
        """The stop id written where one has to be written."""
        ...

    def encode(self, text: str) -> list[int]:
        """Text to ids, with no special tokens added."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """Ids to text, stop ids left out. Never raises on ids inside the vocabulary."""
        ...

    def render(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] = ()) -> list[int]:
        """A conversation to ids, ready for the policy's turn. Contents are data: no text in them becomes a control token."""
        ...

    def render_reply(self, said: str | Sequence[Message]) -> list[int]:
        """What stands between the policy's closing stop id and its next turn. A text is one message of the user."""
        ...
