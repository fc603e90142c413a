"""Branch out a pretrained model of `transformers` (the paper's Section 6)."""

import copy
import math
import os
import warnings
from typing import Any

import transformers
from torch import nn
from transformers import AutoModel, PreTrainedModel

from multibranch.directory import MODEL_TYPE
from multibranch.errors import UserError, counted
from multibranch.hub.backbone import ask_hub, load_backbone, load_config
from multibranch.hub.families import blocks, family_of
from multibranch.hub.registry import PREFIX, config_class, model_class
from multibranch.hub.surgery import Branching, operate
from multibranch.nn import MultiBranchAttention, can_part
from multibranch.nn.branching import EQUAL_FOR_EVER


def branch_out(
    model_or_name: PreTrainedModel | str | os.PathLike,
    branches: int = 2,
    drop_branch: float = 0.3,
    *,
    drop_ffn: float | None = None,
    layer_drop: float = 0.0,
    noise: float = 0.0,
    auto_class: Any = None,
    **load: Any,
) -> PreTrainedModel:
    """The model with `branches` copies of every attention layer: the same function, to be tuned.

    The result is a model of `transformers` like the one given: it trains with its Trainer, runs in
    its pipelines, and what `save_pretrained` writes is read by `from_pretrained` and by the Auto
    classes once `multibranch.hub` is imported. The model given is left as it was.

    Args:
        model_or_name: a model of a supported family (see `multibranch.hub.FAMILIES`), or where one
            is: a folder, an installed package that contains one, or a name to be fetched.
        branches: N_a. With 1 the attention keeps one branch, for LayerDrop by itself.
        drop_branch: ρ of the attention layers while training.
        drop_ffn: ρ of the feed-forward layers; as drop_branch unless given.
        layer_drop: the probability with which LayerDrop leaves out each block while training.
        noise: deviation of normal noise on the copies, relative to each weight's own.
        auto_class: with a name, the Auto class to load it with, such as
            AutoModelForSequenceClassification; the class that the model was saved as unless given.
        load: with a name, further arguments of `from_pretrained`.
    """
    if type(noise) not in (int, float) or not 0 <= noise < math.inf:
        raise UserError(f"noise must be a number of at least 0, not {noise!r}")
    if isinstance(model_or_name, PreTrainedModel):
        passed_over = [*([] if auto_class is None else ["auto_class"]), *load]
        if passed_over:
            raise TypeError(f"branch_out of a model takes no argument {', '.join(passed_over)}")
        check_unbranched(model_or_name, model_or_name.config.model_type)
        family_of(model_or_name.config.model_type)
        model = copy.deepcopy(model_or_name)
    elif isinstance(model_or_name, nn.Module):
        raise UserError(
            f"a {type(model_or_name).__name__} is no model of transformers: our own layers and "
            "models are branched out by multibranch.nn.branch_out, and torch's attention too, once "
            "multibranch.nn.from_torch has made a layer of ours of it"
        )
    else:
        model = _load(model_or_name, auto_class, load)
    branching = Branching(
        family=model.config.model_type,
        branches=branches,
        drop_branch=drop_branch,
        drop_ffn=drop_branch if drop_ffn is None else drop_ffn,
        layer_drop=layer_drop,
    )
    if next(blocks(model, family_of(branching.family)), None) is None:
        raise UserError(
            f"{type(model).__name__} has none of the attention layers that models of the family "
            f"{branching.family!r} have: it cannot be branched out"
        )
    operate(model, branching, noise=noise)
    _adopt(model, branching)
    if not noise and not can_part(model):
        warnings.warn(EQUAL_FOR_EVER, stacklevel=2)
    return model


def check_unbranched(model: nn.Module | None, model_type: str) -> None:
    """Refuse a model that has branches already, or is one of ours."""
    if model_type == MODEL_TYPE:
        raise UserError(
            "this model is one of multibranch's own: multibranch.nn.branch_out branches out what "
            "it has in `model`, and `multibranch branch` a directory of one that writes text"
        )
    layers = [] if model is None else list(model.modules())
    branched = [layer for layer in layers if isinstance(layer, MultiBranchAttention)]
    if branched or model_type.startswith(PREFIX.rstrip("-")):
        many = f" with {counted(branched[0].branches, 'branch', 'branches')}" if branched else ""
        raise UserError(
            f"this model is a multi-branch model already{many}: branch out the model it was made "
            "from, or train this one as it is"
        )


def _adopt(model: PreTrainedModel, branching: Branching) -> None:
    """Make the model an instance of its branched class, and record the branching."""
    config = model.config
    config.__class__ = config_class(branching.family)
    config.multibranch = vars(branching).copy()
    if config._attn_implementation not in ("eager", "sdpa"):
        model.set_attn_implementation("sdpa" if model._supports_sdpa else "eager")
    for module in model.modules():
        if isinstance(module, PreTrainedModel):
            base: Any = type(module)
            module.__class__ = model_class(base)
    config.architectures = [type(model).__name__]


def _load(name: str | os.PathLike, auto_class: Any, load: dict[str, Any]) -> PreTrainedModel:
    if auto_class is not None and not hasattr(auto_class, "from_pretrained"):
        raise TypeError(f"auto_class must be a class such as AutoModel, not {auto_class!r}")
    if "local_files_only" not in load:
        load = {**load, **ask_hub(name)}
    asked = {key: value for key, value in load.items() if key == "local_files_only"}
    config = load_config(name, **asked)
    check_unbranched(None, config.model_type)
    family_of(config.model_type)
    if auto_class is None:
        saved_as = (config.architectures or [""])[0]
        auto_class = getattr(transformers, saved_as, AutoModel)
    return load_backbone(name, auto_class, **load)
