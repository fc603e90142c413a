"""The model directory: what training writes and every later command takes.

    config.json         the architecture ("model_type": "multibranch") and where it came from
    model.safetensors   the weights; shared ones stand once
    text.json, tokenizer.json, …   the text pipeline (multibranch.text)

It is data only. Nothing is unpickled, no path leads out of the folder, and a file that is damaged
or of another kind is refused with a message that names it.
"""

import inspect
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from multibranch import __version__
from multibranch.errors import UserError
from multibranch.nn import MultiBranchTransformer
from multibranch.text import BOS, EOS, PAD, UNK, TextPipeline

CONFIG = "config.json"
WEIGHTS = "model.safetensors"
MODEL_TYPE = "multibranch"


def save_model(
    folder: str | Path,
    model: MultiBranchTransformer,
    text: TextPipeline | None,
    *,
    extra: dict[str, Any] | None = None,
) -> Path:
    """Write a model directory, whole or not at all; what stood there before is replaced.

    `extra` goes into config.json beside the architecture: the task, the training's settings.
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
        weights = {name: tensor.contiguous().cpu() for name, tensor in model.state_dict().items()}
        save_file(weights, new / WEIGHTS, metadata={"format": "pt"})
        if text is not None:
            text.save(new)
    return folder


def load_model(folder: str | Path, *, device: str | torch.device = "cpu") -> MultiBranchTransformer:
    """The model of a directory, in evaluation mode."""
    folder = Path(folder)
    config = read_config(folder)
    settings = {name: config[name] for name in _setting_names() if name in config}
    try:
        with torch.device("meta"):
            model = MultiBranchTransformer(**settings)
    except (TypeError, ValueError) as error:
        raise UserError(
            f"{folder / CONFIG} describes no model that can be built: {error}"
        ) from None
    weights = load_weights(folder / WEIGHTS)
    wanted = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    given = {name: tuple(tensor.shape) for name, tensor in weights.items()}
    if wanted != given:
        differing = sorted(name for name in wanted | given if wanted.get(name) != given.get(name))
        raise UserError(
            f"the weights in {folder / WEIGHTS} are not those that {CONFIG} describes: "
            f"{differing[0]} differs, and {len(differing) - 1} more"
        )
    # Built again for real: buffers that are computed, such as position frequencies, have no file.
    model = MultiBranchTransformer(**settings)
    model.load_state_dict(weights)
    return model.to(device).eval()


def load_text(folder: str | Path) -> TextPipeline:
    """The text pipeline of a model directory."""
    folder = Path(folder)
    check_folder(folder)
    return TextPipeline.load(folder)


def read_config(folder: str | Path) -> dict[str, Any]:
    """config.json of a model directory, checked to be one of ours."""
    folder = Path(folder)
    check_folder(folder)
    path = folder / CONFIG
    if not path.is_file():
        raise UserError(f"{folder} is no model directory: it has no {CONFIG}")
    config = read_json(path)
    if config.get("model_type") != MODEL_TYPE:
        raise UserError(
            f"{path} describes a model of type {config.get('model_type')!r}, not {MODEL_TYPE!r}"
        )
    return config


def load_weights(path: Path) -> dict[str, torch.Tensor]:
    """The tensors of a safetensors file; a damaged or missing one is a UserError."""
    try:
        return load_file(path)
    except FileNotFoundError:
        raise UserError(f"{path.parent} is no model directory: it has no {path.name}") from None
    except (SafetensorError, OSError, ValueError) as error:
        raise UserError(f"{path} is damaged or no safetensors file: {error}") from None


def check_folder(folder: Path) -> None:
    """Refuse what is no folder, and a folder one of whose files is a link to elsewhere."""
    if not folder.is_dir():
        raise UserError(f"{folder} is no model directory: there is no such folder")
    for path in folder.iterdir():
        if path.is_symlink() and not path.resolve().is_relative_to(folder.resolve()):
            raise UserError(f"{path} is a link that leads out of the model directory: refused")


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise UserError(f"{path} is no JSON file: {error}") from None
    if not isinstance(value, dict):
        raise UserError(f"{path} holds no JSON object")
    return value


def write_json(path: Path, value: Any) -> None:
    """Write JSON for people as for programs: indented, keys in their given order."""
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


@contextmanager
def replaced_folder(folder: Path) -> Iterator[Path]:
    """A new folder beside `folder` that takes its place, synced, when all went well.

    Whatever happens, `folder` is either what it was or complete.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    new = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        yield new
        for path in new.iterdir():
            _sync(path)
        new.chmod(0o755)
        _sync(new)
        _exchange(new, folder)
    except BaseException:
        shutil.rmtree(new, ignore_errors=True)
        raise


def _exchange(new: Path, folder: Path) -> None:
    """Put `new` where `folder` is; the old one is moved aside first, and removed last."""
    if folder.exists():
        old = Path(tempfile.mkdtemp(prefix=f".{folder.name}.old.", dir=folder.parent))
        folder.rename(old / "was")
        new.rename(folder)
        shutil.rmtree(old, ignore_errors=True)
    else:
        new.rename(folder)
    _sync(folder.parent)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _setting_names() -> list[str]:
    parameters = inspect.signature(MultiBranchTransformer).parameters
    return [name for name in parameters if name != "self"]
