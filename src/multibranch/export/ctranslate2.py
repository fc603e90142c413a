"""CTranslate2: the folded model as one of its Transformers, for int8 inference without PyTorch.

CTranslate2 knows no branches, but it takes a width for its heads: N_a branches of m heads are N_a·m
heads of width d/m, and the average over the branches is part of the output projections. Its encoder
and its decoder have one number of heads each; a layer that has fewer gets further heads that are
zero, which add nothing.
"""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from multibranch.errors import UserError, needed
from multibranch.export.checks import checked_ctranslate2
from multibranch.export.folder import (
    EXTRA,
    Tell,
    check_finite,
    check_output,
    describe,
    untold,
    vocabulary,
    written_folder,
)
from multibranch.export.plain import Attention, Linear, plain_attention, plain_feed_forward
from multibranch.nn import MultiBranchAttention, MultiBranchTransformer, fold
from multibranch.nn.embedding import TokenEmbedding
from multibranch.text import BOS, EOS, SPECIAL_TOKENS, UNK, TextPipeline

FORMAT = "ctranslate2"
QUANTIZATIONS = (
    "float32",
    "int8",
    "int8_float32",
    "int8_float16",
    "int8_bfloat16",
    "int16",
    "float16",
    "bfloat16",
)
POSITIONS = 2048  # how many positions are written: its own sinusoids begin at 1, ours at 0
_FEWEST_POSITIONS, _MOST_POSITIONS = 16, 65_536
_LARGEST_HALF = 65504.0  # the largest float16


def export_ctranslate2(
    model: MultiBranchTransformer,
    text: TextPipeline,
    folder: str | Path,
    *,
    quantization: str = "float32",
    positions: int = POSITIONS,
    decoding: dict[str, Any] | None = None,
    tell: Tell = untold,
) -> Path:
    """Write the model for CTranslate2, with its vocabulary and text files; whole or not at all.

    The folder's description says by how much a token's log-probability differs from PyTorch's.

    Args:
        quantization: one of QUANTIZATIONS.
        positions: the longest sequence, in tokens, that the written model reads or writes.
        decoding: search options other than the defaults, which the folder remembers.
        tell: called with every step as it begins.
    """
    folder = Path(folder)
    needed("ctranslate2", install=EXTRA, purpose="Exporting to CTranslate2")
    check_output(folder)
    check_expressible(model, text, quantization=quantization, positions=positions)
    tell("folding the branches into heads")
    spec = specification(model, text, positions=positions)
    spec.validate()
    tell(f"writing the weights in {quantization}")
    spec.optimize(quantization=quantization)
    with written_folder(folder) as new:
        spec.save(str(new))
        text.save(new)
        exact = quantization == "float32"
        describe(
            new,
            format=FORMAT,
            quantization=quantization,
            positions=positions,
            settings=model.settings,
            decoding=decoding or {},
            largest_difference=checked_ctranslate2(new, model, text, exact=exact, tell=tell),
        )
    return folder


def check_expressible(
    model: nn.Module, text: TextPipeline, *, quantization: str, positions: int
) -> None:
    """Raise a UserError that names what CTranslate2 cannot express."""
    if not isinstance(model, MultiBranchTransformer):
        raise UserError(
            f"CTranslate2 export takes encoder-decoder models, not a {type(model).__name__}: "
            "export it with --format onnx"
        )
    for side in ("encoder", "decoder"):
        if not len(getattr(model, side)):
            raise UserError(f"CTranslate2 cannot express a model without {side} layers")
    check_quantization(quantization)
    if not _FEWEST_POSITIONS <= positions <= _MOST_POSITIONS:
        raise UserError(
            f"--positions must be at least {_FEWEST_POSITIONS} and at most {_MOST_POSITIONS:,}, "
            f"not {positions:,}"
        )
    said = model.settings
    for side, size in (("source", text.source_size), ("target", text.target_size)):
        if said[f"{side}_vocabulary"] != size:
            raise UserError(
                f"the model has {said[f'{side}_vocabulary']} {side} tokens and the vocabulary "
                f"{size}: CTranslate2 needs a word for every one"
            )
    check_finite(model, largest=_LARGEST_HALF if "float16" in quantization.split("_") else None)


def check_quantization(name: str) -> None:
    """Raise a UserError that names those there are."""
    if name not in QUANTIZATIONS:
        raise UserError(
            f"CTranslate2 has no quantization {name!r}; it is one of {', '.join(QUANTIZATIONS)}"
        )


def specification(model: MultiBranchTransformer, text: TextPipeline, *, positions: int) -> Any:
    """The model as a ctranslate2.specs.TransformerSpec."""
    from ctranslate2.specs import TransformerSpec
    from ctranslate2.specs.transformer_spec import TransformerDecoderSpec, TransformerEncoderSpec

    folded: Any = fold(model).float().cpu().eval().requires_grad_(False)
    encoder = TransformerEncoderSpec(*_sizes(folded.encoder), **_options(folded, folded.encoder))
    decoder = TransformerDecoderSpec(*_sizes(folded.decoder), **_options(folded, folded.decoder))
    _embedding(encoder.embeddings[0], encoder, folded.source_embedding, positions)
    _embedding(decoder.embeddings, decoder, folded.target_embedding, positions)
    for layer, block in zip(encoder.layer, folded.encoder):
        _self_attention(layer.self_attention, block.attention, int(encoder.num_heads))
        _norm(layer.self_attention.layer_norm, block.attention_norm)
        _feed_forward(layer.ffn, block)
    for layer, block in zip(decoder.layer, folded.decoder):
        _self_attention(layer.self_attention, block.attention, int(decoder.num_heads))
        _norm(layer.self_attention.layer_norm, block.attention_norm)
        _cross_attention(layer.attention, block.cross_attention, int(decoder.num_heads))
        _norm(layer.attention.layer_norm, block.cross_attention_norm)
        _feed_forward(layer.ffn, block)
    if folded.settings["norm"] == "pre":
        _norm(encoder.layer_norm, folded.encoder_norm)
        _norm(decoder.layer_norm, folded.decoder_norm)
    decoder.projection.weight = _array(folded.output_vectors)
    spec = TransformerSpec(encoder, decoder)
    spec.register_source_vocabulary(vocabulary(text, "source"))
    spec.register_target_vocabulary(vocabulary(text, "target"))
    config = spec.config
    config.bos_token, config.eos_token = SPECIAL_TOKENS[BOS], SPECIAL_TOKENS[EOS]
    config.unk_token, config.decoder_start_token = SPECIAL_TOKENS[UNK], SPECIAL_TOKENS[BOS]
    config.add_source_eos = True
    config.layer_norm_epsilon = folded.encoder[0].attention_norm.eps
    return spec


def _sizes(blocks: Any) -> tuple[int, int]:
    """How many layers, and how many heads each must have."""
    return len(blocks), max(block.attention.heads for block in blocks)


def _options(model: MultiBranchTransformer, blocks: Any) -> dict[str, Any]:
    from ctranslate2.specs import Activation

    said = model.settings
    activations = {
        "relu": Activation.RELU,
        "gelu": Activation.GELU,
        "swiglu": Activation.SWISH,
    }
    return {
        "pre_norm": said["norm"] == "pre",
        "activation": activations[said["activation"]],
        "ffn_glu": said["activation"] == "swiglu",
        "head_dim": blocks[0].attention.head_width,
    }


def _embedding(spec: Any, stack: Any, embedding: TokenEmbedding, positions: int) -> None:
    spec.weight = _array(embedding.vectors)
    stack.scale_embeddings = True  # by √d
    stack.position_encodings.encodings = _array(embedding._encode(torch.arange(positions)))


def _self_attention(spec: Any, layer: MultiBranchAttention, heads: int) -> None:
    plain = plain_attention(layer, heads=heads)
    _linear(spec.linear[0], plain.query, plain.key, plain.value)
    _linear(spec.linear[1], plain.out)
    spec.head_dim = _head_dim(plain)


def _cross_attention(spec: Any, layer: MultiBranchAttention, heads: int) -> None:
    plain = plain_attention(layer, heads=heads)
    _linear(spec.linear[0], plain.query)
    _linear(spec.linear[1], plain.key, plain.value)
    _linear(spec.linear[2], plain.out)
    spec.head_dim = _head_dim(plain)


def _head_dim(plain: Attention) -> Any:
    import numpy as np

    return np.int32(plain.head_width)  # of this layer: with other heads it may be another


def _feed_forward(spec: Any, block: Any) -> None:
    plain = plain_feed_forward(block.feed_forward)
    _linear(spec.linear_0, plain.inner)
    if plain.up is not None:
        _linear(spec.linear_0_noact, plain.up)
    _linear(spec.linear_1, plain.outer)
    _norm(spec.layer_norm, block.feed_forward_norm)


def _linear(spec: Any, *parts: Linear) -> None:
    """One layer of the specification from one or more, their outputs one after another."""
    spec.weight = _array(torch.cat([part.weight for part in parts]))
    spec.bias = _array(torch.cat([part.bias for part in parts]))


def _norm(spec: Any, norm: nn.LayerNorm) -> None:
    spec.gamma, spec.beta = _array(norm.weight), _array(norm.bias)


def _array(tensor: Tensor) -> Any:
    """A float32 array of its own: quantizing changes arrays in place."""
    return tensor.detach().float().contiguous().numpy().copy()
