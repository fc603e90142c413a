"""Branched models as classes of `transformers`, so that saving and loading are its own.

For a family "bert" there is the model type "multibranch-bert" with its configuration class, which
is BERT's and says under `multibranch` how the model was branched out; and for every class of the
family, say BertForSequenceClassification, the class MultiBranchBertForSequenceClassification, which
branches itself out as it is made. The classes are derived by this one mechanism and registered with
the Auto classes.
"""

import importlib
from functools import cache
from typing import Any

from transformers import CONFIG_MAPPING, AutoConfig, PreTrainedModel
from transformers.models.auto import modeling_auto
from transformers.utils import output_capturing

from multibranch.hub.families import FAMILIES
from multibranch.hub.surgery import Branching, operate
from multibranch.nn import MultiBranchAttention

PREFIX = "multibranch-"


class BranchedModel:
    """What stands before the class of a pretrained model: branching out as it is made."""

    # The blocks bring their own, also for a family that has none (MPNet).
    supports_gradient_checkpointing = True
    # The branches' attention is our own, which takes the masks of "eager" and "sdpa".
    _supports_flash_attn = False
    _supports_flex_attn = False

    def __init__(self, config: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(config, *args, **kwargs)  # type: ignore[call-arg]
        operate(self, Branching.read(config.multibranch))  # type: ignore[arg-type]

    def _init_weights(self, module: Any) -> None:
        if isinstance(module, MultiBranchAttention):
            module.reset_parameters()
        else:
            super()._init_weights(module)  # type: ignore[misc]


@cache
def config_class(model_type: str) -> type:
    """The configuration class of a family's branched models."""
    base = CONFIG_MAPPING[model_type]

    def __post_init__(self: Any, **kwargs: Any) -> None:
        base.__post_init__(self, **kwargs)
        register_models(model_type)

    return type(
        f"MultiBranch{base.__name__}",
        (base,),
        {
            "__module__": __name__,
            "__doc__": f"{base.__name__} with a record of how the model was branched out.",
            "__annotations__": {"multibranch": dict | None},
            "__post_init__": __post_init__,
            "model_type": PREFIX + model_type,
            "multibranch": None,
        },
    )


@cache
def model_class(base: type) -> type:
    """The branched form of a class of `transformers`."""
    made = type(
        f"MultiBranch{base.__name__}",
        (BranchedModel, base),
        {
            "__module__": __name__,
            "__doc__": f"{base.__name__} with multi-branch attention.",
            "config_class": config_class(base.config_class.model_type),  # type: ignore[attr-defined]
        },
    )
    # An instance that changes its class has not been made by this one, which would note this.
    output_capturing._CAN_RECORD_REGISTRY[str(made)] = made._can_record_outputs  # type: ignore[attr-defined]
    # By this list of names the Trainer knows whose labels to shift where it smooths them.
    shifting: Any = modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    if base.__name__ in shifting.values():
        shifting[made.config_class.model_type] = made.__name__  # type: ignore[attr-defined]
    return made


def __getattr__(name: str) -> type:
    """A branched class by its name, made if it has not been: pickled ones are looked up so."""
    for model_type in FAMILIES if name.startswith("MultiBranch") else ():
        base = CONFIG_MAPPING[model_type]
        if name == f"MultiBranch{base.__name__}":
            return config_class(model_type)
        models = importlib.import_module(base.__module__.replace("configuration_", "modeling_"))
        found = vars(models).get(name.removeprefix("MultiBranch"))
        if isinstance(found, type) and issubclass(found, PreTrainedModel):
            return model_class(found)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


@cache
def register_models(model_type: str) -> None:
    """Register a family's branched classes with every Auto class that knows the family.

    This imports the family's models, so it happens when the first configuration of it is made.
    """
    base = CONFIG_MAPPING[model_type]
    autos: list[Any] = [value for value in vars(modeling_auto).values() if isinstance(value, type)]
    for auto in autos:
        mapping = getattr(auto, "_model_mapping", None)
        if mapping is None or base not in mapping:
            continue
        found = mapping[base]
        found = found[0] if isinstance(found, tuple) else found
        if isinstance(found, type) and issubclass(found, PreTrainedModel):
            auto.register(config_class(model_type), model_class(found), exist_ok=True)


def register_configurations() -> None:
    """Make the branched model types known to AutoConfig."""
    for model_type in FAMILIES:
        AutoConfig.register(PREFIX + model_type, config_class(model_type), exist_ok=True)
