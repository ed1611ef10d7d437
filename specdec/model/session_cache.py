"""One session's cache together with the tokens that it stands for."""

from collections.abc import Sequence

from specdec.errors import PrefixMissing
from specdec.model.language_model import KVCache
from specdec.model.prospect import Branch, Prospect
from specdec.prefix import CommittedPrefix, PrefixDigest, common_length


class SessionCache:
    """A sequence of tokens of which the first ``cache.length`` have been fed.

    Between two calls the sequence is what has been fed or what is known to be committed, whichever is longer: a work
    that needs no logits feeds nothing, and a later one catches up. There is no rolling back: a call says which sequence
    it wants, and whatever the session shares with it stays.

    Attributes:
        session_id: whose it is.
        cache: the model's.
        tokens: the sequence.
        room: tokens of the cache budget that are set aside for it.
        running: whether a call is being served.
        released: whether the caller has given it up, to be kept warm only as long as nobody needs the room.
        used_at: monotonic seconds of the last call's end.
        prospect: how it may go on, while it rests; forgotten by whatever changes the sequence.
    """

    def __init__(self, session_id: str, cache: KVCache) -> None:
        """Start with an empty cache."""
        self.session_id = session_id
        self.cache = cache
        self.tokens: list[int] = []
        self.room = 0
        self.running = False
        self.released = False
        self.used_at = 0.0
        self.prospect: Prospect | None = None
        self._committed = PrefixDigest()

    @property
    def pending(self) -> int:
        """Number of tokens still to feed."""
        return len(self.tokens) - self.cache.length

    def check(self, prefix: CommittedPrefix) -> None:
        """Check that the tokens before ``prefix.start`` are these; O(1) where the last call's commit ended.

        Raises:
            PrefixMissing: they are not.
        """
        if prefix.start > len(self.tokens) or (prefix.start and self._digest(prefix.start) != prefix.prefix_digest):
            raise PrefixMissing(f"the first {prefix.start} committed tokens are not cached here; send all of them")

    def align(self, start: int, tokens: Sequence[int]) -> int:
        """Make the sequence its first ``start`` tokens and then ``tokens``.

        Returns:
            How many leading tokens of it were held.
        """
        shared = start + common_length(self.tokens[start:], tokens)
        self.cache.cut(min(shared, self.cache.length))
        self.tokens[shared:] = tokens[shared - start :]
        if self._committed.length > shared:
            self._committed = PrefixDigest()
        return shared

    def adopt(self, branch: Branch) -> None:
        """Make the sequence what a branch stands on and what has been fed for it. All other branches are forgotten."""
        self.cache.adopt(branch.tip)
        self.tokens[branch.start :] = branch.tokens[: len(branch.entries)]
        self.prospect = None

    def look_away(self) -> None:
        """Forget how it may go on."""
        self.cache.cut(self.cache.length)
        self.prospect = None

    def leave(self, rows: int) -> None:
        """Cut the cache such that the last ``rows`` positions, and at least one, are still to feed."""
        self.cache.cut(min(self.cache.length, len(self.tokens) - max(rows, 1)))

    def take(self, count: int) -> list[int]:
        """Return the next ``count`` tokens to feed."""
        return self.tokens[self.cache.length : self.cache.length + count]

    def settle(self, keep: int, committed: int) -> int:
        """Keep at most ``keep`` of the fed tokens, and the first ``committed`` ones, fed or not, as committed.

        Returns:
            Committed tokens held.
        """
        self.cache.cut(min(keep, self.cache.length))
        self.prospect = None
        committed = min(committed, len(self.tokens))
        del self.tokens[max(committed, self.cache.length) :]
        self._committed.update(self.tokens[self._committed.length : committed])
        return committed

    def abandon(self) -> None:
        """Keep what a call that did not finish has fed: as good as any other, since only content counts."""
        self.settle(self.cache.length, self._committed.length)

    def give_up(self, keep: int) -> None:
        """Make room for whoever needs it, and keep at most ``keep`` tokens, 1 or more, until then."""
        self.settle(keep, min(keep, self._committed.length))
        self.released = True

    def _digest(self, length: int) -> bytes:
        if length == self._committed.length:
            return self._committed.digest()
        return PrefixDigest(self.tokens[:length]).digest()
