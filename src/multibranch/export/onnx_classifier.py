"""ONNX for classifiers: models of `transformers`, ours or branched out, by PyTorch's exporter.

classifier.onnx   input_ids (b, s), attention_mask (b, s), 1 where there is a token
                  and, where the tokenizer gives them, token_type_ids (b, s)
                  → logits (b, labels)
"""

import contextlib
import copy
import logging
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from multibranch.disk import system_errors
from multibranch.errors import UserError, needed
from multibranch.export.checks import checked_classifier
from multibranch.export.folder import (
    EXTRA,
    Tell,
    check_finite,
    check_output,
    describe,
    untold,
    written_folder,
)
from multibranch.export.onnx_graph import FILE_LIMIT
from multibranch.export.onnx_model import FORMAT

_INPUTS = ("input_ids", "attention_mask", "token_type_ids")


def export_onnx_classifier(
    model: Any, tokenizer: Any, folder: str | Path, *, tell: Tell = untold
) -> Path:
    """Write a classifier's graph, in float32, and its tokenizer; whole or not at all.

    Args:
        model: a …ForSequenceClassification of `transformers`.
        tokenizer: its tokenizer; None for none.
        tell: called with every step as it begins.
    """
    folder = Path(folder)
    needed("onnxscript", install=EXTRA, purpose="Exporting a classifier to ONNX")
    check_output(folder)
    if not type(model).__name__.endswith("ForSequenceClassification"):
        raise UserError(f"{type(model).__name__} is no classifier: it has no logits over labels")
    check_finite(model)
    plain = copy.deepcopy(model).float().cpu().eval()  # the model itself stays as it is
    with written_folder(folder) as new:
        tell("tracing the model and writing classifier.onnx")
        _write(plain, new / "classifier.onnx", inputs=_inputs(tokenizer))
        if tokenizer is not None:
            with system_errors(new):
                tokenizer.save_pretrained(new)
        labels = [plain.config.id2label[number] for number in range(plain.config.num_labels)]
        describe(
            new,
            format=FORMAT,
            architecture=type(plain).__name__,
            labels=labels,
            largest_difference=checked_classifier(new, plain, tell=tell),
        )
    return folder


class _Logits(nn.Module):
    """The model as a function of its inputs, in the order of `inputs`."""

    def __init__(self, model: Any, inputs: Sequence[str]) -> None:
        super().__init__()
        self.model = model
        self.inputs = inputs

    def forward(self, *given: Tensor) -> Tensor:
        return self.model(**dict(zip(self.inputs, given))).logits


def _inputs(tokenizer: Any) -> list[str]:
    """What the model is called with: which piece of a pair a token is of, where that is told."""
    told = _INPUTS[:2] if tokenizer is None else tokenizer.model_input_names
    return [name for name in _INPUTS if name in (*_INPUTS[:2], *told)]


def _write(model: Any, path: Path, *, inputs: Sequence[str]) -> None:
    ids = torch.arange(4, 18).remainder(len(model.get_input_embeddings().weight)).view(2, 7)
    free = {0: torch.export.Dim.DYNAMIC, 1: torch.export.Dim.DYNAMIC}
    size = sum(weight.numel() * weight.element_size() for weight in model.state_dict().values())
    with _quietly():
        torch.onnx.export(
            _Logits(model, inputs).eval(),
            (ids, torch.ones_like(ids), torch.zeros_like(ids))[: len(inputs)],
            str(path),
            input_names=list(inputs),
            output_names=["logits"],
            dynamic_shapes=((free,) * len(inputs),),
            dynamo=True,
            external_data=size > FILE_LIMIT,
            verbose=False,
        )


@contextlib.contextmanager
def _quietly() -> Iterator[None]:
    """Without the exporter's remarks about packages and releases that do not matter here."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
