"""What is read of a network and built of it, against transformers itself; and networks that cannot be left early."""

import pytest
import torch
import transformers

from specdec.model.loading import load_model
from specdec.model.refusal import ModelRefused
from tests.tiny_models import ARCHITECTURES, EOS, VOCABULARY, write_tiny_model
from training.answers import Answer
from training.early_exit import batches, early_exit, network_end
from training.exit_map import NormalEquations

ANSWERS = [Answer(tuple((7 * seed + 11 * place) % 250 for place in range(12 + seed)), 3) for seed in range(12)]


def whole_network(folder):
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_states_are_those_of_the_network_itself(architecture, tmp_path):
    name = write_tiny_model(tmp_path, architecture, layers=3)
    states, last = network_end(load_model(name, "cpu", "float64")).states(2, ANSWERS[:3])
    network, expected, expected_last = whole_network(name), [], []
    for answer in ANSWERS[:3]:
        with torch.inference_mode():
            out = network(torch.tensor([answer.token_ids[:-1]]), output_hidden_states=True)
        expected.append(out.hidden_states[2][0, 2:])
        expected_last.append(out.hidden_states[3][0, 2:])
    raw = torch.cat(expected)
    divided = raw / (raw.pow(2).mean(-1, keepdim=True) + 1e-6).sqrt()
    torch.testing.assert_close(states, divided, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(last, torch.cat(expected_last), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_draft_of_all_layers_is_the_target(architecture, tmp_path):
    name = write_tiny_model(tmp_path, architecture, layers=2)
    end = network_end(load_model(name, "cpu", "float64"))
    equations = NormalEquations(32, torch.device("cpu"))
    equations.add(*end.states(2, ANSWERS))
    (weight,) = equations.solved([1e-13])
    draft = early_exit(end, 2, end.head.weight.double() @ weight)
    tokens = torch.tensor([[3, 1, 4, 1, 5, 9, 2, 6]])
    with torch.inference_mode():
        found, expected = draft(tokens).logits, whole_network(name)(tokens).logits
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)


def test_a_draft_of_some_layers_is_another_network_that_leaves_the_target_as_it_was(tmp_path):
    name = write_tiny_model(tmp_path, layers=3)
    target = load_model(name, "cpu", "float64")
    before = {key: value.clone() for key, value in target.network.state_dict().items()}
    end = network_end(target)
    draft = early_exit(end, 1, torch.zeros_like(end.head.weight))
    assert (draft.config.num_hidden_layers, target.network.config.num_hidden_layers) == (1, 3)
    assert not draft.config.tie_word_embeddings
    with torch.no_grad():
        for parameter in draft.parameters():
            parameter.fill_(7)
    after = target.network.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[key], after[key]) for key in before)


REFUSED = {
    "gpt_neox": "no model.layers and model.norm",
    "phi": "no model.layers and model.norm",
    "cohere": "not one by the root mean square",
    "granite": "scales or caps its logits",
    "starcoder2": "not one by the root mean square",
}


@pytest.mark.parametrize("architecture", REFUSED)
def test_networks_that_end_otherwise_are_refused(architecture, tmp_path):
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
        **({"logits_scaling": 3.0} if architecture == "granite" else {}),
    )
    write_tiny_model(tmp_path)  # for its tokenizer
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    with pytest.raises(ModelRefused, match=f"no early-exit draft can be made of it: .*{REFUSED[architecture]}"):
        network_end(load_model(str(tmp_path), "cpu"))


def test_what_is_no_network_is_refused():
    with pytest.raises(ModelRefused, match="no early-exit draft"):
        network_end(load_model("synthetic:vocabulary=16", "cpu"))


def test_batches_keep_the_order_and_hold_long_answers_alone():
    answers = [Answer(tuple(range(length)), 1) for length in (100, 1900, 100, 3000, 5)]
    assert [[len(one.token_ids) for one in batch] for batch in batches(answers)] == [[100, 1900], [100], [3000], [5]]
