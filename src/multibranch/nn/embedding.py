"""Tokens and their positions as states: embedding · √d + position, then dropout."""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from multibranch.nn.training_kernels import dropout
from multibranch.nn.weights import draw_normal


class TokenEmbedding(nn.Module):
    """Embeds tokens and adds their positions.

    Args:
        vocabulary: how many tokens there are.
        width: d, the width of the states.
        padding: the id whose embedding is zero, unless it is an output embedding too.
        positions: "sinusoidal" (no parameters, any length) or "learned".
        max_length: how many positions are learned.
        dropout: dropout on the sum.
        shared: another embedding whose token vectors this one uses too.
    """

    frequency: Tensor

    def __init__(
        self,
        vocabulary: int,
        width: int,
        *,
        padding: int,
        positions: str = "sinusoidal",
        max_length: int = 1024,
        dropout: float = 0.0,
        shared: "TokenEmbedding | None" = None,
    ) -> None:
        super().__init__()
        if positions not in ("sinusoidal", "learned"):
            raise ValueError(f'positions must be "sinusoidal" or "learned", not {positions!r}')
        if width % 2 or width < 4:
            raise ValueError(f"width must be even and at least 4 for positions, not {width}")
        if padding is None or not 0 <= padding < vocabulary:
            raise ValueError(f"padding must be an id from 0 to {vocabulary - 1}, not {padding}")
        self.width = width
        self.max_length = max_length
        self.dropout = dropout
        self._shared = [] if shared is None else [shared]  # in a list: not a submodule of ours
        self.padding = padding
        if shared is None:
            self.weight = nn.Parameter(torch.empty(vocabulary, width))
        if positions == "learned":
            self.positions = nn.Parameter(torch.empty(max_length, width))
        else:
            known = _frequencies(width).to(self.vectors.device)
            self.register_buffer("frequency", known, persistent=False)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Normal with deviation d^-½; the padding's vector is zero."""
        if not self._shared:
            draw_normal(self.weight, self.width**-0.5)
            with torch.no_grad():
                self.weight[self.padding].zero_()
        if hasattr(self, "positions"):
            draw_normal(self.positions, self.width**-0.5)

    def _apply(self, fn: Any, recurse: bool = True) -> "TokenEmbedding":
        """Frequencies stay as they are whatever the rest becomes: an angle of 100.4 is not 100.

        They are in float32, and no state dict fills them where memory is given to a model that was
        made without (`to_empty`).
        """
        before = getattr(self, "frequency", None)
        super()._apply(fn, recurse)
        if before is not None and self.frequency is not before:
            known = _frequencies(self.width) if before.is_meta else before
            self.frequency = known.to(self.frequency.device)
        return self

    @property
    def vectors(self) -> Tensor:
        """The token vectors (vocabulary, d), ours or the shared ones."""
        return self._shared[0].vectors if self._shared else self.weight

    def forward(self, ids: Tensor, positions: Tensor) -> Tensor:
        """ids (…) and positions, broadcastable to them, → states (…, d)"""
        states = F.embedding(ids, self.vectors, padding_idx=self.padding) * math.sqrt(self.width)
        states = states + self._encode(positions).to(states.dtype)
        return dropout(states, self.dropout, training=self.training)

    def _encode(self, positions: Tensor) -> Tensor:
        """The positions' vectors (…, d)."""
        if hasattr(self, "positions"):
            # Positions past those learned share the last one: a long input still comes back.
            return F.embedding(positions.clamp(max=self.max_length - 1), self.positions)
        angles = positions.unsqueeze(-1).float() * self.frequency
        return torch.cat([angles.sin(), angles.cos()], dim=-1)


def _frequencies(width: int) -> Tensor:
    """The sinusoidal positions' frequencies (d/2,), on the CPU.

    On the device meta `arange` is PyTorch in Python, which takes a second or more to import.
    """
    places = torch.arange(width // 2, dtype=torch.float32, device="cpu")
    return torch.exp(places * (-math.log(10000) / (width // 2 - 1)))
