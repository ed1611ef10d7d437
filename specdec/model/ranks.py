"""The processes that hold one model together, each with a device of its own: torchrun starts and ends them.

The first one leads: it serves, and says before each pass what is fed. The others follow. What the layers exchange goes
over the default process group (NCCL between GPUs, Gloo between CPUs), what the leader says over a group of its own.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

import torch
from torch import distributed

from specdec.model.refusal import ModelRefused

LEADER = 0
# A process that hangs in a pass ends the others after this. Long: the first pass waits until all have read their
# weights. One that dies is noticed at once: its connections break, and torchrun ends the rest.
PASS_LIMIT = timedelta(minutes=30)
SILENCE_LIMIT = timedelta(days=365)  # the leader says nothing while nobody calls


class LeaderLost(Exception):
    """The leading process ended without a word."""


@dataclass(frozen=True, slots=True)
class Ranks:
    """The processes of one model, as this one sees them.

    Attributes:
        count: how many there are.
        number: of this one, from 0.
        channel: for what the leader says; None for the default group.
    """

    count: int = 1
    number: int = LEADER
    channel: distributed.ProcessGroup | None = None

    @property
    def leads(self) -> bool:
        """Whether this is the process that serves."""
        return self.number == LEADER

    def tell(self, numbers: Sequence[int]) -> None:
        """Send the followers a message. The empty one says that it is over.

        Raises:
            RuntimeError: one of them is gone.
        """
        distributed.broadcast(torch.tensor([len(numbers)]), LEADER, self.channel)
        if numbers:
            distributed.broadcast(torch.tensor(numbers, dtype=torch.long), LEADER, self.channel)

    def hear(self) -> list[int]:
        """Wait for the leader's next message.

        Raises:
            LeaderLost: there will be none.
        """
        try:
            size = torch.zeros(1, dtype=torch.long)
            distributed.broadcast(size, LEADER, self.channel)
            numbers = torch.zeros(int(size), dtype=torch.long)
            if len(numbers):
                distributed.broadcast(numbers, LEADER, self.channel)
        except RuntimeError as error:
            raise LeaderLost(f"the leading process ended without a word: {error}") from error
        heard: list[int] = numbers.tolist()
        return heard


ALONE = Ranks()


@contextmanager
def joined_ranks() -> Iterator[Ranks]:
    """Join the processes that torchrun started beside this one; without torchrun there are none.

    The leader's orderly end of the context is the followers' end; an error ends the process as it is, and with it all.

    Raises:
        ModelRefused: this machine has fewer GPUs than processes.
    """
    if not distributed.is_torchelastic_launched():
        yield ALONE
        return
    device = _own_device()
    if device.type == "cuda":
        torch.cuda.set_device(device)
        distributed.init_process_group("nccl", timeout=PASS_LIMIT, device_id=device)
    else:
        distributed.init_process_group("gloo", timeout=PASS_LIMIT)
    channel = distributed.new_group(backend="gloo", timeout=SILENCE_LIMIT)
    ranks = Ranks(distributed.get_world_size(), distributed.get_rank(), channel)
    yield ranks
    if ranks.leads:
        ranks.tell([])
    distributed.destroy_process_group()


def _own_device() -> torch.device:
    if not torch.cuda.is_available():
        return torch.device("cpu")
    place, there = distributed.get_node_local_rank(), torch.cuda.device_count()
    if place >= there:
        raise ModelRefused(f"each process needs a GPU of its own: this machine has {there}; start fewer processes")
    return torch.device("cuda", place)
