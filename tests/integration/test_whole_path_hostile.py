"""A draft that lies over the wire: its proposals are refused, the answer is the target's, and everything stays up."""

import math

import pytest
import pytest_asyncio

from draft_service.servicer import DraftServicer
from specdec.v1 import generation_pb2
from tests.in_process import serving_draft, serving_target
from tests.integration.whole_path import BLOCK, COUPLED, SERVING, TOKEN, whole_path

TARGET, DRAFT = "synthetic:seed=1,order=3,vocabulary=128", "synthetic:seed=1,order=3,vocabulary=128,agreement=0.7"
VOCABULARY, GAMMA, TOKENS = 128, 4, 14
MESSAGE_LIMIT = 16 * 2**20
INVALID = generation_pb2.FALLBACK_REASON_INVALID_PROPOSAL
GREEDY, SAMPLED = {"temperature": 0.0}, {"temperature": 1.0, "seed": 11}

pytestmark = pytest.mark.asyncio(loop_scope="module")


class LyingDraft(DraftServicer):
    """Drafts as it should, then says something else."""

    def lie(self, response):
        """Change an honest response."""

    async def Propose(self, request, context):
        response = await super().Propose(request, context)
        self.lie(response)
        return response

    ProposeStream = Propose


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def path(redis_server):
    async with (
        serving_target(TARGET) as target,
        serving_draft(DRAFT, servicer_class=LyingDraft) as draft,
        whole_path(redis_server.url, target, draft) as path,
    ):
        yield path


@pytest.fixture
def lie(path, monkeypatch):
    """Return what makes the draft lie about its proposals."""

    def begin(change):
        monkeypatch.setattr(path.draft.servicer, "lie", lambda response: change(response.proposal))

    return begin


def request(gamma, verification, params):
    return {
        "token_ids": [1, 2, 3],
        "sampling_params": params | {"max_new_tokens": TOKENS, "ignore_eos": True},
        "speculation": {"gamma": gamma, "verification": verification},
    }


def first(proposal):
    return proposal.draft_distributions[0]


def set_probability(value):
    def change(proposal):
        first(proposal).probabilities[0] = value

    return change


def no_distributions(proposal):
    del proposal.draft_distributions[:]


def one_distribution_less(proposal):
    del proposal.draft_distributions[-1]


def one_distribution_more(proposal):
    proposal.draft_distributions.append(first(proposal))


def one_token_less(proposal):
    del proposal.draft_tokens[-1]
    del proposal.draft_distributions[-1:]


def no_tokens(proposal):
    del proposal.draft_tokens[:]
    del proposal.draft_distributions[:]


def one_token_more(proposal):
    proposal.draft_tokens.append(proposal.draft_tokens[0])
    proposal.draft_distributions.extend(proposal.draft_distributions[:1])


def far_too_many_tokens(proposal):
    proposal.draft_tokens.extend([1] * 5000)


def as_large_as_a_message_may_be(proposal):
    """The call to the target is larger still, by the prefix and the parameters."""
    distribution = first(proposal)
    room = MESSAGE_LIMIT - 2000 - proposal.ByteSize()
    distribution.token_ids.extend([1] * room)


def token_out_of_range(proposal):
    proposal.draft_tokens[-1] = VOCABULARY


def largest_token(proposal):
    proposal.draft_tokens[0] = 2**32 - 1


def support_out_of_range(proposal):
    first(proposal).token_ids.append(VOCABULARY)
    first(proposal).probabilities.append(1e-6)


def token_outside_its_support(proposal):
    support = set(first(proposal).token_ids)
    proposal.draft_tokens[0] = next(token for token in range(VOCABULARY) if token not in support)


def repeated_ids(proposal):
    distribution = first(proposal)
    distribution.token_ids.append(distribution.token_ids[0])
    distribution.probabilities[0] /= 2
    distribution.probabilities.append(distribution.probabilities[0])


def empty_distribution(proposal):
    del first(proposal).token_ids[:]
    del first(proposal).probabilities[:]


def one_probability_less(proposal):
    first(proposal).token_ids.append(next(iter(set(range(VOCABULARY)) - set(first(proposal).token_ids))))


def unnormalised(proposal):
    first(proposal).probabilities[0] += 0.01


def distributions_for_coupled(proposal):
    for token in proposal.draft_tokens:
        proposal.draft_distributions.add(token_ids=[token], probabilities=[1.0])


def another_draw(proposal):
    for index, distribution in enumerate(proposal.draft_distributions):
        drawn = proposal.draft_tokens[index]
        proposal.draft_tokens[index] = next(token for token in distribution.token_ids if token != drawn)


def another_order(proposal):
    """Say the same distribution in an order in which the draw gives another token."""
    for distribution in proposal.draft_distributions:
        distribution.token_ids[:] = list(distribution.token_ids)[::-1]
        distribution.probabilities[:] = list(distribution.probabilities)[::-1]


STRUCTURAL = [
    no_distributions,
    one_distribution_less,
    one_distribution_more,
    one_token_less,
    no_tokens,
    one_token_more,
    far_too_many_tokens,
    as_large_as_a_message_may_be,
    token_out_of_range,
    largest_token,
    support_out_of_range,
    token_outside_its_support,
    repeated_ids,
    empty_distribution,
    one_probability_less,
    unnormalised,
    *(set_probability(value) for value in (math.nan, -0.5, 0.0, math.inf, -math.inf, 1e30)),
]
CASES = [
    *((TOKEN, GREEDY, change) for change in STRUCTURAL),
    *((BLOCK, GREEDY, change) for change in (no_distributions, token_out_of_range, set_probability(math.nan))),
    *((way, SAMPLED, change) for way in (TOKEN, BLOCK) for change in (another_draw, another_order, unnormalised)),
    *(
        (COUPLED, SAMPLED, change)
        for change in (distributions_for_coupled, token_out_of_range, one_token_less, no_tokens, one_token_more)
    ),
]


@pytest.mark.parametrize(("verification", "params", "change"), CASES)
async def test_a_refused_proposal_leaves_the_answer_to_the_target(path, lie, verification, params, change):
    plain = await path.answer(**request(0, verification, params))
    counted = path.coordinator.metric("fallback_rounds_total", reason="invalid_proposal") or 0
    lie(change)
    answer = await path.answer(**request(GAMMA, verification, params))
    assert (answer.tokens, answer.text) == (plain.tokens, plain.text)
    # None of its proposals is asked for once one was refused, and the last round has no room for any.
    assert answer.fallbacks == [INVALID] * (TOKENS - 1) + [0]
    assert (answer.usage.spec_draft_tokens, answer.usage.rounds) == (0, TOKENS)
    assert {*answer.sources} == {generation_pb2.TOKEN_SOURCE_TARGET_ONLY}
    now = path.coordinator.metric("fallback_rounds_total", reason="invalid_proposal")
    assert now == counted + TOKENS - 1
    assert await path.health() == SERVING


@pytest.mark.parametrize("verification", [TOKEN, BLOCK, COUPLED])
@pytest.mark.parametrize("token", [0, 5, VOCABULARY - 1])
async def test_wrong_guesses_that_are_well_formed_are_only_rejected(path, lie, verification, token):
    params = SAMPLED if verification == COUPLED else GREEDY
    plain = await path.answer(**request(0, verification, params))

    def guess(proposal):
        proposal.draft_tokens[:] = [token] * len(proposal.draft_tokens)
        for distribution in proposal.draft_distributions:
            distribution.token_ids[:] = [token]
            distribution.probabilities[:] = [1.0]

    lie(guess)
    answer = await path.answer(**request(GAMMA, verification, params))
    assert answer.tokens == plain.tokens
    assert not any(answer.fallbacks)
    assert answer.usage.spec_draft_tokens > 0
    assert answer.usage.spec_accepted_tokens == sum(
        source == generation_pb2.TOKEN_SOURCE_ACCEPTED for source in answer.sources
    )


@pytest.mark.parametrize("verification", [TOKEN, COUPLED])
async def test_rejected_tokens_advance_no_stop(path, lie, verification):
    params = SAMPLED if verification == COUPLED else GREEDY
    plain = await path.answer(**request(0, verification, params))
    token = next(token for token in range(VOCABULARY) if token not in plain.tokens)
    follows = chr(plain.tokens[0]) + chr(token)

    def guess(proposal):
        proposal.draft_tokens[:] = [plain.tokens[0], *[token] * (len(proposal.draft_tokens) - 1)]
        for drafted, distribution in zip(proposal.draft_tokens, proposal.draft_distributions, strict=False):
            distribution.token_ids[:] = [drafted]
            distribution.probabilities[:] = [1.0]

    lie(guess)
    for stops in ({"stop_token_ids": [token]}, {"stop": [chr(token), chr(token) * 2, follows]}):
        answer = await path.answer(**request(GAMMA, verification, params | stops))
        assert (answer.tokens, answer.text) == (plain.tokens, plain.text)
        assert answer.usage.spec_accepted_tokens > 0


@pytest.mark.parametrize("held", [0, 1, 4, 5, 2**32 - 1])
async def test_a_draft_that_lies_about_what_it_holds_is_told_again(path, monkeypatch, held):
    honest = await path.answer(**request(GAMMA, COUPLED, SAMPLED))

    def lie(response):
        response.cached_length = held

    monkeypatch.setattr(path.draft.servicer, "lie", lie)
    answer = await path.answer(**request(GAMMA, COUPLED, SAMPLED))
    assert (answer.tokens, answer.rounds) == (honest.tokens, honest.rounds)
    assert not any(answer.fallbacks)


async def test_one_lie_in_the_middle_of_an_answer_ends_speculation_there(path, monkeypatch):
    plain = await path.answer(**request(0, COUPLED, SAMPLED))
    asked = []

    def lie(response):
        asked.append(len(response.proposal.draft_tokens))
        if len(asked) == 2:
            token_out_of_range(response.proposal)

    monkeypatch.setattr(path.draft.servicer, "lie", lie)
    answer = await path.answer(**request(2, COUPLED, SAMPLED))
    assert answer.tokens == plain.tokens
    assert len(asked) == 2
    assert answer.fallbacks == [0, *[INVALID] * (len(answer.events) - 2), 0]
    monkeypatch.undo()
    again = await path.answer(**request(2, COUPLED, SAMPLED))
    assert not any(again.fallbacks)  # another answer trusts it anew
