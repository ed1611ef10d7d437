"""The codec: exact round trips, and every malformed message refused by the name of its field."""

import math
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdec import wire
from specdec.errors import InvalidParameter, InvalidProposal
from specdec.fence import Fence
from specdec.parameters import SamplingParams, Verification
from specdec.prefix import CommittedPrefix, PrefixDigest
from specdec.proposal import Proposal, SparseDistribution
from specdec.v1 import common_pb2, generation_pb2

OWNER = "0123456789abcdef0123456789abcdef"
MAX_ID = 2**32 - 1
PREFIX = CommittedPrefix("s-1.a:b_C", Fence(3, OWNER), 2, PrefixDigest([5, 6]).digest(), (7, MAX_ID), 4)


def through_bytes(message):
    return type(message).FromString(message.SerializeToString())


def float32(value):
    return struct.unpack("<f", struct.pack("<f", value))[0]


def proposal_message(*distributions, tokens=None):
    message = common_pb2.Proposal(draft_tokens=[0] * len(distributions) if tokens is None else tokens)
    for token_ids, probabilities in distributions:
        message.draft_distributions.add(token_ids=token_ids, probabilities=probabilities)
    return message


def test_parameters_survive_with_every_value_away_from_its_default():
    params = SamplingParams(
        temperature=0.75,
        top_k=40,
        top_p=0.5,
        min_p=0.125,
        repetition_penalty=1.25,
        presence_penalty=-0.5,
        frequency_penalty=1.5,
        logit_bias={0: -100.0, MAX_ID: 2.5},
        seed=2**64 - 1,
        max_new_tokens=7,
        min_new_tokens=3,
        stop=("\n\n", "Ende 🙂"),
        stop_token_ids=(0, MAX_ID),
        ignore_eos=True,
        logprobs=20,
    )
    assert wire.params_from_message(through_bytes(wire.params_to_message(params))) == params


def test_zero_parameters_stay_set_and_absent_logprobs_stay_absent():
    params = SamplingParams(temperature=0.0, seed=0, logprobs=0)
    message = through_bytes(wire.params_to_message(params))
    assert all(message.HasField(name) for name in ("temperature", "top_k", "min_p", "seed", "ignore_eos", "logprobs"))
    assert wire.params_from_message(message) == params
    without = through_bytes(wire.params_to_message(SamplingParams()))
    assert not without.HasField("logprobs")
    assert wire.params_from_message(without).logprobs is None


def test_every_scalar_parameter_must_be_set():
    optional = [field.name for field in common_pb2.SamplingParams.DESCRIPTOR.fields if field.has_presence]
    assert len(optional) == 12
    for name in optional:
        message = wire.params_to_message(SamplingParams(logprobs=1))
        message.ClearField(name)
        if name == "logprobs":
            assert wire.params_from_message(message).logprobs is None
            continue
        with pytest.raises(InvalidParameter) as caught:
            wire.params_from_message(message)
        assert caught.value.field == f"sampling_params.{name}"


def test_codec_knows_every_parameter_of_the_contract():
    fields = {field.name for field in common_pb2.SamplingParams.DESCRIPTOR.fields}
    assert fields == set(SamplingParams.__dataclass_fields__)


@pytest.mark.parametrize(("name", "value"), [("temperature", math.nan), ("top_p", 0.0), ("min_p", math.inf)])
def test_parameters_out_of_range_are_named(name, value):
    message = wire.params_to_message(SamplingParams())
    setattr(message, name, value)
    with pytest.raises(InvalidParameter) as caught:
        wire.params_from_message(message)
    assert caught.value.field == f"sampling_params.{name}"


def test_prefix_survives():
    assert wire.prefix_from_message(through_bytes(wire.prefix_to_message(PREFIX))) == PREFIX


@pytest.mark.parametrize(
    ("field", "changes"),
    [
        ("prefix.session_id", {"session_id": ""}),
        ("prefix.session_id", {"session_id": "x" * 129}),
        ("prefix.session_id", {"session_id": "a b"}),
        ("prefix.session_id", {"session_id": "a\n"}),
        ("prefix.session_id", {"session_id": "größe"}),
        ("prefix.session_id", {"session_id": "a/b"}),
        ("prefix.fence", {"fence": None}),
        ("prefix.fence.counter", {"fence": common_pb2.Fence(owner=OWNER)}),
        ("prefix.fence.counter", {"fence": common_pb2.Fence(counter=2**53, owner=OWNER)}),
        ("prefix.fence.owner", {"fence": common_pb2.Fence(counter=1)}),
        ("prefix.fence.owner", {"fence": common_pb2.Fence(counter=1, owner=OWNER[1:] + "g")}),
        ("prefix.fence.owner", {"fence": common_pb2.Fence(counter=1, owner=OWNER + "\n")}),
        ("prefix.prefix_digest", {"prefix_digest": b""}),
        ("prefix.prefix_digest", {"prefix_digest": bytes(15)}),
        ("prefix.prefix_digest", {"prefix_digest": bytes(17)}),
        ("prefix.tokens", {"start": 0, "tokens": []}),
        ("prefix.prompt_length", {"prompt_length": 0}),
        ("prefix.prompt_length", {"prompt_length": 5}),
    ],
)
def test_malformed_prefix_is_refused_by_field(field, changes):
    good = wire.prefix_to_message(PREFIX)
    values = {each.name: getattr(good, each.name) for each in good.DESCRIPTOR.fields}
    message = common_pb2.CommittedPrefix(**(values | changes))
    with pytest.raises(InvalidParameter) as caught:
        wire.prefix_from_message(through_bytes(message))
    assert caught.value.field == field


def test_longest_session_id_and_missing_fence_of_a_release():
    assert wire.check_session_id("x" * 128) == "x" * 128
    with pytest.raises(InvalidParameter) as caught:
        wire.fence_from_message(common_pb2.ReleaseRequest(session_id="a").fence)
    assert caught.value.field == "fence"


normal_float32 = st.floats(width=32, min_value=0, exclude_min=True, max_value=1)


@given(st.lists(normal_float32, min_size=1, max_size=8), st.sampled_from([1.0, 0.25]))
def test_probabilities_survive_bit_for_bit(small, largest):
    small = [float32(value * 1e-6) for value in small]
    small = [value for value in small if value > 0]
    head = [largest] * int(1 / largest)
    distribution = SparseDistribution(tuple(range(len(head) + len(small))), (*head, *small))
    proposal = Proposal((3,), (distribution,))
    decoded = wire.proposal_from_message(through_bytes(wire.proposal_to_message(proposal)), Verification.TOKEN)
    assert decoded == proposal
    sent = struct.pack(f"<{len(distribution.token_ids)}d", *distribution.probabilities)
    got = struct.pack(f"<{len(distribution.token_ids)}d", *decoded.draft_distributions[0].probabilities)
    assert got == sent


def test_smallest_float32_survives():
    smallest = struct.unpack("<f", struct.pack("<I", 1))[0]
    proposal = Proposal((0,), (SparseDistribution((0, 1), (1.0, smallest)),))
    assert wire.proposal_from_message(through_bytes(wire.proposal_to_message(proposal)), Verification.BLOCK) == proposal


def test_a_probability_that_is_not_float32_is_never_rounded_in_silence():
    proposal = Proposal((0,), (SparseDistribution((0, 1), (0.1, 0.9)),))
    with pytest.raises(ValueError, match="float32"):
        wire.proposal_to_message(proposal)


@pytest.mark.parametrize("verification", Verification)
def test_empty_proposal_is_legal(verification):
    assert wire.proposal_from_message(wire.proposal_to_message(Proposal()), verification) == Proposal()


def test_coupled_proposal_has_tokens_alone():
    proposal = Proposal((1, 2, MAX_ID))
    message = through_bytes(wire.proposal_to_message(proposal))
    assert wire.proposal_from_message(message, Verification.COUPLED) == proposal


GOOD = ([1, 2], [0.5, 0.5])


@pytest.mark.parametrize(
    ("part", "distribution"),
    [
        ("token_ids", ([], [])),
        ("token_ids", ([1, 1], [0.5, 0.5])),
        ("probabilities", ([1, 2], [1.0])),
        ("probabilities", ([1], [0.5, 0.5])),
        ("probabilities", ([1, 2], [1.0, math.nan])),
        ("probabilities", ([1, 2], [math.nan, 1.0])),
        ("probabilities", ([1, 2], [1.0, 0.0])),
        ("probabilities", ([1, 2], [1.5, -0.5])),
        ("probabilities", ([1, 2], [0.5, math.inf])),
        ("probabilities", ([1, 2], [0.5, 0.4995])),
        ("probabilities", ([1, 2], [1.0, 0.001])),
    ],
)
def test_malformed_distribution_is_refused_by_field(part, distribution):
    message = proposal_message(GOOD, GOOD, distribution)
    with pytest.raises(InvalidProposal) as caught:
        wire.proposal_from_message(through_bytes(message), Verification.TOKEN)
    assert caught.value.field == f"proposal.draft_distributions[2].{part}"


@pytest.mark.parametrize(
    ("tokens", "verification"),
    [
        ([1], Verification.TOKEN),
        ([1, 2, 3], Verification.BLOCK),
        ([], Verification.TOKEN),
        ([1, 2], Verification.COUPLED),
    ],
)
def test_number_of_distributions_must_fit(tokens, verification):
    message = proposal_message(GOOD, GOOD, tokens=tokens)
    with pytest.raises(InvalidProposal) as caught:
        wire.proposal_from_message(message, verification)
    assert caught.value.field == "proposal.draft_distributions"


def test_verification_round_trip_default_and_unknown_number():
    for verification in Verification:
        assert wire.verification_from_message(wire.verification_to_message(verification)) is verification
    assert wire.verification_from_message(common_pb2.VERIFICATION_UNSPECIFIED) is Verification.BLOCK
    unknown = generation_pb2.SpeculationParams(verification=9)
    with pytest.raises(InvalidParameter) as caught:
        wire.verification_from_message(unknown.verification, "speculation.verification")
    assert caught.value.field == "speculation.verification"


@pytest.mark.parametrize(
    ("seconds", "whole", "nanos"), [(0.0, 0, 0), (1.5, 1, 500_000_000), (0.9999999999, 1, 0), (3e-9, 0, 3)]
)
def test_duration(seconds, whole, nanos):
    message = wire.duration(seconds)
    assert (message.seconds, message.nanos) == (whole, nanos)
