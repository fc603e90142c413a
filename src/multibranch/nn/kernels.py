"""Attention over packed sequences, and the loss over a large vocabulary: what has its own kernels.

A packed batch is one axis of n tokens cut into sequences by `boundaries`; what lies behind the last
boundary is the tail and belongs to no sequence. `make_segments` works out once a batch where every
token's sequence starts and ends, and all layers share the result. All branches and heads are one
dimension: h = N_a·m heads of width w.

Three paths compute the same functions. Triton kernels (nn/triton_kernels.py) run on a GPU, and on a
CPU through Triton's interpreter when TRITON_INTERPRET=1 is set; kernels in C on a CPU, in float32
(nn/training_kernels.py). Everywhere else, or inside `use_reference()` (nn/plainly.py), plain
PyTorch pads the sequences, calls scaled_dot_product_attention and gathers the tokens back. Tokens
that see no key (the tail) come out as zeros, with zero gradients, on all paths.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from multibranch.nn import training_kernels
from multibranch.nn.chunked_loss import ChunkedCrossEntropy
from multibranch.nn.drop import times
from multibranch.nn.plainly import eager_on_cpu, reference_only

_INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
_TRITON = False
if torch.backends.cuda.is_built() or _INTERPRETED:
    try:
        from multibranch.nn import operators  # noqa: F401 (registers torch.ops.multibranch)

        _TRITON = True
    except ImportError:
        pass

_KERNEL_TYPES = (torch.bfloat16, torch.float16, torch.float32)
_KERNEL_WIDTHS = (16, 32, 64, 128)
_Result = TypeVar("_Result")


def _kernels_run(states: Tensor) -> bool:
    """Whether the Triton kernels can take these states: a matter of device, type and settings."""
    return (
        _TRITON
        and not reference_only()
        and (states.is_cuda or _INTERPRETED)
        and states.dtype in _KERNEL_TYPES
        and states.shape[0] > 0
    )


def _kernels_attend(states: Tensor) -> bool:
    return _kernels_run(states) and states.shape[-1] in _KERNEL_WIDTHS


def _dropout_seed(states: Tensor, dropout_p: float) -> Tensor | None:
    """(1,) int64 on the states' device, drawn by PyTorch's generator: what the kernels draw from.

    A tensor, so that the replay of a recorded graph draws anew.
    """
    if dropout_p == 0:
        return None
    return torch.randint(2**31 - 1, (1,), device=states.device)


class Segments(NamedTuple):
    """Where the sequences of a packed batch lie: made once a batch, shared by all layers."""

    boundaries: (
        Tensor  # (sequences + 1,) int32: sequence i is tokens[boundaries[i]:boundaries[i + 1]]
    )
    sequence: Tensor  # (n,) int32: the sequence of each token; the number of sequences in the tail
    start: Tensor  # (n,) int32: where the token's sequence starts; the last boundary in the tail
    end: Tensor  # (n,) int32: where it ends; the last boundary in the tail
    position: Tensor  # (n,) int64: the token's place in its sequence; 0 in the tail
    longest: int  # no sequence is longer
    memo: dict[Any, Any]  # what one layer worked out for this batch and the next ones need too


def make_segments(boundaries: Tensor, tokens: int, *, longest: int | None = None) -> Segments:
    """Work out the segments of a packed batch.

    Args:
        boundaries: (sequences + 1,) integers that start with 0 and never fall; sequences may be
            empty, as unused boundaries at the end are.
        tokens: n, the length of the packed axis.
        longest: a bound on the sequences' lengths, which the plain path pads to where reading the
            boundaries would halt the device or break a compiled graph.
    """
    if boundaries.dim() != 1 or boundaries.shape[0] < 2 or boundaries.is_floating_point():
        raise ValueError(
            f"boundaries must be (sequences + 1,) integers, not {boundaries.dtype} of shape "
            f"{tuple(boundaries.shape)}"
        )
    if _can_be_read(boundaries) and not (
        boundaries[0] == 0 and boundaries[-1] <= tokens and bool((boundaries.diff() >= 0).all())
    ):
        raise ValueError(
            f"boundaries must start with 0, never fall and not pass the {tokens} tokens of the "
            "batch: sequence i lies from boundaries[i] to boundaries[i + 1]"
        )
    boundaries = boundaries.to(torch.int32)
    place = torch.arange(tokens, dtype=torch.int32, device=boundaries.device)
    sequence = torch.searchsorted(boundaries, place, right=True, out_int32=True) - 1
    start, end = _span(boundaries, sequence)
    position = torch.where(start < end, place - start, 0).long()
    longest = tokens if longest is None else min(longest, tokens)
    return Segments(boundaries, sequence, start, end, position, longest, {})


def _can_be_read(boundaries: Tensor) -> bool:
    """Whether the host can read their values without halting a device or breaking a graph.

    Within vmap it cannot: they are those of many models.
    """
    return (
        boundaries.device.type == "cpu"
        and type(boundaries) is Tensor
        and not torch.compiler.is_compiling()
        and not torch._C._functorch.is_batchedtensor(boundaries)
    )


def _span(boundaries: Tensor, sequence: Tensor) -> tuple[Tensor, Tensor]:
    """Start and end of the given sequences; the tail's is the empty span at the last boundary."""
    last = boundaries.shape[0] - 1
    return boundaries[sequence], boundaries[(sequence + 1).clamp(max=last)]


def packed_self_attention(
    qkv: Tensor,
    segments: Segments,
    *,
    causal: bool = False,
    head_scale: Tensor | None = None,
    dropout_p: float = 0.0,
) -> Tensor:
    """Attention of every sequence to itself: qkv (n, 3, h, w) → (n, h, w).

    Args:
        causal: a token sees the tokens up to itself.
        head_scale: (h,) a factor on each head's output, without gradient. The kernels do no work
            for a head whose factor is zero; its output and gradients are zeros.
        dropout_p: dropout on the attention weights.
    """
    _check("qkv", qkv, (segments.sequence.shape[0], 3), 4, head_scale)
    if _kernels_attend(qkv):
        intervals = _once(_intervals, segments, segments, causal)
        qkv = qkv if qkv.stride(-1) == 1 else qkv.contiguous()
        extras = (head_scale, dropout_p, _dropout_seed(qkv, dropout_p))
        return torch.ops.multibranch.self_attention(qkv, *intervals, *extras)[0]
    if training_kernels.attends(qkv, None, head_scale):
        both = (segments.boundaries, segments.boundaries)
        return training_kernels.packed_attention(
            qkv, None, *both, causal=causal, head_scale=head_scale, rate=dropout_p
        )
    padding = _once(_padding, segments, segments, causal)
    return _padded_attention(qkv, None, padding, head_scale, dropout_p)


def packed_cross_attention(
    q: Tensor,
    kv: Tensor,
    segments: Segments,
    memory_segments: Segments,
    *,
    head_scale: Tensor | None = None,
    dropout_p: float = 0.0,
) -> Tensor:
    """Attention of sequence i of q to sequence i of kv: q (n, h, w), kv (s, 2, h, w) → (n, h, w).

    `head_scale` and `dropout_p` are as in `packed_self_attention`.
    """
    if segments.boundaries.shape != memory_segments.boundaries.shape:
        raise ValueError(
            f"queries are cut into {segments.boundaries.shape[0] - 1} sequences, keys into "
            f"{memory_segments.boundaries.shape[0] - 1}: give both the same number"
        )
    _check("q", q, (segments.sequence.shape[0],), 3, head_scale)
    _check("kv", kv, (memory_segments.sequence.shape[0], 2), 4, head_scale)
    if _kernels_attend(q):
        intervals = _once(_intervals, segments, memory_segments, False)
        q = q if q.stride(-1) == 1 else q.contiguous()
        kv = kv if kv.stride(-1) == 1 else kv.contiguous()
        extras = (head_scale, dropout_p, _dropout_seed(q, dropout_p))
        return torch.ops.multibranch.cross_attention(q, kv, *intervals, *extras)[0]
    if training_kernels.attends(q, kv, head_scale):
        both = (segments.boundaries, memory_segments.boundaries)
        return training_kernels.packed_attention(
            q, kv, *both, causal=False, head_scale=head_scale, rate=dropout_p
        )
    padding = _once(_padding, segments, memory_segments, False)
    return _padded_attention(q, kv, padding, head_scale, dropout_p)


def _check(
    name: str, states: Tensor, leading: tuple[int, ...], dims: int, head_scale: Tensor | None
) -> None:
    if states.dim() != dims or states.shape[: len(leading)] != leading:
        wanted = ", ".join([*map(str, leading), "heads", "width"])
        raise ValueError(f"{name} must be ({wanted}), not {tuple(states.shape)}")
    if head_scale is not None and head_scale.shape != states.shape[-2:-1]:
        raise ValueError(
            f"head_scale must hold one factor for each of {states.shape[-2]} heads, "
            f"not {tuple(head_scale.shape)}"
        )


def _once(
    work: Callable[[Segments, Segments, bool], _Result],
    queries: Segments,
    keys: Segments,
    causal: bool,
) -> _Result:
    """The work of a batch's first layer, kept for the others; a compiler shares it by itself."""
    if torch.compiler.is_compiling():
        return work(queries, keys, causal)
    name = (work.__name__, id(keys.boundaries), causal)
    if name not in queries.memo:
        # The keys' boundaries are kept beside the result, so that their id stays theirs; not the
        # segments, which would hold themselves for ever (and FSDP walks through its arguments).
        queries.memo[name] = (work(queries, keys, causal), keys.boundaries)
    return queries.memo[name][0]


def _intervals(
    queries: Segments, keys: Segments, causal: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """key_start, key_end (n,): the keys each query sees. query_start, query_end (s,): the reverse.

    None of the four ever falls along its axis, which is what the kernels build on.
    """
    if keys is not queries:
        return *_span(keys.boundaries, queries.sequence), *_span(queries.boundaries, keys.sequence)
    start, end = queries.start, queries.end
    if not causal:
        return start, end, start, end
    place = torch.arange(start.shape[0], dtype=torch.int32, device=start.device)
    return start, torch.minimum(end, place + 1), torch.maximum(start, place), end


def smoothed_cross_entropy(
    states: Tensor, weight: Tensor, targets: Tensor, *, smoothing: float, ignore_index: int
) -> tuple[Tensor, Tensor]:
    """Label-smoothed cross-entropy of the logits states·weightᵀ, summed over the targets.

    (1 − ε)·CE with the target + ε·mean CE with every token. The kernels keep the logits once, in
    the type of the states (or autocast's), and turn them into their gradient in place.

    Args:
        states: (n, d).
        weight: (V, d), the output embedding.
        targets: (n,) int64; those equal to `ignore_index` do not count.

    Returns:
        The smoothed loss, and the plain one without gradient: float32 scalars.
    """
    if states.dim() != 2 or weight.dim() != 2 or targets.shape != states.shape[:1]:
        shapes = ", ".join(str(tuple(x.shape)) for x in (states, weight, targets))
        raise ValueError(f"states, weight, targets must be (n, d), (V, d), (n,), not {shapes}")
    if torch.is_autocast_enabled(states.device.type):
        dtype = torch.get_autocast_dtype(states.device.type)
        states, weight = states.to(dtype), weight.to(dtype)
    grad = torch.is_grad_enabled() and (states.requires_grad or weight.requires_grad)
    if _kernels_run(states):
        sums, _ = torch.ops.multibranch.smoothed_cross_entropy(
            states, weight, targets, smoothing, ignore_index, grad
        )
        return sums[0], sums[1].detach()
    if eager_on_cpu(states, weight):
        found: tuple[Tensor, Tensor] = ChunkedCrossEntropy.apply(
            states, weight, targets, smoothing, ignore_index, grad
        )
        return found
    smoothed, plain = label_smoothed(
        F.linear(states, weight), targets, smoothing=smoothing, ignore_index=ignore_index
    )
    return smoothed, plain.detach()


def label_smoothed(
    logits: Tensor, targets: Tensor, *, smoothing: float, ignore_index: int
) -> tuple[Tensor, Tensor]:
    """The same of logits (n, V) that are there already, with the gradient of the plain one too."""
    wide = torch.promote_types(logits.dtype, torch.float32)
    log_probabilities = logits.log_softmax(-1, dtype=wide)
    real = targets != ignore_index
    picked = log_probabilities.gather(-1, torch.where(real, targets, 0)[:, None]).squeeze(-1)
    plain = -torch.where(real, picked, 0.0).sum()
    uniform = -torch.where(real, log_probabilities.mean(-1), 0.0).sum()
    return (1 - smoothing) * plain + smoothing * uniform, plain


# -- The plain PyTorch path of attention --------------------------------------------------------


class _Padding(NamedTuple):
    """Groups of sequences of similar length, each group padded to the longest among them.

    The padded rows of all groups follow each other, g·t rows of queries and g·s rows of keys each.
    """

    query_slots: Tensor  # (padded queries,) int64: the token that stands in each row
    key_slots: Tensor  # (padded keys,) int64: the same for the keys
    masks: list[Tensor]  # (g, 1, t, s) bool for each group: True where a query sees a key
    place: Tensor  # (n,) int64: the row where each query stands
    sees: Tensor  # (n, 1, 1) bool: whether it sees a key at all


def _padding(queries: Segments, keys: Segments, causal: bool) -> _Padding:
    """Lay the sequences out in padded groups."""
    key_start, key_end, _, _ = _intervals(queries, keys, causal)
    boundaries, last_query = queries.boundaries, queries.sequence.shape[0] - 1
    base = torch.zeros(boundaries.shape[0], dtype=torch.int64, device=boundaries.device)
    all_query_slots, all_key_slots, masks = [base[:0]], [base[:0]], []
    rows = 0
    for members, t, s in _members(queries, keys):
        query_slots = boundaries[members].long()[:, None] + _range(t, members)
        query_slots = query_slots.clamp(max=last_query)
        key_slots = keys.boundaries[members].long()[:, None] + _range(s, members)
        mask = key_slots[:, None, :] >= key_start[query_slots][:, :, None]
        mask &= key_slots[:, None, :] < key_end[query_slots][:, :, None]
        # Rows of padding see the first key, for a softmax over nothing would be NaN.
        mask[:, :, 0] |= ~mask.any(-1)
        base[members] = rows + _range(len(members), members) * t
        rows += len(members) * t
        all_query_slots.append(query_slots.flatten())
        all_key_slots.append(key_slots.clamp(max=keys.sequence.shape[0] - 1).flatten())
        masks.append(mask.unsqueeze(1))
    place = (base[queries.sequence] + queries.position).clamp(max=max(rows - 1, 0))
    sees = (key_start < key_end)[:, None, None]
    return _Padding(torch.cat(all_query_slots), torch.cat(all_key_slots), masks, place, sees)


def _members(queries: Segments, keys: Segments) -> list[tuple[Tensor, int, int]]:
    """The sequences of each group with the lengths to pad to, (members, t, s).

    Where the boundaries can be read without halting a device or breaking a graph, and are those of
    one model, lengths that round up to the same power of two make one group, and empty sequences
    none. Elsewhere one group holds them all.
    """
    if not _can_be_read(queries.boundaries):
        everyone = torch.arange(queries.boundaries.shape[0] - 1, device=queries.boundaries.device)
        return [(everyone, queries.longest, keys.longest)]
    t, s = queries.boundaries.diff(), keys.boundaries.diff()
    size = torch.maximum(t, s).clamp(min=1).double().log2().ceil().int()
    size[(t == 0) | (s == 0)] = -1
    groups = []
    for power in range(int(size.max()) + 1):
        members = torch.nonzero(size == power).flatten()
        if len(members):
            groups.append((members, int(t[members].max()), int(s[members].max())))
    return groups


def _range(length: int, like: Tensor) -> Tensor:
    return torch.arange(length, device=like.device)


def _padded_attention(
    first: Tensor,
    kv: Tensor | None,
    padding: _Padding,
    head_scale: Tensor | None,
    dropout_p: float,
) -> Tensor:
    """first: qkv (n, 3, h, w) with kv None, or q (n, h, w) with kv (s, 2, h, w) → (n, h, w)."""
    if not padding.masks:  # no query sees a key; gradients are zeros, but there is one for all
        return first.select(1, 0) * 0.0 if kv is None else first * 0.0 + kv.sum() * 0.0
    sizes = [(mask.shape[0], mask.shape[2], mask.shape[3]) for mask in padding.masks]
    rows = first.index_select(0, padding.query_slots)
    query_groups = rows.split([g * t for g, t, _ in sizes])
    key_groups = query_groups
    if kv is not None:
        rows = kv.index_select(0, padding.key_slots)
        key_groups = rows.split([g * s for g, _, s in sizes])
    outputs = []
    for mask, (g, t, s), query_rows, key_rows in zip(
        padding.masks, sizes, query_groups, key_groups
    ):
        if kv is None:
            q, k, v = query_rows.unflatten(0, (g, t)).unbind(2)
        else:
            q, (k, v) = query_rows.unflatten(0, (g, t)), key_rows.unflatten(0, (g, s)).unbind(2)
        attended = F.scaled_dot_product_attention(
            q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), mask, dropout_p
        )
        outputs.append(attended.transpose(1, 2).flatten(0, 1))  # (g·t, h, w)
    factors = padding.sees if head_scale is None else padding.sees * head_scale[:, None]
    return times(torch.cat(outputs).index_select(0, padding.place), factors)
