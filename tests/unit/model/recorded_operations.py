"""A stand-in for CUDA graphs on a CPU: records what a piece of work asks of the device, and does that alone again."""

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tests.device_reads import DeviceReads


class _Operations(TorchDispatchMode):
    """Keeps every operation with the tensors that went in and came out."""

    def __init__(self):
        super().__init__()
        self.done = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        if not all(isinstance(leaf, torch.Tensor) for leaf in tree_leaves(result)):
            raise RuntimeError(f"operation not permitted when recording: {function}")  # the host would have to wait
        self.done.append((function, args, kwargs or {}, result))
        return result


class OperationRecorder:
    """As strict as a CUDA graph: no Python runs again, results land where they landed, and nothing may wait."""

    recorders = 0
    recordings = 0
    replays = 0

    def of_device(self, device):
        self.recorders += 1
        return self

    def record(self, work):
        with DeviceReads() as reads, _Operations() as operations:
            work()
        if reads.found:
            raise RuntimeError(f"operation not permitted when recording: {reads.found[0]}")
        self.recordings += 1

        def replay():
            self.replays += 1
            for function, args, kwargs, result in operations.done:
                for old, new in zip(tree_leaves(result), tree_leaves(function(*args, **kwargs)), strict=True):
                    if new.data_ptr() != old.data_ptr():  # neither a view nor changed in place
                        old.copy_(new)

        return replay
