"""The encoder's and the decoder's block: multi-branch attention and feed-forward layers (Figure 1).

Post-norm is LN(x + dropout(layer(x))), pre-norm x + dropout(layer(LN(x))). One dropout follows the
merged branches. A block takes its states padded, (b, t, d) with a mask, or packed, (n, d) with
segments; and the factors of its layers side by side in `keep` (see nn/drop.py).
"""

from typing import Any, NamedTuple

import torch.nn.functional as F
from torch import Tensor, nn

from multibranch.nn.attention import MultiBranchAttention
from multibranch.nn.cache import DecoderCache, LayerCache
from multibranch.nn.drop import Keep, check_rate
from multibranch.nn.feed_forward import MultiBranchFeedForward
from multibranch.nn.kernels import Segments


class Layout(NamedTuple):
    """How the sequences of a batch lie in its states: padded with a mask, or packed in segments."""

    mask: Tensor | None = None  # (b, 1, 1, t), True where there is a token; None: everywhere
    segments: Segments | None = None


class _Block(nn.Module):
    """What both blocks share: residual connections, norms and the split of `keep`."""

    def __init__(self, *, norm: str, dropout: float) -> None:
        super().__init__()
        if norm not in ("post", "pre"):
            raise ValueError(f'norm must be "post" or "pre", not {norm!r}')
        check_rate("dropout", dropout)
        self.pre_norm = norm == "pre"
        self.dropout = dropout

    @property
    def layers(self) -> list[MultiBranchAttention | MultiBranchFeedForward]:
        """The layers whose units can be dropped, in their order."""
        return [
            layer
            for layer in self.children()
            if isinstance(layer, MultiBranchAttention | MultiBranchFeedForward)
        ]

    @property
    def units(self) -> int:
        """How many factors `keep` holds for this block."""
        return sum(layer.units for layer in self.layers)

    def _split(self, keep: Keep) -> list[Keep]:
        """`keep` (units,) cut into one piece a layer."""
        pieces: list[Keep] = []
        start = 0
        for layer in self.layers:
            pieces.append(None if keep is None else keep[start : start + layer.units])
            start += layer.units
        return pieces

    def _before(self, states: Tensor, norm: nn.LayerNorm) -> Tensor:
        return norm(states) if self.pre_norm else states

    def _after(self, states: Tensor, output: Tensor, norm: nn.LayerNorm) -> Tensor:
        states = states + F.dropout(output, self.dropout, self.training)
        return states if self.pre_norm else norm(states)


def _attend(
    layer: MultiBranchAttention,
    states: Tensor,
    layout: Layout,
    *,
    memory: Tensor | None = None,
    memory_layout: Layout | None = None,
    causal: bool = False,
    keep: Keep = None,
) -> Tensor:
    """Self- or encoder-decoder attention in the layout of the batch."""
    if layout.segments is not None:
        memory_segments = None if memory_layout is None else memory_layout.segments
        return layer.attend_packed(
            states, layout.segments, memory, memory_segments, causal=causal, keep=keep
        )
    attended_to = layout if memory_layout is None else memory_layout
    # Behind a causal mask no token sees the padding at the end of its own sequence.
    mask = None if causal else attended_to.mask
    return layer.attend(states, memory, mask=mask, causal=causal, keep=keep)


class EncoderBlock(_Block):
    """Self-attention and feed-forward layer. `attention` and `feed_forward` are their arguments."""

    def __init__(
        self,
        width: int,
        *,
        attention: dict[str, Any],
        feed_forward: dict[str, Any],
        norm: str = "post",
        dropout: float = 0.0,
    ) -> None:
        super().__init__(norm=norm, dropout=dropout)
        self.attention = MultiBranchAttention(width, **attention)
        self.attention_norm = nn.LayerNorm(width)
        self.feed_forward = MultiBranchFeedForward(width, **feed_forward)
        self.feed_forward_norm = nn.LayerNorm(width)

    def forward(self, states: Tensor, layout: Layout, keep: Keep = None) -> Tensor:
        """states (b, s, d) or (n, d) → the same shape"""
        keep_attention, keep_feed_forward = self._split(keep)
        before = self._before(states, self.attention_norm)
        attended = _attend(self.attention, before, layout, keep=keep_attention)
        states = self._after(states, attended, self.attention_norm)
        before = self._before(states, self.feed_forward_norm)
        output = self.feed_forward(before, keep_feed_forward)
        return self._after(states, output, self.feed_forward_norm)


class DecoderBlock(_Block):
    """Causal self-attention, attention to the encoder, and feed-forward layer."""

    def __init__(
        self,
        width: int,
        *,
        attention: dict[str, Any],
        feed_forward: dict[str, Any],
        norm: str = "post",
        dropout: float = 0.0,
    ) -> None:
        super().__init__(norm=norm, dropout=dropout)
        self.attention = MultiBranchAttention(width, **attention)
        self.attention_norm = nn.LayerNorm(width)
        self.cross_attention = MultiBranchAttention(width, **attention)
        self.cross_attention_norm = nn.LayerNorm(width)
        self.feed_forward = MultiBranchFeedForward(width, **feed_forward)
        self.feed_forward_norm = nn.LayerNorm(width)

    def forward(
        self,
        states: Tensor,
        layout: Layout,
        memory: Tensor,
        memory_layout: Layout,
        keep: Keep = None,
    ) -> Tensor:
        """states (b, t, d) or (n, d), memory (b, s, d) or (n', d) → the shape of states"""
        keep_attention, keep_cross, keep_feed_forward = self._split(keep)
        before = self._before(states, self.attention_norm)
        attended = _attend(self.attention, before, layout, causal=True, keep=keep_attention)
        states = self._after(states, attended, self.attention_norm)
        before = self._before(states, self.cross_attention_norm)
        attended = _attend(
            self.cross_attention,
            before,
            layout,
            memory=memory,
            memory_layout=memory_layout,
            keep=keep_cross,
        )
        states = self._after(states, attended, self.cross_attention_norm)
        before = self._before(states, self.feed_forward_norm)
        output = self.feed_forward(before, keep_feed_forward)
        return self._after(states, output, self.feed_forward_norm)

    def step(self, states: Tensor, layer: LayerCache, cache: DecoderCache) -> Tensor:
        """One more token a row: states (b, beam, d) → the same shape; the cache remembers it."""
        before = self._before(states, self.attention_norm)
        qkv = self.attention.project(before, 0, 3, slice(None))  # (b, beam, 3, h, w)
        keys, values = cache.append(layer, qkv[:, :, 1:])
        attended = F.scaled_dot_product_attention(
            qkv[:, :, 0].transpose(1, 2), keys, values, attn_mask=cache.ancestry
        )  # (b, h, beam, w)
        merged = self.attention.merge(attended.transpose(1, 2), None, slice(None))
        states = self._after(states, merged, self.attention_norm)
        before = self._before(states, self.cross_attention_norm)
        attended = self.cross_attention.attend_cached(
            before, layer.memory_key, layer.memory_value, mask=cache.mask
        )
        states = self._after(states, attended, self.cross_attention_norm)
        before = self._before(states, self.feed_forward_norm)
        return self._after(states, self.feed_forward(before), self.feed_forward_norm)
