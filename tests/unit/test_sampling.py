"""Distributions agree with Hugging Face's processors in its order, row by row."""

import itertools

import pytest
import torch
import transformers
from transformers import GenerationConfig, LogitsProcessorList

from specdec.parameters import SamplingParams
from specdec.sampling import RowContext, coupled_choice, distributions, inverse_cdf, sparse_distributions

VOCABULARY = 50
COMMITTED = [3, 4, 5, 3, 9, 9]
PROMPT_LENGTH = 4
END = (7,)


def row(params, drafted=()):
    return RowContext(params, COMMITTED, PROMPT_LENGTH, drafted, END)


def logits(rows=1, seed=0):
    return torch.randn(rows, VOCABULARY, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * 3


def reference(scores, params, drafted):
    """Return what Hugging Face's own processors make of the scores."""
    tokens = torch.tensor([[*COMMITTED, *drafted]])
    processors = LogitsProcessorList()
    if params.logit_bias:
        bias = [[[token], value] for token, value in params.logit_bias.items()]
        processors.append(transformers.SequenceBiasLogitsProcessor(bias))
    if params.repetition_penalty != 1.0:
        processors.append(transformers.RepetitionPenaltyLogitsProcessor(params.repetition_penalty))
    if params.min_new_tokens:
        end = [*END, *params.stop_token_ids]
        processors.append(
            transformers.MinNewTokensLengthLogitsProcessor(PROMPT_LENGTH, params.min_new_tokens, end, device="cpu")
        )
    processors.append(transformers.TemperatureLogitsWarper(float(params.temperature)))
    if params.top_k:
        processors.append(transformers.TopKLogitsWarper(params.top_k))
    if params.top_p < 1:
        processors.append(transformers.TopPLogitsWarper(params.top_p))
    if params.min_p:
        processors.append(transformers.MinPLogitsWarper(params.min_p))
    return torch.softmax(processors(tokens, scores.clone()), dim=-1)


CASES = [
    SamplingParams(temperature=1.0),
    SamplingParams(temperature=0.3),
    SamplingParams(temperature=1.0, top_k=5),
    SamplingParams(temperature=1.5, top_k=500),
    SamplingParams(temperature=1.0, top_p=0.7),
    SamplingParams(temperature=1.0, top_p=0.01),
    SamplingParams(temperature=1.0, top_p=0.5),
    SamplingParams(temperature=1.0, min_p=0.2),
    SamplingParams(temperature=1.0, min_p=1.0),
    SamplingParams(temperature=1.0, repetition_penalty=1.7),
    SamplingParams(temperature=1.0, repetition_penalty=0.6),
    SamplingParams(temperature=1.0, logit_bias={1: 2.5, 40: -100.0}),
    SamplingParams(temperature=2.0, min_new_tokens=5, stop_token_ids=(8,)),
    SamplingParams(
        temperature=0.8,
        top_k=20,
        top_p=0.9,
        min_p=0.02,
        repetition_penalty=1.3,
        logit_bias={2: 3.0},
        min_new_tokens=10,
    ),
]


@pytest.mark.parametrize("params", CASES)
@pytest.mark.parametrize("drafted", [(), (11, 3)])
def test_agrees_with_hugging_face(params, drafted):
    scores = logits()
    found = distributions(scores, [row(params, drafted)])
    assert torch.allclose(found.double(), reference(scores, params, drafted), atol=1e-7)


def test_order_is_the_one_that_hugging_face_builds():
    config = GenerationConfig(
        do_sample=True,
        temperature=0.8,
        top_k=20,
        top_p=0.9,
        min_p=0.02,
        repetition_penalty=1.3,
        sequence_bias=[[[2], 3.0]],
        min_new_tokens=10,
        eos_token_id=7,
        pad_token_id=0,
    )
    tiny = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            vocab_size=VOCABULARY, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1
        )
    )
    config._eos_token_tensor = torch.tensor([7])
    processors = tiny._get_logits_processor(config, input_ids_seq_length=PROMPT_LENGTH, device="cpu")
    scores = logits()
    expected = torch.softmax(processors(torch.tensor([COMMITTED]), scores.clone()), dim=-1)
    assert torch.allclose(distributions(scores, [row(CASES[-1])]).double(), expected, atol=1e-7)


def test_ends_are_banned_until_the_answer_is_long_enough():
    params = SamplingParams(temperature=1.0, min_new_tokens=4, stop_token_ids=(8,))
    banned = distributions(logits(), [row(params, drafted=(11,))])[0]  # three tokens so far
    free = distributions(logits(), [row(params, drafted=(11, 3))])[0]
    assert banned[[7, 8]].tolist() == [0.0, 0.0]
    assert (free[[7, 8]] > 0).all()


def test_presence_and_frequency_count_the_answer_and_the_draft_tokens_before():
    params = SamplingParams(temperature=1.0, presence_penalty=0.5, frequency_penalty=0.25)
    scores = logits()
    expected = scores.clone()
    expected[0, 9] -= 0.5 + 2 * 0.25  # twice in the answer
    expected[0, 3] -= 0.5 + 0.25  # in the prompt, which does not count, and once drafted
    found = distributions(scores, [row(params, drafted=(3,))])
    assert torch.allclose(found.double(), torch.softmax(expected, dim=-1), atol=1e-7)


def test_a_nucleus_that_is_exactly_full_takes_no_more():
    context = RowContext(SamplingParams(temperature=1.0, top_p=0.5), (0,), 1, (), ())
    assert sorted(distributions(torch.zeros(1, 4), [context])[0].tolist()) == [0.0, 0.0, 0.5, 0.5]


def test_a_greedy_row_is_one_hot_after_penalties():
    scores = torch.zeros(1, VOCABULARY)
    scores[0, 9], scores[0, 20] = 2.0, 1.5
    found = distributions(scores, [row(SamplingParams(temperature=9e-6, repetition_penalty=2.0))])
    assert found[0, 20] == 1.0
    assert found.sum() == 1.0


def test_a_small_temperature_above_the_bound_stays_finite():
    found = distributions(logits().float(), [row(SamplingParams(temperature=2e-5))])
    assert found.isfinite().all()
    assert found.sum().item() == pytest.approx(1.0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rows_do_not_see_each_other(dtype):
    rows = [row(params) for params in (*CASES, SamplingParams())]
    scores = logits(len(rows), seed=3).to(dtype)
    alone = [distributions(scores[index : index + 1], [each])[0] for index, each in enumerate(rows)]
    together = distributions(scores, rows)
    for index, other in itertools.permutations(range(len(rows)), 2):
        assert torch.equal(together[index], alone[index])
        pair = distributions(scores[[index, other]], [rows[index], rows[other]])
        assert torch.equal(pair[0], alone[index]), (rows[index].params, rows[other].params)


def test_the_given_logits_stay_as_they_were():
    scores = logits()
    before = scores.clone()
    distributions(scores, [row(CASES[-1])])
    assert torch.equal(scores, before)


@pytest.mark.parametrize("params", [SamplingParams(), SamplingParams(temperature=1.0)])
@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_rows_that_are_not_finite_stay_visible(params, value):
    scores = logits(2)
    scores[0, 5] = value
    found = distributions(scores, [row(params), row(params)])
    assert found[0].isnan().all()
    assert found[1].isfinite().all()


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_row_without_any_token_left_stays_visible(temperature):
    params = SamplingParams(temperature=temperature, min_new_tokens=9, stop_token_ids=(0, 1, 2))
    context = RowContext(params, (0,), 1, (), ())
    assert distributions(torch.zeros(1, 3), [context]).isnan().all()


def test_a_support_is_the_likeliest_tokens_with_their_sum_divided_out():
    probabilities = torch.tensor([[0.1, 0.4, 0.2, 0.3]])
    token_ids, q = sparse_distributions(probabilities, 2)
    assert token_ids.tolist() == [[1, 3]]
    assert q.dtype == torch.float32
    assert q[0].tolist() == pytest.approx([4 / 7, 3 / 7])


def test_inverse_cdf_takes_the_entry_that_holds_the_threshold():
    weights = torch.tensor([[0.0, 0.5, 0.0, 0.5, 0.0]], dtype=torch.float64)
    picks = {u: inverse_cdf(weights, torch.tensor([u], dtype=torch.float64)).item() for u in (1e-17, 0.49, 0.5, 0.99)}
    assert picks == {1e-17: 1, 0.49: 1, 0.5: 3, 0.99: 3}


def test_inverse_cdf_finds_mass_behind_entries_without():
    weights = torch.tensor([[0.0, 0.0, 0.25, 0.75]], dtype=torch.float64)
    assert [inverse_cdf(weights, torch.tensor([u], dtype=torch.float64)).item() for u in (0.2, 0.3)] == [2, 3]


def test_inverse_cdf_never_leaves_the_support_by_rounding():
    weights = torch.tensor([[0.1] * 10 + [0.0] * 3], dtype=torch.float64)
    assert inverse_cdf(weights, torch.tensor([1 - 2**-53], dtype=torch.float64)).item() == 9
    least = torch.tensor([[0.0, 5e-324, 0.0, 0.0]], dtype=torch.float64)  # 0.9 of it rounds to the whole of it
    assert inverse_cdf(least, torch.tensor([0.9], dtype=torch.float64)).item() == 1


def test_coupled_choice_never_takes_a_token_without_mass():
    probabilities = torch.tensor([[0.0, 1.0, 0.0]])
    noise = torch.tensor([[50.0, -50.0, 50.0]], dtype=torch.float64)
    assert coupled_choice(probabilities, noise).item() == 1


def test_a_failed_row_stays_visible_under_a_ban_of_just_the_token_that_shows_it():
    scores = logits()
    scores[0, END[0]] = torch.nan
    assert distributions(scores, [row(SamplingParams(min_new_tokens=50))]).isnan().all()
