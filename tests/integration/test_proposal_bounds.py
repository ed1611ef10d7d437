"""Bounds on how likely draft tokens must be to stand: what a draft makes of them, and which answers send them."""

import grpc
import pytest
import pytest_asyncio

from draft_service.servicer import DraftServicer
from specdec.errors import InvalidParameter
from specdec.fence import Fence
from specdec.parameters import SamplingParams
from specdec.prefix import CommittedPrefix, PrefixDigest
from specdec.serving.status import from_rpc_error
from specdec.v1.draft_pb2 import ProposeRequest
from specdec.v1.draft_pb2_grpc import DraftServiceStub
from specdec.wire import params_to_message, prefix_to_message
from tests.in_process import serving_draft, serving_target
from tests.integration.whole_path import BLOCK, COUPLED, TOKEN, whole_path

MODEL = "synthetic:vocabulary=64,seed=1"
COMMITTED = [1, 2, 3, 4, 5, 1, 2, 3]
GAMMA = 4

pytestmark = pytest.mark.asyncio(loop_scope="module")


class NotingDraft(DraftServicer):
    """Notes with which bounds it was asked."""

    def __init__(self, settings, registry):
        super().__init__(settings, registry)
        self.bounds = []

    async def Propose(self, request, context):
        self.bounds.append(list(request.min_survival))
        return await super().Propose(request, context)

    ProposeStream = Propose


async def proposed(draft, bounds, session_id="s", committed=COMMITTED):
    prefix = CommittedPrefix(session_id, Fence(1, "0" * 32), 0, PrefixDigest([]).digest(), tuple(committed), 1)
    request = ProposeRequest(
        prefix=prefix_to_message(prefix),
        sampling_params=params_to_message(SamplingParams(temperature=1.0, seed=5)),
        gamma=GAMMA,
        min_survival=bounds,
    )
    async with grpc.aio.insecure_channel(draft.address) as channel:
        response = await DraftServiceStub(channel).Propose(request, timeout=30)
    return list(response.proposal.draft_tokens)


@pytest.mark.parametrize(("model", "least"), [(MODEL, 1), ("lookup:", 0)])
async def test_a_proposal_ends_where_no_token_is_worth_it(model, least):
    async with serving_draft(model) as draft:
        whole = await proposed(draft, [])
        assert len(whole) == GAMMA
        assert await proposed(draft, [0.0], "t") == whole
        assert await proposed(draft, [1.0], "u") == whole[:least]


async def test_a_model_is_asked_where_what_followed_before_is_not_worth_it():
    async with serving_draft(f"lookup:{MODEL}") as composed, serving_draft(MODEL) as alone:
        assert (await proposed(composed, []))[0] == (await proposed(composed, [0.0], "t"))[0] == 4
        assert await proposed(composed, [1.0], "u") == await proposed(alone, [1.0]) != [4]


async def test_a_draft_learns_what_is_worth_it_from_what_is_committed():
    async with serving_draft("lookup:") as draft:
        bounds = [0.4, 0.0]
        assert await proposed(draft, bounds) == [4, 5, 1, 2]
        for number in range(8):  # never what was proposed
            await proposed(draft, bounds, f"{number}", COMMITTED)
            await proposed(draft, bounds, f"{number}", [*COMMITTED, 9])
        assert await proposed(draft, bounds, "new") == []
        assert await proposed(draft, [], "new") == [4, 5, 1, 2]


@pytest.mark.parametrize("bounds", [[1.5], [0.5, -0.1], [float("nan")], [float("inf")]])
async def test_what_is_no_chance_is_refused(bounds):
    async with serving_draft("lookup:") as draft:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await proposed(draft, bounds)
        error = from_rpc_error(refused.value)
        assert isinstance(error, InvalidParameter)
        assert error.field == "min_survival"


@pytest_asyncio.fixture(loop_scope="module")
async def path(redis_server):
    """A coordinator that knows nothing yet, so that it asks the draft."""
    async with (
        serving_target(MODEL) as target,
        serving_draft(f"{MODEL},agreement=0.7", servicer_class=NotingDraft) as draft,
        whole_path(redis_server.url, target, draft) as path,
    ):
        yield path


@pytest.mark.parametrize(
    ("way", "seed", "temperature", "bounded"),
    [
        (TOKEN, None, 1.0, True),
        (BLOCK, None, 1.0, True),
        (TOKEN, 5, 1.0, False),
        (BLOCK, 5, 1.0, False),
        (COUPLED, 5, 1.0, True),
        (BLOCK, 5, 0.0, True),
    ],
)
async def test_bounds_are_sent_for_answers_that_may_learn_together(path, way, seed, temperature, bounded):
    path.draft.servicer.bounds.clear()
    params = {"temperature": temperature, "max_new_tokens": 40, "ignore_eos": True}
    params |= {} if seed is None else {"seed": seed}
    answer = await path.answer(token_ids=COMMITTED, sampling_params=params, speculation={"verification": way})
    assert len(answer.tokens) == 40
    assert not any(answer.fallbacks)
    assert path.draft.servicer.bounds
    assert all(bool(bounds) is bounded for bounds in path.draft.servicer.bounds)


async def test_a_fixed_gamma_is_asked_for_without_bounds(path):
    path.draft.servicer.bounds.clear()
    params = {"temperature": 0.0, "max_new_tokens": 20, "ignore_eos": True}
    answer = await path.answer(token_ids=COMMITTED, sampling_params=params, speculation={"gamma": 3})
    assert path.draft.servicer.bounds == [[]] * sum(gamma > 0 for gamma, _ in answer.rounds)


async def test_adaptive_answers_are_what_they_would_be_without_a_draft(path):
    for way, seed in ((COUPLED, 7), (TOKEN, 7)):
        params = {"temperature": 1.0 if way == COUPLED else 0.0, "seed": seed, "max_new_tokens": 60, "ignore_eos": True}
        asked = {"token_ids": COMMITTED, "sampling_params": params}
        plain = await path.answer(**asked, speculation={"verification": way, "gamma": 0})
        assert (await path.answer(**asked, speculation={"verification": way})).tokens == plain.tokens
