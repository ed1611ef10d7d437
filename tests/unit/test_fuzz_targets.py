"""The fuzzing targets on random bytes; `make fuzz` lets atheris look for inputs that reach new code."""

from hypothesis import example, given
from hypothesis import strategies as st

from specdec.parameters import SamplingParams
from specdec.wire import params_to_message
from tests.fuzz import codec, text_path
from tests.hostile_messages import messages


@given(st.binary(max_size=60) | messages(codec.REQUEST).map(lambda message: message.SerializeToString()))
@example(params_to_message(SamplingParams(stop=("x",), logprobs=1)).SerializeToString())
def test_the_codec_reads_or_names_the_field(data):
    codec.fuzz(data)


@given(st.binary(max_size=80) | st.text("ab st€|{}%", max_size=60).map(lambda text: b"\x05" + text.encode()))
@example(b"\x03a|b" + bytes(range(256)))
def test_text_is_released_once_and_up_to_its_stop(data):
    text_path.fuzz(data)
