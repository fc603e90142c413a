"""Counting the parameters of a configuration, by place and by kind, without allocating them."""

import inspect
import math
from pathlib import Path
from typing import Any

import torch

from multibranch import configuration
from multibranch.errors import UserError, nearest
from multibranch.nn import MultiBranchAttention, MultiBranchFeedForward, MultiBranchTransformer

PLACES = ("embeddings", "encoder", "decoder")
KINDS = ("embeddings", "attention", "feed_forward", "norms")


def read_model_section(path: Path) -> dict[str, Any]:
    """The `model:` section of a configuration file: keyword arguments of the model."""
    section = configuration.peek(path, "model")
    if not isinstance(section, dict):
        raise UserError(f"{path} has no section `model:` with the model's settings; add one.")
    if "backbone" in section:
        raise UserError(
            f"{path} branches a pretrained encoder out, whose size is not in the file: this counts "
            "models that a file describes in full"
        )
    known = list(inspect.signature(MultiBranchTransformer).parameters)
    for name in section:
        if name not in known:
            near = nearest(str(name), known)
            hint = f"did you mean {near}?" if near else f"known are {', '.join(known)}."
            raise UserError(f"{path}: model.{name} is no setting of the model; {hint}")
        if isinstance(section[name], int):
            configuration.check_range(f"{path}: model.{name}", section[name], (0, math.inf))
    return section


def count_parameters(**settings: Any) -> dict[str, dict[str, int]]:
    """{place: {kind: parameters}} of the `MultiBranchTransformer` with these settings."""
    with torch.device("meta"):
        model = MultiBranchTransformer(**settings)
    counts = {place: dict.fromkeys(KINDS, 0) for place in PLACES}
    for prefix, module in model.named_modules():
        place = prefix.split(".")[0].split("_")[0]
        kind = _kind(module)
        for parameter in module.parameters(recurse=False):
            where = place if kind != "embeddings" else "embeddings"
            counts[where][kind] += parameter.numel()
    return counts


def _kind(module: torch.nn.Module) -> str:
    if isinstance(module, MultiBranchAttention):
        return "attention"
    if isinstance(module, MultiBranchFeedForward):
        return "feed_forward"
    if isinstance(module, torch.nn.LayerNorm):
        return "norms"
    return "embeddings"
