"""Products of states with a weight that is laid out once: in floating point, or in int8."""

import warnings

import torch
import torch.nn.functional as F
from torch import Tensor

# PyTorch's libraries of int8 products, the fastest first.
_ENGINES = ("onednn", "x86", "fbgemm", "qnnpack")


class Product:
    """x (rows, in) → x·Wᵀ + bias (rows, out), with W (out, in) in its faster layout.

    On a CPU a product of few rows that widens runs up to twice as fast on the transposed weight.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.widens = weight.shape[0] > weight.shape[1]
        self.weight = weight.t().contiguous() if self.widens else weight.contiguous()
        self.bias = bias

    def __call__(self, states: Tensor) -> Tensor:
        if not self.widens:
            return F.linear(states, self.weight, self.bias)
        if self.bias is None:
            return torch.mm(states, self.weight)
        return torch.addmm(self.bias, states, self.weight)


class Int8Product(Product):
    """The same on a CPU with whole numbers of eight bits: a quarter of the memory, and faster.

    Weights are rounded once, with a scale for every output; states on their way in, with one scale
    for all of a call.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        weight = weight.float()
        scales = weight.abs().amax(1).clamp_min(1e-12) / 127
        with warnings.catch_warnings(), _fastest_engine():
            # PyTorch means to drop the type in which it takes such weights, not the product.
            warnings.filterwarnings("ignore", message=".*quantize_per_channel.*")
            rounded = torch.quantize_per_channel(
                weight, scales.double(), torch.zeros(len(weight), dtype=torch.long), 0, torch.qint8
            )
            self.packed = torch.ops.quantized.linear_prepack(
                rounded, None if bias is None else bias.float()
            )
        # Without these instructions the sums of two full products do not fit between steps.
        self.reduce_range = not torch.cpu._is_vnni_supported()

    def __call__(self, states: Tensor) -> Tensor:
        if not len(states):
            raise ValueError("an int8 product needs at least one row")
        return torch.ops.quantized.linear_dynamic(states, self.packed, self.reduce_range)


class _fastest_engine:
    """PyTorch prepares weights for the library that is chosen, for the whole process, meanwhile."""

    def __enter__(self) -> None:
        self.before = torch.backends.quantized.engine
        known = torch.backends.quantized.supported_engines
        torch.backends.quantized.engine = next(name for name in _ENGINES if name in known)

    def __exit__(self, *_: object) -> None:
        torch.backends.quantized.engine = self.before
