"""Counters and histograms in Prometheus' text format. Only sizes, times and counts are kept."""

import bisect
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_SIZES = (1, 2, 4, 8, 16, 32, 64, 128)

Labels = tuple[tuple[str, str], ...]


class Counter:
    """A number by labels that only grows."""

    def __init__(self, name: str, help: str) -> None:
        self.name, self.help = name, help
        self._lock = threading.Lock()
        self._values: dict[Labels, float] = {}

    def add(self, amount: float = 1, **labels: str) -> None:
        key = tuple(sorted(labels.items()))
        with self._lock:
            self._values[key] = self._values.get(key, 0) + amount

    def value(self, **labels: str) -> float:
        """The sum over all labels that contain these."""
        wanted = set(labels.items())
        return sum(v for key, v in list(self._values.items()) if wanted <= set(key))

    def lines(self) -> Iterator[str]:
        yield from _head(self.name, self.help, "counter")
        with self._lock:
            values = dict(self._values) or {(): 0.0}
        for key, value in sorted(values.items()):
            yield f"{self.name}{_labels(key)} {value:.15g}"


class Histogram:
    """How often an observed value lay below each bound, by labels."""

    def __init__(self, name: str, help: str, bounds: tuple[float, ...]) -> None:
        self.name, self.help, self.bounds = name, help, bounds
        self._lock = threading.Lock()
        self._counts: dict[Labels, list[int]] = {}
        self._sums: dict[Labels, float] = {}

    def observe(self, value: float, **labels: str) -> None:
        key = tuple(sorted(labels.items()))
        with self._lock:
            counts = self._counts.setdefault(key, [0] * (len(self.bounds) + 1))
            counts[bisect.bisect_left(self.bounds, value)] += 1
            self._sums[key] = self._sums.get(key, 0.0) + value

    def count(self) -> int:
        """How many values were observed."""
        with self._lock:
            return sum(map(sum, self._counts.values()))

    def sum(self) -> float:
        """What they sum to."""
        with self._lock:
            return sum(self._sums.values())

    def lines(self) -> Iterator[str]:
        yield from _head(self.name, self.help, "histogram")
        with self._lock:
            entries = {key: (list(c), self._sums[key]) for key, c in self._counts.items()}
        for key, (counts, total) in sorted(entries.items()):
            below = 0
            for bound, count in zip((*self.bounds, None), counts):
                below += count
                edge = "+Inf" if bound is None else f"{bound:g}"
                yield f"{self.name}_bucket{_labels((*key, ('le', edge)))} {below}"
            yield f"{self.name}_sum{_labels(key)} {total:.6f}"
            yield f"{self.name}_count{_labels(key)} {below}"


class Metrics:
    """Everything that /metrics shows."""

    def __init__(self) -> None:
        self.started = time.time()
        self.requests = Counter(
            "multibranch_requests_total", "Answered requests, by endpoint and status."
        )
        self.request_seconds = Histogram(
            "multibranch_request_seconds", "From a request's first byte to its answer.", _SECONDS
        )
        self.body_bytes = Counter("multibranch_request_body_bytes_total", "Bytes of bodies read.")
        self.sentences = Counter("multibranch_sentences_total", "Texts translated.")
        self.source_tokens = Counter("multibranch_source_tokens_total", "Source tokens translated.")
        self.target_tokens = Counter(
            "multibranch_target_tokens_total", "Tokens of the best translations."
        )
        self.batch_sentences = Histogram(
            "multibranch_batch_sentences", "Texts translated together in one batch.", _SIZES
        )
        self.batch_seconds = Histogram(
            "multibranch_batch_seconds", "What the translation of a batch took.", _SECONDS
        )
        self.waited = Histogram(
            "multibranch_queue_seconds", "How long texts waited before their batch began.", _SECONDS
        )
        self.refused = Counter(
            "multibranch_refused_total", "Requests answered 503 because the queue was full."
        )
        self.timed_out = Counter("multibranch_timed_out_total", "Requests that took too long.")
        self.cancelled = Counter(
            "multibranch_cancelled_total",
            "Works dropped: their client has gone, or its time is up.",
        )
        self.gauges: dict[str, tuple[str, Callable[[], float]]] = {
            "multibranch_start_time_seconds": ("When the service started.", lambda: self.started),
            "multibranch_resident_memory_bytes": ("Memory of the process.", resident_memory),
        }

    def render(self) -> str:
        """All of it, as text."""
        lines: list[str] = []
        for metric in vars(self).values():
            if isinstance(metric, Counter | Histogram):
                lines += metric.lines()
        for name, (help, value) in self.gauges.items():
            lines += [*_head(name, help, "gauge"), f"{name} {value():.15g}"]
        return "\n".join(lines) + "\n"


def resident_memory() -> float:
    """Bytes of memory that this process holds; 0 where the system does not tell."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except (OSError, ValueError, IndexError):
        return 0.0
    return float(pages * os.sysconf("SC_PAGE_SIZE"))


def _head(name: str, help: str, kind: str) -> list[str]:
    return [f"# HELP {name} {help}", f"# TYPE {name} {kind}"]


def _labels(key: Labels) -> str:
    inside = ",".join(f'{name}="{value}"' for name, value in key)
    return f"{{{inside}}}" if inside else ""
