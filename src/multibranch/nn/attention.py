"""Multi-branch attention (Eqs. 4 to 6): the average of N_a independent multi-head attentions.

N_a branches of m heads are computed as one attention with N_a·m heads: one projection for the
queries, keys and values of all branches, one attention call, and one output product whose inner
dimension runs over the branches and thereby sums them. Dropping a branch is a factor on its
columns before that product, and on its output bias.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from multibranch.nn import kernels, masks
from multibranch.nn.drop import (
    Keep,
    as_factors,
    branch_factor,
    check_rate,
    check_units,
    draw_own,
    kept_units,
    times,
)
from multibranch.nn.kernels import Segments
from multibranch.nn.linear import linear, scaled_linear
from multibranch.nn.weights import draw_uniform


class _NoWeights:
    """What torch's own encoder finds where it looks for the weights of torch's own attention."""

    weight: None = None
    bias: None = None

    @classmethod
    def __torch_function__(cls, *_: Any) -> Any:
        return NotImplemented


class MultiBranchAttention(nn.Module):
    """N_a branches of m-head attention, averaged; a drop-in for `torch.nn.MultiheadAttention`.

    The residual connection of Eq. 4 belongs to the block. The parameters hold all branches:

    - qkv_weight (3, N_a, m·w, d) and qkv_bias (3, N_a, m·w): queries, keys and values,
    - out_weight (N_a, m·w, d) as [branch, in, out] and out_bias (N_a, d): the output projections,

    where w is `head_width`, d/m unless said otherwise.

    Args:
        width: d, the width of the states.
        heads: m, the heads of one branch.
        branches: N_a.
        drop_branch: ρ, the rate at which branches (or heads) are dropped while training.
        drop_kind: "branch" drops whole branches (Eq. 5), "head" single heads (Section 7.2).
        dropout: dropout on the attention weights.
        branch_scale: "paper" averages with 1/N_a, "released" with the public code's 1/N_a².
        bias: whether the projections have biases.
        head_width: the width of a head; a folded model has heads that do not divide d.
        batch_first: whether `forward` takes (b, t, d) rather than torch's default (t, b, d).
    """

    # In evaluation torch.nn.TransformerEncoderLayer goes around `forward`, straight to weights laid
    # out as torch's own are, unless these tell it not to. So does a TransformerEncoder that was
    # made with torch's attention, unless what it finds as weights is no tensor.
    in_proj_bias: None = None
    _qkv_same_embed_dim = False
    in_proj_weight = out_proj = _NoWeights()

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        branches: int = 1,
        drop_branch: float = 0.0,
        drop_kind: str = "branch",
        dropout: float = 0.0,
        branch_scale: str = "paper",
        bias: bool = True,
        head_width: int | None = None,
        batch_first: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if branches < 1:
            raise ValueError(f"branches must be at least 1, not {branches}")
        if heads < 1:
            raise ValueError(f"heads must be at least 1, not {heads}")
        if head_width is None and width % heads:
            raise ValueError(f"{heads} heads do not divide a width of {width}: change one of them")
        check_rate("drop_branch", drop_branch)
        check_rate("dropout", dropout)
        if drop_kind not in ("branch", "head"):
            raise ValueError(f'drop_kind must be "branch" or "head", not {drop_kind!r}')
        branch_factor(branches, branch_scale)  # raises for an unknown scale
        self.width = width
        self.heads = heads
        self.branches = branches
        self.head_width = head_width or width // heads
        self.drop_branch = drop_branch
        self.drop_kind = drop_kind
        self.dropout = dropout
        self.branch_scale = branch_scale
        self.batch_first = batch_first
        inner = heads * self.head_width
        made: dict[str, Any] = {"device": device, "dtype": dtype}
        self.qkv_weight = nn.Parameter(torch.empty(3, branches, inner, width, **made))
        self.out_weight = nn.Parameter(torch.empty(branches, inner, width, **made))
        self.qkv_bias = nn.Parameter(torch.empty(3, branches, inner, **made)) if bias else None
        self.out_bias = nn.Parameter(torch.empty(branches, width, **made)) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Xavier uniform for each branch by itself, with gain 1/√2 for Q, K and V; biases zero."""
        inner = self.heads * self.head_width
        bound = math.sqrt(6 / (inner + self.width))
        draw_uniform(self.qkv_weight, bound / math.sqrt(2))
        draw_uniform(self.out_weight, bound)
        for bias in (self.qkv_bias, self.out_bias):
            if bias is not None:
                nn.init.zeros_(bias)

    @property
    def units(self) -> int:
        """How many units this layer drops: its branches, or all their heads."""
        return self.branches * (self.heads if self.drop_kind == "head" else 1)

    def extra_repr(self) -> str:
        return (
            f"{self.width}, {self.heads}, branches={self.branches}, "
            f"drop_branch={self.drop_branch}, drop_kind={self.drop_kind!r}"
        )

    # -- The parts of the layer -------------------------------------------------------------

    def project(self, states: Tensor, first: int, last: int, active: slice | list[int]) -> Tensor:
        """Project states (…, d) to parts first..last of (Q, K, V), for the active branches.

        Returns (…, last − first, branches·m, w).
        """
        weight = self.qkv_weight[first:last, active]
        bias = None if self.qkv_bias is None else self.qkv_bias[first:last, active].flatten()
        projected = linear(states, weight.flatten(0, 2), bias)
        return projected.unflatten(-1, (last - first, -1, self.head_width))

    def merge(
        self,
        heads: Tensor,
        factors: Tensor | None,
        active: slice | list[int],
        *,
        scaled: bool = False,
    ) -> Tensor:
        """Average the branches' outputs through their output projections (Eq. 6).

        heads (…, branches·m, w), factors (units,) or None when nothing is dropped → (…, d). With
        `scaled` the heads carry their factors already.
        """
        weight = self.out_weight[active].flatten(0, 1)
        bias = None if self.out_bias is None else self.out_bias[active]  # (branches, d)
        if factors is not None:
            if not scaled:
                heads = times(heads, self._head_factors(factors).unsqueeze(-1))
            if bias is not None and self.drop_kind == "branch":
                bias = times(bias, factors.unsqueeze(-1))
        summed_bias = None if bias is None else bias.sum(0)
        scale = branch_factor(self.branches, self.branch_scale)
        return scaled_linear(heads.flatten(-2), weight.t(), summed_bias, scale)

    def _head_factors(self, keep: Tensor) -> Tensor:
        """One factor a head, (N_a·m,), from one a unit."""
        return keep if self.drop_kind == "head" else keep.repeat_interleave(self.heads)

    def _resolve(self, keep: Keep, device: torch.device) -> tuple[Tensor | None, slice | list[int]]:
        """Turn `keep` into factors (None: all one) and the branches to compute."""
        everything = slice(None)
        if keep is None:
            return (
                draw_own(self.units, self.drop_branch, training=self.training, device=device),
                everything,
            )
        check_units(keep, self.units)
        if isinstance(keep, Tensor):
            return keep, everything
        if self.drop_kind == "head":
            return as_factors(keep, self.out_weight), everything
        active = kept_units(keep)
        if len(active) == self.branches:
            active_slice: slice | list[int] = everything
        else:
            active_slice = active
        factors = [keep[branch] for branch in active]
        if all(factor == 1 for factor in factors):
            return None, active_slice
        return as_factors(factors, self.out_weight), active_slice

    # -- What blocks call -------------------------------------------------------------------

    def attend(
        self,
        states: Tensor,
        memory: Tensor | None = None,
        *,
        mask: Tensor | None = None,
        causal: bool = False,
        keep: Keep = None,
    ) -> Tensor:
        """Attention over a padded batch: states (b, t, d), to themselves or to memory (b, s, d).

        mask: bool, broadcastable to (b, N_a·m, t, s), True where attention is allowed.
        """
        factors, active = self._resolve(keep, states.device)
        if active == []:
            return torch.zeros_like(states)
        query, key, value = self._query_key_value(states, memory, active)
        attended = F.scaled_dot_product_attention(
            query.transpose(-2, -3),  # (b, h, t, w)
            key.transpose(-2, -3),
            value.transpose(-2, -3),
            attn_mask=mask,
            dropout_p=self.dropout if self.training else 0.0,
            is_causal=causal,
        )
        return self.merge(attended.transpose(-2, -3), factors, active)

    def attend_packed(
        self,
        states: Tensor,
        segments: Segments,
        memory: Tensor | None = None,
        memory_segments: Segments | None = None,
        *,
        causal: bool = False,
        keep: Keep = None,
    ) -> Tensor:
        """Attention over packed sequences: states (n, d), to themselves or to memory (n', d)."""
        factors, active = self._resolve(keep, states.device)
        if active == []:
            return torch.zeros_like(states)
        dropout = self.dropout if self.training else 0.0
        # The kernel applies the factors itself, and spends no time on heads that are dropped.
        head_scale = None if factors is None else self._head_factors(factors)
        if memory is None:
            qkv = self.project(states, 0, 3, active)
            attended = kernels.packed_self_attention(
                qkv, segments, causal=causal, head_scale=head_scale, dropout_p=dropout
            )
        else:
            assert memory_segments is not None
            query = self.project(states, 0, 1, active).squeeze(-3)
            key_value = self.project(memory, 1, 3, active)
            attended = kernels.packed_cross_attention(
                query,
                key_value,
                segments,
                memory_segments,
                head_scale=head_scale,
                dropout_p=dropout,
            )
        return self.merge(attended, factors, active, scaled=True)

    def attend_cached(
        self, states: Tensor, key: Tensor, value: Tensor, *, mask: Tensor | None = None
    ) -> Tensor:
        """Attention to cached keys and values (b, N_a·m, s, w): states (b, t, d) → (b, t, d)."""
        query = self.project(states, 0, 1, slice(None)).squeeze(-3).transpose(1, 2)
        attended = F.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        return self.merge(attended.transpose(1, 2), None, slice(None))

    def key_value(self, memory: Tensor) -> tuple[Tensor, Tensor]:
        """The keys and values of memory (b, s, d), each (b, N_a·m, s, w), for a cache."""
        key, value = self.project(memory, 1, 3, slice(None)).unbind(-3)
        return key.transpose(1, 2), value.transpose(1, 2)

    def _query_key_value(
        self,
        states: Tensor,
        memory: Tensor | None,
        active: slice | list[int],
        values: Tensor | None = None,
    ) -> Sequence[Tensor]:
        """Queries, keys and values, each (…, t or s, branches·m, w), in the fewest products."""
        if memory is None:
            return self.project(states, 0, 3, active).unbind(-3)
        query = self.project(states, 0, 1, active).squeeze(-3)
        if values is None:
            key, value = self.project(memory, 1, 3, active).unbind(-3)
        else:
            key = self.project(memory, 1, 2, active).squeeze(-3)
            value = self.project(values, 2, 3, active).squeeze(-3)
        return query, key, value

    # -- The interface of torch.nn.MultiheadAttention ---------------------------------------

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
        keep: Keep = None,
    ) -> tuple[Tensor, Tensor | None]:
        """The arguments and results of `torch.nn.MultiheadAttention`, masks included.

        As there, a True in a boolean mask forbids attention, and a float mask is added to the
        scores; attn_mask is (t, s), (b·m, t, s) or (b·N_a·m, t, s). Unlike there, `is_causal`
        needs no attn_mask beside it; beside one it says, as there, that this is the causal mask,
        and changes nothing. The weights come averaged over branches and heads, (b, t, s), or with
        average_attn_weights=False as (b, N_a, m, t, s).
        """
        masks.check_inputs(query, key, value, self.width, batch_first=self.batch_first)
        given = query
        batched = query.dim() == 3
        flip = batched and not self.batch_first
        inputs = [query, key, value]
        same_memory = key is value
        self_attention = same_memory and query is key
        if not batched:
            inputs = [states.unsqueeze(0) for states in inputs]
            if key_padding_mask is not None:
                key_padding_mask = key_padding_mask.unsqueeze(0)
        elif flip:
            inputs = [states.transpose(0, 1) for states in inputs]
        query, key, value = inputs
        if need_weights and keep is not None and not isinstance(keep, Tensor):
            keep = as_factors(keep, self.out_weight)  # the weights are those of every branch
        factors, active = self._resolve(keep, query.device)
        if active == []:
            return torch.zeros_like(given), None
        mask = masks.combined(
            query,
            key,
            key_padding_mask,
            attn_mask,
            causal=is_causal,
            fused=not need_weights,
            heads=(self.branches, self.heads),
            active=active,
        )
        q, k, v = (
            part.transpose(-2, -3)
            for part in self._query_key_value(
                query, None if self_attention else key, active, None if same_memory else value
            )
        )
        attended, weights = self._scores_and_values(q, k, v, mask, is_causal, need_weights)
        output = self.merge(attended.transpose(-2, -3), factors, active)
        if weights is not None:
            weights = weights.unflatten(1, (-1, self.heads))  # (b, N_a, m, t, s)
            if average_attn_weights:
                weights = weights.mean((1, 2))
        if not batched:
            return output.squeeze(0), None if weights is None else weights.squeeze(0)
        return output.transpose(0, 1) if flip else output, weights

    def _scores_and_values(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None,
        causal: bool,
        need_weights: bool,
    ) -> tuple[Tensor, Tensor | None]:
        dropout = self.dropout if self.training else 0.0
        if not need_weights:
            attended = F.scaled_dot_product_attention(
                query, key, value, mask, dropout, is_causal=causal and mask is None
            )
            return attended, None
        # Queries are scaled, not scores, which in half precision would be infinite before.
        scores = (query * self.head_width**-0.5) @ key.transpose(-1, -2)
        if mask is not None:
            scores = scores + mask
        weights = F.dropout(scores.softmax(-1), dropout)
        return weights @ value, weights
