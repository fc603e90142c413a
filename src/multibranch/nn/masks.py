"""What `torch.nn.MultiheadAttention` is given: states of one batch, and masks.

There a True in a boolean mask forbids attention, and a float mask is added to the scores. Here all
masks become one, of the second kind.
"""

import torch
from torch import Tensor


def check_inputs(
    query: Tensor, key: Tensor, value: Tensor, width: int, *, batch_first: bool
) -> None:
    """Raise ValueError unless they are (b, t, d), (b, s, d) and (b, s, d), or all without a batch.

    Other shapes would be repeated along the batch, or read beyond their ends.
    """
    batch = 0 if batch_first else 1
    if query.dim() not in (2, 3) or not query.dim() == key.dim() == value.dim():
        wrong = "must all have three axes, or two where there is no batch"
    elif not width == query.shape[-1] == key.shape[-1] == value.shape[-1]:
        wrong = f"must all be {width} wide, as the layer is"
    elif key.shape != value.shape:
        wrong = "must have as many keys as values"
    elif query.dim() == 3 and query.shape[batch] != key.shape[batch]:
        wrong = f"must be of one batch, axis {batch} (batch_first is {batch_first})"
    else:
        return
    shapes = ", ".join(str(tuple(states.shape)) for states in (query, key, value))
    raise ValueError(f"query, key and value {wrong}; theirs are {shapes}")


def combined(
    query: Tensor,
    key: Tensor,
    key_padding_mask: Tensor | None,
    attn_mask: Tensor | None,
    *,
    causal: bool,
    fused: bool,
    heads: tuple[int, int],
    active: slice | list[int],
) -> Tensor | None:
    """All masks as one to add to the scores, broadcastable to (b, h, t, s), or None.

    Args:
        query, key: (b, t, d), (b, s, d).
        causal: no position sees a later one; an attn_mask, where there is one, says so itself.
        fused: whether a kernel attends, which needs no causal mask where there is no other.
        heads: N_a, and m.
        active: the branches that are computed.
    """
    b, t, s = query.shape[0], query.shape[1], key.shape[1]
    branches, of_branch = heads
    mask = None
    if key_padding_mask is not None:
        mask = _padding_mask(key_padding_mask, b, s, query.dtype)
    if attn_mask is not None:
        added = _attention_mask(
            attn_mask, b, t, s, branches=branches, heads=of_branch, dtype=query.dtype
        )
        if added.shape[1:3] == (1, 1):
            added = added.squeeze(1)
        else:  # it differs by head: one mask for every head of every active branch
            added = added.expand(-1, branches, of_branch, -1, -1)
            added = added[:, active].flatten(1, 2)
        mask = added if mask is None else mask + added
    elif causal and (mask is not None or not fused):
        later = _causal_mask(t, s, query.dtype, query.device)
        mask = later if mask is None else mask + later
    return mask


def _additive(name: str, mask: Tensor, dtype: torch.dtype) -> Tensor:
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


def _padding_mask(key_padding_mask: Tensor, b: int, s: int, dtype: torch.dtype) -> Tensor:
    """key_padding_mask (b, s) as (b, 1, 1, s)."""
    if key_padding_mask.shape != (b, s):
        raise ValueError(
            f"key_padding_mask must have the shape {(b, s)} (batch, source length), "
            f"not {tuple(key_padding_mask.shape)}"
        )
    return _additive("key_padding_mask", key_padding_mask, dtype)[:, None, None, :]


def _attention_mask(
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
    return _additive("attn_mask", attn_mask, dtype).reshape(shape)


def _causal_mask(t: int, s: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """(t, s): no position sees a later one."""
    later = torch.ones(t, s, dtype=torch.bool, device=device).triu(1)
    return _additive("the causal mask", later, dtype)
