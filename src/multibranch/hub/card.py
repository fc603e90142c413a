"""The model card: a README.md that says what a model is, its data, its scores, its configuration.

It is generated from the model directory and from what the caller knows, never written by hand, so
that it cannot say anything else than what was trained and measured.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from multibranch import __version__
from multibranch.directory import CONFIG, MODEL_TYPE, read_json
from multibranch.errors import UserError

CARD = "README.md"


def write_model_card(
    folder: str | Path,
    *,
    title: str | None = None,
    data: str | None = None,
    scores: Mapping[str, Any] | None = None,
) -> Path:
    """Write the card of a model directory into it; arguments as `model_card`."""
    path = Path(folder) / CARD
    path.write_text(
        model_card(folder, title=title, data=data, scores=scores), encoding="utf-8", newline="\n"
    )
    return path


def model_card(
    folder: str | Path,
    *,
    title: str | None = None,
    data: str | None = None,
    scores: Mapping[str, Any] | None = None,
) -> str:
    """The card of a model directory, in Markdown.

    Args:
        folder: a model directory: one of ours, or a branched model that `save_pretrained` wrote.
        title: the model's name; the folder's unless given.
        data: a sentence or more on what it was trained on.
        scores: by the name of what was measured, a `multibranch.metrics.Score` or anything else
            with a value and a signature; a number without a signature is refused.
    """
    path = Path(folder) / CONFIG
    if not path.is_file():
        raise UserError(f"{folder} is no model directory: it has no {CONFIG}")
    config = read_json(path)
    missing = [name for name in _needed(config) if name not in config]
    if missing:
        raise UserError(f"{path} describes no model: it does not say its {', '.join(missing)}")
    title = title or Path(folder).resolve().name
    measured = {name: _measured(name, score) for name, score in (scores or {}).items()}
    sections = [
        _front_matter(title, config, measured),
        f"# {title}\n",
        f"{_what_it_is(config)}\n",
        f"## Data\n\n{data or 'The training data was not recorded.'}\n",
        f"## Scores\n\n{_score_table(measured)}\n",
        f"## Use\n\n{_usage(title, config)}\n",
        f"## Configuration\n\n```json\n{json.dumps(config, indent=2, ensure_ascii=False)}\n```\n",
        f"Made with multibranch {__version__}.\n",
    ]
    return "\n".join(sections)


def _needed(config: dict[str, Any]) -> tuple[str, ...]:
    """The keys of a configuration that a card tells of."""
    own = ("encoder_layers", "decoder_layers", "width", "hidden", "heads", "branches")
    is_own = config.get("model_type") == MODEL_TYPE
    return ("model_type", *((*own, "drop_branch") if is_own else ()))


def _measured(name: str, score: Any) -> tuple[float, str]:
    value, signature = getattr(score, "value", None), getattr(score, "signature", None)
    if value is None or not signature:
        raise UserError(f"the score {name!r} has no signature: a card states none without")
    return float(value), str(signature)


def _task(config: dict[str, Any]) -> str:
    architecture = (config.get("architectures") or [""])[0]
    if str(architecture).endswith("ForSequenceClassification"):
        return "text-classification"
    if config.get("is_encoder_decoder"):
        translates = config.get("task", "translation") == "translation"
        return "translation" if translates else "text2text-generation"
    return "feature-extraction"


def _front_matter(
    title: str, config: dict[str, Any], scores: Mapping[str, tuple[float, str]]
) -> str:
    content: dict[str, Any] = {
        "library_name": "transformers",
        "pipeline_tag": _task(config),
        "tags": ["multibranch", "multi-branch-attention", config["model_type"]],
    }
    if scores:
        metrics = [
            {"type": name.split(" ")[-1], "name": name, "value": round(value, 2)}
            for name, (value, _) in scores.items()
        ]
        result = {"task": {"type": _task(config)}, "metrics": metrics}
        content["model-index"] = [{"name": title, "results": [result]}]
    return f"---\n{yaml.safe_dump(content, sort_keys=False, allow_unicode=True)}---\n"


def _what_it_is(config: dict[str, Any]) -> str:
    if config.get("multibranch"):
        return _branched(config["multibranch"])
    if config["model_type"] != MODEL_TYPE:
        return f"A {config['model_type']} model."
    layers = f"{config['encoder_layers']} encoder"
    if config.get("is_encoder_decoder", True):
        layers += f" and {config['decoder_layers']} decoder"
    sizes, heads = f"{config['width']}/{config['hidden']}", _one(config["heads"])
    heads += " head" if heads == "1" else " heads"
    dropped = f"drop-branch ρ = {_one(config['drop_branch'])}"
    if _one(config["branches"]) == "1":
        return (
            f"A Transformer with {layers} blocks whose attention layers have one branch each: "
            f"d/d_h = {sizes}, {heads}, {dropped}."
        )
    return (
        f"A Multi-branch Attentive Transformer with {layers} blocks: "
        f"N_a/d/d_h = {_one(config['branches'])}/{sizes}, {heads} a branch, {dropped}."
    )


def _branched(branching: dict[str, Any]) -> str:
    """What a pretrained model became, from its record of that."""
    branches, rates = branching["branches"], (branching["drop_branch"], branching["drop_ffn"])
    means = []
    if branches > 1 or any(rates):
        where = f"{rates[0]} in the attention and {rates[1]} in the feed-forward layers"
        means.append(f"drop-branch, ρ = {where}")
    if branching.get("layer_drop"):
        means.append(f"LayerDrop of {branching['layer_drop']}")
    trained = f"trained with {', and '.join(means)}."
    if branches == 1:
        return (
            f"A pretrained {branching['family']} model whose attention layers have one branch "
            "each, as they had before." + (f" It was {trained}" if means else "")
        )
    return (
        f"A pretrained {branching['family']} model in which every attention layer has {branches} "
        "branches, averaged (Multi-branch Attentive Transformer). The branches began as copies and "
        f"were {trained}"
    )


def _one(value: Any) -> str:
    """One value for all layers, or the layers' values one after another where they differ."""
    values = value if isinstance(value, list) else [value]
    return ", ".join(map(str, values if len(set(values)) > 1 else values[:1]))


def _score_table(scores: Mapping[str, tuple[float, str]]) -> str:
    if not scores:
        return "None were recorded."
    rows = [f"| {name} | {value:.2f} | `{sign}` |" for name, (value, sign) in scores.items()]
    return "\n".join(["| what | score | signature |", "|---|---|---|", *rows])


def _usage(title: str, config: dict[str, Any]) -> str:
    auto = {
        "text-classification": "AutoModelForSequenceClassification",
        "feature-extraction": "AutoModel",
    }.get(_task(config), "AutoModelForSeq2SeqLM")
    return (
        "```python\n"
        "import multibranch.hub  # makes the model known to the Auto classes\n"
        f"from transformers import {auto}, AutoTokenizer\n\n"
        f'tokenizer = AutoTokenizer.from_pretrained("{title}")\n'
        f'model = {auto}.from_pretrained("{title}")\n'
        "```"
    )
