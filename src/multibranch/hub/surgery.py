"""The operation itself: exchange a model's attention layers, and set what training drops."""

import warnings
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import nn

from multibranch.errors import UserError
from multibranch.hub.families import Attention, Family, blocks, family_of, find, replace
from multibranch.hub.layers import (
    BranchedAttention,
    BranchedBlock,
    BridgedAttention,
    DroppedFirst,
    DroppedSecond,
    become,
)
from multibranch.nn import MultiBranchAttention
from multibranch.nn import branch_out as branch_out_layer


@dataclass(frozen=True)
class Branching:
    """How a model is branched out; the record of it in a configuration."""

    family: str
    branches: int = 2
    drop_branch: float = 0.3
    drop_ffn: float = 0.3
    layer_drop: float = 0.0

    def __post_init__(self) -> None:
        if type(self.branches) is not int:
            raise UserError(f"branches must be a whole number, not {self.branches!r}")
        if self.branches < 1:
            raise UserError(f"branches must be at least 1, not {self.branches}")
        for name in ("drop_branch", "drop_ffn", "layer_drop"):
            rate = getattr(self, name)
            if type(rate) not in (int, float):
                raise UserError(f"{name} must be a number, not {rate!r}")
            if not 0 <= rate < 1:
                raise UserError(f"{name} must be at least 0 and less than 1, not {rate}")

    @classmethod
    def read(cls, record: Any) -> "Branching":
        """From the record in a configuration; one that is missing or damaged is a UserError."""
        known = [field.name for field in fields(cls)]
        if not isinstance(record, dict) or "family" not in record or not {*record} <= {*known}:
            raise UserError(
                'a branched model\'s configuration says under "multibranch" how it was branched '
                f"out, {', '.join(known)}: not {record!r}"
            )
        return cls(**record)


def operate(model: nn.Module, branching: Branching, *, noise: float = 0.0) -> None:
    """Branch out, in place, every block of the model that is not branched out yet."""
    family = family_of(branching.family)
    for block in blocks(model, family):
        for place in family.attention:
            if find(block, place.core) is not None:
                _exchange(block, place, branching, noise)
        first, second = (block.get_submodule(path) for path in family.feed_forward)
        become(first, DroppedFirst).drop_branch = branching.drop_ffn
        become(second, DroppedSecond).drop_branch = branching.drop_ffn
        _make_droppable(block, family, branching.layer_drop)


def _make_droppable(block: nn.Module, family: Family, layer_drop: float) -> None:
    become(block, BranchedBlock)
    block.layer_drop = layer_drop  # type: ignore[assignment]
    block.returns_tuple = family.block_returns_tuple  # type: ignore[assignment]


def _exchange(block: nn.Module, place: Attention, branching: Branching, noise: float) -> None:
    """Give an attention module its branches in the place of its projections."""
    core = block.get_submodule(place.core)
    parts = [core.get_submodule(name) for name in (place.query, place.key, place.value)]
    output = block.get_submodule(place.output)
    for part in (*parts, output):
        _check_copied(part)
    layer = _one_branch(parts, output, heads=getattr(core, place.heads), dropout=_dropout(core))
    layer.drop_branch = branching.drop_branch
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # branch_out warns of equal branches once, not for each
        layer = branch_out_layer(layer, branches=branching.branches, noise=noise)
    for name in (place.query, place.key, place.value):
        delattr(core, name)
    if place.output.startswith(f"{place.core}."):
        delattr(core, place.output.removeprefix(f"{place.core}."))
    else:
        replace(block, place.output, nn.Identity())
    layer = become(layer.train(core.training), BridgedAttention)
    become(core, BranchedAttention).branched = layer


def _check_copied(part: nn.Module) -> None:
    """Refuse a projection that branches cannot copy: one in eight bits, or with an adapter."""
    if not isinstance(part, nn.Linear) or not part.weight.is_floating_point():
        raise UserError(
            f"an attention layer has a projection of the class {type(part).__name__}, of which "
            "branches cannot be copies: branch out the model before it is quantised or adapted"
        )


def _one_branch(
    parts: list[nn.Module], output: nn.Module, *, heads: int, dropout: float
) -> MultiBranchAttention:
    """The four projections as an attention layer of ours with one branch."""
    first = parts[0]
    assert isinstance(first, nn.Linear) and isinstance(output, nn.Linear)
    layer = MultiBranchAttention(
        first.in_features,
        heads,
        dropout=dropout,
        bias=first.bias is not None,
        head_width=first.out_features // heads,
        batch_first=True,
        device=first.weight.device,
        dtype=first.weight.dtype,
    )
    with torch.no_grad():
        for number, part in enumerate(parts):
            layer.qkv_weight[number, 0].copy_(part.weight)  # type: ignore[arg-type]
            if layer.qkv_bias is not None:
                layer.qkv_bias[number, 0].copy_(part.bias)  # type: ignore[arg-type]
        layer.out_weight[0].copy_(output.weight.t())
        if layer.out_bias is not None:
            layer.out_bias[0].copy_(output.bias)
    # What was frozen stays frozen; three projections in one tensor where all of them were.
    for name, linears in (("qkv", parts), ("out", [output])):
        for kind in ("weight", "bias"):
            ours = getattr(layer, f"{name}_{kind}")
            if ours is not None:
                ours.requires_grad_(any(getattr(each, kind).requires_grad for each in linears))
    return layer


def _dropout(core: nn.Module) -> float:
    """The dropout on the attention weights, kept as a number or as a module."""
    dropout = core.dropout
    return dropout.p if isinstance(dropout, nn.Dropout) else float(dropout)  # type: ignore[arg-type]
