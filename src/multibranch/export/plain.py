"""The folded model's layers as the plain matrices that other engines take.

A folded attention layer has one branch, whose N_a·m heads stand side by side. The branches of a
feed-forward layer become one wide layer in the same way, with their average in its second matrix.
"""

from typing import NamedTuple

from torch import Tensor
from torch.nn.functional import pad

from multibranch.nn import MultiBranchAttention, MultiBranchFeedForward
from multibranch.nn.drop import branch_factor


class Linear(NamedTuple):
    """x (…, in) → x·weightᵀ + bias (…, out): weight (out, in), bias (out,)."""

    weight: Tensor
    bias: Tensor


class Attention(NamedTuple):
    """The four projections of an attention layer; h heads of width w, head after head."""

    query: Linear  # weight (h·w, d)
    key: Linear
    value: Linear
    out: Linear  # weight (d, h·w)
    heads: int
    head_width: int


class FeedForward(NamedTuple):
    """activation(inner(x)), times up(x) where there is a gate, through outer."""

    inner: Linear  # weight (N_f·d_h, d)
    up: Linear | None  # likewise
    outer: Linear  # weight (d, N_f·d_h)
    activation: str


def plain_attention(layer: MultiBranchAttention, *, heads: int | None = None) -> Attention:
    """The matrices of a folded layer; with `heads` above its own, further heads that are zero."""
    heads = heads or layer.heads
    missing = (heads - layer.heads) * layer.head_width
    weight = pad(layer.qkv_weight.squeeze(1), (0, 0, 0, missing))  # (3, h·w, d)
    out = pad(layer.out_weight.squeeze(0), (0, 0, 0, missing)).t()  # (d, h·w)
    assert layer.qkv_bias is not None
    assert layer.out_bias is not None
    bias = pad(layer.qkv_bias.squeeze(1), (0, missing))  # (3, h·w)
    query, key, value = (Linear(weight[part], bias[part]) for part in range(3))
    return Attention(
        query, key, value, Linear(out, layer.out_bias.squeeze(0)), heads, layer.head_width
    )


def plain_feed_forward(layer: MultiBranchFeedForward) -> FeedForward:
    """The branches side by side: for SwiGLU all gates in `inner`, all that they gate in `up`."""
    assert layer.in_bias is not None
    assert layer.out_bias is not None
    parts = 2 if layer.activation == "swiglu" else 1
    inner = [
        Linear(weight.flatten(0, 1), bias.flatten())
        for weight, bias in zip(layer.in_weight.chunk(parts, 1), layer.in_bias.chunk(parts, 1))
    ]
    scale = branch_factor(layer.branches, layer.branch_scale)
    outer = Linear(layer.out_weight.flatten(0, 1).t() * scale, layer.out_bias.sum(0) * scale)
    return FeedForward(inner[0], inner[1] if parts == 2 else None, outer, layer.activation)
