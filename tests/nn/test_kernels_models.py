"""Models whose weights are stacked, through torch.vmap, equal each model by itself, on both paths.

As in test_kernels.py, whose `test_kernels_through_the_interpreter` runs this file too.
"""

import os

import pytest
import torch
from torch import Tensor
from torch.func import functional_call, stack_module_state

from multibranch.nn import MultiBranchTransformer
from multibranch.nn.kernels import (
    make_segments,
    packed_self_attention,
    smoothed_cross_entropy,
)

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cuda" if torch.cuda.is_available() and not INTERPRETED else "cpu"
MODELS = 3


class Loss(torch.nn.Module):
    """The smoothed loss of a packed batch."""

    def __init__(self, attention_dropout: float = 0.0) -> None:
        super().__init__()
        self.model = MultiBranchTransformer(
            source_vocabulary=40,
            target_vocabulary=40,
            width=32,
            hidden=48,
            heads=2,
            encoder_layers=1,
            decoder_layers=1,
            branches=2,
            dropout=0.0,
            attention_dropout=attention_dropout,
        )

    def forward(self, keep: Tensor | None, source: Tensor, target: Tensor, *cuts: Tensor) -> Tensor:
        states = self.model.states(
            source,
            target,
            source_boundaries=cuts[0],
            target_boundaries=cuts[1],
            source_longest=8,
            target_longest=9,
            keep=keep,
        )
        vectors = self.model.output_vectors
        return smoothed_cross_entropy(states, vectors, target, smoothing=0.1, ignore_index=1)[0]


def problem() -> list[Tensor]:
    """The packed batches of all models, one a row: source, target and their boundaries."""
    ids = torch.randint(4, 40, (2, MODELS, 20))
    cuts = torch.tensor([[[0, 5 + k, 12, 17], [0, 4, 9 + k, 18]] for k in range(MODELS)])
    return [x.to(DEVICE) for x in (*ids, *cuts.int().transpose(0, 1))]


def side_by_side(
    loss: Loss, weights: dict[str, Tensor], keep: Tensor | None, *batch: Tensor
) -> Tensor:
    """(models,): the loss of every model, its weights stacked with the others'."""

    def of_one(weights: dict[str, Tensor], keep: Tensor | None, *batch: Tensor) -> Tensor:
        return functional_call(loss, weights, (keep, *batch))

    dims = (0, None if keep is None else 0, *(0 for _ in batch))
    return torch.vmap(of_one, in_dims=dims, randomness="different")(weights, keep, *batch)


@pytest.mark.parametrize("drops", [False, True])
def test_each_model_is_what_it_is_alone(path: str, drops: bool) -> None:
    losses, batch = [Loss().to(DEVICE) for _ in range(MODELS)], problem()
    units = len(losses[0].model.drop_rates())
    keep = (2 * torch.randint(2, (MODELS, units))).float().to(DEVICE) if drops else None
    stacked = {n: w.detach().requires_grad_() for n, w in stack_module_state(losses)[0].items()}
    found = side_by_side(losses[0], stacked, keep, *batch)
    gradients = dict(zip(stacked, torch.autograd.grad(found.sum(), list(stacked.values()))))
    for place, loss in enumerate(losses):
        factors = None if keep is None else keep[place]
        alone = loss(factors, *(row[place] for row in batch))
        torch.testing.assert_close(found[place], alone, rtol=1e-5, atol=1e-5)
        alone.backward()
        for name, parameter in loss.named_parameters():
            assert parameter.grad is not None
            torch.testing.assert_close(
                gradients[name][place], parameter.grad, rtol=1e-4, atol=1e-5, msg=name
            )


def test_compiles_without_a_graph_break(path: str) -> None:
    losses, batch = [Loss().to(DEVICE) for _ in range(MODELS)], problem()
    keep = torch.ones(MODELS, len(losses[0].model.drop_rates()), device=DEVICE)
    weights, _ = stack_module_state(losses)

    compiled = torch.compile(side_by_side, backend="aot_eager", fullgraph=True, dynamic=False)
    found = compiled(losses[0], weights, keep, *batch)
    alone = side_by_side(losses[0], weights, keep, *batch)
    torch.testing.assert_close(found, alone, rtol=1e-5, atol=1e-5)


def test_attention_weights_are_dropped_for_each_model_by_itself(path: str) -> None:
    loss, batch = Loss(attention_dropout=0.5).to(DEVICE), problem()
    same = [row[:1].expand_as(row) for row in batch]
    weights, _ = stack_module_state([loss] * MODELS)
    found = side_by_side(loss, weights, None, *same)
    assert len(set(found.tolist())) == MODELS


def test_factors_are_not_rounded_to_the_type_of_the_states(path: str) -> None:
    """As bfloat16, 1/(1 - 0.3) is 0.08% more: with it every pass would be a little too large."""
    qkv = torch.zeros(1, 4, 3, 2, 16, dtype=torch.bfloat16, device=DEVICE)
    qkv[:, :, 2] = torch.linspace(1, 2, 16)
    segments = make_segments(torch.tensor([0, 4], device=DEVICE), 4)
    scale = torch.full((1, 2), 1 / 0.7, device=DEVICE)

    def attend(qkv: Tensor, scale: Tensor) -> Tensor:
        return packed_self_attention(qkv, segments, head_scale=scale)

    # Not compared with one model: the interpreter cuts off what a kernel stores as bfloat16.
    assert torch.equal(torch.vmap(attend)(qkv, scale), (qkv[:, :, 2].float() / 0.7).bfloat16())
