"""What every branch of a model looks at, for one sentence and its translation."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from multibranch.decoding.translator import Translator
from multibranch.errors import UserError
from multibranch.nn import MultiBranchAttention, MultiBranchTransformer, branch_similarity
from multibranch.text import TextPipeline
from multibranch.text.special import BOS, EOS, SPECIAL_TOKENS
from multibranch.text.vocabulary import WORD_START

KINDS = ("cross", "encoder", "decoder")
_one_at_a_time = threading.RLock()


@dataclass(frozen=True)
class LayerAttention:
    """One attention layer of one block.

    kind: "cross" (target to source), "encoder" or "decoder" (each to itself).
    layer: the number of its block, from 1.
    weights: (N_a, m, rows, columns), each row summing to 1.
    overlap: (N_a, N_a), how much of their attention two branches have in common here: the mean over
        rows of Σ min(p, q), heads averaged; 1 is the same, 0 is apart.
    weight_similarity: the mean cosine between the branches' parameters; None with one branch.
    """

    kind: str
    layer: int
    weights: Tensor
    overlap: Tensor
    weight_similarity: float | None

    @property
    def branches(self) -> Tensor:
        """The heads of every branch averaged, (N_a, rows, columns)."""
        return self.weights.mean(1)

    @property
    def mean_overlap(self) -> float | None:
        """The mean over each two branches; None with one."""
        count = self.overlap.shape[0]
        if count < 2:
            return None
        return float((self.overlap.sum() - count) / (count * (count - 1)))


@dataclass(frozen=True)
class Inspection:
    """A sentence, its translation and all attention on the way.

    source: the tokens that the encoder reads, its end included.
    target: the tokens that the decoder writes, its end included; row t is where it writes token t.
    read: the tokens that the decoder has read at each of these: the beginning, then the target's.
    """

    source_text: str
    target_text: str
    source: list[str]
    target: list[str]
    read: list[str]
    layers: list[LayerAttention]

    def of_kind(self, kind: str) -> list[LayerAttention]:
        """The attention layers of one kind, by layer."""
        return [layer for layer in self.layers if layer.kind == kind]

    def rows(self, kind: str) -> list[str]:
        """The tokens that look."""
        return self.source if kind == "encoder" else self.target

    def columns(self, kind: str) -> list[str]:
        """The tokens that are looked at."""
        return self.read if kind == "decoder" else self.source


@torch.inference_mode()
def inspect(
    model: MultiBranchTransformer,
    text: TextPipeline,
    sentence: str,
    *,
    target: str | None = None,
    translator: Translator | None = None,
    stop: threading.Event | None = None,
    **options: Any,
) -> Inspection:
    """Translate a sentence, or take `target` for its translation, and record the attention.

    `translator`, made from the same model, saves making one. Once `stop` is set, it breaks off with
    InterruptedError, before the attention is recorded.
    """
    [source] = text.encode([sentence], side="source")
    if len(source) == 1:  # only its end: it is blank, or of control characters alone
        raise UserError("the sentence is empty: there is nothing to look at")
    if target is None:
        translator = translator or Translator([model], text, strict=True)
        [hypotheses] = translator.generate([sentence], stop=stop, **options)
        ids = list(hypotheses[0].ids) if hypotheses else []
        written = hypotheses[0].text if hypotheses else ""
    else:
        ids, written = text.encode([target], side="target")[0][:-1], target
    if stop is not None and stop.is_set():
        raise InterruptedError("the inspection was broken off")
    device = next(model.parameters()).device
    with recorded_attention(model) as seen:
        was_training = model.training
        model.eval()
        model(torch.tensor([source], device=device), torch.tensor([[BOS, *ids]], device=device))
        model.train(was_training)
    similar = branch_similarity(model)
    layers = [_layer(*_place(name), seen[name], similar.get(name)) for name in seen]
    layers.sort(key=lambda layer: (KINDS.index(layer.kind), layer.layer))
    end = SPECIAL_TOKENS[EOS]
    tokens = [*_tokens(text, ids, "target"), end]
    return Inspection(
        source_text=sentence,
        target_text=written,
        source=[*_tokens(text, source[:-1], "source"), end],
        target=tokens,
        read=[SPECIAL_TOKENS[BOS], *tokens[:-1]],
        layers=layers,
    )


@contextmanager
def recorded_attention(model: nn.Module) -> Iterator[dict[str, Tensor]]:
    """Inside, every attention layer's weights (b, N_a, m, t, s) are kept under the layer's name.

    The model's layers are changed meanwhile: other threads wait.
    """
    seen: dict[str, Tensor] = {}
    layers = {n: m for n, m in model.named_modules() if isinstance(m, MultiBranchAttention)}
    with _one_at_a_time:
        for name, layer in layers.items():
            layer.attend = _recording(name, layer, seen)  # type: ignore[method-assign]
        try:
            yield seen
        finally:
            for layer in layers.values():
                del layer.attend


def _recording(name: str, layer: MultiBranchAttention, seen: dict[str, Tensor]) -> Any:
    def attend(
        states: Tensor,
        memory: Tensor | None = None,
        *,
        mask: Tensor | None = None,
        causal: bool = False,
        keep: Any = None,
    ) -> Tensor:
        given = states if memory is None else memory
        output, weights = layer(
            states,
            given,
            given,
            key_padding_mask=None if mask is None else ~mask[:, 0, 0],
            average_attn_weights=False,
            is_causal=causal,
            keep=keep,
        )
        seen[name] = weights
        return output

    return attend


def _layer(kind: str, number: int, weights: Tensor, similarity: float | None) -> LayerAttention:
    weights = weights[0].float().cpu()  # (N_a, m, rows, columns)
    branches = weights.mean(1)
    overlap = torch.minimum(branches.unsqueeze(0), branches.unsqueeze(1)).sum(-1).mean(-1)
    return LayerAttention(kind, number, weights, overlap, similarity)


def _place(name: str) -> tuple[str, int]:
    """decoder.3.cross_attention → ("cross", 4)"""
    stack, number, layer = name.split(".")
    return "cross" if layer == "cross_attention" else stack, int(number) + 1


def _tokens(text: TextPipeline, ids: list[int], side: str) -> list[str]:
    """Tokens as people read them: pieces inside a word begin with a small dot."""
    tokens = [text.tokenizer(side).id_to_token(number) or "?" for number in ids]
    if not any(token.startswith(WORD_START) for token in tokens):
        return tokens
    shown = []
    for token in tokens:
        begins = token.startswith(WORD_START)
        shown.append((token[1:] or token) if begins else f"‧{token}")
    return shown
