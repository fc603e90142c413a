"""The Triton kernels behind `multibranch.nn.kernels`, and their launches.

Attention over a packed batch: every query token sees one interval of the key tokens, and every key
token is seen by one interval of the query tokens (`kernels._intervals`). A program owns one tile of
the packed axis for one head; the tile may hold several short sequences, and the program visits only
the tokens between the first interval's start and the last one's end, masking what lies between. So
the grid depends on the number of tokens alone (one CUDA graph serves every batch), no program is
empty, and sentences of twenty tokens fill the tensor cores' tiles.

The loss: one program a row of logits, which leaves their gradient in the logits' place.

Letters: n queries, s keys, h heads of all branches together (N_a·m), w the width of a head.
"""

from __future__ import annotations

import math
import os
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

_INTERPRETED = tl.constexpr(os.environ.get("TRITON_INTERPRET") == "1")
_LOG2_E = tl.constexpr(math.log2(math.e))


class Tiles(NamedTuple):
    """How a kernel is cut: tokens a program owns, tokens it visits at a time, warps, stages."""

    own: int
    visit: int
    warps: int
    stages: int


def forward_tiles(width: int, itemsize: int) -> Tiles:
    """The tiles of the forward kernel for a head width and an element size in bytes."""
    if itemsize == 4:
        return Tiles(32, 32, 4 if width <= 32 else 8, 1)
    return Tiles(64, 64, 4, 2) if width <= 64 else Tiles(64, 32, 4, 2)


def backward_tiles(width: int, itemsize: int) -> Tiles:
    """The tiles of the backward kernel for a head width and an element size in bytes."""
    if itemsize == 4:
        return Tiles(32, 32, 4 if width <= 32 else 8, 1)
    return Tiles(64, 32, 4, 2)


@triton.jit
def _dot(a, b):
    """a·b in float32, of float32 operands too."""
    if _INTERPRETED:  # the interpreter multiplies bfloat16 as if it were integers
        a = a.to(tl.float32)
        b = b.to(tl.float32)
    return tl.dot(a, b, input_precision="ieee")


@triton.jit
def _rows(pointer, tokens, stride, there, WIDTH: tl.constexpr):
    """One head's rows of the given tokens, (tokens, WIDTH); zeros where a token is not there."""
    # 64 bits: tokens × stride passes 2³¹ for large batches of many heads.
    places = tokens.to(tl.int64)[:, None] * stride + tl.arange(0, WIDTH)[None, :]
    return tl.load(pointer + places, mask=there[:, None], other=0.0)


@triton.jit
def _store_rows(pointer, tokens, stride, there, values, WIDTH: tl.constexpr):
    places = tokens.to(tl.int64)[:, None] * stride + tl.arange(0, WIDTH)[None, :]
    tl.store(pointer + places, values.to(pointer.dtype.element_ty), mask=there[:, None])


@triton.jit
def _head_scale(pointer, head, SCALED: tl.constexpr):
    if SCALED:
        return tl.load(pointer + head).to(tl.float32)
    else:
        return tl.full([], 1.0, tl.float32)


@triton.jit
def _dropout(seed, head, queries, keys, dropout):
    """The factors of dropout for a head's weights, which queries and keys broadcast to."""
    # A query sees keys of its own sequence alone: up to 4096 of them differ in their last bits.
    drawn = tl.rand(tl.load(seed) + head, queries * 4096 + keys % 4096)
    return tl.where(drawn >= dropout, 1.0 / (1.0 - dropout), 0.0)


@triton.jit
def _visited(start_pointer, end_pointer, tile, count, kept, OWN: tl.constexpr):
    """The tokens a tile has to visit: from its first token's start to its last token's end.

    Starts and ends never fall along the packed axis. A dropped head visits nothing.
    """
    first = tl.load(start_pointer + tile * OWN)
    last = tl.load(end_pointer + tl.minimum(tile * OWN + OWN, count) - 1)
    return first, tl.where(kept, last, first)


@triton.jit(do_not_specialize=["queries"])
def _attention_forward(
    q, k, v, out, lse, key_start, key_end, head_scale, seed,
    q_row, q_head, kv_row, kv_head, out_row, out_head, queries, softmax_scale, dropout,
    WIDTH: tl.constexpr, OWN: tl.constexpr, VISIT: tl.constexpr, SCALED: tl.constexpr,
    DROPPED: tl.constexpr,
):  # fmt: skip
    """One tile of queries, one head: softmax(q·kᵀ)·v over the visited keys, in one pass."""
    tile = tl.program_id(0)
    head = tl.program_id(1)
    factor = _head_scale(head_scale, head, SCALED)
    kept = factor != 0.0
    tokens = tile * OWN + tl.arange(0, OWN)
    inside = tokens < queries
    needed = tokens < tl.where(kept, queries, 0)
    start = tl.load(key_start + tokens, mask=inside, other=0)[:, None]
    end = tl.load(key_end + tokens, mask=inside, other=0)[:, None]
    first, last = _visited(key_start, key_end, tile, queries, kept, OWN)
    q_tile = _rows(q + head * q_head, tokens, q_row, needed, WIDTH)

    # A finite floor instead of −∞ keeps the rows that have met no key yet free of NaN.
    highest = tl.full([OWN], -1.0e30, tl.float32)
    total = tl.zeros([OWN], tl.float32)
    gathered = tl.zeros([OWN, WIDTH], tl.float32)
    for position in range(first, last, VISIT):
        keys = position + tl.arange(0, VISIT)
        there = keys < last
        k_tile = _rows(k + head * kv_head, keys, kv_row, there, WIDTH)
        scores = _dot(q_tile, tl.trans(k_tile))
        seen = (keys[None, :] >= start) & (keys[None, :] < end)
        scores = tl.where(seen, scores * (softmax_scale * _LOG2_E), -1.0e30)
        risen = tl.maximum(highest, tl.max(scores, 1))
        weights = tl.where(seen, tl.exp2(scores - risen[:, None]), 0.0)
        shrink = tl.exp2(highest - risen)
        total = total * shrink + tl.sum(weights, 1)
        if DROPPED:
            weights *= _dropout(seed, head, tokens[:, None], keys[None, :], dropout)
        v_tile = _rows(v + head * kv_head, keys, kv_row, there, WIDTH)
        gathered = gathered * shrink[:, None]
        gathered += _dot(weights.to(v_tile.dtype), v_tile)
        highest = risen

    alone = total == 0.0
    total = tl.where(alone, 1.0, total)
    result = gathered * (factor / total)[:, None]
    _store_rows(out + head * out_head, tokens, out_row, inside, result, WIDTH)
    log_sum = tl.where(alone, 0.0, highest + tl.log2(total))
    tl.store(lse + head * queries + tokens, log_sum, mask=inside)


@triton.jit
def _query_gradient(
    q, k, v, out, lse, grad, dq, key_start, key_end, factor, seed, head, tile,
    q_row, kv_row, out_row, grad_row, dq_row, queries, softmax_scale, dropout,
    WIDTH: tl.constexpr, OWN: tl.constexpr, VISIT: tl.constexpr, DROPPED: tl.constexpr,
):  # fmt: skip
    """dq of one tile of queries: the keys they see pass by."""
    kept = factor != 0.0
    tokens = tile * OWN + tl.arange(0, OWN)
    inside = tokens < queries
    needed = tokens < tl.where(kept, queries, 0)
    start = tl.load(key_start + tokens, mask=inside, other=0)[:, None]
    end = tl.load(key_end + tokens, mask=inside, other=0)[:, None]
    first, last = _visited(key_start, key_end, tile, queries, kept, OWN)
    q_tile = _rows(q, tokens, q_row, needed, WIDTH)
    grad_tile = _rows(grad, tokens, grad_row, needed, WIDTH)
    out_tile = _rows(out, tokens, out_row, needed, WIDTH)
    delta = tl.sum(grad_tile.to(tl.float32) * out_tile.to(tl.float32), 1)[:, None]
    log_sum = tl.load(lse + tokens, mask=inside, other=0.0)[:, None]

    result = tl.zeros([OWN, WIDTH], tl.float32)
    for position in range(first, last, VISIT):
        keys = position + tl.arange(0, VISIT)
        there = keys < last
        k_tile = _rows(k, keys, kv_row, there, WIDTH)
        v_tile = _rows(v, keys, kv_row, there, WIDTH)
        scores = _dot(q_tile, tl.trans(k_tile))
        seen = (keys[None, :] >= start) & (keys[None, :] < end)
        weights = tl.where(seen, tl.exp2(scores * (softmax_scale * _LOG2_E) - log_sum), 0.0)
        d_weights = _dot(grad_tile, tl.trans(v_tile)) * factor
        if DROPPED:
            d_weights *= _dropout(seed, head, tokens[:, None], keys[None, :], dropout)
        d_scores = (weights * (d_weights - delta)).to(k_tile.dtype)
        result += _dot(d_scores, k_tile)
    _store_rows(dq, tokens, dq_row, inside, result * softmax_scale, WIDTH)


@triton.jit
def _key_value_gradient(
    q, k, v, out, lse, grad, dk, dv, query_start, query_end, factor, seed, head, tile,
    q_row, kv_row, out_row, grad_row, dkv_row, keys_count, softmax_scale, dropout,
    WIDTH: tl.constexpr, OWN: tl.constexpr, VISIT: tl.constexpr, DROPPED: tl.constexpr,
):  # fmt: skip
    """dk and dv of one tile of keys: the queries that see them pass by; all tiles transposed."""
    kept = factor != 0.0
    tokens = tile * OWN + tl.arange(0, OWN)
    inside = tokens < keys_count
    needed = tokens < tl.where(kept, keys_count, 0)
    start = tl.load(query_start + tokens, mask=inside, other=0)[:, None]
    end = tl.load(query_end + tokens, mask=inside, other=0)[:, None]
    first, last = _visited(query_start, query_end, tile, keys_count, kept, OWN)
    k_tile = _rows(k, tokens, kv_row, needed, WIDTH)
    v_tile = _rows(v, tokens, kv_row, needed, WIDTH)

    dk_tile = tl.zeros([OWN, WIDTH], tl.float32)
    dv_tile = tl.zeros([OWN, WIDTH], tl.float32)
    for position in range(first, last, VISIT):
        queries = position + tl.arange(0, VISIT)
        there = queries < last
        q_tile = _rows(q, queries, q_row, there, WIDTH)
        grad_tile = _rows(grad, queries, grad_row, there, WIDTH)
        out_tile = _rows(out, queries, out_row, there, WIDTH)
        delta = tl.sum(grad_tile.to(tl.float32) * out_tile.to(tl.float32), 1)[None, :]
        log_sum = tl.load(lse + queries, mask=there, other=0.0)[None, :]
        scores = _dot(k_tile, tl.trans(q_tile))
        seen = (queries[None, :] >= start) & (queries[None, :] < end)
        weights = tl.where(seen, tl.exp2(scores * (softmax_scale * _LOG2_E) - log_sum), 0.0)
        d_weights = _dot(v_tile, tl.trans(grad_tile)) * factor
        if DROPPED:
            drawn = _dropout(seed, head, queries[None, :], tokens[:, None], dropout)
            d_weights *= drawn
            dv_tile += _dot((weights * drawn).to(grad_tile.dtype), grad_tile)
        else:
            dv_tile += _dot(weights.to(grad_tile.dtype), grad_tile)
        d_scores = (weights * (d_weights - delta)).to(q_tile.dtype)
        dk_tile += _dot(d_scores, q_tile)
    _store_rows(dk, tokens, dkv_row, inside, dk_tile * softmax_scale, WIDTH)
    _store_rows(dv, tokens, dkv_row, inside, dv_tile * factor, WIDTH)


@triton.jit(do_not_specialize=["queries", "keys"])
def _attention_backward(
    q, k, v, out, lse, grad, dq, dk, dv, key_start, key_end, query_start, query_end, head_scale,
    seed, q_row, q_head, kv_row, kv_head, out_row, out_head, grad_row, grad_head,
    dq_row, dq_head, dkv_row, dkv_head, queries, keys, softmax_scale, dropout,
    WIDTH: tl.constexpr, OWN: tl.constexpr, VISIT: tl.constexpr, SCALED: tl.constexpr,
    DROPPED: tl.constexpr,
):  # fmt: skip
    """Both halves of the backward pass in one launch: tiles of keys first, then tiles of queries.

    The softmax is rebuilt from the saved log-sum, what was dropped from the seed, and the row sums
    of grad·out are formed on the way: cheaper than a launch of their own.
    """
    tile = tl.program_id(0)
    head = tl.program_id(1)
    factor = _head_scale(head_scale, head, SCALED)
    q += head * q_head
    k += head * kv_head
    v += head * kv_head
    out += head * out_head
    grad += head * grad_head
    lse += head * queries
    key_tiles = tl.cdiv(keys, OWN)
    if tile < key_tiles:
        _key_value_gradient(
            q, k, v, out, lse, grad, dk + head * dkv_head, dv + head * dkv_head,
            query_start, query_end, factor, seed, head, tile,
            q_row, kv_row, out_row, grad_row, dkv_row, keys, softmax_scale, dropout,
            WIDTH, OWN, VISIT, DROPPED,
        )  # fmt: skip
    else:
        _query_gradient(
            q, k, v, out, lse, grad, dq + head * dq_head, key_start, key_end, factor,
            seed, head, tile - key_tiles,
            q_row, kv_row, out_row, grad_row, dq_row, queries, softmax_scale, dropout,
            WIDTH, OWN, VISIT, DROPPED,
        )  # fmt: skip


def launch_forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    key_start: Tensor,
    key_end: Tensor,
    head_scale: Tensor | None,
    tiles: Tiles | None = None,
    *,
    dropout: float = 0.0,
    seed: Tensor | None = None,  # (1,) int64: what is drawn from; None: nothing is dropped
) -> tuple[Tensor, Tensor]:
    """q (n, h, w), k and v (s, h, w) of equal strides → out (n, h, w), log₂-sums (h, n) float32."""
    queries, heads, width = q.shape
    out = torch.empty((queries, heads, width), dtype=q.dtype, device=q.device)
    lse = torch.empty((heads, queries), dtype=torch.float32, device=q.device)
    tiles = tiles or forward_tiles(width, q.element_size())
    with torch.cuda.device_of(q):
        _attention_forward[(triton.cdiv(queries, tiles.own), heads)](
            q, k, v, out, lse, key_start, key_end,
            lse if head_scale is None else head_scale, key_start if seed is None else seed,
            q.stride(0), q.stride(1), k.stride(0), k.stride(1), out.stride(0), out.stride(1),
            queries, 1.0 / math.sqrt(width), dropout,
            WIDTH=width, OWN=tiles.own, VISIT=tiles.visit, SCALED=head_scale is not None,
            DROPPED=seed is not None, num_warps=tiles.warps, num_stages=tiles.stages,
        )  # fmt: skip
    return out, lse


def launch_backward(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    intervals: tuple[Tensor, Tensor, Tensor, Tensor],
    head_scale: Tensor | None,
    gradients: tuple[Tensor, Tensor, Tensor],
    tiles: Tiles | None = None,
    *,
    dropout: float = 0.0,
    seed: Tensor | None = None,
) -> None:
    """Write every element of dq (n, h, w), and of dk and dv (s, h, w), which have equal strides."""
    (queries, heads, width), keys = q.shape, k.shape[0]
    dq, dk, dv = gradients
    grad = grad if grad.stride(-1) == 1 else grad.contiguous()
    tiles = tiles or backward_tiles(width, q.element_size())
    programs = triton.cdiv(keys, tiles.own) + triton.cdiv(queries, tiles.own)
    with torch.cuda.device_of(q):
        _attention_backward[(programs, heads)](
            q, k, v, out, lse, grad, dq, dk, dv, *intervals,
            lse if head_scale is None else head_scale, intervals[0] if seed is None else seed,
            q.stride(0), q.stride(1), k.stride(0), k.stride(1), out.stride(0), out.stride(1),
            grad.stride(0), grad.stride(1), dq.stride(0), dq.stride(1), dk.stride(0), dk.stride(1),
            queries, keys, 1.0 / math.sqrt(width), dropout,
            WIDTH=width, OWN=tiles.own, VISIT=tiles.visit, SCALED=head_scale is not None,
            DROPPED=seed is not None, num_warps=tiles.warps, num_stages=tiles.stages,
        )  # fmt: skip


@triton.jit(do_not_specialize=["rows", "ignored"])
def _cross_entropy(
    logits, targets, losses, rows, smoothing, ignored,
    VOCABULARY: tl.constexpr, BLOCK: tl.constexpr, DIFFERENTIATE: tl.constexpr,
):  # fmt: skip
    """One row: its smoothed and its plain loss, and the smoothed one's gradient over the logits.

    VOCABULARY is a constant so that the compiler knows how far the rows are aligned. Rows whose
    target is ignored get zeros.
    """
    row = tl.program_id(0)
    target = tl.load(targets + row)
    real = target != ignored
    logits += row.to(tl.int64) * VOCABULARY
    highest = tl.full([], -float("inf"), tl.float32)
    total = tl.full([], 0.0, tl.float32)
    sum_of_all = tl.full([], 0.0, tl.float32)
    # The target's logit is picked out of the blocks: read on its own, a warp that runs ahead
    # could have put the gradient there already.
    hit = tl.full([], 0.0, tl.float32)
    for first in range(0, VOCABULARY, BLOCK):
        columns = first + tl.arange(0, BLOCK)
        there = columns < VOCABULARY
        values = tl.load(logits + columns, mask=there, other=-float("inf")).to(tl.float32)
        risen = tl.maximum(highest, tl.max(values, 0))
        total = total * tl.exp(highest - risen) + tl.sum(tl.exp(values - risen), 0)
        sum_of_all += tl.sum(tl.where(there, values, 0.0), 0)
        hit += tl.sum(tl.where(columns == target, values, 0.0), 0)
        highest = risen

    log_total = highest + tl.log(total)
    plain = log_total - hit
    smoothed = (1.0 - smoothing) * plain + smoothing * (log_total - sum_of_all / VOCABULARY)
    tl.store(losses + row, tl.where(real, smoothed, 0.0))
    tl.store(losses + rows + row, tl.where(real, plain, 0.0))
    if DIFFERENTIATE:
        for first in range(0, VOCABULARY, BLOCK):
            columns = first + tl.arange(0, BLOCK)
            there = columns < VOCABULARY
            values = tl.load(logits + columns, mask=there, other=-float("inf")).to(tl.float32)
            gradient = tl.exp(values - log_total) - smoothing / VOCABULARY
            gradient = tl.where(columns == target, gradient - (1.0 - smoothing), gradient)
            gradient = tl.where(real, gradient, 0.0).to(logits.dtype.element_ty)
            tl.store(logits + columns, gradient, mask=there)


def launch_cross_entropy(
    logits: Tensor,
    targets: Tensor,
    *,
    smoothing: float,
    ignored: int,
    differentiate: bool,
    block: int = 4096,
    warps: int = 8,
) -> Tensor:
    """logits (n, V) contiguous, turned into their gradient → losses (2, n), smoothed and plain."""
    rows, vocabulary = logits.shape
    losses = torch.empty((2, rows), dtype=torch.float32, device=logits.device)
    block = min(block, triton.next_power_of_2(vocabulary))
    with torch.cuda.device_of(logits):
        _cross_entropy[(rows,)](
            logits, targets, losses, rows, smoothing, ignored,
            VOCABULARY=vocabulary, BLOCK=block, DIFFERENTIATE=differentiate, num_warps=warps,
        )  # fmt: skip
    return losses
