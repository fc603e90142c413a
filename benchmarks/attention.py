"""Time multi-branch attention: the fused layer, a loop over branches, and PyTorch's own attention.

    python benchmarks/attention.py [--device cpu] [--json FILE]

Measures self-attention over a padded batch at the paper's sizes, forward and backward. The variants
take turns within one run and each figure is the median over the rounds, so a busy machine affects
all of them alike. On a GPU, a second table compares the Triton kernels for a packed batch with the
plain path that they replace.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from multibranch.nn import MultiBranchAttention, kernels
from multibranch.nn.plainly import use_reference
from origin import origin

# width, heads: IWSLT's small and default models, WMT's
SIZES = [(256, 4), (512, 4), (512, 16)]
BRANCHES = [1, 2, 3, 4]
# Packed batches: sentences of these lengths, one after the other, until the batch is full.
LENGTHS = (22, 9, 31, 14, 40, 5, 26, 18)
DROPOUTS = (0.0, 0.1)


class Loop(nn.Module):
    """A module a branch, one after the other, averaged: what the paper's equation says."""

    def __init__(self, width: int, heads: int, branches: int) -> None:
        super().__init__()
        self.branches = nn.ModuleList(
            nn.MultiheadAttention(width, heads, batch_first=True) for _ in range(branches)
        )

    def forward(self, states: Tensor) -> Tensor:
        outputs = [b(states, states, states, need_weights=False)[0] for b in self.branches]
        return torch.stack(outputs).mean(0)


def ways(
    width: int, heads: int, branches: int
) -> dict[str, tuple[nn.Module, Callable[[Tensor], Tensor]]]:
    """The layers by name, each with how it is called on states (b, t, d)."""
    fused = MultiBranchAttention(width, heads, branches=branches, batch_first=True)
    found: dict[str, tuple[nn.Module, Callable[[Tensor], Tensor]]] = {
        "fused": (fused, lambda x: fused(x, x, x, need_weights=False)[0]),
        "loop": (loop := Loop(width, heads, branches), loop),
    }
    if branches == 1:
        torch_own = nn.MultiheadAttention(width, heads, batch_first=True)
        found["torch"] = (torch_own, lambda x: torch_own(x, x, x, need_weights=False)[0])
    return found


def seconds(call: Callable[[Tensor], Tensor], states: Tensor, *, backward: bool) -> float:
    if states.is_cuda:
        torch.cuda.synchronize()
    begin = time.perf_counter()
    if backward:
        call(states).sum().backward()
    else:
        with torch.no_grad():
            call(states)
    if states.is_cuda:
        torch.cuda.synchronize()
    return time.perf_counter() - begin


def measure(
    width: int, heads: int, branches: int, *, shape: tuple[int, int], device: str, rounds: int
) -> dict[str, Any]:
    torch.manual_seed(0)
    states = torch.randn(*shape, width, device=device)
    found = ways(width, heads, branches)
    for module, _ in found.values():
        module.to(device).train()
    times: dict[str, list[float]] = {f"{n} {d}": [] for n in found for d in ("forward", "both")}
    for round_number in range(rounds + 2):
        for name, (_, call) in found.items():
            for direction in ("forward", "both"):
                spent = seconds(call, states, backward=direction == "both")
                if round_number >= 2:  # past the first ones, which set things up
                    times[f"{name} {direction}"].append(spent)
    row: dict[str, Any] = {"width": width, "heads": heads, "branches": branches}
    row |= {name: 1000 * statistics.median(spent) for name, spent in times.items()}
    row["loop/fused"] = row["loop both"] / row["fused both"]
    if branches == 1:
        row["fused/torch"] = row["fused both"] / row["torch both"]
    return row


def measure_packed(
    branches: int, dropout: float, *, tokens: int, device: str, rounds: int
) -> dict[str, Any]:
    """The same for a packed batch, 256 wide with 4 heads a branch, in bfloat16."""
    torch.manual_seed(0)
    layer = MultiBranchAttention(256, 4, branches=branches, dropout=dropout)
    layer.to(device, torch.bfloat16).train()
    states = torch.randn(tokens, 256, device=device, dtype=torch.bfloat16)
    ends, number = [0], 0
    while ends[-1] + LENGTHS[number % len(LENGTHS)] <= tokens:
        ends.append(ends[-1] + LENGTHS[number % len(LENGTHS)])
        number += 1
    boundaries = torch.tensor(ends, dtype=torch.int32, device=device)
    segments = kernels.make_segments(boundaries, tokens, longest=max(LENGTHS))
    times: dict[str, list[float]] = {}
    for round_number in range(rounds + 2):
        for name, path in (("kernels", nullcontext), ("plain", use_reference)):
            with path():
                spent = seconds(lambda x: layer.attend_packed(x, segments), states, backward=True)
            if round_number >= 2:
                times.setdefault(name, []).append(spent)
    row: dict[str, Any] = {"branches": branches, "dropout": dropout, "tokens": tokens}
    row |= {name: 1000 * statistics.median(spent) for name, spent in times.items()}
    return row | {"plain/kernels": row["plain"] / row["kernels"]}


def print_packed(rows: list[dict[str, Any]]) -> None:
    print(f"\npacked, {rows[0]['tokens']:,} tokens, d=256, m=4, forward and backward")
    print(f"{'N_a':>5} {'dropout':>8} {'kernels ms':>11} {'plain ms':>9}   ratio")
    for row in rows:
        print(
            f"{row['branches']:>5} {row['dropout']:>8} {row['kernels']:>11.2f} "
            f"{row['plain']:>9.2f}   {row['plain/kernels']:.2f}"
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--sentences", type=int, default=32)
    parser.add_argument("--length", type=int, default=26)
    parser.add_argument("--tokens", type=int, help="of a packed batch (default 4096, on a GPU)")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--json", type=Path, help="where to write the results")
    args = parser.parse_args()
    if args.threads:
        torch.set_num_threads(args.threads)
    print(f"{'d':>5} {'m':>3} {'N_a':>4} {'fused ms':>10} {'loop ms':>10} {'torch ms':>10}   ratio")
    rows = []
    for width, heads in SIZES:
        for branches in BRANCHES:
            row = measure(
                width,
                heads,
                branches,
                shape=(args.sentences, args.length),
                device=args.device,
                rounds=args.rounds,
            )
            rows.append(row)
            own = f"{row['torch both']:10.2f}" if "torch both" in row else " " * 10
            ratio = f"loop/fused {row['loop/fused']:.2f}"
            if "fused/torch" in row:
                ratio += f", fused/torch {row['fused/torch']:.3f}"
            print(
                f"{width:>5} {heads:>3} {branches:>4} {row['fused both']:>10.2f} "
                f"{row['loop both']:>10.2f} {own}   {ratio}",
                flush=True,
            )
    packed = []
    if args.device == "cuda" or args.tokens:  # on a CPU there is one path, or the interpreter's
        said = {"tokens": args.tokens or 4096, "device": args.device, "rounds": args.rounds}
        packed = [measure_packed(n, dropout, **said) for n in BRANCHES for dropout in DROPOUTS]
        print_packed(packed)
    if args.json:
        record = {
            **origin(args.device),
            "threads": torch.get_num_threads(),
            "unit": "milliseconds, forward and forward with backward",
            "results": rows,
            "packed": packed,
        }
        args.json.write_text(json.dumps(record, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
