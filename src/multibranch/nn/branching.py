"""From one branch to many and back: proximal initialisation, folding and pruning.

`branch_out` is Section 3.3: every attention layer of a trained one-branch model is copied N_a
times. Since branches are averaged, the branched model computes exactly what the model computed.
`fold` writes the branches as the heads of a one-branch model, for engines that know no branches.
`prune` keeps some of the branches of a trained model.

All three take a MultiBranchTransformer, a MultiBranchEncoder or a single MultiBranchAttention, and
leave it as it was. Forward and backward hooks come along, as they do in a copy. `from_torch` makes
such a layer of torch's own attention.
"""

import copy
import math
import warnings
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from multibranch.nn.attention import MultiBranchAttention
from multibranch.nn.drop import branch_factor
from multibranch.nn.transformer import per_layer

Model = TypeVar("Model", bound=nn.Module)

EQUAL_FOR_EVER = (
    "the branches are equal, and with drop_branch and attention dropout at 0 they receive equal "
    "updates and stay equal for ever: set drop_branch above 0, or give noise"
)

# Where a module keeps its hooks, those of its state dict left out: they may know the shapes.
_HOOKS = (
    "_forward_hooks",
    "_forward_hooks_with_kwargs",
    "_forward_hooks_always_called",
    "_forward_pre_hooks",
    "_forward_pre_hooks_with_kwargs",
    "_backward_hooks",
    "_backward_pre_hooks",
)


def branch_out(
    model: Model, *, branches: int | Sequence[int], noise: float = 0.0, how: str = "error"
) -> Model:
    """Proximal initialisation: the same function, with `branches` copies of every attention branch.

    Args:
        model: a trained one-branch model.
        branches: N_a, one number or one for every block, the encoder's first.
        noise: deviation of normal noise on the weights of copies, which are branches equal to one
            before them, relative to each weight's own deviation. All others stay as they are. Above
            0 the function is only nearly the same.
        how: what to do with a layer that already has branches: "error", or "tile" to repeat them
            all (then `branches` must be a multiple of what the layer has).
    """
    if how not in ("error", "tile"):
        raise ValueError(f'how must be "error" or "tile", not {how!r}')
    if not 0 <= noise < math.inf:
        raise ValueError(f"noise must be a finite number of at least 0, not {noise}")
    wanted = per_layer("branches", branches, len(getattr(model, "blocks", [model])))
    if min(wanted, default=1) < 1:
        raise ValueError(f"branches must be at least 1, not {min(wanted)}")

    def copies(layer: MultiBranchAttention, number: int) -> MultiBranchAttention:
        branches = wanted[number]
        if layer.branches > 1 and how == "error":
            raise ValueError(
                f"the model already has {layer.branches} branches: branch out a one-branch model, "
                'or repeat its branches with how="tile"'
            )
        if branches % layer.branches:
            raise ValueError(
                f"N_a = {branches} cannot be made by repeating {layer.branches} branches: "
                "choose a multiple"
            )
        index = torch.arange(branches) % layer.branches
        branched = _with_branches(layer, index)
        # Identical branches, averaged, are each of them: only the released scale needs a factor.
        _scale_output(branched, _average(layer) / _average(branched))
        if noise:
            _add_noise(branched, noise)
        return branched

    branched = _replace_attention(model, copies)
    if not noise and not can_part(branched):
        warnings.warn(EQUAL_FOR_EVER, stacklevel=2)
    return branched


def can_part(model: nn.Module) -> bool:
    """Whether anything in training treats equal branches differently."""
    return all(
        layer.drop_branch > 0 or layer.dropout > 0
        for layer in model.modules()
        if isinstance(layer, MultiBranchAttention) and layer.branches > 1
    )


def from_torch(
    attention: nn.MultiheadAttention, *, drop_branch: float = 0.0, drop_kind: str = "branch"
) -> MultiBranchAttention:
    """The one-branch layer with the weights of torch's own attention: the same function.

    It is what `branch_out` makes branches of in a model that was trained with torch's layers.

    Args:
        attention: left as it was. Queries, keys and values must be as wide as the layer.
        drop_branch, drop_kind: as of MultiBranchAttention.
    """
    if type(attention) is not nn.MultiheadAttention:
        raise TypeError(
            f"this takes a torch.nn.MultiheadAttention, not a {type(attention).__name__}"
        )
    if attention.in_proj_weight is None:
        raise ValueError(
            "this attention has keys or values of another width than its queries (kdim, vdim), "
            "which no multi-branch attention has"
        )
    if attention.bias_k is not None or attention.add_zero_attn:
        raise ValueError(
            "this attention adds a key of its own (add_bias_kv or add_zero_attn), which no "
            "multi-branch attention does"
        )
    weight = attention.in_proj_weight
    layer = MultiBranchAttention(
        attention.embed_dim,
        attention.num_heads,
        drop_branch=drop_branch,
        drop_kind=drop_kind,
        dropout=attention.dropout,
        bias=attention.in_proj_bias is not None,
        batch_first=attention.batch_first,
        device=weight.device,
        dtype=weight.dtype,
    )
    pairs = (
        (layer.qkv_weight, weight),
        (layer.qkv_bias, attention.in_proj_bias),
        (layer.out_weight, attention.out_proj.weight.t()),
        (layer.out_bias, attention.out_proj.bias),
    )
    with torch.no_grad():
        for ours, theirs in pairs:
            if ours is not None:
                ours.copy_(theirs.reshape(ours.shape))
                ours.requires_grad_(theirs.requires_grad)
    return layer.train(attention.training)


def fold(model: Model) -> Model:
    """The same function as a one-branch model whose every layer has N_a·m heads of width d/m."""

    def folded(layer: MultiBranchAttention, _: int) -> MultiBranchAttention:
        one = _like(layer, branches=1, heads=layer.branches * layer.heads)
        one.drop_branch = 0.0
        scale = branch_factor(layer.branches, layer.branch_scale)
        with torch.no_grad():
            one.qkv_weight.copy_(layer.qkv_weight.flatten(1, 2).unsqueeze(1))
            one.out_weight.copy_(layer.out_weight.flatten(0, 1).unsqueeze(0) * scale)
            if layer.qkv_bias is not None and one.qkv_bias is not None:
                one.qkv_bias.copy_(layer.qkv_bias.flatten(1, 2).unsqueeze(1))
            if layer.out_bias is not None and one.out_bias is not None:
                one.out_bias.copy_(layer.out_bias.sum(0, keepdim=True) * scale)
        return one

    return _replace_attention(model, folded)


def prune(model: Model, *, keep: int | Sequence[int]) -> Model:
    """The model with fewer branches: the first `keep`, or those that `keep` lists, from 0.

    The branches that stay are averaged among themselves, so that pruning equal copies changes
    nothing.
    """

    def pruned(layer: MultiBranchAttention, _: int) -> MultiBranchAttention:
        kept = list(range(keep)) if isinstance(keep, int) else [int(branch) for branch in keep]
        wrong = [branch for branch in kept if not 0 <= branch < layer.branches]
        if wrong or not kept or len(set(kept)) < len(kept):
            raise ValueError(
                f"cannot keep branches {kept} of a layer whose branches are "
                f"0 to {layer.branches - 1}: list each at most once, and at least one"
            )
        fewer = _with_branches(layer, torch.tensor(kept))
        _scale_output(fewer, _average(layer) / _average(fewer))
        return fewer

    return _replace_attention(model, pruned)


def branch_similarity(model: nn.Module) -> dict[str, float]:
    """Mean cosine between the weights of each two branches, by attention layer.

    1 while the branches are copies of each other; drop-branch is there to make it fall. Layers of
    one branch are left out.
    """
    similarity = {}
    for name, layer in model.named_modules():
        if isinstance(layer, MultiBranchAttention) and layer.branches > 1:
            vectors = torch.cat(
                [
                    layer.qkv_weight.detach().transpose(0, 1).flatten(1),
                    layer.out_weight.detach().flatten(1),
                ],
                dim=1,
            ).float()
            unit = F.normalize(vectors, dim=1)
            cosine = unit @ unit.t()
            pairs = torch.triu_indices(layer.branches, layer.branches, offset=1)
            similarity[name] = float(cosine[pairs[0], pairs[1]].mean())
    return similarity


def _average(layer: MultiBranchAttention) -> float:
    """What the layer's scale makes of equal branches: 1 for the paper's, 1/N_a for the released."""
    return branch_factor(layer.branches, layer.branch_scale) * layer.branches


def _replace_attention(
    model: Model, change: Callable[[MultiBranchAttention, int], MultiBranchAttention]
) -> Model:
    """A copy of the model with every attention layer changed, and its settings brought in line.

    `change` is given a layer and the number of its block.
    """

    def in_place_of(layer: MultiBranchAttention, number: int) -> MultiBranchAttention:
        other = change(layer, number).train(layer.training)
        for name in _HOOKS:
            setattr(other, name, getattr(layer, name).copy())
        other._is_full_backward_hook = layer._is_full_backward_hook
        return other

    if isinstance(model, MultiBranchAttention):
        return in_place_of(model, 0)  # type: ignore[return-value]
    if isinstance(model, nn.MultiheadAttention):
        raise TypeError("this is torch's own attention: give what from_torch makes of it")
    if not hasattr(model, "blocks"):
        raise TypeError(
            "this takes a MultiBranchTransformer, a MultiBranchEncoder or a MultiBranchAttention, "
            f"not a {type(model).__name__}: change the attention layers of another model one by one"
        )
    changed: Any = copy.deepcopy(model)
    layers = []
    for number, block in enumerate(changed.blocks):
        for name in ("attention", "cross_attention"):
            layer = getattr(block, name, None)
            if layer is not None:
                setattr(block, name, in_place_of(layer, number))
        layers.append(block.attention)
    settings = changed.settings
    settings["branches"] = _one_or_all([layer.branches for layer in layers])
    settings["drop_branch"] = _one_or_all([layer.drop_branch for layer in layers])
    settings["heads"] = _one_or_all([layer.heads for layer in layers])
    usual = all(layer.head_width * layer.heads == layer.width for layer in layers)
    settings["head_width"] = None if usual else _one_or_all([layer.head_width for layer in layers])
    return changed


def _one_or_all(values: list) -> object:
    """A list of equal values as that value."""
    return values[0] if len(set(values)) == 1 else values


def _like(layer: MultiBranchAttention, *, branches: int, heads: int) -> MultiBranchAttention:
    """An attention layer with the same options, for other branches and heads."""
    if type(layer) is not MultiBranchAttention:
        raise TypeError(
            f"what {type(layer).__name__} adds to MultiBranchAttention would be lost: give a plain "
            "layer, without parametrizations"
        )
    other = MultiBranchAttention(
        layer.width,
        heads,
        branches=branches,
        drop_branch=layer.drop_branch,
        drop_kind=layer.drop_kind,
        dropout=layer.dropout,
        branch_scale=layer.branch_scale,
        bias=layer.qkv_bias is not None,
        head_width=layer.head_width,
        batch_first=layer.batch_first,
        device=layer.qkv_weight.device,
        dtype=layer.qkv_weight.dtype,
    )
    for name, parameter in other.named_parameters():
        parameter.requires_grad_(layer.get_parameter(name).requires_grad)
    return other


def _with_branches(layer: MultiBranchAttention, index: Tensor) -> MultiBranchAttention:
    """A layer whose branch i is branch index[i] of `layer`."""
    chosen = _like(layer, branches=len(index), heads=layer.heads)
    index = index.to(layer.qkv_weight.device)
    with torch.no_grad():
        chosen.qkv_weight.copy_(layer.qkv_weight[:, index])
        chosen.out_weight.copy_(layer.out_weight[index])
        if layer.qkv_bias is not None and chosen.qkv_bias is not None:
            chosen.qkv_bias.copy_(layer.qkv_bias[:, index])
        if layer.out_bias is not None and chosen.out_bias is not None:
            chosen.out_bias.copy_(layer.out_bias[index])
    return chosen


def _scale_output(layer: MultiBranchAttention, factor: float) -> None:
    if factor != 1:
        with torch.no_grad():
            layer.out_weight.mul_(factor)
            if layer.out_bias is not None:
                layer.out_bias.mul_(factor)


def _add_noise(layer: MultiBranchAttention, noise: float) -> None:
    qkv, out = layer.qkv_weight.detach(), layer.out_weight.detach()
    copies = [
        branch
        for branch in range(layer.branches)
        if any(
            torch.equal(qkv[:, branch], qkv[:, other]) and torch.equal(out[branch], out[other])
            for other in range(branch)
        )
    ]
    if copies:
        index = torch.tensor(copies, device=qkv.device)
        for weight, dimension in ((qkv, 1), (out, 0)):
            copied = weight.index_select(dimension, index)
            weight.index_add_(dimension, index, torch.randn_like(copied) * copied.std() * noise)
