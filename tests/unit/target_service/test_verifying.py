"""Verify calls of a batch: verdicts, log-probabilities, refusals."""

import pytest
import torch

from specdec.errors import InvalidParameter, InvalidProposal, NumericalFailure
from specdec.fence import Fence
from specdec.model.work import Done, Feed
from specdec.parameters import SamplingParams, Verification
from specdec.prefix import CommittedPrefix
from specdec.proposal import Proposal, SparseDistribution
from target_service.verifying import TargetLimits, Verify, decide
from tests.device_reads import DeviceReads

VOCABULARY = 12
LIMITS = TargetLimits(VOCABULARY, context_length=10, end_token_ids=(11,))


def call(draft_tokens=(), verification=Verification.TOKEN, committed=(1, 2, 3), **params):
    params = {"temperature": 0.0, "seed": 5} | params
    prefix = CommittedPrefix("s", Fence(1, "0" * 32), 0, b"", committed, 1)
    certain = () if verification is Verification.COUPLED else draft_tokens
    proposal = Proposal(draft_tokens, tuple(SparseDistribution((token,), (1.0,)) for token in certain))
    return Verify(prefix, SamplingParams(**params), verification, proposal, LIMITS)


def logits_that_choose(*tokens, noise=0):
    rows = torch.randn(len(tokens), VOCABULARY, generator=torch.Generator().manual_seed(noise))
    rows[range(len(tokens)), tokens] += 20.0
    return rows


def begun(each):
    each.begin(list(each.prefix.tokens))
    return each


def test_asks_for_one_row_more_than_draft_tokens():
    assert call((4, 5)).begin([1, 2, 3]) == Feed([4, 5], 3)
    assert call().begin([1, 2, 3]) == Feed([], 1)


@pytest.mark.parametrize("verification", list(Verification))
def test_a_ragged_batch_gives_everyone_its_own_verdict(verification):
    calls = [begun(call(tokens, verification)) for tokens in [(), (4, 5), (4, 9, 6)]]
    rows = [logits_that_choose(7), logits_that_choose(4, 5, 6), logits_that_choose(4, 5, 6, 7)]
    done = decide(list(zip(calls, rows, strict=True)))
    assert [(each.result.accept_index, each.result.next_token) for each in done] == [(0, 7), (2, 6), (1, 5)]
    assert [(each.keep, each.committed) for each in done] == [(3, 3), (5, 5), (4, 4)]
    assert not any(each.result.residual_zero or each.result.logprobs for each in done)


def test_logprobs_are_of_the_unprocessed_logits_at_each_committed_position():
    rows = logits_that_choose(4, 5, 6, noise=2)
    plain = begun(call((4, 9), logprobs=3, temperature=0.5, top_k=1, logit_bias={4: 1.0}))
    bystander = begun(call((4,)))
    done, _ = decide([(plain, rows), (bystander, logits_that_choose(4, 5))])
    expected = torch.log_softmax(rows.double(), dim=-1)
    assert [each.token_id for each in done.result.logprobs] == [4, 5]
    for index, each in enumerate(done.result.logprobs):
        assert each.logprob == pytest.approx(expected[index, each.token_id].item())
        values, token_ids = expected[index].topk(3)
        assert [token for token, _ in each.top] == token_ids.tolist()
        assert [value for _, value in each.top] == pytest.approx(values.tolist())


def test_logprobs_of_zero_alternatives_are_the_tokens_own():
    (done,) = decide([(begun(call((4,), logprobs=0)), logits_that_choose(4, 5))])
    assert [(each.token_id, each.top) for each in done.result.logprobs] == [(4, ()), (5, ())]


def test_more_alternatives_than_the_vocabulary_holds_give_all_of_it():
    (done,) = decide([(begun(call(logprobs=20)), logits_that_choose(4))])
    assert len(done.result.logprobs[0].top) == VOCABULARY


@pytest.mark.parametrize("verification", list(Verification))
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_rows_that_are_not_finite_fail_their_own_session_alone(temperature, verification):
    calls = [begun(call((4,), verification, temperature=temperature)) for _ in range(2)]
    broken = logits_that_choose(4, 5)
    broken[1, 3] = torch.nan
    outcomes = decide([(calls[0], broken), (calls[1], logits_that_choose(4, 5))])
    assert isinstance(outcomes[0], NumericalFailure)
    assert isinstance(outcomes[1], Done)
    assert outcomes[1].result.next_token == 5


def test_a_proposal_that_was_not_drawn_as_it_says_is_refused():
    each = call((4,))
    each.proposal = Proposal((4,), (SparseDistribution((5,), (1.0,)),))
    with pytest.raises(InvalidProposal):
        each.begin([1, 2, 3])


def test_a_proposal_beyond_the_context_is_refused():
    call((4,), committed=tuple(range(9))).begin(list(range(9)))
    with pytest.raises(InvalidParameter) as caught:
        call((4,), committed=tuple(range(10))).begin(list(range(10)))
    assert caught.value.field == "prefix.tokens"


def test_parameters_that_leave_no_token_are_refused():
    call(stop_token_ids=(*range(10),), min_new_tokens=1).begin([1, 2, 3])  # 10 is left, 11 ends every answer
    call(stop_token_ids=(*range(VOCABULARY),)).begin([1, 2, 3])  # each token ends the answer, and may come
    call(stop_token_ids=(0,) * VOCABULARY, min_new_tokens=1).begin([1, 2, 3])
    with pytest.raises(InvalidParameter) as caught:
        call(stop_token_ids=(*range(11),), min_new_tokens=1).begin([1, 2, 3])
    assert caught.value.field == "sampling_params.min_new_tokens"


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_parameters_that_leave_no_token_where_the_model_wants_to_end_are_at_fault_and_not_the_model(temperature):
    ends = torch.full((1, VOCABULARY), -torch.inf)
    ends[0, 11] = 0.0
    ill, never = ends.clone(), ends.clone()
    ill[0, 3], never[0, 11] = torch.nan, -torch.inf
    least = {"min_new_tokens": 3, "temperature": temperature}
    calls = [begun(call(**least)) for _ in range(3)] + [begun(call(temperature=temperature))]
    outcomes = decide(list(zip(calls, [ends, ill, never, ends], strict=True)))
    assert [type(each) for each in outcomes] == [InvalidParameter, NumericalFailure, NumericalFailure, Done]
    assert outcomes[0].field == "sampling_params.min_new_tokens"


PENALISED = {
    "repetition_penalty": 1.2,
    "presence_penalty": 0.1,
    "logit_bias": {2: 1.0},
    "min_new_tokens": 4,
    "logprobs": 2,
}


@pytest.mark.parametrize("verification", list(Verification))
@pytest.mark.parametrize("params", [{}, {"temperature": 0.7, "top_k": 5, "top_p": 0.9, "min_p": 0.1} | PENALISED])
def test_a_batch_is_decided_without_waiting_for_the_device_before_its_one_copy(verification, params):
    calls = [begun(call(tokens, verification, **params)) for tokens in [(), (4, 5)]]
    ready = list(zip(calls, [logits_that_choose(7), logits_that_choose(4, 5, 6)], strict=True))
    with DeviceReads() as reads:
        decide(ready)
    assert reads.found == []


def test_control_indexing_by_a_tensor_is_seen_as_a_read():
    with DeviceReads() as reads:
        torch.arange(3)[torch.tensor(1)]
    assert reads.found
