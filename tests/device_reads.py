"""Counts what makes the host wait for a device: reading a value, or finding how many there are of something."""

import torch
from torch.utils._python_dispatch import TorchDispatchMode

_WAITING = {
    torch.ops.aten._local_scalar_dense.default,
    torch.ops.aten.nonzero.default,
    torch.ops.aten._unique2.default,
    torch.ops.aten.unique_dim.default,
    torch.ops.aten.masked_select.default,
}


class DeviceReads(TorchDispatchMode):
    """Between ``with`` and its end, lists the operations that would wait; one explicit copy to the host is none."""

    def __init__(self):
        super().__init__()
        self.found = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function in _WAITING:
            self.found.append(function)
        return function(*args, **(kwargs or {}))
