"""The attention of every branch as a web page: one file that needs no network."""

import base64
import json
from importlib import resources
from pathlib import Path
from typing import Any

from multibranch.decoding.attention import KINDS, Inspection, LayerAttention
from multibranch.decoding.picture import BRANCH_COLOURS


def write_page(inspection: Inspection, path: str | Path) -> Path:
    """Write the page."""
    template = resources.files("multibranch.decoding").joinpath("page.html").read_text("utf-8")
    # "</script" would end the element that holds the data, "<!--<script" hide its end.
    data = json.dumps(_data(inspection), ensure_ascii=False).replace("<", "\\u003c")
    place = Path(path)
    place.write_text(template.replace("/*DATA*/", data), encoding="utf-8")
    return place


def _data(inspection: Inspection) -> dict[str, Any]:
    return {
        "source": inspection.source_text,
        "target": inspection.target_text,
        "colours": BRANCH_COLOURS,
        "kinds": [
            {
                "name": kind,
                "rows": inspection.rows(kind),
                "columns": inspection.columns(kind),
                "layers": [_layer(layer) for layer in inspection.of_kind(kind)],
            }
            for kind in KINDS
        ],
    }


def _layer(layer: LayerAttention) -> dict[str, Any]:
    """Weights as bytes, 255 for 1: a hundredth part of the numbers' own text."""
    bytes_ = (layer.weights.clamp(0, 1) * 255).round().byte().contiguous().numpy().tobytes()
    return {
        "number": layer.layer,
        "shape": list(layer.weights.shape),
        "weights": base64.b64encode(bytes_).decode("ascii"),
        "overlap": [[round(value, 3) for value in row] for row in layer.overlap.tolist()],
        "similarity": layer.weight_similarity,
    }
