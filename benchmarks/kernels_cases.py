"""The problems that kernels_gpu.py checks and times: what attends to what, in which shapes."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from multibranch.nn import kernels
from multibranch.nn.kernels import make_segments, packed_cross_attention, packed_self_attention
from multibranch.nn.triton_kernels import Tiles, launch_backward, launch_forward

BF16 = torch.bfloat16


class Case(NamedTuple):
    """One problem: what attends to what, in which shapes."""

    name: str
    kind: str  # self, causal or cross
    lengths: list[int]
    key_lengths: list[int]
    tokens: int
    keys: int
    heads: int
    width: int
    dtype: torch.dtype = BF16
    scaled: bool = False


class Problem:
    """The tensors of a case, and its kernels' launches."""

    def __init__(self, case: Case) -> None:
        self.case = case
        shape = (case.heads, case.width)
        how: dict[str, Any] = {"device": "cuda", "dtype": case.dtype}
        n, s = case.tokens, case.keys
        self.cross = case.kind == "cross"
        if self.cross:
            self.inputs = [torch.randn(n, *shape, **how), torch.randn(s, 2, *shape, **how)]
        else:
            self.inputs = [torch.randn(n, 3, *shape, **how)]
        self.q, self.k, self.v = parts_of(self.inputs)
        self.grad = torch.randn(n, *shape, **how)
        self.scale = None
        if case.scaled:
            self.scale = torch.ones(case.heads, device="cuda").mul_(1.25)
            self.scale[: case.heads // 3] = 0.0
        self.boundaries = boundaries_of(case.lengths)
        self.key_boundaries = boundaries_of(case.key_lengths)
        self.segments = make_segments(self.boundaries, n, longest=max(case.lengths))
        self.memory = self.segments
        if self.cross:
            self.memory = make_segments(self.key_boundaries, s, longest=max(case.key_lengths))
        self.intervals = kernels._intervals(self.segments, self.memory, case.kind == "causal")

    def attend(self, *inputs: Tensor) -> Tensor:
        if self.cross:
            q, kv = inputs
            return packed_cross_attention(q, kv, self.segments, self.memory, head_scale=self.scale)
        (qkv,) = inputs
        causal = self.case.kind == "causal"
        return packed_self_attention(qkv, self.segments, causal=causal, head_scale=self.scale)

    def forward(self, tiles: Tiles | None) -> Callable[[], Any]:
        start, end = self.intervals[:2]
        return lambda: launch_forward(self.q, self.k, self.v, start, end, self.scale, tiles)

    def backward(self, tiles: Tiles | None) -> Callable[[], Any]:
        out, lse = self.forward(None)()
        gradients = [torch.empty_like(x) for x in self.inputs]
        parts = parts_of(gradients)
        return lambda: launch_backward(
            self.grad, self.q, self.k, self.v, out, lse, self.intervals, self.scale, parts, tiles
        )

    def both(self, attend: Callable[..., Tensor]) -> Callable[[], Any]:
        """Forward and backward through autograd."""
        leaves = [x.detach().requires_grad_() for x in self.inputs]
        return lambda: torch.autograd.grad(attend(*leaves), leaves, self.grad)

    def varlen(self) -> Callable[..., Tensor]:
        """PyTorch's own attention over packed sequences, told the batch's true longest length."""
        from torch.nn.attention.varlen import varlen_attn

        case = self.case
        causal: dict[str, Any] = {}
        if case.kind == "causal" and "is_causal" in inspect.signature(varlen_attn).parameters:
            causal = {"is_causal": True}
        elif case.kind == "causal":
            causal = {"window_size": (-1, 0)}
        marks = (self.boundaries, self.key_boundaries if self.cross else self.boundaries)
        longest = (max(case.lengths), max(case.key_lengths if self.cross else case.lengths))

        def attend(*inputs: Tensor) -> Tensor:
            out = varlen_attn(*parts_of(inputs), *marks, *longest, **causal)
            assert isinstance(out, Tensor)  # alone, as nothing else was asked for
            return out

        return attend


def parts_of(inputs: Sequence[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values of qkv (n, 3, h, w) alone, or of q (n, h, w) and kv (s, 2, h, w)."""
    if len(inputs) == 1:
        q, k, v = inputs[0].unbind(1)
    else:
        q, (k, v) = inputs[0], inputs[1].unbind(1)
    return q, k, v


def boundaries_of(lengths: list[int]) -> Tensor:
    return torch.tensor([0, *lengths]).cumsum(0).to("cuda", torch.int32)


def sentence_lengths(tokens: int, mean: float, seed: int) -> list[int]:
    """Lengths of sentences as in a translated corpus (log-normal), as many as fit the tokens."""
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randn(tokens, generator=generator).mul(0.65).exp()
    drawn = (drawn * mean / math.exp(0.65**2 / 2)).round().clamp(2, 175)
    lengths, total = [], 0
    for length in drawn.int().tolist():
        if total + length > tokens:
            break
        lengths.append(length)
        total += length
    return lengths


def packed_case(
    name: str, kind: str, tokens: int, heads: int, width: int, mean: float = 21.5, **more: Any
) -> Case:
    lengths = sentence_lengths(tokens, mean, 1)
    key_lengths = [max(2, round(length * 1.05)) for length in lengths]
    keys = math.ceil(sum(key_lengths) / 64) * 64
    return Case(name, kind, lengths, key_lengths, tokens, keys, heads, width, **more)
