"""A model of ours as a Marian model of `transformers`, weight for weight.

A folded multi-branch model is a post-norm Transformer whose attention is wider than its states.
Marian's layers compute the same once their projections are equally wide, so `generate` runs on
exactly the weights that our decoder uses.
"""

import math
from typing import Any, cast

import torch
from torch import nn

from multibranch.nn import (
    DecoderBlock,
    EncoderBlock,
    MultiBranchAttention,
    MultiBranchTransformer,
    fold,
)


def marian_twin(model: MultiBranchTransformer) -> Any:
    """A MarianMTModel with the weights of a post-norm ReLU model that shares all embeddings."""
    from transformers import MarianConfig, MarianMTModel

    said = model.settings
    if said["norm"] != "post" or said["activation"] != "relu" or said["share_embeddings"] != "all":
        raise SystemExit("only post-norm ReLU models with shared embeddings have a Marian twin")
    folded = fold(model)
    config = MarianConfig(
        vocab_size=said["target_vocabulary"],
        d_model=said["width"],
        encoder_layers=said["encoder_layers"],
        decoder_layers=said["decoder_layers"],
        encoder_ffn_dim=said["hidden"] * said["ffn_branches"],
        decoder_ffn_dim=said["hidden"] * said["ffn_branches"],
        encoder_attention_heads=1,
        decoder_attention_heads=1,
        activation_function="relu",
        scale_embedding=True,
        max_position_embeddings=said["max_length"],
        pad_token_id=1,
        eos_token_id=2,
        bos_token_id=0,
        decoder_start_token_id=0,
        forced_eos_token_id=2,
    )
    twin = MarianMTModel(config).eval().requires_grad_(False)
    inner = twin.model
    inner.shared.weight.copy_(folded.target_embedding.vectors)
    places = folded.target_embedding._encode(torch.arange(said["max_length"]))
    for half in (inner.encoder, inner.decoder):
        half.embed_positions.weight.copy_(places)
    encoder = cast(list[EncoderBlock], list(folded.encoder))
    for ours, theirs in zip(encoder, inner.encoder.layers):
        _copy_attention(ours.attention, theirs.self_attn)
        _copy_rest(ours, theirs, {"attention_norm": "self_attn_layer_norm"})
    decoder = cast(list[DecoderBlock], list(folded.decoder))
    for block, theirs in zip(decoder, inner.decoder.layers):
        _copy_attention(block.attention, theirs.self_attn)
        _copy_attention(block.cross_attention, theirs.encoder_attn)
        names = {
            "attention_norm": "self_attn_layer_norm",
            "cross_attention_norm": "encoder_attn_layer_norm",
        }
        _copy_rest(block, theirs, names)
    return twin


def _copy_attention(ours: MultiBranchAttention, theirs: Any) -> None:
    inner = ours.heads * ours.head_width
    theirs.num_heads, theirs.head_dim = ours.heads, ours.head_width
    theirs.scaling = 1 / math.sqrt(ours.head_width)
    assert ours.qkv_bias is not None and ours.out_bias is not None
    for part, name in enumerate(("q_proj", "k_proj", "v_proj")):
        linear = nn.Linear(ours.width, inner).requires_grad_(False)
        linear.weight.copy_(ours.qkv_weight[part, 0])
        linear.bias.copy_(ours.qkv_bias[part, 0])
        setattr(theirs, name, linear)
    theirs.out_proj = nn.Linear(inner, ours.width).requires_grad_(False)
    theirs.out_proj.weight.copy_(ours.out_weight[0].t())
    theirs.out_proj.bias.copy_(ours.out_bias[0])


def _copy_rest(ours: Any, theirs: Any, norms: dict[str, str]) -> None:
    layer = ours.feed_forward
    theirs.fc1.weight.copy_(layer.in_weight.flatten(0, 1))
    theirs.fc1.bias.copy_(layer.in_bias.flatten())
    theirs.fc2.weight.copy_(layer.out_weight.flatten(0, 1).t() / layer.branches)
    theirs.fc2.bias.copy_(layer.out_bias.mean(0))
    for our_name, their_name in {**norms, "feed_forward_norm": "final_layer_norm"}.items():
        getattr(theirs, their_name).load_state_dict(getattr(ours, our_name).state_dict())
