"""GGUF files are unpacked once, into the very model they hold."""

import os
import threading

import gguf
import numpy as np
import pytest
import torch
import transformers

from specdec.model import gguf_conversion
from specdec.model.cache_folder import cache_folder
from specdec.model.gguf_conversion import converted_folder
from specdec.model.language_model import Segment
from specdec.model.loading import load_model
from specdec.model.refusal import ModelRefused
from tests.tiny_models import BYTES, CHAT_TEMPLATE, PADDED, write_tiny_model

HEADS = {"q_proj": 4, "k_proj": 2}
MERGED = ["Ġa", "ĠĠ", "12", "Ã©"]
END_OF_TEXT = "<|endoftext|>"
TEXTS = [*BYTES, *MERGED, END_OF_TEXT]
SIZE = len(TEXTS) + 2


def interleaved(name, weight):
    """Reorder the rows of a head as llama.cpp keeps them: rotary pairs side by side."""
    for part, heads in HEADS.items():
        if part in name:
            rows, columns = weight.shape
            return weight.reshape(heads, 2, rows // heads // 2, columns).swapaxes(1, 2).reshape(rows, columns)
    return weight


def write_gguf(path, network, *, architecture="llama", pre="smollm", end_of_turn=None):
    """Write a network as llama.cpp's converter does, its matrices in Q8_0, with a small byte-level tokenizer."""
    writer = gguf.GGUFWriter(path, architecture)
    config = network.config
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(PADDED)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    tokens = [*TEXTS, "<bos>", "<eos>", *(f"[PAD{token}]" for token in range(SIZE, PADDED))]
    writer.add_token_list(tokens)
    writer.add_token_types([1] * (len(TEXTS) - 1) + [3, 3, 3] + [gguf.TokenType.UNUSED] * (PADDED - SIZE))
    writer.add_token_merges([f"{text[:-1]} {text[-1]}" for text in MERGED])
    writer.add_bos_token_id(SIZE - 2)
    writer.add_eos_token_id(SIZE - 1)
    if end_of_turn is not None:
        writer.add_eot_token_id(end_of_turn)
    writer.add_chat_template(CHAT_TEMPLATE)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config.num_hidden_layers)
    for name, tensor in network.state_dict().items():
        weight = interleaved(name, tensor.float().numpy())
        kind = gguf.GGMLQuantizationType.Q8_0 if weight.ndim == 2 else gguf.GGMLQuantizationType.F32
        packed = gguf.quants.quantize(np.ascontiguousarray(weight), kind)
        writer.add_tensor(names.get_name(name, try_suffixes=(".weight",)), packed, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def dequantised(network):
    """Return the network with the values that Q8_0 keeps of its matrices."""
    kind = gguf.GGMLQuantizationType.Q8_0
    for weight in network.parameters():
        if weight.ndim == 2:
            packed = gguf.quants.quantize(weight.detach().float().numpy(), kind)
            weight.data = torch.tensor(gguf.quants.dequantize(packed, kind))
    return network.float().eval()


@pytest.fixture(scope="module")
def network(tmp_path_factory):
    folder = write_tiny_model(tmp_path_factory.mktemp("tiny"))
    config = transformers.AutoConfig.from_pretrained(folder, hidden_size=64, head_dim=16, intermediate_size=96)
    torch.manual_seed(0)
    return transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)


@pytest.fixture
def packed(tmp_path, monkeypatch, network):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path = tmp_path / "packed" / "tiny.gguf"
    path.parent.mkdir()
    write_gguf(path, network)
    return path


def test_the_unpacked_model_is_the_packed_one(packed, network):
    model = load_model(str(packed), "cpu", "float32")
    tokens = [3, 1, 4, 1, 5, 9, 2, 6]
    (found,) = model.forward([Segment(model.new_cache(), tokens, len(tokens))])
    with torch.inference_mode():
        expected = dequantised(network)(torch.tensor([tokens]), use_cache=False).logits[0, :, :SIZE]
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-4)
    assert model.description.eos_token_ids == (SIZE - 1,)
    assert model.vocabulary_size == SIZE
    assert model.description.default_sampling_params == {}
    assert model.description.tokenizer == str(converted_folder(packed))


def test_its_tokenizer_splits_digits_and_keeps_the_chat_template(packed):
    tokenizer = transformers.PreTrainedTokenizerFast.from_pretrained(converted_folder(packed))
    assert tokenizer.tokenize("  12 a<eos>") == ["ĠĠ", "1", "2", "Ġa", "<eos>"]
    assert tokenizer.chat_template == CHAT_TEMPLATE
    assert tokenizer.decode(tokenizer.encode("Grüße, 12  a\n")) == "Grüße, 12  a\n"


def test_other_vocabularies_keep_their_digits_together(packed, network):
    write_gguf(packed, network, pre="gpt-2")
    tokenizer = transformers.PreTrainedTokenizerFast.from_pretrained(converted_folder(packed))
    assert tokenizer.tokenize("  12") == ["Ġ", "Ġ", "12"]


def test_vocabularies_that_compose_texts_go_on_doing_so(packed, network):
    texts = ["e\u0301", "\u00e9"]
    smollm = transformers.PreTrainedTokenizerFast.from_pretrained(converted_folder(packed))
    assert [smollm.tokenize(text) for text in texts] == [["e", "Ì", "ģ"], ["Ã©"]]
    write_gguf(packed, network, pre="qwen2")
    qwen = transformers.PreTrainedTokenizerFast.from_pretrained(converted_folder(packed))
    assert [qwen.tokenize(text) for text in texts] == [["Ã©"], ["Ã©"]]


def test_all_tokens_that_end_an_answer_do(packed, network):
    write_gguf(packed, network, pre="qwen2")
    assert load_model(str(packed), "cpu", "float32").description.eos_token_ids == (SIZE - 1, TEXTS.index(END_OF_TEXT))
    write_gguf(packed, network, end_of_turn=7)
    assert load_model(str(packed), "cpu", "float32").description.eos_token_ids == (SIZE - 1, 7)


def test_a_folder_with_one_gguf_file_is_that_file(packed):
    by_folder, by_file = (load_model(str(name), "cpu", "float32") for name in (packed.parent, packed))
    assert by_folder.description.model_fingerprint == by_file.description.model_fingerprint
    assert (
        load_model(f"layers:1:{packed}", "cpu", "float32").description.model_fingerprint
        != by_file.description.model_fingerprint
    )


def test_only_the_first_of_many_unpacks(packed, monkeypatch):
    started = []
    convert = gguf_conversion._convert
    monkeypatch.setattr(gguf_conversion, "_convert", lambda *args: (started.append(args), convert(*args)))
    folders = []
    threads = [threading.Thread(target=lambda: folders.append(converted_folder(packed))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(started) == 1
    assert len(set(folders)) == 1
    assert len(folders) == 3


def test_what_fails_leaves_nothing_behind(packed, monkeypatch):
    def fail(path, folder):
        (folder / "config.json").write_text("half")
        raise ValueError("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(gguf_conversion, "_convert", fail)
        with pytest.raises(ModelRefused, match="cannot be unpacked: the disk is full"):
            converted_folder(packed)
    assert [entry for entry in os.listdir(cache_folder()) if not entry.endswith(".lock")] == []
    assert (converted_folder(packed) / "model.safetensors").is_file()


def test_a_file_that_is_no_gguf_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path = tmp_path / "text.gguf"
    path.write_text("this is not a model")
    with pytest.raises(ModelRefused, match=r"text\.gguf cannot be unpacked"):
        converted_folder(path)
