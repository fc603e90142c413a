"""A model's first weights: drawn anew, or those of a trained model, branched out."""

import warnings
from pathlib import Path
from typing import Any

import torch

from multibranch.directory import load_model, load_text
from multibranch.errors import UserError
from multibranch.nn import MultiBranchTransformer, branch_out, branch_similarity, can_part
from multibranch.text import TextPipeline
from multibranch.text.pipeline import SIDES
from multibranch.training.config import Config

# What may differ between a trained model and the one that starts from it.
FREE = (
    "branches",
    "drop_branch",
    "drop_ffn",
    "drop_kind",
    "dropout",
    "attention_dropout",
    "activation_dropout",
    "max_length",
)
BY_LAYER = ("branches", "ffn_branches")


def first_model(
    config: Config, text: TextPipeline, *, resumed: bool = False
) -> MultiBranchTransformer:
    """The model that training starts with, float32 on the CPU.

    resumed: its weights will come from a checkpoint; the model it began with may be gone by now.
    """
    settings = config.model.settings(text.source_size, text.target_size)
    anew = config.train.init_from is None and not resumed
    if anew and config.model.share_embeddings == "all" and not text.shared:
        raise UserError(
            "model.share_embeddings: all is for a joint vocabulary, and in these data each side "
            "has one of its own: set it to target"
        )
    try:
        torch.manual_seed(config.train.seed)
        model = MultiBranchTransformer(**settings)
    except ValueError as error:
        raise UserError(f"model: {error}") from None
    if config.train.init_from is not None and not resumed:
        start_from(model, Path(config.train.init_from), text, noise=config.train.init_noise)
    return model


def start_from(
    model: MultiBranchTransformer, folder: Path, text: TextPipeline, *, noise: float = 0.0
) -> None:
    """Proximal initialisation: give `model` the weights of a model directory, branched out."""
    trained = load_model(folder)
    _check_text(folder, text)
    _check_settings(folder, trained.settings, model.settings)
    branches, had = (_by_layer(each.settings, "branches") for each in (model, trained))
    if branches != had or noise:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # it speaks of the trained model's drop_branch
                trained = branch_out(trained, branches=branches, noise=noise, how="tile")
        except ValueError as error:
            raise UserError(f"train.init_from: {error}") from None
    model.load_state_dict(trained.state_dict())
    copied = branches != had or max(branch_similarity(model).values(), default=0.0) > 1 - 1e-6
    if copied and not noise and not can_part(model):
        warnings.warn(
            "model.drop_branch and model.attention_dropout are 0: the copied branches would "
            "receive equal updates and stay equal for ever; set train.init_noise above 0",
            stacklevel=2,
        )


def _check_text(folder: Path, text: TextPipeline) -> None:
    theirs = load_text(folder)
    if any(theirs.tokenizer(side).to_str() != text.tokenizer(side).to_str() for side in SIDES):
        raise UserError(
            f"train.init_from: {folder} was trained with another vocabulary than that of the "
            "prepared data: prepare the data with the same tokenizer"
        )


def _check_settings(folder: Path, theirs: dict[str, Any], ours: dict[str, Any]) -> None:
    fixed = [name for name in ours if name not in FREE]
    if ours["positions"] == "learned":
        fixed.append("max_length")
    for name in fixed:
        if _by_layer(theirs, name) != _by_layer(ours, name):
            raise UserError(
                f"train.init_from: {folder} has {name} {theirs.get(name)}, this configuration "
                f"{ours[name]}: set model.{name} to {theirs.get(name)}"
            )


def _by_layer(settings: dict[str, Any], name: str) -> Any:
    """A setting; where it may differ by layer, as a list: 2 is [2, 2] for two layers."""
    value = settings.get(name)
    if name not in BY_LAYER or isinstance(value, list):
        return value
    return [value] * (settings["encoder_layers"] + settings["decoder_layers"])
