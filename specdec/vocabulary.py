"""Identity of a vocabulary: what every token id means, without how text is cut into tokens or how wide the head is."""

import hashlib
from collections.abc import Mapping

FINGERPRINT_BYTES = 16


def real_size(vocabulary: Mapping[str, int], head_rows: int) -> int:
    """Return the size without padding: ids below it have a row in the head and may have a meaning.

    Args:
        vocabulary: id of every token text, added tokens included.
        head_rows: columns of the logits, often padded.
    """
    return min(max(vocabulary.values(), default=-1) + 1, head_rows)


def vocabulary_fingerprint(vocabulary: Mapping[str, int], size: int) -> str:
    """Digest what the ids [0, size) mean.

    Args:
        vocabulary: id of every token text, added tokens included; ids from size on are left out.
        size: the real size.

    Returns:
        BLAKE2b of 16 bytes in hexadecimal, over the size and, for each id that means something, in order: the id, the
        number of UTF-8 bytes of its text (little-endian uint32 each), and the bytes.
    """
    digest = hashlib.blake2b(digest_size=FINGERPRINT_BYTES)
    digest.update(_uint32(size))
    for token, text in sorted((token, text) for text, token in vocabulary.items() if token < size):
        data = text.encode()
        digest.update(_uint32(token) + _uint32(len(data)) + data)
    return digest.hexdigest()


def bytes_vocabulary(size: int) -> dict[str, int]:
    """Return the vocabulary called "bytes": ids 0 to 255 are bytes, ids from there to size decode to nothing."""
    return {f"<0x{token:02X}>" if token < 256 else f"<{token}>": token for token in range(size)}


def _uint32(number: int) -> bytes:
    return number.to_bytes(4, "little")
