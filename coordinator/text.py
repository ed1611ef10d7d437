"""From tokens to text as they come: detokenisation and stop strings.

Everything here works token by token, so that what is released after n tokens is a function of those n tokens and the
stops alone, however the tokens were split over rounds, and the work is proportional to the new tokens.

A tokenizer's decoder is one of two kinds once the beginning of a sequence is behind it. Either a token is a piece of
bytes and the text is their UTF-8 (:class:`ByteDetokenizer`), or a token is a piece of text and some tokens are single
bytes that count as text only as a run (:class:`RunDetokenizer`). Both give exactly the text that the tokenizer gives
for the whole sequence after some other text: the space in front of an answer's first word is not lost.
"""

import codecs
from collections.abc import Callable, Sequence
from typing import Protocol

REPLACEMENT = "\ufffd"


class Detokenizer(Protocol):
    """Turns tokens into text, one by one."""

    def feed(self, token: int) -> str:
        """Take one token and return the text that no later token can change."""

    def tail(self) -> str:
        """Return what would follow the text so far if no token came after."""


class ByteDetokenizer:
    """Tokens are pieces of bytes; their concatenation is UTF-8, with replacement characters where it is not."""

    def __init__(self, piece: Callable[[int], bytes]) -> None:
        """Decode with ``piece``, the bytes of a token id; empty for tokens that are not shown."""
        self._piece = piece
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, token: int) -> str:
        """Take one token; an unfinished character waits for its other bytes."""
        return self._decoder.decode(self._piece(token))

    def tail(self) -> str:
        """Return a replacement character for an unfinished character."""
        waiting, _ = self._decoder.getstate()
        return waiting.decode("utf-8", "replace")


class RunDetokenizer:
    """Tokens are pieces of text, or single bytes that are decoded as whole runs.

    A run that is not UTF-8 becomes one replacement character a byte, all of it: whether the first byte of a run is text
    is known when the run ends. So a run waits for the token after it.
    """

    def __init__(self, piece: Callable[[int], str | int | None]) -> None:
        """Decode with ``piece``: the text of a token id, the value of a byte token, None for tokens not shown."""
        self._piece = piece
        self._run = bytearray()

    def feed(self, token: int) -> str:
        """Take one token; text ends a run, tokens that are not shown do not."""
        piece = self._piece(token)
        if piece is None:
            return ""
        if isinstance(piece, int):
            self._run.append(piece)
            return ""
        text = self.tail() + piece
        self._run.clear()
        return text

    def tail(self) -> str:
        """Return the run as it stands."""
        try:
            return self._run.decode()
        except UnicodeDecodeError:
            return REPLACEMENT * len(self._run)


class TextStream:
    """Releases text token by token and finds the stop string that ends it.

    Text is held back while it may yet turn out to be the beginning of a stop string. Of several stop strings the one
    completed first counts, character by character; of those completed together the longest, so that the text before it
    holds no stop string.

    Attributes:
        matched: the stop string that was completed, or None. No token may be fed after it.
    """

    def __init__(self, detokenizer: Detokenizer, stops: Sequence[str] = ()) -> None:
        """Start an answer that ends before the first of ``stops``, none of them empty."""
        self.matched: str | None = None
        self._detokenizer = detokenizer
        self._stops = tuple(stops)
        self._held = ""

    def feed(self, token: int) -> str:
        """Take one token and return the text that is now certain; all that is left of it when ``matched`` is set."""
        self._held += self._detokenizer.feed(token)
        if self._stops and self._match():
            return self._release(len(self._held))
        return self._release(len(self._held) - _held_back(self._held, self._stops))

    def finish(self) -> str:
        """Return the text that was held back, now that no token follows; empty after a match."""
        if self.matched is None:
            self._held += self._detokenizer.tail()
        return self._release(len(self._held))

    def _match(self) -> bool:
        # A run of bytes that is text as it stands may complete a stop: were it the end, the text would be exactly this.
        tail = self._detokenizer.tail()
        seen = self._held if REPLACEMENT in tail else self._held + tail
        ends = [(seen.find(stop) + len(stop), seen.find(stop), stop) for stop in self._stops if stop in seen]
        if not ends:
            return False
        _, start, self.matched = min(ends)
        self._held = seen[:start]
        return True

    def _release(self, length: int) -> str:
        released, self._held = self._held[:length], self._held[length:]
        return released


def _held_back(text: str, stops: Sequence[str]) -> int:
    """Return the length of the longest end of ``text`` that begins a stop string."""
    longest = 0
    for stop in stops:
        for length in range(min(len(stop) - 1, len(text)), longest, -1):
            if text.endswith(stop[:length]):
                longest = length
                break
    return longest
