"""CUDA graphs of a decoding step: the host launches one graph instead of 200 kernels."""

from collections.abc import Callable

import torch


class GraphRecorder:
    """Records a step as a CUDA graph. The graphs share one pool of memory: one runs at a time."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream(device)
        self._graph: torch.cuda.CUDAGraph | None = None

    def __call__(self, step: Callable[[], None]) -> Callable[[], None]:
        graph = torch.cuda.CUDAGraph()
        # Not `torch.cuda.graph`, which gives the allocator's cached memory back each time.
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            graph.capture_begin(pool=self._pool)
            try:
                step()
            finally:
                graph.capture_end()
        torch.cuda.current_stream(self._device).wait_stream(self._stream)
        # The pool lives as long as some graph does: the last one goes when the next one is here.
        self._graph = graph
        return graph.replay
