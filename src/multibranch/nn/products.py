"""Products of states with a weight that is laid out once: in floating point, or in int8."""

import threading
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from multibranch.nn import int8_products
from multibranch.nn.linear import prefers_onednn

Multiply = Callable[[Tensor], Tensor]  # states (rows, in) → (rows, out)

# PyTorch's libraries of int8 products, in the order of preference. Which one weights are prepared
# for is a setting of the whole process: one thread at a time.
_WIDENING = ("onednn", "x86", "fbgemm", "qnnpack")
_NARROWING = ("fbgemm", "x86", "onednn", "qnnpack")
_FEW = 32  # rows
_MANY = 320  # rows that oneDNN lays a weight out for; it takes any number
_PREPARING = threading.Lock()


class Product:
    """x (rows, in) → x·Wᵀ + bias (rows, out), with W (out, in) in its faster layout.

    relu: whether negative results become 0. In float32 on a CPU oneDNN lays the weight out where it
    is the faster library; elsewhere a product of few rows that widens runs up to twice as fast on
    the transposed weight.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, *, relu: bool = False) -> None:
        self.bias, self.relu = None if bias is None else bias.contiguous(), relu
        self.widens = weight.shape[0] > weight.shape[1]
        fits = weight.device.type == "cpu" and weight.dtype == torch.float32
        self.by_onednn = fits and prefers_onednn()
        if self.by_onednn:
            self.weight = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), _MANY)
        else:
            self.weight = weight.t().contiguous() if self.widens else weight.contiguous()

    def __call__(self, states: Tensor) -> Tensor:
        if self.by_onednn:
            then = "relu" if self.relu else "none"
            output: Tensor = torch.ops.mkldnn._linear_pointwise(
                states, self.weight, self.bias, then, [], ""
            )
            return output
        output = self._product(states)
        return F.relu_(output) if self.relu else output

    def _product(self, states: Tensor) -> Tensor:
        if not self.widens:
            return F.linear(states, self.weight, self.bias)
        if self.bias is None:
            return torch.mm(states, self.weight)
        return torch.addmm(self.bias, states, self.weight)


class Int8Product:
    """The same on a CPU with whole numbers of eight bits: a quarter of the memory, and faster.

    Weights are rounded once, with a scale for every output; float32 states on their way in, by our
    own kernel every row by itself, by PyTorch's with one scale for all rows of a call. Sums that
    might not fit into 32 bits stay float32.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, *, relu: bool = False) -> None:
        if weight.device.type != "cpu" or weight.dtype != torch.float32:
            where = f"{weight.dtype} on {weight.device.type}"
            raise ValueError(f"int8 is made of float32 on a CPU, not of {where}")
        scales = weight.abs().amax(1).clamp_min(1e-12) / 127
        self.multiply: Multiply
        if weight.shape[1] > int8_products.MOST_INPUTS:
            self.multiply = Product(weight, bias, relu=relu)
        elif int8_products.library() is not None:
            rounded = (weight / scales[:, None]).round().to(torch.int8)
            self.multiply = int8_products.RowProduct(rounded, scales, bias, relu=relu)
        else:
            self.multiply = PyTorchInt8Product(weight, scales, bias, relu=relu)

    def __call__(self, states: Tensor) -> Tensor:
        if not len(states):
            raise ValueError("an int8 product needs at least one row")
        return self.multiply(states)


class PyTorchInt8Product:
    """PyTorch's product in eight bits, which rounds its input itself.

    oneDNN multiplies faster where a product widens, FBGEMM where it narrows, and has less to do
    before and after: with few rows it is the faster one for both.
    """

    def __init__(self, weight: Tensor, scales: Tensor, bias: Tensor | None, *, relu: bool) -> None:
        zeros = torch.zeros(len(weight), dtype=torch.long)
        with _PREPARING, warnings.catch_warnings():
            # PyTorch means to drop the type in which it takes such weights, not the product.
            warnings.filterwarnings("ignore", message=".*quantize_per_channel.*")
            rounded = torch.quantize_per_channel(weight, scales.double(), zeros, 0, torch.qint8)
            self.few = self.many = _prepared(rounded, bias, _engine(_NARROWING))
            if weight.shape[0] > weight.shape[1]:
                self.many = _prepared(rounded, bias, _engine(_WIDENING))
        # Without these instructions pairs of eight-bit products are summed in sixteen bits.
        self.reduce_range = not torch.cpu._is_vnni_supported()
        self.relu = relu

    def __call__(self, states: Tensor) -> Tensor:
        packed = self.few if len(states) < _FEW else self.many
        output = torch.ops.quantized.linear_dynamic(states, packed, self.reduce_range)
        return F.relu_(output) if self.relu else output


def _prepared(rounded: Tensor, bias: Tensor | None, engine: str) -> Any:
    """The weights as a library lays them out."""
    before = torch.backends.quantized.engine
    torch.backends.quantized.engine = engine
    try:
        return torch.ops.quantized.linear_prepack(rounded, bias)
    finally:
        torch.backends.quantized.engine = before


def _engine(preferred: Sequence[str]) -> str:
    """The library that int8 weights are prepared for."""
    known = torch.backends.quantized.supported_engines
    for name in preferred:
        if name in known:
            return name
    raise RuntimeError("this build of PyTorch has no int8 products: choose another precision")
