"""What is read of a network and built of it, against transformers itself; and networks that cannot be left early."""

import pytest
import torch
import transformers

from specdec.model.loading import load_model
from specdec.model.refusal import ModelRefused
from tests.tiny_models import ARCHITECTURES, EOS, VOCABULARY, write_tiny_model
from training.answers import Answer
from training.early_exit import EarlyExit, batches
from training.exit_map import NormalEquations
from training.network_end import network_end

ANSWERS = [Answer(tuple((7 * seed + 11 * place) % 250 for place in range(12 + seed)), 3) for seed in range(12)]


def whole_network(folder):
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_states_are_those_of_the_network_itself(architecture, tmp_path):
    name = write_tiny_model(tmp_path, architecture, layers=3)
    leaving = EarlyExit(network_end(load_model(name, "cpu", "float64")), 2)
    states = leaving.states(ANSWERS[:3])
    network, expected, expected_last = whole_network(name), [], []
    for answer in ANSWERS[:3]:
        with torch.inference_mode():
            out = network(torch.tensor([answer.token_ids[:-1]]), output_hidden_states=True)
        expected.append(out.hidden_states[2][0, 2:])
        expected_last.append(out.hidden_states[3][0, 2:])
    after = states.middle + states.inner @ leaving.projection.T
    assert states.inner.shape == (len(after), 48)
    torch.testing.assert_close(after, torch.cat(expected), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(states.last, torch.cat(expected_last), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_draft_of_all_layers_is_the_target(architecture, tmp_path):
    name = write_tiny_model(tmp_path, architecture, layers=2)
    leaving = EarlyExit(network_end(load_model(name, "cpu", "float64")), 2)
    equations = NormalEquations(leaving.projection)
    equations.add(leaving.states(ANSWERS))
    exit_map = equations.solved(1e-12, 0.03)
    draft = leaving.draft(leaving.end.head.weight.detach().double() @ exit_map.weight, exit_map.projection)
    tokens = torch.tensor([[3, 1, 4, 1, 5, 9, 2, 6]])
    with torch.inference_mode():
        found, expected = draft(tokens).logits, whole_network(name)(tokens).logits
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)


def test_a_draft_is_built_of_what_it_is_given_and_leaves_the_target_as_it_was(tmp_path):
    target = load_model(write_tiny_model(tmp_path, layers=3), "cpu", "float64")
    before = {key: value.clone() for key, value in target.network.state_dict().items()}
    leaving = EarlyExit(network_end(target), 1)
    head, projection = torch.randn(320, 32, dtype=torch.float64), torch.randn(32, 48, dtype=torch.float64)
    draft = leaving.draft(head, projection)
    assert (draft.config.num_hidden_layers, target.network.config.num_hidden_layers) == (1, 3)
    assert not draft.config.tie_word_embeddings
    given = {
        "lm_head.weight": head,
        "model.layers.0.mlp.down_proj.weight": projection,
        "model.norm.weight": torch.ones(32, dtype=torch.float64),
    }
    assert all(torch.equal(value, given.get(key, before[key])) for key, value in draft.state_dict().items())
    with torch.no_grad():
        for parameter in draft.parameters():
            parameter.fill_(7)
    after = target.network.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[key], after[key]) for key in before)


def other_architecture(folder, architecture, **values):
    """A tiny model of another architecture, with the tiny tokenizer."""
    write_tiny_model(folder)
    config = transformers.AutoConfig.for_model(
        architecture,
        vocab_size=len(VOCABULARY),
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=64,
        tie_word_embeddings=False,
        bos_token_id=EOS - 1,
        eos_token_id=EOS,
        pad_token_id=EOS,
        **values,
    )
    torch.manual_seed(0)
    transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).save_pretrained(folder)
    return str(folder)


@pytest.mark.parametrize(
    ("architecture", "values"),
    [("olmo2", {}), ("qwen3_moe", {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16})],
)
def test_what_is_not_plainly_added_is_left_as_it_is(architecture, values, tmp_path):
    """olmo2 norms what the projection gives, a mixture of experts has several."""
    name = other_architecture(tmp_path, architecture, **values)
    leaving = EarlyExit(network_end(load_model(name, "cpu")), 1)
    states = leaving.states(ANSWERS[:2])
    assert leaving.projection.shape == (32, 0)
    assert states.inner.shape == (len(states.last), 0)
    with torch.inference_mode():
        hidden = whole_network(name).float()(torch.tensor([ANSWERS[0].token_ids[:-1]]), output_hidden_states=True)
    torch.testing.assert_close(states.middle[:9], hidden.hidden_states[1][0, 2:], rtol=1e-5, atol=1e-5)
    equations = NormalEquations(leaving.projection)
    equations.add(states)
    draft = leaving.draft(
        leaving.end.head.weight.detach().double() @ equations.solved(1e-3, 0.03).weight, leaving.projection
    )
    assert draft(torch.tensor([[1, 2, 3]])).logits.isfinite().all()


REFUSED = {
    "gpt_neox": "no model.layers and model.norm",
    "phi": "no model.layers and model.norm",
    "cohere": "not one by the root mean square",
    "granite": "scales or caps its logits",
    "starcoder2": "not one by the root mean square",
}


@pytest.mark.parametrize("architecture", REFUSED)
def test_networks_that_end_otherwise_are_refused(architecture, tmp_path):
    name = other_architecture(tmp_path, architecture, **({"logits_scaling": 3.0} if architecture == "granite" else {}))
    with pytest.raises(ModelRefused, match=f"no early-exit draft can be made of it: .*{REFUSED[architecture]}"):
        network_end(load_model(name, "cpu"))


def test_what_is_no_network_is_refused():
    with pytest.raises(ModelRefused, match="no early-exit draft"):
        network_end(load_model("synthetic:vocabulary=16", "cpu"))


def test_batches_keep_the_order_and_hold_long_answers_alone():
    answers = [Answer(tuple(range(length)), 1) for length in (100, 1900, 100, 3000, 5)]
    assert [[len(one.token_ids) for one in batch] for batch in batches(answers)] == [[100, 1900], [100], [3000], [5]]
