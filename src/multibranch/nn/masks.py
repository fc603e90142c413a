"""The masks of `torch.nn.MultiheadAttention`, brought to one form: a tensor to add to the scores.

There a True in a boolean mask forbids attention, and a float mask is added to the scores.
"""

import torch
from torch import Tensor


def additive(name: str, mask: Tensor, dtype: torch.dtype) -> Tensor:
    """The mask as a float tensor to add to scores: −∞ where a boolean one is True."""
    if mask.dtype == torch.bool:
        zeros = torch.zeros(mask.shape, dtype=dtype, device=mask.device)
        return zeros.masked_fill(mask, float("-inf"))
    if not mask.is_floating_point():  # often 1 where attention is allowed, the reverse of a bool
        raise ValueError(
            f"{name} must be bool, True where attention is forbidden, or floating point, to be "
            f"added to the scores; not {mask.dtype}"
        )
    return mask.to(dtype)


def padding_mask(key_padding_mask: Tensor, b: int, s: int, dtype: torch.dtype) -> Tensor:
    """key_padding_mask (b, s) as (b, 1, 1, s)."""
    if key_padding_mask.shape != (b, s):
        raise ValueError(
            f"key_padding_mask must have the shape {(b, s)} (batch, source length), "
            f"not {tuple(key_padding_mask.shape)}"
        )
    return additive("key_padding_mask", key_padding_mask, dtype)[:, None, None, :]


def attention_mask(
    attn_mask: Tensor, b: int, t: int, s: int, *, branches: int, heads: int, dtype: torch.dtype
) -> Tensor:
    """attn_mask (t, s), (b·m, t, s) or (b·N_a·m, t, s), as (1 or b, 1 or N_a, 1 or m, t, s)."""
    by_head, by_branch = (b * heads, t, s), (b * branches * heads, t, s)
    if attn_mask.shape == (t, s):
        shape = (1, 1, 1, t, s)
    elif attn_mask.shape == by_head:
        shape = (b, 1, heads, t, s)
    elif attn_mask.shape == by_branch:
        shape = (b, branches, heads, t, s)
    else:
        raise ValueError(
            f"attn_mask must have the shape {(t, s)}, {by_head} or {by_branch}, "
            f"not {tuple(attn_mask.shape)}"
        )
    return additive("attn_mask", attn_mask, dtype).reshape(shape)


def causal_mask(t: int, s: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """(t, s): no position sees a later one."""
    later = torch.ones(t, s, dtype=torch.bool, device=device).triu(1)
    return additive("the causal mask", later, dtype)
