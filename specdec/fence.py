"""Who may work on a session."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, order=True)
class Fence:
    """A claim on a session; the higher one supersedes the lower, by counter and then by owner.

    The owner makes two claims different even when the store has forgotten the last counter.

    Attributes:
        counter: raised by one at every take-over, at least 1.
        owner: 32 hexadecimal digits, random for each claim.
    """

    counter: int
    owner: str
