"""The rules of a GenerateRequest: every refusal names its field."""

import pytest

from coordinator.requests import (
    MAX_MESSAGES,
    Served,
    check_counts,
    check_request,
    check_session,
    encode_input,
    resolve_params,
    resolve_speculation,
)
from coordinator.session import Session, Speculation
from coordinator.tokenizer import load_tokenizer
from specdec.errors import DataLost, FingerprintMismatch, InvalidParameter, LengthMismatch
from specdec.fence import Fence
from specdec.parameters import DEFAULT_VERIFICATION, SamplingParams, Verification
from specdec.v1 import common_pb2, generation_pb2


def request(**fields):
    return generation_pb2.GenerateRequest(**fields)


def served(**defaults):
    model = common_pb2.ModelInfo(
        model_fingerprint="m",
        vocabulary_size=300,
        context_length=16,
        default_sampling_params=common_pb2.SamplingParams(**defaults),
    )
    return Served(model, load_tokenizer("bytes"), max_gamma=16, max_new_tokens=256)


def session(length=5, prompt_length=3, fingerprint="m"):
    return Session(
        "s",
        "",
        Fence(1, "0" * 32),
        list(range(length)),
        bytearray(length),
        prompt_length,
        SamplingParams(),
        Speculation(),
        fingerprint,
    )


CHAT = [generation_pb2.ChatMessage(role="user", content="hi")]


@pytest.mark.parametrize(
    ("fields", "at_fault"),
    [
        ({}, "prompt"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": "a", "token_ids": [1]}, "token_ids"),
        ({"prompt": "a", "messages": CHAT}, "messages"),
        ({"prompt": "a", "session_id": "a b"}, "session_id"),
        ({"prompt": "a", "session_id": "a" * 129}, "session_id"),
        ({"resume_from": 0}, "session_id"),
        ({"resume_from": 0, "session_id": "s", "prompt": "a"}, "prompt"),
        ({"resume_from": 0, "session_id": "s", "sampling_params": common_pb2.SamplingParams()}, "sampling_params"),
    ],
)
def test_a_malformed_request_names_its_field(fields, at_fault):
    with pytest.raises(InvalidParameter) as caught:
        check_request(request(**fields))
    assert caught.value.field == at_fault


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"prompt": "a"}, "prompt"),
        ({"token_ids": [1]}, "token_ids"),
        ({"messages": CHAT}, "messages"),
        ({"session_id": "s", "resume_from": 0}, ""),
    ],
)
def test_a_good_request_tells_where_its_input_is(fields, field):
    assert check_request(request(**fields)) == field


def test_parameters_come_from_request_then_target_then_built_in():
    asked = request(sampling_params=common_pb2.SamplingParams(temperature=0.0, seed=7, logprobs=0))
    params = resolve_params(asked, served(temperature=0.5, top_k=20))
    assert (params.temperature, params.top_k, params.top_p, params.max_new_tokens) == (0.0, 20, 1.0, 256)
    assert (params.seed, params.logprobs) == (7, 0)


def test_lists_and_maps_of_the_request_replace_the_defaults():
    asked = request(sampling_params=common_pb2.SamplingParams(stop=["x"], logit_bias={3: 1.0}))
    params = resolve_params(asked, served(stop=["y"], stop_token_ids=[9]))
    assert (params.stop, params.stop_token_ids, params.logit_bias) == (("x",), (9,), {3: 1.0})


def test_an_unset_seed_stays_the_sessions_and_is_fresh_in_a_new_one():
    assert resolve_params(request(), served(), seed=5).seed == 5
    assert resolve_params(request(sampling_params=common_pb2.SamplingParams(seed=0)), served(), seed=5).seed == 0
    assert resolve_params(request(), served()).seed != resolve_params(request(), served()).seed


@pytest.mark.parametrize(
    ("params", "at_fault"),
    [
        ({"temperature": -1}, "sampling_params.temperature"),
        ({"max_new_tokens": 0}, "sampling_params.max_new_tokens"),
        ({"stop_token_ids": [300]}, "sampling_params.stop_token_ids"),
        ({"logit_bias": {300: 1.0}}, "sampling_params.logit_bias"),
        ({"stop": [""]}, "sampling_params.stop"),
    ],
)
def test_a_parameter_out_of_range_names_its_field(params, at_fault):
    with pytest.raises(InvalidParameter) as caught:
        resolve_params(request(sampling_params=common_pb2.SamplingParams(**params)), served())
    assert caught.value.field == at_fault


@pytest.mark.parametrize(
    ("name", "part", "most"), [("stop", "a", 16), ("stop_token_ids", 1, 64), ("logit_bias", None, 1024)]
)
def test_parameters_are_counted_before_anything_else(name, part, most):
    def asked(count):
        parts = dict.fromkeys(range(count), 1.0) if part is None else [part] * count
        return request(sampling_params=common_pb2.SamplingParams(**{name: parts}))

    check_counts(asked(most))
    with pytest.raises(InvalidParameter, match=f"at most {most}") as caught:
        check_counts(asked(most + 1))
    assert caught.value.field == f"sampling_params.{name}"


def test_messages_are_counted_before_anything_else():
    check_counts(request(messages=CHAT * MAX_MESSAGES))
    check_counts(generation_pb2.GetSessionRequest(session_id="s"))
    with pytest.raises(InvalidParameter) as caught:
        check_counts(request(messages=CHAT * (MAX_MESSAGES + 1)))
    assert caught.value.field == "messages"


def test_speculation_is_resolved_and_gamma_limited():
    block = generation_pb2.SpeculationParams(gamma=0, verification=common_pb2.VERIFICATION_BLOCK)
    assert resolve_speculation(request(speculation=block), 16) == Speculation(0, Verification.BLOCK)
    assert resolve_speculation(request(), 16) == Speculation(None, DEFAULT_VERIFICATION)
    for wrong, field in (({"gamma": 17}, "speculation.gamma"), ({"verification": 9}, "speculation.verification")):
        with pytest.raises(InvalidParameter) as caught:
            resolve_speculation(request(speculation=generation_pb2.SpeculationParams(**wrong)), 16)
        assert caught.value.field == field


def test_an_input_fits_with_room_for_one_token():
    assert encode_input(request(prompt="a" * 10), served(), [1] * 5) == [97] * 10
    with pytest.raises(InvalidParameter, match="no room") as caught:
        encode_input(request(prompt="a" * 11), served(), [1] * 5)
    assert caught.value.field == "prompt"


def test_a_token_outside_the_vocabulary_is_refused():
    with pytest.raises(InvalidParameter) as caught:
        encode_input(request(token_ids=[1, 300]), served(), [])
    assert caught.value.field == "token_ids"


def test_a_message_without_a_role_is_refused():
    nameless = [*CHAT, generation_pb2.ChatMessage(content="hi")]
    with pytest.raises(InvalidParameter) as caught:
        encode_input(request(messages=nameless), served(), [])
    assert caught.value.field == "messages[1].role"


def test_what_breaks_the_tokenizer_is_refused_without_a_word_of_it(monkeypatch):
    def broken(*_, **__):
        raise TypeError("'secret' cannot be read")

    against = served()
    monkeypatch.setattr(against.tokenizer, "encode", broken)
    with pytest.raises(InvalidParameter, match=r"^prompt cannot be encoded$") as caught:
        encode_input(request(prompt="secret"), against, [])
    assert caught.value.field == "prompt"


def test_the_expected_length_is_the_committed_one():
    check_session(request(expected_length=5), session(), served())
    check_session(request(expected_length=0), None, served())
    for expected, held in ((4, session()), (0, session()), (5, None)):
        with pytest.raises(LengthMismatch):
            check_session(request(expected_length=expected), held, served())


def test_a_session_of_another_model_is_refused():
    with pytest.raises(FingerprintMismatch):
        check_session(request(), session(fingerprint="other"), served())


def test_a_client_cannot_have_more_than_was_committed():
    check_session(request(resume_from=2), session(), served())
    with pytest.raises(DataLost):
        check_session(request(resume_from=3), session(), served())


def test_an_answer_before_the_one_that_is_resumed_is_not_given_in_its_place():
    held = session(length=5, prompt_length=3)
    check_session(request(resume_from=0, expected_length=0), held, served())
    check_session(request(resume_from=1, expected_length=2), held, served())
    for expected in (3, 5):  # the answer that the client means followed as many tokens, and an input
        with pytest.raises(DataLost) as caught:
            check_session(request(resume_from=0, expected_length=expected), held, served())
        assert caught.value.field == "expected_length"


@pytest.mark.parametrize(
    "fields",
    [
        {"prompt": "a" * 17},
        {"prompt": "é" * 9},
        {"token_ids": [1] * 17},
        {"messages": [generation_pb2.ChatMessage(role="user", content="a" * 9)] * 2},
        {"messages": [generation_pb2.ChatMessage(role="user")] * 17},
        {"messages": [generation_pb2.ChatMessage(role="r" * 17)]},
    ],
)
def test_what_can_never_fit_is_refused_without_being_encoded(fields, monkeypatch):
    against = served()
    for name in ("encode", "encode_chat"):
        monkeypatch.setattr(against.tokenizer, name, lambda *_, **__: pytest.fail("encoded"))
    with pytest.raises(InvalidParameter, match="longer than a context of 16") as caught:
        encode_input(request(**fields), against, [])
    assert caught.value.field == next(iter(fields))
