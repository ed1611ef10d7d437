"""Committed tokens as a call names them: their bytes, their digest, what two sequences share."""

import hashlib
import sys
from array import array
from collections.abc import Sequence
from dataclasses import dataclass

from specdec.fence import Fence

DIGEST_BYTES = 16


def token_bytes(tokens: Sequence[int]) -> bytes:
    """Pack token ids as little-endian uint32."""
    packed = array("I", tokens)
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()


def tokens_of(data: bytes) -> list[int]:
    """Unpack little-endian uint32 token ids."""
    packed = array("I")
    packed.frombytes(data)
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tolist()


class PrefixDigest:
    """BLAKE2b of 16 bytes over token ids, kept as they come.

    Attributes:
        length: number of tokens taken in.
    """

    def __init__(self, tokens: Sequence[int] = ()) -> None:
        """Start with the given tokens."""
        self.length = 0
        self._hash = hashlib.blake2b(digest_size=DIGEST_BYTES)
        self.update(tokens)

    def update(self, tokens: Sequence[int]) -> None:
        """Take in the tokens that follow."""
        self._hash.update(token_bytes(tokens))
        self.length += len(tokens)

    def digest(self) -> bytes:
        """Return the digest of everything taken in so far."""
        return self._hash.digest()


@dataclass(frozen=True, slots=True)
class CommittedPrefix:
    """The committed tokens a call stands on; the fields mean what ``specdec.v1.CommittedPrefix`` says of them."""

    session_id: str
    fence: Fence
    start: int
    prefix_digest: bytes
    tokens: tuple[int, ...]
    prompt_length: int

    @property
    def base_length(self) -> int:
        """Number of committed tokens; the position of the first draft token."""
        return self.start + len(self.tokens)


def common_length(left: Sequence[int], right: Sequence[int]) -> int:
    """Count the leading tokens that two sequences share."""
    for index, (one, other) in enumerate(zip(left, right, strict=False)):
        if one != other:
            return index
    return min(len(left), len(right))
