"""The Triton kernels as PyTorch operators, `torch.ops.multibranch.*`, with their gradients.

torch.compile meets one opaque node for each; what the kernels need is told by the arguments alone,
so a CUDA graph can hold every call. Importing this module registers the operators.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from multibranch.nn.drop import times
from multibranch.nn.plainly import BY_PRODUCTS, IN_REFERENCE, refuse_second_derivative
from multibranch.nn.triton_kernels import launch_backward, launch_cross_entropy, launch_forward

_INTERVALS = "Tensor key_start, Tensor key_end, Tensor query_start, Tensor query_end"
_EXTRAS = "Tensor? scale, float dropout, Tensor? seed"
_library = torch.library.Library("multibranch", "DEF")
_library.define(f"self_attention(Tensor qkv, {_INTERVALS}, {_EXTRAS}) -> (Tensor, Tensor)")
_library.define(
    f"self_attention_backward(Tensor grad, Tensor qkv, Tensor out, Tensor lse, {_INTERVALS}, "
    f"{_EXTRAS}) -> Tensor"
)
_library.define(
    f"cross_attention(Tensor q, Tensor kv, {_INTERVALS}, {_EXTRAS}) -> (Tensor, Tensor)"
)
_library.define(
    "cross_attention_backward(Tensor grad, Tensor q, Tensor kv, Tensor out, Tensor lse, "
    f"{_INTERVALS}, {_EXTRAS}) -> (Tensor, Tensor)"
)
_library.define(
    "smoothed_cross_entropy(Tensor states, Tensor weight, Tensor targets, float smoothing, "
    "int ignored, bool grad) -> (Tensor, Tensor)"
)


def _self_attention(
    qkv: Tensor, key_start: Tensor, key_end: Tensor, query_start: Tensor, query_end: Tensor,
    scale: Tensor | None, dropout: float, seed: Tensor | None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    q, k, v = qkv.unbind(1)
    return launch_forward(q, k, v, key_start, key_end, scale, dropout=dropout, seed=seed)


def _self_attention_backward(
    grad: Tensor, qkv: Tensor, out: Tensor, lse: Tensor,
    key_start: Tensor, key_end: Tensor, query_start: Tensor, query_end: Tensor,
    scale: Tensor | None, dropout: float, seed: Tensor | None,
) -> Tensor:  # fmt: skip
    q, k, v = qkv.unbind(1)
    gradient = torch.empty(qkv.shape, dtype=qkv.dtype, device=qkv.device)
    intervals = (key_start, key_end, query_start, query_end)
    dq, dk, dv = gradient.unbind(1)
    launch_backward(
        grad, q, k, v, out, lse, intervals, scale, (dq, dk, dv), dropout=dropout, seed=seed
    )
    return gradient


def _cross_attention(
    q: Tensor, kv: Tensor,
    key_start: Tensor, key_end: Tensor, query_start: Tensor, query_end: Tensor,
    scale: Tensor | None, dropout: float, seed: Tensor | None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    k, v = kv.unbind(1)
    return launch_forward(q, k, v, key_start, key_end, scale, dropout=dropout, seed=seed)


def _cross_attention_backward(
    grad: Tensor, q: Tensor, kv: Tensor, out: Tensor, lse: Tensor,
    key_start: Tensor, key_end: Tensor, query_start: Tensor, query_end: Tensor,
    scale: Tensor | None, dropout: float, seed: Tensor | None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    k, v = kv.unbind(1)
    dq = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    dkv = torch.empty(kv.shape, dtype=kv.dtype, device=kv.device)
    intervals = (key_start, key_end, query_start, query_end)
    dk, dv = dkv.unbind(1)
    launch_backward(
        grad, q, k, v, out, lse, intervals, scale, (dq, dk, dv), dropout=dropout, seed=seed
    )
    return dq, dkv


def _smoothed_cross_entropy(
    states: Tensor, weight: Tensor, targets: Tensor, smoothing: float, ignored: int, grad: bool
) -> tuple[Tensor, Tensor]:
    logits = torch.mm(states, weight.t())
    losses = launch_cross_entropy(
        logits, targets, smoothing=smoothing, ignored=ignored, differentiate=grad
    )
    return losses.sum(1), logits


def _fake_smoothed_cross_entropy(states: Tensor, weight: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    gradient = states.new_empty((states.shape[0], weight.shape[0]))
    return states.new_empty((2,), dtype=torch.float32), gradient


def _fake_attention(q: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    queries, heads, width = q.shape[0], q.shape[-2], q.shape[-1]
    return q.new_empty((queries, heads, width)), q.new_empty((heads, queries), dtype=torch.float32)


def _fake_cross_attention_backward(
    grad: Tensor, q: Tensor, kv: Tensor, *_: Any
) -> tuple[Tensor, Tensor]:
    return q.new_empty(q.shape), kv.new_empty(kv.shape)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    *tensors, scale, ctx.dropout, seed = inputs
    ctx.mark_non_differentiable(output[1])
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*tensors, *output, scale, seed)


def _self_attention_gradient(ctx: Any, grad: Tensor | None, _: Tensor | None) -> tuple[Any, ...]:
    if grad is None:
        return (None,) * 8
    refuse_second_derivative("this attention", instead=BY_PRODUCTS)
    qkv, *intervals, out, lse, scale, seed = ctx.saved_tensors
    backward = torch.ops.multibranch.self_attention_backward
    gradient = backward(grad, qkv, out, lse, *intervals, scale, ctx.dropout, seed)
    return gradient, *(None,) * 7


def _cross_attention_gradient(ctx: Any, grad: Tensor | None, _: Tensor | None) -> tuple[Any, ...]:
    if grad is None:
        return (None,) * 9
    refuse_second_derivative("this attention", instead=BY_PRODUCTS)
    q, kv, *intervals, out, lse, scale, seed = ctx.saved_tensors
    backward = torch.ops.multibranch.cross_attention_backward
    gradients = backward(grad, q, kv, out, lse, *intervals, scale, ctx.dropout, seed)
    return *gradients, *(None,) * 7


def _save_cross_entropy(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.mark_non_differentiable(output[1])
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(inputs[0], inputs[1], output[1])


def _smoothed_cross_entropy_gradient(
    ctx: Any, grad: Tensor | None, _: Tensor | None
) -> tuple[Any, ...]:
    if grad is None:
        return (None,) * 6
    refuse_second_derivative("this loss", instead=IN_REFERENCE)
    states, weight, gradient = ctx.saved_tensors
    scale = grad[0]
    d_weight = torch.mm(gradient.t(), states) * scale
    return torch.mm(gradient, weight) * scale, d_weight, None, None, None, None


for _name, _launch, _fake in (
    ("self_attention", _self_attention, _fake_attention),
    (
        "self_attention_backward",
        _self_attention_backward,
        lambda grad, qkv, *_: qkv.new_empty(qkv.shape),
    ),
    ("cross_attention", _cross_attention, _fake_attention),
    ("cross_attention_backward", _cross_attention_backward, _fake_cross_attention_backward),
    ("smoothed_cross_entropy", _smoothed_cross_entropy, _fake_smoothed_cross_entropy),
):
    _library.impl(_name, _launch, "CompositeExplicitAutograd")
    torch.library.register_fake(f"multibranch::{_name}", _fake, lib=_library)
for _name, _gradient, _setup in (
    ("self_attention", _self_attention_gradient, _save),
    ("cross_attention", _cross_attention_gradient, _save),
    ("smoothed_cross_entropy", _smoothed_cross_entropy_gradient, _save_cross_entropy),
):
    torch.library.register_autograd(
        f"multibranch::{_name}", _gradient, setup_context=_setup, lib=_library
    )


# -- Many models at once --------------------------------------------------------------------------
# torch.vmap over models whose weights are stacked: the packed batches of all models are one batch,
# whose sequences do not see each other. Every model has factors of its own for its heads.


def _models_first(models: int, dims: tuple[Any, ...], tensors: tuple[Any, ...]) -> list[Tensor]:
    """The tensors with the axis of models in front; what all models share is repeated."""
    return [
        tensor.expand(models, *tensor.shape) if dim is None else tensor.movedim(dim, 0)
        for tensor, dim in zip(tensors, dims)
    ]


def _attention_of_models(name: str, packed: int) -> Any:
    """The rule of an attention whose first `packed` arguments hold tokens."""

    def rule(info: Any, dims: tuple[Any, ...], *given: Any) -> tuple[Any, Any]:
        models, end = info.batch_size, packed + 4
        tokens = _models_first(models, dims[:packed], given[:packed])
        queries, keys = tokens[0].shape[1], tokens[-1].shape[1]
        model = torch.arange(models, dtype=torch.int32, device=tokens[0].device)[:, None]
        shifts = (model * keys, model * keys, model * queries, model * queries)
        intervals = _models_first(models, dims[packed:end], given[packed:end])
        scale, dropout, seed = given[end:]
        seed = None if seed is None else seed.flatten()[:1]
        out, lse = getattr(torch.ops.multibranch, name)(
            *(each.flatten(0, 1) for each in tokens),
            *((each + shift).flatten() for each, shift in zip(intervals, shifts)),
            None,
            dropout,
            seed,
        )
        out = out.unflatten(0, (models, queries))
        if scale is not None:
            (scale,) = _models_first(models, dims[end : end + 1], (scale,))
            out = times(out, scale[:, None, :, None])
        return (out, lse.unflatten(1, (models, queries))), (0, 1)

    return rule


def _cross_entropy_of_models(
    info: Any, dims: tuple[Any, ...], *given: Any
) -> tuple[Any, tuple[int, int]]:
    """Each model by itself: it has an output embedding of its own."""
    tensors = _models_first(info.batch_size, dims[:3], given[:3])
    smoothing, ignored, _ = given[3:]
    # Within vmap tensors do not say whether they need a gradient.
    extras = (smoothing, ignored, torch.is_grad_enabled())
    operator = torch.ops.multibranch.smoothed_cross_entropy
    results = [operator(*each, *extras) for each in zip(*tensors)]
    losses, gradients = zip(*results)
    return (torch.stack(losses), torch.stack(gradients)), (0, 0)


for _name, _rule in (
    ("self_attention", _attention_of_models("self_attention", 1)),
    ("cross_attention", _attention_of_models("cross_attention", 2)),
    ("smoothed_cross_entropy", _cross_entropy_of_models),
):
    torch.library.register_vmap(f"multibranch::{_name}", _rule, lib=_library)
