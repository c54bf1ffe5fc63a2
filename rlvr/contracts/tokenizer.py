"""The tokenizer contract: convert between text and tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

from rlvr.task import Message


@runtime_checkable
class Tokenizer(Protocol):
    """Converts between text and token ids.

    Mainly `rlvr.mdp` and samplers that exchange text call a tokenizer.
    """

    @property
    def vocab_size(self) -> int:
        """The number of token ids: the size of the action space."""
        ...

    @property
    def stop_ids(self) -> frozenset[int]:
        """The ids that end a turn (EOS and similar)."""
        ...

    @property
    def eos_id(self) -> int:
        """The stop id to append when one is needed."""
        ...

    def encode(self, text: str) -> list[int]:
        """Convert text to ids, without adding special tokens."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """Convert ids to text; stop ids are left out.

        Never raises for ids inside the vocabulary.
        """
        ...

    def render(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] = ()) -> list[int]:
        """Render a conversation as ids, up to the policy's turn. No text in a message becomes a control token."""
        ...

    def render_environment_reply(self, reply: str | Sequence[Message]) -> list[int]:
        """Render a reply as the ids between the policy's stop id and its next turn. A string is one user message."""
        ...


class LoadedModel(NamedTuple):
    """A causal language model and its tokenizer: `model, tokenizer = rlvr.load_model(...)`."""

    model: Any
    tokenizer: Tokenizer

    def __repr__(self) -> str:
        return f"LoadedModel(a {type(self.model).__name__}, a {type(self.tokenizer).__name__})"

    if not TYPE_CHECKING:  # type: ignore[misc]  # a type checker must still report attributes that do not exist

        def __getattr__(self, name: str) -> Any:
            """Raise the error of a missing attribute, with the right call if the model or a chat has it."""
            hint = f"; write .model.{name}" if hasattr(self.model, name) else ""
            hint = "; write .generate([{'role': 'user', 'content': '2+2='}])" if name in ("chat", "complete") else hint
            raise AttributeError(f"a LoadedModel has no attribute {name!r}{hint}")

    def generate(self, prompts: Any, **sampling: Any) -> Any:
        """Return what the model answers to prompts, as `rlvr.generate` does."""
        import rlvr

        return rlvr.generate(self, prompts, **sampling)

    def save_pretrained(self, folder: str | Path) -> None:
        """Write the model and its tokenizer to a folder that transformers, vLLM and `load_model` can load."""
        self.model.save_pretrained(folder)
        inner = getattr(self.tokenizer, "tokenizer", None)
        if inner is not None:
            inner.save_pretrained(folder)
