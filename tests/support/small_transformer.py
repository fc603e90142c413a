"""The encoder-decoder that tests of nn compute with, small enough for float64."""

from torch import nn

from multibranch.nn import MultiBranchTransformer


def small_transformer(**changes) -> MultiBranchTransformer:
    """Without dropout; its biases are drawn, for at zero a mistake in them would not show."""
    settings = {
        "source_vocabulary": 20,
        "target_vocabulary": 20,
        "width": 16,
        "hidden": 32,
        "heads": 2,
        "encoder_layers": 2,
        "decoder_layers": 2,
        "branches": 3,
        "dropout": 0.0,
    }
    model = MultiBranchTransformer(**{**settings, **changes})
    for name, parameter in model.named_parameters():
        if "bias" in name:
            nn.init.normal_(parameter, std=0.1)
    return model
