"""MultiBranchConfig: the configuration of our own models, as config.json of a model directory."""

from typing import Any, ClassVar

from transformers import PreTrainedConfig

# What MultiBranchEncoder takes besides its vocabulary; the rest concerns the decoder.
_ENCODER = (
    "width",
    "hidden",
    "heads",
    "encoder_layers",
    "branches",
    "ffn_branches",
    "drop_branch",
    "drop_ffn",
    "drop_kind",
    "dropout",
    "attention_dropout",
    "activation_dropout",
    "activation",
    "norm",
    "positions",
    "max_length",
    "branch_scale",
    "padding",
    "head_width",
)
_DECODER = ("source_vocabulary", "target_vocabulary", "decoder_layers", "share_embeddings")


class MultiBranchConfig(PreTrainedConfig):
    """The settings of `multibranch.nn.MultiBranchTransformer`, by the names they have there.

    A setting that may differ by layer is one value or a list, the encoder's layers first.
    """

    model_type = "multibranch"
    attribute_map: ClassVar[dict[str, str]] = {
        "vocab_size": "target_vocabulary",
        "hidden_size": "width",
        "num_attention_heads": "heads",
        "num_hidden_layers": "encoder_layers",
    }

    source_vocabulary: int = 32768
    target_vocabulary: int = 32768
    width: int = 256
    hidden: int = 2048
    heads: int | list[int] = 4
    encoder_layers: int = 6
    decoder_layers: int = 6
    branches: int | list[int] = 3
    ffn_branches: int | list[int] = 1
    drop_branch: float | list[float] = 0.0
    drop_ffn: float | list[float] | None = None
    drop_kind: str = "branch"
    dropout: float = 0.3
    attention_dropout: float = 0.0
    activation_dropout: float = 0.0
    activation: str = "relu"
    norm: str = "post"
    share_embeddings: str = "all"
    positions: str = "sinusoidal"
    max_length: int = 1024
    branch_scale: str = "paper"
    padding: int = 1
    head_width: int | list[int] | None = None

    is_encoder_decoder: bool = True
    tie_word_embeddings: bool = False  # sharing is `share_embeddings`
    bos_token_id: int | None = 0
    pad_token_id: int | None = 1
    eos_token_id: int | list[int] | None = 2
    decoder_start_token_id: int | None = 0

    @property
    def only_encoder(self) -> bool:
        """Whether the model is an encoder, with a classifier or without."""
        return not self.is_encoder_decoder

    def transformer_settings(self) -> dict[str, Any]:
        """The keyword arguments of MultiBranchTransformer."""
        return {name: getattr(self, name) for name in (*_DECODER, *_ENCODER)}

    def encoder_settings(self) -> dict[str, Any]:
        """The keyword arguments of MultiBranchEncoder: the source side by itself."""
        settings = {name: getattr(self, name) for name in _ENCODER}
        for name, value in settings.items():
            if isinstance(value, list):
                settings[name] = value[: self.encoder_layers]
        return {"vocabulary": self.source_vocabulary, **settings}
