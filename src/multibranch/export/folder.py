"""What every exported folder is: engine's files with a description, whole or not there at all."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from multibranch import __version__
from multibranch.directory import EXPORTED, check_folder, read_json
from multibranch.disk import check_place, replaced_folder, write_json
from multibranch.errors import UserError
from multibranch.text import TextPipeline

EXTRA = "'multibranch[export]'"  # what pip installs the engines with

Tell = Callable[[str], None]  # called with every step of an export as it begins


def untold(step: str) -> None:
    """Say nothing."""


@contextmanager
def pytorchs_threads_kept() -> Iterator[None]:
    """Inside, CTranslate2 may be loaded: it sets the threads of the whole process to its own."""
    threads = torch.get_num_threads()
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def check_output(folder: Path) -> None:
    """Refuse to write over anything, and where nothing can be written."""
    if folder.exists() or folder.is_symlink():
        raise UserError(f"{folder} exists already: choose another --output, or remove it")
    check_place(folder, "--output")


def check_finite(model: nn.Module, *, largest: float | None = None) -> None:
    """Refuse weights that are no numbers, or too large for what they are to be written as."""
    for name, weight in model.state_dict().items():
        if not bool(torch.isfinite(weight).all()):
            raise UserError(f"the weights {name} hold infinities or NaN: this model cannot be used")
        if largest is not None and weight.numel() and float(weight.abs().max()) > largest:
            raise UserError(
                f"the weights {name} reach {float(weight.abs().max()):.3g}, beyond float16's "
                f"{largest:.0f}: choose float32, bfloat16 or int8_float32"
            )


@contextmanager
def written_folder(folder: Path) -> Iterator[Path]:
    """A new folder that is put at `folder` when all went well; what fails leaves nothing there."""
    try:
        with replaced_folder(folder) as new:
            yield new
    except OSError as error:
        raise UserError(f"{folder} cannot be written: {error.strerror or error}") from None


def describe(folder: Path, *, format: str, **details: Any) -> None:
    """Write what was exported, and how, beside the engine's own files."""
    said = {"format": format, "multibranch_version": __version__, **details}
    write_json(folder / EXPORTED, said)


def read_description(folder: str | Path, *, format: str) -> dict[str, Any]:
    """The description of an exported folder, checked to be of this format."""
    folder = Path(folder)
    check_folder(folder)
    path = folder / EXPORTED
    if not path.is_file():
        raise UserError(
            f"{folder} is no exported model: it has no {EXPORTED}; write one with "
            f"multibranch export {folder} --format {format} --output …"
        )
    said = read_json(path)
    if said.get("format") != format:
        raise UserError(f"{path} describes a model of format {said.get('format')!r}, not {format}")
    return said


def vocabulary(text: TextPipeline, side: str) -> list[str]:
    """The tokens of one side, by id."""
    tokenizer = text.tokenizer(side)
    return [tokenizer.id_to_token(number) or "" for number in range(tokenizer.get_vocab_size())]
