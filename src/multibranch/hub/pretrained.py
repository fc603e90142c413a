"""What our models share as models of `transformers`: loading, first weights, refusals."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel
from transformers import initialization as init
from transformers.modeling_layers import GradientCheckpointingLayer

from multibranch.hub.configuration import MultiBranchConfig
from multibranch.hub.generation import origin
from multibranch.hub.layers import become
from multibranch.nn import (
    MultiBranchAttention,
    MultiBranchEncoder,
    MultiBranchFeedForward,
    MultiBranchTransformer,
)
from multibranch.nn.embedding import TokenEmbedding

# What other models of `transformers` are asked for, and ours would pass over.
_NOT_HERE = (
    "inputs_embeds",
    "decoder_inputs_embeds",
    "position_ids",
    "decoder_position_ids",
    "output_attentions",
    "output_hidden_states",
)


class MultiBranchPreTrainedModel(PreTrainedModel):
    """What our models share: what they load, and how weights are made where no file has them."""

    config_class = MultiBranchConfig
    base_model_prefix = "model"
    main_input_name = "input_ids"
    supports_gradient_checkpointing = True
    # A loss is the mean over its batch: the Trainer divides it where it accumulates gradients.
    accepts_loss_kwargs = False
    _supports_sdpa = True
    # Its parts read each other's weights: it lies on one device as a whole.
    _no_split_modules = ["MultiBranchTransformer", "MultiBranchEncoder"]

    model: MultiBranchTransformer | MultiBranchEncoder
    only_encoder = True

    @classmethod
    def from_pretrained(
        cls, pretrained_model_name_or_path: Any, *args: Any, config: Any = None, **kwargs: Any
    ) -> Any:
        """As `transformers` does, but only a model of this kind, and only onto one device."""
        said = config
        if not isinstance(said, PreTrainedConfig):
            where = config or pretrained_model_name_or_path
            said = MultiBranchConfig.from_pretrained(where, **origin(kwargs))
        if said.only_encoder != cls.only_encoder:
            kind, auto = ("an encoder-decoder", "AutoModelForSeq2SeqLM")
            if said.only_encoder:
                kind, auto = ("an encoder", "AutoModel, or AutoModelForSequenceClassification")
            raise ValueError(
                f"{pretrained_model_name_or_path} holds {kind}, whose weights are not those of a "
                f"{cls.__name__}: load it with {auto}"
            )
        loaded = super().from_pretrained(
            pretrained_model_name_or_path, *args, config=config, **kwargs
        )
        model = loaded[0] if isinstance(loaded, tuple) else loaded
        places = {parameter.device for parameter in model.model.parameters()}
        if len(places) > 1 or torch.device("meta") in places:
            raise ValueError(
                "the parts of this model read each other's weights, so that it lies on one device "
                "as a whole and cannot be offloaded: give a device_map such as {'': 'cpu'}"
            )
        return loaded

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, MultiBranchAttention | MultiBranchFeedForward):
            module.reset_parameters()
        elif isinstance(module, TokenEmbedding):
            _init_embedding(module)
        elif isinstance(module, MultiBranchTransformer):
            if hasattr(module, "output_weight"):
                init.normal_(module.output_weight, std=module.settings["width"] ** -0.5)
        else:
            super()._init_weights(module)

    def _hold(self, model: MultiBranchTransformer | MultiBranchEncoder) -> None:
        """Take a model of ours in, its blocks made ready for gradient checkpointing."""
        self.model = model
        self.config.is_encoder_decoder = not self.only_encoder
        for block in model.blocks:
            become(block, GradientCheckpointingLayer)

    def refuse(self, others: Mapping[str, Any]) -> None:
        """Refuse by name, of the further arguments of a call, what these models do not have."""
        for name in _NOT_HERE:
            if others.get(name) is not None and others[name] is not False:
                raise ValueError(
                    f"{type(self).__name__} has no {name}: it reads ids, and multibranch.decoding "
                    "shows the attention of its branches"
                )

    def mask_source(self, input_ids: Tensor, attention_mask: Tensor | None) -> Tensor:
        """The source (b, s) with padding wherever attention is forbidden."""
        if attention_mask is None:
            return input_ids
        return input_ids.masked_fill(attention_mask == 0, self.model.padding)

    def get_input_embeddings(self) -> TokenEmbedding:
        """The source's embedding, or the one whose token vectors it shares."""
        model = self.model
        if isinstance(model, MultiBranchEncoder):
            return model.embedding
        shared = model.source_embedding.vectors is model.target_embedding.vectors
        return model.target_embedding if shared else model.source_embedding

    def resize_token_embeddings(self, new_num_tokens: int | None = None, *_: Any, **__: Any) -> Any:
        """Only the size that there is: another vocabulary needs another text pipeline."""
        embedding = self.get_input_embeddings()
        entries = len(embedding.vectors)
        if new_num_tokens not in (None, entries):
            raise ValueError(
                f"the vocabulary of this model, {entries} entries, belongs to its text pipeline "
                "and cannot be resized: prepare the data with another one, and train"
            )
        return embedding


def _init_embedding(embedding: TokenEmbedding) -> None:
    if hasattr(embedding, "frequency"):
        computed = TokenEmbedding(1, embedding.width, padding=0).frequency
        init.copy_(embedding.frequency, computed)
    parameters = list(embedding.parameters(recurse=False))
    if not all(getattr(parameter, "_is_hf_initialized", False) for parameter in parameters):
        embedding.reset_parameters()
