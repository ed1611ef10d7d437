"""Random numbers as functions of what they are for: no generator state to store, retry or move.

A uniform number is a function of (session seed, base_length of the round, position, purpose). The round is in the key
because block verification looks at every draw of a block before it decides: draws keyed by position alone are no longer
fresh when the next round meets them again. Gumbel noise is a function of (seed, position, token id) on purpose without
the round: coupled draft and target choose with the same noise whatever the round was.
"""

import hashlib
import struct
from enum import IntEnum

import torch

_STEP = -7046029254386353131  # 0x9E3779B97F4A7C15 as int64: the increment of SplitMix64
_MIX_1 = -4658895280553007687  # 0xBF58476D1CE4E5B9
_MIX_2 = -7723592293110705685  # 0x94D049BB133111EB
_FRACTION_BITS = 52  # (n + 0.5) / 2^52 is exact in float64 and never 0 or 1


class Purpose(IntEnum):
    """What a number decides."""

    DRAFT = 1
    ACCEPT = 2
    NEXT = 3


def uniform(seed: int, base_length: int, position: int, purpose: Purpose) -> float:
    """Return the number in the open interval (0, 1) that the key stands for.

    Args:
        seed: of the session, 64 bits.
        base_length: committed tokens before the round.
        position: in the whole sequence, prompt included.
        purpose: what the number decides.
    """
    key = _hash64(struct.pack("<QIIB", seed, base_length, position, purpose))
    return ((key >> (64 - _FRACTION_BITS)) + 0.5) * 2.0**-_FRACTION_BITS


def gumbel_noise(seed: int, position: int, vocabulary_size: int, device: torch.device) -> torch.Tensor:
    """Return the standard Gumbel noise of every token at a position.

    Args:
        seed: of the session, 64 bits.
        position: in the whole sequence, prompt included.
        vocabulary_size: tokens.
        device: where the noise is made.

    Returns:
        [vocabulary_size] float64.
    """
    return gumbel_noise_of(seed, position, torch.arange(vocabulary_size, dtype=torch.int64, device=device))


def gumbel_noise_of(seed: int, position: int, token_ids: torch.Tensor) -> torch.Tensor:
    """Return the standard Gumbel noise of some tokens at a position.

    Integers alone decide up to the last logarithms, so that draft and target agree on any devices to rounding.

    Args:
        seed: of the session, 64 bits.
        position: in the whole sequence, prompt included.
        token_ids: [k] int64.

    Returns:
        [k] float64, on the device of token_ids.

    Source: Steele, Lea, Flood 2014 (SplitMix64) for the bits of token i: mix(key + (i + 1) · step).
    """
    key = _hash64(struct.pack("<QI", seed, position))
    signed = key - 2**64 if key >= 2**63 else key
    bits = (token_ids + 1) * _STEP + signed
    bits = (bits ^ _shift_right(bits, 30)) * _MIX_1
    bits = (bits ^ _shift_right(bits, 27)) * _MIX_2
    bits = bits ^ _shift_right(bits, 31)
    fractions = (_shift_right(bits, 64 - _FRACTION_BITS).double() + 0.5) * 2.0**-_FRACTION_BITS
    return -torch.log(-torch.log(fractions))


def _hash64(key: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(key, digest_size=8, person=b"specdec").digest(), "little")


def _shift_right(bits: torch.Tensor, count: int) -> torch.Tensor:
    """Shift int64 right as if unsigned."""
    return (bits >> count) & ((1 << (64 - count)) - 1)
