"""Ids in, hypotheses out: sorted by length, batched by tokens, in any order, the same results."""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from multibranch.decoding.beam import BeamSearch
from multibranch.decoding.ensemble import Ensemble
from multibranch.decoding.options import Hypothesis, SearchOptions
from multibranch.decoding.parallel import spread
from multibranch.decoding.sampling import RowSearch, draw_key
from multibranch.decoding.search import Recorder, Search
from multibranch.errors import UserError
from multibranch.nn.cache import Room
from multibranch.text.special import PAD

CPU_BATCH_TOKENS = 1024
INT8_BATCH_TOKENS = 256  # not fewer, for the sake of more batches: small ones take longer
GPU_BATCH_TOKENS = 65536
MOST_ROWS = 16384  # of a batch, on any device


def generate(
    models: Ensemble,
    sources: Sequence[Sequence[int]],
    options: SearchOptions,
    *,
    prefixes: Sequence[Sequence[int]] | None = None,
    batch_tokens: int | None = None,
    recorder: Recorder | None = None,
    progress: Callable[[int], None] | None = None,
    stop: threading.Event | None = None,
    strict: bool = False,
) -> list[list[Hypothesis]]:
    """Decode sources, lists of ids that end with EOS; one list of hypotheses each, best first
    (samples in the order in which they were drawn).

    Args:
        prefixes: ids that the hypotheses for each source begin with.
        batch_tokens: source tokens of a batch, padding counted.
        recorder: replay steps (see decoding/graphs.py).
        progress: called with the number of sentences that each batch finished.
        stop: once it is set, the search breaks off with InterruptedError.
        strict: a UserError where the models compute NaN, instead of no hypothesis.
    """
    if prefixes is None:
        prefixes = [()] * len(sources)
    draws = options.n_best if options.sample else 1
    found: list[list[Hypothesis]] = [[] for _ in range(len(sources) * draws)]
    lengths = [len(source) for source in sources for _ in range(draws)]
    room = Room()

    @torch.inference_mode()
    def decode(members: list[int], stop: threading.Event) -> list[list[Hypothesis]]:
        sentences = [(sources[m // draws], prefixes[m // draws], m % draws) for m in members]
        search = _search(models, sentences, options, recorder, room, stop)
        results = search.run()
        if strict and bool(search.is_nan):
            raise UserError(
                "the model computes NaN for this text: its numbers are too large for the precision "
                "that it computes in; choose bfloat16 or float32, or train it again if that is so "
                "in these too"
            )
        return results

    workers = torch.get_num_threads() if models.device.type == "cpu" else 1
    if batch_tokens is None:
        batch_tokens = default_batch_tokens(models, options)
        if models.int8:  # a batch keeps one core busy: there had better be one for each
            share = -(-max(lengths, default=0) * len(lengths) // workers)
            batch_tokens = min(batch_tokens, max(INT8_BATCH_TOKENS, share))
    lots = list(batches(lengths, batch_tokens, most=max(1, MOST_ROWS // options.rows)))
    with _attention(models.device):
        for members, results in spread(decode, lots, workers=workers, stop=stop):
            for member, hypotheses in zip(members, results):
                found[member] = hypotheses
            if progress is not None:
                progress(sum(member % draws == 0 for member in members))
    return [
        [hypothesis for one in found[first : first + draws] for hypothesis in one]
        for first in range(0, len(found), draws)
    ]


def _search(
    models: Ensemble,
    sentences: Sequence[tuple[Sequence[int], Sequence[int], int]],
    options: SearchOptions,
    recorder: Recorder | None,
    room: Room,
    stop: threading.Event,
) -> Search:
    """The search for one batch of sentences: source, prefix and number of the sample."""
    sources = [source for source, _, _ in sentences]
    common: dict[str, Any] = {
        "source_tokens": [len(source) - 1 for source in sources],
        "prefixes": [prefix for _, prefix, _ in sentences],
        "options": options,
        "recorder": recorder,
        "room": room,
        "stop": stop,
    }
    padded = pad(sources).to(models.device)
    if options.sample:
        keys = [draw_key(options.seed, number, source) for source, _, number in sentences]
        return RowSearch(models, padded, keys=keys, **common)
    return (RowSearch if options.beam == 1 else BeamSearch)(models, padded, **common)


@contextmanager
def _attention(device: torch.device) -> Iterator[None]:
    """On a GPU, keep to attention kernels that take masks and need no planning for every shape."""
    if device.type != "cuda":
        yield
        return
    with sdpa_kernel([SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]):
        yield


def batches(lengths: Sequence[int], tokens: int, *, most: int | None = None) -> Iterator[list[int]]:
    """Indices of sentences of similar length, longest first, at most `tokens` a padded batch.

    most: sentences in a batch at most.
    """
    order = sorted(range(len(lengths)), key=lambda index: (-lengths[index], index))
    start = 0
    while start < len(order):
        count = max(1, tokens // max(1, lengths[order[start]]))
        count = count if most is None else min(count, most)
        yield order[start : start + count]
        start += count


def pad(sequences: Sequence[Sequence[int]]) -> Tensor:
    """Sequences as one tensor (b, longest)."""
    padded = torch.full((len(sequences), max(map(len, sequences))), PAD)
    for row, sequence in enumerate(sequences):
        padded[row, : len(sequence)] = torch.as_tensor(sequence, dtype=torch.int64)
    return padded


def default_batch_tokens(models: Ensemble, options: SearchOptions) -> int:
    """On a CPU what its caches hold well; on a GPU as much as its memory does, within reason."""
    if models.device.type != "cuda":
        return max(64, CPU_BATCH_TOKENS * 5 // max(5, options.rows))
    free, _ = torch.cuda.mem_get_info(models.device)
    free += torch.cuda.memory_reserved(models.device) - torch.cuda.memory_allocated(models.device)
    bytes_a_position = sum(stepper.bytes_a_position for stepper in models.steppers)
    # Half of the memory for target keys and values, of which growing needs a second copy.
    a_token = bytes_a_position * (options.rows * max(1.0, options.max_ratio) * 2 + 1)
    return int(max(1024, min(GPU_BATCH_TOKENS, 0.5 * free / a_token)))
