"""The feed-forward layer (Eqs. 3 and 7) and its multi-branch form hFFN (Eq. 8).

N_f branches are one wide layer: the branches' hidden units lie side by side, and the second
product sums over them. N_f = 1 is the paper's main model.
"""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

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
from multibranch.nn.linear import linear, scaled_linear
from multibranch.nn.training_kernels import dropout
from multibranch.nn.weights import draw_uniform

ACTIVATIONS = ("relu", "gelu", "swiglu")


class MultiBranchFeedForward(nn.Module):
    """N_f feed-forward branches, averaged, each dropped as a whole.

    The residual connection belongs to the block. The parameters hold all branches: in_weight
    (N_f, d_h, d), in_bias (N_f, d_h), out_weight (N_f, d_h, d) as [branch, in, out] and out_bias
    (N_f, d). SwiGLU has a gate beside every hidden unit: its in_weight is (N_f, 2·d_h, d).

    Args:
        width: d, the width of the states.
        hidden: d_h, the hidden width of one branch.
        branches: N_f.
        drop_branch: ρ, the rate at which each branch is dropped while training.
        activation: "relu", "gelu" or "swiglu".
        activation_dropout: dropout on the hidden units.
        branch_scale: "paper" averages with 1/N_f, "released" with 1/N_f².
    """

    def __init__(
        self,
        width: int,
        hidden: int,
        *,
        branches: int = 1,
        drop_branch: float = 0.0,
        activation: str = "relu",
        activation_dropout: float = 0.0,
        branch_scale: str = "paper",
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if branches < 1:
            raise ValueError(f"branches must be at least 1, not {branches}")
        if activation not in ACTIVATIONS:
            raise ValueError(f"activation must be one of {ACTIVATIONS}, not {activation!r}")
        check_rate("drop_branch", drop_branch)
        check_rate("activation_dropout", activation_dropout)
        branch_factor(branches, branch_scale)  # raises for an unknown scale
        self.width = width
        self.hidden = hidden
        self.branches = branches
        self.drop_branch = drop_branch
        self.activation = activation
        self.activation_dropout = activation_dropout
        self.branch_scale = branch_scale
        inner = hidden * (2 if activation == "swiglu" else 1)
        made: dict[str, Any] = {"device": device, "dtype": dtype}
        self.in_weight = nn.Parameter(torch.empty(branches, inner, width, **made))
        self.out_weight = nn.Parameter(torch.empty(branches, hidden, width, **made))
        self.in_bias = nn.Parameter(torch.empty(branches, inner, **made)) if bias else None
        self.out_bias = nn.Parameter(torch.empty(branches, width, **made)) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Xavier uniform for each branch by itself; biases zero."""
        bound = math.sqrt(6 / (self.width + self.hidden))
        draw_uniform(self.in_weight, bound)
        draw_uniform(self.out_weight, bound)
        for bias in (self.in_bias, self.out_bias):
            if bias is not None:
                nn.init.zeros_(bias)

    @property
    def units(self) -> int:
        """How many units this layer drops: its branches."""
        return self.branches

    def extra_repr(self) -> str:
        return (
            f"{self.width}, {self.hidden}, branches={self.branches}, "
            f"drop_branch={self.drop_branch}, activation={self.activation!r}"
        )

    def forward(self, states: Tensor, keep: Keep = None) -> Tensor:
        """states (…, d) → (…, d)"""
        active: slice | list[int] = slice(None)
        if keep is None:
            keep = draw_own(
                self.units, self.drop_branch, training=self.training, device=states.device
            )
        else:
            check_units(keep, self.units)
        if keep is not None and not isinstance(keep, Tensor):
            kept = kept_units(keep)
            if not kept:
                return torch.zeros_like(states)
            if len(kept) < self.branches:
                active = kept
            keep = as_factors([keep[branch] for branch in kept], self.out_weight)
        hidden = self._hidden(states, active)
        return self._merge(hidden, keep, active)

    def _hidden(self, states: Tensor, active: slice | list[int]) -> Tensor:
        """The hidden units of the active branches, (…, branches, d_h)."""
        weight = self.in_weight[active].flatten(0, 1)
        bias = None if self.in_bias is None else self.in_bias[active].flatten()
        hidden = linear(states, weight, bias).unflatten(-1, (-1, self.in_weight.shape[1]))
        if self.activation == "relu":
            hidden = F.relu(hidden)
        elif self.activation == "gelu":
            hidden = F.gelu(hidden)
        else:
            gate, up = hidden.chunk(2, dim=-1)
            hidden = F.silu(gate) * up
        return dropout(hidden, self.activation_dropout, training=self.training)

    def _merge(self, hidden: Tensor, keep: Tensor | None, active: slice | list[int]) -> Tensor:
        """Average the branches; keep (branches,) scales each."""
        scale = branch_factor(self.branches, self.branch_scale)
        weight = self.out_weight[active].flatten(0, 1)
        bias = None if self.out_bias is None else self.out_bias[active]  # (branches, d)
        if keep is not None and hidden.shape[-2] == 1:
            # One branch: scaling its output is cheaper than scaling its hidden units.
            output = linear(
                hidden.flatten(-2), weight.t(), None if bias is None else bias.squeeze(0)
            )
            return times(output, keep * scale)
        if keep is not None:
            hidden = times(hidden, keep.unsqueeze(-1))
            bias = None if bias is None else times(bias, keep.unsqueeze(-1))
        summed_bias = None if bias is None else bias.sum(0)
        return scaled_linear(hidden.flatten(-2), weight.t(), summed_bias, scale)
