"""From a model directory to an exported folder: what the verb `export` does."""

from pathlib import Path
from typing import Any

from multibranch.decoding import SearchOptions
from multibranch.decoding.translator import saved_options
from multibranch.directory import (
    MODEL_TYPE,
    config_path,
    load_model,
    load_text,
    read_json,
)
from multibranch.errors import UserError, needed
from multibranch.export.ctranslate2 import POSITIONS, check_quantization, export_ctranslate2
from multibranch.export.folder import Tell, check_output, read_description, untold
from multibranch.export.onnx import export_onnx
from multibranch.export.opening import check_options

FORMATS = ("ctranslate2", "onnx")
_CLASSIFIER = "ForSequenceClassification"


def export(
    folder: str | Path,
    output: str | Path,
    *,
    format: str,
    quantization: str | None = None,
    positions: int | None = None,
    tell: Tell = untold,
) -> dict[str, Any]:
    """Export a model directory, or a classifier's; gives back what to tell of it.

    Args:
        format: one of FORMATS.
        quantization: for CTranslate2, one of ctranslate2.QUANTIZATIONS; float32 unless given.
        positions: for CTranslate2, the longest sequence in tokens (ctranslate2.POSITIONS).
        tell: called with every step as it begins.
    """
    folder, output = Path(folder), Path(output)
    if format not in FORMATS:
        raise UserError(f"there is no format {format!r}; it is one of {', '.join(FORMATS)}")
    check_output(output)
    if quantization is not None and format == "ctranslate2":
        check_quantization(quantization)
    classifier = _is_classifier(folder)
    if format == "onnx":
        for name, value in (("quantization", quantization), ("positions", positions)):
            if value is not None:
                raise UserError(f"--{name} is of --format ctranslate2: ONNX graphs are float32")
        (_export_classifier if classifier else _export_onnx)(folder, output, tell)
    elif classifier:
        raise UserError(
            f"{folder} is a classifier, and CTranslate2 export takes encoder-decoder models: use "
            "--format onnx"
        )
    else:
        decoding = saved_options(folder)
        _check_options(folder, decoding)
        export_ctranslate2(
            load_model(folder),
            load_text(folder),
            output,
            quantization=quantization or "float32",
            positions=POSITIONS if positions is None else positions,
            decoding=decoding,
            tell=tell,
        )
    return {
        "output": str(output),
        "format": format,
        "numbers": quantization or "float32",
        "megabytes": sum(path.stat().st_size for path in output.iterdir()) / 1e6,
        "largest_difference": read_description(output, format=format)["largest_difference"],
    }


def _check_options(folder: Path, decoding: dict[str, Any]) -> None:
    """Refuse search options with which the engine would not load what is written."""
    try:
        check_options(SearchOptions(**decoding))
    except UserError as error:
        raise UserError(f'"decoding" in {config_path(folder)} cannot be kept: {error}') from None


def _export_onnx(folder: Path, output: Path, tell: Tell) -> None:
    model, text, decoding = load_model(folder), load_text(folder), saved_options(folder)
    export_onnx(model, text, output, decoding=decoding, tell=tell)


def _is_classifier(folder: Path) -> bool:
    """Whether the folder holds a classifier rather than an encoder-decoder of ours."""
    config = read_json(config_path(folder))
    architectures = config.get("architectures")
    named = str(architectures[0]) if isinstance(architectures, list) and architectures else ""
    if named.endswith(_CLASSIFIER):
        return True
    if config.get("model_type") != MODEL_TYPE:
        kind = named or config.get("model_type")
        held = f"a {kind}" if kind else "no model that is known here"
        raise UserError(
            f"{folder} holds {held}: export takes encoder-decoder models that multibranch train "
            "wrote, and classifiers"
        )
    return False


def _export_classifier(folder: Path, output: Path, tell: Tell) -> None:
    needed("transformers", install="'multibranch[hub]'", purpose="Exporting a classifier")
    from multibranch.export.onnx_classifier import export_onnx_classifier
    from multibranch.hub.backbone import load_classifier

    export_onnx_classifier(*load_classifier(folder), output, tell=tell)
