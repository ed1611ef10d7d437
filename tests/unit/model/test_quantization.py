"""Quantised networks: all of a network or none of it, under a fingerprint of its own, checked like any other."""

from typing import get_args

import pytest
import torch
import transformers
from torch.nn import functional

from specdec.model import quantization
from specdec.model.causal_lm import CausalLM
from specdec.model.language_model import Segment
from specdec.model.loading import load_model
from specdec.model.quantization import AUTO, QUANTIZATIONS, check_quantization, meant, quantize
from specdec.model.quantized_linear import Float16Linear, Int8Linear
from specdec.model.refusal import ModelRefused
from specdec.serving.model_server import load_served_model
from target_service.settings import TargetSettings
from tests.tiny_drafts import KNOWN, write_tiny_draft
from tests.tiny_models import ARCHITECTURES, VOCABULARY, write_tiny_model

KINDS = {"float16": Float16Linear, "int8": Int8Linear}
TOKENS = [3, 1, 4, 1, 5, 9, 2, 6]
# Largest difference of logits, of their norm, between passes of other shapes: what float32 rounding in attention makes.
ROUNDING = 5e-6
# The same between the quantised and the plain network: that it is the same network at all.
NEAR = {"float16": 5e-3, "int8": 0.1}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return write_tiny_model(tmp_path_factory.mktemp("tiny"), layers=2)


def rows(model, tokens=TOKENS):
    return model.forward([Segment(model.new_cache(), tokens, len(tokens))])[0]


def apart(found, expected):
    return ((found - expected).norm() / expected.norm()).item()


def linear_layers(model):
    return [
        layer for layer in model.network.modules() if isinstance(layer, torch.nn.Linear | Float16Linear | Int8Linear)
    ]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_linear_layer_is_quantised_and_the_model_stays_itself(tmp_path, architecture, kind):
    folder = write_tiny_model(tmp_path, architecture)
    plain, quantised = load_model(folder, "cpu", "float32"), load_model(folder, "cpu", "auto", kind)
    assert {type(layer) for layer in linear_layers(quantised)} == {KINDS[kind]}
    assert len(linear_layers(quantised)) == len(linear_layers(plain)) == 2 * 7 + 1
    assert 0 < apart(rows(quantised), rows(plain)) < NEAR[kind]


@pytest.mark.parametrize("kind", KINDS)
def test_neighbours_and_lengths_of_passes_change_nothing_but_rounding(tiny, kind):
    model = load_model(tiny, "cpu", "auto", kind)
    alone, cache = rows(model), model.new_cache()
    in_pieces = [model.forward([Segment(cache, part, len(part))])[0] for part in (TOKENS[:1], TOKENS[1:3], TOKENS[3:])]
    strangers = [Segment(model.new_cache(), [token] * 20, 1) for token in (7, 8)]
    beside = model.forward([strangers[0], Segment(model.new_cache(), TOKENS, len(TOKENS)), strangers[1]])[1]
    assert apart(torch.cat(in_pieces), alone) < ROUNDING
    assert apart(beside, alone) < ROUNDING


def test_embeddings_stay_and_shared_heads_get_weights_of_their_own(tiny):
    network = transformers.AutoModelForCausalLM.from_pretrained(tiny, dtype=torch.float32)
    network.lm_head.weight = network.model.embed_tokens.weight
    before = network.model.embed_tokens.weight.clone()
    quantize("shared", network, "int8")
    assert isinstance(network.lm_head, Int8Linear)
    assert torch.equal(network.model.embed_tokens.weight, before)
    assert {parameter.dim() for parameter in network.parameters()} == {1, 2}
    assert sum(parameter.dim() == 2 for parameter in network.parameters()) == 1


def test_a_quantised_model_is_another_model_of_the_same_vocabulary(tiny):
    models = [load_model(tiny, "cpu", "float32", kind).description for kind in QUANTIZATIONS]
    layers = [load_model(f"layers:1:{tiny}", "cpu", "float32", kind).description for kind in QUANTIZATIONS]
    assert len({model.model_fingerprint for model in models + layers}) == 2 * len(QUANTIZATIONS)
    assert len({model.vocabulary_fingerprint for model in models + layers}) == 1
    assert models[0].model_fingerprint == load_model(tiny, "cpu", "float32").description.model_fingerprint


@pytest.mark.parametrize("kind", KINDS)
def test_cut_heads_are_quantised_too(tiny, tmp_path, kind):
    whole = load_model(tiny, "cpu", "auto", kind)
    draft = load_model(write_tiny_draft(tmp_path / "draft", tiny), "cpu", "auto", kind)
    assert {type(layer) for layer in linear_layers(draft)} == {KINDS[kind]}
    assert apart(rows(draft)[:, KNOWN], rows(whole)[:, KNOWN]) < 1e-6
    assert rows(draft).isneginf().sum() == len(TOKENS) * (len(VOCABULARY) - len(KNOWN))


@pytest.mark.parametrize(
    ("model_type", "settings", "name"),
    [
        ("gpt2", {}, r"transformer\.h\.0\.attn\.c_attn\.weight lies in a Conv1D"),
        ("mixtral", {"num_local_experts": 2}, r"mlp\.\S+ lies in a Mixtral"),
    ],
)
@pytest.mark.parametrize("kind", KINDS)
def test_weights_outside_of_linear_layers_are_refused_by_name(model_type, settings, name, kind):
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 4}
    config = transformers.AutoConfig.for_model(model_type, vocab_size=64, **sizes, **settings)
    network = transformers.AutoModelForCausalLM.from_config(config)
    with pytest.raises(ModelRefused, match=f"^strange: .*{name}"):
        quantize("strange", network, kind)
    assert not [layer for layer in network.modules() if isinstance(layer, Float16Linear | Int8Linear)]


def test_a_network_that_reads_a_layers_weight_itself_is_refused(tiny, monkeypatch):
    network = load_model(tiny, "cpu").network
    mlp = type(network.model.layers[0].mlp)
    monkeypatch.setattr(mlp, "forward", lambda mlp, x: mlp.down_proj(functional.linear(x, mlp.gate_proj.weight)))
    load_model(tiny, "cpu", "float32")
    with pytest.raises(ModelRefused, match=r"cannot be run in torch\.float32: .*no attribute 'weight'"):
        load_model(tiny, "cpu", "float32", "int8")


def test_a_pass_that_lets_rows_see_each_other_is_refused_at_loading(tiny, monkeypatch):
    by_row = torch.linalg.vector_norm
    monkeypatch.setattr(torch.linalg, "vector_norm", lambda rows, *how, **more: by_row(rows, *how, **more) + len(rows))
    with pytest.raises(ModelRefused, match="packed pass differ"):
        load_model(tiny, "cpu", "float32", "int8")


@pytest.mark.parametrize(
    ("kind", "device", "dtype", "reason"),
    [
        ("int4", "cpu", "auto", r"quantization 'int4': there are none, float16, int8"),
        ("int8", "cuda:0", "auto", r"tiny: quantization int8 is for CPUs, not for cuda:0; there, use none"),
        ("float16", "cuda", "bfloat16", "is for CPUs, not for cuda"),
        ("int8", "cpu", "float64", "computes in float32, which is less than float64"),
    ],
)
def test_what_cannot_be_quantised_here_is_refused_before_weights_are_read(kind, device, dtype, reason):
    with pytest.raises(ModelRefused, match=reason):
        check_quantization("tiny", kind, torch.device(device), dtype)
    check_quantization("tiny", "none", torch.device(device), dtype)


def test_machines_without_the_kernels_are_told(tiny, monkeypatch):
    monkeypatch.setattr(quantization, "KERNELS", "kernels of another machine")
    with pytest.raises(ModelRefused, match="int8 needs torch with kernels of another machine"):
        load_model(tiny, "cpu", "auto", "int8")


@pytest.mark.parametrize(
    ("device", "dtype", "quantization"),
    [
        ("cpu", "auto", "float16"),
        ("cpu", "float32", "float16"),
        ("cpu", "float64", "none"),
        ("cpu", "bfloat16", "none"),
        ("cuda", "auto", "none"),
    ],
)
def test_auto_is_float16_where_that_can_be_had(monkeypatch, device, dtype, quantization):
    assert meant("auto", torch.device(device), dtype) == quantization
    assert meant("int8", torch.device(device), dtype) == "int8"
    monkeypatch.setattr("specdec.model.quantization.KERNELS", "kernels of another machine")
    assert meant("auto", torch.device(device), dtype) == "none"


def test_auto_serves_the_model_that_it_means(tiny):
    for dtype, kind in (("float32", "float16"), ("float64", "none")):
        served = load_model(tiny, "cpu", dtype, "auto").description
        assert served == load_model(tiny, "cpu", dtype, kind).description
    assert load_model("synthetic:vocabulary=8", "cpu", "auto", "auto").description.vocabulary_size == 8


def test_synthetic_models_have_nothing_to_quantise():
    with pytest.raises(ModelRefused, match="no weights to quantise"):
        load_model("synthetic:vocabulary=8", "cpu", "auto", "int8")


def test_the_setting_knows_every_quantization_and_decides_what_is_served(tiny):
    assert {*get_args(TargetSettings.model_fields["quantization"].annotation)} == {AUTO, *QUANTIZATIONS}
    assert TargetSettings(model=tiny).quantization == "none"
    served = load_served_model(TargetSettings(model=tiny, device="cpu", quantization="int8"))
    assert isinstance(served, CausalLM)
    assert served.description == load_model(tiny, "cpu", "auto", "int8").description
