"""The fused label-smoothed cross-entropy equals its float64 definition, on every path.

As in test_kernels.py, whose `test_kernels_through_the_interpreter` runs this file too.
"""

import os

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch._subclasses import FakeTensorMode
from torch.autograd import forward_ad

from multibranch.nn.kernels import smoothed_cross_entropy
from multibranch.nn.plainly import use_reference

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cuda" if torch.cuda.is_available() and not INTERPRETED else "cpu"
PAD = 1

pytestmark = pytest.mark.usefixtures("fresh_inputs")


def problem(n: int, d: int, vocabulary: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """States, weight and targets, of which about a third are to be ignored."""
    states = torch.randn(n, d).to(DEVICE, dtype).requires_grad_()
    weight = (2 * torch.randn(vocabulary, d) / d**0.5).to(DEVICE, dtype).requires_grad_()
    targets = torch.randint(0, vocabulary, (n,))
    targets[torch.rand(n) < 0.3] = PAD
    return states, weight, targets.to(DEVICE)


def definition(
    states: Tensor, weight: Tensor, targets: Tensor, smoothing: float
) -> tuple[Tensor, Tensor]:
    logits = states @ weight.t()
    how = {"ignore_index": PAD, "reduction": "sum"}
    smoothed = F.cross_entropy(logits, targets, label_smoothing=smoothing, **how)
    return smoothed, F.cross_entropy(logits, targets, **how)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize(
    ("n", "d", "vocabulary", "dtype", "tolerance"),
    [
        (13, 16, 40, torch.float32, 1e-5),
        (6, 8, 9001, torch.float32, 1e-5),  # two blocks and a rest, rows of odd length
        (300, 8, 9001, torch.float32, 1e-5),  # two chunks and a rest, on a CPU
        (1, 4, 3, torch.float32, 1e-5),
        (20, 32, 10152, torch.bfloat16, 2e-2),
        (20, 32, 264, torch.float16, 4e-3),
    ],
)
def test_equals_its_definition(
    path_of_loss: str,
    n: int,
    d: int,
    vocabulary: int,
    dtype: torch.dtype,
    tolerance: float,
    smoothing: float,
) -> None:
    states, weight, targets = problem(n, d, vocabulary, dtype)
    doubles = [x.detach().double().requires_grad_() for x in (states, weight)]
    expected = definition(*doubles, targets, smoothing)
    got = smoothed_cross_entropy(states, weight, targets, smoothing=smoothing, ignore_index=PAD)
    assert not got[1].requires_grad
    for one, other in zip(got, expected):
        assert one.dtype == torch.float32
        assert one.item() == pytest.approx(other.item(), rel=tolerance, abs=tolerance)
    gradients = torch.autograd.grad(got[0] * 0.25, (states, weight))
    wanted = torch.autograd.grad(expected[0] * 0.25, doubles)
    # Where an input is hard for float32, PyTorch's own gradient says how hard.
    plainly = definition(states.float(), weight.float(), targets, smoothing)[0] * 0.25
    plain = torch.autograd.grad(plainly, (states, weight))
    for gradient, reference, other in zip(gradients, wanted, plain):
        error, own = ((x.double() - reference).abs().max() for x in (gradient, other))
        assert gradient.dtype == dtype
        assert error <= max(tolerance * max(reference.abs().max().item(), 1e-3), 2 * own)
    ignored = targets == PAD
    assert torch.count_nonzero(gradients[0][ignored]) == 0


def test_nothing_but_ignored_targets_is_zero(path_of_loss: str) -> None:
    states, weight, targets = problem(5, 8, 24, torch.float32)
    targets.fill_(PAD)
    loss, plain = smoothed_cross_entropy(states, weight, targets, smoothing=0.1, ignore_index=PAD)
    assert loss.item() == 0.0 and plain.item() == 0.0
    for gradient in torch.autograd.grad(loss, (states, weight)):
        assert torch.count_nonzero(gradient) == 0


def test_ignored_rows_may_hold_anything(path_of_loss: str) -> None:
    """A target of −100 lies outside the vocabulary, and huge logits of its row do no harm."""
    states, weight, targets = problem(6, 8, 24, torch.float32)
    targets[:] = torch.tensor([3, -100, 5, 23, -100, 0])
    with torch.no_grad():
        states[4] = 1e6
    loss, _ = smoothed_cross_entropy(states, weight, targets, smoothing=0.1, ignore_index=-100)
    real = [0, 2, 3, 5]
    expected, _ = definition(states[real], weight, targets[real], 0.1)
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
    assert all(x.isfinite().all() for x in torch.autograd.grad(loss, (states, weight)))


def test_without_gradient_the_losses_are_the_same(path_of_loss: str) -> None:
    states, weight, targets = problem(9, 8, 50, torch.float32)
    how = {"smoothing": 0.1, "ignore_index": PAD}
    with torch.no_grad():
        plain = smoothed_cross_entropy(states, weight, targets, **how)
    assert [x.item() for x in plain] == pytest.approx(
        [x.item() for x in smoothed_cross_entropy(states, weight, targets, **how)], rel=1e-6
    )


def test_autocast_computes_the_logits_in_its_type(path_of_loss: str) -> None:
    states, weight, targets = problem(12, 16, 40, torch.float32)
    how = {"smoothing": 0.1, "ignore_index": PAD}
    with torch.autocast(DEVICE, dtype=torch.bfloat16):
        loss, _ = smoothed_cross_entropy(states, weight, targets, **how)
    gradients = torch.autograd.grad(loss, (states, weight))
    assert all(gradient.dtype == torch.float32 for gradient in gradients)
    cast, _ = smoothed_cross_entropy(states.bfloat16(), weight.bfloat16(), targets, **how)
    assert loss.item() == cast.item()
    for gradient, other in zip(gradients, torch.autograd.grad(cast, (states, weight))):
        assert torch.equal(gradient, other)


def test_a_second_derivative_is_refused_but_in_the_reference(path_of_loss: str) -> None:
    """The gradients are constants to autograd: a penalty on them would have none, in silence."""
    states, weight, targets = problem(12, 16, 40, torch.float32)

    def penalty() -> Tensor:
        loss, _ = smoothed_cross_entropy(states, weight, targets, smoothing=0.1, ignore_index=PAD)
        (gradient,) = torch.autograd.grad(loss, states, create_graph=True)
        return loss + gradient.square().sum()

    if path_of_loss != "plain":
        with pytest.raises(RuntimeError, match="no second derivative: compute it inside"):
            penalty()
    with use_reference():
        (found,) = torch.autograd.grad(penalty(), states)
    assert found.isfinite().all()


def test_compiles_without_a_graph_break(path_of_loss: str) -> None:
    def objective(states: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
        loss, plain = smoothed_cross_entropy(
            states.tanh(), weight, targets, smoothing=0.1, ignore_index=PAD
        )
        return torch.stack([loss, plain])

    states, weight, targets = problem(10, 8, 40, torch.float32)
    compiled = torch.compile(objective, backend="aot_eager", fullgraph=True)
    results = []
    for function in (objective, compiled):
        out = function(states, weight, targets)
        results.append([out, *torch.autograd.grad(out[0], (states, weight))])
    for got, wanted in zip(*results):
        torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.skipif(DEVICE != "cpu" or INTERPRETED, reason="of the loss on a CPU")
def test_fake_tensors_and_dual_numbers_take_pytorchs_own_loss() -> None:
    states, weight, targets = (x.detach() for x in problem(9, 8, 50, torch.float32))
    how = {"smoothing": 0.1, "ignore_index": PAD}
    with FakeTensorMode() as mode:
        fakes = [mode.from_tensor(x) for x in (states, weight, targets)]
        assert smoothed_cross_entropy(*fakes, **how)[0].shape == ()
    direction = torch.randn_like(states)
    with forward_ad.dual_level():
        loss, _ = smoothed_cross_entropy(
            forward_ad.make_dual(states, direction), weight, targets, **how
        )
        tangent = forward_ad.unpack_dual(loss).tangent
    states.requires_grad_()
    (gradient,) = torch.autograd.grad(
        smoothed_cross_entropy(states, weight, targets, **how)[0], states
    )
    torch.testing.assert_close(tangent, (gradient * direction).sum())


@pytest.mark.usefixtures("triton")
def test_triton_operator_keeps_pytorchs_rules() -> None:
    arguments = (*problem(7, 8, 24, torch.float32), 0.1, PAD, True)
    torch.library.opcheck(torch.ops.multibranch.smoothed_cross_entropy, arguments)


def test_mistakes_are_named() -> None:
    with pytest.raises(ValueError, match=r"must be \(n, d\), \(V, d\), \(n,\), not \(2, 3, 4\)"):
        smoothed_cross_entropy(
            torch.zeros(2, 3, 4), torch.zeros(5, 4), torch.zeros(6), smoothing=0.1, ignore_index=1
        )
