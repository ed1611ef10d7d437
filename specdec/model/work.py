"""The words that a service and the engine exchange: what a call wants fed, and what it has got."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from specdec.errors import SpecdecError
from specdec.prefix import CommittedPrefix


@dataclass(frozen=True, slots=True)
class Feed:
    """Go on: append tokens to the sequence and hand back rows once it is wholly fed.

    Attributes:
        tokens: ids that follow the sequence as it is; may be empty.
        rows: logits are wanted for this many last positions of the whole sequence, 0 to its length.
    """

    tokens: list[int]
    rows: int


@dataclass(frozen=True, slots=True)
class Done:
    """Finished.

    Attributes:
        result: for the caller of ``Engine.run``.
        keep: the cache keeps at most this many leading tokens of the sequence.
        committed: this many leading tokens of the sequence are committed: they stay known, fed or not, and are
            acknowledged to the caller.
        outlook: what may be asked of the session next, for the engine's idle time; None: nothing is expected.
    """

    result: Any
    keep: int
    committed: int
    outlook: "Outlook | None" = None


class Work(Protocol):
    """What one call wants. A function of its prefix and its own inputs alone, so that a repeat gives the same answer.

    Attributes:
        prefix: the committed tokens it stands on, at least one.
        reach: tokens that it may feed after the committed ones, whichever it draws; known once it has begun. Room for
            so many is set aside before the first draw: were it found missing in mid-proposal, or only where more is
            fed, then whether a proposal comes would depend on its tokens.
    """

    prefix: CommittedPrefix

    @property
    def reach(self) -> int: ...  # noqa: D102

    def begin(self, committed: list[int]) -> Feed | Done:
        """Say what to feed after the committed tokens; runs on the engine's thread.

        Args:
            committed: [base_length] all committed token ids, the work's own copy.

        Raises:
            SpecdecError: the call is refused; the session's cache stays as it was.
        """

    def cut_short(self) -> Done | None:
        """Return what can still be answered after a forward pass for this work has failed; None: nothing."""


@dataclass(frozen=True, slots=True)
class Fork:
    """A call that a resting session may get next.

    Attributes:
        work: what would be asked; it wants one row at a time.
        start: how many leading tokens of the present sequence it stands on, no fewer than the committed ones.
        tokens: at least one: what else it stands on.
        weight: how likely it is; of all that may be drafted ahead the likeliest go first.
    """

    work: Work
    start: int
    tokens: list[int]
    weight: float


class Outlook(Protocol):
    """What a service expects of a session that rests; used on the engine's thread."""

    def forks(self) -> Sequence[Fork]:
        """Return likely next calls; asked once at most, when the engine has nothing else to do."""

    def meet(self, work: Any, committed: Sequence[int], ahead: Any | None) -> bool:
        """Take note of the call that came, before it begins.

        Args:
            work: what it wants.
            committed: all the tokens it stands on.
            ahead: the work of the fork that stands on the very same, as far as it got; None: there is none.

        Returns:
            Whether the call's work goes on from where that one got: the sequence is then what has been fed for it.
        """


Outcome = Feed | Done | SpecdecError

# Gets every work whose sequence is wholly fed with its [rows, vocabulary] logits; gives one outcome each, in order.
# Runs on the engine's thread, batches on the device and ends with its one device-to-host copy. Any: the works of an
# engine are all of the one kind that its service makes.
Advance = Callable[[Sequence[tuple[Any, torch.Tensor]]], list[Outcome]]


@dataclass(frozen=True, slots=True)
class Answer:
    """What a call got and what it took.

    Attributes:
        result: what the work's Done carried.
        cached_length: committed tokens that are held from now on; the next call may start there.
        reused_length: committed tokens that were held when the call came.
        fed_tokens: tokens fed for this call.
        passes: forward passes that served it.
        batch_size: sessions in the largest of them.
        pass_tokens: tokens in all of them, of all sessions.
        queue_seconds: from arrival to the first of them.
        forward_seconds: spent in them, on the device.
        sampling_seconds: spent in ``Advance`` for it.
    """

    result: Any
    cached_length: int
    reused_length: int
    fed_tokens: int
    passes: int
    batch_size: int
    pass_tokens: int
    queue_seconds: float
    forward_seconds: float
    sampling_seconds: float
