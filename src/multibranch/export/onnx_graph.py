"""A small writer of ONNX graphs, and the layers of our models in its terms.

Letters as in multibranch.nn; p is the number of target tokens read before. Tensors are the names
of nodes' outputs. Weights stand once, however often they are used.
"""

import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from multibranch.export.plain import Attention, FeedForward, Linear
from multibranch.nn.embedding import TokenEmbedding

Shape = list[str | int]  # of an input or output: sizes, and names where they may vary
OPSET = 17  # the first with LayerNormalization; onnxruntime reads it since 1.12
FILE_LIMIT = 1_900_000_000  # bytes: a protobuf file holds less than 2 GiB
_MASKED = -3.0e38  # what is added to the scores of what may not be seen


class Graph:
    """An ONNX graph as it is written, node by node."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.weights: dict[str, Any] = {}  # name → array
        self.inputs: list[Any] = []
        self.outputs: list[Any] = []
        self._names: dict[tuple[int, ...], str] = {}  # of weights, by where their data lies
        self._constants: dict[tuple[Any, torch.dtype], str] = {}
        self._kept: list[Tensor] = []  # alive, so that no other takes their place in memory

    # -- Nodes, weights, inputs and outputs -------------------------------------------------

    def op(self, kind: str, *inputs: str, **attributes: Any) -> str:
        """Add a node with one output."""
        from onnx import helper

        name = f"{kind}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, list(inputs), [name], name=name, **attributes))
        return name

    def weight(self, tensor: Tensor) -> str:
        """The name of a constant; one that is here already is not written again."""
        tensor = tensor.detach().contiguous()
        place = (tensor.data_ptr(), *tensor.shape)
        if place not in self._names:
            self._names[place] = f"weight_{len(self.weights)}"
            self.weights[self._names[place]] = tensor.numpy()
            self._kept.append(tensor)
        return self._names[place]

    def number(self, value: float) -> str:
        return self._constant(value, torch.float32)

    def whole_number(self, value: int) -> str:
        return self._constant(value, torch.int64)

    def whole(self, *values: int) -> str:
        """A vector of whole numbers."""
        return self._constant(values, torch.int64)

    def _constant(self, value: float | tuple[int, ...], dtype: torch.dtype) -> str:
        if (value, dtype) not in self._constants:
            self._constants[value, dtype] = self.weight(torch.tensor(value, dtype=dtype))
        return self._constants[value, dtype]

    def input(self, name: str, kind: str, shape: Shape) -> str:
        self.inputs.append(_value(name, kind, shape))
        return name

    def output(self, name: str, tensor: str, kind: str, shape: Shape) -> None:
        from onnx import helper

        self.nodes.append(helper.make_node("Identity", [tensor], [name], name=f"name_{name}"))
        self.outputs.append(_value(name, kind, shape))

    def save(self, path: Path) -> None:
        """Write the graph; weights beyond what a file can hold go into a file beside it."""
        import onnx
        from onnx import helper, numpy_helper

        weights = [numpy_helper.from_array(array, name) for name, array in self.weights.items()]
        graph = helper.make_graph(self.nodes, path.stem, self.inputs, self.outputs, weights)
        model = helper.make_model(
            graph,
            opset_imports=[helper.make_opsetid("", OPSET)],
            ir_version=8,
            producer_name="multibranch",
        )
        large = sum(array.nbytes for array in self.weights.values()) > FILE_LIMIT
        onnx.save_model(model, str(path), save_as_external_data=large, location=f"{path.name}.data")
        onnx.checker.check_model(str(path))

    # -- Layers -----------------------------------------------------------------------------

    def linear(self, states: str, layer: Linear) -> str:
        """states (…, in) → (…, out)"""
        product = self.op("MatMul", states, self.weight(layer.weight.t()))
        return self.op("Add", product, self.weight(layer.bias))

    def norm(self, states: str, norm: nn.LayerNorm) -> str:
        weights = self.weight(norm.weight), self.weight(norm.bias)
        return self.op("LayerNormalization", states, *weights, axis=-1, epsilon=norm.eps)

    def feed_forward(self, states: str, layer: FeedForward) -> str:
        hidden = self.linear(states, layer.inner)
        if layer.activation == "relu":
            hidden = self.op("Relu", hidden)
        elif layer.activation == "gelu":
            share = self.op("Erf", self.op("Mul", hidden, self.number(math.sqrt(0.5))))
            share = self.op("Add", share, self.number(1.0))
            hidden = self.op("Mul", self.op("Mul", hidden, self.number(0.5)), share)
        else:
            hidden = self.op("Mul", hidden, self.op("Sigmoid", hidden))
        if layer.up is not None:
            hidden = self.op("Mul", hidden, self.linear(states, layer.up))
        return self.linear(hidden, layer.outer)

    def heads(self, states: str, projection: Linear, layer: Attention) -> str:
        """Project states (b, t, d) to heads (b, h, t, w)."""
        projected = self.linear(states, projection)
        shape = self.whole(0, 0, layer.heads, layer.head_width)
        return self.op("Transpose", self.op("Reshape", projected, shape), perm=[0, 2, 1, 3])

    def attend(self, query: str, key: str, value: str, mask: str, layer: Attention) -> str:
        """Attention (b, h, t, w) to keys and values (b, h, s, w) → states (b, t, d).

        mask: added to the scores (b, h, t, s).
        """
        scores = self.op("MatMul", query, self.op("Transpose", key, perm=[0, 1, 3, 2]))
        scores = self.op("Mul", scores, self.number(layer.head_width**-0.5))
        shares = self.op("Softmax", self.op("Add", scores, mask), axis=-1)
        attended = self.op("Transpose", self.op("MatMul", shares, value), perm=[0, 2, 1, 3])
        shape = self.whole(0, 0, layer.heads * layer.head_width)
        return self.linear(self.op("Reshape", attended, shape), layer.out)

    def embed(self, ids: str, positions: str, embedding: TokenEmbedding) -> str:
        """ids (b, t), positions (t,) → states (b, t, d)"""
        vectors = self.op("Gather", self.weight(embedding.vectors), ids)
        scaled = self.op("Mul", vectors, self.number(math.sqrt(embedding.width)))
        if hasattr(embedding, "positions"):
            last = self.whole(embedding.max_length - 1)
            places = self.op(
                "Gather", self.weight(embedding.positions), self.op("Min", positions, last)
            )
        else:
            column = self.op("Unsqueeze", positions, self.whole(1))
            angles = self.op("Cast", column, to=1)  # to float32
            angles = self.op("Mul", angles, self.weight(embedding.frequency.float()))
            places = self.op("Concat", self.op("Sin", angles), self.op("Cos", angles), axis=-1)
        return self.op("Add", scaled, places)

    def scores(self, states: str, vectors: Tensor) -> str:
        """states (b, t, d) against vectors (V, d) → (b, t, V)

        As one product of matrices: so the vectors can be those that embed, not a transposed copy.
        """
        flat = self.op("Reshape", states, self.whole(-1, vectors.shape[1]))
        logits = self.op("Gemm", flat, self.weight(vectors), transB=1)
        leading = self.op("Slice", self.op("Shape", states), self.whole(0), self.whole(2))
        shape = self.op("Concat", leading, self.whole(vectors.shape[0]), axis=0)
        return self.op("Reshape", logits, shape)

    # -- Lengths and masks ------------------------------------------------------------------

    def length(self, tensor: str, axis: int) -> str:
        """The size of one dimension, as a scalar."""
        return self.op("Gather", self.op("Shape", tensor), self.whole_number(axis))

    def range(self, start: str, end: str) -> str:
        return self.op("Range", start, end, self.whole_number(1))

    def seen(self, allowed: str) -> str:
        """A boolean tensor as what to add to scores: 0 where it is True."""
        return self.op("Where", allowed, self.number(0.0), self.number(_MASKED))


def _value(name: str, kind: str, shape: Shape) -> Any:
    from onnx import TensorProto, helper

    return helper.make_tensor_value_info(name, getattr(TensorProto, kind), shape)
