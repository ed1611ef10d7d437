"""Tiny random models with a real tokenizer, written as folders that both Hugging Face and specdec load."""

from collections.abc import Sequence
from pathlib import Path

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

BYTES = sorted(pre_tokenizers.ByteLevel.alphabet())
SPECIAL = ["<bos>", "<eos>"]
VOCABULARY = [*BYTES, *SPECIAL]
EOS = len(VOCABULARY) - 1
PADDED = 320  # columns of the head; those beyond the vocabulary are padding
CHAT_TEMPLATE = (
    "{% for message in messages %}<bos>{{ message.role }}: {{ message.content }}<eos>\n{% endfor %}"
    "{% if add_generation_prompt %}<bos>assistant: {% endif %}"
)
ARCHITECTURES = ("llama", "qwen2", "qwen3", "mistral", "gemma")


def write_tiny_model(
    folder: Path,
    architecture: str = "llama",
    *,
    seed: int = 0,
    layers: int = 2,
    context: int = 256,
    head: int = PADDED,
    tokens: Sequence[str] = BYTES,
) -> str:
    """Write a model of random float64 weights; models of other seeds share the tokenizer. Return its folder."""
    torch.manual_seed(seed)
    config = transformers.AutoConfig.for_model(
        architecture,
        vocab_size=head,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=context,
        sliding_window=None,
        initializer_range=0.6,
        bos_token_id=EOS - 1,
        eos_token_id=EOS,
        pad_token_id=EOS,
        tie_word_embeddings=False,
        dtype="float64",
    )
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float64)
    model.generation_config = transformers.GenerationConfig(bos_token_id=EOS - 1, eos_token_id=EOS)
    model.save_pretrained(folder)
    tokenizer = Tokenizer(models.BPE(vocab={text: token for token, text in enumerate(tokens)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(SPECIAL)
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<bos>", eos_token="<eos>", chat_template=CHAT_TEMPLATE
    ).save_pretrained(folder)
    return str(folder)
