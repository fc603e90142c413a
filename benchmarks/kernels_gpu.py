"""Check and time the kernels on a GPU: attention over packed sequences, and the loss.

    python benchmarks/kernels_gpu.py --json kernels.json [--quick]

First every path of the kernels is compared with a float64 loop over the sequences; then forward and
backward are timed inside CUDA graphs, for several tiles, beside PyTorch's varlen_attn and the
plain padded path, and the loss beside the plain one. The exit status is 1 if a comparison failed.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from kernels_cases import BF16, Case, Problem, packed_case, parts_of
from multibranch.nn.kernels import (
    make_segments,
    packed_cross_attention,
    packed_self_attention,
    smoothed_cross_entropy,
)
from multibranch.nn.plainly import use_reference
from multibranch.nn.triton_kernels import (
    Tiles,
    backward_tiles,
    forward_tiles,
    launch_cross_entropy,
)
from origin import origin

FORWARD = [(64, 64, 4, 1), (64, 64, 4, 2), (64, 32, 4, 2), (64, 32, 2, 1), (32, 32, 2, 1)]
FORWARD += [(32, 64, 4, 1), (32, 32, 4, 1), (16, 32, 1, 1), (128, 64, 8, 2), (128, 64, 4, 1)]
BACKWARD = [(64, 64, 4, 1), (64, 64, 4, 2), (64, 32, 4, 1), (64, 32, 4, 2), (64, 64, 8, 1)]
BACKWARD += [(32, 32, 2, 1), (32, 32, 4, 1), (32, 64, 4, 1), (32, 64, 4, 2), (128, 64, 8, 1)]
TOLERANCES = {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 2.5e-2}


# -- Correctness ---------------------------------------------------------------------------------


def loop(problem: Problem, *inputs: Tensor) -> Tensor:
    """The definition in float64, one sequence after the other."""
    case = problem.case
    key_lengths = case.key_lengths if problem.cross else case.lengths
    q, k, v = parts_of(inputs)
    outputs, q_start, k_start = [], 0, 0
    for t, s in zip(case.lengths, key_lengths):
        queries, keys = q[q_start : q_start + t], slice(k_start, k_start + s)
        q_start, k_start = q_start + t, k_start + s
        if s == 0 or t == 0:
            outputs.append(queries * 0.0)
            continue
        scores = torch.einsum("qhw,khw->hqk", queries, k[keys]) / math.sqrt(case.width)
        if case.kind == "causal":
            future = torch.ones(t, s, dtype=torch.bool, device="cuda").triu(1)
            scores = scores.masked_fill(future, -math.inf)
        outputs.append(torch.einsum("hqk,khw->qhw", scores.softmax(-1), v[keys]))
    output = torch.cat([*outputs, q[q_start:] * 0.0])
    return output if problem.scale is None else output * problem.scale.double()[:, None]


def compare(case: Case) -> dict[str, Any]:
    """The largest error of outputs and gradients, relative to the largest expected value."""
    problem = Problem(case)
    leaves = [x.requires_grad_() for x in problem.inputs]
    doubles = [x.detach().double().requires_grad_() for x in leaves]
    out = problem.attend(*leaves)
    results = [out, *torch.autograd.grad(out, leaves, problem.grad)]
    expected = loop(problem, *doubles)
    references = [expected, *torch.autograd.grad(expected, doubles, problem.grad.double())]
    errors = [
        ((a.double() - b).abs().max() / b.abs().max().clamp(min=1.0)).item()
        for a, b in zip(results, references)
    ]
    worst = max(error if math.isfinite(error) else math.inf for error in errors)
    name = f"{case.name} {case.kind} h={case.heads} w={case.width} {case.dtype}"
    name += " dropped heads" if case.scaled else ""
    return {"case": name, "error": worst, "ok": worst <= TOLERANCES[case.dtype]}


def correctness_cases() -> list[Case]:
    shapes = {
        "one-token": ([1] * 50, [1] * 50, 50, 50),
        "full": ([257], [300], 257, 300),
        "long": ([1100, 3, 400], [20, 1000, 700], 1537, 1730),
        "empty": ([0, 6, 0, 133, 0, 9, 0], [3, 8, 0, 0, 11, 250, 0], 160, 290),
        "tail": ([3, 10], [12, 2], 500, 333),
    }
    cases = []
    for name, (lengths, key_lengths, n, s) in shapes.items():
        for kind in ("self", "causal", "cross"):
            for width, dtype in [(64, BF16), (32, torch.float32)]:
                cases.append(Case(name, kind, lengths, key_lengths, n, s, 3, width, dtype, True))
    for width, dtype in [(16, BF16), (32, BF16), (128, BF16), (64, torch.float16)]:
        for kind in ("causal", "cross"):
            cases.append(packed_case("text", kind, 1024, 4, width, dtype=dtype))
    for width in (64, 128):
        cases.append(packed_case("text", "causal", 512, 2, width, dtype=torch.float32))
    for branches in range(1, 9):
        cases.append(packed_case("text", "self", 512, 4 * branches, 64))
    for kind in ("self", "causal", "cross"):
        cases.append(packed_case("text", kind, 4096, 12, 64, scaled=True))
    return cases


def compare_compiled() -> dict[str, Any]:
    """torch.compile without a graph break, replayed from a CUDA graph, equals eager."""
    problem = Problem(packed_case("compiled", "causal", 4096, 12, 64))
    other = Problem(packed_case("compiled", "cross", 4096, 12, 64))

    def layers(qkv: Tensor, kv: Tensor, marks: Tensor, memory_marks: Tensor) -> Tensor:
        segments = make_segments(marks, qkv.shape[0], longest=175)
        memory = make_segments(memory_marks, kv.shape[0], longest=185)
        states = packed_self_attention(qkv, segments, causal=True)
        return packed_cross_attention(states * 2.0, kv, segments, memory)

    inputs = (problem.inputs[0], other.inputs[1])
    marks = (other.boundaries, other.key_boundaries)

    def step(function: Callable[..., Tensor]) -> list[Tensor]:
        leaves = [x.detach().requires_grad_() for x in inputs]  # with no ties to another stream
        out = function(*leaves, *marks)
        return [out.detach(), *torch.autograd.grad(out, leaves, other.grad)]

    expected = [x.clone() for x in step(layers)]
    compiled = torch.compile(layers, fullgraph=True)
    graph, results = capture(lambda: step(compiled))
    graph.replay()
    torch.cuda.synchronize()
    error = max((a - b).abs().max().item() for a, b in zip(results, expected))
    return {"case": "compiled and replayed", "error": error, "ok": error <= 0.05}


# -- The loss ------------------------------------------------------------------------------------


def loss_problem(n: int, d: int, vocabulary: int) -> tuple[Tensor, Tensor, Tensor]:
    states = torch.randn(n, d, device="cuda", dtype=BF16).requires_grad_()
    weight = (torch.randn(vocabulary, d, device="cuda") * d**-0.5).to(BF16).requires_grad_()
    targets = torch.randint(4, vocabulary, (n,), device="cuda")
    targets[-n // 50 :] = 1
    return states, weight, targets


def loss_step(states: Tensor, weight: Tensor, targets: Tensor) -> list[Tensor]:
    losses = smoothed_cross_entropy(states, weight, targets, smoothing=0.1, ignore_index=1)
    return [*losses, *torch.autograd.grad(losses[0] / len(targets), (states, weight))]


def compare_loss(n: int, d: int, vocabulary: int) -> dict[str, Any]:
    states, weight, targets = loss_problem(n, d, vocabulary)
    results = loss_step(states, weight, targets)
    doubles = [x.detach().double().requires_grad_() for x in (states, weight)]
    with use_reference():
        references = loss_step(doubles[0], doubles[1], targets)
    errors = [
        ((a.double() - b).abs().max() / b.abs().max()).item() for a, b in zip(results, references)
    ]
    name = f"loss n={n} d={d} V={vocabulary}"
    return {"case": name, "error": max(errors), "errors": errors, "ok": max(errors) <= 2.5e-2}


def measure_loss(n: int, d: int, vocabulary: int) -> dict[str, Any]:
    """The whole loss with its gradients, and the kernel alone for several cuts."""
    problem = loss_problem(n, d, vocabulary)
    row: dict[str, Any] = {
        "case": f"loss n={n} d={d} V={vocabulary}",
        "both": attempt(lambda: microseconds(lambda: loss_step(*problem), 3, 5)),
    }
    logits = torch.randn(n, vocabulary, device="cuda", dtype=BF16)
    how: dict[str, Any] = {"smoothing": 0.1, "ignored": 1, "differentiate": True}

    def kernel(block: int, warps: int) -> float | str:
        launch = partial(launch_cross_entropy, logits, problem[2], block=block, warps=warps, **how)
        return attempt(lambda: microseconds(launch, 3, 5))

    row["forward_tiles"] = {
        str(cut): kernel(*cut)
        for cut in [(2048, 4), (4096, 4), (4096, 8), (8192, 8), (8192, 16), (16384, 16)]
    }
    with use_reference():
        row["padded_both"] = attempt(lambda: microseconds(lambda: loss_step(*problem), 2, 3))
    return row


# -- Time ----------------------------------------------------------------------------------------


def capture(function: Callable[[], Any], times: int = 1) -> tuple[torch.cuda.CUDAGraph, Any]:
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(2):
            function()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    result = None
    with torch.cuda.graph(graph):
        for _ in range(times):
            result = function()
    return graph, result


def microseconds(function: Callable[[], Any], times: int = 10, replays: int = 9) -> float:
    """The median time of one call, from CUDA graphs of several calls."""
    graph, _ = capture(function, times)
    graph.replay()
    spans = []
    for _ in range(replays):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        spans.append(start.elapsed_time(end) * 1000 / times)
    return sorted(spans)[len(spans) // 2]


def attempt(function: Callable[[], float]) -> float | str:
    """A time, or the reason why there is none (tiles that do not fit the device, say)."""
    try:
        return round(function(), 2)
    except Exception as error:
        return f"{type(error).__name__}: {error}".splitlines()[0][:120]


def measure(case: Case, *, sweep: bool) -> dict[str, Any]:
    problem = Problem(case)
    itemsize = problem.q.element_size()
    defaults = (forward_tiles(case.width, itemsize), backward_tiles(case.width, itemsize))

    def forward(tiles: Tiles) -> float | str:
        return attempt(lambda: microseconds(problem.forward(tiles)))

    def backward(tiles: Tiles) -> float | str:
        return attempt(lambda: microseconds(problem.backward(tiles)))

    row: dict[str, Any] = {
        "case": f"{case.name} {case.kind} n={case.tokens} h={case.heads} w={case.width}"
        + (" a third of the heads dropped" if case.scaled else ""),
        "sequences": len(case.lengths),
        "longest": max(case.lengths),
        "forward": forward(defaults[0]),
        "backward": backward(defaults[1]),
        "both": attempt(lambda: microseconds(problem.both(problem.attend))),
    }
    if sweep:
        row["forward_tiles"] = {str(t): forward(Tiles(*t)) for t in FORWARD}
        row["backward_tiles"] = {str(t): backward(Tiles(*t)) for t in BACKWARD}
    if not case.scaled:
        row["varlen_forward"] = attempt(
            lambda: microseconds(lambda: problem.varlen()(*problem.inputs), 3, 5)
        )
        row["varlen_both"] = attempt(lambda: microseconds(problem.both(problem.varlen()), 3, 5))
        with use_reference():
            row["padded_both"] = attempt(lambda: microseconds(problem.both(problem.attend), 2, 3))
    return row


def timing_cases() -> list[tuple[Case, bool]]:
    cases = [(packed_case("TED", kind, 4096, 12, 64), True) for kind in ("self", "causal", "cross")]
    cases.append((packed_case("TED", "self", 4096, 12, 64, scaled=True), False))
    cases += [(packed_case("TED", kind, 4096, 4, 64), False) for kind in ("self", "causal")]
    cases += [(packed_case("TED", kind, 32768, 12, 64), True) for kind in ("causal", "cross")]
    cases += [(packed_case("WMT", kind, 32768, 32, 32, 28.0), True) for kind in ("self", "causal")]
    cases.append((packed_case("WMT", "cross", 32768, 32, 32, 28.0), False))
    return cases


# -- Compilation ahead, on all cores -------------------------------------------------------------


# Which kernel, its tiles (None: its own), the head width, the type, whether heads are scaled.
Task = tuple[str, tuple[int, int, int, int] | None, int, torch.dtype, bool]


def build(task: Task) -> None:
    """Compile one kernel into Triton's cache on disk by running it once on a small problem."""
    which, tiles, width, dtype, scaled = task
    problem = Problem(packed_case("build", "self", 256, 3, width, dtype=dtype, scaled=scaled))
    try:
        launch = problem.forward if which == "forward" else problem.backward
        launch(None if tiles is None else Tiles(*tiles))()
    except Exception as error:
        print(f"build {task}: {error}".splitlines()[0], file=sys.stderr)


def build_all(sweep: bool) -> None:
    every = [(w, t, s) for w in (16, 32, 64, 128) for t in TOLERANCES for s in (False, True)]
    tasks: list[Task] = [(which, None, *key) for key in every for which in ("backward", "forward")]
    if sweep:
        for width in (64, 32):
            tasks += [("backward", tiles, width, BF16, False) for tiles in BACKWARD]
            tasks += [("forward", tiles, width, BF16, False) for tiles in FORWARD]
    tasks = [t for t in tasks if t[3] != torch.float16 or t[2] == 64]
    with ProcessPoolExecutor(12, mp_context=get_context("spawn")) as pool:
        list(pool.map(build, tasks, chunksize=1))


def table(rows: list[dict[str, Any]]) -> None:
    columns = ["forward", "backward", "both", "varlen_forward", "varlen_both", "padded_both"]
    print("microseconds".ljust(58) + "".join(column.rjust(16) for column in columns))
    for row in rows:
        cells = [str(row.get(column, ""))[:15].rjust(16) for column in columns]
        print(row["case"].ljust(58) + "".join(cells))
    for row in rows:
        for which in ("forward_tiles", "backward_tiles"):
            if which in row:
                times = {k: v for k, v in row[which].items() if not isinstance(v, str)}
                ranked = sorted(times.items(), key=lambda item: item[1])
                print(f"{row['case']} {which}: " + ", ".join(f"{k} {v}" for k, v in ranked))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="write the results here")
    parser.add_argument("--quick", action="store_true", help="no sweep over tiles")
    args = parser.parse_args()
    began = time.time()
    import triton

    machine = {**origin("cuda"), "triton": triton.__version__}
    print(machine)
    build_all(not args.quick)
    print(f"built after {time.time() - began:.0f} s", flush=True)
    checks = [compare(case) for case in correctness_cases()]
    checks += [compare_loss(4096, 256, 10152), compare_loss(1000, 512, 32768)]
    wrong = [check for check in checks if not check["ok"]]
    for check in wrong or sorted(checks, key=lambda check: -check["error"])[:5]:
        print("ok  " if check["ok"] else "WRONG", check)
    print(
        f"{len(checks) - len(wrong)} of {len(checks)} right, {time.time() - began:.0f} s",
        flush=True,
    )
    rows = [measure(case, sweep=sweep and not args.quick) for case, sweep in timing_cases()]
    rows += [measure_loss(4096, 256, 10152), measure_loss(32768, 512, 32768)]
    table(rows)
    checks.append(compare_compiled())  # last: a failed capture would spoil what follows it
    wrong = [check for check in checks if not check["ok"]]
    print(f"finished after {time.time() - began:.0f} s")
    if args.json:
        args.json.write_text(json.dumps({**machine, "checks": checks, "times": rows}, indent=1))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
