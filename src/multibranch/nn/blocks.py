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
from multibranch.nn.drop import Keep, check_rate, split_keep
from multibranch.nn.feed_forward import MultiBranchFeedForward
from multibranch.nn.kernels import Segments
from multibranch.nn.training_kernels import dropout


class Layout(NamedTuple):
    """How the sequences of a batch lie in its states: padded with a mask, or packed in segments."""

    mask: Tensor | None = None  # (b, 1, 1, t), True where there is a token; None: everywhere
    segments: Segments | None = None


class _Block(nn.Module):
    """What both blocks share: sublayers with residual connection and norm, the split of `keep`."""

    attention: MultiBranchAttention
    attention_norm: nn.LayerNorm
    feed_forward: MultiBranchFeedForward
    feed_forward_norm: nn.LayerNorm

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
        return split_keep(keep, [layer.units for layer in self.layers])

    def before(self, states: Tensor, norm: nn.LayerNorm) -> Tensor:
        """The states (…, d) as a layer reads them."""
        return norm(states) if self.pre_norm else states

    def after(self, states: Tensor, output: Tensor, norm: nn.LayerNorm) -> Tensor:
        """The states (…, d) with the layer's output: residual connection, and norm."""
        states = dropout(output, self.dropout, training=self.training, base=states)
        return states if self.pre_norm else norm(states)

    # The sublayers: a layer with its residual connection and norm. Each is what a trainer that
    # skips dropped work compiles by itself, once for every pattern of kept branches.

    def self_attention_sublayer(
        self, states: Tensor, layout: Layout, keep: Keep, causal: bool
    ) -> Tensor:
        """Self-attention: states (b, t, d) or (n, d) → the same shape."""
        before = self.before(states, self.attention_norm)
        if layout.segments is not None:
            output = self.attention.attend_packed(before, layout.segments, causal=causal, keep=keep)
        else:
            # Behind a causal mask no token sees the padding at the end of its own sequence.
            mask = None if causal else layout.mask
            output = self.attention.attend(before, mask=mask, causal=causal, keep=keep)
        return self.after(states, output, self.attention_norm)

    def feed_forward_sublayer(self, states: Tensor, keep: Keep) -> Tensor:
        """The feed-forward layer: states (…, d) → the same shape."""
        before = self.before(states, self.feed_forward_norm)
        return self.after(states, self.feed_forward(before, keep), self.feed_forward_norm)


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
        states = self.self_attention_sublayer(states, layout, keep_attention, False)
        return self.feed_forward_sublayer(states, keep_feed_forward)


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
        states = self.self_attention_sublayer(states, layout, keep_attention, True)
        states = self.cross_attention_sublayer(states, layout, memory, memory_layout, keep_cross)
        return self.feed_forward_sublayer(states, keep_feed_forward)

    def cross_attention_sublayer(
        self, states: Tensor, layout: Layout, memory: Tensor, memory_layout: Layout, keep: Keep
    ) -> Tensor:
        """Attention to the encoder's states: states (b, t, d) or (n, d) → the same shape."""
        before = self.before(states, self.cross_attention_norm)
        if layout.segments is not None:
            output = self.cross_attention.attend_packed(
                before, layout.segments, memory, memory_layout.segments, keep=keep
            )
        else:
            output = self.cross_attention.attend(before, memory, mask=memory_layout.mask, keep=keep)
        return self.after(states, output, self.cross_attention_norm)

    def step(self, states: Tensor, layer: LayerCache, cache: DecoderCache) -> Tensor:
        """One more token a row: states (b, beam, d) → the same shape; the cache remembers it."""
        before = self.before(states, self.attention_norm)
        qkv = self.attention.project(before, 0, 3, slice(None))  # (b, beam, 3, h, w)
        keys, values = cache.append(layer, qkv[:, :, 1], qkv[:, :, 2])
        attended = F.scaled_dot_product_attention(
            qkv[:, :, 0].transpose(1, 2), keys, values, attn_mask=cache.ancestry
        )  # (b, h, beam, w)
        merged = self.attention.merge(attended.transpose(1, 2), None, slice(None))
        states = self.after(states, merged, self.attention_norm)
        before = self.before(states, self.cross_attention_norm)
        attended = self.cross_attention.attend_cached(
            before, layer.memory_key, layer.memory_value, mask=cache.mask
        )
        states = self.after(states, attended, self.cross_attention_norm)
        before = self.before(states, self.feed_forward_norm)
        return self.after(states, self.feed_forward(before), self.feed_forward_norm)
