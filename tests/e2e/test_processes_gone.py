"""Clients that leave and processes that are killed within an answer: no token is lost, repeated or changed."""

import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import grpc
import pytest

from deploy.system import NAMES
from specdec.v1 import common_pb2
from specdec.v1 import generation_pb2 as v1
from tests.e2e.calls import SECONDS, Caller, text_of, token_ids_of
from tests.e2e.restarts import restartable

READY_SECONDS = 60.0
TOKENS = 80
# Four tokens decide the next, so that greedy text does not run in small circles; passes are slow enough to cut in.
MODEL = "synthetic:seed=1,order=4"
GREEDY = {
    "sampling_params": {"temperature": 0.0, "max_new_tokens": TOKENS, "ignore_eos": True},
    "speculation": {"gamma": 2},
}
COUPLED = {
    "sampling_params": {"temperature": 1.0, "seed": 3, "max_new_tokens": TOKENS, "ignore_eos": True},
    "speculation": {"gamma": 3, "verification": common_pb2.VERIFICATION_COUPLED},
}


@pytest.fixture(scope="module")
def slow_system(tmp_path_factory):
    models = {"target": f"{MODEL},pass_ms=20", "draft": f"{MODEL},agreement=0.8,pass_ms=1"}
    environment = {"COORDINATOR_PEER_WAIT_SECONDS": "120"}  # a target may take long to start on a busy machine
    with restartable(tmp_path_factory.mktemp("slow"), **models, environment=environment) as system:
        yield system


@pytest.fixture
def mortal(slow_system):
    """Give the system with everything in place, whatever the test before has killed."""
    for name in NAMES:
        if slow_system.processes[name].record() is None:
            slow_system.start_service(name)
    caller = Caller(slow_system.address("coordinator"))
    eventually(lambda: caller.stub.GetModelInfo(common_pb2.GetModelInfoRequest(), timeout=SECONDS).HasField("draft"))
    yield slow_system
    caller.channel.close()


@pytest.fixture
def caller(mortal):
    caller = Caller(mortal.address("coordinator"))
    yield caller
    caller.channel.close()


def eventually(holds):
    """Wait until something holds."""
    deadline = time.monotonic() + READY_SECONDS
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def undisturbed(caller, request):
    """Return what a request gives when nothing happens: tokens, and the text that became certain with each."""
    events = caller.events(prompt="hello", **request)
    texts = [text for event in events for text in event.token_texts]
    assert len({tuple(token_ids_of(events)[at : at + 8]) for at in range(TOKENS - 7)}) == TOKENS - 7
    return SimpleNamespace(tokens=token_ids_of(events), texts=texts)


def read(stream, count):
    """Return the first events of a stream, with at least so many tokens."""
    events = []
    while len(token_ids_of(events)) < count:
        events.append(next(stream))
    return events


def read_until_broken(stream, events):
    """Add to the events what still comes of a stream that does not end well, and return its status."""
    try:
        for event in stream:
            events.append(event)
    except grpc.RpcError as error:
        return error.code()
    raise AssertionError("the stream ended well")


def check_rest(rest, whole, index):
    """Check that events are the rest of an answer."""
    assert rest[-1].finish_reason == v1.FINISH_REASON_LENGTH
    assert token_ids_of(rest) == whole.tokens[index:]
    assert text_of(rest) == "".join(whole.texts[index:])
    assert rest[-1].usage.completion_tokens == len(whole.tokens)


@pytest.mark.parametrize("request_", [GREEDY, COUPLED], ids=["greedy", "coupled"])
def test_an_interrupted_answer_is_resumed_from_any_token_on(caller, request_):
    whole = undisturbed(caller, request_)

    def leave_and_resume(index):
        session_id = f"left-{request_['speculation']['gamma']}-{index}"
        stream = caller.stream(prompt="hello", session_id=session_id, **request_)
        seen = read(stream, 8)
        stream.cancel()
        eventually(lambda: caller.session(session_id).state == v1.SESSION_STATE_INTERRUPTED)
        session = caller.session(session_id)
        answer = session.token_ids[session.prompt_length :]
        assert 8 <= len(token_ids_of(seen)) <= len(answer) < TOKENS
        assert answer == whole.tokens[: len(answer)]
        check_rest(caller.events(session_id=session_id, resume_from=index), whole, index)
        assert caller.session(session_id).token_ids[session.prompt_length :] == whole.tokens

    with ThreadPoolExecutor(9) as pool:
        assert len(list(pool.map(leave_and_resume, range(9)))) == 9


def test_an_interrupted_answer_can_be_left_for_a_new_one(caller):
    stream = caller.stream(prompt="hello", session_id="left-behind", **GREEDY)
    read(stream, 4)
    stream.cancel()
    eventually(lambda: caller.session("left-behind").state == v1.SESSION_STATE_INTERRUPTED)
    held = caller.session("left-behind").token_ids
    tokens = caller.tokens(session_id="left-behind", prompt="more", expected_length=len(held), **GREEDY)
    assert tokens == caller.tokens(token_ids=[*held, *b"more"], **GREEDY)


def test_a_running_session_is_its_clients_own_until_it_is_resumed(mortal, caller):
    whole = undisturbed(caller, GREEDY)
    other = Caller(mortal.address("coordinator"))
    stream = caller.stream(prompt="hello", session_id="shared", **GREEDY)
    seen = read(stream, 4)
    assert other.session("shared").state == v1.SESSION_STATE_RUNNING
    busy = other.refusal(prompt="me too", session_id="shared", **GREEDY)
    assert (busy.code, busy.reason) == ("ABORTED", "SESSION_BUSY")
    check_rest(other.events(session_id="shared", resume_from=0), whole, 0)
    assert read_until_broken(stream, seen) is grpc.StatusCode.FAILED_PRECONDITION
    assert token_ids_of(seen) == whole.tokens[: len(token_ids_of(seen))]
    assert other.session("shared").token_ids == [*b"hello", *whole.tokens]
    other.channel.close()


def test_a_killed_draft_costs_speed_alone_until_it_is_back(mortal, caller):
    endless = GREEDY | {"sampling_params": GREEDY["sampling_params"] | {"max_new_tokens": 4000}}
    stream = caller.stream(prompt="hello", **endless)
    events = read(stream, 8)
    assert events[0].round.gamma == 2
    mortal.kill("draft")
    events += read(stream, 40)
    gone = [event for event in events if event.round.fallback]
    assert {(each.round.gamma, each.round.fallback) for each in gone} == {(0, v1.FALLBACK_REASON_DRAFT_UNAVAILABLE)}
    assert {source for event in gone for source in event.sources} == {v1.TOKEN_SOURCE_TARGET_ONLY}
    assert events[-1].round.gamma == 0
    mortal.start_service("draft")
    while not events[-1].round.gamma:
        events.append(next(stream))
    stream.cancel()
    tokens = token_ids_of(events)
    shorter = endless["sampling_params"] | {"max_new_tokens": len(tokens)}
    assert tokens == caller.tokens(prompt="hello", sampling_params=shorter, speculation={"gamma": 16})


@pytest.mark.parametrize("request_", [GREEDY, COUPLED], ids=["greedy", "coupled"])
def test_an_answer_outlives_its_target(mortal, caller, request_):
    whole = undisturbed(caller, request_)
    stream = caller.stream(prompt="hello", **request_)
    events = read(stream, 8)
    mortal.kill("target")
    mortal.start_service("target")
    events += list(stream)
    check_rest(events, whole, 0)
    assert len({event.session_id for event in events}) == 1


def test_an_answer_outlives_its_coordinator(mortal, caller):
    whole = undisturbed(caller, COUPLED)
    stream = caller.stream(prompt="hello", session_id="orphan", **COUPLED)
    seen = read(stream, 8)
    mortal.kill("coordinator")
    assert read_until_broken(stream, seen) is grpc.StatusCode.UNAVAILABLE
    mortal.start_service("coordinator")
    heir = Caller(mortal.address("coordinator"))
    # The lease of the dead one may still run: that does not keep the client from its own session.
    index = len(token_ids_of(seen))
    assert token_ids_of(seen) == whole.tokens[:index]
    check_rest(heir.events(session_id="orphan", resume_from=index), whole, index)
    assert heir.session("orphan").token_ids == [*b"hello", *whole.tokens]
    heir.channel.close()


def test_sessions_outlive_redis(mortal, caller):
    whole = undisturbed(caller, GREEDY)
    finished = caller.events(prompt="hello", session_id="finished", **GREEDY)[-1]
    held = caller.session("finished")
    stream = caller.stream(prompt="hello", session_id="held", **GREEDY)
    seen = read(stream, 8)
    mortal.kill("redis")
    with pytest.raises(grpc.RpcError) as caught:
        caller.session("held")
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    mortal.start_service("redis")
    assert caller.session("finished") == held
    check_rest([*seen, *stream], whole, 0)  # what came after was held until it could be committed
    again = caller.events(session_id="finished", prompt="more", expected_length=finished.session_length, **GREEDY)
    assert again[-1].session_length == finished.session_length + len("more") + TOKENS


def test_a_system_that_was_stopped_in_order_has_its_sessions_again(mortal, caller):
    caller.events(prompt="hello", session_id="kept", **GREEDY)
    held = caller.session("kept")
    mortal.restart("redis")
    assert caller.session("kept") == held
