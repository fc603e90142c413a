"""First weights, drawn at random; none for the device meta, on which there are no numbers.

What PyTorch draws there it draws in Python, whose import takes longer than a model takes to load.
"""

from torch import Tensor, nn


def draw_uniform(weight: Tensor, bound: float) -> None:
    """Fill with numbers from -bound to bound."""
    if not weight.is_meta:
        nn.init.uniform_(weight, -bound, bound)


def draw_normal(weight: Tensor, deviation: float) -> None:
    """Fill with numbers around 0."""
    if not weight.is_meta:
        nn.init.normal_(weight, std=deviation)
