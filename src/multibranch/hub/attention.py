"""Our attention layer in the hands of `transformers`: its masks, its caches, its position biases.

Letters as in multibranch.nn: b sentences, t queries, s keys, d width, m heads of a branch, w width
of a head.
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from multibranch.nn import MultiBranchAttention, draw_keep
from multibranch.nn.drop import draw_own, kept_units

_EVERY = slice(None)


def may_skip() -> bool:
    """Whether dropped work may be left out.

    Not where a graph is recorded once and replayed (compilation, CUDA graphs): there a draw must be
    part of the graph. Nor among several processes: there each must touch every weight.
    """
    if torch.compiler.is_compiling():
        return False
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return False
    return not (torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing())


def attend(
    layer: MultiBranchAttention,
    states: Tensor,
    memory: Tensor | None = None,
    *,
    mask: Tensor | None = None,
    bias: Tensor | None = None,
    causal: bool = False,
    cache: Any = None,
    index: int | None = None,
    need_weights: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """Attention of states (b, t, d), to themselves or to memory (b, s, d).

    Args:
        mask: (b, 1, t, s), bool with True where attention is allowed, or a float to be added.
        bias: a position bias (b, m, t, s), the same for every branch.
        causal: whether no position sees a later one; only asked where there is no mask.
        cache: a cache of `transformers`, in which `index` is this layer's number.
        need_weights: whether to return the attention weights (b, N_a·m, t, s) too.
    """
    causal = causal and mask is None and states.shape[1] > 1
    if cache is None and not need_weights:
        keep = _draw_to_skip(layer)
        active = layer.branches if keep is None else len(kept_units(keep))
        seen = _combined(mask, bias, active)
        return layer.attend(states, memory, mask=seen, causal=causal, keep=keep), None
    query = layer.project(states, 0, 1, _EVERY).squeeze(-3).transpose(1, 2)
    key, value = _key_value(layer, states, memory, cache, index)
    if mask is not None and mask.dtype == torch.bool:
        mask = F.pad(mask, (0, key.shape[-2] - mask.shape[-1]))  # a static cache has room to spare
    seen = _combined(mask, bias, layer.branches)
    if need_weights:
        attended, weights = _with_weights(layer, query, key, value, seen, causal)
    else:
        dropout = layer.dropout if layer.training else 0.0
        attended = F.scaled_dot_product_attention(
            query, key, value, seen, dropout, is_causal=causal
        )
        weights = None
    factors = draw_own(
        layer.units, layer.drop_branch, training=layer.training, device=states.device
    )
    return layer.merge(attended.transpose(1, 2), factors, _EVERY), weights


def _draw_to_skip(layer: MultiBranchAttention) -> Sequence[float] | None:
    """The factors of one pass, drawn on the CPU so that dropped branches cost nothing."""
    if not layer.training or layer.drop_branch == 0 or layer.drop_kind != "branch":
        return None
    if not may_skip():
        return None
    return draw_keep([layer.drop_branch] * layer.units).tolist()


def _combined(mask: Tensor | None, bias: Tensor | None, branches: int) -> Tensor | None:
    """Mask and position bias as one, broadcastable to (b, branches·m, t, s)."""
    if bias is None:
        return mask
    if mask is not None:
        bias = bias.masked_fill(~mask, float("-inf")) if mask.dtype == torch.bool else bias + mask
    return bias.repeat(1, branches, 1, 1)


def _key_value(
    layer: MultiBranchAttention,
    states: Tensor,
    memory: Tensor | None,
    cache: Any,
    index: int | None,
) -> tuple[Tensor, Tensor]:
    """Keys and values (b, N_a·m, s, w), those of earlier calls included.

    A cache of an encoder-decoder holds two: memory is read once, and states are appended.
    """
    if cache is None:
        return layer.key_value(states if memory is None else memory)
    two = hasattr(cache, "cross_attention_cache")
    if memory is None:
        part = cache.self_attention_cache if two else cache
        return part.update(*layer.key_value(states), index)
    if two and cache.is_updated.get(index):
        kept = cache.cross_attention_cache.layers[index]
        return kept.keys, kept.values
    part = cache.cross_attention_cache if two else cache
    key_value = part.update(*layer.key_value(memory), index)
    if two:
        cache.is_updated[index] = True
    return key_value


def _with_weights(
    layer: MultiBranchAttention,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    causal: bool,
) -> tuple[Tensor, Tensor]:
    """Attention written out, for those who ask for its weights."""
    # Queries are scaled, not scores, which in half precision would be infinite before.
    scores = (query * layer.head_width**-0.5) @ key.transpose(-1, -2)
    if causal:
        mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
    if mask is not None:
        scores = (
            scores.masked_fill(~mask, float("-inf")) if mask.dtype == torch.bool else scores + mask
        )
    # A query that sees no key attends to nothing, as in PyTorch's kernel: a softmax would be NaN.
    blind = scores.isneginf().all(-1, keepdim=True)
    weights = scores.masked_fill(blind, 0.0).softmax(-1).masked_fill(blind, 0.0)
    weights = F.dropout(weights, layer.dropout, layer.training)
    return weights @ value, weights
