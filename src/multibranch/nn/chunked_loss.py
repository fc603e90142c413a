"""The label-smoothed loss of a large vocabulary on a CPU, some rows at a time.

The logits of a whole batch are tens of megabytes, walked through a dozen times by the loss and its
gradient. Those of some rows stay in the processor's cache, become their own gradient there, and are
gone when the next ones come: what is kept are the gradients of states and weight.
"""

from typing import Any

import torch
from torch import Tensor

from multibranch.nn.linear import linear, weight_gradient
from multibranch.nn.plainly import IN_REFERENCE, refuse_second_derivative

_CHUNK = 2**20  # logits at a time
_FEWEST = 64  # rows that a product is still fast for


class ChunkedCrossEntropy(torch.autograd.Function):
    """states (n, d), weight (V, d), targets (n,) → the smoothed loss, and the plain one, as sums.

    The arguments of `kernels.smoothed_cross_entropy`; only the first result has a gradient.
    """

    @staticmethod
    def forward(
        ctx: Any,
        states: Tensor,
        weight: Tensor,
        targets: Tensor,
        smoothing: float,
        ignore_index: int,
        differentiate: bool,
    ) -> tuple[Tensor, Tensor]:
        real = torch.nonzero(targets != ignore_index).flatten()
        some = len(real) < len(targets)
        rows, wanted = (states[real], targets[real]) if some else (states, targets)
        wide = torch.promote_types(states.dtype, torch.float32)
        vocabulary = weight.shape[0]
        sums = torch.zeros(2, dtype=wide)  # of log-probabilities: of the targets, of all tokens
        of_rows = torch.empty_like(rows) if differentiate else rows
        of_weight = torch.zeros(weight.shape[::-1], dtype=wide) if differentiate else sums
        each = max(_FEWEST, _CHUNK // vocabulary)
        for part in range(0, len(rows), each):
            few = slice(part, part + each)
            logits = linear(rows[few], weight).to(wide)
            logs, target = logits.log_softmax(-1), wanted[few, None]
            sums[0] += logs.gather(1, target).sum()
            sums[1] += logs.mean(-1).sum()
            if differentiate:
                gradient = logs.exp_().sub_(smoothing / vocabulary)
                taken = gradient.new_full((1,), smoothing - 1).expand(target.shape)
                gradient = gradient.scatter_add_(1, target, taken).to(weight.dtype)
                of_rows[few] = linear(gradient, weight.t())
                of_weight += weight_gradient(gradient, rows[few])
        if differentiate:
            if some:
                of_rows = torch.zeros_like(states).index_copy_(0, real, of_rows)
            ctx.save_for_backward(of_rows, of_weight.t().to(weight.dtype))
        plain = -sums[0]
        ctx.mark_non_differentiable(plain)
        return (1 - smoothing) * plain - smoothing * sums[1], plain

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        refuse_second_derivative("this loss", instead=IN_REFERENCE)
        of_rows, of_weight = ctx.saved_tensors
        return of_rows * grad, (of_weight * grad).contiguous(), None, None, None, None
