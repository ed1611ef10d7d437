"""How a piece of work on the device is done again and again: recorded and replayed on CUDA, called anew elsewhere.

Recording CUDA graphs has been tried with a stand-in on a CPU (``tests/unit/model/recorded_operations.py``), on no GPU.
"""

from collections.abc import Callable
from typing import Protocol

import torch

Work = Callable[[], None]


class Recorder(Protocol):
    """Turns work into something that does the same once more, over the very same memory."""

    def record(self, work: Work) -> Work:
        """Return what does the work again.

        Args:
            work: reads and writes tensors that stay where they are; may be run here, any number of times.

        Raises:
            RuntimeError: it cannot be recorded.
        """


class CallingRecorder:
    """Records nothing: to do the work again is to call it."""

    def record(self, work: Work) -> Work:
        """Return the work."""
        return work


class GraphRecorder:
    """Records CUDA graphs, which are to be dropped all together.

    They share one pool of memory: what a graph leaves there is read before the next one runs. They go together because
    torch, when it destroys a graph, frees the cuBLAS workspace of the stream that it was captured on, which all graphs
    of that stream use (pytorch issue 193402); and a pool whose last graph has gone cannot be used again.
    """

    def __init__(self, device: torch.device) -> None:
        """Start a pool and a stream of its own."""
        self._device = device
        self._stream = torch.cuda.Stream(device)
        self._pool = torch.cuda.graph_pool_handle()

    def record(self, work: Work) -> Work:
        """Run the work once, because kernels set themselves up when they first run, and then capture it."""
        with torch.cuda.device(self._device):
            self._stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self._stream):
                work()
            graph = torch.cuda.CUDAGraph()
            # Another thread may use the device meanwhile: only what this one does must fit into a graph.
            with torch.cuda.graph(graph, self._pool, self._stream, capture_error_mode="thread_local"):
                work()
            torch.cuda.current_stream().wait_stream(self._stream)
        return graph.replay


def recorder_of(device: torch.device) -> Recorder:
    """Return a new recorder for a device."""
    return GraphRecorder(device) if device.type == "cuda" else CallingRecorder()
