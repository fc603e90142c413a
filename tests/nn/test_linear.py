"""`linear` is torch.nn.functional.linear, whichever library multiplies."""

from collections.abc import Iterator
from unittest.mock import patch

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from multibranch.nn import linear as module
from multibranch.nn.linear import linear
from multibranch.nn.plainly import use_reference

ONEDNN = torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")

pytestmark = pytest.mark.skipif(not ONEDNN, reason="this build of PyTorch is without oneDNN")


@pytest.fixture
def multiplied() -> Iterator[list[tuple[int, ...]]]:
    """oneDNN multiplies whatever the processor; the shapes of the rows that it was given."""
    calls: list[tuple[int, ...]] = []
    product = module._multiply

    def counted(rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        calls.append(tuple(rows.shape))
        return product(rows, weight, bias)

    with (
        patch.object(module, "prefers_onednn", return_value=True),
        patch.object(module, "_multiply", counted),
    ):
        yield calls


def gradients(product: object, *inputs: Tensor) -> list[Tensor]:
    leaves = [each.detach().clone().requires_grad_() for each in inputs]
    output = product(*leaves)  # type: ignore[operator]
    weights = torch.linspace(-1, 1, output.numel()).view(output.shape).to(output.dtype)
    return [output, *torch.autograd.grad((output * weights).sum(), leaves)]


@pytest.mark.parametrize(
    ("rows", "inner", "outer"), [((64,), 128, 512), ((3, 40), 512, 128), ((), 2048, 1100)]
)
@pytest.mark.parametrize("transposed", [False, True])
def test_equals_pytorchs_with_all_gradients(
    multiplied: list, rows: tuple[int, ...], inner: int, outer: int, transposed: bool
) -> None:
    states, bias = torch.randn(*rows, inner), torch.randn(outer)
    weight = torch.randn(inner, outer).t() if transposed else torch.randn(outer, inner)
    found = gradients(linear, states, weight, bias)
    assert len(multiplied) == 3  # the product, and the gradients of both of its factors
    wanted = gradients(F.linear, *(each.double() for each in (states, weight, bias)))
    for ours, theirs in zip(found, wanted, strict=True):
        assert ours.shape == theirs.shape and ours.dtype == torch.float32
        torch.testing.assert_close(ours.double(), theirs, rtol=1e-4, atol=1e-3)


def test_only_the_gradients_asked_for_are_computed(multiplied: list) -> None:
    states, weight = torch.randn(64, 256), torch.randn(256, 256, requires_grad=True)
    linear(states, weight).sum().backward()
    assert len(multiplied) == 2 and states.grad is None
    with torch.no_grad():
        assert not linear(states, weight).requires_grad
    assert len(multiplied) == 3


def test_a_gradient_has_a_gradient(multiplied: list) -> None:
    def penalty(product: object, dtype: torch.dtype) -> Tensor:
        states, weight = (x.detach().to(dtype).requires_grad_() for x in inputs)
        output = product(states, weight)  # type: ignore[operator]
        (gradient,) = torch.autograd.grad(output.square().sum(), states, create_graph=True)
        (found,) = torch.autograd.grad(gradient.square().sum(), weight)
        return found / found.norm()

    inputs = torch.randn(64, 256), torch.randn(256, 256)
    wanted = penalty(F.linear, torch.float64)
    torch.testing.assert_close(penalty(linear, torch.float32).double(), wanted)
    assert multiplied


def test_other_types_and_small_products_are_left_to_pytorch(multiplied: list) -> None:
    linear(torch.randn(4, 16), torch.randn(16, 16))
    linear(torch.randn(64, 256).double(), torch.randn(256, 256).double())
    linear(torch.randn(64, 256).bfloat16(), torch.randn(256, 256).bfloat16())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert linear(torch.randn(64, 256), torch.randn(256, 256)).dtype == torch.bfloat16
    assert multiplied == []


def test_a_bias_may_lie_anywhere(multiplied: list) -> None:
    """oneDNN reads it from where it begins: these would be other numbers, or another's memory."""
    states, weight = torch.randn(64, 256), torch.randn(256, 256)
    for bias in (torch.randn(512)[::2], torch.randn(1).expand(256), torch.randn(1)):
        wanted = F.linear(states.double(), weight.double(), bias.double())
        torch.testing.assert_close(linear(states, weight, bias).double(), wanted, atol=1e-3, rtol=0)


def test_what_does_not_fit_is_refused_in_pytorchs_words(multiplied: list) -> None:
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        linear(torch.randn(64, 300), torch.randn(256, 256))


def test_dual_numbers_and_traces_are_pytorchs(multiplied: list) -> None:
    states, tangent, weight = torch.randn(64, 256), torch.randn(64, 256), torch.randn(256, 256)
    with torch.no_grad(), torch.autograd.forward_ad.dual_level():
        dual = linear(torch.autograd.forward_ad.make_dual(states, tangent), weight)
        found = torch.autograd.forward_ad.unpack_dual(dual).tangent
    torch.testing.assert_close(found, F.linear(tangent, weight))
    traced = torch.jit.trace(lambda rows: linear(rows, weight), states, check_trace=False)
    torch.testing.assert_close(traced(tangent), found)
    assert multiplied == []


def test_the_reference_is_pytorchs(multiplied: list) -> None:
    with use_reference():
        linear(torch.randn(64, 256), torch.randn(256, 256))
    with torch.backends.mkldnn.flags(enabled=False):
        linear(torch.randn(64, 256), torch.randn(256, 256))
    assert multiplied == []


def test_vmap_and_compilers_see_pytorchs_own(multiplied: list) -> None:
    states, weights = torch.randn(3, 64, 256), torch.randn(3, 256, 256)
    found = torch.vmap(linear)(states, weights)
    torch.testing.assert_close(found, states @ weights.transpose(1, 2))
    compiled = torch.compile(linear, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(states[0], weights[0]), found[0])
    assert multiplied == []


def test_operations_are_counted_as_pytorchs(multiplied: list) -> None:
    states, weight = torch.randn(64, 256), torch.randn(256, 256, requires_grad=True)
    with FlopCounterMode(display=False) as counted:
        linear(states, weight).sum().backward()
    assert counted.get_total_flops() == 2 * (2 * 64 * 256 * 256)  # the product, and a gradient
    assert multiplied == []
