"""R-Drop's consistency between two passes, and the norm of gradients.

Losses, this one as the cross-entropy of nn/kernels.py, are sums over target tokens: dividing by the
number of tokens of the whole update, whichever processes and accumulated batches they fall in,
makes many small batches equal one large one.
"""

import torch
import torch.nn.functional as F
from torch import Tensor


def consistency(first: Tensor, second: Tensor, targets: Tensor, *, padding: int) -> Tensor:
    """R-Drop: the mean of both Kullback-Leibler divergences, summed over the target tokens.

    first, second (…, V) are the logits of two passes over one batch that drew different dropout
    and different branches.
    """
    one = F.log_softmax(first.float().flatten(0, -2), dim=-1)
    other = F.log_softmax(second.float().flatten(0, -2), dim=-1)
    forward = F.kl_div(one, other, log_target=True, reduction="none").sum(-1)
    backward = F.kl_div(other, one, log_target=True, reduction="none").sum(-1)
    real = (targets.flatten() != padding).to(one.dtype)
    return ((forward + backward) / 2 * real).sum()


def gradient_norm(gradients: list[Tensor]) -> Tensor:
    """The norm of all gradients as one vector, a float32 scalar."""
    norms = torch._foreach_norm(gradients)
    return torch.linalg.vector_norm(torch.stack([norm.float() for norm in norms]))
