"""Where an answer ends: token by token, in the order of positions, before anything is committed."""

from collections.abc import Callable, Collection, Iterable

from coordinator.session import FinishReason
from coordinator.text import TextStream


class Answer:
    """An answer as it grows: its text and its end, a function of its tokens alone.

    Attributes:
        length: tokens so far, the one that completes a stop included.
        finish_reason: why it ended, None while it goes on.
        matched_stop: the stop string, or the text of the stop token, that ended it.
    """

    def __init__(
        self, stream: TextStream, *, stop_ids: Collection[int], limit: int, token_text: Callable[[int], str]
    ) -> None:
        """Begin an answer.

        Args:
            stream: finds stop strings and releases text.
            stop_ids: tokens that end the answer.
            limit: tokens it has at most, by ``max_new_tokens`` and the target's context; at least 1.
            token_text: names a stop token.
        """
        self.length = 0
        self.finish_reason: FinishReason | None = None
        self.matched_stop: str | None = None
        self._stream = stream
        self._stop_ids = frozenset(stop_ids)
        self._limit = limit
        self._token_text = token_text

    @property
    def remaining(self) -> int:
        """Tokens it may still have."""
        return self._limit - self.length

    def take(self, block: Iterable[int]) -> list[str]:
        """Take the tokens of a block up to the one that ends the answer.

        Returns:
            One text a token taken: what became certain with it. The end of the answer sets free what was held back.
        """
        texts = []
        for token in block:
            texts.append(self._feed(token))
            if self.finish_reason is not None:
                break
        return texts

    def _feed(self, token: int) -> str:
        self.length += 1
        if token in self._stop_ids:
            self._end(FinishReason.STOP, self._token_text(token))
            return self._stream.finish()
        text = self._stream.feed(token)
        if self._stream.matched is not None:
            self._end(FinishReason.STOP, self._stream.matched)
        elif self.remaining <= 0:
            self._end(FinishReason.LENGTH, None)
            text += self._stream.finish()
        return text

    def _end(self, reason: FinishReason, matched_stop: str | None) -> None:
        self.finish_reason, self.matched_stop = reason, matched_stop
