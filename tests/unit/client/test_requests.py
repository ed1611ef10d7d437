"""Flags become the fields of the contract; what is not said stays unset."""

import pytest
import typer
from google.protobuf.json_format import MessageToDict

from client.options import AnswerOptions, VerificationName
from client.requests import addresses, base_request, new_session_id, plain_request
from specdec.v1 import common_pb2, generation_pb2


def test_nothing_said_leaves_everything_to_the_server():
    request = base_request(AnswerOptions(), "s", 0)
    assert MessageToDict(request) == {
        "sessionId": "s",
        "samplingParams": {},
        "speculation": {},
        "expectedLength": 0,
    }


def test_everything_said():
    sampling = {
        "temperature": 0.5,
        "top_k": 3,
        "top_p": 0.25,
        "min_p": 0.125,
        "repetition_penalty": 2.0,
        "presence_penalty": -1.0,
        "frequency_penalty": 1.5,
        "seed": 2**64 - 1,
        "max_new_tokens": 7,
        "min_new_tokens": 2,
        "ignore_eos": True,
        "logprobs": 0,
        "stop": ["a", "b"],
    }
    options = AnswerOptions(
        **sampling, logit_bias=["5=-100", "6=0.5"], stop_token_id=[9], gamma=0, verification=VerificationName.COUPLED
    )
    request = base_request(options, "s", 12)
    expected = common_pb2.SamplingParams(**sampling, logit_bias={5: -100, 6: 0.5}, stop_token_ids=[9])
    assert request.sampling_params == expected
    assert {field.name for field, _ in expected.ListFields()} == set(
        common_pb2.SamplingParams.DESCRIPTOR.fields_by_name
    )
    assert request.speculation.HasField("gamma")
    assert request.speculation.gamma == 0
    assert request.speculation.verification == common_pb2.VERIFICATION_COUPLED
    assert request.expected_length == 12


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        ({"gamma": -1}, "--gamma"),
        ({"top_k": 2**32}, "--top-k"),
        ({"seed": 2**64}, "--seed"),
        ({"logit_bias": ["5"]}, "--logit-bias"),
        ({"logit_bias": ["-5=1"]}, "--logit-bias"),
        ({"stop_token_id": [-1]}, "--stop-token-id"),
        ({"stop": ["\udcff"]}, "--stop"),
    ],
)
def test_what_does_not_fit_names_the_flag(flags, named):
    with pytest.raises(typer.BadParameter) as raised:
        base_request(AnswerOptions(**flags), "s", 0)
    assert named in raised.value.format_message()


def test_addresses():
    assert addresses(AnswerOptions(address="a:1, b:2,")) == ["a:1", "b:2"]
    with pytest.raises(typer.BadParameter):
        addresses(AnswerOptions(address=" ,"))


def test_session_ids_are_long_and_fresh():
    assert len(new_session_id()) == 32
    assert new_session_id() != new_session_id()


def test_plain_request_repeats_input_and_parameters_without_speculation():
    session = generation_pb2.GetSessionResponse(
        token_ids=[1, 2, 3, 4],
        prompt_length=3,
        sampling_params=common_pb2.SamplingParams(seed=5, temperature=1),
        speculation=generation_pb2.SpeculationParams(verification=common_pb2.VERIFICATION_BLOCK),
    )
    request = plain_request(session, "t")
    assert request.token_ids == [1, 2, 3]
    assert request.sampling_params == session.sampling_params
    assert request.speculation.HasField("gamma")
    assert request.speculation.verification == common_pb2.VERIFICATION_BLOCK
