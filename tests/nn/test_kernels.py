"""Attention over packed sequences equals a plain float64 loop over the sequences, on every path.

The same tests serve all paths: "plain" (PyTorch), the kernels in C for the processors that this
one can stand for, and "triton" (on a GPU where there is one, otherwise through Triton's
interpreter, which has to be chosen before Triton is imported;
`test_kernels_through_the_interpreter` therefore runs this file once more in a process of its own).
"""

import importlib.util
import math
import os
import subprocess
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from multibranch.nn import kernels
from multibranch.nn.kernels import (
    Segments,
    make_segments,
    packed_cross_attention,
    packed_self_attention,
)
from multibranch.nn.plainly import use_reference

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cuda" if torch.cuda.is_available() and not INTERPRETED else "cpu"

pytestmark = pytest.mark.usefixtures("fresh_inputs")

# Lengths of the queries' and the keys' sequences, and the tokens in their tails.
SHAPES = {
    "one-token": ([1] * 9, [1] * 9, 0, 0),
    "full-length": ([70], [45], 0, 0),
    "mixed": ([5, 1, 17, 40, 3], [7, 30, 1, 2, 33], 4, 0),
    "empty-sequences": ([0, 6, 0, 0, 33, 9, 0, 0], [3, 8, 0, 11, 0, 25, 0, 0], 7, 2),
    "long-tail": ([3, 10], [12, 2], 90, 70),
    "all-tail": ([0, 0], [0, 4], 20, 3),
    "longer-than-tiles": ([11, 100, 9], [40, 3, 70], 1, 1),
}


def boundaries_of(lengths: list[int]) -> Tensor:
    return torch.tensor([0, *lengths], dtype=torch.int32).cumsum(0).to(DEVICE, torch.int32)


def segments_of(lengths: list[int], tail: int) -> Segments:
    return make_segments(boundaries_of(lengths), sum(lengths) + tail, longest=max([1, *lengths]))


def random(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, dtype=torch.float64).to(DEVICE, dtype)


def loop(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    q_lengths: list[int],
    k_lengths: list[int],
    *,
    causal: bool = False,
    head_scale: Tensor | None = None,
) -> Tensor:
    """The definition: one sequence after the other, q (n, h, w), k and v (s, h, w), float64."""
    outputs = []
    q_start = k_start = 0
    for t, s in zip(q_lengths, k_lengths):
        if s == 0:
            outputs.append(q[q_start : q_start + t] * 0.0)
        else:
            keys = slice(k_start, k_start + s)
            scores = torch.einsum("qhw,khw->hqk", q[q_start : q_start + t], k[keys])
            scores = scores / math.sqrt(q.shape[-1])
            if causal:
                future = torch.ones(t, s, dtype=torch.bool, device=q.device).triu(1)
                scores = scores.masked_fill(future, -math.inf)
            outputs.append(torch.einsum("hqk,khw->qhw", scores.softmax(-1), v[keys]))
        q_start, k_start = q_start + t, k_start + s
    outputs.append(q[q_start:] * 0.0)
    output = torch.cat(outputs)
    return output if head_scale is None else output * head_scale.double()[:, None]


def check(
    got: Tensor, expected: Tensor, inputs: list[Tensor], doubles: list[Tensor], tolerance: float
) -> None:
    """Outputs and all gradients agree, relative to the largest expected value (or to one)."""
    grad = torch.randn_like(got)
    results = [got, *torch.autograd.grad(got, inputs, grad, materialize_grads=True)]
    references = [
        expected,
        *torch.autograd.grad(expected, doubles, grad.double(), materialize_grads=True),
    ]
    for result, reference in zip(results, references):
        assert result.shape == reference.shape and result.dtype == inputs[0].dtype
        error = (result.double() - reference).abs().max().item()
        assert error <= tolerance * max(1.0, reference.abs().max().item())


def check_self(
    lengths: list[int],
    tail: int,
    *,
    heads: int,
    width: int,
    causal: bool,
    head_scale: Tensor | None = None,
    dtype: torch.dtype = torch.float32,
    tolerance: float = 1e-5,
) -> None:
    qkv = random(sum(lengths) + tail, 3, heads, width, dtype=dtype).requires_grad_()
    double = qkv.detach().double().requires_grad_()
    got = packed_self_attention(
        qkv, segments_of(lengths, tail), causal=causal, head_scale=head_scale
    )
    expected = loop(*double.unbind(1), lengths, lengths, causal=causal, head_scale=head_scale)
    check(got, expected, [qkv], [double], tolerance)


def check_cross(
    q_lengths: list[int],
    k_lengths: list[int],
    tails: tuple[int, int],
    *,
    heads: int,
    width: int,
    head_scale: Tensor | None = None,
    dtype: torch.dtype = torch.float32,
    tolerance: float = 1e-5,
) -> None:
    q = random(sum(q_lengths) + tails[0], heads, width, dtype=dtype).requires_grad_()
    kv = random(sum(k_lengths) + tails[1], 2, heads, width, dtype=dtype).requires_grad_()
    doubles = [x.detach().double().requires_grad_() for x in (q, kv)]
    segments, memory_segments = segments_of(q_lengths, tails[0]), segments_of(k_lengths, tails[1])
    got = packed_cross_attention(q, kv, segments, memory_segments, head_scale=head_scale)
    expected = loop(doubles[0], *doubles[1].unbind(1), q_lengths, k_lengths, head_scale=head_scale)
    check(got, expected, [q, kv], doubles, tolerance)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_self_attention_equals_the_loop(path_of_attention: str, shape: str, causal: bool) -> None:
    lengths, _, tail, _ = SHAPES[shape]
    check_self(lengths, tail, heads=2, width=32, causal=causal)


@pytest.mark.parametrize("shape", SHAPES)
def test_cross_attention_equals_the_loop(path_of_attention: str, shape: str) -> None:
    q_lengths, k_lengths, *tails = SHAPES[shape]
    check_cross(q_lengths, k_lengths, (tails[0], tails[1]), heads=2, width=32)


@pytest.mark.parametrize("branches", range(1, 9))
def test_every_number_of_branches(path_of_attention: str, branches: int) -> None:
    heads_of_branch = 1 + branches % 2
    heads = branches * heads_of_branch
    kept = torch.ones(branches).bernoulli_(0.6).repeat_interleave(heads_of_branch)
    scale = kept.to(DEVICE) / 0.6
    check_self([4, 15, 1, 9], 3, heads=heads, width=32, causal=True, head_scale=scale)
    check_cross([4, 15, 1], [9, 2, 20], (3, 1), heads=heads, width=32, head_scale=scale)


@pytest.mark.parametrize("width", [16, 24, 64, 128])
def test_head_widths(path_of_attention: str, width: int) -> None:
    check_self([9, 30, 1], 2, heads=2, width=width, causal=False)
    check_cross([9, 30, 1], [12, 1, 18], (2, 4), heads=2, width=width)


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.bfloat16, 2e-2), (torch.float16, 3e-3), (torch.float64, 1e-12)]
)
@pytest.mark.parametrize("width", [32, 64])
def test_types(path_of_attention: str, width: int, dtype: torch.dtype, tolerance: float) -> None:
    scale = torch.tensor([1.25, 0.0], device=DEVICE)
    how = {"heads": 2, "width": width, "dtype": dtype, "tolerance": tolerance, "head_scale": scale}
    check_self([20, 1, 70, 15], 6, causal=True, **how)
    check_cross([20, 1, 70], [33, 60, 4], (6, 0), **how)


def test_random_shapes(path_of_attention: str) -> None:
    """Lengths drawn afresh: half of the sequences are empty or of one token in some draws."""
    for _ in range(2):
        sequences = int(torch.randint(1, 8, ()))
        longest = int(torch.randint(1, 60, ()))
        q_lengths, k_lengths = torch.randint(0, longest + 1, (2, sequences)).tolist()
        tails = tuple(torch.randint(0, 40, (2,)).tolist())
        q_lengths[0], k_lengths[0] = max(q_lengths[0], 1), max(k_lengths[0], 1)
        check_self(q_lengths, tails[0], heads=2, width=16, causal=bool(torch.randint(2, ())))
        check_cross(q_lengths, k_lengths, tails, heads=2, width=16)


def test_a_dropped_head_gives_exact_zeros(path_of_attention: str) -> None:
    qkv = random(40, 3, 3, 32).requires_grad_()
    scale = torch.tensor([1.0, 0.0, 2.0], device=DEVICE)
    out = packed_self_attention(qkv, segments_of([25, 10], 5), head_scale=scale)
    (gradient,) = torch.autograd.grad(out.square().sum(), qkv)
    assert torch.count_nonzero(out[:, 1]) == 0 and torch.count_nonzero(gradient[:, :, 1]) == 0
    assert torch.count_nonzero(out[:35, [0, 2]]) == 35 * 2 * 32
    assert torch.count_nonzero(out[35:]) == 0 and torch.count_nonzero(gradient[35:]) == 0


def test_every_element_is_written(path_of_attention: str) -> None:
    """With NaN in all fresh memory, nothing that the kernels leave out could stay hidden."""
    torch.use_deterministic_algorithms(True, warn_only=True)  # fills torch.empty with NaN
    try:
        assert torch.empty(1).isnan()
        scale = torch.tensor([1.0, 0.0], device=DEVICE)
        check_self([3, 0, 20], 50, heads=2, width=32, causal=True, head_scale=scale)
        check_cross([3, 0, 20], [0, 5, 9], (50, 40), heads=2, width=32, head_scale=scale)
    finally:
        torch.use_deterministic_algorithms(False)


def test_strided_inputs(path_of_attention: str) -> None:
    """Views into wider tensors, transposed ones too, give what their copies give."""
    segments, memory_segments = segments_of([7, 12], 2), segments_of([9, 4], 0)
    wide = random(21, 3, 4, 48)
    for qkv in (wide[:, :, 1:3, :32], wide[..., :16].transpose(2, 3)[:, :, :, :4].transpose(2, 3)):
        got = packed_self_attention(qkv, segments, causal=True)
        assert torch.equal(got, packed_self_attention(qkv.contiguous(), segments, causal=True))
    across = wide.transpose(2, 3)[:, :, 16:].contiguous().transpose(2, 3)[..., :32]
    assert across.stride(-1) != 1
    q, kv = across[:, 0], across[:13, 1:]
    got = packed_cross_attention(q, kv, segments, memory_segments)
    copied = packed_cross_attention(q.contiguous(), kv.contiguous(), segments, memory_segments)
    assert torch.equal(got, copied)


def test_compiles_without_a_graph_break(path: str) -> None:
    def layers(qkv: Tensor, kv: Tensor, boundaries: Tensor, memory_boundaries: Tensor) -> Tensor:
        segments = make_segments(boundaries, qkv.shape[0], longest=30)
        memory_segments = make_segments(memory_boundaries, kv.shape[0], longest=20)
        states = packed_self_attention(qkv, segments, causal=True)
        states = packed_cross_attention(states, kv, segments, memory_segments)
        return packed_cross_attention(states, kv, segments, memory_segments)

    qkv, kv = random(50, 3, 2, 16).requires_grad_(), random(40, 2, 2, 16).requires_grad_()
    marks = boundaries_of([30, 11]), boundaries_of([18, 20])
    compiled = torch.compile(layers, backend="aot_eager", fullgraph=True)
    for function in (layers, compiled):
        out = function(qkv, kv, *marks)
        gradients = torch.autograd.grad(out.square().sum(), (qkv, kv))
        if function is layers:
            expected = out, *gradients
    for got, wanted in zip((out, *gradients), expected):
        torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.usefixtures("triton")
def test_triton_operators_keep_pytorchs_rules() -> None:
    """Schema, shapes without data, autograd and compilation, by PyTorch's own checker."""
    intervals = kernels._intervals(segments_of([9, 7], 1), segments_of([9, 7], 1), False)
    scale = torch.tensor([1.0, 0.0], device=DEVICE)
    qkv, q = random(17, 3, 2, 16).requires_grad_(), random(17, 2, 16).requires_grad_()
    kv = random(17, 2, 2, 16).requires_grad_()
    seed = torch.tensor([7], device=DEVICE)
    torch.library.opcheck(torch.ops.multibranch.self_attention, (qkv, *intervals, scale, 0.0, None))
    torch.library.opcheck(
        torch.ops.multibranch.cross_attention, (q, kv, *intervals, None, 0.2, seed)
    )


@pytest.mark.usefixtures("triton")
def test_triton_refuses_a_second_derivative_that_products_have() -> None:
    segments = segments_of([5, 3], 2)

    def penalty(states: Tensor, attend: Callable[[Tensor], Tensor]) -> Tensor:
        output = attend(states)
        (gradient,) = torch.autograd.grad(output.square().sum(), states, create_graph=True)
        return output.sum() + gradient.square().sum()

    def of_self(qkv: Tensor) -> Tensor:
        return packed_self_attention(qkv, segments)

    def of_cross(q: Tensor) -> Tensor:
        return packed_cross_attention(q, random(10, 2, 2, 16), segments, segments)

    for attend, shape in ((of_self, (10, 3, 2, 16)), (of_cross, (10, 2, 16))):
        states = random(*shape).requires_grad_()
        with pytest.raises(RuntimeError, match="this attention has no second derivative"):
            penalty(states, attend)
        with use_reference(), sdpa_kernel(SDPBackend.MATH):
            (found,) = torch.autograd.grad(penalty(states, attend), states)
        assert found.isfinite().all()


@pytest.mark.usefixtures("triton")
def test_triton_gives_the_same_with_any_tiles() -> None:
    from multibranch.nn import triton_kernels

    lengths = [9, 1, 40, 3, 22]
    qkv, grad = random(80, 3, 2, 32), random(80, 2, 32)
    double = qkv.double().requires_grad_()
    expected = loop(*double.unbind(1), lengths, lengths, causal=True)
    (wanted,) = torch.autograd.grad(expected, double, grad.double())
    segments = segments_of(lengths, 5)
    intervals = kernels._intervals(segments, segments, True)
    q, k, v = qkv.unbind(1)
    for own, visit in ((16, 64), (64, 16), (32, 128)):
        tiles = triton_kernels.Tiles(own, visit, 4, 1)
        out, lse = triton_kernels.launch_forward(q, k, v, *intervals[:2], None, tiles)
        gradient = torch.empty_like(qkv)
        dq, dk, dv = gradient.unbind(1)
        triton_kernels.launch_backward(
            grad, q, k, v, out, lse, intervals, None, (dq, dk, dv), tiles
        )
        torch.testing.assert_close(out.double(), expected.detach(), rtol=0, atol=1e-5)
        torch.testing.assert_close(gradient.double(), wanted, rtol=0, atol=1e-5)


def test_gradcheck_of_the_plain_path() -> None:
    segments, memory_segments = segments_of([3, 0, 4], 2), segments_of([2, 5, 1], 1)
    qkv = random(9, 3, 2, 5, dtype=torch.float64).requires_grad_()
    q = random(9, 2, 5, dtype=torch.float64).requires_grad_()
    kv = random(9, 2, 2, 5, dtype=torch.float64).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: packed_self_attention(x, segments, causal=True), qkv)
    assert torch.autograd.gradcheck(
        lambda x, y: packed_cross_attention(x, y, segments, memory_segments), (q, kv)
    )


def test_one_padded_group_equals_the_groups_by_length(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a device or a compiled graph pads at once is the same as what a CPU groups by length."""
    lengths = [3, 0, 17, 1, 64, 5]
    qkv = random(95, 3, 2, 16)
    with use_reference():
        expected = packed_self_attention(qkv, segments_of(lengths, 5), causal=True)
        monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
        got = packed_self_attention(qkv, segments_of(lengths, 5), causal=True)
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-6)


def test_dropout_keeps_the_mean(path: str) -> None:
    heads = 30  # each draws for itself
    qkv = random(6, 3, heads, 16)
    qkv[:, :2] = 0.0  # all weights equal: the output is the mean of the values
    qkv[:, 2] = qkv[:, 2, :1]
    segments = segments_of([6], 0)
    torch.manual_seed(3)
    draws = torch.cat(
        [packed_self_attention(qkv, segments, dropout_p=0.4) for _ in range(3)], dim=1
    ).transpose(0, 1)  # (draws, n, w)
    exact = packed_self_attention(qkv, segments)[:, 0]
    spread = draws.std(0) / math.sqrt(len(draws))
    assert draws.std(0).max() > 0.05
    assert ((draws.mean(0) - exact).abs() / spread).max() < 4.5


@pytest.mark.usefixtures("triton")
@pytest.mark.parametrize("causal", [False, True])
def test_triton_dropout_equals_its_definition(causal: bool) -> None:
    """The factors that were drawn are read off by values that form an identity, then held fixed."""
    from multibranch.nn import triton_kernels

    lengths, heads, width, dropout = [20, 1, 11], 2, 64, 0.3
    segments = segments_of(lengths, 3)
    intervals = kernels._intervals(segments, segments, causal)
    qkv, grad = random(35, 3, heads, width), random(35, heads, width)
    q, k, v = qkv.unbind(1)
    seed = torch.tensor([123456789], device=DEVICE)
    scale = torch.tensor([1.0, 0.5], device=DEVICE)
    drawn = {"dropout": dropout, "seed": seed}
    qk_names = qkv.clone()
    qk_names[:, 2] = torch.eye(35, width, device=DEVICE)[:, None]
    kept, _ = triton_kernels.launch_forward(*qk_names.unbind(1), *intervals[:2], None, **drawn)
    whole, _ = triton_kernels.launch_forward(*qk_names.unbind(1), *intervals[:2], None)
    factors = torch.where(whole > 0, kept / whole.clamp_min(1e-30), 0)[..., :35].double()
    seen = whole[..., :35] > 0
    assert sorted({round(x, 3) for x in factors[seen].tolist()}) == [0.0, 1.429]
    share = (factors[seen] == 0).double().mean().item()
    assert abs(share - dropout) < 4 * math.sqrt(dropout * 0.7 / int(seen.sum()))

    double = qkv.double().requires_grad_()
    dq, dk, dv = double.unbind(1)
    scores = torch.einsum("qhw,khw->qhk", dq, dk) / math.sqrt(width)
    weights = scores.masked_fill(~seen, -math.inf).softmax(-1).nan_to_num(0.0)
    expected = torch.einsum("qhk,khw->qhw", weights * factors, dv) * scale.double()[:, None]
    (wanted,) = torch.autograd.grad(expected, double, grad.double())
    for own, visit in ((32, 32), (16, 64)):
        tiles = triton_kernels.Tiles(own, visit, 4, 1)
        out, lse = triton_kernels.launch_forward(q, k, v, *intervals[:2], scale, tiles, **drawn)
        gradient = torch.empty_like(qkv)
        triton_kernels.launch_backward(
            grad, q, k, v, out, lse, intervals, scale, gradient.unbind(1), tiles, **drawn
        )
        torch.testing.assert_close(out.double(), expected.detach(), rtol=0, atol=2e-5)
        torch.testing.assert_close(gradient.double(), wanted, rtol=0, atol=2e-5)


def test_compiled_dropout_draws_once_for_both_passes(path: str) -> None:
    """The output is linear in the values: its sum is their product with their gradient."""

    def layer(qkv: Tensor, boundaries: Tensor) -> Tensor:
        segments = make_segments(boundaries, qkv.shape[0], longest=20)
        return packed_self_attention(qkv, segments, dropout_p=0.4)

    compiled = torch.compile(layer, backend="aot_eager_decomp_partition", fullgraph=True)
    qkv, marks = random(33, 3, 2, 16).requires_grad_(), boundaries_of([20, 10])
    sums = []
    for _ in range(2):
        total = compiled(qkv, marks).sum()
        (gradient,) = torch.autograd.grad(total, qkv)
        assert (gradient[:, 2] * qkv[:, 2]).sum().item() == pytest.approx(total.item(), abs=1e-3)
        sums.append(total.item())
    assert sums[0] != sums[1]


@pytest.mark.usefixtures("triton")
def test_triton_dropout_differs_by_call_and_repeats_by_seed() -> None:
    qkv, segments = random(30, 3, 2, 16), segments_of([30], 0)
    outputs = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        outputs += [packed_self_attention(qkv, segments, dropout_p=0.5) for _ in range(2)]
    assert outputs[0].equal(outputs[2]) and outputs[1].equal(outputs[3])
    assert not outputs[0].equal(outputs[1]) and not outputs[0].equal(outputs[4])


def test_segments_of_a_batch_with_an_empty_sequence_and_a_tail() -> None:
    segments = make_segments(torch.tensor([0, 2, 2, 5, 5]), 7)
    assert segments.sequence.tolist() == [0, 0, 2, 2, 2, 4, 4]
    assert segments.start.tolist() == [0, 0, 2, 2, 2, 5, 5]
    assert segments.end.tolist() == [2, 2, 5, 5, 5, 5, 5]
    assert segments.position.tolist() == [0, 1, 0, 1, 2, 0, 0]
    assert segments.boundaries.dtype == segments.start.dtype == torch.int32
    assert segments.longest == 7


def test_layers_share_what_the_first_one_worked_out(path_of_attention: str) -> None:
    segments, memory_segments = segments_of([5, 3], 0), segments_of([4, 4], 0)
    for _ in range(3):
        packed_self_attention(random(8, 3, 1, 16), segments, causal=True)
        packed_cross_attention(random(8, 1, 16), random(8, 2, 1, 16), segments, memory_segments)
    prepared = (
        2 if path_of_attention in ("plain", "triton") else 0
    )  # the kernels in C read the boundaries alone
    assert len(segments.memo) == prepared and len(memory_segments.memo) == 0


def test_mistakes_are_named() -> None:
    segments = segments_of([4, 4], 0)
    with pytest.raises(
        ValueError, match=r"qkv must be \(8, 3, heads, width\), not \(7, 3, 2, 16\)"
    ):
        packed_self_attention(random(7, 3, 2, 16), segments)
    with pytest.raises(ValueError, match=r"kv must be \(8, 2, heads, width\)"):
        packed_cross_attention(random(8, 2, 16), random(8, 2, 16), segments, segments)
    with pytest.raises(ValueError, match="one factor for each of 2 heads"):
        packed_self_attention(random(8, 3, 2, 16), segments, head_scale=torch.ones(3))
    with pytest.raises(ValueError, match="cut into 2 sequences, keys into 1"):
        packed_cross_attention(random(8, 2, 16), random(8, 2, 2, 16), segments, segments_of([8], 0))
    with pytest.raises(ValueError, match="boundaries must be"):
        make_segments(torch.zeros(2, 2), 4)
    with pytest.raises(ValueError, match=r"boundaries must be .* integers, not torch.float32"):
        make_segments(torch.tensor([0.0, 4.0]), 4)
    for wrong in ([3, 4], [0, 3, 2, 4], [0, 5]):  # lengths, or of another batch
        with pytest.raises(ValueError, match="start with 0, never fall and not pass the 4 tokens"):
            make_segments(torch.tensor(wrong), 4)


@pytest.mark.skipif(INTERPRETED, reason="this process interprets the kernels itself")
@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
def test_kernels_through_the_interpreter() -> None:
    files = [str(file) for file in sorted(Path(__file__).parent.glob("test_kernels*.py"))]
    run = subprocess.run(
        [sys.executable, "-m", "pytest", *files, "-k", "triton", "-q", "-x", "--no-header"]
        + ["-p", "no:cacheprovider", "-p", "no:xdist", "-p", "no:randomly"],
        env={**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert run.returncode == 0, run.stdout[-6000:] + run.stderr[-2000:]
    passed = [int(a) for a, b in pairwise(run.stdout.split()) if b.startswith("passed")]
    assert passed and passed[0] >= 60, run.stdout[-2000:]
