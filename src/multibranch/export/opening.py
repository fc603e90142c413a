"""Opening an exported folder with CTranslate2: what is asked of it that it cannot do is refused."""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from multibranch.decoding import SearchOptions
from multibranch.decoding.generate import MOST_ROWS
from multibranch.decoding.options import read_options
from multibranch.directory import EXPORTED
from multibranch.errors import UserError, needed
from multibranch.export.ctranslate2 import FORMAT
from multibranch.export.folder import (
    EXTRA,
    pytorchs_threads_kept,
    read_description,
    vocabulary,
)
from multibranch.text import TextPipeline
from multibranch.text.pipeline import SIDES


def package() -> Any:
    """CTranslate2 itself, or a sentence that says how to get it."""
    return needed("ctranslate2", install=EXTRA, purpose="The engine ctranslate2")


def opened(folder: Path, *, device: str, threads: int | None, workers: int | None) -> Any:
    """The folder's ctranslate2.Translator; threads and workers as in CTranslate2Engine.load."""
    ctranslate2 = package()
    where = _device(ctranslate2, device)
    for name, number in (("threads", threads), ("workers", workers)):
        if number is not None and number < 1:
            raise UserError(f"{name} must be at least 1, not {number}")
    threads = threads or torch.get_num_threads()
    workers = workers or (threads if where == "cpu" else 1)
    try:
        with pytorchs_threads_kept():
            return ctranslate2.Translator(
                os.fspath(folder),
                device=where,
                inter_threads=workers,
                intra_threads=max(1, threads // workers),
            )
    except (RuntimeError, ValueError) as error:
        raise UserError(f"CTranslate2 cannot load {folder}: {error}") from None


def check_options(options: SearchOptions) -> None:
    """Refuse what CTranslate2 cannot do, or does in another way."""
    if options.sample:
        raise UserError(
            "the engine ctranslate2 does not sample as ours does, reproducibly sentence by "
            "sentence: use --engine torch for --sample"
        )
    if options.repetition_penalty != 1:
        raise UserError(
            "the repetition penalty of the engine ctranslate2 is another one than ours: use "
            "--engine torch, or --no-repeat-ngram"
        )
    if options.beam > MOST_ROWS:
        raise UserError(
            f"the engine ctranslate2 takes a beam of at most {MOST_ROWS:,}, not {options.beam:,}: "
            "beyond, it is killed where memory runs out"
        )


def refuse_others(
    places: Sequence[Path], *, branches: object, precision: str, cuda_graphs: bool
) -> None:
    """Refuse what only the other engine can do."""
    if not places:
        raise UserError("no exported model was given")
    if len(places) > 1:
        raise UserError(
            "the engine ctranslate2 decodes with one model: use --engine torch for an ensemble"
        )
    if branches is not None:
        raise UserError(
            "an exported model has its branches folded into heads: choose branches of the model "
            "directory it was made from, with --engine torch"
        )
    if precision != "float32":
        raise UserError(
            "leave --precision out: what an exported model computes in was chosen when it was "
            "exported (--quantization)"
        )
    if cuda_graphs:
        raise UserError("leave --cuda-graphs out: CUDA graphs are of the engine torch")


def described(folder: Path) -> dict[str, Any]:
    """The folder's description, its numbers checked."""
    said = read_description(folder, format=FORMAT)
    positions, path = said.get("positions"), folder / EXPORTED
    if type(positions) is not int or positions < 1:
        raise UserError(f"{path} is damaged: it says no number of positions")
    return {"positions": positions, "decoding": read_options(said.get("decoding"), path)}


def check_vocabularies(folder: Path, text: TextPipeline) -> None:
    """Refuse a folder whose tokenizer is not that of its model."""
    for side in SIDES:
        files = [folder / f"{name}_vocabulary.json" for name in (side, "shared")]
        try:
            path = next(path for path in files if path.is_file())
            tokens = json.loads(path.read_text(encoding="utf-8"))
        except StopIteration:
            raise UserError(f"{folder} is incomplete: it has no {files[1].name}") from None
        except (OSError, ValueError) as error:
            raise UserError(f"{path} is damaged: {error}; export the model again") from None
        if tokens != vocabulary(text, side):
            raise UserError(
                f"{path} holds other tokens than the tokenizer beside it: export the model again"
            )


def _device(ctranslate2: Any, asked: str) -> str:
    if asked not in ("auto", "cpu", "cuda"):
        raise UserError(f"there is no device {asked!r}; say auto, cpu or cuda")
    if asked == "cuda" and not ctranslate2.get_cuda_device_count():
        raise UserError("there is no GPU that CTranslate2 can use here; say --device cpu")
    if asked == "auto":
        return "cuda" if ctranslate2.get_cuda_device_count() else "cpu"
    return asked
