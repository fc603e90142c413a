"""Our own models as models of `transformers`: what `multibranch train` writes loads as they are.

The weights of a model directory are those of MultiBranchTransformer, by its names. The models here
hold one, in `model`, and read and write those names.
"""

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import (
    DynamicCache,
    EncoderDecoderCache,
    GenerationMixin,
    LogitsProcessorList,
    PreTrainedModel,
)
from transformers.modeling_outputs import BaseModelOutput, Seq2SeqLMOutput

from multibranch.hub.attention import attend
from multibranch.hub.configuration import MultiBranchConfig
from multibranch.hub.encoder import MultiBranchEncoderModel
from multibranch.hub.generation import (
    EndAtLength,
    decoding_defaults,
    longest_outputs,
    text_beside,
)
from multibranch.hub.pretrained import MultiBranchPreTrainedModel
from multibranch.nn import MultiBranchTransformer
from multibranch.nn.linear import linear

_PREFIX = "model."
_IGNORED = -100  # the label that no loss counts, by the convention of transformers


class _Encoder:
    """The encoder as `generate` calls it."""

    main_input_name = "input_ids"

    def __init__(self, model: "MultiBranchForConditionalGeneration") -> None:
        self._model = model

    def forward(
        self, input_ids: Tensor | None = None, attention_mask: Tensor | None = None, **others: Any
    ) -> BaseModelOutput:
        self._model.refuse(others)
        if input_ids is None:
            raise ValueError("give input_ids, or what the encoder made of them")
        source = self._model.mask_source(input_ids, attention_mask)
        return BaseModelOutput(last_hidden_state=self._model.model.encode(source).states)

    __call__ = forward


class MultiBranchForConditionalGeneration(MultiBranchPreTrainedModel, GenerationMixin):
    """The Multi-branch Attentive Transformer for translation and other generation."""

    model: MultiBranchTransformer
    only_encoder = False
    accepts_loss_kwargs = True

    def __init__(self, config: MultiBranchConfig) -> None:
        super().__init__(config)
        self._hold(MultiBranchTransformer(**config.transformer_settings()))
        self.generation_config = decoding_defaults(config)
        self.register_load_state_dict_pre_hook(_with_prefix)
        self.post_init()

    def get_encoder(self, *_: Any, **__: Any) -> Any:
        return _Encoder(self)

    def get_output_embeddings(self) -> None:
        return None

    def adjust_generation_fn(
        self, generation_config: Any, auto: Any, pipeline: Any, name: Any, **kwargs: Any
    ) -> None:
        """After loading: a directory without generation_config.json decodes as our decoder does."""
        super().adjust_generation_fn(generation_config, auto, pipeline, name, **kwargs)
        if self.generation_config._from_model_config:
            self.generation_config = decoding_defaults(self.config, text_beside(name, **kwargs))

    def prepare_decoder_input_ids_from_labels(self, labels: Tensor) -> Tensor:
        """The target shifted by one, (b, t): what the decoder reads to predict `labels`."""
        shifted = labels.new_full(labels.shape, self.config.decoder_start_token_id)
        shifted[:, 1:] = labels[:, :-1]
        return shifted.masked_fill(shifted == _IGNORED, self.model.padding)

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,
        encoder_outputs: Any = None,
        past_key_values: EncoderDecoderCache | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        return_dict: bool | None = None,
        num_items_in_batch: Tensor | int | None = None,
        **others: Any,
    ) -> Seq2SeqLMOutput | tuple:
        """Logits (b, t, V) for the token after each of decoder_input_ids (b, t).

        The source is input_ids (b, s), or what the encoder made of it. With labels (b, t) there is
        a loss, and decoder_input_ids follow from them. It is the mean over the labels, or their sum
        divided by num_items_in_batch: the labels of all batches that share an update.
        """
        self.refuse(others)
        if decoder_input_ids is None:
            if labels is None:
                raise ValueError("give decoder_input_ids, or labels from which they follow")
            decoder_input_ids = self.prepare_decoder_input_ids_from_labels(labels)
        _check_beginning(decoder_attention_mask)
        if decoder_attention_mask is not None and past_key_values is None:
            decoder_input_ids = decoder_input_ids.masked_fill(
                decoder_attention_mask == 0, self.model.padding
            )
        cache, memory = None, None
        stepwise = use_cache and labels is None  # a loss needs no cache
        if encoder_outputs is None and past_key_values is None and not stepwise:
            if input_ids is None:
                raise ValueError("give input_ids, or what the encoder made of them")
            logits = self.model(self.mask_source(input_ids, attention_mask), decoder_input_ids)
        else:
            if encoder_outputs is None:
                encoder_outputs = self.get_encoder()(input_ids, attention_mask)
                assert input_ids is not None  # else the encoder refuses
                attention_mask = self._source_mask(input_ids, attention_mask)
            memory = encoder_outputs[0]
            cache = past_key_values
            if cache is None:
                cache = EncoderDecoderCache(DynamicCache(), DynamicCache())
            logits = self._continue(decoder_input_ids, memory, attention_mask, cache)
        loss = None
        if labels is not None:
            # In half precision their sum would have three digits, or be infinite.
            wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
            summed = F.cross_entropy(
                wide.flatten(0, 1), labels.flatten(), ignore_index=_IGNORED, reduction="sum"
            )
            if num_items_in_batch is None:
                num_items_in_batch = (labels != _IGNORED).sum()
            loss = summed / num_items_in_batch
        output = Seq2SeqLMOutput(
            loss=loss,
            logits=logits,
            past_key_values=None if use_cache is False else cache,
            encoder_last_hidden_state=memory,
        )
        return output.to_tuple() if return_dict is False else output

    def _continue(
        self, ids: Tensor, memory: Tensor, attention_mask: Tensor | None, cache: EncoderDecoderCache
    ) -> Tensor:
        """Read further target tokens (b, t) after those that the cache has; logits (b, t, V)."""
        read, t = cache.get_seq_length(), ids.shape[1]
        places = torch.arange(read, read + t, device=ids.device)
        later = torch.ones(t, read + t, dtype=torch.bool, device=ids.device).tril(read)
        source = None if attention_mask is None else (attention_mask != 0)[:, None, None, :]
        states = self.model.target_embedding(ids, places)
        for index, block in enumerate(self.model.decoder):
            states = _decode(block, states, memory, later[None, None], source, cache, index)
        return linear(self.model.decoder_norm(states), self.model.output_vectors)

    @torch.no_grad()
    def generate(
        self, inputs: Tensor | None = None, *args: Any, logits_processor: Any = None, **kwargs: Any
    ) -> Any:
        """As `transformers` does; unless told otherwise, what our own decoder does.

        A hypothesis ends after 1.5 times the source's tokens plus 10, or as max_length and
        max_new_tokens say; then its end counts with the probability that the model gives it.
        """
        rules = list(logits_processor or [])
        source = kwargs.get("input_ids") if inputs is None else inputs
        if source is not None:
            kwargs["attention_mask"] = self._source_mask(source, kwargs.get("attention_mask"))
        tokens = self._source_tokens(kwargs)
        if tokens is not None:
            own = self.generation_config
            limit = longest_outputs(self.config, own, tokens - 1, args, kwargs)
            rules.append(EndAtLength(limit, self.config.eos_token_id))
        return super().generate(
            inputs, *args, logits_processor=LogitsProcessorList(rules), **kwargs
        )

    def _source_mask(self, source: Tensor, attention_mask: Tensor | None) -> Tensor:
        """1 where the encoder reads a token of the source (b, s), and 0 elsewhere."""
        return (self.mask_source(source, attention_mask) != self.model.padding).long()

    def _source_tokens(self, given: Mapping[str, Any]) -> Tensor | None:
        """How many tokens each source (b,) has, its end counted; None where none is given."""
        mask: Tensor | None = given.get("attention_mask")
        if mask is not None:
            return mask.sum(1)
        if given.get("encoder_outputs") is None:
            return None
        states = given["encoder_outputs"][0]  # (b, s, d)
        return states.new_ones(states.shape[:2]).sum(1).long()

    def save_pretrained(
        self, save_directory: Any, *args: Any, state_dict: Any = None, **kwargs: Any
    ) -> None:
        """Write a model directory: the weights by the names that `multibranch` uses."""
        weights: Mapping[str, Tensor] = self.state_dict() if state_dict is None else state_dict
        plain = {name.removeprefix(_PREFIX): tensor for name, tensor in weights.items()}
        super().save_pretrained(save_directory, *args, state_dict=plain, **kwargs)


def _check_beginning(decoder_attention_mask: Tensor | None) -> None:
    """Refuse padding (b, t) before a target's tokens: these would read it, in the wrong places."""
    if decoder_attention_mask is None or decoder_attention_mask.dim() != 2:
        return
    if bool(((decoder_attention_mask != 0).long().diff(dim=1) > 0).any()):
        raise ValueError(
            "decoder_attention_mask forbids tokens that others follow: pad targets on the right, "
            "and generate from beginnings of one length"
        )


def _decode(
    block: Any,
    states: Tensor,
    memory: Tensor,
    mask: Tensor,
    source_mask: Tensor | None,
    cache: EncoderDecoderCache,
    index: int,
) -> Tensor:
    """One decoder block over the states (b, t, d) of new tokens, with a cache of `transformers`."""
    for layer, norm, given, seen in (
        (block.attention, block.attention_norm, None, mask),
        (block.cross_attention, block.cross_attention_norm, memory, source_mask),
    ):
        before = block.before(states, norm)
        attended, _ = attend(layer, before, given, mask=seen, cache=cache, index=index)
        states = block.after(states, attended, norm)
    before = block.before(states, block.feed_forward_norm)
    return block.after(states, block.feed_forward(before), block.feed_forward_norm)


def _with_prefix(model: nn.Module, state_dict: dict[str, Any], prefix: str, *_: Any) -> None:
    """Let `load_state_dict` read the names of a model directory too."""
    wanted = set(dict(model.named_parameters()))
    for name in list(state_dict):
        own = name.removeprefix(prefix)
        if own not in wanted and _PREFIX + own in wanted:
            state_dict[prefix + _PREFIX + own] = state_dict.pop(name)


class MultiBranchModel:
    """What AutoModel makes: the encoder of a classifier, and else the encoder-decoder, whole."""

    config_class = MultiBranchConfig

    @classmethod
    def from_pretrained(cls, *args: Any, config: MultiBranchConfig, **kwargs: Any) -> Any:
        return cls._kind(config).from_pretrained(*args, config=config, **kwargs)

    @classmethod
    def _from_config(cls, config: MultiBranchConfig, **kwargs: Any) -> PreTrainedModel:
        return cls._kind(config)._from_config(config, **kwargs)

    @staticmethod
    def _kind(config: MultiBranchConfig) -> type[MultiBranchPreTrainedModel]:
        if config.only_encoder:
            return MultiBranchEncoderModel
        return MultiBranchForConditionalGeneration
