"""The paper's equations as a plain loop over branches and heads: the tests' reference."""

import math

import torch
from torch import Tensor

from multibranch.nn import MultiBranchAttention, MultiBranchFeedForward


def attention(
    layer: MultiBranchAttention,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    allowed: Tensor | None = None,
    keep: Tensor | None = None,
) -> Tensor:
    """Eqs. 1, 2 and 4 to 6 without the residual: (b, t, d), (b, s, d), (b, s, d) → (b, t, d).

    allowed: bool (b, t, s); keep: (N_a,) or, for drop-head, (N_a·m,).
    """
    w, inner = layer.head_width, layer.heads * layer.head_width
    average = 1 / layer.branches ** (1 if layer.branch_scale == "paper" else 2)
    total = query.new_zeros(query.shape)
    for branch in range(layer.branches):
        q_weight, k_weight, v_weight = layer.qkv_weight[:, branch]
        zero = query.new_zeros(3, inner)
        q_bias, k_bias, v_bias = zero if layer.qkv_bias is None else layer.qkv_bias[:, branch]
        heads = []
        for head in range(layer.heads):
            part = slice(head * w, (head + 1) * w)
            q = query @ q_weight[part].T + q_bias[part]
            k = key @ k_weight[part].T + k_bias[part]
            v = value @ v_weight[part].T + v_bias[part]
            scores = q @ k.transpose(1, 2) / math.sqrt(w)
            if allowed is not None:
                scores = scores.masked_fill(~allowed, float("-inf"))
            attended = scores.softmax(-1) @ v
            if keep is not None and layer.drop_kind == "head":
                attended = attended * keep[branch * layer.heads + head]
            heads.append(attended)
        output = torch.cat(heads, dim=-1) @ layer.out_weight[branch]
        if layer.out_bias is not None:
            output = output + layer.out_bias[branch]
        if keep is not None and layer.drop_kind == "branch":
            output = output * keep[branch]
        total = total + output * average
    return total


def feed_forward(
    layer: MultiBranchFeedForward, states: Tensor, keep: Tensor | None = None
) -> Tensor:
    """Eq. 8 without the residual."""
    average = 1 / layer.branches ** (1 if layer.branch_scale == "paper" else 2)
    total = torch.zeros_like(states)
    for branch in range(layer.branches):
        hidden = states @ layer.in_weight[branch].T + layer.in_bias[branch]
        if layer.activation == "relu":
            hidden = hidden.clamp(min=0)
        elif layer.activation == "gelu":
            hidden = 0.5 * hidden * (1 + torch.erf(hidden / math.sqrt(2)))
        else:
            gate, up = hidden.chunk(2, dim=-1)
            hidden = gate * torch.sigmoid(gate) * up
        output = hidden @ layer.out_weight[branch] + layer.out_bias[branch]
        if keep is not None:
            output = output * keep[branch]
        total = total + output * average
    return total
