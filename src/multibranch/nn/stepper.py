"""The model laid out for reading one token at a time, as fast as plain PyTorch allows.

`Stepper` computes what `encode`, `start` and `step` of a MultiBranchTransformer compute, with the
branches folded into heads, the average folded into the output projections, every weight in the
layout that its product is fastest in, and as few operations a step as there can be.
"""

import math
import threading
from collections.abc import Callable, Iterable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from multibranch.nn import int8_attention, int8_block
from multibranch.nn.attention import MultiBranchAttention
from multibranch.nn.blocks import DecoderBlock, EncoderBlock
from multibranch.nn.branching import fold
from multibranch.nn.cache import DecoderCache, LayerCache, Room, padded
from multibranch.nn.drop import branch_factor
from multibranch.nn.feed_forward import MultiBranchFeedForward
from multibranch.nn.int8_block import BlockStep
from multibranch.nn.int8_cache import Int8LayerCache
from multibranch.nn.int8_products import RowProduct
from multibranch.nn.products import Int8Product, Multiply, Product
from multibranch.nn.transformer import Memory, MultiBranchTransformer

MakeProduct = type[Product] | type[Int8Product]


class Stepper:
    """A model ready to decode. It keeps weights of its own: later changes to the model do not show.

    dtype: what to compute in; the model's own unless given. The logits are never less than float32,
        for a search that compares sums of them cannot work with three digits.
    products: attend by plain products over transposed keys, as suits a CPU, or by PyTorch's kernel,
        as suits a GPU; where the model lies decides unless it is given.
    int8: multiply with weights of eight bits, and keep the decoder's keys and values in eight where
        there are kernels for that; for float32 on a CPU.
    """

    def __init__(
        self,
        model: MultiBranchTransformer,
        *,
        dtype: torch.dtype | None = None,
        products: bool | None = None,
        int8: bool = False,
    ) -> None:
        folded = fold(model).to(dtype=dtype).eval().requires_grad_(False)
        self.vocabulary = int(model.settings["target_vocabulary"])
        self.padding = folded.padding
        self.int8 = int8
        self._source_embedding = folded.source_embedding
        self._target_embedding = folded.target_embedding
        self._vectors = folded.target_embedding.vectors * math.sqrt(folded.target_embedding.width)
        self._positions = self._vectors.new_zeros(0, folded.target_embedding.width)
        self._lock = threading.Lock()
        self.products = self.device.type == "cpu" if products is None else products
        make: MakeProduct = Int8Product if int8 else Product
        block_type = _DecoderBlock
        if int8 and self.products and _Int8DecoderBlock.fits(folded.decoder):
            block_type = _Int8DecoderBlock
        self._encoder = [_EncoderBlock(block, make) for block in folded.encoder]  # type: ignore[arg-type]
        self._encoder_norm = _final_norm(folded.encoder_norm)
        self._decoder = [
            block_type(block, make, products=self.products)  # type: ignore[arg-type]
            for block in folded.decoder
        ]
        self._decoder_norm = _final_norm(folded.decoder_norm)
        output = folded.output_vectors
        self._logits_type = torch.promote_types(output.dtype, torch.float32)
        self._output = make(output.to(self._logits_type), None)

    @property
    def device(self) -> torch.device:
        return self._vectors.device

    @property
    def bytes_a_position(self) -> int:
        """What the keys and values of one target position of one row take in a cache."""
        wide = sum(2 * block.heads * block.head_width for block in self._decoder)
        return wide * self._vectors.element_size()

    def encode(self, source: Tensor) -> Memory:
        """Encode padded sources (b, s)."""
        padding = source == self.padding
        places = torch.arange(source.shape[1], device=source.device)
        states = self._source_embedding(source, places)
        mask = ~padding[:, None, None, :]
        for block in self._encoder:
            states = block(states, mask)
        return Memory(self._encoder_norm(states), padding)

    def start(self, memory: Memory, *, beam: int = 1, room: Room | None = None) -> DecoderCache:
        """A cache for decoding from `memory` with `beam` rows a sentence; memory from `room`."""
        b, s = memory.padding.shape
        seen_places = ~memory.padding
        # Of a sentence that is all padding nothing is attended: zeros, as PyTorch's kernel has it.
        blank = memory.padding.all(1) if self.products else None
        if blank is not None and bool(blank.any()):
            seen_places |= blank[:, None]  # a softmax of −∞ alone is NaN
        else:
            blank = None
        layers = [block.start(memory.states, room, blank) for block in self._decoder]
        mask = memory.states.new_full((b, padded(s)), float("-inf"))
        mask[:, :s].masked_fill_(seen_places, 0.0)
        # Elsewhere the mask is as long as the source, but its rows lie aligned: GPU kernels would
        # otherwise copy it first.
        seen = mask.shape[1] if self.products else s
        return DecoderCache(layers, mask[:, None, None, :seen], sentences=b, beam=beam)

    def reserve_positions(self, positions: int) -> None:
        """Work out the vectors of so many target positions beforehand."""
        with self._lock:  # two threads must not make it shorter for one another
            if positions > self._positions.shape[0]:
                places = torch.arange(positions, device=self.device)
                encoded = self._target_embedding._encode(places)
                self._positions = encoded.to(self._vectors.dtype)

    def step(self, ids: Tensor, cache: DecoderCache) -> Tensor:
        """Logits (b, beam, V) for the token after `ids` (b, beam); the cache remembers `ids`.

        Ids (b, 1) are read once for all beams of a sentence, and give logits (b, 1, V).
        """
        cache.advance(ids.shape[1])
        if cache.length > self._positions.shape[0]:
            self.reserve_positions(max(64, 2 * cache.length))
        states = F.embedding(ids.flatten(), self._vectors)  # (b·beam, d)
        states += cache.position_of(self._positions)
        for block, layer in zip(self._decoder, cache.layers):
            states = block.step(states, layer, cache)
        logits = self._output(self._decoder_norm(states).to(self._logits_type))
        return logits.view(*ids.shape, -1)


class _EncoderBlock:
    """One encoder block: states (b, s, d), mask (b, 1, 1, s) → states of the same shape."""

    def __init__(self, block: EncoderBlock, make: MakeProduct) -> None:
        self.pre_norm = block.pre_norm
        self.heads, self.head_width = block.attention.heads, block.attention.head_width
        self.attention_norm = _Norm(block.attention_norm)
        self.feed_forward_norm = _Norm(block.feed_forward_norm)
        self.qkv = _inner(block.attention, 0, 3, make)
        self.out = _outer(block.attention, make)
        self.feed_forward = _FeedForward(block.feed_forward, make)

    def __call__(self, states: Tensor, mask: Tensor) -> Tensor:
        b, s, d = states.shape
        states = states.flatten(0, 1)
        before = self.attention_norm(states) if self.pre_norm else states
        qkv = self.qkv(before).view(b, s, 3, self.heads, self.head_width)
        query, key, value = qkv.transpose(1, 3).unbind(2)  # (b, h, s, w) each
        output = self.out(_attend_by_kernel(query.transpose(1, 2), key, value, mask))
        states = _after(states, output, self.attention_norm, self.pre_norm)
        before = self.feed_forward_norm(states) if self.pre_norm else states
        output = self.feed_forward(before)
        return _after(states, output, self.feed_forward_norm, self.pre_norm).view(b, s, d)


class _DecoderBlock:
    """One decoder block: states (rows, d) → the same shape."""

    def __init__(self, block: DecoderBlock, make: MakeProduct, *, products: bool) -> None:
        self.pre_norm = block.pre_norm
        self.heads, self.head_width = block.attention.heads, block.attention.head_width
        self.norms = [
            _Norm(norm)
            for norm in (block.attention_norm, block.cross_attention_norm, block.feed_forward_norm)
        ]
        self.products = products
        self.attend = _attend_by_products if products else _attend_by_kernel
        # The kernel divides by √w itself; the products have it in their queries.
        scale = self.head_width**-0.5 if products else 1.0
        self.qkv = _inner(block.attention, 0, 3, make, scale=scale)
        self.out = _outer(block.attention, make)
        self.query = _inner(block.cross_attention, 0, 1, make, scale=scale)
        self.memory = _inner(block.cross_attention, 1, 3, make)
        self.cross_out = _outer(block.cross_attention, make)
        self.feed_forward = _FeedForward(block.feed_forward, make)

    def start(self, memory: Tensor, room: Room | None, blank: Tensor | None) -> LayerCache:
        """What to remember of memory (b, s, d); zeros of the sentences that `blank` (b,) marks."""
        projected = self.project(memory, blank)
        key, value = projected.transpose(1, 3).unbind(2)  # (b, h, s, w) each
        return LayerCache(key, value, transposed=self.products, room=room)

    def project(self, memory: Tensor, blank: Tensor | None) -> Tensor:
        """The keys and values of memory (b, s, d), (b, s, 2, h, w); zeros where `blank` (b,) is."""
        b, s, _ = memory.shape
        projected = self.memory(memory.flatten(0, 1)).view(b, s, 2, self.heads, self.head_width)
        if blank is not None:
            projected[blank] = 0
        return projected

    def step(self, states: Tensor, layer: LayerCache, cache: DecoderCache) -> Tensor:
        shape = (cache.sentences, cache.open)
        attention_norm, cross_norm, feed_forward_norm = self.norms
        before = attention_norm(states) if self.pre_norm else states
        qkv = self.qkv(before).view(*shape, 3, self.heads, self.head_width)
        output = self.out(self.attend_written(qkv, layer, cache))
        states = _after(states, output, attention_norm, self.pre_norm)
        before = cross_norm(states) if self.pre_norm else states
        query = self.query(before).view(*shape, self.heads, self.head_width)
        output = self.cross_out(self.attend_source(query, layer, cache))
        states = _after(states, output, cross_norm, self.pre_norm)
        before = feed_forward_norm(states) if self.pre_norm else states
        return _after(states, self.feed_forward(before), feed_forward_norm, self.pre_norm)

    def attend_written(self, qkv: Tensor, layer: LayerCache, cache: DecoderCache) -> Tensor:
        """qkv (b, rows, 3, h, w) → (b·rows, h·w), over what the rows have read, this included."""
        query, key, value = qkv.unbind(2)
        keys, values = cache.append(layer, key, value)
        return self.attend(query, keys, values, cache.ancestry)

    def attend_source(self, query: Tensor, layer: LayerCache, cache: DecoderCache) -> Tensor:
        """query (b, rows, h, w) → (b·rows, h·w)"""
        return self.attend(query, layer.memory_key, layer.memory_value, cache.mask)


class _Int8DecoderBlock(_DecoderBlock):
    """The same over keys and values of eight bits; in one call where all of it has kernels."""

    def __init__(self, block: DecoderBlock, make: MakeProduct, *, products: bool) -> None:
        super().__init__(block, make, products=products)
        layers = [self.qkv, self.out, self.query, self.cross_out]
        layers += [self.feed_forward.inner, self.feed_forward.outer]
        kernels = [layer.multiply for layer in layers if isinstance(layer, Int8Product)]
        rows = [kernel for kernel in kernels if isinstance(kernel, RowProduct)]
        self.whole: BlockStep | None = None
        one_call = len(rows) == len(layers) and self.feed_forward.activation == "relu"
        if one_call and int8_block.runs_here():
            norms = [(norm.weight, norm.bias, norm.epsilon) for norm in self.norms]
            self.whole = BlockStep(
                rows, norms, heads=self.heads, width=self.head_width, pre_norm=self.pre_norm
            )

    @staticmethod
    def fits(blocks: Iterable[nn.Module]) -> bool:
        """Whether there are kernels for these blocks on this machine."""
        widths = {int(block.attention.head_width) for block in blocks}  # type: ignore[union-attr,arg-type]
        return int8_attention.library() is not None and all(width % 16 == 0 for width in widths)

    def start(self, memory: Tensor, room: Room | None, blank: Tensor | None) -> LayerCache:
        return Int8LayerCache(self.project(memory, blank), room=room)

    def step(self, states: Tensor, layer: LayerCache, cache: DecoderCache) -> Tensor:
        if self.whole is None:
            return super().step(states, layer, cache)
        assert isinstance(layer, Int8LayerCache)
        return self.whole(states, layer, cache)

    def attend_written(self, qkv: Tensor, layer: LayerCache, cache: DecoderCache) -> Tensor:
        assert isinstance(layer, Int8LayerCache)
        return layer.attend_written(qkv, cache.used - cache.open, cache.ancestry)

    def attend_source(self, query: Tensor, layer: LayerCache, cache: DecoderCache) -> Tensor:
        assert isinstance(layer, Int8LayerCache) and cache.mask is not None
        return layer.attend_source(query, cache.mask)


def _after(states: Tensor, output: Tensor, norm: "_Norm", pre_norm: bool) -> Tensor:
    """The residual connection, and the norm where it comes last."""
    output += states
    return output if pre_norm else norm(output)


def _attend_by_kernel(query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
    """query (b, t, h, w), keys and values (b, h, s, w) → (b·t, h·w)

    mask: to add to the scores, or True where there is attention.
    """
    attended = F.scaled_dot_product_attention(query.transpose(1, 2), keys, values, attn_mask=mask)
    return attended.transpose(1, 2).flatten(0, 1).flatten(1)


def _attend_by_products(query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
    """The same with queries divided by √w and keys (b, h, w, s), s a multiple of 16.

    For the few queries and keys that a step has, this takes a CPU about half as long as the kernel.
    """
    b, t, h, w = query.shape
    s = keys.shape[3]
    scores = torch.bmm(query.transpose(1, 2).reshape(b * h, t, w), keys.view(b * h, w, s))
    if mask is not None:
        scores.view(b, h, t, s).add_(mask)
    attended = torch.bmm(scores.softmax(-1), values.view(b * h, s, w))
    return attended.view(b, h, t, w).transpose(1, 2).reshape(b * t, h * w)


class _FeedForward:
    """The feed-forward layer, its branches as one wide layer."""

    def __init__(self, layer: MultiBranchFeedForward, make: MakeProduct) -> None:
        scale = branch_factor(layer.branches, layer.branch_scale)
        self.activation = layer.activation
        # For SwiGLU, all branches' gates come first, then all that they gate.
        parts = 2 if self.activation == "swiglu" else 1
        weights = [part.flatten(0, 1) for part in layer.in_weight.chunk(parts, dim=1)]
        in_bias = None
        if layer.in_bias is not None:
            in_bias = torch.cat([part.flatten() for part in layer.in_bias.chunk(parts, dim=1)])
        self.inner = make(torch.cat(weights), in_bias, relu=self.activation == "relu")
        out_bias = None if layer.out_bias is None else layer.out_bias.sum(0) * scale
        self.outer = make(layer.out_weight.flatten(0, 1).t() * scale, out_bias)

    def __call__(self, states: Tensor) -> Tensor:
        hidden = self.inner(states)
        if self.activation == "gelu":
            hidden = F.gelu(hidden)
        elif self.activation == "swiglu":
            gate, up = hidden.chunk(2, dim=-1)
            hidden = F.silu(gate).mul_(up)
        return self.outer(hidden)


class _Norm:
    """A layer norm without its module's overhead."""

    def __init__(self, norm: nn.LayerNorm) -> None:
        self.shape, self.weight, self.bias = norm.normalized_shape, norm.weight, norm.bias
        self.epsilon = norm.eps

    def __call__(self, states: Tensor) -> Tensor:
        return F.layer_norm(states, self.shape, self.weight, self.bias, self.epsilon)


def _final_norm(norm: nn.Module) -> Callable[[Tensor], Tensor]:
    """The norm after the last block: an identity after post-norm blocks."""
    return _Norm(norm) if isinstance(norm, nn.LayerNorm) else norm


def _inner(
    layer: MultiBranchAttention, first: int, last: int, make: MakeProduct, *, scale: float = 1.0
) -> Multiply:
    """Of a folded layer: parts first..last of (Q, K, V) as one product, the queries scaled."""
    factors = layer.qkv_weight.new_ones(3, 1, 1)
    factors[0] = scale
    bias = None
    if layer.qkv_bias is not None:
        bias = (layer.qkv_bias * factors)[first:last].flatten()
    weight = layer.qkv_weight * factors.unsqueeze(-1)
    return make(weight[first:last].flatten(0, 2), bias)


def _outer(layer: MultiBranchAttention, make: MakeProduct) -> Multiply:
    """Of a folded layer: the output projection."""
    bias = None if layer.out_bias is None else layer.out_bias.squeeze(0)
    return make(layer.out_weight.squeeze(0).t(), bias)
