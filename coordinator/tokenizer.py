"""From text to tokens: the target's tokenizer and chat template, each applied once, here.

Loading goes through ``PreTrainedTokenizerFast``, which reads any ``tokenizer.json`` and, unlike ``AutoTokenizer``, does
not bring torch into the process.
"""

import json
import os
import re
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Protocol

from jinja2 import TemplateError
from transformers import PreTrainedTokenizerFast

from coordinator.text import REPLACEMENT, ByteDetokenizer, Detokenizer, RunDetokenizer
from specdec.errors import InvalidParameter
from specdec.vocabulary import bytes_vocabulary, vocabulary_fingerprint

BYTES = "bytes"  # the tokenizer of synthetic models
_PLACEHOLDER = "specdec-former-answer"
_LONGEST_CLOSING = 16  # tokens that end an assistant's turn
# One text is one piece of work: the library's own pool, as wide as the cores, would only let texts wait for each other.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class Tokenizer(Protocol):
    """What the coordinator needs of a tokenizer.

    Attributes:
        longest_token: bytes that a token stands for at most.
    """

    longest_token: int

    def encode(self, text: str, *, begin: bool) -> list[int]:
        """Return the ids of plain text; at the beginning of a session with the special tokens it begins with."""

    def encode_chat(self, messages: Sequence[Mapping[str, str]], committed: Sequence[int]) -> list[int]:
        """Return the ids that make ``messages`` follow the committed tokens, ready for the answer."""

    def detokenizer(self) -> Detokenizer:
        """Return a detokenizer at the beginning of an answer."""

    def token_text(self, token: int) -> str:
        """Return the text of one token, special or not."""

    def vocabulary_fingerprint(self, size: int) -> str:
        """Return the identity of what the ids [0, size) mean, as model servers give that of their model's."""


def load_tokenizer(source: str) -> Tokenizer:
    """Load a tokenizer.

    Args:
        source: a folder, a hub id with or without a revision (owner/name@revision), or "bytes".

    Raises:
        OSError: it is not there.
        ValueError: it is there and cannot be read.
    """
    if source == BYTES:
        return ByteTokenizer()
    name, _, revision = source.partition("@")
    if not revision or Path(source).exists():
        return ModelTokenizer(PreTrainedTokenizerFast.from_pretrained(source))
    return ModelTokenizer(PreTrainedTokenizerFast.from_pretrained(name, revision=revision))


class ByteTokenizer:
    """Ids 0 to 255 are bytes of UTF-8; others have no text."""

    longest_token = 1

    def encode(self, text: str, *, begin: bool) -> list[int]:  # noqa: ARG002
        """Return the bytes of the text; there are no special tokens to begin with."""
        return list(text.encode())

    def encode_chat(self, messages: Sequence[Mapping[str, str]], committed: Sequence[int]) -> list[int]:  # noqa: ARG002
        """Refuse: there is no chat template.

        Raises:
            InvalidParameter: always.
        """
        raise InvalidParameter("a synthetic model has no chat template; send prompt or token_ids", field="messages")

    def detokenizer(self) -> Detokenizer:
        """Return a detokenizer of bytes."""
        return ByteDetokenizer(lambda token: bytes([token]) if token < 256 else b"")

    def token_text(self, token: int) -> str:
        """Return the character of a byte, or nothing."""
        return bytes([token]).decode("utf-8", "replace") if token < 256 else ""

    def vocabulary_fingerprint(self, size: int) -> str:
        """Return the identity of a synthetic model's vocabulary of that size."""
        return vocabulary_fingerprint(bytes_vocabulary(size), size)


class ModelTokenizer:
    """The tokenizer of a real model."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        """Wrap a loaded tokenizer."""
        self._tokenizer = tokenizer
        self._backend = tokenizer.backend_tokenizer
        self._special = frozenset(token for token, added in tokenizer.added_tokens_decoder.items() if added.special)
        decoder = json.loads(self._backend.to_str())["decoder"]
        self._byte_level = '"ByteLevel"' in json.dumps(decoder)
        written = _byte_level_bytes if self._byte_level else str.encode
        self.longest_token = max(len(written(token)) for token in tokenizer.get_vocab())
        self._bytes_piece = cache(self._bytes_of)
        self._text_piece = cache(self._text_of)
        self._anchor = self._ordinary_token()

    def encode(self, text: str, *, begin: bool) -> list[int]:
        """Return the ids of plain text; special tokens are added as the tokenizer does, at the beginning alone."""
        # Alone among the ways to encode it lets go of the GIL: a long text takes seconds.
        [encoding] = self._backend.encode_batch_fast([text], add_special_tokens=begin)
        ids: list[int] = encoding.ids
        return ids

    def encode_chat(self, messages: Sequence[Mapping[str, str]], committed: Sequence[int]) -> list[int]:
        """Return the ids that make ``messages`` follow the committed tokens, ready for the answer.

        A continuation is what the template writes after an earlier answer: a placeholder conversation is rendered in
        front of the messages and everything up to the end of the placeholder answer is dropped. What is left closes the
        answer's turn and has no second beginning. Of the closing, the tokens that the answer already ended with (its
        end-of-turn token, unless it was cut short) are not written again.

        Raises:
            InvalidParameter: there is no chat template, or it refuses the messages.
        """
        if not committed:
            return self.encode(self._render(messages), begin=False)
        before = [{"role": "user", "content": "-"}, {"role": "assistant", "content": _PLACEHOLDER}]
        _, found, rest = self._render([*before, *messages]).partition(_PLACEHOLDER)
        if not found:
            raise InvalidParameter("the model's chat template cannot continue a conversation", field="messages")
        ids = self.encode(rest, begin=False)
        return ids[_overlap(committed, ids) :]

    def detokenizer(self) -> Detokenizer:
        """Return a detokenizer of the kind that the tokenizer's decoder asks for."""
        return ByteDetokenizer(self._bytes_piece) if self._byte_level else RunDetokenizer(self._text_piece)

    def token_text(self, token: int) -> str:
        """Return the text of one token, special or not."""
        return str(self._backend.decode([token], skip_special_tokens=False))

    def vocabulary_fingerprint(self, size: int) -> str:
        """Return the identity of what the ids [0, size) mean; a tokenizer may have others from there on."""
        return vocabulary_fingerprint(self._tokenizer.get_vocab(), size)

    def _render(self, messages: Sequence[Mapping[str, str]]) -> str:
        if not self._tokenizer.chat_template:
            raise InvalidParameter("the model has no chat template; send prompt or token_ids", field="messages")
        conversation = [dict(message) for message in messages]
        try:
            return str(
                self._tokenizer.apply_chat_template(conversation, tokenize=False, add_generation_prompt=True),
            )
        except TemplateError as error:
            raise InvalidParameter(
                f"the chat template refuses the messages{self._why(error)}", field="messages"
            ) from None

    def _why(self, error: TemplateError) -> str:
        """Return what a template wrote itself of an error; words put together at the time may quote the messages."""
        words = str(error)
        return f": {words}" if words in str(self._tokenizer.chat_template) else ""

    def _bytes_of(self, token: int) -> bytes:
        text = self._backend.id_to_token(token)
        if text is None or token in self._special:
            return b""
        return _byte_level_bytes(text)

    def _text_of(self, token: int) -> str | int | None:
        text = self._backend.id_to_token(token)
        if text is None or token in self._special:
            return None
        if byte := _BYTE_TOKEN.fullmatch(text):
            return int(byte[1], 16)
        # Decoders treat the first token of a text differently, so the piece is what it adds to another token.
        before = self._backend.decode([self._anchor])
        return str(self._backend.decode([self._anchor, token]))[len(before) :]

    def _ordinary_token(self) -> int:
        for token in range(self._backend.get_vocab_size()):
            text = self._backend.decode([token])  # empty for special tokens, a replacement for a single byte
            if text and REPLACEMENT not in text and not _BYTE_TOKEN.fullmatch(self._backend.id_to_token(token) or ""):
                return token
        raise ValueError("no token of the vocabulary has a text")


def _byte_level_bytes(token: str) -> bytes:
    """Return the bytes that a token of a byte-level tokenizer stands for."""
    alphabet = _byte_alphabet()
    if all(character in alphabet for character in token):
        return bytes(alphabet[character] for character in token)
    return token.encode()  # an added token stands as it is written


@cache
def _byte_alphabet() -> dict[str, int]:
    """Return the characters that byte-level tokenizers write bytes with.

    Printable bytes of Latin-1 stand for themselves, the others are numbered from U+0100 on (GPT-2's convention).
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(0x100) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + index): byte for index, byte in enumerate(others)}


def _overlap(committed: Sequence[int], ids: Sequence[int]) -> int:
    """Return how many of the first ``ids`` the committed tokens already end with."""
    for length in range(min(len(committed), len(ids), _LONGEST_CLOSING), 0, -1):
        if list(committed[-length:]) == list(ids[:length]):
            return length
    return 0
