"""The encoder-decoder of Section 3.1, and an encoder by itself.

Every attention layer is a MultiBranchAttention. Batches come padded, ids (b, t), or packed, ids
(n,) with boundaries: sequence i of a packed batch is ids[boundaries[i] : boundaries[i + 1]], and
what follows the last boundary belongs to no sequence. Both give the same numbers.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from multibranch.nn.blocks import DecoderBlock, EncoderBlock, Layout
from multibranch.nn.cache import DecoderCache, LayerCache
from multibranch.nn.drop import Keep, check_units, draw_keep, split_keep
from multibranch.nn.embedding import TokenEmbedding
from multibranch.nn.kernels import make_segments
from multibranch.nn.linear import linear
from multibranch.nn.weights import draw_normal

Number = TypeVar("Number", int, float)


class Memory(NamedTuple):
    """What the encoder made of padded sources: states (b, s, d), padding (b, s) True at padding."""

    states: Tensor
    padding: Tensor


def per_layer(name: str, value: Number | Sequence[Number], layers: int) -> list[Number]:
    """One value a layer, from one for all of them or from a list of just so many."""
    if value is None or isinstance(value, int | float):
        return [value] * layers
    if len(value) != layers:
        raise ValueError(f"{name} must hold one value a layer: {layers}, not {len(value)}")
    return list(value)


class _Stack(nn.Module):
    """What the models here share: how their blocks are made and how `keep` is drawn and cut."""

    settings: dict[str, Any]
    encoder: nn.ModuleList

    def _note(self, arguments: dict[str, Any]) -> None:
        """Keep the arguments that the model is made with as its settings."""
        self.settings = {k: v for k, v in arguments.items() if k not in ("self", "__class__")}
        if self.settings["drop_ffn"] is None:
            self.settings["drop_ffn"] = self.settings["drop_branch"]

    def _blocks(self, kind: type, first: int, last: int) -> nn.ModuleList:
        """Blocks for layers first..last of the model, as the settings say."""
        said = self.settings
        layers = said["encoder_layers"] + said.get("decoder_layers", 0)
        heads = per_layer("heads", said["heads"], layers)
        branches = per_layer("branches", said["branches"], layers)
        ffn_branches = per_layer("ffn_branches", said["ffn_branches"], layers)
        drop_branch = per_layer("drop_branch", said["drop_branch"], layers)
        drop_ffn = per_layer("drop_ffn", said["drop_ffn"], layers)
        head_width = per_layer("head_width", said["head_width"], layers)
        return nn.ModuleList(
            kind(
                said["width"],
                attention={
                    "heads": heads[layer],
                    "branches": branches[layer],
                    "drop_branch": drop_branch[layer],
                    "drop_kind": said["drop_kind"],
                    "dropout": said["attention_dropout"],
                    "branch_scale": said["branch_scale"],
                    "head_width": head_width[layer],
                    "batch_first": True,
                },
                feed_forward={
                    "hidden": said["hidden"],
                    "branches": ffn_branches[layer],
                    "drop_branch": drop_ffn[layer],
                    "activation": said["activation"],
                    "activation_dropout": said["activation_dropout"],
                    "branch_scale": said["branch_scale"],
                },
                norm=said["norm"],
                dropout=said["dropout"],
            )
            for layer in range(first, last)
        )

    def _final_norm(self) -> nn.Module:
        """Pre-norm stacks end in a norm of their own; post-norm ones have had theirs."""
        said = self.settings
        return nn.LayerNorm(said["width"]) if said["norm"] == "pre" else nn.Identity()

    @property
    def blocks(self) -> list[EncoderBlock | DecoderBlock]:
        """All blocks, the encoder's first."""
        return [*self.encoder, *getattr(self, "decoder", ())]

    def drop_rates(self) -> list[float]:
        """ρ of every unit of the model, in the order of `keep`."""
        return [
            layer.drop_branch
            for block in self.blocks
            for layer in block.layers
            for _ in range(layer.units)
        ]

    def draw_keep(self, *, generator: torch.Generator | None = None) -> Tensor:
        """Draw the factors (units,) of one forward pass on the CPU, for `keep`.

        A training step that draws them itself can share them between processes, replay them, and
        tell which work to skip.
        """
        return draw_keep(self.drop_rates(), generator=generator)

    def _split_keep(self, keep: Keep, device: torch.device) -> list[Keep]:
        """`keep` (units,) cut into one piece a block; drawn here while training if it is None."""
        if keep is None and self.training and any(self.drop_rates()):
            keep = draw_keep(torch.tensor(self.drop_rates(), device=device))
        sizes = [block.units for block in self.blocks]
        if keep is not None:  # too many, too, are another model's
            check_units(keep, sum(sizes))
        return split_keep(keep, sizes)


def _positions_and_layout(
    ids: Tensor, boundaries: Tensor | None, longest: int | None, padding: int, side: str
) -> tuple[Tensor, Layout]:
    """Where every token stands in its sequence, and how the sequences lie in the batch."""
    if ids.dim() == 2:
        if boundaries is not None:
            raise ValueError(f"{side} boundaries go with packed ids (n,), not {tuple(ids.shape)}")
        positions = torch.arange(ids.shape[1], device=ids.device)
        return positions, Layout(mask=(ids != padding)[:, None, None, :])
    if ids.dim() != 1 or boundaries is None:
        raise ValueError(
            f"{side} ids must be padded (b, t), or packed (n,) with their boundaries; "
            f"these have the shape {tuple(ids.shape)}"
        )
    segments = make_segments(boundaries, ids.shape[0], longest=longest)
    return segments.position, Layout(segments=segments)


class MultiBranchTransformer(_Stack):
    """The Multi-branch Attentive Transformer, an encoder-decoder.

    `heads`, `branches`, `ffn_branches`, `drop_branch` and `drop_ffn` are one value for all layers,
    or a list with one a layer, the encoder's first. `settings` holds the arguments:
    `MultiBranchTransformer(**model.settings)` is the same architecture anew.

    Args:
        source_vocabulary, target_vocabulary: how many tokens each side has.
        width: d.
        hidden: d_h, the hidden width of one feed-forward branch.
        heads: M, the heads of one branch.
        encoder_layers, decoder_layers: how many blocks.
        branches: N_a.
        ffn_branches: N_f.
        drop_branch: ρ of the attention layers.
        drop_ffn: ρ of the feed-forward layers; as drop_branch unless given.
        drop_kind: "branch", or "head" for Section 7.2's variant.
        dropout, attention_dropout, activation_dropout: the ordinary dropouts.
        activation: "relu", "gelu" or "swiglu".
        norm: "post" or "pre".
        share_embeddings: "all" (source, target and output), "target" (target and output), "none".
        positions: "sinusoidal" or "learned" (max_length of them).
        branch_scale: "paper" (1/N) or "released" (1/N²).
        padding: the id of the padding token.
        head_width: the width of a head; d/M unless given.
    """

    def __init__(
        self,
        *,
        source_vocabulary: int,
        target_vocabulary: int,
        width: int = 256,
        hidden: int = 2048,
        heads: int | Sequence[int] = 4,
        encoder_layers: int = 6,
        decoder_layers: int = 6,
        branches: int | Sequence[int] = 3,
        ffn_branches: int | Sequence[int] = 1,
        drop_branch: float | Sequence[float] = 0.0,
        drop_ffn: float | Sequence[float] | None = None,
        drop_kind: str = "branch",
        dropout: float = 0.3,
        attention_dropout: float = 0.0,
        activation_dropout: float = 0.0,
        activation: str = "relu",
        norm: str = "post",
        share_embeddings: str = "all",
        positions: str = "sinusoidal",
        max_length: int = 1024,
        branch_scale: str = "paper",
        padding: int = 1,
        head_width: int | Sequence[int] | None = None,
    ) -> None:
        super().__init__()
        self._note(dict(locals()))
        if share_embeddings not in ("all", "target", "none"):
            raise ValueError(
                f'share_embeddings must be "all", "target" or "none", not {share_embeddings!r}'
            )
        if share_embeddings == "all" and source_vocabulary != target_vocabulary:
            raise ValueError(
                f"a source vocabulary of {source_vocabulary} and a target vocabulary of "
                f'{target_vocabulary} cannot share embeddings: set share_embeddings="target"'
            )
        self.padding = padding
        embed: dict[str, Any] = {
            "padding": padding,
            "positions": positions,
            "max_length": max_length,
            "dropout": dropout,
        }
        self.target_embedding = TokenEmbedding(target_vocabulary, width, **embed)
        shared = self.target_embedding if share_embeddings == "all" else None
        self.source_embedding = TokenEmbedding(source_vocabulary, width, shared=shared, **embed)
        self.encoder = self._blocks(EncoderBlock, 0, encoder_layers)
        self.encoder_norm = self._final_norm()
        self.decoder = self._blocks(DecoderBlock, encoder_layers, encoder_layers + decoder_layers)
        self.decoder_norm = self._final_norm()
        if share_embeddings == "none":
            self.output_weight = nn.Parameter(torch.empty(target_vocabulary, width))
            draw_normal(self.output_weight, width**-0.5)

    @property
    def output_vectors(self) -> Tensor:
        """The output embedding (target_vocabulary, d)."""
        if self.settings["share_embeddings"] == "none":
            return self.output_weight
        return self.target_embedding.vectors

    def forward(
        self,
        source: Tensor,
        target: Tensor,
        *,
        source_boundaries: Tensor | None = None,
        target_boundaries: Tensor | None = None,
        source_longest: int | None = None,
        target_longest: int | None = None,
        keep: Keep = None,
    ) -> Tensor:
        """Logits for the token after each of `target`.

        Padded: source (b, s), target (b, t) → (b, t, V). Packed: source (n',), target (n,), with
        boundaries → (n, V); source_longest and target_longest bound the lengths of the sequences
        where they are known. `keep` (units,) holds the factors of this pass (see nn/drop.py).
        """
        states = self.states(
            source,
            target,
            source_boundaries=source_boundaries,
            target_boundaries=target_boundaries,
            source_longest=source_longest,
            target_longest=target_longest,
            keep=keep,
        )
        return linear(states, self.output_vectors)

    def states(
        self,
        source: Tensor,
        target: Tensor,
        *,
        source_boundaries: Tensor | None = None,
        target_boundaries: Tensor | None = None,
        source_longest: int | None = None,
        target_longest: int | None = None,
        keep: Keep = None,
    ) -> Tensor:
        """What `forward` computes, before the output embedding: (b, t, d) or (n, d)."""
        pieces = self._split_keep(keep, source.device)
        if source.dim() != target.dim() or (
            target.dim() == 2 and source.shape[0] != target.shape[0]
        ):
            raise ValueError(
                "source and target must both be packed, or padded with as many sequences, not of "
                f"the shapes {tuple(source.shape)} and {tuple(target.shape)}"
            )
        positions, source_layout = _positions_and_layout(
            source, source_boundaries, source_longest, self.padding, "source"
        )
        memory = self.source_embedding(source, positions)
        for block, piece in zip(self.encoder, pieces):
            memory = block(memory, source_layout, piece)
        memory = self.encoder_norm(memory)
        positions, target_layout = _positions_and_layout(
            target, target_boundaries, target_longest, self.padding, "target"
        )
        states = self.target_embedding(target, positions)
        for block, piece in zip(self.decoder, pieces[len(self.encoder) :]):
            states = block(states, target_layout, memory, source_layout, piece)
        return self.decoder_norm(states)

    # -- Decoding token by token ------------------------------------------------------------

    def encode(self, source: Tensor) -> Memory:
        """Encode padded sources (b, s)."""
        positions, layout = _positions_and_layout(source, None, None, self.padding, "source")
        states = self.source_embedding(source, positions)
        for block, piece in zip(self.encoder, self._split_keep(None, source.device)):
            states = block(states, layout, piece)
        return Memory(self.encoder_norm(states), source == self.padding)

    def start(self, memory: Memory, *, beam: int = 1) -> DecoderCache:
        """A cache for decoding from `memory` with `beam` rows a sentence."""
        layers = [
            LayerCache(*block.cross_attention.key_value(memory.states))  # type: ignore[union-attr,operator]
            for block in self.decoder
        ]
        mask = None if not bool(memory.padding.any()) else ~memory.padding[:, None, None, :]
        return DecoderCache(layers, mask, sentences=memory.states.shape[0], beam=beam)

    def step(self, ids: Tensor, cache: DecoderCache) -> Tensor:
        """Logits (b, beam, V) for the token after `ids` (b, beam); the cache remembers `ids`.

        Ids (b, 1) are read once for all beams of a sentence, and give logits (b, 1, V).
        """
        cache.advance(ids.shape[1])
        position = torch.full((1,), cache.length - 1, device=ids.device)
        states = self.target_embedding(ids, position)
        for block, layer in zip(self.decoder, cache.layers):
            states = block.step(states, layer, cache)  # type: ignore[operator]
        return linear(self.decoder_norm(states), self.output_vectors)


class MultiBranchEncoder(_Stack):
    """The encoder by itself, for classification and tagging; arguments as MultiBranchTransformer's.

    forward: ids (b, s) → (b, s, d), or packed (n,) with boundaries → (n, d).
    """

    def __init__(
        self,
        *,
        vocabulary: int,
        width: int = 256,
        hidden: int = 2048,
        heads: int | Sequence[int] = 4,
        encoder_layers: int = 6,
        branches: int | Sequence[int] = 3,
        ffn_branches: int | Sequence[int] = 1,
        drop_branch: float | Sequence[float] = 0.0,
        drop_ffn: float | Sequence[float] | None = None,
        drop_kind: str = "branch",
        dropout: float = 0.1,
        attention_dropout: float = 0.0,
        activation_dropout: float = 0.0,
        activation: str = "relu",
        norm: str = "post",
        positions: str = "sinusoidal",
        max_length: int = 1024,
        branch_scale: str = "paper",
        padding: int = 1,
        head_width: int | Sequence[int] | None = None,
    ) -> None:
        super().__init__()
        self._note(dict(locals()))
        self.padding = padding
        self.embedding = TokenEmbedding(
            vocabulary,
            width,
            padding=padding,
            positions=positions,
            max_length=max_length,
            dropout=dropout,
        )
        self.encoder = self._blocks(EncoderBlock, 0, encoder_layers)
        self.encoder_norm = self._final_norm()

    def forward(
        self,
        ids: Tensor,
        *,
        boundaries: Tensor | None = None,
        longest: int | None = None,
        keep: Keep = None,
    ) -> Tensor:
        pieces = self._split_keep(keep, ids.device)
        positions, layout = _positions_and_layout(ids, boundaries, longest, self.padding, "input")
        states = self.embedding(ids, positions)
        for block, piece in zip(self.encoder, pieces):
            states = block(states, layout, piece)
        return self.encoder_norm(states)
