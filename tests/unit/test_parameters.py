"""The ranges of the sampling parameters, at the numbers that a message can carry: float32."""

import math
import struct

import pytest

from specdec.errors import InvalidParameter
from specdec.parameters import _RANGES, SamplingParams
from specdec.v1 import common_pb2
from specdec.wire import params_from_message, params_to_message

FLOATS = [field.name for field in common_pb2.SamplingParams.DESCRIPTOR.fields if field.cpp_type == field.CPPTYPE_FLOAT]


def beside(value, direction):
    """The nearest float32 above (1) or below (-1) a float32."""
    [bits] = struct.unpack("<i", struct.pack("<f", value))
    if value == 0:
        return math.copysign(struct.unpack("<f", struct.pack("<i", 1))[0], direction)
    return struct.unpack("<f", struct.pack("<i", bits + (direction if value > 0 else -direction)))[0]


def received(name, value):
    """What a server reads of a message with this number in it."""
    message = params_to_message(SamplingParams())
    setattr(message, name, value)
    return getattr(params_from_message(common_pb2.SamplingParams.FromString(message.SerializeToString())), name)


def test_every_number_has_a_range_whose_bounds_it_can_take():
    assert _RANGES.keys() == set(FLOATS)
    for lowest, highest, _ in _RANGES.values():
        for bound in (lowest, highest):
            assert struct.unpack("<f", struct.pack("<f", bound)) == (bound,)


@pytest.mark.parametrize("name", FLOATS)
def test_the_bounds_themselves_pass_and_their_neighbours_outside_do_not(name):
    lowest, highest, closed = _RANGES[name]
    inside = [lowest if closed else beside(lowest, 1), highest]
    for value, outwards in zip(inside, (-1, 1), strict=True):
        within = received(name, value)
        assert within == pytest.approx(value)
        outside = beside(within, outwards)
        assert outside != within
        with pytest.raises(InvalidParameter) as caught:
            received(name, outside)
        assert caught.value.field == f"sampling_params.{name}"


@pytest.mark.parametrize(("value", "written"), [(0.01, "at least 0.01 "), (100.0, "at most 100")])
def test_the_bounds_that_are_documented_pass(value, written):
    assert received("repetition_penalty", value) == pytest.approx(value)
    with pytest.raises(InvalidParameter, match=written):
        received("repetition_penalty", 1000.0)
