"""One or more devices: every run is a process group, of one process unless torchrun started several."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import torch
from torch import distributed

# The other processes wait while the first asks the target for its answers.
PATIENCE = timedelta(days=1)


@contextmanager
def process_group(device: torch.device) -> Iterator[None]:
    """Join the other processes of this run, for as long as the context lasts.

    Args:
        device: the process's own; its type says how the processes talk (NCCL or Gloo).
    """
    if distributed.is_torchelastic_launched():
        distributed.init_process_group("nccl" if device.type == "cuda" else "gloo", timeout=PATIENCE)
    else:
        store = distributed.HashStore()  # type: ignore[attr-defined]
        distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        yield
    finally:
        distributed.destroy_process_group()


def summed(values: torch.Tensor) -> torch.Tensor:
    """Return the sum of a tensor over all processes; every process must ask."""
    distributed.all_reduce(values)
    return values
