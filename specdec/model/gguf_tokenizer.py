"""Reads a GGUF file's tokenizer, with exactly the tokens that the file gives a meaning."""

import json
from pathlib import Path
from typing import Any

import gguf
from tokenizers import Tokenizer, normalizers, pre_tokenizers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

NAMED_TOKENS = ("bos_token", "eos_token", "pad_token", "unk_token")
# Vocabularies whose merges were learned with every digit apart, by tokenizer.ggml.pre (as in llama.cpp);
# transformers' converter does not know them.
DIGITS_APART = {"smollm", "starcoder", "refact", "command-r", "codeshell"}
# Those whose texts were brought into Unicode's composed form (NFC) first; no GGUF file says it.
COMPOSED = {"qwen2"}
# Those that end a text with a token of its own, where the file names only the one that ends a turn of a chat.
END_OF_TEXT = {"qwen2": "<|endoftext|>"}


def read_tokenizer(path: Path) -> PreTrainedTokenizerFast:
    """Return the tokenizer and chat template of a GGUF file.

    transformers converts it; what its converter gets wrong for the sake of one class for many files is put right:
    tokens it adds by itself and names of padded rows are dropped, digits stand apart and texts are composed where they
    were in training.

    Args:
        path: the GGUF file.

    Raises:
        ValueError: the tokenizer is of a kind that cannot be converted.
    """
    converted = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name, trust_remote_code=False)
    reader = gguf.GGUFReader(path)
    known = _known_ids(reader)
    backend = _restricted(converted.backend_tokenizer, known)
    kind = _kind(reader)
    if kind in COMPOSED:
        backend.normalizer = normalizers.NFC()
    if kind in DIGITS_APART:
        backend.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
        )
    texts = {name: getattr(converted, name) for name in NAMED_TOKENS}
    named = {name: text for name, text in texts.items() if text and backend.token_to_id(text) is not None}
    return PreTrainedTokenizerFast(tokenizer_object=backend, chat_template=converted.chat_template, **named)


def read_end_tokens(path: Path) -> list[int]:
    """Return the ids that end an answer: of a text and of a turn, as far as the file tells.

    Args:
        path: the GGUF file.
    """
    reader = gguf.GGUFReader(path)
    named = [reader.get_field(f"tokenizer.ggml.{name}_token_id") for name in ("eos", "eot")]
    ids = [int(field.contents()) for field in named if field is not None]
    if end := END_OF_TEXT.get(_kind(reader)):
        ids.append(reader.fields["tokenizer.ggml.tokens"].contents().index(end))
    return list(dict.fromkeys(ids))


def _kind(reader: Any) -> str:
    """Return what the file calls the way its texts are cut before tokens are looked for, or nothing."""
    field = reader.get_field("tokenizer.ggml.pre")
    return "" if field is None else str(field.contents())


def _known_ids(reader: Any) -> set[int]:
    """Return the ids that mean something: those the file names and does not mark as unused padding."""
    ids = set(range(len(reader.get_field("tokenizer.ggml.tokens").data)))
    kinds = reader.get_field("tokenizer.ggml.token_type")
    if kinds is not None:
        ids -= {token for token, kind in enumerate(kinds.contents()) if kind == gguf.TokenType.UNUSED}
    return ids


def _restricted(tokenizer: Tokenizer, ids: set[int]) -> Tokenizer:
    """Return a tokenizer that knows only these ids."""
    content = json.loads(tokenizer.to_str())
    content["added_tokens"] = [token for token in content["added_tokens"] if token["id"] in ids]
    vocabulary = content["model"]["vocab"]
    content["model"]["vocab"] = {text: token for text, token in vocabulary.items() if token in ids}
    return Tokenizer.from_str(json.dumps(content))
