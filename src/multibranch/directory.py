"""The model directory: what training writes and every later command takes.

    config.json         the architecture ("model_type": "multibranch") and where it came from
    model.safetensors   the weights; shared ones stand once
    text.json, tokenizer.json, …   the text pipeline (multibranch.text)

It is data only. Nothing is unpickled, no path leads out of the folder, and a file that is damaged
or of another kind is refused with a message that names it.
"""

import inspect
import json
import math
import os
import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from multibranch import __version__
from multibranch.disk import replaced_folder, write_json
from multibranch.errors import UserError, interrupts_kept
from multibranch.nn import MultiBranchTransformer
from multibranch.text import BOS, EOS, PAD, UNK, TextPipeline

CONFIG = "config.json"
WEIGHTS = "model.safetensors"
EXPORTED = "multibranch.json"  # what an exported folder has, and a model directory has not
RUN, LOCK = "config.yaml", ".lock"  # what the folder of a run of training has from its beginning
STAGES = ("transformer", "mat")  # the runs in the folder of a training in two stages
MODEL_TYPE = "multibranch"


def save_model(
    folder: str | Path,
    model: MultiBranchTransformer,
    text: TextPipeline | None,
    *,
    extra: dict[str, Any] | None = None,
    weights: Mapping[str, torch.Tensor] | None = None,
) -> Path:
    """Write a model directory, whole or not at all; what stood there before is replaced.

    Args:
        extra: goes into config.json beside the architecture: the task, the training's settings.
        weights: written in place of the model's own, by the same names.
    """
    folder = Path(folder)
    with replaced_folder(folder) as new:
        config = {
            "model_type": MODEL_TYPE,
            "architectures": ["MultiBranchForConditionalGeneration"],
            "multibranch_version": __version__,
            **model.settings,
            "bos_token_id": BOS,
            "pad_token_id": PAD,
            "eos_token_id": EOS,
            "unk_token_id": UNK,
            "decoder_start_token_id": BOS,
            "is_encoder_decoder": True,
            **(extra or {}),
        }
        write_json(new / CONFIG, config)
        save_weights(new / WEIGHTS, model.state_dict() if weights is None else weights)
        if text is not None:
            text.save(new)
    return folder


def load_model(folder: str | Path, *, device: str | torch.device = "cpu") -> MultiBranchTransformer:
    """The model of a directory, in evaluation mode."""
    folder = Path(folder)
    config = read_config(folder)
    weights = load_weights(folder / WEIGHTS)
    settings = {name: config[name] for name in _setting_names() if name in config}
    model = _outline(folder, settings, most_layers=len(weights))
    wanted = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    given = {
        name: tuple(tensor.shape) if tensor.is_floating_point() else tensor.dtype
        for name, tensor in weights.items()
    }
    if wanted != given:
        differing = sorted(name for name in wanted | given if wanted.get(name) != given.get(name))
        raise UserError(
            f"the weights in {folder / WEIGHTS} are not those that {CONFIG} describes: "
            f"{differing[0]} differs, and {len(differing) - 1} more"
        )
    # Position frequencies, which have no file, are computed as memory is given. `to_empty` would do
    # the same by PyTorch in Python, whose import takes longer than all of this.
    model._apply(lambda tensor: torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu"))
    model.load_state_dict(weights)
    _check_numbers(folder, model)
    return model.to(device).eval()


def _check_numbers(folder: Path, model: MultiBranchTransformer) -> None:
    """Refuse weights that are not finite: a model with them writes nothing but empty outputs."""
    for name, weight in model.state_dict().items():
        if weight.numel() and not all(math.isfinite(float(end)) for end in weight.aminmax()):
            raise UserError(
                f"the weights {name} in {folder / WEIGHTS} hold infinities or NaN: this model "
                "cannot be used"
            )


def _outline(folder: Path, settings: dict[str, Any], *, most_layers: int) -> MultiBranchTransformer:
    """The model without its weights, which costs nothing whatever sizes config.json claims."""
    try:
        layers = int(settings.get("encoder_layers", 0)) + int(settings.get("decoder_layers", 0))
        if layers > most_layers:
            raise ValueError(f"{layers} layers for {most_layers} tensors")
        if isinstance(settings.get("padding"), bool):  # which the first sentence alone would meet
            raise TypeError("padding must be a token's number")
        with torch.device("meta"):
            return MultiBranchTransformer(**settings)
    except (
        TypeError,
        ValueError,
        RuntimeError,
        ArithmeticError,
        AttributeError,
        LookupError,
    ) as error:
        raise UserError(
            f"{folder / CONFIG} describes no model that can be built: {error}"
        ) from None


def load_text(folder: str | Path) -> TextPipeline:
    """The text pipeline of a model directory."""
    folder = Path(folder)
    config = read_config(folder)
    text = TextPipeline.load(folder)
    for side, size in (("source", text.source_size), ("target", text.target_size)):
        if size != config.get(f"{side}_vocabulary", size):
            raise UserError(
                f"the tokenizer in {folder} has {size} {side} tokens, the model "
                f"{config[f'{side}_vocabulary']}: it is another model's; copy the right one there"
            )
    return text


def read_config(folder: str | Path) -> dict[str, Any]:
    """config.json of a model directory, checked to be that of an encoder-decoder of ours."""
    folder = Path(folder)
    path = config_path(folder)
    config = read_json(path)
    classifies = "ForSequenceClassification" in str(config.get("architectures"))
    if config.get("model_type") != MODEL_TYPE:
        raise UserError(
            f"{path} describes a model of type {config.get('model_type')!r}, not {MODEL_TYPE!r}"
            + (": it is a classifier, for `multibranch classify`" if classifies else "")
        )
    if classifies:
        raise UserError(
            f"{path} describes a classifier, not an encoder-decoder: use `multibranch classify`"
        )
    if config.get("is_encoder_decoder") is False:
        raise UserError(f"{path} describes an encoder by itself, not an encoder-decoder")
    return config


def config_path(folder: Path) -> Path:
    """Where config.json of a folder with a model is; a UserError where there is none."""
    check_folder(folder)
    if (folder / EXPORTED).is_file():
        raise UserError(
            f"{folder} is what multibranch export wrote, no model directory: give the directory "
            "that it was exported from (translate and serve take CTranslate2's folders with "
            "--engine ctranslate2)"
        )
    if not (folder / CONFIG).is_file():
        best = folder / "best"
        validated = (best / CONFIG).is_file()
        if (folder / RUN).is_file() and (validated or (folder / LOCK).is_file()):
            words = ["multibranch", "train", str(folder / RUN), f"--train.output={folder}"]
            raise UserError(
                f"{folder} holds a training that has not ended: `{shlex.join(words)}` goes on with "
                f"it{f'; its best weights so far are in {best}' if validated else ''}"
            )
        stages = [folder / name for name in STAGES if (folder / name / RUN).is_file()]
        if stages:
            raise UserError(
                f"{folder} is the place of a training in two stages: name one of them, as "
                f"{stages[-1]}"
            )
        raise UserError(f"{folder} is no model directory: it has no {CONFIG}")
    return folder / CONFIG


def load_weights(path: Path) -> dict[str, torch.Tensor]:
    """The tensors of a safetensors file; a damaged or missing one is a UserError."""
    if not path.is_file():
        raise UserError(f"{path.parent} is incomplete: it has no file {path.name}")
    try:
        # First, for safetensors says of a file without permission that it is not there.
        path.open("rb").close()
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from None
    try:
        with interrupts_kept():
            return load_file(path)
    except (SafetensorError, OSError, ValueError) as error:
        raise UserError(f"{path} is damaged or no safetensors file: {error}") from None


def save_weights(path: Path, weights: Mapping[str, torch.Tensor]) -> None:
    """Write tensors as a safetensors file; what the disk refuses is an OSError."""
    whole = {name: tensor.detach().contiguous().cpu() for name, tensor in weights.items()}
    try:
        save_file(whole, path, metadata={"format": "pt"})
    except SafetensorError as error:
        number = re.search(r"os error (\d+)", str(error))
        code = int(number[1]) if number else 0
        raise OSError(code, os.strerror(code) if code else str(error), str(path)) from error


def check_folder(folder: Path) -> None:
    """Refuse what is no folder, and a folder one of whose files is a link to elsewhere."""
    if not folder.is_dir():
        what = "it is a file" if folder.is_file() else "there is no such folder"
        raise UserError(f"{folder} is no model directory: {what}")
    inside = folder.resolve()
    for path in folder.iterdir():
        if path.is_symlink() and not path.resolve().is_relative_to(inside):
            raise UserError(f"{path} is a link that leads out of the model directory: refused")


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is no JSON file: {error}") from None
    if not isinstance(value, dict):
        raise UserError(f"{path} holds no JSON object")
    return value


def _setting_names() -> list[str]:
    parameters = inspect.signature(MultiBranchTransformer).parameters
    return [name for name in parameters if name != "self"]
