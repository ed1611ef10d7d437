"""Linear layers with fewer bits a weight, for CPUs: a pass over a few tokens costs little more than over one.

Both compute in float32 through the matrix kernels of FBGEMM, which torch has for x86-64 with AVX2. Each row's result is
a function of that row alone: no scale spans rows, so neither a session's neighbours nor gamma can change its numbers.
"""

import warnings
from functools import reduce
from typing import Any

import torch

from specdec.model.refusal import ModelRefused

LARGEST_FLOAT16 = torch.finfo(torch.float16).max
# AVX2 adds two products of an activation and a weight in 16 bits: 7 and 8 bits are as many as never overflow there.
DIGIT_RANGE = 63
ZERO_POINT = 64
WEIGHT_RANGE = 127
DIGITS = 3
# What rounding leaves of a digit lies within half a step; times this it fills the next digit.
REST = 2 * DIGIT_RANGE
SMALLEST = torch.finfo(torch.float32).tiny


class Float16Linear(torch.nn.Module):
    """A linear layer whose weights are rounded to float16; activations, products and sums are float32.

    Rows of unlike batch shapes may differ by float32 rounding, as those of plain layers may.
    """

    def __init__(self, linear: torch.nn.Linear) -> None:
        """Take over a layer's weights.

        Raises:
            ModelRefused: a weight is beyond float16.
        """
        super().__init__()
        weight = linear.weight.detach().float()
        if not weight.abs().max() <= LARGEST_FLOAT16:
            raise ModelRefused(f"a weight is not within float16's range of {LARGEST_FLOAT16:g}")
        self._packed: Any = torch.ops.quantized.linear_prepack_fp16(weight, _own_bias(linear))

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return [..., n, out] of [..., n, in], in the same dtype; n may be 0."""
        result: torch.Tensor = torch.ops.quantized.linear_dynamic_fp16(hidden.float(), self._packed)
        return result.to(hidden.dtype)


class Int8Linear(torch.nn.Module):
    """A linear layer with int8 weights, one scale an output channel, and activations of 21 bits, one scale a row.

    An activation is written with three digits of 7 bits, which become three rows of one product of integers. Those add
    up exactly in any order, so a row's result is the same bit for bit in every batch. Fewer digits are too few: a
    difference of float32 rounding between passes of other shapes then turns digits over, and layer by layer it grows.
    With two it moved the distributions of SmolLM2-135M by up to 0.005 in total variation, with three by 0.00003.
    """

    bias: torch.Tensor | None

    def __init__(self, linear: torch.nn.Linear) -> None:
        """Take over a layer's weights."""
        super().__init__()
        weight = linear.weight.detach().float()
        scales = (weight.abs().amax(1) / WEIGHT_RANGE).clamp_min(SMALLEST)
        self._packed = _packed_int8((weight / scales.unsqueeze(1)).round().to(torch.int8), scales)
        self.register_buffer("bias", _own_bias(linear))

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return [..., n, out] of [..., n, in], in the same dtype; n may be 0."""
        rows = hidden.float().reshape(-1, hidden.shape[-1])
        scales = (torch.linalg.vector_norm(rows, torch.inf, -1, keepdim=True) / DIGIT_RANGE).clamp_min(SMALLEST)
        digits, rest = [], rows / scales
        for _ in range(DIGITS - 1):
            digits.append(rest.round())
            rest = (rest - digits[-1]) * REST
        # The kernel rounds what it is given to integers and counts from ZERO_POINT.
        product = torch.ops.quantized.linear_with_input_q_dq_qweight_dq_output_fp32
        products = product(torch.cat([*digits, rest]), 1.0, ZERO_POINT, self._packed).tensor_split(DIGITS)
        result: torch.Tensor = reduce(lambda less, more: torch.add(more, less, alpha=1 / REST), reversed(products))
        result *= scales
        if self.bias is not None:
            result += self.bias
        return result.to(hidden.dtype).view(*hidden.shape[:-1], result.shape[-1])


def _own_bias(linear: torch.nn.Linear) -> torch.Tensor | None:
    """Copy a bias, which otherwise would keep the whole checkpoint's mapped file with it."""
    return None if linear.bias is None else linear.bias.detach().to(torch.float32, copy=True)


def _packed_int8(weight: torch.Tensor, scales: torch.Tensor) -> Any:
    """Lay [out, in] int8 weights out for the kernel."""
    with warnings.catch_warnings():
        # The one way to hand the kernel its weights is a tensor type that torch means to remove some day.
        warnings.filterwarnings("ignore", message=".*quantized tensor creation functions", category=UserWarning)
        zeros = torch.zeros(len(scales), dtype=torch.long)
        tensor = torch._make_per_channel_quantized_tensor(weight, scales.double(), zeros, 0)  # noqa: SLF001
    return torch.ops.quantized.linear_prepack(tensor, None)
