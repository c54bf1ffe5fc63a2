"""A conversation comes back from its tokens as it was said, or not at all."""

from __future__ import annotations

from typing import Any

import pytest

from rlvr.contracts import Tokenizer
from rlvr.mdp.tokenizers import ByteTokenizer, CharTokenizer, HFTokenizer
from rlvr.mdp.transcript import decode_messages_after_prompt
from rlvr.task import make_user_prompt
from tests.mdp.test_tokenizers import hugging_face

SPOKEN = [("assistant", "50"), ("user", "30 or so"), ("assistant", ""), ("user", ""), ("assistant", "0")]


def row(tokenizer: Tokenizer, *, said: list[tuple[str, str]] = SPOKEN) -> dict[str, Any]:
    """A stored conversation whose last turn was cut off."""
    prompt = list(make_user_prompt("Guess.", system="Be brief."))
    stretches = [
        [*tokenizer.encode(text), tokenizer.eos_id] if role == "assistant" else tokenizer.render_environment_reply(text)
        for role, text in said
    ]
    stretches[-1].pop()
    tokens = tokenizer.render(prompt)
    acted = [0] * len(tokens)
    for (role, _), stretch in zip(said, stretches, strict=True):
        tokens, acted = tokens + stretch, acted + [int(role == "assistant")] * len(stretch)
    return {"prompt": prompt, "tokens": tokens, "action_mask": acted}


@pytest.mark.parametrize(
    "tokenizer",
    [CharTokenizer(), ByteTokenizer(), HFTokenizer(hugging_face()), HFTokenizer(hugging_face(None))],
    ids=["chars", "bytes", "template", "no template"],
)
def test_every_turn_is_read_back(tokenizer: Tokenizer) -> None:
    assert decode_messages_after_prompt(row(tokenizer), tokenizer) == [{"role": role, "content": text} for role, text in SPOKEN]


def test_what_another_tokenizer_wrote_is_not_read() -> None:
    for wrote, reads in ((CharTokenizer(), ByteTokenizer()), (ByteTokenizer(), CharTokenizer("01")), (ByteTokenizer(), CharTokenizer())):
        assert decode_messages_after_prompt(row(wrote), reads) is None
    bytes_ = ByteTokenizer()
    stored = row(bytes_)
    at = stored["action_mask"].index(1) + stored["action_mask"][stored["action_mask"].index(1) :].index(0)
    stored["tokens"][at] = bytes_.encode("x")[0]  # a reply without its mark
    assert decode_messages_after_prompt(stored, bytes_) is None
