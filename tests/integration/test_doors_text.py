"""What was asked stays with who asked: no log line, span or error holds a piece of a prompt, however a call ends."""

import io
import logging
import sys

import grpc
import pytest
import structlog

from coordinator.tokenizer import ByteTokenizer
from specdec.errors import (
    CacheFull,
    FingerprintMismatch,
    InvalidParameter,
    InvalidProposal,
    NumericalFailure,
    SpecdecError,
)
from specdec.serving import telemetry
from specdec.v1 import common_pb2, generation_pb2
from tests.in_process import serving_draft, serving_target
from tests.integration.coordinator_process import coordinating
from tests.integration.model_services import FakeDraft, FakeTarget, serving
from tests.recorded_spans import recorded_spans

MARK = "zanzibar"
Params, Request = common_pb2.SamplingParams, generation_pb2.GenerateRequest


@pytest.fixture
def logged(monkeypatch):
    """Write the log as a process does, every line of it, to what is given."""
    text = io.StringIO()
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    monkeypatch.setattr(sys, "stderr", text)
    telemetry._configure_logs("test", "debug")
    yield text
    logging.captureWarnings(capture=False)
    root.handlers[:] = handlers
    root.setLevel(level)
    structlog.reset_defaults()


@pytest.fixture
async def target():
    return FakeTarget()


@pytest.fixture
async def draft():
    return FakeDraft()


@pytest.fixture
async def coordinator(redis_url, logged, target, draft):
    async with serving(target) as target_server, serving(draft) as draft_server:
        addresses = [f"127.0.0.1:{target_server.port}"], [f"127.0.0.1:{draft_server.port}"]
        async with coordinating(redis_url, *addresses, peer_wait_seconds=0.2) as running:
            await running.fleet.drafts.wait_for(running.fleet.drafts.usable, 30)
            yield running


async def outcome(coordinator, request):
    """Return all that a caller is told of a call that fails, and nothing of one that does not."""
    try:
        await coordinator.generate(request)
    except grpc.aio.AioRpcError as error:
        return f"{error} {error.trailing_metadata()}"
    return ""


def chat(content, role="user"):
    return [generation_pb2.ChatMessage(role=role, content=content)]


REQUESTS = {
    "answered": Request(prompt=MARK, session_id="tea", sampling_params=Params(max_new_tokens=5, stop=[f"{MARK}!"])),
    "continued": Request(prompt=f"more {MARK}", session_id="tea", sampling_params=Params(max_new_tokens=5)),
    "too long": Request(prompt=MARK * 1000),
    "no room": Request(prompt=MARK * 25),
    "two inputs": Request(prompt=MARK, messages=chat(MARK)),
    "no role": Request(messages=chat(MARK, role="")),
    "no template": Request(messages=chat(MARK)),
    "bad parameter": Request(prompt=MARK, sampling_params=Params(top_p=2.0)),
    "bad stop": Request(prompt=MARK, sampling_params=Params(stop=[MARK] * 1000)),
    "long stop": Request(prompt=MARK, sampling_params=Params(stop=[MARK * 10_000])),
    "resumed with input": Request(session_id="tea", resume_from=0, prompt=MARK),
    "bad id": Request(session_id=f"{MARK} {MARK}", prompt=MARK),
}


@pytest.fixture
async def real_models(redis_url, logged):
    """Run the coordinator with a real target and a real draft, which see the prompt's token ids."""
    async with (
        serving_target("synthetic:seed=1,context=200") as target,
        serving_draft("synthetic:seed=1,context=200") as draft,
        coordinating(redis_url, [target.address], [draft.address]) as running,
    ):
        await running.fleet.drafts.wait_for(running.fleet.drafts.usable, 30)
        yield running


async def test_no_piece_of_a_prompt_leaves_the_call(real_models, logged):
    coordinator = real_models
    with recorded_spans() as spans:
        told = {name: await outcome(coordinator, request) for name, request in REQUESTS.items()}
        await coordinator.server._calls.idle.wait()
        traced = "".join(span.to_json() for span in spans.get_finished_spans())
    assert {name for name, text in told.items() if not text} == {"answered", "continued"}
    assert not [name for name, text in told.items() if MARK in text]
    assert '"session.open"' in traced
    assert "INVALID_PARAMETER" in logged.getvalue()
    for piece in (MARK, str(list(MARK.encode()))[1:-1]):
        assert piece not in traced
        assert piece not in logged.getvalue()


async def test_nor_when_something_breaks(coordinator, logged, target, draft, monkeypatch):
    def quoting(*arguments, **named):
        raise ValueError(f"cannot encode {arguments} {named}")

    prompt = Request(prompt=MARK, session_id="tea", sampling_params=Params(max_new_tokens=5))
    with recorded_spans() as spans:
        with monkeypatch.context() as broken:
            broken.setattr(ByteTokenizer, "encode", quoting)
            told = [await outcome(coordinator, prompt)]
        draft.errors = [RuntimeError("the draft breaks")] * 50
        target.errors = [RuntimeError("the target breaks")]
        told.append(await outcome(coordinator, prompt))
        await coordinator.server._calls.idle.wait()
        traced = "".join(span.to_json() for span in spans.get_finished_spans())
    assert all(told)
    assert MARK not in f"{told} {traced}"
    lines = logged.getvalue()
    assert "ValueError" in lines
    assert "the target breaks" in lines
    assert '"session": "tea"' in lines
    assert MARK not in lines


SAID = "10.0.0.7 /srv/models"  # what a model server may say of itself
ERRORS = [
    (SpecdecError(SAID), "INTERNAL"),
    (FingerprintMismatch(SAID), "INTERNAL"),
    (InvalidProposal(SAID, field="proposal.draft_tokens"), "INTERNAL"),
    (InvalidParameter(SAID, field="prefix.tokens"), "INTERNAL"),
    (InvalidParameter(SAID, field="sampling_params.top_k"), "INVALID_ARGUMENT"),
    (NumericalFailure(SAID), "INTERNAL"),
    (CacheFull(SAID, retry_seconds=0.5, metadata={"where": SAID}), "RESOURCE_EXHAUSTED"),
]


@pytest.mark.parametrize(("error", "code"), ERRORS, ids=lambda value: getattr(value, "field", "") or str(value)[:9])
async def test_what_a_model_server_says_stays_in_the_log(coordinator, logged, target, error, code):
    target.errors = [error]
    asked = Request(prompt="hi", speculation=generation_pb2.SpeculationParams(gamma=0))
    told = await outcome(coordinator, asked)
    assert f"StatusCode.{code}" in told
    assert SAID not in told
    assert "prefix.tokens" not in told
    assert SAID in logged.getvalue()
