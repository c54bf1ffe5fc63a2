"""Text to token ids and back: two small tokenizers without dependencies, and a thin wrapper around a Hugging Face one.

    chars               printable ASCII, one id per character
    chars:0123456789+=  the characters you name: a small action space for small models
    bytes               UTF-8 bytes: any text survives the round trip
    PATH or ORG/NAME    a folder with a Hugging Face tokenizer, or a model of the Hub

All tokenizers are append-only: a conversation is never re-rendered, so earlier tokens cannot change.
"""

from __future__ import annotations

import json
import logging
import string
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rlvr.chat.hf_tokenizer import HFTokenizer as HFTokenizer
from rlvr.chat.hf_tokenizer import to_reply_messages
from rlvr.config.hub import HUB_ID_PATTERN, resolve_model_folder
from rlvr.contracts import Tokenizer
from rlvr.errors import ConfigError, MissingExtra, NotFound
from rlvr.task import Message

logger = logging.getLogger(__name__)

ASCII = "".join(sorted(string.digits + string.ascii_letters + string.punctuation + " \n"))
EOS, USER, POLICY, UNK = 0, 1, 2, 3
SPECIALS = ("<eos>", "<user>", "<policy>", "<unk>")


class _RoleTokenTokenizer:
    """The base of the built-in tokenizers: four special ids, and turns marked by <user> and <policy>."""

    stop_ids = frozenset({EOS})
    eos_id = EOS
    dialect = "line"
    """The name of the tool call format."""

    def encode(self, text: str) -> list[int]:
        raise NotImplementedError

    def render(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] = ()) -> list[int]:
        """Render the conversation up to the policy's next turn. Tools come first, as one line of JSON each."""
        ids = [USER, *self.encode("\n".join(map(json.dumps, tools)))] if tools else []
        for message in messages:
            ids += [POLICY if message["role"] == "assistant" else USER, *self.encode(message["content"])]
            ids += [EOS] if message["role"] == "assistant" else []
        return [*ids, POLICY]

    def render_environment_reply(self, reply: str | Sequence[Message]) -> list[int]:
        """Render the environment's reply, and the mark that starts the policy's turn."""
        ids: list[int] = []
        for message in to_reply_messages(reply):
            ids += [USER, *self.encode(message["content"])]
        return [*ids, POLICY]


class CharTokenizer(_RoleTokenTokenizer):
    """One id per character of a declared alphabet.

    >>> CharTokenizer("0123456789+=").encode("1+1=")
    [5, 14, 5, 15]
    """

    def __init__(self, alphabet: str = ASCII) -> None:
        if not alphabet or len(set(alphabet)) != len(alphabet):
            raise ConfigError(f"an alphabet needs at least one character, each once; got {alphabet!r}")
        self.alphabet = alphabet
        self.vocab_size = len(SPECIALS) + len(alphabet)
        self._ids = {char: len(SPECIALS) + i for i, char in enumerate(alphabet)}
        self._chars = ["", "\ufffd", "\ufffd", "\ufffd", *alphabet]
        self._has_warned = False

    def encode(self, text: str) -> list[int]:
        """Convert text to ids; a character outside the alphabet becomes <unk>, which is logged once."""
        ids = [self._ids.get(char, UNK) for char in text]
        if UNK in ids and not self._has_warned:
            self._has_warned = True
            unknown = "".join(sorted(set(text) - self._ids.keys()))
            logger.warning("the alphabet of the tokenizer lacks %r: the policy does not see these characters of %.60r", unknown[:40], text)
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """Convert ids to text, without stop ids; other special ids become replacement characters."""
        return "".join([self._chars[i] for i in ids])


class ByteTokenizer(_RoleTokenTokenizer):
    """One id per UTF-8 byte: any text survives the round trip.

    >>> ByteTokenizer().decode(ByteTokenizer().encode("π ≈ 3"))
    'π ≈ 3'
    """

    vocab_size = len(SPECIALS) + 256

    def encode(self, text: str) -> list[int]:
        """Convert text to ids."""
        return [len(SPECIALS) + byte for byte in text.encode("utf-8", "surrogatepass")]

    def decode(self, ids: Sequence[int]) -> str:
        """Convert ids to text; invalid UTF-8 becomes replacement characters."""
        return bytes(i - len(SPECIALS) if i >= len(SPECIALS) else 0xFF for i in ids if i != EOS).decode("utf-8", "replace")


def load_text_tokenizer() -> ByteTokenizer:
    """Load the tokenizer of a policy that reads and writes texts: it can encode any text, and tool calls are JSON in tags."""
    tokenizer = ByteTokenizer()
    tokenizer.dialect = "hermes"
    return tokenizer


def load_tokenizer(spec: str | Path | Tokenizer | Any, *, model_vocab_size: int = 0) -> Tokenizer:
    """Load the tokenizer that a configuration names; or wrap a tokenizer object of transformers, for a model with so many ids.

    >>> load_tokenizer("chars:01").vocab_size
    6
    """
    if isinstance(spec, Path):
        spec = str(spec)
    if not isinstance(spec, str):
        if not isinstance(spec, HFTokenizer) and hasattr(spec, "apply_chat_template"):
            return HFTokenizer(spec, model_vocab_size=model_vocab_size)
        if isinstance(spec, Tokenizer):
            return spec
        raise ConfigError(f"the tokenizer is a {type(spec).__name__}; give a name, a folder, a Hub id, or a tokenizer of transformers")
    if spec == "chars":
        return CharTokenizer()
    if spec.startswith("chars:"):
        return CharTokenizer(spec.removeprefix("chars:"))
    if spec == "bytes":
        return ByteTokenizer()
    try:
        folder = resolve_model_folder(spec, include_weights=False)
    except NotFound as error:
        if HUB_ID_PATTERN.fullmatch(spec):
            raise
        raise ConfigError(
            f"no tokenizer {spec!r}; write chars, chars:ALPHABET, bytes, or a folder or a Hub id with a Hugging Face tokenizer"
        ) from error
    try:
        from transformers import AutoTokenizer, GenerationConfig, PreTrainedTokenizerFast
    except ModuleNotFoundError as error:
        raise MissingExtra("transformers", "train", "use the tokenizer 'chars' or 'bytes'") from error
    stops: Any = None
    try:
        if (folder / "generation_config.json").is_file():
            stops = GenerationConfig.from_pretrained(folder).eos_token_id
        # for some model families AutoTokenizer ignores a folder's declaration of a plain fast tokenizer
        plain = _read_tokenizer_class(folder) in ("TokenizersBackend", "PreTrainedTokenizerFast")
        # code of the folder never runs: without the argument, transformers asks at the terminal whether it may
        loaded = (PreTrainedTokenizerFast if plain else AutoTokenizer).from_pretrained(folder, trust_remote_code=False)
    except (OSError, ValueError, KeyError) as error:
        if "trust_remote_code" in str(error):
            raise ConfigError(
                f"the tokenizer of {spec!r} brings its own code, which rlvr never runs; give as `tokenizer` a folder with the same tokenizer "
                "as a tokenizer.json"
            ) from error
        raise ConfigError(f"{spec!r} has no tokenizer that transformers can load: {' '.join(str(error).split())[:200]}") from error
    return HFTokenizer(
        loaded, [] if stops is None else [stops] if isinstance(stops, int) else stops, model_vocab_size=_read_model_vocab_size(folder)
    )


def count_tokenizer_ids(tokenizer: Tokenizer) -> int:
    """Return the number of ids that have a text: those of the tokenizer, without those that only its model has.

    >>> count_tokenizer_ids(load_tokenizer("chars:01"))
    6
    """
    return tokenizer.num_text_ids if isinstance(tokenizer, HFTokenizer) else tokenizer.vocab_size


def check_model_vocabulary(tokenizer: Tokenizer, num_model_ids: int) -> None:
    """Raise ConfigError if a model has not the ids of its tokenizer.

    More ids than the tokenizer's are allowed, because a pretrained model never samples them. For `chars` and `bytes` they are refused, because
    an untrained model would sample ids that have no text.
    """
    count = count_tokenizer_ids(tokenizer)
    if num_model_ids < count:
        raise ConfigError(f"the tokenizer has {count} ids, but the model has only {num_model_ids}; use the model's own tokenizer")
    if num_model_ids > count and isinstance(tokenizer, CharTokenizer | ByteTokenizer):
        raise ConfigError(
            f"the model has {num_model_ids} ids, and the tokenizer only {count}, so an answer with one of the others cannot be read; make the "
            f"model with vocab_size={count}, or give its own tokenizer"
        )


def get_model_vocab_size(model: Any) -> int:
    """Return the number of ids of a loaded model; 0 where its configuration does not say."""
    config = getattr(model, "config", None)
    inner = getattr(config, "text_config", None)
    size = getattr(config, "vocab_size", None) or getattr(inner, "vocab_size", None)
    return size if isinstance(size, int) else 0


def _read_model_vocab_size(folder: Path) -> int:
    """Return the number of ids of the model in a folder; 0 without a model, or where its configuration does not say."""
    path = folder / "config.json"
    config = json.loads(path.read_text("utf-8")) if path.is_file() else {}
    size = config.get("vocab_size") or (config.get("text_config") or {}).get("vocab_size")
    return size if isinstance(size, int) else 0


def _read_tokenizer_class(folder: Path) -> str:
    path = folder / "tokenizer_config.json"
    return str(json.loads(path.read_text("utf-8")).get("tokenizer_class", "")) if path.is_file() else ""
