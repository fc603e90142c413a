"""What a search may try: a trial's draws as a configuration, and the study's own model."""

import dataclasses
import math
import warnings
from typing import Any

from multibranch.study.space import Search
from multibranch.training import Config

STEP = 0.05  # between the rates that are tried


def propose(trial: Any, space: Search, base: Config) -> Config:
    """What Optuna would try next, as a configuration.

    Layers are counted from the encoder's first to the decoder's last; `layers_together` of them
    share what is chosen.
    """
    model = base.model
    layers = model.encoder_layers + model.decoder_layers
    each = max(1, space.layers_together)
    chosen: dict[str, Any] = {
        "branches": [],
        "drop_branch": [],
        "drop_ffn": [],
        "ffn_branches": [],
    }
    for first in range(0, layers, each):
        count = min(each, layers - first)
        where = f"layer{first + 1}"
        values = {
            "branches": trial.suggest_categorical(f"branches.{where}", space.branches),
            "drop_branch": trial.suggest_float(
                f"drop_branch.{where}", *_ends(space.drop_branch), step=STEP
            ),
            "drop_ffn": trial.suggest_float(f"drop_ffn.{where}", *_ends(space.drop_ffn), step=STEP),
            "ffn_branches": trial.suggest_categorical(f"ffn.{where}", space.ffn_branches),
        }
        for name, value in values.items():
            chosen[name] += [value] * count
    kind = trial.suggest_categorical("drop_kind", space.drop_kind)
    # The hidden width is one for all layers: FFN branches make a layer larger, and the search
    # records the model's size for that reason.
    return dataclasses.replace(base, model=dataclasses.replace(model, drop_kind=kind, **chosen))


def own_model(space: Search, base: Config) -> dict[str, Any] | None:
    """The study's own model as what `propose` would have drawn; None where the space lacks it."""
    import optuna

    model = base.model
    drop_ffn = model.drop_branch if model.drop_ffn is None else model.drop_ffn
    fixed: dict[str, Any] = {"drop_kind": model.drop_kind}
    for first in range(0, model.encoder_layers + model.decoder_layers, space.layers_together):
        where = f"layer{first + 1}"
        fixed |= {f"branches.{where}": model.branches, f"ffn.{where}": model.ffn_branches}
        fixed |= {f"drop_branch.{where}": model.drop_branch, f"drop_ffn.{where}": drop_ffn}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # a number out of its range is only warned of
            propose(optuna.trial.FixedTrial(fixed), space, base)
    except (ValueError, UserWarning):
        return None
    return fixed


def _ends(values: list[float]) -> tuple[float, float]:
    """The lowest rate and the highest that steps from it reach."""
    low = min(values)
    steps = math.floor((max(values) - low) / STEP + 1e-9)
    return low, round(low + steps * STEP, 10)


def describe(config: Config) -> str:
    """The layers of a proposal in one line."""
    model = config.model
    assert isinstance(model.branches, list) and isinstance(model.drop_branch, list)
    branches = " ".join(map(str, model.branches))
    rates = " ".join(f"{rate:.2f}" for rate in model.drop_branch)
    return f"N_a by layer {branches}, ρ by layer {rates}, drop-{model.drop_kind}"
