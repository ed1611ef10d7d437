"""The doors of the public API: bearer tokens, and sessions that only their maker reaches."""

from hashlib import sha256

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from specdec.serving.status import from_rpc_error
from specdec.v1 import common_pb2, generation_pb2
from tests.integration.coordinator_process import coordinating
from tests.integration.model_services import FakeDraft, FakeTarget, serving

v1 = generation_pb2
SERVING = health_pb2.HealthCheckResponse.SERVING
ANN, ANN_NEW, BOB = "ann-token", "ann-new-token", "bob-token"
REQUESTS = {
    "Generate": v1.GenerateRequest(prompt="hi", sampling_params=common_pb2.SamplingParams(max_new_tokens=3)),
    "GetSession": v1.GetSessionRequest(session_id="nobodys"),
    "DeleteSession": v1.DeleteSessionRequest(session_id="nobodys"),
    "GetModelInfo": common_pb2.GetModelInfoRequest(),
}


@pytest.fixture
async def models():
    async with serving(FakeTarget()) as target, serving(FakeDraft()) as draft:
        yield [f"127.0.0.1:{target.port}"], [f"127.0.0.1:{draft.port}"]


@pytest.fixture
def tokens_file(tmp_path):
    path = tmp_path / "tokens"
    path.write_text("".join(f"{token.partition('-')[0]}:{digest(token)}\n" for token in (ANN, ANN_NEW, BOB)))
    return path


@pytest.fixture
async def guarded(redis_url, models, tokens_file):
    async with coordinating(redis_url, *models, tokens_file=str(tokens_file)) as running:
        await running.health(SERVING)
        yield running


def digest(token):
    return sha256(token.encode()).hexdigest()


def bearing(token):
    return (("authorization", f"Bearer {token}"),)


async def ask(running, method, request, token):
    """Return all that a method answers."""
    call = getattr(running.stub, method)(request, timeout=30, metadata=bearing(token))
    return [event async for event in call] if method == "Generate" else [await call]


async def refusal(running, method, request, metadata):
    """Return everything that a refused caller gets to know."""
    call = getattr(running.stub, method)(request, timeout=30, metadata=metadata)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        _ = [event async for event in call] if method == "Generate" else await call
    error = caught.value
    return error.code(), error.details(), vars(from_rpc_error(error)), dict(error.initial_metadata())


def test_every_method_is_tried_here():
    assert {each.name for each in v1.DESCRIPTOR.services_by_name["GenerationService"].methods} == REQUESTS.keys()


@pytest.mark.parametrize("method", REQUESTS)
async def test_no_method_answers_without_a_valid_token_nor_hints_at_one(guarded, method):
    wrong = [
        (),
        bearing("none"),
        bearing(""),
        bearing(digest(ANN)),
        (("authorization", ANN),),
        (("authorization", f"Basic {ANN}"),),
        (*bearing(ANN), *bearing("none")),
        (("x-authorization", f"Bearer {ANN}"),),
    ]
    told = [await refusal(guarded, method, REQUESTS[method], metadata) for metadata in wrong]
    assert {code for code, *_ in told} == {grpc.StatusCode.UNAUTHENTICATED}
    assert all(each == told[0] for each in told)


@pytest.mark.parametrize("scheme", ["Bearer", "bearer"])
async def test_every_valid_token_lets_in(guarded, scheme):
    for token in (ANN, ANN_NEW, BOB):
        metadata = (("authorization", f"{scheme} {token}"),)
        assert (await guarded.stub.GetModelInfo(REQUESTS["GetModelInfo"], metadata=metadata)).model.name == "fake"


async def test_health_and_reflection_need_no_token(guarded):
    health = health_pb2_grpc.HealthStub(guarded.channel)
    assert (await health.Check(health_pb2.HealthCheckRequest())).status == SERVING
    services = iter([reflection_pb2.ServerReflectionRequest(list_services="")])
    answer = await reflection_pb2_grpc.ServerReflectionStub(guarded.channel).ServerReflectionInfo(services).read()
    assert answer.list_services_response.service


def about(session_id):
    """Every way to ask for a session by its id."""
    return [
        ("Generate", v1.GenerateRequest(session_id=session_id, prompt="more")),
        ("Generate", v1.GenerateRequest(session_id=session_id, prompt="more", expected_length=0)),
        ("Generate", v1.GenerateRequest(session_id=session_id, resume_from=0)),
        ("GetSession", v1.GetSessionRequest(session_id=session_id)),
        ("DeleteSession", v1.DeleteSessionRequest(session_id=session_id)),
    ]


async def test_anothers_session_is_not_found_whatever_is_asked(guarded):
    request = v1.GenerateRequest(session_id="tea", prompt="hi", sampling_params={"max_new_tokens": 3})
    made = await ask(guarded, "Generate", request, ANN)
    for method, asked in about("tea"):
        code, message, known, _ = await refusal(guarded, method, asked, bearing(BOB))
        assert (code, known["metadata"]) == (grpc.StatusCode.NOT_FOUND, {})
        unknown = await refusal(guarded, "GetSession", v1.GetSessionRequest(session_id="teb"), bearing(BOB))
        assert message == unknown[1].replace("teb", "tea")
    [session] = await ask(guarded, "GetSession", v1.GetSessionRequest(session_id="tea"), ANN)
    assert len(session.token_ids) == made[-1].session_length


async def test_a_principals_other_token_reaches_the_session(guarded):
    request = v1.GenerateRequest(session_id="tea", prompt="hi", sampling_params={"max_new_tokens": 3})
    first = await ask(guarded, "Generate", request, ANN)
    second = await ask(guarded, "Generate", request, ANN_NEW)
    assert second[-1].session_length > first[-1].session_length
    assert await ask(guarded, "DeleteSession", v1.DeleteSessionRequest(session_id="tea"), ANN_NEW)
    assert await ask(guarded, "Generate", request, BOB)  # the id is free again


async def test_a_running_session_is_not_taken_over_by_another(guarded):
    request = v1.GenerateRequest(session_id="tea", prompt="hi", sampling_params={"max_new_tokens": 150})
    running = aiter(guarded.stub.Generate(request, metadata=bearing(ANN)))
    await anext(running)
    for method, asked in about("tea"):
        assert (await refusal(guarded, method, asked, bearing(BOB)))[0] is grpc.StatusCode.NOT_FOUND
    rest = [event async for event in running]
    assert rest[-1].finish_reason


async def test_without_tokens_the_id_is_the_capability(redis_url, models):
    async with coordinating(redis_url, *models) as running:
        request = v1.GenerateRequest(session_id="tea", prompt="hi", sampling_params={"max_new_tokens": 3})
        assert await ask(running, "Generate", request, "any")
        assert await running.stub.GetSession(v1.GetSessionRequest(session_id="tea"))


async def test_sessions_of_before_the_tokens_are_nobodys(redis_url, models, tokens_file):
    request = v1.GenerateRequest(session_id="tea", prompt="hi", sampling_params={"max_new_tokens": 3})
    async with coordinating(redis_url, *models) as running:
        await ask(running, "Generate", request, "any")
    async with coordinating(redis_url, *models, tokens_file=str(tokens_file)) as running:
        for method, asked in about("tea"):
            assert (await refusal(running, method, asked, bearing(ANN)))[0] is grpc.StatusCode.NOT_FOUND
