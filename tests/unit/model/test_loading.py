"""What a name loads: which layers, which facts, and which models are refused with a reason."""

import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import huggingface_hub
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from specdec.model.language_model import Segment
from specdec.model.loading import context_length, eos_token_ids, load_model, written_sampling_params
from specdec.model.refusal import ModelRefused, refuse_unsupported
from tests.tiny_models import EOS, PADDED, VOCABULARY, write_tiny_model

TOKENS = [3, 1, 4, 1, 5]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return Path(write_tiny_model(tmp_path_factory.mktemp("tiny"), layers=3))


@pytest.fixture
def copy(tiny, tmp_path):
    return Path(shutil.copytree(tiny, tmp_path / "copy"))


def change(path, **values):
    """Rewrite values of a JSON file; None removes one."""
    content = json.loads(path.read_text()) | values
    path.write_text(json.dumps({name: value for name, value in content.items() if value is not None}))


def rows(model):
    return model.forward([Segment(model.new_cache(), TOKENS, len(TOKENS))])[0]


def test_description_says_what_the_files_say(tiny):
    description = load_model(str(tiny), "cpu", "float64").description
    assert description.name == str(tiny)
    assert description.tokenizer == str(tiny)
    assert (description.vocabulary_size, description.context_length) == (len(VOCABULARY), 256)
    assert description.vocabulary_size < PADDED
    assert description.eos_token_ids == (EOS,)
    assert description.default_sampling_params == {}


def test_auto_means_float32_on_the_cpu(tiny):
    model = load_model(str(tiny), "cpu", "auto")
    assert (model.device, model.network.dtype) == (torch.device("cpu"), torch.float32)


@pytest.mark.parametrize("layers", [1, 2, 3])
def test_first_layers_are_the_network_without_the_others(tiny, layers):
    whole = transformers.AutoModelForCausalLM.from_pretrained(tiny, dtype=torch.float64)
    whole.model.layers = whole.model.layers[:layers]
    whole.config.num_hidden_layers = layers
    with torch.inference_mode():
        expected = whole(torch.tensor([TOKENS]), use_cache=False).logits[0, :, : len(VOCABULARY)]
    model = load_model(f"layers:{layers}:{tiny}", "cpu", "float64")
    torch.testing.assert_close(rows(model), expected, rtol=0, atol=1e-10)


def test_drafts_of_a_model_share_its_vocabulary_but_not_its_fingerprint(tiny):
    models = [
        load_model(name, "cpu", "float64").description for name in (str(tiny), f"layers:1:{tiny}", f"layers:2:{tiny}")
    ]
    assert len({model.model_fingerprint for model in models}) == 3
    assert len({model.vocabulary_fingerprint for model in models}) == 1
    assert {model.tokenizer for model in models} == {str(tiny)}


def test_fingerprints_follow_content(tiny, copy):
    original = load_model(str(tiny), "cpu", "float64").description
    same = load_model(str(copy), "cpu", "float64").description
    assert same.model_fingerprint == original.model_fingerprint
    assert same.vocabulary_fingerprint == original.vocabulary_fingerprint
    assert load_model(str(tiny), "cpu", "float32").description.model_fingerprint != original.model_fingerprint
    weights = load_file(copy / "model.safetensors")
    weights["model.norm.weight"][0] += 1
    save_file(weights, copy / "model.safetensors", metadata={"format": "pt"})
    assert load_model(str(copy), "cpu", "float64").description.model_fingerprint != original.model_fingerprint


def test_architectures_with_one_tokenizer_share_the_vocabulary(tiny, tmp_path):
    other = load_model(write_tiny_model(tmp_path, "qwen2", seed=1), "cpu", "float64").description
    assert other.vocabulary_fingerprint == load_model(str(tiny), "cpu", "float64").description.vocabulary_fingerprint


def test_another_token_is_another_vocabulary(tiny, copy):
    path = copy / "tokenizer.json"
    content = json.loads(path.read_text())
    content["model"]["vocab"]["!!"] = content["model"]["vocab"].pop("!")
    path.write_text(json.dumps(content))
    other = load_model(str(copy), "cpu", "float64").description
    assert other.vocabulary_fingerprint != load_model(str(tiny), "cpu", "float64").description.vocabulary_fingerprint


def test_hub_ids_load_from_the_hub_cache(tiny, tmp_path, monkeypatch):
    snapshot = tmp_path / "models--owner--tiny" / "snapshots" / "0123"
    shutil.copytree(tiny, snapshot)
    (tmp_path / "models--owner--tiny" / "refs").mkdir()
    (tmp_path / "models--owner--tiny" / "refs" / "main").write_text("0123")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    description = load_model("owner/tiny", "cpu", "float64").description
    assert (description.name, description.tokenizer) == ("owner/tiny", "owner/tiny")
    with pytest.raises(ModelRefused, match="owner/missing: no such folder here, and not to be had from the hub"):
        load_model("owner/missing", "cpu", "float64")


@pytest.mark.parametrize(
    ("generation", "written"),
    [
        ({}, {}),
        ({"temperature": 0.6, "top_k": 20}, {"top_k": 20}),
        ({"do_sample": False, "temperature": 0.6}, {}),
        ({"do_sample": True}, {"temperature": 1.0}),
        (
            {
                "do_sample": True,
                "temperature": 0.7,
                "top_p": 0.8,
                "top_k": 20,
                "min_p": 0.1,
                "repetition_penalty": 1.05,
            },
            {"temperature": 0.7, "top_p": 0.8, "top_k": 20, "min_p": 0.1, "repetition_penalty": 1.05},
        ),
        ({"top_k": None, "num_beams": 4}, {}),
    ],
)
def test_only_what_is_written_is_a_default(generation, written):
    assert written_sampling_params(generation) == written


@pytest.mark.parametrize(
    ("generation", "configured", "expected"),
    [
        ({"eos_token_id": [7, 2]}, 5, (7, 2)),
        ({"eos_token_id": 7}, 5, (7,)),
        ({}, [5], (5,)),
        ({}, None, ()),
        ({}, 99, ()),
    ],
)
def test_generation_config_names_the_end_before_the_config(generation, configured, expected):
    assert eos_token_ids(generation, SimpleNamespace(eos_token_id=configured), 10) == expected


def test_longrope_ends_at_the_original_context():
    rope = {"rope_type": "longrope", "original_max_position_embeddings": 4096}
    assert context_length(SimpleNamespace(max_position_embeddings=131072, rope_parameters=rope)) == 4096
    assert (
        context_length(SimpleNamespace(max_position_embeddings=131072, rope_parameters={"rope_type": "yarn"})) == 131072
    )


REFUSED = {
    "mamba": ({}, "recurrent state"),
    "qwen3_next": ({}, "recurrent state"),
    "t5": ({}, "encoder-decoder"),
    "vit": ({}, "no causal language model"),
    "mistral": ({"sliding_window": 4096}, "sliding window of 4096"),
    "qwen3": ({"use_sliding_window": True, "sliding_window": 64, "max_window_layers": 0}, "sliding_attention"),
    "gemma2": ({}, "attn_logit_softcapping"),
    "gemma3_text": ({}, "sliding_attention"),
    "llama4_text": ({}, "chunked_attention"),
    "llama": ({"quantization_config": {"quant_method": "awq"}}, "quantised"),
    "gemma": ({"use_bidirectional_attention": True}, "not causal"),
    "bloom": ({}, "names no context length"),
}


@pytest.mark.parametrize("architecture", REFUSED)
def test_models_that_cannot_be_served_are_refused_before_weights_are_read(architecture):
    values, reason = REFUSED[architecture]
    with pytest.raises(ModelRefused, match=reason):
        refuse_unsupported("it", transformers.AutoConfig.for_model(architecture, **values))


def test_a_model_with_another_attention_is_found_out(copy):
    """Its configuration says nothing of it; the comparison at load does."""
    attention = transformers.models.llama.modeling_llama.LlamaAttention
    original = attention.forward

    def biased(self, hidden_states, *args, **kwargs):
        if self.config._attn_implementation == "eager":
            kwargs["attention_mask"] = kwargs["attention_mask"] * 0
        return original(self, hidden_states, *args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(attention, "forward", biased)
        with pytest.raises(ModelRefused, match="packed pass differ"):
            load_model(str(copy), "cpu", "float32")


def test_missing_weights_are_refused(copy):
    weights = load_file(copy / "model.safetensors")
    del weights["model.layers.2.mlp.up_proj.weight"]
    save_file(weights, copy / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelRefused, match=r"lacks 1 weights, model\.layers\.2\.mlp\.up_proj\.weight"):
        load_model(str(copy), "cpu", "float32")
    assert rows(load_model(f"layers:2:{copy}", "cpu", "float32")).shape == (5, len(VOCABULARY))


def test_a_model_of_foreign_code_is_refused(copy, monkeypatch):
    monkeypatch.setattr("builtins.input", lambda _: "y")  # nobody is asked at a terminal either
    change(copy / "config.json", model_type="tiny_own", auto_map={"AutoConfig": "own.Config"})
    (copy / "own.py").write_text("raise SystemExit('foreign code has run')")
    with pytest.raises(ModelRefused, match="configuration cannot be read"):
        load_model(str(copy), "cpu", "float32")


def test_foreign_code_beside_a_known_architecture_is_left_alone(copy):
    classes = {"AutoConfig": "own.Config", "AutoModelForCausalLM": "own.Model"}
    change(copy / "config.json", auto_map=classes)
    change(copy / "tokenizer_config.json", auto_map={"AutoTokenizer": ["own.Tokenizer", None]})
    (copy / "own.py").write_text("raise SystemExit('foreign code has run')")
    load_model(str(copy), "cpu", "float32")


def test_broken_files_are_refused(copy):
    (copy / "generation_config.json").write_text("{")
    with pytest.raises(ModelRefused, match="is no JSON"):
        load_model(str(copy), "cpu", "float32")
    (copy / "model.safetensors").write_bytes(b"nothing")
    with pytest.raises(ModelRefused, match="weights cannot be read"):
        load_model(str(copy), "cpu", "float32")
    (copy / "tokenizer.json").unlink()
    with pytest.raises(ModelRefused, match="tokenizer cannot be read"):
        load_model(str(copy), "cpu", "float32")
    (copy / "config.json").write_text("{}")
    with pytest.raises(ModelRefused, match="configuration cannot be read"):
        load_model(str(copy), "cpu", "float32")


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        ("/no/such/folder", "no such file or folder"),
        ("layers:x:/model", "write layers:N:MODEL"),
        ("layers:1:synthetic:seed=1", "write layers:N:MODEL"),
        ("layers:1:layers:2:/model", "write layers:N:MODEL"),
        ("layers:0:TINY", "it has 3 layers"),
        ("layers:4:TINY", "it has 3 layers"),
        ("embedded:gpt5", "there is only smollm2"),
        (__file__, "a folder or a .gguf file"),
        (str(Path(__file__).parent), "neither"),
    ],
)
def test_names_of_nothing_are_refused(tiny, model, reason):
    with pytest.raises(ModelRefused, match=reason):
        load_model(model.replace("TINY", str(tiny)), "cpu", "float32")


@pytest.mark.parametrize(
    ("model", "device", "dtype"),
    [("TINY", "cpu", "int8"), ("TINY", "tpu9", "auto"), ("synthetic:", "cpu", "bfloat16")],
)
def test_devices_and_dtypes_that_are_not_there_are_refused(tiny, model, device, dtype):
    with pytest.raises(ModelRefused, match=f"{device}|{dtype}"):
        load_model(model.replace("TINY", str(tiny)), device, dtype)


@pytest.mark.parametrize(("dtype", "expected"), [("auto", torch.float64), ("float32", torch.float32)])
def test_synthetic_models_load_by_name(dtype, expected):
    assert rows(load_model("synthetic:vocabulary=64,seed=3", "cpu", dtype)).dtype == expected


def test_folders_of_gguf_files_must_leave_no_choice(tmp_path):
    for name in ("a.gguf", "b.gguf"):
        (tmp_path / name).touch()
    with pytest.raises(ModelRefused, match=r"several GGUF files; name one of a\.gguf, b\.gguf"):
        load_model(str(tmp_path), "cpu", "float32")
