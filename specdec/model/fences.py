"""The highest fence seen of each session."""

from specdec.errors import StaleFence
from specdec.fence import Fence

FENCES_KEPT = (
    65_536  # sessions; a fence outlives the session's cache, so that a dead coordinator's late call is refused
)


class Fences:
    """Remembers fences of the sessions heard of last."""

    def __init__(self, kept: int = FENCES_KEPT) -> None:
        """Remember nothing yet, and later at most ``kept`` sessions."""
        self._kept = kept
        self._highest: dict[str, Fence] = {}

    def admit(self, session_id: str, fence: Fence) -> bool:
        """Take note of a call's fence.

        Returns:
            Whether it is higher than any seen for the session, so that work under another is superseded.

        Raises:
            StaleFence: a higher one has been seen.
        """
        highest = self._highest.pop(session_id, fence)
        self._highest[session_id] = max(highest, fence)
        if fence < highest:
            raise stale(highest)
        if len(self._highest) > self._kept:
            del self._highest[next(iter(self._highest))]
        return fence > highest


def stale(highest: Fence) -> StaleFence:
    """Return the error that tells a caller which fence has superseded its own."""
    metadata = {"counter": str(highest.counter), "owner": highest.owner}
    return StaleFence(f"the session has been taken over under fence {highest.counter}", metadata=metadata)
