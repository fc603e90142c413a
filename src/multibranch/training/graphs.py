"""Work for a GPU that is captured as CUDA graphs, once, and replayed from then on."""

from collections.abc import Callable
from typing import Any

import torch

WARM_UP = 3  # passes before capturing, for compilation and the libraries' own set-up


class Graphs:
    """Pieces of work, each captured when it is first run."""

    def __init__(self) -> None:
        self._graphs: dict[str, torch.cuda.CUDAGraph] = {}
        self._pool: Any = None

    def __contains__(self, part: str) -> bool:
        return part in self._graphs

    def run(self, part: str, work: Callable[[], None], *, warm_up: bool = False) -> None:
        """Run a piece of work. warm_up: run it some times before it is captured, for nothing."""
        if part not in self._graphs:
            self._capture(part, work, warm_up=warm_up)
        self._graphs[part].replay()

    def _capture(self, part: str, work: Callable[[], None], *, warm_up: bool) -> None:
        if warm_up:
            draws = torch.cuda.get_rng_state()  # these passes must not change what an update draws
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                for _ in range(WARM_UP):
                    work()
            torch.cuda.current_stream().wait_stream(side)
            torch.cuda.set_rng_state(draws)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            work()
        self._pool = graph.pool()
        self._graphs[part] = graph
