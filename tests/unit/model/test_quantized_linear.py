"""Linear layers with fewer bits a weight: the arithmetic they say they do, and rows that do not see each other."""

import pytest
import torch

from specdec.model.quantized_linear import DIGIT_RANGE, DIGITS, REST, WEIGHT_RANGE, Float16Linear, Int8Linear
from specdec.model.refusal import ModelRefused

KINDS = {"float16": Float16Linear, "int8": Int8Linear}
SIZES = [(40, 24), (70, 576), (130, 65)]  # out, in: on and off the blocks of the kernels
# Of the largest result: the float16 kernel adds up in another order for other numbers of rows.
ROUNDING = {"float16": 1e-6, "int8": 0.0}


def plain_linear(out, width, bias=True):
    torch.manual_seed(out)
    linear = torch.nn.Linear(width, out, bias=bias)
    linear.weight.data[0] = 0
    return linear


def activations(rows, width):
    """Rows of very unlike size, as a stranger's would be; one is all zeros, one has an outlier."""
    torch.manual_seed(rows)
    hidden = torch.randn(rows, width) * torch.logspace(-3, 4, rows).unsqueeze(1)
    hidden[1] = 0
    hidden[2, 3] = 1e3
    return hidden


def rows_apart(layer, hidden):
    """The largest change of a row's results, of its own largest, when its neighbours change."""
    whole = layer(hidden)
    parts = [torch.cat([layer(part) for part in hidden.split(size)]) for size in (1, 2, 3, 5)]
    sizes = whole.abs().amax(1, keepdim=True).clamp_min(1e-30)
    return max(((whole - part).abs() / sizes).max().item() for part in parts)


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("bias", [True, False])
def test_int8_is_the_product_with_the_rounded_weights(size, bias):
    linear, hidden = plain_linear(*size, bias), activations(11, size[1])
    scales = linear.weight.abs().amax(1, keepdim=True) / WEIGHT_RANGE
    weight = ((linear.weight / scales.clamp_min(1e-30)).round() * scales).double()
    expected = torch.nn.functional.linear(hidden.double(), weight, None if not bias else linear.bias.double())
    found = Int8Linear(linear)(hidden)
    step = hidden.abs().amax(1, keepdim=True) / (DIGIT_RANGE * REST ** (DIGITS - 1))
    allowed = 0.5 * step * weight.abs().sum(1) + 1e-6 * expected.abs().amax(1, keepdim=True)
    assert ((found - expected).abs() <= allowed).all()
    assert found[:, 0].equal(torch.zeros(11) if not bias else linear.bias[0].expand(11))


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("bias", [True, False])
def test_float16_is_the_product_with_the_rounded_weights(size, bias):
    linear, hidden = plain_linear(*size, bias), activations(11, size[1])
    double_bias = None if not bias else linear.bias.double()
    expected = torch.nn.functional.linear(hidden.double(), linear.weight.half().double(), double_bias)
    error = (Float16Linear(linear)(hidden) - expected).abs()
    assert (error <= 3e-6 * expected.abs().amax(1, keepdim=True)).all()


def test_the_largest_activations_and_weights_do_not_overflow():
    linear = torch.nn.Linear(512, 3, bias=False)
    linear.weight.data[:] = torch.tensor([[1.0], [-1.0], [0.5]])
    found = Int8Linear(linear)(torch.stack([torch.ones(512), -torch.ones(512)]))
    row = torch.tensor([512.0, -512.0, 256.0])
    torch.testing.assert_close(found, torch.stack([row, -row]), rtol=1e-6, atol=0)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_rows_do_not_see_each_other(kind, size):
    assert rows_apart(KINDS[kind](plain_linear(*size)), activations(16, size[1])) <= ROUNDING[kind]


def test_control_one_scale_for_all_rows_would_be_seen(monkeypatch):
    layer, hidden = Int8Linear(plain_linear(40, 24)), activations(16, 24)
    by_row = torch.linalg.vector_norm
    monkeypatch.setattr(torch.linalg, "vector_norm", lambda rows, *how, **more: by_row(rows, *how, **more).amax())
    assert rows_apart(layer, hidden) > 0.01


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_shapes_and_dtypes_are_those_of_a_plain_layer(kind, dtype):
    linear = plain_linear(40, 24).to(dtype)
    for shape in [(3, 24), (1, 0, 24), (1, 3, 24), (2, 3, 24)]:
        hidden = torch.randn(shape).to(dtype)
        found, expected = KINDS[kind](linear)(hidden), linear(hidden)
        assert (found.shape, found.dtype) == (expected.shape, expected.dtype)
        torch.testing.assert_close(found, expected, rtol=0.05, atol=0.05)


@pytest.mark.parametrize("weight", [7e4, float("inf"), float("nan")])
def test_weights_beyond_float16_are_refused(weight):
    linear = plain_linear(40, 24)
    linear.weight.data[3, 4] = weight
    with pytest.raises(ModelRefused, match="not within float16's range of 65504"):
        Float16Linear(linear)
