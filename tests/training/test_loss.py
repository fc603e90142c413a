"""The losses against their definitions, written out in float64."""

import pytest
import torch

from multibranch.nn import MultiBranchTransformer, kernels
from multibranch.training.loss import consistency, gradient_norm
from multibranch.training.step import Objective

PADDING = 1


def reference(logits: torch.Tensor, targets: torch.Tensor, smoothing: float) -> torch.Tensor:
    """−Σ_t Σ_v q(v)·log p(v), q = ε/V everywhere and 1 − ε more at the target; padding left out."""
    total = torch.zeros((), dtype=torch.float64)
    size = logits.shape[-1]
    for row, target in zip(logits.double().reshape(-1, size), targets.flatten()):
        if target != PADDING:
            wanted = torch.full((size,), smoothing / size, dtype=torch.float64)
            wanted[target] += 1 - smoothing
            total -= (wanted * row.log_softmax(-1)).sum()
    return total


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.5])
def test_smoothed_loss_equals_its_definition(smoothing: float) -> None:
    torch.manual_seed(0)
    logits, targets = torch.randn(3, 5, 11), torch.randint(2, 11, (3, 5))
    targets[0, 3:] = PADDING
    smoothed, plain = kernels.label_smoothed(
        logits.flatten(0, 1), targets.flatten(), smoothing=smoothing, ignore_index=PADDING
    )
    torch.testing.assert_close(
        smoothed.double(), reference(logits, targets, smoothing), rtol=1e-6, atol=1e-5
    )
    torch.testing.assert_close(
        plain.double(), reference(logits, targets, 0.0), rtol=1e-6, atol=1e-5
    )


def test_smoothed_loss_equals_torch() -> None:
    torch.manual_seed(1)
    logits, targets = torch.randn(7, 13), torch.randint(0, 13, (7,))
    ours, _ = kernels.label_smoothed(logits, targets, smoothing=0.1, ignore_index=PADDING)
    theirs = torch.nn.functional.cross_entropy(
        logits, targets, ignore_index=PADDING, label_smoothing=0.1, reduction="sum"
    )
    torch.testing.assert_close(ours, theirs)


def test_training_uses_that_loss() -> None:
    torch.manual_seed(2)
    states, vectors = torch.randn(6, 4), torch.randn(9, 4)
    targets = torch.tensor([3, 1, 8, 0, 1, 5])
    fused = kernels.smoothed_cross_entropy(
        states, vectors, targets, smoothing=0.2, ignore_index=PADDING
    )
    torch.testing.assert_close(
        fused[0].double(), reference(states @ vectors.t(), targets, 0.2), rtol=1e-6, atol=1e-5
    )


def model() -> MultiBranchTransformer:
    torch.manual_seed(3)
    return MultiBranchTransformer(
        source_vocabulary=12,
        target_vocabulary=12,
        width=16,
        hidden=32,
        heads=2,
        encoder_layers=1,
        decoder_layers=1,
        branches=2,
        drop_branch=0.5,
        dropout=0.0,
    )


def divergence(one: torch.Tensor, other: torch.Tensor, real: torch.Tensor) -> torch.Tensor:
    """Σ_t Σ_v p(v)·log(p(v)/q(v))."""
    p, q = one.double().softmax(-1), other.double().softmax(-1)
    return ((p * (p / q).log()).sum(-1) * real).sum()


def test_consistency_is_the_mean_of_both_divergences() -> None:
    torch.manual_seed(4)
    first, second = torch.randn(2, 3, 8), torch.randn(2, 3, 8)
    targets = torch.tensor([[2, 3, 1], [4, 1, 1]])
    real = targets != PADDING
    wanted = (divergence(first, second, real) + divergence(second, first, real)) / 2
    found = consistency(first, second, targets, padding=PADDING)
    torch.testing.assert_close(found.double(), wanted, rtol=1e-5, atol=1e-6)


def test_r_drop_equals_its_definition() -> None:
    network, alpha, smoothing = model(), 3.0, 0.1
    source = torch.tensor([[5, 6, 2, 1], [7, 8, 9, 2]])
    target_input = torch.tensor([[0, 6, 5], [0, 9, 8]])
    target_output = torch.tensor([[6, 5, 2], [9, 8, 1]])
    generator = torch.Generator().manual_seed(0)
    keeps = [network.draw_keep(generator=generator) for _ in range(2)]
    assert not torch.equal(keeps[0], keeps[1])
    objective = Objective(network, smoothing=smoothing, r_drop=alpha).train()
    loss, plain = objective(source, target_input, target_output, None, None, *keeps)
    logits = [network(source, target_input, keep=keep) for keep in keeps]
    real = target_output != PADDING
    apart = (divergence(*logits, real) + divergence(*reversed(logits), real)) / 2
    entropies = [reference(each, target_output, smoothing) for each in logits]
    wanted = (entropies[0] + entropies[1] + alpha * apart) / 2
    torch.testing.assert_close(loss.double(), wanted, rtol=1e-5, atol=1e-4)
    mean = (reference(logits[0], target_output, 0.0) + reference(logits[1], target_output, 0.0)) / 2
    torch.testing.assert_close(plain.double(), mean, rtol=1e-5, atol=1e-4)


def test_validation_with_r_drop_is_one_pass_without_it() -> None:
    network = model()
    ids = (torch.tensor([[5, 6, 2]]), torch.tensor([[0, 6]]), torch.tensor([[6, 2]]), None, None)
    with_it = Objective(network, smoothing=0.1, r_drop=5.0).eval()(*ids, None)
    without = Objective(network, smoothing=0.1).eval()(*ids, None)
    assert torch.equal(with_it, without)


def test_gradient_norm_is_that_of_one_vector() -> None:
    gradients = [torch.tensor([3.0, 0.0]), torch.tensor([[4.0], [12.0]])]
    assert gradient_norm(gradients).item() == pytest.approx(13.0)
