"""Where text meets tokens: round trips, turns, stop ids, and the law that history only grows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from rlvr.contracts import Tokenizer as TokenizerContract
from rlvr.errors import ConfigError, EnvError
from rlvr.mdp.token_mdp import TokenMDP
from rlvr.mdp.tokenizers import (
    ASCII,
    EOS,
    POLICY,
    UNK,
    USER,
    ByteTokenizer,
    CharTokenizer,
    HFTokenizer,
    count_tokenizer_ids,
    load_tokenizer,
)
from rlvr.models.model_loading import to_transformers_tokenizer
from rlvr.task import Message, make_user_prompt
from tests.fixtures.worlds import Sums, Talk

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
FORGETFUL = (  # shows only the last message: what was said before is gone
    "<|im_start|>{{ messages[-1].role }}\n{{ messages[-1].content }}<|im_end|>\n"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
ENDLESS = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"  # no turn ever ends with a stop id


def hugging_face(template: str | None = CHATML) -> PreTrainedTokenizerFast:
    """A small byte-level tokenizer, trained on the spot."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    specials = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    trainer = trainers.BpeTrainer(vocab_size=300, special_tokens=specials, initial_alphabet=alphabet, show_progress=False)
    made.train_from_iterator(["What is 12 + 30? It is 42 , or so . user assistant system"] * 20, trainer)
    fast = PreTrainedTokenizerFast(tokenizer_object=made, eos_token="<|im_end|>", pad_token="<|endoftext|>")
    fast.chat_template = template
    return fast


@pytest.fixture(scope="module")
def hf() -> HFTokenizer:
    return HFTokenizer(hugging_face())


ALL: list[TokenizerContract] = [
    CharTokenizer(),
    CharTokenizer("01+="),
    ByteTokenizer(),
    HFTokenizer(hugging_face()),
    HFTokenizer(hugging_face(None)),
    HFTokenizer(hugging_face(), model_vocab_size=320),
]


@pytest.mark.parametrize("tokenizer", ALL)
def test_the_contract(tokenizer: TokenizerContract) -> None:
    assert isinstance(tokenizer, TokenizerContract)
    assert tokenizer.eos_id in tokenizer.stop_ids and all(0 <= i < tokenizer.vocab_size for i in tokenizer.stop_ids)
    ids = tokenizer.render(make_user_prompt("1+1=", system="0"))
    assert ids and all(type(i) is int and 0 <= i < tokenizer.vocab_size for i in ids)
    for i in range(tokenizer.vocab_size):  # any id inside the vocabulary decodes
        assert isinstance(tokenizer.decode([i]), str)
    rng = np.random.default_rng(0)
    for _ in range(200):
        assert isinstance(tokenizer.decode([int(i) for i in rng.integers(0, tokenizer.vocab_size, 20)]), str)


@pytest.mark.parametrize("tokenizer", ALL)
def test_stop_ids_are_not_text(tokenizer: TokenizerContract) -> None:
    ids = tokenizer.encode("1+1=")
    assert tokenizer.decode([*ids, tokenizer.eos_id]) == tokenizer.decode([tokenizer.eos_id, *ids]) == "1+1="


@given(st.text(ASCII))
def test_printable_text_survives_the_characters(text: str) -> None:
    tokenizer = CharTokenizer()
    assert tokenizer.decode(tokenizer.encode(text)) == text and len(tokenizer.encode(text)) == len(text)


@given(st.text())
def test_any_text_survives_the_bytes(text: str) -> None:
    tokenizer = ByteTokenizer()
    assert tokenizer.decode(tokenizer.encode(text)) == text


@given(st.text(alphabet=st.characters(exclude_categories=["Cs"])))
def test_any_text_survives_hugging_faces(text: str) -> None:
    tokenizer = ALL[3]
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_spaces_before_punctuation_stay(hf: HFTokenizer) -> None:
    """Some tokenizers tidy up when they decode; what is judged must be what was said."""
    loud = hugging_face()
    loud.clean_up_tokenization_spaces = True
    for tokenizer in (hf, HFTokenizer(loud)):
        assert tokenizer.decode(tokenizer.encode("It is 42 , or so . n't")) == "It is 42 , or so . n't"


def test_ids_that_only_the_model_has_are_the_policy_s_and_unreadable(tmp_path: Path) -> None:
    fast = hugging_face()
    fast.save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen2", "vocab_size": len(fast) + 5}), "utf-8")
    tokenizer = load_tokenizer(tmp_path)
    assert (tokenizer.vocab_size, count_tokenizer_ids(tokenizer)) == (len(fast) + 5, len(fast))
    four, two = tokenizer.encode("4"), tokenizer.encode("2")
    assert tokenizer.decode([*four, len(fast), len(fast) + 4, *two, tokenizer.eos_id]) == "4\ufffd\ufffd2"
    mdp = TokenMDP(Sums(), tokenizer)
    state = mdp.start_conversation(mdp.environment.task("train", 0))
    mdp.append_turn(state, [*four, len(fast), tokenizer.eos_id])
    assert mdp.verify(state).score == 0
    state = mdp.start_conversation(mdp.environment.task("train", 0))
    with pytest.raises(EnvError, match=f"allowed: 0 to {len(fast) + 4}"):
        mdp.append_turn(state, [len(fast) + 5, tokenizer.eos_id])


def test_turns_of_the_toys_are_marked() -> None:
    tokenizer = CharTokenizer("01+=")
    one = tokenizer.encode("1")
    said: list[Message] = [{"role": "user", "content": "1"}, {"role": "assistant", "content": "1"}, {"role": "user", "content": "1"}]
    assert tokenizer.render(said[:1]) == [USER, *one, POLICY]
    assert tokenizer.render(said) == [USER, *one, POLICY, *one, EOS, USER, *one, POLICY]
    assert tokenizer.render_environment_reply("1") == [USER, *one, POLICY]


def test_a_character_outside_the_alphabet_is_unknown_and_shows() -> None:
    tokenizer = CharTokenizer("01")
    assert tokenizer.encode("0x1") == [4, UNK, 5] and tokenizer.decode([4, UNK, 5]) == "0\ufffd1"


def test_characters_that_the_policy_does_not_see_are_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    tokenizer = CharTokenizer("ols:")
    with caplog.at_level("WARNING", "rlvr"):
        tokenizer.encode("Tools: add")
        tokenizer.encode("Tools: sub")
        CharTokenizer().encode("Tools: add")
    (record,) = caplog.records
    assert "lacks ' Tad'" in record.getMessage()


@pytest.mark.parametrize("tokenizer", [t for t in ALL if not (isinstance(t, HFTokenizer) and not t.tokenizer.chat_template)])
def test_history_only_grows(tokenizer: TokenizerContract) -> None:
    """A conversation continued token by token is the very one that the whole conversation renders to."""
    said: list[Message] = [{"role": "user", "content": "1+1="}]
    ids = tokenizer.render(said)
    for answer, reply in (("1", "0"), ("0+1", ""), ("", "1=1")):
        ids = [*ids, *tokenizer.encode(answer), tokenizer.eos_id, *tokenizer.render_environment_reply(reply)]
        said.append({"role": "assistant", "content": answer})
        said.append({"role": "user", "content": reply})
        assert ids == tokenizer.render(said)


def test_the_templates_words_are_the_templates_tokens(hf: HFTokenizer) -> None:
    ids = hf.render(make_user_prompt("Hi", system="Be brief."))
    text = hf.tokenizer.decode(ids)
    assert text == "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    assert ids.count(hf.eos_id) == 2 and ids[0] == hf.tokenizer.convert_tokens_to_ids("<|im_start|>")
    assert hf.tokenizer.decode(hf.render_environment_reply("No.")) == "\n<|im_start|>user\nNo.<|im_end|>\n<|im_start|>assistant\n"


@pytest.mark.parametrize(
    "template, told",
    [(FORGETFUL, "cannot be continued token by token"), (ENDLESS, r"ends no turn with a token at which the policy stops \(<\|im_end\|>\)")],
)
def test_a_template_that_cannot_be_continued_is_refused_before_anything_is_said(template: str, told: str) -> None:
    tokenizer = HFTokenizer(hugging_face(template))
    with pytest.raises((EnvError, ConfigError), match=told):
        TokenMDP(Talk(), tokenizer)
    TokenMDP(Sums(), tokenizer)  # one turn has nothing to go on with


def test_a_template_that_refuses_a_role_says_so() -> None:
    strict = "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}{% endfor %}"
    with pytest.raises(ConfigError, match="cannot render a conversation of system, user: System role not supported"):
        HFTokenizer(hugging_face(strict)).render(make_user_prompt("2+2=", system="Add."))


def test_bare_text_begins_as_all_texts_of_its_model_do() -> None:
    fast = hugging_face(None)
    fast.bos_token = "<|im_start|>"
    plain = HFTokenizer(fast).render(make_user_prompt("2+2="))
    whole: Any = fast.backend_tokenizer
    whole.post_processor = processors.TemplateProcessing(single="<|im_start|> $A", special_tokens=[("<|im_start|>", fast.bos_token_id)])
    assert HFTokenizer(fast).render(make_user_prompt("2+2=")) == [fast.bos_token_id, *plain] == list(fast("2+2=")["input_ids"])


def test_without_a_template_the_bare_text_is_the_prompt() -> None:
    tokenizer = HFTokenizer(hugging_face(None))
    assert tokenizer.decode(tokenizer.render(make_user_prompt("2+2=", system="Add."))) == "Add.\n2+2="
    assert tokenizer.decode(tokenizer.render_environment_reply("No.")) == "\nNo.\n"


def test_more_stop_ids_may_be_given(hf: HFTokenizer) -> None:
    other = hf.tokenizer.convert_tokens_to_ids("<|endoftext|>")
    both = HFTokenizer(hf.tokenizer, [other])
    assert both.stop_ids == {hf.eos_id, other} and both.eos_id == hf.eos_id
    assert both.decode([*both.encode("so"), other]) == "so"


def test_a_stop_id_outside_the_vocabulary_is_refused(hf: HFTokenizer) -> None:
    with pytest.raises(ConfigError, match="stop ids"):
        HFTokenizer(hf.tokenizer, [hf.vocab_size])


def test_a_tokenizer_without_an_end_is_refused() -> None:
    bare = hugging_face()
    bare.eos_token = None
    with pytest.raises(ConfigError, match=r"set tokenizer\.eos_token"):
        HFTokenizer(bare)


@pytest.mark.parametrize("stops, expected", [(None, {2}), (0, {0, 2}), ([0, 2], {0, 2})])
def test_a_folder_holds_one_with_its_stop_ids(tmp_path: Path, stops: Any, expected: set[int]) -> None:
    from transformers import GenerationConfig

    hugging_face().save_pretrained(tmp_path)
    if stops is not None:
        GenerationConfig(eos_token_id=stops).save_pretrained(tmp_path)
    loaded = load_tokenizer(str(tmp_path))
    assert isinstance(loaded, HFTokenizer) and loaded.stop_ids == expected
    assert loaded.render(make_user_prompt("Hi")) == HFTokenizer(hugging_face()).render(make_user_prompt("Hi"))


def test_names_of_tokenizers() -> None:
    assert isinstance(load_tokenizer("chars"), CharTokenizer) and isinstance(load_tokenizer("bytes"), ByteTokenizer)
    assert load_tokenizer("chars:01").vocab_size == 6


@pytest.mark.parametrize("wrong", ["char", "chars:", "chars:00", "/no/such/folder", ""])
def test_a_wrong_name_is_answered_with_what_is_allowed(wrong: str) -> None:
    with pytest.raises(ConfigError, match=r"alphabet|chars, chars:ALPHABET, bytes"):
        load_tokenizer(wrong)


def test_a_folder_without_a_tokenizer_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="has no tokenizer"):
        load_tokenizer(str(tmp_path))


def test_code_of_a_folder_is_never_run_and_nobody_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    to_transformers_tokenizer(ByteTokenizer()).save_pretrained(tmp_path)
    (tmp_path / "own.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nclass Own: pass\n")
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "Own", "auto_map": {"AutoTokenizer": ["own.Own", "own.Own"]}}')
    monkeypatch.setattr("builtins.input", lambda *_: "y")
    with pytest.raises(ConfigError, match="brings its own code, which rlvr never runs"):
        load_tokenizer(tmp_path)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("tokenizer", [ByteTokenizer(), CharTokenizer("0123456789+= \nπé")])
def test_a_checkpoint_has_a_tokenizer_that_transformers_loads(tokenizer: TokenizerContract, tmp_path: Path) -> None:
    to_transformers_tokenizer(tokenizer).save_pretrained(tmp_path)
    loaded = load_tokenizer(tmp_path)
    assert (loaded.vocab_size, loaded.stop_ids) == (tokenizer.vocab_size, tokenizer.stop_ids)
    texts = ["1+1=2\n", "", "  1 ", "π=3é"] + (["<x>\t\x00\x7f\xad≈ 𝛑"] if isinstance(tokenizer, ByteTokenizer) else [])
    for text in texts:
        assert loaded.encode(text) == tokenizer.encode(text) and loaded.decode(tokenizer.encode(text)) == text
        assert loaded.render(make_user_prompt(text)) == tokenizer.render(make_user_prompt(text))
