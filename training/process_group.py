"""One or more devices: every run is a process group, of one process unless torchrun started several."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import torch
from torch import distributed

# The other processes wait while the first asks the target for its answers.
PATIENCE = timedelta(days=1)


def own_device(device: torch.device) -> torch.device:
    """Return the device of this process: of several GPUs, each process on a machine takes the one of its number."""
    if str(device) != "cuda":
        return device
    return torch.device("cuda", distributed.get_node_local_rank(fallback_rank=0))


@contextmanager
def process_group(device: torch.device) -> Iterator[None]:
    """Join the other processes of this run, for as long as the context lasts.

    Args:
        device: from own_device; its type says how the processes talk (NCCL or Gloo).
    """
    backend, bound = ("nccl", device) if device.type == "cuda" else ("gloo", None)
    if distributed.is_torchelastic_launched():
        distributed.init_process_group(backend, timeout=PATIENCE, device_id=bound)
    else:
        store = distributed.HashStore()  # type: ignore[attr-defined]
        distributed.init_process_group(backend, store=store, rank=0, world_size=1, device_id=bound)
    try:
        yield
    finally:
        distributed.destroy_process_group()


def summed(values: torch.Tensor) -> torch.Tensor:
    """Add a tensor up over all processes, in place, and return it; every process must ask."""
    distributed.all_reduce(values)
    return values
